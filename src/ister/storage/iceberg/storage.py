"""IcebergStorage over a TopicHost: messages are appended to logs, and a pipeline writes them to Iceberg tables.

`ister.IcebergStorage` is this class, composed from a configuration; its TopicHost is a broker on loopback with a Spark
child process (`ister.runtime.iceberg_storage`).
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ister.core.defaults import ACK_TIMEOUT_MS
from ister.core.errors import (
    AlreadyExistsError,
    Behind,
    DrainingError,
    InvalidRequestError,
    NotFoundError,
    NotYetInTierError,
    PreconditionError,
)
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from ister.core.reader import Reader
from ister.storage.iceberg.fanout import Fanout
from ister.storage.tiered_reader import TieredReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import TracebackType
    from typing import Self

    from ister.core.dispatch.shared_reader import Limits
    from ister.core.message import StreamMessage
    from ister.core.reader import MessageReader
    from ister.storage.factory import WalStorageFactory
    from ister.storage.iceberg.fanout import FanoutReader
    from ister.storage.wal_storage import WalStorage

NAMESPACE = "default"
SUBSCRIPTION_CHARS_MAX = 1000


@dataclass(frozen=True, slots=True)
class TierStats:
    """The offsets [start, stop) that a tier holds, and their bytes there."""

    start: int = 0
    stop: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class TopicStats:
    """The size of a topic. The tiers overlap; memory holds copies of the log, and is not counted."""

    message_count: int
    """Messages that can be read."""
    bytes_stored: int
    """Bytes of log, objects and table together."""
    memory: TierStats
    log: TierStats
    objects: TierStats
    table: TierStats


async def _no_bytes(_topic: TopicName, _generation: int) -> int:
    return 0


class Parts(NamedTuple):
    """The parts of an IcebergStorage; `table_bytes` returns the size of a table."""

    topics: WalStorageFactory
    host: TopicHost
    table_bytes: Callable[[TopicName, int], Awaitable[int]] = _no_bytes


class Served(NamedTuple):
    """An open topic, and its policies for the table."""

    storage: WalStorage
    has_table: bool = True
    waits_for_table: bool = False
    """Level lake: an append waits for the table."""
    table_timeout_s: float = ACK_TIMEOUT_MS / 1000

    @property
    def generation(self) -> int:
        """The topic's generation."""
        return self.storage.generation


class TopicHost(Protocol):
    """Opens all topics, and has their messages written to their tables, each once.

    It reports how far a table is to the topic's storage, too (`WalStorage.table_reached`).
    """

    async def start(self, topics: WalStorageFactory) -> None:
        """Open every topic, and start the pipeline; after an error nothing is left open."""

    def find(self, topic: TopicName) -> Served | None:
        """Return a topic, None if it does not exist; raises its problem."""

    async def host(self, topic: TopicName) -> Served:
        """Return a topic, created if necessary."""

    async def remove(self, topic: TopicName) -> None:
        """Delete a topic with its messages; its table stays."""

    async def subscribed(self, topic: TopicName, subscription: str) -> None:
        """Record a subscription durably, so that its cursor is not deleted as a leftover. Idempotent."""

    def upto(self, topic: TopicName, generation: int) -> int | None:
        """Return the offset below which the table holds everything; None if it is unknown."""

    async def wait_upto(self, topic: TopicName, generation: int, upto: int, timeout_s: float) -> None:
        """Wake the pipeline, and return once the table holds everything below `upto`; NotYetInTierError after a timeout."""

    async def stop(self) -> None:
        """Stop the pipeline, and close every topic."""


def topic_name(text: str) -> TopicName:
    """Parse a topic name; one without a slash is in namespace `default`."""
    return TopicName.parse(text if text.startswith("/") else f"/{NAMESPACE}/{text}")


