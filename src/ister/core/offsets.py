"""Offsets and start positions of readers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

Offset = NewType("Offset", int)
"""A message's place in its topic: 0, 1, 2, … without holes. Ranges are half-open, [start, stop)."""


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Where a reader starts: `StartPosition.latest()` or `StartPosition.offset(n)`."""

    at: Offset | None

    @classmethod
    def latest(cls) -> StartPosition:
        """Return the position behind the newest message."""
        return cls(None)

    @classmethod
    def offset(cls, at: int) -> StartPosition:
        """Return the position of an offset."""
        return cls(Offset(at))
