"""Payload validation against a JSON Schema by `jsonschema_rs`, in a number of steps that the payload's size bounds.

The library can be neither bounded nor interrupted, and references that double at every level take it for ever. So every
subschema that is more than a few simple assertions begins with a keyword of ours that counts steps, and that fails once
they are used up. References are rewritten to positions in one document, since json/schema.py has resolved them.
"""

from __future__ import annotations

import json
import re
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import jsonschema_rs

from ister.core.errors import InvalidMessageError
from ister.schemas.document import finite_float, no_constant, shown
from ister.schemas.json.dialects import FormError, is_applicator

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

    from ister.schemas.document import Json
    from ister.schemas.json.schema import JsonSchema, SubSchema

DEPTH_MAX: Final = 1_000
"""Levels of a payload; the library recurses in Rust, which ends the process when the stack is used up."""
STEPS_SPARE: Final = 100_000
STEPS_PER_BYTE: Final = 4
EXPLAIN_STEPS: Final = 20_000
"""For the reason of a refusal: the library builds errors for all alternatives, and remembers no verdict meanwhile."""
MATCH_STEPS: Final = 32
LARGE_PATTERNS_MAX: Final = 32

_URI: Final = "urn:ister:schema"
_STEP: Final = "ister:step"
_NO_FRACTION: Final = "ister:no-fraction"
_CHEAP_MAX: Final = 16
_PATTERN_BYTES_MAX: Final = 1 << 20
_SMALL_PATTERN_BYTES_MAX: Final = 1 << 14
_REPEATED: Final = re.compile(r"[{,](?!1000[,}])\d{4,}[,}]")
TYPE_NAMES: Final = {
    type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"
}  # fmt: skip


class TooLongError(Exception):
    """More steps than a payload of this size may take."""


class PayloadValidator:
    """Validates payloads against one schema of which `schemas` are all subschemas; compiled at once: threads share it."""

    def __init__(self, schema: JsonSchema, schemas: Iterable[SubSchema]) -> None:
        self._schema = schema
        parts = [one for one in schemas if isinstance(one, dict)]
        self._positions = {id(one): position for position, one in enumerate(parts)}
        definitions = {str(position): self._rewrite(one) for position, one in enumerate(parts)}
        self._validators: dict[int, jsonschema_rs.Validator] = {}
        try:
            self._registry = jsonschema_rs.Registry(
                [(_URI, {"definitions": definitions})], draft=schema.dialect.library_draft, retriever=_refuse
            )
            self._root = self._compile(schema.root)
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
            raise FormError(f"cannot be compiled: {error}") from None

    def check(self, payload: bytes) -> None:
        """Raise InvalidMessageError unless a payload is JSON and valid."""
        try:
            value: Json = json.loads(payload.decode(), parse_constant=no_constant, parse_float=finite_float)
        except RecursionError:
            raise InvalidMessageError("payload", "is not JSON that can be used: it is nested too deeply") from None
        except ValueError as error:
            raise InvalidMessageError("payload", f"is not JSON: {shown(str(error))}") from None
        reason = self._reason(value, payload)
        if reason is not None:
            raise InvalidMessageError("payload", f"is not of its JSON Schema: {shown(f'${reason}')}")

    def accepts(self, part: SubSchema, value: Json) -> bool:
        """Return True if a part of the schema accepts a value of a definition; TooLongError when it takes too long."""
        validator = self._validators.get(id(part))
        if validator is None:
            validator = self._compile(part)
            if id(part) in self._positions:
                self._validators[id(part)] = validator
        return _is_valid(validator, value, STEPS_SPARE)

    def _reason(self, value: Json, payload: bytes) -> str | None:
        if payload.count(b"[") + payload.count(b"{") > DEPTH_MAX and _is_deeper(value, DEPTH_MAX):
            return ": it is nested too deeply"
        try:
            if _is_valid(self._root, value, STEPS_SPARE + STEPS_PER_BYTE * len(payload)):
                return None
            return _explain(self._root, value)
        except TooLongError:
            return ": it takes too long to check"
        except UnicodeEncodeError:
            return ": it holds half a character"

    def _compile(self, part: SubSchema) -> jsonschema_rs.Validator:
        return self._schema.dialect.library(
            self._link(part),
            registry=self._registry,
            pattern_options=_REGEX,
            validate_formats=False,
            retriever=_refuse,
            keywords={_STEP: _Step, _NO_FRACTION: _NoFraction},
        )

    def _link(self, part: Json) -> Any:
        """Return what stands for a subschema: a reference to its position, or the subschema if it is simple."""
        if isinstance(part, bool):
            return part
        assert isinstance(part, dict), "the definition was checked"
        position = self._positions.get(id(part))
        if position is None or _is_cheap(part, self._schema.dialect.known):
            return self._rewrite(part)
        return {"$ref": f"{_URI}#/definitions/{position}"}

    def _rewrite(self, part: dict[str, Json]) -> dict[str, Json]:
        """Return a subschema with its known keywords only, its references resolved, and its steps counted."""
        dialect = self._schema.dialect
        target = self._schema.target(part)
        if target is not None and dialect.draft <= 7:  # the keywords beside a reference are ignored
            return _counted([1, 0, False, False], self._link(target))
        known = {keyword: value for keyword, value in part.items() if keyword in dialect.known or keyword in _DRAFT_4}
        rewritten: dict[str, Json] = {
            keyword: self._link_all(keyword, value) if is_applicator(keyword) else value
            for keyword, value in known.items()
            if keyword not in _REMARKS
        }
        if dialect.draft == 4:
            _modernise(rewritten)
        if target is not None:
            others = rewritten.get("allOf")
            rewritten["allOf"] = [*(others if isinstance(others, list) else ()), self._link(target)]
        if _is_cheap(part, dialect.known):
            return rewritten
        return _counted(_weights(known), rewritten)

    def _link_all(self, keyword: str, value: Json) -> Json:
        if isinstance(value, list):
            return [self._link(one) for one in value]
        if isinstance(value, dict) and keyword in _MAPS:
            return {name: one if isinstance(one, list) else self._link(one) for name, one in value.items()}
        linked: Json = self._link(value)
        return linked


