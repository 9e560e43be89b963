"""Decide how many may pass: a bucket that fills with time and holds one second's worth."""

from __future__ import annotations


class TokenBucket:
    """Lets `rate` pass each second on average; 0 lets everything pass."""

    __slots__ = ("_level", "_seen", "rate")

    def __init__(self, rate: int, now: float) -> None:
        self.rate = rate
        self._level = float(rate)
        self._seen = now

    def grant(self, wanted: int, now: float) -> int:
        """Return how many of `wanted` may pass now; they count as passed."""
        if not self.rate:
            return wanted
        self._level = min(float(self.rate), self._level + (now - self._seen) * self.rate)
        self._seen = now
        granted = min(wanted, int(self._level))
        self._level -= granted
        return granted

    def next_at(self) -> float:
        """Return when the next one may pass."""
        return self._seen if not self.rate else self._seen + max(0.0, 1.0 - self._level) / self.rate