class IcebergStorage:
    """Many topics; opened at the first use. `shutdown` it at the end, or use `async with`."""

    def __init__(
        self,
        compose: Callable[[AsyncExitStack], Awaitable[Parts]],
        *,
        drain_timeout_s: float,
        limits: Limits | None = None,
    ) -> None:
        """Create it without opening anything.

        `compose` opens the parts and registers their closing with the stack. `drain_timeout_s` is how long `shutdown`
        waits for the tables, `limits` bounds the queue of one subscription.
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
        """Append messages, all or none, and create the topic if necessary; returns their offsets.

        Returns once they are as safe as the configuration requires.
        """
        name = topic_name(topic)
        host = (await self._open()).host
        served = host.find(name) or await host.host(name)
        if not messages:
            return range(served.storage.next_offset, served.storage.next_offset)
        offsets = await served.storage.append_messages(messages)
        await asyncio.sleep(0)  # an append may not suspend; let other tasks run between the calls of a busy caller
        if served.waits_for_table:
            await host.wait_upto(name, served.generation, offsets.stop, served.table_timeout_s)
        return offsets

    async def store_messages(self, topic: str, messages: Sequence[StreamMessage]) -> range:
        """Append messages as `store` does."""
        return await self.store(topic, messages)

    async def create_subscription_stream(
        self, namespace: str, topic: str, subscription: str, *, start: StartPosition | None = None
    ) -> SubscriptionStream:
        """Return a subscription's messages from its durable cursor on; a subscription has one stream at a time.

        A new subscription begins at `start`, or with the oldest message.
        """
        name = TopicName(namespace, topic)
        if not 0 < len(subscription) <= SUBSCRIPTION_CHARS_MAX:
            raise InvalidRequestError(f"a subscription's name has 1 to {SUBSCRIPTION_CHARS_MAX} characters")
        host = (await self._open()).host
        storage = self._found(host, name).storage
        key = (name, subscription)
        if key in self._streams:
            raise PreconditionError(f"subscription {subscription} of topic {name} has a stream already; close it first")
        self._streams[key] = None  # reserved during the awaits below
        try:
            cursor = (await storage.cursors()).get(subscription)
            if cursor is None:
                cursor = await storage.ack_checkpoint(subscription, _begin(storage, start))
            await host.subscribed(name, subscription)
            self._refuse_closed()
            reader = self._fanout(name, storage).subscribe(cursor)
        except BaseException:
            del self._streams[key]
            raise

        def closed(stream: SubscriptionStream) -> None:
            if self._streams.get(key) is stream:
                del self._streams[key]

        stream = self._streams[key] = SubscriptionStream(storage, reader, subscription, closed)
        return stream

    # --- topics -------------------------------------------------------------------------------------------------------

    async def initialize_topic(self, topic: str) -> None:
        """Open a topic and begin to write it to its table; creates it if necessary."""
        await (await self._open()).host.host(topic_name(topic))

    async def create_topic(self, topic: str) -> None:
        """Create a topic; AlreadyExistsError if it exists."""
        name = topic_name(topic)
        host = (await self._open()).host
        if host.find(name) is not None:
            raise AlreadyExistsError(f"topic {name} exists already")
        await host.host(name)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic: its log, objects and subscriptions; its streams end, its table stays."""
        name = topic_name(topic)
        host = (await self._open()).host
        self._found(host, name)
        await self._end_streams(name)
        await host.remove(name)

    async def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return [str(name) for name in await (await self._open()).topics.topics()]

    async def get_write_position(self, topic: str) -> int:
        """Return the offset that the next message gets."""
        return self._found((await self._open()).host, topic_name(topic)).storage.next_offset

    async def get_committed_position(self, topic: str) -> int:
        """Return the offset below which the table holds everything."""
        name = topic_name(topic)
        host = (await self._open()).host
        return _upto(host, name, self._found(host, name))

    async def get_topic_stats(self, topic: str) -> TopicStats:
        """Return the size of a topic, in total and by tier."""
        name = topic_name(topic)
        parts = await self._open()
        served = self._found(parts.host, name)
        upto = _upto(parts.host, name, served)
        size = await parts.table_bytes(name, served.generation) if upto else 0
        return await _stats(served.storage, TierStats(0, upto, size))

    # --- the end ------------------------------------------------------------------------------------------------------

    async def shutdown(self) -> None:
        """Refuse further calls, wait for the tables to hold everything, and close.

        NotYetInTierError, raised when all is closed, has what they do not hold after `drain_timeout_s`.
        """
        self._closing = True
        async with self._lock:
            if self._parts is None:
                return
            parts, self._parts = self._parts, None
            async with self._stack:
                self._stack.push_async_callback(parts.host.stop)
                for name in list(self._fanouts):
                    await self._end_streams(name)
                behind = await self._drain(parts)
        if behind:
            raise NotYetInTierError("lake", behind, f"after {self._drain_timeout_s:g} s")

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.shutdown()

    async def _drain(self, parts: Parts) -> list[Behind]:
        """Wait for all tables; returns what those that were not in time lack."""
        host = parts.host
        served = {}
        for name in await parts.topics.topics():
            if name not in parts.topics.problems and (found := host.find(name)) is not None and found.has_table:
                served[name] = found

        async def wait(name: TopicName, found: Served) -> None:
            with suppress(NotYetInTierError):
                await host.wait_upto(name, found.generation, found.storage.next_offset, self._drain_timeout_s)

        async with asyncio.TaskGroup() as waiting:
            for name, found in served.items():
                waiting.create_task(wait(name, found))
        ends = [
            Behind(str(name), _upto(host, name, found), found.storage.next_offset) for name, found in served.items()
        ]
        return [behind for behind in ends if behind.start < behind.stop]

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _open(self) -> Parts:
        self._refuse_closed()
        if self._parts is None:
            async with self._lock:
                self._refuse_closed()
                if self._parts is None:
                    try:
                        parts = await self._compose(self._stack)
                        await parts.host.start(parts.topics)
                    except BaseException:
                        await self._stack.aclose()
                        raise
                    self._parts = parts
        return self._parts

    def _refuse_closed(self) -> None:
        if self._closing:
            raise DrainingError("this IcebergStorage was shut down; make another one")

    def _found(self, host: TopicHost, name: TopicName) -> Served:
        found = host.find(name)
        if found is None:
            raise NotFoundError(f"topic {name} not found; create it, or store something in it")
        return found

    def _fanout(self, name: TopicName, storage: WalStorage) -> Fanout:
        async def open_at(offset: int) -> MessageReader:
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


