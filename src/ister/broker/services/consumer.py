"""danube.ConsumerService: subscribe, receive, acknowledge."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import structlog
from danube.proto import DanubeApi_pb2 as pb
from danube.proto.DanubeApi_pb2 import AckResponse, NackResponse
from danube.proto.DanubeApi_pb2 import StreamMessage as WireMessage

from ister.broker.methods import Handlers
from ister.broker.topics import ids
from ister.core.dispatch.delivery_id import split_delivery_id, with_delivery_id
from ister.core.dispatch.dispatch import SubscriptionType
from ister.core.errors import (
    DeniedError,
    InvalidRequestError,
    LimitError,
    NotFoundError,
    PreconditionError,
    UnknownPlaceError,
)
from ister.core.names import TopicName, check_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ister.broker.topics.consumer import Consumer
    from ister.broker.topics.topic import Subscription, Topic
    from ister.core.dispatch.delivery_id import DeliveryId
    from ister.core.message import StreamMessage
    from ister.transport.service import Call

log = structlog.get_logger()

FILTERS_MAX = 256
FILTER_CHARS_MAX = 255
REASON_CHARS_MAX = 1024
PAUSE_S = 0.2
"""How long the refusal of a consumer beyond the limits is delayed."""


class ConsumerService(Handlers):
    """The handlers of danube.ConsumerService."""

    descriptors = (pb.DESCRIPTOR.services_by_name["ConsumerService"],)

    # --- subscribing --------------------------------------------------------------------------------------------------

    async def subscribe(self, request: pb.ConsumerRequest) -> pb.ConsumerResponse:
        """Add a consumer to a subscription, which is created if need be; the same name replaces itself."""
        name = TopicName.parse(request.topic_name)
        check_name("consumer_name", request.consumer_name)
        check_name("subscription", request.subscription)
        filters = _filters(request)
        try:
            kind = SubscriptionType(request.subscription_type)
        except ValueError:
            raise InvalidRequestError(f"subscription_type {request.subscription_type} is none of 0 to 3") from None
        broker = self._broker
        broker.topics.find(request.topic_name)
        async with broker.topics.changing(name):
            topic = broker.topics.find(request.topic_name)
            topic.check()
            subscription = await broker.subscriptions.acquire_or_create(topic, request.subscription, kind)
            consumer = await self._join(topic, subscription, kind, request.consumer_name, filters)
        return pb.ConsumerResponse(
            request_id=request.request_id, consumer_id=consumer.id, consumer_name=request.consumer_name
        )

    async def _join(
        self, topic: Topic, subscription: Subscription, kind: SubscriptionType, name: str, filters: tuple[str, ...]
    ) -> Consumer:
        broker = self._broker
        now = asyncio.get_running_loop().time()
        others = [consumer for consumer in subscription.consumers.live(now) if consumer.name != name]
        _admit(topic, subscription, kind, others)
        _check_limits(topic, subscription, name, now)
        record = subscription.record
        consumers = dict(record.consumers)
        if record.kind is not kind or kind is SubscriptionType.EXCLUSIVE:
            # Consumers that are not live lose their place.
            consumers = {consumer.name: consumer.filters for consumer in others}
        consumers[name] = filters
        changed = record.model_copy(update={"kind": kind, "consumers": consumers})
        if changed != record:
            await broker.records.save_subscription(topic.name, subscription.name, changed)
            broker.subscriptions.check_served(topic, subscription)
            for lost in [c for c in subscription.consumers.values() if c.name not in consumers]:
                subscription.leave(lost)
                broker.subscriptions.consumers.pop(lost.id, None)
            subscription.configure(changed)
            if record.kind is not kind:
                log.info("subscription_type_changed", topic=topic.text, subscription=subscription.name,
                         before=record.kind.name, type=kind.name)  # fmt: skip
        known = subscription.consumers.get(name)
        consumer = subscription.join(ids.consumer_id(topic.text, subscription.name, name), name, filters)
        broker.subscriptions.consumers[consumer.id] = (topic, subscription, consumer)
        if known is None:
            log.info("consumer_joined", topic=topic.text, subscription=subscription.name, consumer=name)
        return consumer

    # --- receiving ----------------------------------------------------------------------------------------------------

    async def receive_messages(self, request: pb.ReceiveRequest, call: Call) -> AsyncIterator[bytes]:
        """Deliver messages for as long as the connection lasts, or until the same consumer opens another stream."""
        found = self._broker.subscriptions.consumers.get(request.consumer_id)
        if found is None:
            await self._broker.ownership.resume_consumer(request.consumer_id)
            found = self._broker.subscriptions.consumers.get(request.consumer_id)
        elif found[2].stream is not None:
            await found[2].wait_to_take_over(found[0].text, found[1].name)
            found = self._broker.subscriptions.consumers.get(request.consumer_id)
        if found is None:
            raise NotFoundError(f"consumer {request.consumer_id} not found; subscribe first")
        topic, subscription, consumer = found
        topic.check()
        try:
            _check_limits(topic, subscription, consumer.name, asyncio.get_running_loop().time())
        except (DeniedError, LimitError):
            await asyncio.sleep(PAUSE_S)  # Python's client retries at once, for ever
            raise
        stream = subscription.open_stream(consumer)
        try:
            outbox, reliable = stream.outbox, subscription.reliable
            while not stream.ended:
                while outbox:
                    message, number = outbox.popleft()
                    if reliable is None:
                        yield wire_bytes(message, subscription.name, message.msg_id.broker_addr)
                    elif reliable.wants(message, number):
                        address = with_delivery_id(message.msg_id.broker_addr, reliable.delivery_id)
                        yield wire_bytes(message, subscription.name, address)
                        call.when_sent(partial(reliable.sent, consumer, stream, message.offset, number))
                await stream.wait()
            if stream.failure is not None:
                raise stream.failure
        finally:
            subscription.close_stream(consumer, stream)

    # --- acknowledging ------------------------------------------------------------------------------------------------

    def ack(self, request: pb.AckRequest) -> AckResponse:
        """Process an acknowledgement; an unexpected one is no error."""
        subscription, delivery = self._delivered(request)
        subscription.ack(request.msg_id.topic_offset, delivery)
        return AckResponse(request_id=request.request_id)

    def nack(self, request: pb.NackRequest) -> NackResponse:
        """Process a negative acknowledgement: schedule redelivery."""
        subscription, delivery = self._delivered(request)
        subscription.nack(request.msg_id.topic_offset, request.delay_ms, request.reason[:REASON_CHARS_MAX], delivery)
        return NackResponse(request_id=request.request_id)

    def _delivered(self, request: pb.AckRequest | pb.NackRequest) -> tuple[Subscription, DeliveryId | None]:
        """Return the subscription and the delivery id of an acknowledged message."""
        if not request.HasField("msg_id"):
            raise InvalidRequestError("msg_id is missing")
        topic, name = request.msg_id.topic_name, request.subscription_name
        found = self._broker.topics.get(topic)
        if found is None:
            raise UnknownPlaceError(f"topic {topic[:255]!r} not found")
        subscription = found.subscriptions.get(name)
        if subscription is None:
            found.check()
            if name in found.dormant:
                self._broker.ownership.check(found, name)
            raise UnknownPlaceError(f"subscription {name[:255]!r} of topic {found.text} not found")
        return subscription, split_delivery_id(request.msg_id.broker_addr)[1]


def _filters(request: pb.ConsumerRequest) -> tuple[str, ...]:
    if int(request.subscription_type) != SubscriptionType.KEY_SHARED:
        return ()
    if len(request.key_filters) > FILTERS_MAX:
        raise InvalidRequestError(f"key_filters are {len(request.key_filters)}, more than {FILTERS_MAX}")
    for pattern in request.key_filters:
        if not 0 < len(pattern) <= FILTER_CHARS_MAX:
            raise InvalidRequestError(
                f"a key filter has {len(pattern)} characters; 1 to {FILTER_CHARS_MAX} are allowed"
            )
    return tuple(request.key_filters)


def _admit(topic: Topic, subscription: Subscription, kind: SubscriptionType, others: list[Consumer]) -> None:
    """Raise if the subscription type does not allow another consumer."""
    where = f"subscription {subscription.name} of topic {topic.text}"
    if others and subscription.record.kind is not kind:
        raise PreconditionError(
            f"{where} is {subscription.record.kind.name} and has consumers; it cannot become {kind.name}"
        )
    if others and kind is SubscriptionType.EXCLUSIVE:
        raise DeniedError(f"{where} is exclusive and has the consumer {others[0].name}")


def _check_limits(topic: Topic, subscription: Subscription, name: str, now: float) -> None:
    """Raise if a consumer is beyond the limits. For a live consumer only open streams of others count.

    After a restart all stored consumers are live, perhaps more than allowed: the first to connect get streams.
    """
    per_topic, per_subscription = topic.policies.max_consumers_per_topic, topic.policies.max_consumers_per_subscription
    if not per_topic and not per_subscription:
        return
    is_live = any(consumer.name == name for consumer in subscription.consumers.live(now))

    def others(served: Subscription) -> int:
        return sum(
            (consumer.stream is not None or not is_live) and (served is not subscription or consumer.name != name)
            for consumer in served.consumers.live(now)
        )

    if per_topic and sum(map(others, topic.subscriptions.values())) >= per_topic:
        raise LimitError(f"topic {topic.text} has {per_topic} consumers, as many as it may have")
    if per_subscription and others(subscription) >= per_subscription:
        raise DeniedError(
            f"subscription {subscription.name} of topic {topic.text} has {per_subscription} consumers, "
            "as many as it may have"
        )


def wire_bytes(message: StreamMessage, subscription: str, address: str) -> bytes:
    """Return a message encoded for the wire, with this broker_addr."""
    wire = WireMessage(
        request_id=message.request_id,
        payload=message.payload,
        publish_time=message.publish_time,
        producer_name=message.producer_name,
        subscription_name=subscription,
        schema_id=message.schema_id,
        schema_version=message.schema_version,
        routing_key=message.routing_key,
    )
    wire_id, msg_id = wire.msg_id, message.msg_id
    wire_id.producer_id = msg_id.producer_id
    wire_id.topic_name = msg_id.topic_name
    wire_id.broker_addr = address
    wire_id.topic_offset = msg_id.topic_offset
    if message.attributes:
        wire.attributes.update(message.attributes)
    return wire.SerializeToString()
