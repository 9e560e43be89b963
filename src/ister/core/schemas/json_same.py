"""Decide whether parts of two JSON Schemas are the same, whatever their references are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ister.core.schemas.document import Json
    from ister.core.schemas.json_schema import JsonSchema

STEPS_MAX: Final = 200_000


class Sameness:
    """Compares parts of one schema with parts of another."""

    def __init__(self, one: JsonSchema, other: JsonSchema) -> None:
        self._one = one
        self._other = other
        self._comparable = one.dialect is other.dialect
        self._steps = 0

    def same(self, one: Json, other: Json) -> bool:
        """Tell whether two parts are the same; no when that would take too long to see."""
        return self._comparable and self._walk(one, other, set())

    def _walk(self, one: Json, other: Json, assumed: set[tuple[int, int]]) -> bool:
        """Compare; a pair that leads back to itself is the same unless something else in it is not."""
        self._steps += 1
        if self._steps > STEPS_MAX:
            return False
        if isinstance(one, dict) and isinstance(other, dict):
            if one.keys() != other.keys():
                return False
            pair = (id(one), id(other))
            if pair in assumed:
                return True
            assumed.add(pair)
            target, goal = self._one.target(one), self._other.target(other)
            if (target is None) is not (goal is None):
                return False
            if target is not None and not self._walk(target, goal, assumed):
                return False
            return all(
                self._walk(value, other[name], assumed)
                for name, value in one.items()
                if not (name == "$ref" and target is not None)
            )
        if isinstance(one, list) and isinstance(other, list):
            return len(one) == len(other) and all(
                self._walk(mine, theirs, assumed) for mine, theirs in zip(one, other, strict=True)
            )
        return type(one) is type(other) and one == other