def _begin(storage: WalStorage, start: StartPosition | None) -> int:
    if start is None:
        return storage.start_offset
    return storage.next_offset if start.at is None else start.at


def _upto(host: TopicHost, name: TopicName, served: Served) -> int:
    """Return the table's end: as reported by the pipeline, or as of the opening of the topic."""
    upto = host.upto(name, served.generation)
    if upto is not None:
        return upto
    table = served.storage.table
    return 0 if table is None else table.end.upto


async def _stats(storage: WalStorage, table: TierStats) -> TopicStats:
    """Return the stats of a topic, given those of its table."""
    wal, cache = storage.wal, storage.wal.cache
    memory = TierStats(cache.start, cache.stop, cache.held_bytes)
    logged = TierStats(wal.start_offset, wal.next_offset, wal.log_bytes)
    objects = TierStats()
    if storage.objects is not None:
        span = storage.objects.span
        size = 0
        async with aclosing(storage.objects.reader.catalog.all(span.start)) as descriptors:
            async for descriptor in descriptors:
                size += descriptor.size
        objects = TierStats(*span, size)
    return TopicStats(
        message_count=storage.next_offset - storage.start_offset,
        bytes_stored=logged.size + objects.size + table.size,
        memory=memory,
        log=logged,
        objects=objects,
        table=table,
    )


class SubscriptionStream(Reader):
    """An endless stream of messages, in order; `async for message in stream`, then `await stream.ack(message.offset)`.

    Acknowledgements are cumulative. A stream that is opened again begins after the last acknowledgement that returned, or
    after a later one that was cancelled.
    """

    def __init__(
        self,
        storage: WalStorage,
        reader: FanoutReader,
        subscription: str,
        on_close: Callable[[SubscriptionStream], None],
    ) -> None:
        """Use `IcebergStorage.create_subscription_stream`."""
        super().__init__()
        self.subscription = subscription
        self._storage = storage
        self._reader = reader
        self._delivered = self._cursor = reader.next_offset
        self._on_close = on_close

    @property
    def cursor(self) -> int:
        """The offset after the last one that was acknowledged durably."""
        return self._cursor

    async def __anext__(self) -> StreamMessage:
        message = await super().__anext__()
        self._delivered = message.offset + 1
        return message

    async def read(self) -> list[StreamMessage]:
        """Return the next messages, at least one; waits for some."""
        messages = await super().read()
        self._delivered = messages[-1].offset + 1
        return messages

    async def _read(self) -> list[StreamMessage]:
        return await self._reader.read()

    async def ack(self, offset: int) -> int:
        """Acknowledge all offsets up to and including this one; returns the cursor once that is durable.

        InvalidRequestError if it was not delivered yet.
        """
        if offset >= self._delivered:
            raise InvalidRequestError(
                f"subscription {self.subscription} cannot acknowledge offset {offset}: "
                f"it was given messages below {self._delivered} only"
            )
        self._cursor = await self._storage.ack_checkpoint(self.subscription, offset + 1)
        return self._cursor

    async def close(self) -> None:
        """End it; the subscription's next stream delivers again what was not acknowledged."""
        await self._reader.close()
        self._on_close(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()
