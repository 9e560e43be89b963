"""What is wrong with a configuration: all of it at once, each with its place and a next step, never with the value."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ister.core.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PROBLEMS_MAX = 100
"""A file with more problems than this is not a configuration; the rest is left out."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong; `line` is 0 where no line is to blame, `key` empty where no key is."""

    line: int
    key: str
    what: str

    def at(self, source: str) -> str:
        """Return `FILE:LINE: key: what; next`."""
        return f"{source}:{self.line}: {self}" if self.line else f"{source}: {self}"

    def __str__(self) -> str:
        return f"{self.key}: {self.what}" if self.key else self.what


class ConfigError(ClientError):
    """The configuration cannot be used; `problems` says why, in the order of the file."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        more = len(self.problems) - 1
        also = f" (and {more} more; `ister config check {source}` lists them)" if more else ""
        super().__init__(f"{self.problems[0].at(source)}{also}")

    @property
    def lines(self) -> list[str]:
        """One line a problem."""
        return [problem.at(self.source) for problem in self.problems]


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word that was probably meant."""
    matches = get_close_matches(word[:64].lower(), list(known), 1, cutoff)
    return matches[0] if matches else None
