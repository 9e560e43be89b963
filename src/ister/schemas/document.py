"""Bounded parsing of JSON definitions: limits of size, depth and values, no key twice, finite numbers."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from typing import Final, NoReturn, TypeAlias

from ister.core.errors import InvalidRequestError
from ister.schemas.kinds import DEFINITION_BYTES_MAX

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

DEPTH_MAX: Final = 64
"""Levels of a definition; code may recurse through it without reaching Python's limit."""
VALUES_MAX: Final = 50_000
"""Values in a definition; bounds the time of every walk through it."""
SHOWN_MAX: Final = 200
"""Characters of a client's text that an error repeats."""


def check_size(kind: str, definition: bytes) -> None:
    """Raise when a definition is larger than any may be."""
    if len(definition) > DEFINITION_BYTES_MAX:
        raise refused(kind, f"it has {len(definition)} bytes, more than {DEFINITION_BYTES_MAX}")


def load_json(kind: str, definition: bytes) -> Json:
    """Read a definition, or raise InvalidRequestError."""
    check_size(kind, definition)
    try:
        document: Json = json.loads(
            definition.decode(), object_pairs_hook=_object, parse_constant=no_constant, parse_float=finite_float
        )
        _check_shape(document)
    except UnicodeDecodeError:
        raise refused(kind, "it is not UTF-8") from None
    except RecursionError:
        raise refused(kind, f"it is nested deeper than {DEPTH_MAX} levels") from None
    except ValueError as error:
        raise refused(kind, f"it is not JSON that can be used: {error}") from None
    return document


def canonical(document: Json) -> str:
    """Return the one text of a document: keys sorted, no spaces."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def fingerprint_of(text: bytes) -> str:
    """Return the name of a canonical text."""
    return f"sha256:{hashlib.sha256(text).hexdigest()}"


def refused(kind: str, reason: str) -> InvalidRequestError:
    """Return the error of a definition that cannot be used; a reason may hold a client's text, so it is cut."""
    return InvalidRequestError(f"invalid {kind} definition: {shown(reason)}")


def shown(text: str) -> str:
    """Return a text as an error may repeat it: cut, and printable."""
    cut = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
    return "".join(character if character.isprintable() else "?" for character in cut)


def _check_shape(document: Json) -> None:
    """Check the numbers of values and levels without recursing, and that every text can be encoded."""
    level = [document]
    count = 0
    for _ in range(DEPTH_MAX):
        below: list[Json] = []
        for value in level:
            count += 1
            if isinstance(value, dict):
                for key in value:
                    key.encode()
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif isinstance(value, str):
                value.encode()
        if count + len(below) > VALUES_MAX:
            raise ValueError(f"it has more than {VALUES_MAX} values")
        if not below:
            return
        level = below
    raise RecursionError


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key[:80]!r} is there twice")
    return found


def no_constant(text: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python's parser takes."""
    raise ValueError(f"{text} is not JSON")


def finite_float(text: str) -> float:
    """Return a number; ValueError when it is too large for a float, which Python's parser reads as infinity."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number
