"""Token bucket that holds the tokens of one second."""

from __future__ import annotations


class TokenBucket:
    """Grants `rate` tokens each second on average; 0 is no limit."""

    __slots__ = ("_level", "_seen", "rate")

    def __init__(self, rate: int, now: float) -> None:
        self.rate = rate
        self._level = float(rate)
        self._seen = now

    def grant(self, wanted: int, now: float) -> int:
        """Take up to `wanted` tokens; return how many were taken."""
        if not self.rate:
            return wanted
        self._level = min(float(self.rate), self._level + (now - self._seen) * self.rate)
        self._seen = now
        granted = min(wanted, int(self._level))
        self._level -= granted
        return granted

    def next_at(self) -> float:
        """Return when the next token is available."""
        return self._seen if not self.rate else self._seen + max(0.0, 1.0 - self._level) / self.rate
