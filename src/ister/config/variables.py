"""Fill `${NAME}` in a value from the environment; `$${` stands for `${`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ister.config.forms import UNUSABLE
from ister.config.keys import TEXT_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

_PIECE = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]{0,254})\})?")


class Filled(NamedTuple):
    """A value with its variables filled in, their names, and what was wrong."""

    text: str
    names: tuple[str, ...]
    problems: tuple[str, ...]


def fill(text: str, environ: Mapping[str, str]) -> Filled:
    """Fill in the variables; what they hold is not searched for further ones."""
    parts: list[str] = []
    names: dict[str, None] = {}
    problems: dict[str, None] = {}
    size = at = 0
    for match in _PIECE.finditer(text):
        name = match[1]
        piece = "${"
        if name is not None:
            names[name] = None
            if (found := environ.get(name)) is None:
                problems[f"needs the environment variable {name}, which is not set; set it"] = None
                found = ""
            piece = found
        elif match[0] == "${":
            problems["has ${ without a name and } behind it; write ${NAME}, or $${ for the characters ${"] = None
        parts += (text[at : match.start()], piece)
        at = match.end()
        size += len(piece)
        if size > TEXT_MAX:  # a short file could otherwise repeat a long variable until memory is gone
            break
    filled = "".join((*parts, text[at : at + TEXT_MAX + 1]))
    if len(filled) > TEXT_MAX:
        problems[f"is longer than {TEXT_MAX:,} characters; shorten it"] = None
        filled = ""
    if UNUSABLE.search(filled):
        problems["holds characters that cannot be used in a value; take them out"] = None
    return Filled(filled, tuple(names), tuple(problems))
