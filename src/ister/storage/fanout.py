"""Have many subscribers of a topic share one reader while they are at its head; who falls behind reads alone.

What waits for a subscriber is bounded, and a slow one holds nobody up. The shared reader reads only while somebody waits
for it, so the quickest sets the pace. `ister.core.fanout` decides; here are the readers, the queues and the tasks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ister.core.batches import Batches
from ister.core.errors import LogClosedError
from ister.core.fanout import Limits, Seats, Step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ister.core.message import StreamMessage

MESSAGE_SIZE = 256
"""What a message takes in memory beside its payload and attributes, in bytes, roughly."""


class FollowingReader(Protocol):
    """Reads a topic from some offset on, without end: a TopicReader, or a TieredReader of a topic that goes on."""

    @property
    def next_offset(self) -> int:
        """The offset that will be read next."""
        ...

    async def read(self) -> list[StreamMessage]:
        """Return the next messages, at least one; waits until there are some."""
        ...

    async def close(self) -> None:
        """Stop reading ahead."""
        ...


class _Waiting(NamedTuple):
    """Messages in a subscriber's queue, their size, and the offset behind them."""

    messages: list[StreamMessage]
    size: int
    stop: int


class Fanout:
    """One topic's broadcast; `open_at` opens a reader at an offset. Close it at the end."""

    def __init__(
        self, topic: str, open_at: Callable[[int], Awaitable[FollowingReader]], limits: Limits | None = None
    ) -> None:
        self.topic = topic
        self._open_at = open_at
        self._seats = Seats(limits)
        self._readers: dict[int, FanoutReader] = {}
        self._shared: FollowingReader | None = None
        self._following: asyncio.Task[None] | None = None
        self._closed = False

    def subscribe(self, offset: int) -> FanoutReader:
        """Return a reader of everything from an offset on; it is asked for what is there only when it is read from."""
        if self._closed:
            raise LogClosedError(self.topic)
        number = self._seats.join(offset)
        self._readers[number] = FanoutReader(self, number, offset)
        return self._readers[number]

    @property
    def head(self) -> int | None:
        """The offset that the shared reader reads next; None when nobody is there."""
        return self._seats.head

    async def close(self) -> None:
        """End every subscriber, with LogClosedError for whoever reads on."""
        self._closed = True
        for reader in list(self._readers.values()):
            await reader.close()

    # --- what subscribers ask -----------------------------------------------------------------------------------------

    @property
    def seats(self) -> Seats:
        """Who is where."""
        return self._seats

    async def open_at(self, offset: int) -> FollowingReader:
        """Open a reader for one who reads alone."""
        return await self._open_at(offset)

    def follow(self, *, lead: bool) -> None:
        """Have the shared reader read for whoever waits; with `lead`, at another place than before."""
        before = self._following
        if before is not None and not lead:
            return
        if before is not None:
            before.cancel()
            for reader in self._readers.values():
                reader.news.set()  # who waited at the old place asks again
        self._following = asyncio.create_task(self._follow(before))

    async def leave(self, number: int) -> None:
        """Forget a subscriber, and the shared reader if nobody else needs it."""
        self._seats.leave(number)
        self._readers.pop(number, None)
        if self._seats.head is None or self._seats.followed:
            return
        self._seats.stop()
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.wait({following})
        await self._drop()

    # --- the shared reader --------------------------------------------------------------------------------------------

    async def _follow(self, before: asyncio.Task[None] | None) -> None:
        """Read at the head as long as somebody waits for it."""
        try:
            if before is not None:
                await asyncio.wait({before})
                await self._drop()  # its last read was cut off
            while self._seats.wanted:
                shared = await self._at_head()
                messages = await shared.read()
                self._hand_out(messages, shared.next_offset)
        except Exception as error:  # noqa: BLE001  # whatever it is, it belongs to whoever reads
            self._following = None
            for number in self._seats.fail():
                self._readers[number].fail(error)
        self._following = None
        if not self._seats.followed:
            self._seats.stop()
            await self._drop()

    async def _at_head(self) -> FollowingReader:
        head = self._seats.head
        assert head is not None, "somebody waits there"
        if self._shared is not None and self._shared.next_offset != head:
            await self._drop()
        if self._shared is None:
            self._shared = await self._open_at(head)
        return self._shared

    def _hand_out(self, messages: list[StreamMessage], stop: int) -> None:
        sizes = [size_of(message) for message in messages]
        for share in self._seats.deliver([message.offset for message in messages], sizes, stop):
            waiting = _Waiting(messages[share.first : share.last], share.size, share.stop)
            self._readers[share.seat].give(waiting)

    async def _drop(self) -> None:
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.close()


