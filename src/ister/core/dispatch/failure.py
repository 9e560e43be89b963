"""Failure policy: redelivery delays, and what happens to a message that failed too often."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

DOUBLINGS_MAX = 62  # a delay of 1 ms doubled this often is longer than any limit


class Backoff(Enum):
    """How the delay grows with each failure."""

    FIXED = "fixed"
    EXPONENTIAL = "exponential"


class Poison(Enum):
    """What happens to a message that failed too often."""

    DEAD_LETTER = "dead_letter"
    BLOCK = "block"
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """What a subscription does when a message is not acknowledged.

    An `ack_timeout_ms` of 0 means that no delivery times out: read as a time it would fail every message at once, and
    with `Poison.DROP` lose it.
    """

    max_redelivery_count: int = 5
    ack_timeout_ms: int = 30_000
    base_redelivery_delay_ms: int = 1_000
    max_redelivery_delay_ms: int = 60_000
    backoff: Backoff = Backoff.EXPONENTIAL
    poison: Poison = Poison.BLOCK
    dead_letter_topic: str | None = None

    def delay_ms(self, failures: int, asked_ms: int) -> int:
        """Return the delay after failure number `failures` (from 1), if the consumer requested `asked_ms`."""
        delay_ms = self.base_redelivery_delay_ms
        if self.backoff is Backoff.EXPONENTIAL:
            delay_ms <<= min(failures - 1, DOUBLINGS_MAX)
        return min(max(delay_ms, asked_ms), self.max_redelivery_delay_ms)

    def exhausted(self, failures: int) -> bool:
        """Return True if a message with this many failures is not redelivered."""
        return failures > self.max_redelivery_count
