"""The values that a writer with a JSON Schema can write at most: types, limits, property names and their schemas.

Everything here may say too much and must not say too little. One assumption is made, because without it no property could
ever be added: **a writer writes only the properties that its schema names**, the schema being all of its parts that hold
for the value. Where `additionalProperties` is absent or true, others are allowed and still not written; where it is a
schema, they are.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

from ister.schemas.json.validate import matches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ister.schemas.document import Json
    from ister.schemas.json.schema import JsonSchema, SubSchema

ATOMS: Final = frozenset({"null", "boolean", "integer", "fraction", "string", "array", "object"})
"""What a value is; a `number` is an integer or a fraction."""


class Limit(NamedTuple):
    """A bound, and whether it is exclusive."""

    number: Fraction
    open: bool


class Group(NamedTuple):
    """Alternatives of which at least one holds."""

    key: int
    parts: tuple[SubSchema, ...]


def flatten(side: JsonSchema, schemas: tuple[SubSchema, ...]) -> list[SubSchema]:
    """Return what must all hold when these must all hold: references followed, `allOf` taken apart, `true` left out."""
    found: list[SubSchema] = []
    for schema in schemas:
        if isinstance(schema, bool):
            if not schema:
                found.append(schema)
            continue
        target = side.target(schema)
        if target is not None:
            found += flatten(side, (target,))
            if side.dialect.draft <= 7:
                continue
        found.append(schema)
        found += flatten(side, schemas_in(schema.get("allOf")))
    return found


def atoms(schema: dict[str, Json]) -> frozenset[str]:
    """Return the kinds of values that a schema's `type` allows."""
    names = schema.get("type")
    if names is None:
        return ATOMS
    words = set(names if isinstance(names, list) else [names])
    if "number" in words:
        words = words - {"number"} | {"integer", "fraction"}
    return ATOMS & {str(word) for word in words}


def schemas_in(node: Json) -> tuple[SubSchema, ...]:
    """Return the schemas in a list, or in an object."""
    values = node if isinstance(node, list) else node.values() if isinstance(node, dict) else ()
    return tuple(one for one in values if isinstance(one, bool | dict))


def object_of(node: Json) -> dict[str, Json]:
    """Return an object, empty when there is none."""
    return node if isinstance(node, dict) else {}


def names_in(node: Json) -> frozenset[str]:
    """Return the names in a list."""
    return frozenset(str(one) for one in node) if isinstance(node, list) else frozenset()


