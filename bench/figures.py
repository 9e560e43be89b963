"""Shared by benchmarks: the figures of rounds, and progress output."""

from __future__ import annotations

import statistics
import sys


class Figures:
    """The figures of each round."""

    def __init__(self) -> None:
        self._rounds: dict[str, list[float]] = {}

    def note(self, name: str, value: float) -> None:
        self._rounds.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        return statistics.median(self._rounds[name])

    def spread(self) -> dict[str, tuple[float, float, float]]:
        return {name: (min(found), statistics.median(found), max(found)) for name, found in self._rounds.items()}


def show(line: str) -> None:
    """Print progress to stderr; stdout is for figures."""
    print(line, file=sys.stderr, flush=True)
