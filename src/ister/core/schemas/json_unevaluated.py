"""Decide what `unevaluatedProperties` and `unevaluatedItems` mean by evaluated, for the value at hand.

A property or an item is evaluated when a keyword of the schema, or of a subschema that applies to the same value and holds
for it, looks at it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ister.core.schemas.json_keywords import found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ister.core.schemas.document import Json
    from ister.core.schemas.json_keywords import Check, Run
    from ister.core.schemas.json_payload import Compiler
    from ister.core.schemas.json_schema import SubSchema


def compile_unevaluated(compiler: Compiler, keyword: str, schema: dict[str, Json]) -> Check | None:
    """Return what checks one of the two keywords, None when it is neither."""
    if keyword not in compiler.schema.dialect.known:
        return None
    if keyword == "unevaluatedProperties":
        return _properties(compiler, schema)
    return _items(compiler, schema) if keyword == "unevaluatedItems" else None


def _properties(compiler: Compiler, schema: dict[str, Json]) -> Check:
    inner = compiler.compile(_part(schema, "unevaluatedProperties"))

    def check(value: Json, run: Run) -> str | None:
        if not isinstance(value, dict):
            return None
        seen = _Seen(compiler, run)
        names = seen.names(schema, value, own=True)
        for name, one in value.items():
            if name not in names:
                wrong = inner(one, run)
                if wrong is not None:
                    return f".{name}{wrong}"
        return None

    return check


def _items(compiler: Compiler, schema: dict[str, Json]) -> Check:
    inner = compiler.compile(_part(schema, "unevaluatedItems"))

    def check(value: Json, run: Run) -> str | None:
        if not isinstance(value, list):
            return None
        seen = _Seen(compiler, run)
        indexes = seen.indexes(schema, value, own=True)
        for index, one in enumerate(value):
            if index not in indexes:
                wrong = inner(one, run)
                if wrong is not None:
                    return f"[{index}]{wrong}"
        return None

    return check


class _Seen:
    """Collects what was evaluated, for one value."""

    def __init__(self, compiler: Compiler, run: Run) -> None:
        self._compiler = compiler
        self._run = run

    def names(self, schema: SubSchema, value: dict[str, Json], *, own: bool = False) -> set[str]:
        """Return the properties that a schema evaluates, without its own `unevaluatedProperties` if that is asking."""
        if isinstance(schema, bool):
            return set()
        self._run.spend(1 + len(value))
        if "additionalProperties" in schema or ("unevaluatedProperties" in schema and not own):
            return set(value)
        named, patterns = schema.get("properties"), schema.get("patternProperties")
        names = set(value).intersection(named) if isinstance(named, dict) else set()
        for pattern in patterns if isinstance(patterns, dict) else ():
            names.update(name for name in value if found(pattern, name, self._run))
        for part in self._holding(schema, value):
            names |= self.names(part, value)
        return names

    def indexes(self, schema: SubSchema, value: list[Json], *, own: bool = False) -> set[int]:
        """Return the items that a schema evaluates, without its own `unevaluatedItems` if that is asking."""
        if isinstance(schema, bool):
            return set()
        self._run.spend(1 + len(value))
        tuple_word = "prefixItems" if self._compiler.schema.dialect.draft >= 2020 else "items"
        prefix = schema.get(tuple_word)
        rest_word = "additionalItems" if tuple_word == "items" and isinstance(prefix, list) else "items"
        if rest_word in schema or ("unevaluatedItems" in schema and not own):
            return set(range(len(value)))
        indexes = set(range(len(prefix))) if isinstance(prefix, list) else set()
        if "contains" in schema and tuple_word == "prefixItems":
            inner = self._compiler.compiled(_part(schema, "contains"))
            indexes |= {index for index, one in enumerate(value) if inner(one, self._run) is None}
        for part in self._holding(schema, value):
            indexes |= self.indexes(part, value)
        return indexes

    def _holding(self, schema: dict[str, Json], value: Json) -> Iterator[SubSchema]:
        """Give the subschemas that apply to this value and hold for it."""
        target = self._compiler.schema.target(schema)
        if target is not None:
            yield target
        for keyword in ("allOf", "anyOf", "oneOf"):
            parts = schema.get(keyword)
            for part in parts if isinstance(parts, list) else ():
                if isinstance(part, bool | dict) and self._holds(part, value):
                    yield part
        if "if" in schema:
            condition = _part(schema, "if")
            if self._holds(condition, value):
                yield condition
                yield _part(schema, "then")
            else:
                yield _part(schema, "else")
        named = schema.get("dependentSchemas")
        if isinstance(named, dict) and isinstance(value, dict):
            yield from (_part(named, name) for name in named if name in value)

    def _holds(self, part: SubSchema, value: Json) -> bool:
        return self._compiler.compiled(part)(value, self._run) is None


def _part(schema: dict[str, Json], keyword: str) -> SubSchema:
    part = schema.get(keyword, True)
    assert isinstance(part, bool | dict), "the definition was checked"
    return part
