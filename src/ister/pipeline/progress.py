"""What a pipeline knows of one topic: how far its table is, what waits, and why it does not come along."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ister.core.retry import backoff_s
from ister.core.ticks import Waiting

if TYPE_CHECKING:
    from ister.pipeline.plan import Place
    from ister.pipeline.typed import Typed

BACK_OFF_MAX_S = 60.0
SEEN_MAX = 1_024
"""How many ends of the log are remembered of a topic whose table does not get there."""
REPLANS_MAX = 3
"""How often in a row a topic whose plan was outdated is planned again without a wait."""


class Failure(NamedTuple):
    """Why the last tick that took a topic did not carry it, and when the next one takes it."""

    cause: str
    tries: int
    due_s: float
    is_apart: bool = False
    """A job of its messages failed as a whole: until it is carried, they get one of their own."""


@dataclass(slots=True)
class TopicProgress:
    """What is known of one topic."""

    name: str
    place: Place
    upto: int = 0
    next: int = 0
    bytes_a_row: float = 0.0
    """Of the last tick that had something; 0 before."""
    unfit: str = ""
    """Why its table cannot go on from its log, as of the last look."""
    failure: Failure | None = None
    """Kept until a tick has carried it; a look does not forget it."""
    latest_schema: tuple[int, int] | None = None
    """The id and version that its messages follow now."""
    typed: Typed | None = None
    undecoded: int = 0
    """Rows that we wrote whose payload did not decode."""
    seen: deque[tuple[float, int]] = field(default_factory=deque)
    """When we saw the log end where, as far as the table has not got there; SEEN_MAX of them."""
    seen_gap_s: float = 0.0
    """How far these are apart at least; more the longer the table does not get there."""

    def saw(self, next_offset: int, now: float) -> None:
        """Note where the log ends."""
        at, end = self.seen[-1] if self.seen else (now - self.seen_gap_s, 0)
        if next_offset > max(self.upto, end) and now >= at + self.seen_gap_s:
            self.seen.append((now, next_offset))
            if len(self.seen) > SEEN_MAX:  # the first stays: the lag of what waits longest stays exact
                self.seen = deque(list(self.seen)[::2])
                self.seen_gap_s = (now - self.seen[0][0]) / len(self.seen)
        self.next = next_offset

    def lag_s(self, now: float) -> float:
        """Return how long we have known of something that is not in the table."""
        while self.seen and self.seen[0][1] <= self.upto:
            self.seen.popleft()
        if not self.seen:
            self.seen_gap_s = 0.0
        return now - self.seen[0][0] if self.seen else 0.0

    @property
    def error(self) -> str:
        """Why it does not come along; empty while it does."""
        return self.unfit or (self.failure.cause if self.failure is not None else "")

    @property
    def runs_apart(self) -> bool:
        """Whether its messages get a job of their own."""
        return self.failure is not None and self.failure.is_apart

    def fail(self, cause: str, now: float, *, replan: bool = False, apart: bool = False) -> None:
        """Note that a tick did not carry it: the next one that takes it comes later each time."""
        tries = 1 + (0 if self.failure is None else self.failure.tries)
        wait_s = 0.0 if replan and tries <= REPLANS_MAX else backoff_s(tries, BACK_OFF_MAX_S)
        self.failure = Failure(cause, tries, now + wait_s, apart)

    def is_ready(self, now: float) -> bool:
        """Tell whether a tick takes it."""
        is_due = self.failure is None or self.failure.due_s <= now
        return self.next > self.upto and is_due and not self.unfit

    @property
    def waiting(self) -> Waiting:
        """Return what the log has and the table has not."""
        rows = max(0, self.next - self.upto)
        return Waiting(rows, int(rows * self.bytes_a_row) if self.bytes_a_row else None)
