"""Shared reader of a topic: one reader at the head serves all subscribers that have caught up. Sans-I/O.

The head is the offset that the shared reader reads next. A subscriber at the head, or a little ahead of it, waits for that
reader, and takes what it does not have yet. One that is behind reads alone until it has caught up. One that is far ahead
moves the head to itself, so that it does not wait while others catch up.

No offset is delivered twice: a subscriber reads from the shared queue or alone, never both at once.
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
    """Bounds of a subscriber's queue; a larger message is queued alone.

    `reach` is how many offsets a subscriber may be ahead of the head and still wait for it.
    """

    messages: int = 1024
    size: int = 16 << 20
    reach: int = 8192

    def __post_init__(self) -> None:
        assert min(self.messages, self.size) >= 1, "a queue that takes nothing would never move"
        assert self.reach >= 0, "a distance is not negative"


class Step(Enum):
    """The next action of a subscriber."""

    TAKE = auto()
    """Take from its queue."""
    WAIT = auto()
    """Wait for the shared reader."""
    LEAD = auto()
    """Wait for the shared reader, which moves to this subscriber; others that wait must call `ask` again."""
    READ = auto()
    """Read alone, and report the offset by `has_read`."""


class State(Enum):
    """The state of a subscriber."""

    RESTS = auto()
    WAITS = auto()
    READS = auto()


@dataclass(slots=True)
class Subscriber:
    """A subscriber: the offset behind all that it got, and the size of its queue."""

    at: int
    messages: int = 0
    size: int = 0
    state: State = State.RESTS


class QueuePart(NamedTuple):
    """The part [first, last) of a batch for a subscriber's queue, its bytes, and the subscriber's next offset."""

    subscriber: int
    first: int
    last: int
    size: int
    stop: int


class SharedReaderState:
    """The subscribers of one topic, and the offset of the shared reader, None if there is none."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.head: int | None = None
        self.subscribers: dict[int, Subscriber] = {}
        self._next_number = 0

    # --- membership ---------------------------------------------------------------------------------------------------

    def join(self, at: int) -> int:
        """Add a subscriber; return its number."""
        number = self._next_number
        self._next_number += 1
        self.subscribers[number] = Subscriber(at)
        return number

    def leave(self, number: int) -> None:
        """Remove a subscriber; idempotent."""
        self.subscribers.pop(number, None)

    # --- subscribers --------------------------------------------------------------------------------------------------

    def ask(self, number: int) -> Step:
        """Return the next action of a subscriber."""
        subscriber = self.subscribers[number]
        assert subscriber.state is not State.READS, "it reads already"
        if subscriber.messages:
            return Step.TAKE
        if self.head is None or subscriber.at > self.head + self.limits.reach:
            self.head = subscriber.at
            for other in self.subscribers.values():
                if other.state is State.WAITS:
                    other.state = State.RESTS
            subscriber.state = State.WAITS
            return Step.LEAD
        if subscriber.at >= self.head:
            subscriber.state = State.WAITS
            return Step.WAIT
        subscriber.state = State.READS
        return Step.READ

    def took(self, number: int, messages: int, size: int) -> None:
        """Record what a subscriber took from its queue."""
        subscriber = self.subscribers[number]
        subscriber.messages -= messages
        subscriber.size -= size
        assert min(subscriber.messages, subscriber.size) >= 0, "it takes what is queued"

    def has_read(self, number: int, at: int) -> None:
        """Record how far a subscriber has read alone; after a failure the offset is unchanged."""
        subscriber = self.subscribers[number]
        assert subscriber.state is State.READS, "it reads alone"
        assert at >= subscriber.at, "reading does not go back"
        subscriber.at = at
        subscriber.state = State.RESTS

    def rest(self, number: int) -> None:
        """Record that a subscriber does not wait any more."""
        subscriber = self.subscribers.get(number)
        if subscriber is not None and subscriber.state is State.WAITS:
            subscriber.state = State.RESTS

    # --- the shared reader --------------------------------------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """True if a subscriber waits for the shared reader."""
        return any(subscriber.state is State.WAITS for subscriber in self.subscribers.values())

    @property
    def followed(self) -> bool:
        """True if a subscriber is at the head, so that the shared reader stays open."""
        return self.head is not None and any(self._is_there(subscriber) for subscriber in self.subscribers.values())

    def deliver(self, offsets: Sequence[int], sizes: Sequence[int], stop: int) -> list[QueuePart]:
        """Distribute what the shared reader has read at the head; it reads at `stop` next.

        `offsets` and `sizes` are those of the messages. A subscriber with less room gets a part, and is behind then.
        """
        assert self.head is not None, "it reads only while there is a head"
        assert stop > self.head, "reading goes on"
        ends = [0, *accumulate(sizes)]
        parts = []
        for number, subscriber in self.subscribers.items():
            if not self._is_there(subscriber) or subscriber.at >= stop:
                continue
            first = bisect_left(offsets, subscriber.at)
            last = min(len(offsets), first + self._room(subscriber, first, ends))
            subscriber.at = stop if last == len(offsets) else offsets[last]
            if first < last:
                size = ends[last] - ends[first]
                subscriber.messages += last - first
                subscriber.size += size
                subscriber.state = State.RESTS
                parts.append(QueuePart(number, first, last, size, subscriber.at))
        self.head = stop
        return parts

    def fail(self) -> list[int]:
        """Record that the shared reader failed; return the subscribers that get the error."""
        affected = []
        for number, subscriber in self.subscribers.items():
            if subscriber.state is State.WAITS or (subscriber.state is State.RESTS and subscriber.at == self.head):
                subscriber.state = State.RESTS
                affected.append(number)
        self.head = None
        return affected

    def stop(self) -> None:
        """Close the shared reader until a subscriber needs one."""
        assert not self.wanted, "no subscriber waits"
        self.head = None

    # --- inside -------------------------------------------------------------------------------------------------------

    def _is_there(self, subscriber: Subscriber) -> bool:
        assert self.head is not None, "there is a head"
        return subscriber.state is not State.READS and subscriber.at >= self.head

    def _room(self, subscriber: Subscriber, first: int, ends: list[int]) -> int:
        """Return how many messages from `first` on fit into a queue; an empty one always takes one."""
        by_size = bisect_right(ends, ends[first] + self.limits.size - subscriber.size) - 1 - first
        room = min(self.limits.messages - subscriber.messages, by_size)
        return max(room, 0 if subscriber.messages else 1)
