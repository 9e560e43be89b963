"""Wall clock, for people and for age, never for order."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A wall clock; it may step in either direction at any moment."""

    def wall_us(self) -> int:
        """Microseconds since 1970."""


class SystemClock:
    """The machine's clock."""

    def wall_us(self) -> int:
        """Microseconds since 1970."""
        return time.time_ns() // 1000