def is_large(pattern: str) -> bool:
    """Return True if a pattern takes much memory; raise FormError unless it can be searched for in bounded time."""
    if _REPEATED.search(pattern):
        raise FormError(f"has the pattern {pattern[:80]!r}, which repeats something more than 1000 times")
    try:
        jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=_SMALL_REGEX)
    except jsonschema_rs.ValidationError:
        try:
            _compiled_pattern(pattern)
        except jsonschema_rs.ValidationError:
            reason = "it is invalid, too large, or needs backtracking"
            raise FormError(f"has the pattern {pattern[:80]!r}, which cannot be used: {reason}") from None
        return True
    return False


def matches(pattern: str, text: str) -> bool:
    """Return True if a pattern that was checked is found anywhere in a text."""
    return _compiled_pattern(pattern).is_valid(text)


@lru_cache(maxsize=64)
def _compiled_pattern(pattern: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=_REGEX)


# The engine without backtracking: its time grows with the text, for every pattern.
_REGEX: Final = jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES_MAX, dfa_size_limit=1 << 18)
_SMALL_REGEX: Final = jsonschema_rs.RegexOptions(size_limit=_SMALL_PATTERN_BYTES_MAX, dfa_size_limit=1 << 18)

_DRAFT_4: Final = frozenset({"exclusiveMinimum", "exclusiveMaximum"})
_REMARKS: Final = frozenset(
    {"$ref", "$id", "id", "$anchor", "$schema", "$defs", "definitions", "format", "title", "description"}
)
_MAPS: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies"})
_budget: Final = threading.local()


