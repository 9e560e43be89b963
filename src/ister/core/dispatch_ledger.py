"""Decide nothing: keep the account of where each message of a subscription is, so that none can be in no place (I9).

Between the cursor and `next_offset` an offset is in exactly one of `waiting`, `out`, `retry`, `blocked` and `dead`, or it
is finished. Bytes of payloads are counted with every move.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from ister.core.dispatch_cursor import Cursor
from ister.core.dispatch_timers import Timers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ister.core.dispatch_consumers import Consumer
    from ister.core.message import StreamMessage

BYTES_MAX = 32 * 1024 * 1024
"""Payload bytes: so many with consumers, so many that wait for their first delivery, so many that wait for another."""
WAITING_MAX = 10_000


class Parcel:
    """A message that was handed out: to whom, whether his connection has taken it, how often, and how often that failed.

    It counts as unanswered `since` it was handed out, and from the moment on when it was sent. `number` is that of its
    last delivery.
    """

    __slots__ = (
        "attempt",
        "consumer",
        "failures",
        "letter_failures",
        "message",
        "number",
        "offset",
        "reason",
        "sent",
        "since",
        "size",
    )

    def __init__(self, offset: int, message: StreamMessage, consumer: Consumer) -> None:
        self.offset = offset
        self.message = message
        self.size = len(message.payload)
        self.consumer = consumer
        self.since = 0.0
        self.sent = False
        self.number = 0
        self.attempt = 0
        self.failures = 0
        self.letter_failures = 0
        self.reason = ""


class Ledger:
    """The places, by offset, and what moves a message from one to another."""

    def __init__(self, cursor: int, finished: Sequence[tuple[int, int]] = ()) -> None:
        self.cursor = Cursor(cursor, finished)
        self.next_offset = cursor
        self._finished = deque(self.cursor.ranges)  # what was finished before it was read here
        self.waiting: dict[int, StreamMessage] = {}
        self.out: OrderedDict[int, Parcel] = OrderedDict()  # by `since`, so in the order of timing out
        self.retry: dict[int, Parcel] = {}
        self.blocked: dict[int, Parcel] = {}
        self.dead: dict[int, Parcel] = {}
        self.letters: dict[int, Parcel] = {}  # what of dead is to be stored now
        self.timers = Timers()  # of retry and dead
        self._waiting_bytes = self._out_bytes = self._kept_bytes = 0  # kept: retry, blocked and dead

    @property
    def kept(self) -> int:
        """How many messages were handed out before and are with no consumer now."""
        return len(self.retry) + len(self.blocked) + len(self.dead)

    @property
    def full(self) -> bool:
        """Whether so much waits for a delivery that nothing more should be read."""
        return self.kept >= WAITING_MAX or self._kept_bytes >= BYTES_MAX or self._waiting_bytes >= BYTES_MAX

    def feed(self, messages: Sequence[StreamMessage]) -> Sequence[int]:
        """Take the next messages; return the offsets of those that are not finished already.

        ValueError when one of them is not the next, and then none is taken.
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
        """Return True if the next offset was finished before it was read here; ask in order of offsets."""
        finished = self._finished
        while finished and finished[0][1] <= offset:
            finished.popleft()
        return bool(finished) and finished[0][0] <= offset

    def skip_missing(self, stop: int) -> None:
        """Finish [next_offset, stop), of which there are no messages."""
        self.cursor.finish_range(self.next_offset, stop)
        self.next_offset = max(self.next_offset, stop)

    def deliverable(self, offset: int) -> bool:
        """Whether a message waits for a delivery, its first or another."""
        return offset in self.waiting or offset in self.retry

    def fits(self, offset: int) -> bool:
        """Whether a deliverable message's bytes may be out beside the others'; one message alone always may."""
        if not self.out:
            return True
        message = self.waiting.get(offset)
        size = self.retry[offset].size if message is None else len(message.payload)
        return self._out_bytes + size <= BYTES_MAX

    def hand_out(self, offset: int, consumer: Consumer, number: int, now: float) -> Parcel:
        """Move a deliverable message to a consumer."""
        message = self.waiting.pop(offset, None)
        if message is None:
            parcel = self.retry.pop(offset)
            parcel.consumer = consumer
            self._kept_bytes -= parcel.size
        else:
            parcel = Parcel(offset, message, consumer)
            self._waiting_bytes -= parcel.size
        parcel.since = now
        parcel.sent = False
        parcel.number = number
        parcel.attempt += 1
        if not consumer.holds:
            consumer.since = now
        consumer.holds += 1
        self._out_bytes += parcel.size
        self.out[offset] = parcel
        return parcel

    def count_from(self, parcel: Parcel, now: float) -> None:
        """Let what is out count as unanswered from now on."""
        parcel.since = now
        self.out.move_to_end(parcel.offset)

    def take_back(self, offset: int) -> Parcel | None:
        """Take a message from its consumer; it belongs into another place then. None when no consumer has it."""
        parcel = self.out.pop(offset, None)
        if parcel is not None:
            parcel.consumer.holds -= 1
            self._out_bytes -= parcel.size
        return parcel

    def keep(self, parcel: Parcel, place: dict[int, Parcel]) -> None:
        """Put what was taken back into `retry`, `blocked` or `dead`."""
        place[parcel.offset] = parcel
        self._kept_bytes += parcel.size

    def remove(self, offset: int) -> StreamMessage | None:
        """Take a message out of whatever place but `out` it is in; None when it is in none."""
        message = self.waiting.pop(offset, None)
        if message is not None:
            self._waiting_bytes -= len(message.payload)
            return message
        for place in (self.retry, self.blocked, self.dead):
            parcel = place.pop(offset, None)
            if parcel is not None:
                self._kept_bytes -= parcel.size
                self.timers.cancel(offset)
                self.letters.pop(offset, None)
                return parcel.message
        return None

    def skip_to(self, offset: int) -> None:
        """Forget everything below, wherever it is."""
        for low in [low for low in self.out if low < offset]:
            self.take_back(low)
        for place in (self.waiting, self.retry, self.blocked, self.dead):
            for low in [low for low in place if low < offset]:
                self.remove(low)
        self.cursor.skip_to(offset)
        self.next_offset = max(self.next_offset, offset)

    def release(self, *, dead: bool) -> list[Parcel]:
        """Move what is blocked, and if so wished what is dead, to `retry`; return it."""
        released = list(self.blocked.values())
        self.blocked.clear()
        if dead:
            released += self.dead.values()
            self.dead.clear()
            self.letters.clear()
        for parcel in released:
            self.timers.cancel(parcel.offset)
            self.retry[parcel.offset] = parcel
        return released