class FanoutReader(Batches):
    """One subscriber: an ordered stream of messages, each once; `async for message in reader`, or `read` for a batch.

    Errors end a call, not the reader: the next call goes on at the same offset.
    """

    def __init__(self, fanout: Fanout, number: int, offset: int) -> None:
        """Use `Fanout.subscribe`."""
        super().__init__()
        self.news = asyncio.Event()
        self._fanout = fanout
        self._number = number
        self._next = offset
        self._queue: deque[_Waiting] = deque()
        self._failure: Exception | None = None
        self._alone: FollowingReader | None = None
        self._closed = False

    @property
    def next_offset(self) -> int:
        """The offset that will be read next; what was read already may still be in the buffer of an iteration."""
        return self._next

    @property
    def is_alone(self) -> bool:
        """Whether it reads on its own now."""
        return self._alone is not None

    @property
    def waiting(self) -> int:
        """How many messages are in its queue."""
        return sum(len(waiting.messages) for waiting in self._queue)

    async def close(self) -> None:
        """Leave; whoever reads on gets LogClosedError."""
        self._closed = True
        self.news.set()
        await self._fanout.leave(self._number)
        await self._end_alone()

    # --- what the fan-out does ----------------------------------------------------------------------------------------

    def give(self, waiting: _Waiting) -> None:
        """Put messages into the queue."""
        self._queue.append(waiting)
        self.news.set()

    def fail(self, error: Exception) -> None:
        """Have the next call raise this, behind what is in the queue."""
        self._failure = error
        self.news.set()

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _read(self) -> list[StreamMessage]:
        seats = self._fanout.seats
        while True:
            if self._closed:
                raise LogClosedError(self._fanout.topic)
            if not self._queue and self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            match seats.ask(self._number):
                case Step.TAKE:
                    waiting = self._queue.popleft()
                    seats.took(self._number, len(waiting.messages), waiting.size)
                    self._next = waiting.stop
                    return waiting.messages
                case Step.READ:
                    return await self._read_alone()
                case Step.WAIT | Step.LEAD as step:
                    self.news.clear()
                    self._fanout.follow(lead=step is Step.LEAD)
                    await self._wait()

    async def _wait(self) -> None:
        try:
            await self._end_alone()
            await self.news.wait()
        finally:
            self._fanout.seats.rest(self._number)

    async def _read_alone(self) -> list[StreamMessage]:
        reached = self._fanout.seats.seats[self._number].at
        try:
            if self._alone is not None and self._alone.next_offset != reached:
                await self._end_alone()  # since it was used, the shared reader has brought something
            if self._alone is None:
                self._alone = await self._fanout.open_at(reached)
            messages = await self._alone.read()
            reached = self._alone.next_offset
        except BaseException:
            # Where a reader is that was cut off, only it knows; the next call opens another one.
            await self._end_alone()
            raise
        finally:
            if not self._closed:
                self._fanout.seats.has_read(self._number, reached)
        self._next = reached
        return messages

    async def _end_alone(self) -> None:
        alone, self._alone = self._alone, None
        if alone is not None:
            await alone.close()


def size_of(message: StreamMessage) -> int:
    """Return about how many bytes a message takes in memory."""
    size = MESSAGE_SIZE + len(message.payload)
    for key, value in message.attributes.items():
        size += len(key) + len(value)
    return size
