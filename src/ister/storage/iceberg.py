"""Storage of many topics on log and table: a message is stored in the log, and a pipeline carries it to its table.

Readers get it from whichever tier has it. How the pipeline runs is its port's affair; `ister.IcebergStorage` is this
class with the real one, made from a configuration.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NamedTuple

from ister.core.errors import (
    AlreadyExistsError,
    DrainingError,
    InvalidRequestError,
    NotFoundError,
    PreconditionError,
)
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from ister.storage.fanout import Fanout
from ister.storage.pipeline_port import Behind, NotInTableError
from ister.storage.subscription_stream import SubscriptionStream
from ister.storage.tiers import TieredReader
from ister.storage.topic_stats import TierStats, stats_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import TracebackType
    from typing import Self

    from ister.core.fanout import Limits
    from ister.core.message import StreamMessage
    from ister.storage.factory import WalStorageFactory
    from ister.storage.fanout import FollowingReader
    from ister.storage.pipeline_port import PipelinePort, Served
    from ister.storage.topic_stats import TopicStats
    from ister.storage.wal_storage import WalStorage

NAMESPACE = "default"
SUBSCRIPTION_CHARS_MAX = 1000


async def _no_bytes(_topic: TopicName, _generation: int) -> int:
    return 0


class Parts(NamedTuple):
    """What a storage is made of; `table_bytes` says how many bytes a table has."""

    topics: WalStorageFactory
    pipeline: PipelinePort
    table_bytes: Callable[[TopicName, int], Awaitable[int]] = _no_bytes


def topic_name(text: str) -> TopicName:
    """Return the topic that a name means; one without a slash is in namespace `default`."""
    return TopicName.parse(text if text.startswith("/") else f"/{NAMESPACE}/{text}")


class IcebergStorage:
    """Many topics; it opens at its first use. `shutdown` it at the end, or use `async with`."""

    def __init__(
        self,
        compose: Callable[[AsyncExitStack], Awaitable[Parts]],
        *,
        drain_timeout_s: float = 30.0,
        limits: Limits | None = None,
    ) -> None:
        """Take what makes the parts; what that opens, it gives to the stack to be closed.

        `drain_timeout_s` is how long `shutdown` waits for the tables, `limits` bounds what waits for one subscription.
        """
        self._compose = compose
        self._drain_timeout_s = drain_timeout_s
        self._limits = limits
        self._stack = AsyncExitStack()
        self._parts: Parts | None = None
        self._lock = asyncio.Lock()
        self._closing = False
        self._fanouts: dict[TopicName, Fanout] = {}
        self._streams: dict[tuple[TopicName, str], SubscriptionStream | None] = {}

    # --- messages -----------------------------------------------------------------------------------------------------

    async def store(self, topic: str, messages: Sequence[StreamMessage]) -> range:
        """Store messages, all or none; returns their offsets once they are as safe as the configuration asks.

        Makes the topic if it is not there.
        """
        name = topic_name(topic)
        pipeline = (await self._open()).pipeline
        served = pipeline.find(name) or await pipeline.host(name)
        if not messages:
            return range(served.storage.next_offset, served.storage.next_offset)
        offsets = await served.storage.append_messages(messages)
        await asyncio.sleep(0)  # a log may write without waiting; who stores on and on lets others have their turn
        if served.waits_for_table:
            timeout_s = served.table_timeout_s
            if not await pipeline.wait_upto(name, served.generation, offsets.stop, timeout_s):
                raise NotInTableError([self._behind(pipeline, name, served)], timeout_s)
        return offsets

    async def store_messages(self, topic: str, messages: Sequence[StreamMessage]) -> range:
        """Do what `store` does."""
        return await self.store(topic, messages)

    async def create_subscription_stream(
        self, namespace: str, topic: str, subscription: str, *, start: StartPosition | None = None
    ) -> SubscriptionStream:
        """Return a subscription's messages from its durable cursor on.

        A new subscription begins at `start`, or with the oldest message. It has one stream at a time.
        """
        name = TopicName(namespace, topic)
        if not 0 < len(subscription) <= SUBSCRIPTION_CHARS_MAX:
            raise InvalidRequestError(f"a subscription's name has 1 to {SUBSCRIPTION_CHARS_MAX} characters")
        pipeline = (await self._open()).pipeline
        storage = self._found(pipeline, name).storage
        key = (name, subscription)
        if key in self._streams:
            raise PreconditionError(f"subscription {subscription} of topic {name} has a stream already; close it first")
        self._streams[key] = None  # taken, while we wait
        try:
            cursor = (await storage.cursors()).get(subscription)
            if cursor is None:
                cursor = await storage.ack_checkpoint(subscription, _begin(storage, start))
            await pipeline.subscribed(name, subscription)
            self._refuse_closed()
            reader = self._fanout(name, storage).subscribe(cursor)
        except BaseException:
            del self._streams[key]
            raise

        async def gone(stream: SubscriptionStream) -> None:
            if self._streams.get(key) is stream:
                del self._streams[key]

        stream = self._streams[key] = SubscriptionStream(storage, reader, subscription, gone)
        return stream

    # --- topics -------------------------------------------------------------------------------------------------------

    async def initialize_topic(self, topic: str) -> None:
        """Have a topic open and carried to its table; makes it if it is not there."""
        await (await self._open()).pipeline.host(topic_name(topic))

    async def create_topic(self, topic: str) -> None:
        """Make a topic; AlreadyExistsError when it is there."""
        name = topic_name(topic)
        pipeline = (await self._open()).pipeline
        if pipeline.find(name) is not None:
            raise AlreadyExistsError(f"topic {name} exists already")
        await pipeline.host(name)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic: its log, objects and subscriptions; its streams end, its table stays."""
        name = topic_name(topic)
        pipeline = (await self._open()).pipeline
        self._found(pipeline, name)
        await self._end_streams(name)
        await pipeline.remove(name)

    async def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return [str(name) for name in await (await self._open()).topics.topics()]

    async def get_write_position(self, topic: str) -> int:
        """Return the offset that the next message gets."""
        return self._found((await self._open()).pipeline, topic_name(topic)).storage.next_offset

    async def get_committed_position(self, topic: str) -> int:
        """Return the offset below which the table holds everything."""
        name = topic_name(topic)
        pipeline = (await self._open()).pipeline
        return _upto(pipeline, name, self._found(pipeline, name))

    async def get_topic_stats(self, topic: str) -> TopicStats:
        """Return how much there is of a topic, in all and in each tier."""
        name = topic_name(topic)
        parts = await self._open()
        served = self._found(parts.pipeline, name)
        upto = _upto(parts.pipeline, name, served)
        size = await parts.table_bytes(name, served.generation) if upto else 0
        return await stats_of(served.storage, TierStats(0, upto, size))

    # --- the end ------------------------------------------------------------------------------------------------------

    async def shutdown(self) -> None:
        """Take nothing more, wait for the tables to hold everything, and close.

        NotInTableError says what they do not hold after `drain_timeout_s`. It comes when all is closed.
        """
        self._closing = True
        async with self._lock:
            if self._parts is None:
                return
            parts, self._parts = self._parts, None
            async with self._stack:
                self._stack.push_async_callback(parts.pipeline.stop)
                for name in list(self._fanouts):
                    await self._end_streams(name)
                behind = await self._drain(parts)
        if behind:
            raise NotInTableError(behind, self._drain_timeout_s)

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.shutdown()

    async def _drain(self, parts: Parts) -> list[Behind]:
        """Return which tables do not hold everything, once all do or the time is over."""
        pipeline = parts.pipeline
        served = {}
        for name in await parts.topics.topics():
            if name not in parts.topics.problems and (found := pipeline.find(name)) is not None and found.has_table:
                served[name] = found
        async with asyncio.TaskGroup() as waiting:
            for name, found in served.items():
                stop = found.storage.next_offset
                waiting.create_task(pipeline.wait_upto(name, found.generation, stop, self._drain_timeout_s))
        left = [self._behind(pipeline, name, found) for name, found in served.items()]
        return [behind for behind in left if behind.upto < behind.next_offset]

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _open(self) -> Parts:
        self._refuse_closed()
        if self._parts is None:
            async with self._lock:
                self._refuse_closed()
                if self._parts is None:
                    try:
                        parts = await self._compose(self._stack)
                        await parts.pipeline.start(parts.topics)
                    except BaseException:
                        await self._stack.aclose()
                        raise
                    self._parts = parts
        return self._parts

    def _refuse_closed(self) -> None:
        if self._closing:
            raise DrainingError("this IcebergStorage was shut down; make another one")

    def _found(self, pipeline: PipelinePort, name: TopicName) -> Served:
        found = pipeline.find(name)
        if found is None:
            raise NotFoundError(f"topic {name} not found; create it, or store something in it")
        return found

    def _fanout(self, name: TopicName, storage: WalStorage) -> Fanout:
        async def open_at(offset: int) -> FollowingReader:
            reader = await storage.create_reader(StartPosition.offset(offset))
            assert isinstance(reader, TieredReader), "a topic of a factory has objects, if only none yet"
            return reader

        fanout = self._fanouts.get(name)
        if fanout is None:
            fanout = self._fanouts[name] = Fanout(str(name), open_at, self._limits)
        return fanout

    async def _end_streams(self, name: TopicName) -> None:
        """End every stream of a topic."""
        for key, stream in list(self._streams.items()):
            if key[0] == name and stream is not None:
                await stream.close()
        fanout = self._fanouts.pop(name, None)
        if fanout is not None:
            await fanout.close()

    def _behind(self, pipeline: PipelinePort, name: TopicName, served: Served) -> Behind:
        return Behind(str(name), _upto(pipeline, name, served), served.storage.next_offset)


def _begin(storage: WalStorage, start: StartPosition | None) -> int:
    if start is None:
        return storage.start_offset
    return storage.next_offset if start.at is None else start.at


def _upto(pipeline: PipelinePort, name: TopicName, served: Served) -> int:
    """Return how far the table is: as the pipeline has said, or as the table did when the topic was opened."""
    told = pipeline.upto(name, served.generation)
    if told is not None:
        return told
    table = served.storage.table
    return 0 if table is None else table.end.upto
