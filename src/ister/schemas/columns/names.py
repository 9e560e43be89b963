"""Column names: the field's name in the schema, or a stable replacement where that cannot be.

A name keeps its column whatever comes beside it later, because a column is never chosen by the order of things:

- A **plain** name is the column's name: letters, digits and a few marks, no longer than 128 characters, and not one that
  ends as the names that we make do. A dot is no plain mark: Iceberg joins names with it.
- Any other name, and one that differs from another column only by case (to Spark these are the same), gets a **made** one:
  its plain characters, `_x` and 8 hex digits of its hash. So `a.b` is `a_b_x2e7336dc`.
- A column that cannot take all that a later schema writes has another **beside** it, `<column>_as_json`.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

PLAIN_MAX: Final = 128
_MADE_FROM_MAX: Final = 100
_MARKS: Final = frozenset("_- $@#/+")
_OURS = re.compile(r"_x[0-9a-f]{8}$|_as_json$", re.IGNORECASE)


def column_in(columns: Collection[str], name: str) -> str | None:
    """Return the column that holds a field's values, None when there is none."""
    if name in columns and _is_plain(name):
        return name
    made = _made(name)
    return made if made in columns else None


def column_for(columns: Collection[str], name: str) -> str | None:
    """Return what a new column for a field is to be called; None when even the name that we make is taken."""
    lower = {one.lower() for one in columns}
    if _is_plain(name) and name.lower() not in lower:
        return name
    made = _made(name)
    return None if made.lower() in lower else made


def beside(column: str) -> str:
    """Return the name of the column that takes what another cannot."""
    return f"{column}_as_json"


def _is_plain(name: str) -> bool:
    if not 0 < len(name) <= PLAIN_MAX or name != name.strip() or _OURS.search(name):
        return False
    return all(character.isalnum() or character in _MARKS for character in name)


def _made(name: str) -> str:
    plain = "".join(one if one.isalnum() or one in _MARKS else "_" for one in name[:_MADE_FROM_MAX]).strip()
    return f"{plain}_x{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:8]}"
