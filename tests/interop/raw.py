"""A client that does exactly what it is told: no retry, no lookup, no health check, every call with a deadline."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from collections.abc import Awaitable, Callable

import grpc
import pytest
from danube.proto import DanubeApi_pb2 as api
from danube.proto import DanubeApi_pb2_grpc as api_grpc
from danube.proto import SchemaRegistry_pb2_grpc as schema_grpc

from interop import wire
from interop.waiting import LOOK_S, eventually, within

CALL_S = 30.0
RECEIVE_S = 30.0
EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
"""Subscription types."""
DEAD_LETTER, BLOCK, DROP = range(3)
"""Poison policies."""
FIXED, EXPONENTIAL = range(2)
OPTIONS = [("grpc.max_receive_message_length", 8 << 20), ("grpc.use_local_subchannel_pool", 1)]
"""A channel of its own for every client: connections are not shared behind a test's back."""
LEAKED = re.compile(r"Traceback|\.py\b|File \"|/tmp/|/home/|/var/|site-packages")


class Raw:
    """Stubs of the data plane, calls of the admin plane, and the few steps that every test takes."""

    def __init__(self, target: str, admin_target: str) -> None:
        self.channel = grpc.aio.insecure_channel(target, options=OPTIONS)
        self.admin_channel = grpc.aio.insecure_channel(admin_target, options=OPTIONS)
        self.producing = api_grpc.ProducerServiceStub(self.channel)
        self.consuming = api_grpc.ConsumerServiceStub(self.channel)
        self.discovery = api_grpc.DiscoveryStub(self.channel)
        self.health = api_grpc.HealthCheckStub(self.channel)
        self.schemas = schema_grpc.SchemaRegistryStub(self.channel)
        self._numbers = itertools.count(1)
        self._places: dict[int, tuple[str, str]] = {}

    async def close(self) -> None:
        await self.channel.close()
        await self.admin_channel.close()

    # --- producing ----------------------------------------------------------------------------------------------------

    async def create_producer(self, topic: str, name: str = "raw", **fields) -> int:
        """Attach a producer to a reliable topic, unless the fields say otherwise; returns its id."""
        fields = {"dispatch_strategy": api.Reliable} | fields
        request = api.ProducerRequest(request_id=next(self._numbers), topic_name=topic, producer_name=name, **fields)
        answer = await self.producing.CreateProducer(request, timeout=CALL_S)
        assert (answer.request_id, answer.producer_name) == (request.request_id, name)
        assert 0 < answer.producer_id < 1 << 63
        return answer.producer_id

    async def send(self, topic: str, producer_id: int, payload: bytes, *, timeout_s: float = CALL_S, **fields) -> None:
        """Send one message and wait for its answer."""
        fields = {"producer_name": "raw", "publish_time": 1_700_000_000_000} | fields
        request = api.StreamMessage(
            request_id=next(self._numbers),
            msg_id=api.MsgID(producer_id=producer_id, topic_name=topic, broker_addr="http://nobody:1"),
            payload=payload,
            **fields,
        )
        answer = await self.producing.SendMessage(request, timeout=timeout_s)
        assert answer.request_id == request.request_id

    async def send_all(self, topic: str, producer_id: int, payloads, **fields) -> None:
        """Send one after the other."""
        for payload in payloads:
            await self.send(topic, producer_id, payload, **fields)

    # --- consuming ----------------------------------------------------------------------------------------------------

    async def subscribe(self, topic: str, subscription: str, name: str = "one", kind: int = SHARED, filters=()) -> int:
        """Register a consumer; returns its id."""
        request = api.ConsumerRequest(
            request_id=next(self._numbers),
            topic_name=topic,
            consumer_name=name,
            subscription=subscription,
            subscription_type=kind,
            key_filters=filters,
        )
        answer = await self.consuming.Subscribe(request, timeout=CALL_S)
        assert (answer.request_id, answer.consumer_name) == (request.request_id, name)
        assert 0 < answer.consumer_id < 1 << 63
        self._places[answer.consumer_id] = (topic, subscription)
        return answer.consumer_id

    def receive(self, consumer_id: int) -> Stream:
        """Open a stream; it is under way when this returns, and there once it is `opened`."""
        call = self.consuming.ReceiveMessages(api.ReceiveRequest(request_id=1, consumer_id=consumer_id))
        return Stream(call, lambda: self._is_connected(consumer_id))

    async def _is_connected(self, consumer_id: int) -> bool:
        topic, subscription = self._places[consumer_id]
        answer = await self.ask("DescribeSubscription", topic=topic, subscription=subscription)
        return any(one.consumer_id == consumer_id and one.connected for one in answer.subscription.consumers)

    async def consume(self, topic: str, subscription: str, name: str = "one", kind: int = SHARED, filters=()) -> Stream:
        """Subscribe, open a stream, and wait until the broker has it."""
        consumer_id = await self.subscribe(topic, subscription, name, kind, filters)
        stream = self.receive(consumer_id)
        await stream.opened()
        return stream

    async def ack(self, message: api.StreamMessage, subscription: str) -> None:
        request = api.AckRequest(request_id=next(self._numbers), msg_id=message.msg_id, subscription_name=subscription)
        answer = await self.consuming.Ack(request, timeout=CALL_S)
        assert answer.request_id == request.request_id

    async def nack(self, message: api.StreamMessage, subscription: str, **fields) -> None:
        request = api.NackRequest(
            request_id=next(self._numbers), msg_id=message.msg_id, subscription_name=subscription, **fields
        )
        answer = await self.consuming.Nack(request, timeout=CALL_S)
        assert answer.request_id == request.request_id

    # --- discovery, health --------------------------------------------------------------------------------------------

    async def lookup(self, topic: str) -> api.TopicLookupResponse:
        return await self.discovery.TopicLookup(api.TopicLookupRequest(request_id=9, topic=topic), timeout=CALL_S)

    async def partitions(self, topic: str) -> list[str]:
        request = api.TopicLookupRequest(request_id=9, topic=topic)
        return [*(await self.discovery.TopicPartitions(request, timeout=CALL_S)).partitions]

    async def is_well(self, client: int, number: int) -> bool:
        """Ask as a client does every five seconds."""
        answer = await self.health.HealthCheck(api.HealthCheckRequest(client=client, id=number), timeout=CALL_S)
        return answer.status == api.HealthCheckResponse.OK

    # --- the admin plane, and what the official stubs lack ------------------------------------------------------------

    async def ask(self, call: str, **fields):
        """Make one of the calls in `wire.CALLS`."""
        service, request, answer = wire.CALLS[call]
        channel = self.admin_channel if "dmin" in service else self.channel
        method = channel.unary_unary(
            f"/{service}/{call}",
            request_serializer=lambda given: given.SerializeToString(),
            response_deserializer=wire.message(answer).FromString,
        )
        return await method(wire.message(request)(**fields), timeout=CALL_S)

    async def create_topic(self, topic: str) -> None:
        """Make a reliable topic."""
        assert (await self.ask("CreateTopic", name=topic, dispatch_strategy=1)).success

    async def set_topic(self, topic: str, **policies) -> None:
        """Give a topic policies of its own."""
        await self.ask("SetTopicPolicies", topic=topic, policies=json.dumps(policies))

    async def set_policy(self, topic: str, subscription: str, **fields) -> None:
        """Set a failure policy that redelivers at once, but for what the fields say."""
        usual = {
            "max_redelivery_count": 5,
            "ack_timeout_ms": 30_000,
            "base_redelivery_delay_ms": 1,
            "max_redelivery_delay_ms": 60_000,
            "backoff_strategy": FIXED,
            "poison_policy": BLOCK,
        }
        answer = await self.ask(
            "SetSubscriptionFailurePolicy", topic=topic, subscription=subscription, failure_policy=usual | fields
        )
        assert answer.success

    async def set_window(self, topic: str, subscription: str, window: int) -> None:
        """Set how many messages may be out unacknowledged."""
        answer = await self.ask(
            "SetSubscriptionDispatchConfig",
            topic=topic,
            subscription=subscription,
            dispatch_config={"max_unacked_messages": window},
        )
        assert answer.success


