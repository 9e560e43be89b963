"""A broker without a transport: handlers are called, streams are iterated, and a restart is a new broker on the same disk."""

import asyncio
from contextlib import aclosing, asynccontextmanager

from danube.proto.DanubeApi_pb2 import (
    AckRequest,
    ConsumerRequest,
    MsgID,
    NackRequest,
    ProducerRequest,
    ReceiveRequest,
    StreamMessage,
)

from ister.broker.registry.store import SchemaStore
from ister.broker.registry.validation import Validation
from ister.broker.services.consumer import ConsumerService
from ister.broker.services.discovery import Discovery
from ister.broker.services.producer import ProducerService
from ister.broker.settings import BrokerSettings
from ister.broker.topics.broker import Broker
from ister.broker.topics.records import Records
from ister.config.policies import CompletePolicies
from ister.ports.metadata import MemoryMetadata
from ister.ports.objects import FsStore
from ister.storage.factory import TopicsConfig, WalStorageFactory
from ister.wal import WalConfig

WAIT_S = 20
SETTINGS = {
    "cluster_name": "ister",
    "broker_url": None,
    "connect_url": None,
    "auto_create_topics": True,
    "bootstrap_namespaces": (),
    "policies": CompletePolicies(),
    "max_unacked_messages": 10,
    "consumer_grace_s": 10.0,
    "consumer_expiry_s": 600.0,
    "producer_expiry_s": 15.0,
    "volatile_subscription_expiry_s": 60.0,
    "cursor_interval_s": 1.0,
    "non_reliable_queue": 1024,
}
"""The configuration's defaults, as a broker gets them."""
EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)


async def until(condition):
    """Wait for a condition of the broker's, which says nothing when it comes true."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  # nobody sets an event for a test
            await asyncio.sleep(0.005)


class FakeCall:
    """What a handler may know of its call."""

    peer = "test"
    cancelled = False

    def __init__(self, headers=None):
        self.trailing = {}
        self.headers = headers or {}

    def header(self, key):
        return self.headers.get(key)

    def trail(self, key, value):
        self.trailing[key] = value

    def when_sent(self, done):
        done()


class Client:
    """Calls the handlers of one broker as a client would over the wire: through encoded messages."""

    def __init__(self, broker):
        self.broker = broker
        self.producing = ProducerService(broker, Validation(broker.schemas))
        self.consuming = ConsumerService(broker)
        self.discovery = Discovery(broker)
        self.requests = 0

    async def producer(self, topic, name="p", *, reliable=True, subject=None, exclusive=False, call=None):
        request = ProducerRequest(
            request_id=1,
            producer_name=name,
            topic_name=topic,
            producer_access_mode=int(exclusive),
            dispatch_strategy=int(reliable),
        )
        if subject is not None:
            request.schema_ref.subject = subject
        return (await self.producing.create_producer(request, call or FakeCall())).producer_id

    async def send(self, topic, producer, payload, *, name="p", call=None, **fields):
        self.requests += 1
        call = call or FakeCall()
        message = StreamMessage(
            request_id=self.requests,
            msg_id=MsgID(producer_id=producer, topic_name=topic, broker_addr="http://b"),
            payload=payload,
            publish_time=1234,
            producer_name=name,
            **fields,
        )
        answer = await self.producing.send_message(StreamMessage.FromString(message.SerializeToString()), call)
        assert answer.request_id == self.requests
        return int(call.trailing.get("ister-offset", -1))

    async def subscribe(self, topic, subscription="s", name="c", kind=EXCLUSIVE, filters=()):
        request = ConsumerRequest(
            request_id=9,
            topic_name=topic,
            consumer_name=name,
            subscription=subscription,
            subscription_type=kind,
            key_filters=filters,
        )
        return (await self.consuming.subscribe(request)).consumer_id

    @asynccontextmanager
    async def receive(self, consumer, call=None):
        """Open a stream; what is given can be asked for messages."""
        request = ReceiveRequest(consumer_id=consumer)
        async with aclosing(self.consuming.receive_messages(request, call or FakeCall())) as stream:
            opened = Receiving(stream)
            found = self.broker.subscriptions.consumers.get(consumer)
            if found is not None:
                await until(lambda: opened.ended() or found[2].stream is not None)
            try:
                yield opened
            finally:
                await opened.stop()

    async def ack(self, message, subscription="s"):
        self.consuming.ack(AckRequest(request_id=3, msg_id=message.msg_id, subscription_name=subscription))

    async def nack(self, message, subscription="s", **fields):
        self.consuming.nack(NackRequest(request_id=3, msg_id=message.msg_id, subscription_name=subscription, **fields))


class Receiving:
    """A stream that is read by a task, so that it is open even while nobody asks."""

    def __init__(self, stream):
        self._messages = asyncio.Queue()
        self._task = asyncio.create_task(self._read(stream))

    async def _read(self, stream):
        async for data in stream:
            self._messages.put_nowait(StreamMessage.FromString(data))

    async def take(self, count):
        """Return the next messages."""
        async with asyncio.timeout(WAIT_S):
            found = []
            while len(found) < count:
                asking = asyncio.ensure_future(self._messages.get())
                await asyncio.wait({asking, self._task}, return_when=asyncio.FIRST_COMPLETED)
                if not asking.done() and self._messages.empty():
                    asking.cancel()
                    self._task.result()
                    raise EOFError("the stream ended")
                found.append(await asking)
            return found

    async def end(self):
        """Return once the broker has ended the stream; raises what it ended with."""
        async with asyncio.timeout(WAIT_S):
            await self._task

    def ended(self):
        """Tell whether the stream has ended."""
        return self._task.done()

    def waiting(self):
        """Return how many messages have come and were not taken."""
        return self._messages.qsize()

    async def stop(self):
        self._task.cancel()
        await asyncio.wait({self._task})


class BrokerWorld:
    """What outlives a broker: a directory and metadata."""

    def __init__(self, directory, metadata=None):
        self.directory = directory
        self.metadata = metadata or MemoryMetadata()

    def factory(self):
        config = TopicsConfig(wal=WalConfig(dir=self.directory / "wal"))
        return WalStorageFactory(config, store=FsStore(self.directory / "objects"), metadata=self.metadata)

    @asynccontextmanager
    async def broker(self, **settings):
        """Run a broker, and drain it at the end."""
        broker = await self.start(**settings)
        try:
            yield Client(broker)
        finally:
            await broker.drain(10)

    async def start(self, **settings):
        factory = self.factory()
        schemas = SchemaStore(self.metadata, factory.config.root_prefix)
        await schemas.load()
        settings = {"broker_url": "http://127.0.0.1:6650", **settings}
        broker = Broker(
            BrokerSettings(**SETTINGS | settings), factory, Records(self.metadata, factory.config.root_prefix), schemas
        )
        await broker.start()
        return broker