class _Step:
    """The keyword that counts: its value is what a visit costs, by `_weights`."""

    def __init__(self, _parent: dict[str, Any], value: Any, _path: list[str | int]) -> None:
        self._own, self._patterns, self._text, self._deep = value

    def validate(self, instance: Any) -> None:
        steps = self._own
        if isinstance(instance, list | dict):
            steps += len(instance) >> 3
            if self._patterns and isinstance(instance, dict):
                steps += self._patterns * (MATCH_STEPS * len(instance) + (sum(map(len, instance)) >> 6))
            if self._deep:
                steps += _size(instance)
        elif self._text and isinstance(instance, str):
            steps += MATCH_STEPS + (len(instance) >> 6)
        _budget.steps -= steps
        if _budget.steps < 0:
            raise TooLongError


class _NoFraction:
    """The keyword by which 1.0 is no integer, as draft 4 has it."""

    def __init__(self, _parent: dict[str, Any], _value: Any, _path: list[str | int]) -> None:
        pass

    def validate(self, instance: Any) -> None:
        if isinstance(instance, float):
            raise TypeError("it is of type number, not integer")


def _modernise(part: dict[str, Json]) -> None:
    """Translate keywords of draft 4 to draft 7, as which the library validates them."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if part.pop(exclusive, False) is True and bound in part:
            part[exclusive] = part.pop(bound)
    types = part.get("type", ())
    if "integer" in types and "number" not in types:  # type: ignore[operator]
        part[_NO_FRACTION] = True


def _counted(weights: list[Json], part: Json) -> dict[str, Json]:
    """Return a subschema that applies only while steps are left; behind `allOf` it would apply when errors are built."""
    return {"if": {_STEP: weights}, "then": part, "else": False}


def _weights(part: dict[str, Json]) -> list[Json]:
    """Return the steps of a visit, the number of patterns for names, and whether texts are searched or values compared."""
    lists = ("enum", "required", "dependentRequired", "dependencies", "dependentSchemas", "allOf", "anyOf", "oneOf")
    listed = sum(len(value) for keyword in lists if isinstance(value := part.get(keyword), list | dict))
    patterns = part.get("patternProperties")
    return [
        1 + (listed >> 3),
        len(patterns) if isinstance(patterns, dict) else 0,
        "pattern" in part,
        part.get("uniqueItems") is True or "const" in part or "enum" in part,
    ]


def _is_cheap(part: dict[str, Json], known: frozenset[str]) -> bool:
    """Return True if a visit costs next to nothing, so that the visit of the subschema around it pays for it."""
    for keyword, value in part.items():
        if keyword not in known or keyword in _REMARKS - {"$ref"}:
            continue
        if is_applicator(keyword) or keyword in {"$ref", "pattern", "uniqueItems", "dependentRequired"}:
            return False
        if isinstance(value, list | dict) and (len(value) > _CHEAP_MAX or keyword == "const"):
            return False
        if keyword == "enum" and isinstance(value, list) and any(isinstance(one, list | dict) for one in value):
            return False
    return True


def _is_valid(validator: jsonschema_rs.Validator, value: Json, steps: int) -> bool:
    _budget.steps = steps
    valid = validator.is_valid(value)
    if _budget.steps < 0:
        raise TooLongError
    return valid


def _explain(validator: jsonschema_rs.Validator, value: Json) -> str:
    """Return the place and the reason of a refusal."""
    _budget.steps = EXPLAIN_STEPS
    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        if _budget.steps >= 0:
            place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
            return f"{place}: {_text_of(error)}"
    return ": it is not valid, and it takes too long to say where"


def _text_of(error: jsonschema_rs.ValidationError) -> str:
    match error.kind:
        case jsonschema_rs.ValidationErrorKind.Type(types=types):
            return f"it is of type {TYPE_NAMES[type(error.instance)]}, not {' or '.join(types)}"
        case jsonschema_rs.ValidationErrorKind.Required(property=name):
            return f"it has no {name!r}"
        case _:
            return error.message


def _size(value: Json) -> int:
    """Return the number of values in a value."""
    work, count = [value], 0
    while work:
        one = work.pop()
        count += 1
        if isinstance(one, list | dict):
            work += one if isinstance(one, list) else one.values()
    return count


def _is_deeper(value: Json, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        level = [
            inner
            for one in level
            if isinstance(one, list | dict)
            for inner in (one if isinstance(one, list) else one.values())
        ]
        if not level:
            return False
    return True


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is not fetched")
