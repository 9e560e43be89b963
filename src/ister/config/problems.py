"""Problems of a configuration: all of them at once, each with its line and a next step, never with the value."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ister.core.errors import InvalidConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydantic_core import ErrorDetails

PROBLEMS_MAX = 100
"""A file with more problems than this is not a configuration; the others are omitted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem; `line` is 0 and `key` empty where there is none to name."""

    line: int
    key: str
    what: str

    def at(self, source: str) -> str:
        """Return `FILE:LINE: key: what; next`."""
        return f"{source}:{self.line}: {self}" if self.line else f"{source}: {self}"

    def __str__(self) -> str:
        return f"{self.key}: {self.what}" if self.key else self.what


class ConfigError(InvalidConfigError):
    """The configuration is invalid; `problems` are in file order."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__(problems[0].key, problems[0].what)

    def __str__(self) -> str:
        more = len(self.problems) - 1
        also = f" (and {more} more; `ister config check {self.source}` lists them)" if more else ""
        return f"{self.problems[0].at(self.source)}{also}"

    @property
    def lines(self) -> list[str]:
        """The problems, one line each."""
        return [problem.at(self.source) for problem in self.problems]


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the most similar known word, if any is similar enough."""
    matches = get_close_matches(word[:64].lower(), list(known), 1, cutoff)
    return matches[0] if matches else None


def reason(detail: ErrorDetails) -> str:
    """Return what a value must be; pydantic's own messages would repeat the value."""
    kind, bounds = detail["type"], detail.get("ctx", {})
    if kind.startswith("int"):
        return "must be a whole number"
    if kind.startswith("bool"):
        return "must be true or false"
    if kind.startswith(("float", "finite")):
        return "must be a number"
    match kind:
        case "greater_than_equal":
            return f"must be at least {bounds['ge']:,}"
        case "greater_than":
            return f"must be more than {bounds['gt']:,}"
        case "less_than_equal":
            return f"must be at most {bounds['le']:,}"
        case "literal_error":
            return f"must be one of {bounds['expected']}".replace("'", "")
        case "string_too_short" | "too_short":
            return "must not be empty; leave the line out for the default"
        case "string_too_long" | "too_long":
            return f"is too long; at most {bounds['max_length']:,} are taken"
        case "value_error":
            return str(bounds["error"])
    return "has a value of the wrong kind; see docs/config.md"
