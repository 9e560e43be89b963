"""Columns of a JSON Schema, and the decoder of JSON payloads.

An object with properties is a struct of these; what else it holds stays in the payload. Without properties, but with a
schema for all of them, it is a map; one for the names of a pattern is for all of them only if there can be no others
(`additionalProperties: false`). A list whose items have one schema is a list. `integer` is a long, `number` a double.
A `format` is a remark that nobody keeps to, so a date is a string. Alternatives of which all but one are null are that
one; alternatives that only ask more of what is described beside them are not alternatives to us. What is left has no one
type, or leads back to itself, and is JSON. What can only be null has no column.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NoReturn

from ister.schemas.columns.cells import Number, UndecodableError
from ister.schemas.columns.types import ColumnBudget, Field, List, Map, Primitive, Struct, rooted
from ister.schemas.json.validate import TYPE_NAMES
from ister.schemas.json.writable import ATOMS, atoms, flatten, item_schemas, object_of, prefix_of, schemas_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.schemas.columns.cells import Value
    from ister.schemas.columns.types import Shape
    from ister.schemas.document import Json
    from ister.schemas.json.schema import JsonSchema, SubSchema

_DESCRIBES: Final = frozenset(
    {
        *("type", "properties", "patternProperties", "additionalProperties", "items", "prefixItems"),
        *("enum", "const", "$ref", "allOf", "anyOf", "oneOf"),
    }
)
"""The keywords that give a value its type, and not only constraints."""
_LEADS: Final = frozenset({"properties", "patternProperties", "additionalProperties", "items", "additionalItems"})
"""The keywords that lead to values in a value."""


def shape_of(schema: JsonSchema) -> Struct:
    """Return the shape of a schema's values."""
    return rooted(_shape(schema))


def reader(schema: JsonSchema) -> Callable[[bytes], Value]:
    """Return the decoder of payloads, which raises UndecodableError."""
    if isinstance(_shape(schema), Struct):
        return _load
    return lambda payload: {"value": _load(payload)}


def _load(payload: bytes) -> Value:
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        raise UndecodableError(f"is not UTF-8 at byte {error.start}") from None
    try:
        try:
            value: Value = _JSON.decode(text)
        except json.JSONDecodeError:
            raise
        except (
            ValueError
        ):  # an integer of more digits than Python converts, or what is no number, and is reported below
            value = _JSON_OF_LONG_INTEGERS.decode(text)
    except ValueError as error:
        raise UndecodableError(f"is not JSON: {error}") from None
    return value


def _shape(schema: JsonSchema) -> Shape | None:
    return _Shapes(schema).of((schema.root,), frozenset(), 0)


class _Shapes:
    """Derives shapes from a schema; None is the shape of what can only be null."""

    def __init__(self, side: JsonSchema) -> None:
        self._side = side
        self._budget = ColumnBudget()

    def of(self, schemas: tuple[SubSchema, ...], around: frozenset[frozenset[int]], depth: int) -> Shape | None:
        flat = self._chosen(flatten(self._side, schemas))
        if flat is None or False in flat:
            return Primitive.JSON
        parts = [one for one in flat if isinstance(one, dict)]
        # What only refers or restricts leads nowhere; two places with a part in common are not yet the same place.
        here = frozenset(id(one) for one in parts if not _LEADS.isdisjoint(one))
        if not parts or here in around:
            return Primitive.JSON
        types = ATOMS.intersection(*map(atoms, parts), *map(_listed, parts))
        around |= {here} if here else set()
        match sorted(types - {"null"}):
            case []:
                return None if types else Primitive.JSON
            case ["boolean"]:
                return Primitive.BOOLEAN
            case ["string"]:
                return Primitive.STRING
            case ["integer"]:
                return Primitive.LONG
            case ["fraction"] | ["fraction", "integer"]:
                return Primitive.DOUBLE
            case ["array"]:
                return self._list(parts, around, depth)
            case ["object"]:
                return self._object(parts, around, depth)
            case _:
                return Primitive.JSON

    def _chosen(self, flat: list[SubSchema]) -> list[SubSchema] | None:
        """Add the one alternative that is not null; None when there are more of them."""
        found = list(flat)
        for part in flat:
            for word in ("anyOf", "oneOf"):
                options = [] if isinstance(part, bool) else schemas_in(part.get(word))
                typed = [one for one in options if isinstance(one, bool) or not _DESCRIBES.isdisjoint(one)]
                left = [one for one in typed if self._types((one,)) != {"null"}]
                if len(left) > 1:
                    return None
                inner = self._chosen(flatten(self._side, tuple(left)))
                if inner is None:
                    return None
                found += inner
        return found

    def _types(self, schemas: tuple[SubSchema, ...]) -> frozenset[str]:
        parts = flatten(self._side, schemas)
        if False in parts:
            return frozenset()
        return ATOMS.intersection(*(atoms(one) & _listed(one) for one in parts if isinstance(one, dict)))

    def _list(self, parts: list[dict[str, Json]], around: frozenset[frozenset[int]], depth: int) -> Shape:
        if any(prefix_of(self._side, part) for part in parts):
            return Primitive.JSON
        items = tuple(one for part in parts for one in item_schemas(self._side, part, 0))
        if not items or not self._budget.take(1, depth + 1):
            return Primitive.JSON
        element = self.of(items, around, depth + 1)
        return Primitive.JSON if element is None or element is Primitive.JSON else List(element)

    def _object(self, parts: list[dict[str, Json]], around: frozenset[frozenset[int]], depth: int) -> Shape:
        named: dict[str, tuple[SubSchema, ...]] = {}
        for part in parts:
            for name, one in object_of(part.get("properties")).items():
                named[name] = (*named.get(name, ()), *schemas_in([one]))
        if not named:
            return self._map(parts, around, depth)
        if not self._budget.take(len(named), depth + 1):
            return Primitive.JSON
        fields = []
        for name, schemas in named.items():
            shape = None if False in schemas else self.of(schemas, around, depth + 1)
            if shape is not None:
                fields.append(Field(name, shape))
        return Struct(tuple(fields)) if fields else Primitive.JSON

    def _map(self, parts: list[dict[str, Json]], around: frozenset[frozenset[int]], depth: int) -> Shape:
        under = [one for part in parts if isinstance(one := part.get("additionalProperties"), dict)]
        patterns = [one for part in parts for one in object_of(part.get("patternProperties")).values()]
        is_open = bool(patterns) and not any(part.get("additionalProperties") is False for part in parts)
        if is_open or len(under) + len(patterns) != 1 or not self._budget.take(1, depth + 1):
            return Primitive.JSON
        value = self.of(schemas_in([*under, *patterns]), around, depth + 1)
        return Primitive.JSON if value is None or value is Primitive.JSON else Map(value)


def _listed(part: dict[str, Json]) -> frozenset[str]:
    """Return the kinds of the values that a schema lists."""
    values = [part["const"]] if "const" in part else part.get("enum")
    if not isinstance(values, list):
        return ATOMS
    return frozenset("fraction" if isinstance(one, float) else TYPE_NAMES[type(one)] for one in values)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _integer(text: str) -> int | Number:
    return int(text) if len(text) <= _INTEGER_DIGITS_MAX else Number(text)


_INTEGER_DIGITS_MAX: Final = 4_000
_JSON: Final = json.JSONDecoder(parse_constant=_no_constant, parse_float=Number)
_JSON_OF_LONG_INTEGERS: Final = json.JSONDecoder(parse_constant=_no_constant, parse_float=Number, parse_int=_integer)
