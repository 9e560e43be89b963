"""Fan-out of one shared reader to the subscribers at a topic's head; one that falls behind reads on its own.

Each subscriber's queue is bounded, and a slow one blocks no other. The shared reader reads only while a subscriber waits
for it. The rules are in `ister.core.dispatch.shared_reader`; here are the readers, the queues and the tasks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from ister.core.dispatch.shared_reader import Limits, SharedReaderState, Step
from ister.core.errors import LogClosedError
from ister.core.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ister.core.message import StreamMessage
    from ister.core.reader import MessageReader

MESSAGE_SIZE = 256
"""Approximate bytes of a message in memory besides its payload and attributes."""


class _Waiting(NamedTuple):
    """Messages in a subscriber's queue, their size, and the offset after them."""

    messages: list[StreamMessage]
    size: int
    stop: int


class Fanout:
    """One topic's broadcast; `open_at` opens a reader at an offset. Close it at the end."""

    def __init__(
        self, topic: str, open_at: Callable[[int], Awaitable[MessageReader]], limits: Limits | None = None
    ) -> None:
        self.topic = topic
        self.open_at = open_at
        self.state = SharedReaderState(limits)
        self._readers: dict[int, FanoutReader] = {}
        self._shared: MessageReader | None = None
        self._following: asyncio.Task[None] | None = None
        self._closed = False

    def subscribe(self, offset: int) -> FanoutReader:
        """Return a reader of everything from an offset on; it reads nothing until it is read from."""
        if self._closed:
            raise LogClosedError(self.topic)
        number = self.state.join(offset)
        self._readers[number] = FanoutReader(self, number, offset)
        return self._readers[number]

    @property
    def head(self) -> int | None:
        """The offset that the shared reader reads next; None without subscribers."""
        return self.state.head

    async def close(self) -> None:
        """Close every subscriber; further reads raise LogClosedError."""
        self._closed = True
        for reader in list(self._readers.values()):
            await reader.close()

    # --- used by subscribers ------------------------------------------------------------------------------------------

    def follow(self, *, lead: bool) -> None:
        """Start the shared reader for waiting subscribers; with `lead`, at another offset than before."""
        before = self._following
        if before is not None and not lead:
            return
        if before is not None:
            before.cancel()
            for reader in self._readers.values():
                reader.news.set()  # subscribers that waited at the old offset ask again
        self._following = asyncio.create_task(self._follow(before))

    async def leave(self, number: int) -> None:
        """Remove a subscriber, and the shared reader if no other needs it."""
        self.state.leave(number)
        self._readers.pop(number, None)
        if self.state.head is None or self.state.followed:
            return
        self.state.stop()
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.wait({following})
        await self._drop()

    # --- the shared reader --------------------------------------------------------------------------------------------

    async def _follow(self, before: asyncio.Task[None] | None) -> None:
        """Read at the head while a subscriber waits for it."""
        try:
            if before is not None:
                await asyncio.wait({before})
                await self._drop()  # its last read was cancelled
            while self.state.wanted:
                shared = await self._at_head()
                messages = await shared.read()
                self._hand_out(messages, shared.next_offset)
        except Exception as error:  # noqa: BLE001  # raised by the subscribers' reads
            self._following = None
            for number in self.state.fail():
                self._readers[number].fail(error)
        self._following = None
        if not self.state.followed:
            self.state.stop()
            await self._drop()

    async def _at_head(self) -> MessageReader:
        head = self.state.head
        assert head is not None, "a subscriber waits there"
        if self._shared is not None and self._shared.next_offset != head:
            await self._drop()
        if self._shared is None:
            self._shared = await self.open_at(head)
        return self._shared

    def _hand_out(self, messages: list[StreamMessage], stop: int) -> None:
        sizes = [size_of(message) for message in messages]
        for part in self.state.deliver([message.offset for message in messages], sizes, stop):
            waiting = _Waiting(messages[part.first : part.last], part.size, part.stop)
            self._readers[part.subscriber].give(waiting)

    async def _drop(self) -> None:
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.close()


class FanoutReader(Reader):
    """One subscriber. An error ends a call, not the reader: the next call resumes at the same offset."""

    def __init__(self, fanout: Fanout, number: int, offset: int) -> None:
        """Use `Fanout.subscribe`."""
        super().__init__()
        self.news = asyncio.Event()
        self._fanout = fanout
        self._number = number
        self._next = offset
        self._queue: deque[_Waiting] = deque()
        self._failure: Exception | None = None
        self._alone: MessageReader | None = None
        self._closed = False

    @property
    def next_offset(self) -> int:
        """The offset that will be read next; earlier messages may still be in the buffer of an iteration."""
        return self._next

    @property
    def waiting(self) -> int:
        """The number of messages in its queue."""
        return sum(len(waiting.messages) for waiting in self._queue)

    async def close(self) -> None:
        """Unsubscribe; further reads raise LogClosedError."""
        self._closed = True
        self.news.set()
        await self._fanout.leave(self._number)
        await self._end_alone()

    # --- used by Fanout -----------------------------------------------------------------------------------------------

    def give(self, waiting: _Waiting) -> None:
        """Put messages into the queue."""
        self._queue.append(waiting)
        self.news.set()

    def fail(self, error: Exception) -> None:
        """Raise this from the next call after the queue is empty."""
        self._failure = error
        self.news.set()

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _read(self) -> list[StreamMessage]:
        state = self._fanout.state
        while True:
            if self._closed:
                raise LogClosedError(self._fanout.topic)
            if not self._queue and self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            match state.ask(self._number):
                case Step.TAKE:
                    waiting = self._queue.popleft()
                    state.took(self._number, len(waiting.messages), waiting.size)
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
            self._fanout.state.rest(self._number)

    async def _read_alone(self) -> list[StreamMessage]:
        reached = self._fanout.state.subscribers[self._number].at
        try:
            if self._alone is not None and self._alone.next_offset != reached:
                await self._end_alone()  # the shared reader has delivered messages since it was used
            if self._alone is None:
                self._alone = await self._fanout.open_at(reached)
            messages = await self._alone.read()
            reached = self._alone.next_offset
        except BaseException:
            # The position of a reader whose read was cancelled is unknown; the next call opens another one.
            await self._end_alone()
            raise
        finally:
            if not self._closed:
                self._fanout.state.has_read(self._number, reached)
        self._next = reached
        return messages

    async def _end_alone(self) -> None:
        alone, self._alone = self._alone, None
        if alone is not None:
            await alone.close()


def size_of(message: StreamMessage) -> int:
    """Return the approximate bytes of a message in memory."""
    size = MESSAGE_SIZE + len(message.payload)
    for key, value in message.attributes.items():
        size += len(key) + len(value)
    return size