class Written:
    """What a writer can write, when all of these schemas hold."""

    def __init__(self, side: JsonSchema, schemas: tuple[SubSchema, ...]) -> None:
        self._side = side
        flat = flatten(side, schemas)
        self.schemas = schemas
        self.parts: list[dict[str, Json]] = [one for one in flat if isinstance(one, dict)]
        self.types: frozenset[str] = frozenset() if False in flat else ATOMS.intersection(*map(atoms, self.parts))
        self.required = frozenset().union(*(names_in(one.get("required")) for one in self.parts))
        self._sometimes = list(self._conditional())
        self._always: frozenset[str] = frozenset().union(*map(_names_of, self.parts))
        self.names = self._always.union(*map(_names_of, self._sometimes))
        """The properties that can be there by their names."""
        self.patterns = self._patterns()
        """What can be there under names that match a pattern."""
        self.extra = self._extra()
        """What can be there under any other name; None when nothing is written there."""

    def narrowed(self, schema: SubSchema) -> Written:
        """Return what can be written when this holds, too."""
        return Written(self._side, (*self.schemas, schema))

    def groups(self) -> Iterator[Group]:
        """Yield the alternatives; that at most one of `oneOf` holds is not used."""
        for part in self.parts:
            for keyword in ("anyOf", "oneOf"):
                if keyword in part:
                    yield Group(id(part[keyword]), schemas_in(part[keyword]))

    def values(self) -> list[Json] | None:
        """Return every value that can be written, None when they are not listed."""
        listed: list[Json] | None = [None, True, False] if self.types <= {"null", "boolean"} else None
        for part in self.parts:
            if "const" in part and "const" in self._side.dialect.known:
                listed = [part["const"]]
            elif isinstance(enum := part.get("enum"), list):
                listed = enum
        if listed is None:
            return None
        return [value for value in listed if all(self._side.validator.accepts(one, value) for one in self.schemas)]

    def limit(self, keyword: str) -> Limit | None:
        """Return the tightest limit of a keyword such as minLength or maxLength."""
        sign = 1 if keyword.startswith("min") else -1
        found = [limit for part in self.parts if (limit := limit_of(part, keyword)) is not None]
        return max(found, key=lambda one: (sign * one.number, one.open), default=None)

    def number_limit(self, *, lower: bool) -> Limit | None:
        """Return the least number, or the greatest."""
        found = [limit for part in self.parts for limit in number_limits(part, lower=lower)]
        sign = 1 if lower else -1
        tightest = max(found, key=lambda one: (sign * one.number, one.open), default=None)
        if tightest is None or "fraction" in self.types:
            return tightest
        # Among integers "more than 0" is "1 or more", and "1.5 or more" is "2 or more".
        whole = sign * (sign * tightest.number).__ceil__()
        return Limit(Fraction(whole + sign if tightest.open and whole == tightest.number else whole), open=False)

    def has(self, keyword: str) -> list[Json]:
        """Return every value that a keyword has."""
        return [part[keyword] for part in self.parts if keyword in part]

    # --- objects ------------------------------------------------------------------------------------------------------

    def _patterns(self) -> dict[str, tuple[SubSchema, ...]]:
        found: dict[str, tuple[SubSchema, ...]] = {}
        for part in self.parts:
            for pattern, one in object_of(part.get("patternProperties")).items():
                found[pattern] = (*found.get(pattern, ()), *schemas_in([one]))
        for part in self._sometimes:
            found.update((pattern, ()) for pattern in object_of(part.get("patternProperties")))
        return found

    def _extra(self) -> tuple[SubSchema, ...] | None:
        if any(part.get("additionalProperties") is False for part in self.parts):
            return None
        words = ("additionalProperties", "unevaluatedProperties")
        if any(isinstance(part.get(word), dict) for part in self._sometimes for word in words):
            return ()
        found = [part[word] for part in self.parts for word in words if isinstance(part.get(word), dict)]
        return schemas_in(found) if found else None

    def under(self, name: str) -> tuple[SubSchema, ...]:
        """Return what must hold for a property, if it is there."""
        found: list[Json] = []
        for part in self.parts:
            here = _schemas_for(part, name)
            if not here and "additionalProperties" in part:
                here = [part["additionalProperties"]]
            found += here
        if name not in self._always and self.extra is None:
            # It is written only if one of these holds. If there are several, any of them may be the one.
            at_times = [
                here for part in self._sometimes if (here := _schemas_for(part, name)) or name in _names_of(part)
            ]
            if len(at_times) == 1:
                found += at_times[0]
        return schemas_in(found)

    def can_have(self, name: str) -> bool:
        """Return True if a property can be there."""
        if name in self.names or self.extra is not None:
            return True
        return any(matches(pattern, name) for pattern in self.patterns)

    def _conditional(self) -> Iterator[dict[str, Json]]:
        """Return the schemas that hold at times: what they name may be written, what they require may be absent."""
        work: list[SubSchema] = []
        for one in self.parts:
            work += schemas_in([one.get(word) for word in ("if", "then", "else")])
            for word in ("dependentSchemas", "dependencies", "anyOf"):
                work += schemas_in(one.get(word))
        return self._side.all_in_place(work)

    # --- arrays -------------------------------------------------------------------------------------------------------

    def at(self, index: int) -> tuple[SubSchema, ...]:
        """Return what must hold for an item; for an index behind every list, for the rest of them."""
        return tuple(one for part in self.parts for one in item_schemas(self._side, part, index))

    @property
    def prefix(self) -> int:
        """How many items have a schema of their own."""
        return max((prefix_of(self._side, part) for part in self.parts), default=0)


def _schemas_for(part: dict[str, Json], name: str) -> list[Json]:
    """Return what a schema asks of a property that it names, or that a pattern of its matches."""
    named = object_of(part.get("properties"))
    found = [named[name]] if name in named else []
    return found + [one for pattern, one in object_of(part.get("patternProperties")).items() if matches(pattern, name)]


def _names_of(part: dict[str, Json]) -> frozenset[str]:
    """Return the properties that a schema describes, or requires, always or beside others."""
    beside = (one for word in ("dependentRequired", "dependencies") for one in object_of(part.get(word)).values())
    return names_in(part.get("required")).union(object_of(part.get("properties")), *map(names_in, beside))


def prefix_of(side: JsonSchema, part: dict[str, Json]) -> int:
    """Return how many items a schema treats one by one."""
    listed = part.get("prefixItems" if side.dialect.draft >= 2020 else "items")
    return len(listed) if isinstance(listed, list) else 0


def item_schemas(side: JsonSchema, part: dict[str, Json], index: int) -> tuple[SubSchema, ...]:
    """Return what a schema asks of an item."""
    listed = part.get("prefixItems" if side.dialect.draft >= 2020 else "items")
    if isinstance(listed, list):
        if index < len(listed):
            return schemas_in([listed[index]])
        return schemas_in([part.get("items" if side.dialect.draft >= 2020 else "additionalItems")])
    return schemas_in([part.get("items")])


def limit_of(part: dict[str, Json], keyword: str) -> Limit | None:
    """Return a limit as it is written."""
    number = part.get(keyword)
    if not isinstance(number, int | float) or isinstance(number, bool):
        return None
    return Limit(Fraction(repr(number)), open=keyword.startswith("exclusive"))


def number_limits(part: dict[str, Json], *, lower: bool) -> list[Limit]:
    """Return the limits of a number; in draft 4 a boolean says whether the limit is left out."""
    word, exclusive = ("minimum", "exclusiveMinimum") if lower else ("maximum", "exclusiveMaximum")
    plain, strict = limit_of(part, word), limit_of(part, exclusive)
    if plain is not None and part.get(exclusive) is True:
        plain = Limit(plain.number, open=True)
    return [limit for limit in (plain, strict) if limit is not None]
