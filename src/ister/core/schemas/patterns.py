"""Decide whether a text matches a regular expression, in time that grows with the text and never explodes.

Python's own engine backtracks: twenty characters under `(a+)+$` take a second, forty take a week, and a broker takes
both the pattern and the text from others. Arrow carries RE2, which does not. What RE2 does not know (looking ahead or
behind, references to a group) is refused when a schema is registered.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


class PatternError(ValueError):
    """A regular expression that is none, or that could not be searched for in bounded time."""


def check_pattern(pattern: str) -> None:
    """Raise PatternError unless this can be searched for."""
    try:
        pc.match_substring_regex(pa.scalar(""), pattern=pattern)
    except pa.ArrowInvalid as error:
        raise PatternError(str(error)) from None


def matches(pattern: str, text: str) -> bool:
    """Tell whether a pattern that was checked is found anywhere in a text."""
    found: bool = pc.match_substring_regex(pa.scalar(text), pattern=pattern).as_py()
    return found
