"""Decide who gets what of a topic that many read: one reader at the head serves all who are there; performs no I/O.

The head is the offset that the shared reader reads next. Whoever is at it, or a little ahead, waits for what that reader
brings, and takes of it what it does not have yet. Whoever is behind reads alone until it has caught up. Whoever is far
ahead takes the head along: nobody waits while others catch up.

A place is never given twice: what a subscriber has was given to its queue, or read by itself while it takes no gifts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from enum import Enum, auto
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    """How much waits for one subscriber at most; a message that is larger than all of it waits alone.

    `reach` is how many offsets a subscriber may be ahead of the head and still wait for it.
    """

    messages: int = 1024
    size: int = 16 << 20
    reach: int = 8192

    def __post_init__(self) -> None:
        assert min(self.messages, self.size) >= 1, "a queue that takes nothing would never move"
        assert self.reach >= 0, "nobody is less than there"


class Step(Enum):
    """What a subscriber does that wants more."""

    TAKE = auto()
    """Take what waits in its queue."""
    WAIT = auto()
    """Wait for the shared reader."""
    LEAD = auto()
    """Wait for the shared reader, which has to go to where this subscriber is; others that wait must ask again."""
    READ = auto()
    """Read alone, and say how far that got."""


class State(Enum):
    """What a subscriber does now."""

    RESTS = auto()
    WAITS = auto()
    READS = auto()


@dataclass(slots=True)
class Seat:
    """A subscriber: the offset behind all that it was given, and what of that is in its queue."""

    at: int
    messages: int = 0
    size: int = 0
    state: State = State.RESTS


class Share(NamedTuple):
    """The part [first, last) of a batch that goes into a subscriber's queue, its size, and the offset it leads to."""

    seat: int
    first: int
    last: int
    size: int
    stop: int


class Seats:
    """The subscribers of one topic, and where the shared reader is; None when nobody needs it."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.head: int | None = None
        self.seats: dict[int, Seat] = {}
        self._next_number = 0

    # --- coming and going ---------------------------------------------------------------------------------------------

    def join(self, at: int) -> int:
        """Take a subscriber in; returns its number."""
        number = self._next_number
        self._next_number += 1
        self.seats[number] = Seat(at)
        return number

    def leave(self, number: int) -> None:
        """Forget a subscriber; a second time means nothing."""
        self.seats.pop(number, None)

    # --- what a subscriber does ---------------------------------------------------------------------------------------

    def ask(self, number: int) -> Step:
        """Tell a subscriber that wants more what to do."""
        seat = self.seats[number]
        assert seat.state is not State.READS, "it reads already"
        if seat.messages:
            return Step.TAKE
        if self.head is None or seat.at > self.head + self.limits.reach:
            self.head = seat.at
            for other in self.seats.values():
                if other.state is State.WAITS:
                    other.state = State.RESTS
            seat.state = State.WAITS
            return Step.LEAD
        if seat.at >= self.head:
            seat.state = State.WAITS
            return Step.WAIT
        seat.state = State.READS
        return Step.READ

    def took(self, number: int, messages: int, size: int) -> None:
        """Note what a subscriber took from its queue."""
        seat = self.seats[number]
        seat.messages -= messages
        seat.size -= size
        assert min(seat.messages, seat.size) >= 0, "nobody takes what is not there"

    def has_read(self, number: int, at: int) -> None:
        """Note how far a subscriber has read alone; no further than before when it failed."""
        seat = self.seats[number]
        assert seat.state is State.READS, "only who reads alone gets anywhere"
        assert at >= seat.at, "reading does not go back"
        seat.at = at
        seat.state = State.RESTS

    def rest(self, number: int) -> None:
        """Note that a subscriber does not wait any more, for whatever reason."""
        seat = self.seats.get(number)
        if seat is not None and seat.state is State.WAITS:
            seat.state = State.RESTS

    # --- what the shared reader does ----------------------------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for the shared reader."""
        return any(seat.state is State.WAITS for seat in self.seats.values())

    @property
    def followed(self) -> bool:
        """Whether somebody is at the head, so that the shared reader is worth keeping."""
        return self.head is not None and any(self._is_there(seat) for seat in self.seats.values())

    def deliver(self, offsets: Sequence[int], sizes: Sequence[int], stop: int) -> list[Share]:
        """Share out what the shared reader has read at the head; it reads at `stop` next.

        `offsets` and `sizes` are those of the messages. Who has room for less than there is gets that, and is behind.
        """
        assert self.head is not None, "it reads only while there is a head"
        assert stop > self.head, "reading goes on"
        ends = [0, *accumulate(sizes)]
        shares = []
        for number, seat in self.seats.items():
            if not self._is_there(seat) or seat.at >= stop:
                continue
            first = bisect_left(offsets, seat.at)
            last = min(len(offsets), first + self._room(seat, first, ends))
            seat.at = stop if last == len(offsets) else offsets[last]
            if first < last:
                size = ends[last] - ends[first]
                seat.messages += last - first
                seat.size += size
                seat.state = State.RESTS
                shares.append(Share(number, first, last, size, seat.at))
        self.head = stop
        return shares

    def fail(self) -> list[int]:
        """Note that the shared reader cannot read on; returns who was there, each of whom is to be told."""
        told = []
        for number, seat in self.seats.items():
            if seat.state is State.WAITS or (seat.state is State.RESTS and seat.at == self.head):
                seat.state = State.RESTS
                told.append(number)
        self.head = None
        return told

    def stop(self) -> None:
        """Have no shared reader until somebody wants one."""
        assert not self.wanted, "nobody is left waiting"
        self.head = None

    # --- inside -------------------------------------------------------------------------------------------------------

    def _is_there(self, seat: Seat) -> bool:
        assert self.head is not None, "it is asked while there is a head"
        return seat.state is not State.READS and seat.at >= self.head

    def _room(self, seat: Seat, first: int, ends: list[int]) -> int:
        """Return how many messages from `first` on a queue has room for; an empty one always takes one."""
        by_size = bisect_right(ends, ends[first] + self.limits.size - seat.size) - 1 - first
        room = min(self.limits.messages - seat.messages, by_size)
        return max(room, 0 if seat.messages else 1)
