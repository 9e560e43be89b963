"""Progress of one topic: its table's committed offset, its backlog, and its failure with back-off."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ister.core.retry import backoff_s
from ister.pipeline.pacing import Waiting

if TYPE_CHECKING:
    from ister.pipeline.plan import TablePartition
    from ister.pipeline.typed_values import Typed

BACK_OFF_MAX_S = 60.0
SEEN_MAX = 1_024
"""How many ends of the log are remembered of a topic whose table lags."""
REPLANS_MAX = 3
"""How often in a row a topic whose plan was outdated is planned again without back-off."""


class Failure(NamedTuple):
    """Why the last micro-batch of a topic failed, and when the next one takes it."""

    cause: str
    tries: int
    due_s: float
    is_apart: bool = False
    """A job with its messages failed as a whole: until it succeeds, it gets a job of its own."""


@dataclass(slots=True)
class TopicProgress:
    """Progress of one topic."""

    name: str
    place: TablePartition
    upto: int = 0
    next: int = 0
    bytes_a_row: float = 0.0
    """Of the last micro-batch with messages; 0 before."""
    blocked: str = ""
    """Why its table cannot continue from its log, as of the last refresh."""
    failure: Failure | None = None
    """Reset by the next micro-batch that succeeds, not by a refresh."""
    latest_schema: tuple[int, int] | None = None
    """The id and version that its messages follow now."""
    typed: Typed | None = None
    undecoded: int = 0
    """Rows of this process whose payload did not decode."""
    seen: deque[tuple[float, int]] = field(default_factory=deque)
    """Times and ends of the log that the table has not reached; SEEN_MAX of them."""
    seen_gap_s: float = 0.0
    """Least time between two of these; it grows with the lag."""

    def saw(self, next_offset: int, now: float) -> None:
        """Record where the log ends."""
        at, end = self.seen[-1] if self.seen else (now - self.seen_gap_s, 0)
        if next_offset > max(self.upto, end) and now >= at + self.seen_gap_s:
            self.seen.append((now, next_offset))
            if len(self.seen) > SEEN_MAX:  # the first one stays, so that the lag stays exact
                self.seen = deque(list(self.seen)[::2])
                self.seen_gap_s = (now - self.seen[0][0]) / len(self.seen)
        self.next = next_offset

    def lag_s(self, now: float) -> float:
        """Return for how long the log has had a message that is not in the table."""
        while self.seen and self.seen[0][1] <= self.upto:
            self.seen.popleft()
        if not self.seen:
            self.seen_gap_s = 0.0
        return now - self.seen[0][0] if self.seen else 0.0

    @property
    def error(self) -> str:
        """Return why it is blocked or failed; empty if it is not."""
        return self.blocked or (self.failure.cause if self.failure is not None else "")

    @property
    def runs_apart(self) -> bool:
        """Return True if its messages get a job of their own."""
        return self.failure is not None and self.failure.is_apart

    def fail(self, cause: str, now: float, *, replan: bool = False, apart: bool = False) -> None:
        """Record a failure; the next attempt comes later each time."""
        tries = 1 + (0 if self.failure is None else self.failure.tries)
        wait_s = 0.0 if replan and tries <= REPLANS_MAX else backoff_s(tries, BACK_OFF_MAX_S)
        self.failure = Failure(cause, tries, now + wait_s, apart)

    def is_ready(self, now: float) -> bool:
        """Return True if the next micro-batch takes it."""
        is_due = self.failure is None or self.failure.due_s <= now
        return self.next > self.upto and is_due and not self.blocked

    @property
    def waiting(self) -> Waiting:
        """Return the backlog."""
        rows = max(0, self.next - self.upto)
        return Waiting(rows, int(rows * self.bytes_a_row) if self.bytes_a_row else None)