class Stream:
    """An open ReceiveMessages call."""

    def __init__(self, call, is_connected: Callable[[], Awaitable[bool]]) -> None:
        self._call = call
        self._is_connected = is_connected

    async def opened(self) -> None:
        """Wait until the broker says that the consumer has a stream."""
        await eventually(self._is_connected, "opening a stream", CALL_S)

    async def next(self, seconds: float = RECEIVE_S) -> api.StreamMessage:
        """Return the next message; a stream that ends instead is a failure."""
        async with within(seconds, "a delivery"):
            message = await self._call.read()
        assert message is not grpc.aio.EOF, "the stream has ended"
        return message

    async def take(self, count: int, seconds: float = RECEIVE_S) -> list[api.StreamMessage]:
        """Return so many messages."""
        return [await self.next(seconds) for _ in range(count)]

    async def nothing(self, seconds: float = 0.15) -> None:
        """Insist that nothing comes for so long; the stream is still good afterwards."""
        reading = asyncio.ensure_future(self._call.read())
        done, _ = await asyncio.wait([reading], timeout=seconds)
        if done:
            pytest.fail(f"{reading.result()!r} came, and nothing should have")
        self._call = _Pushed(self._call, reading)

    async def ended(self) -> grpc.StatusCode:
        """Wait for the end of the stream, whatever is still in it; returns its status."""
        async with within(RECEIVE_S, "the end of a stream"):
            try:
                while await self._call.read() is not grpc.aio.EOF:
                    pass
            except grpc.aio.AioRpcError as error:
                return error.code()
            return await self._call.code()

    def cancel(self) -> None:
        self._call.cancel()


class _Pushed:
    """A call of which one read has begun already."""

    def __init__(self, call, reading: asyncio.Future) -> None:
        self._call = call
        self._reading: asyncio.Future | None = reading

    async def read(self):
        if self._reading is None:
            return await self._call.read()
        reading, self._reading = self._reading, None
        return await reading

    def cancel(self) -> None:
        self._call.cancel()

    async def code(self):
        return await self._call.code()


async def refused(code: grpc.StatusCode, call: Awaitable[object], *, saying: str = "") -> str:
    """Insist that a call is refused with this status, in words that give nothing away; returns them."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = caught.value
    assert error.code() is code, f"{error.code()}: {error.details()}"
    assert error.details(), "a refusal says why"
    assert LEAKED.search(error.details()) is None, error.details()
    assert saying in error.details()
    return error.details()


async def once_allowed(code: grpc.StatusCode, make: Callable[[], Awaitable], seconds: float = CALL_S):
    """Make a call again and again while it is refused with this status; returns its answer."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await make()
        except grpc.aio.AioRpcError as error:
            if error.code() is not code or time.monotonic() > deadline:
                raise
        await asyncio.sleep(LOOK_S)
