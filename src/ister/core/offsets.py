"""Numbers with a meaning: offsets, and where a reader starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

Offset = NewType("Offset", int)
"""A message's place in its topic: 0, 1, 2, … without holes. Spans are half-open, [start, stop)."""


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Where a reader starts: `StartPosition.latest()` or `StartPosition.offset(n)`."""

    at: Offset | None

    @classmethod
    def latest(cls) -> StartPosition:
        """Only what is appended from now on."""
        return cls(None)

    @classmethod
    def offset(cls, at: int) -> StartPosition:
        """From this offset on, history first."""
        return cls(Offset(at))
