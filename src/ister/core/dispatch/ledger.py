"""State of every unfinished message of a subscription, and its cursor.

Between the cursor and `next_offset` each offset is finished or in exactly one of `waiting`, `out`, `retry`, `blocked` and
`dead` (I9). Payload bytes are counted with every move.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ister.core.dispatch.consumers import Consumer
    from ister.core.message import StreamMessage

BYTES_MAX = 32 * 1024 * 1024
"""Limit of payload bytes, each for `out`, for `waiting`, and for `retry`, `blocked` and `dead` together."""
WAITING_MAX = 10_000
STALE_MIN = 64


@dataclass(slots=True, eq=False)
class DeliveryState:
    """A message that was delivered at least once.

    `since` is when its ack timeout started: at the delivery, and again when the connection has taken it (`sent`).
    `number` is that of its last delivery.
    """

    offset: int
    message: StreamMessage
    consumer: Consumer
    size: int
    since: float = 0.0
    sent: bool = False
    number: int = 0
    attempt: int = 0
    failures: int = 0
    store_failures: int = 0
    reason: str = ""


class Ledger:
    """The unfinished messages by state and offset, and the transitions between states."""

    def __init__(self, cursor: int, finished: Sequence[tuple[int, int]] = ()) -> None:
        self.cursor = Cursor(cursor, finished)
        self.next_offset = cursor
        self._finished = deque(self.cursor.ranges)  # finished before it was read here
        self.waiting: dict[int, StreamMessage] = {}
        self.out: OrderedDict[int, DeliveryState] = OrderedDict()  # by `since`, so in the order of ack timeouts
        self.retry: dict[int, DeliveryState] = {}
        self.blocked: dict[int, DeliveryState] = {}
        self.dead: dict[int, DeliveryState] = {}
        self.dead_letters: dict[int, DeliveryState] = {}  # those of `dead` to be stored now
        self.timers = Timers()  # of retry and dead
        self._waiting_bytes = self._out_bytes = self._pending_bytes = 0  # pending: retry, blocked and dead

    @property
    def pending(self) -> int:
        """The number of messages that were delivered and are with no consumer now."""
        return len(self.retry) + len(self.blocked) + len(self.dead)

    @property
    def full(self) -> bool:
        """True if nothing more should be read until messages are delivered."""
        return self.pending >= WAITING_MAX or self._pending_bytes >= BYTES_MAX or self._waiting_bytes >= BYTES_MAX

    def feed(self, messages: Sequence[StreamMessage]) -> Sequence[int]:
        """Add the next messages; return the offsets of those that are not finished already.

        Raise ValueError, and add none, if an offset is not the next one.
        """
        start = stop = self.next_offset
        size = 0
        for message in messages:
            if message.msg_id.topic_offset != stop:
                raise ValueError(f"fed offset {message.msg_id.topic_offset} instead of {stop}")
            size += len(message.payload)
            stop += 1
        offsets: Sequence[int] = range(start, stop)
        if self._finished:
            offsets = [offset for offset in offsets if not self._is_finished(offset)]
            messages = [messages[offset - start] for offset in offsets]
            size = sum(len(message.payload) for message in messages)
        self.waiting.update(zip(offsets, messages, strict=True))
        self._waiting_bytes += size
        self.next_offset = stop
        return offsets

    def _is_finished(self, offset: int) -> bool:
        """Return True if an offset was finished before it was read here; call with ascending offsets."""
        finished = self._finished
        while finished and finished[0][1] <= offset:
            finished.popleft()
        return bool(finished) and finished[0][0] <= offset

    def skip_missing(self, stop: int) -> None:
        """Finish [next_offset, stop), which has no messages."""
        self.cursor.finish_range(self.next_offset, stop)
        self.next_offset = max(self.next_offset, stop)

    def deliverable(self, offset: int) -> bool:
        """Return True if a message waits for its first or next delivery."""
        return offset in self.waiting or offset in self.retry

    def fits(self, offset: int) -> bool:
        """Return True if a message may be delivered within BYTES_MAX; a single one always may."""
        if not self.out:
            return True
        message = self.waiting.get(offset)
        size = self.retry[offset].size if message is None else len(message.payload)
        return self._out_bytes + size <= BYTES_MAX

    def deliver(self, offset: int, consumer: Consumer, number: int, now: float) -> DeliveryState:
        """Deliver a message to a consumer."""
        message = self.waiting.pop(offset, None)
        if message is None:
            state = self.retry.pop(offset)
            state.consumer = consumer
            self._pending_bytes -= state.size
        else:
            state = DeliveryState(offset, message, consumer, len(message.payload))
            self._waiting_bytes -= state.size
        state.since = now
        state.sent = False
        state.number = number
        state.attempt += 1
        if not consumer.holds:
            consumer.since = now
        consumer.holds += 1
        self._out_bytes += state.size
        self.out[offset] = state
        return state

    def restart_timeout(self, state: DeliveryState, now: float) -> None:
        """Restart the ack timeout of a message."""
        state.since = now
        self.out.move_to_end(state.offset)

    def withdraw(self, offset: int) -> DeliveryState | None:
        """Take a message from its consumer, to be put into another state; return None if no consumer has it."""
        state = self.out.pop(offset, None)
        if state is not None:
            state.consumer.holds -= 1
            self._out_bytes -= state.size
        return state

    def put(self, state: DeliveryState, place: dict[int, DeliveryState]) -> None:
        """Put a withdrawn message into `retry`, `blocked` or `dead`."""
        place[state.offset] = state
        self._pending_bytes += state.size

    def remove(self, offset: int) -> StreamMessage | None:
        """Remove a message from any state but `out`; return None if it is in none."""
        message = self.waiting.pop(offset, None)
        if message is not None:
            self._waiting_bytes -= len(message.payload)
            return message
        for place in (self.retry, self.blocked, self.dead):
            state = place.pop(offset, None)
            if state is not None:
                self._pending_bytes -= state.size
                self.timers.cancel(offset)
                self.dead_letters.pop(offset, None)
                return state.message
        return None

    def skip_to(self, offset: int) -> None:
        """Drop everything below `offset`."""
        for low in [low for low in self.out if low < offset]:
            self.withdraw(low)
        for place in (self.waiting, self.retry, self.blocked, self.dead):
            for low in [low for low in place if low < offset]:
                self.remove(low)
        self.cursor.skip_to(offset)
        self.next_offset = max(self.next_offset, offset)

    def release(self, *, dead: bool) -> list[DeliveryState]:
        """Move blocked, and optionally dead, messages to `retry`; return them."""
        released = list(self.blocked.values())
        self.blocked.clear()
        if dead:
            released += self.dead.values()
            self.dead.clear()
            self.dead_letters.clear()
        for state in released:
            self.timers.cancel(state.offset)
            self.retry[state.offset] = state
        return released


class Cursor:
    """Finished offsets: all below `at`, and the ranges beyond it.

    Stored as ranges: an unfinished offset lies between two of them, so there are never more ranges than unfinished
    messages.
    """

    __slots__ = ("_starts", "_stops", "at")

    def __init__(self, at: int, finished: Iterable[tuple[int, int]] = ()) -> None:
        self.at = at
        self._stops: dict[int, int] = {}  # start of a range → its stop
        self._starts: dict[int, int] = {}  # stop of a range → its start
        last = at
        for start, stop in sorted(finished):
            if stop <= self.at:
                continue
            if start <= self.at:
                self.at = last = stop
            elif start <= last:  # adjacent to the range before
                first = self._starts.pop(last)
                last = max(last, stop)
                self._stops[first] = last
                self._starts[last] = first
            else:
                self._stops[start] = last = stop
                self._starts[stop] = start

    def finish(self, offset: int) -> None:
        """Finish an offset that is not finished yet."""
        stop = offset + 1
        stops = self._stops
        if not stops:
            if offset == self.at:
                self.at = stop
            else:
                stops[offset] = stop
                self._starts[stop] = offset
            return
        further = stops.pop(stop, None)
        if further is not None:
            del self._starts[further]
            stop = further
        if offset == self.at:
            self.at = stop
            return
        start = self._starts.pop(offset, offset)
        stops[start] = stop
        self._starts[stop] = start

    def finish_range(self, start: int, stop: int) -> None:
        """Finish [start, stop), parts of which may be finished already."""
        start, stop = max(start, self.at), max(stop, self.at)
        if start == stop:
            return
        for first in [first for first, last in self._stops.items() if first <= stop and last >= start]:
            last = self._stops.pop(first)
            del self._starts[last]
            start, stop = min(start, first), max(stop, last)
        if start == self.at:
            self.at = stop
        else:
            self._stops[start] = stop
            self._starts[stop] = start

    def skip_to(self, offset: int) -> None:
        """Finish everything below `offset`."""
        self.finish_range(self.at, offset)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The finished ranges [start, stop) beyond `at`, in order."""
        return sorted(self._stops.items())


class Timers:
    """Timers by offset: a heap with lazy deletion, rebuilt when more than half of it is cancelled."""

    __slots__ = ("_heap", "_times")

    def __init__(self) -> None:
        self._times: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def __contains__(self, offset: int) -> bool:
        return offset in self._times

    def set(self, offset: int, at: float) -> None:
        """Set the time at which an offset expires."""
        self._times[offset] = at
        heappush(self._heap, (at, offset))

    def cancel(self, offset: int) -> None:
        """Cancel the timer of an offset."""
        self._times.pop(offset, None)
        if len(self._heap) > 2 * len(self._times) + STALE_MIN:
            self._heap = [(at, offset) for offset, at in self._times.items()]
            heapify(self._heap)

    def expired(self, now: float) -> list[int]:
        """Remove and return the offsets that have expired."""
        offsets = []
        while (at := self.next) is not None and at <= now:
            offset = heappop(self._heap)[1]
            del self._times[offset]
            offsets.append(offset)
        return offsets

    @property
    def next(self) -> float | None:
        """When the next offset expires; None: never."""
        heap = self._heap
        while heap:
            at, offset = heap[0]
            if self._times.get(offset) == at:
                return at
            heappop(heap)
        return None
