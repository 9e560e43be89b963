"""Avro schemas: types as a graph, every name resolved, every default of its field's type.

A definition that is accepted here is accepted by fastavro, which decoders may use; tests compare the verdicts. fastavro
itself also accepts unions in unions, sizes that are not numbers, and records that contain themselves.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Final

from ister.schemas.avro.types import (
    INT_MAX,
    LONG_MAX,
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    Primitive,
    Record,
    Type,
    Union,
    word_for,
)
from ister.schemas.avro.wire import checker
from ister.schemas.document import canonical, fingerprint_of, load_json, refused, shown
from ister.schemas.kinds import SchemaType

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from ister.core.errors import InvalidRequestError
    from ister.schemas.document import Json

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
DEFAULT_STEPS_MAX: Final = 100_000
SIZE_MAX: Final = 1 << 24

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_LOGICAL: Final = {
    "decimal": {"bytes", "fixed"},
    "big-decimal": {"bytes"},
    "uuid": {"string", "fixed"},
    "date": {"int"},
    "time-millis": {"int"},
    "time-micros": {"long"},
    "timestamp-millis": {"long"},
    "timestamp-micros": {"long"},
    "timestamp-nanos": {"long"},
    "local-timestamp-millis": {"long"},
    "local-timestamp-micros": {"long"},
    "local-timestamp-nanos": {"long"},
    "duration": {"fixed"},
}
"""The logical types that are known, with the types that they may annotate; by Avro's rule the others are ignored."""


@dataclass(frozen=True, slots=True, eq=False)
class AvroSchema:
    """An Avro schema."""

    root: Type
    fingerprint: str
    check: Callable[[bytes], None]
    """Raises InvalidMessageError unless a payload is one value of this schema."""
    type: SchemaType = SchemaType.AVRO

    @classmethod
    def parse(cls, definition: bytes) -> Self:
        """Read a definition, or raise InvalidRequestError."""
        document = load_json(SchemaType.AVRO, definition)
        parser = _Parser()
        root = parser.parse(document, "", "$")
        _refuse_endless([named for named in parser.named.values() if isinstance(named, Record)])
        return cls(root, fingerprint_of(canonical(document).encode()), checker(root).check)


class _Parser:
    """Builds the graph, left to right: a name is known once its definition has begun."""

    def __init__(self) -> None:
        self.named: dict[str, Fixed | Enum | Record] = {}
        self._default_steps = 0

    def parse(self, node: Json, namespace: str, path: str) -> Type:
        if isinstance(node, str):
            return self._by_name(node, namespace, path)
        if isinstance(node, list):
            return self._union(node, namespace, path)
        if isinstance(node, dict) and isinstance(kind := node.get("type"), str):
            return self._by_kind(kind, node, namespace, path)
        raise _wrong(path, "is not a type")

    def _by_name(self, name: str, namespace: str, path: str) -> Type:
        if name in PRIMITIVES:
            return Primitive(name)
        found = self.named.get(_qualified(name, namespace))
        if found is None:
            raise _wrong(path, f"names the type {name!r}, which is not defined before it")
        return found

    def _union(self, node: list[Json], namespace: str, path: str) -> Union:
        branches = tuple(self.parse(one, namespace, f"{path}|{index}") for index, one in enumerate(node))
        if not branches:
            raise _wrong(path, "is a union of nothing")
        words = [word_for(branch) for branch in branches]
        if "union" in words:
            raise _wrong(path, "is a union directly in a union")
        if len(set(words)) != len(words):
            raise _wrong(path, "is a union that has one type twice")
        return Union(branches)

    def _by_kind(self, kind: str, node: dict[str, Json], namespace: str, path: str) -> Type:
        if node.get("logicalType") == "decimal":
            _check_decimal(kind, node, path)
        if kind in PRIMITIVES:
            return Primitive(kind, _logical(kind, node))
        match kind:
            case "array":
                return Array(self.parse(_part(node, "items", path), namespace, f"{path}[]"))
            case "map":
                return Map(self.parse(_part(node, "values", path), namespace, f"{path}{{}}"))
            case "fixed":
                name = self._new_name(node, namespace, path)
                fixed = Fixed(name, _type_aliases(node, name, path), _size(node, path), _logical(kind, node))
                self.named[name] = fixed
                return fixed
            case "enum":
                return self._enum(node, namespace, path)
            case "record" | "error":
                return self._record(node, namespace, path)
            case _:
                raise _wrong(path, f"is of the type {kind!r}, which does not exist")

    def _enum(self, node: dict[str, Json], namespace: str, path: str) -> Enum:
        name = self._new_name(node, namespace, path)
        symbols = node.get("symbols")
        if not isinstance(symbols, list) or not symbols:
            raise _wrong(path, "is an enum without symbols")
        words = tuple(_name(symbol, path) for symbol in symbols)
        if len(set(words)) != len(words):
            raise _wrong(path, "is an enum that has one symbol twice")
        default = node.get("default")
        if default is not None and default not in words:
            raise _wrong(path, "is an enum whose default is none of its symbols")
        enum = Enum(name, _type_aliases(node, name, path), words, default if isinstance(default, str) else None)
        self.named[name] = enum
        return enum

    def _record(self, node: dict[str, Json], namespace: str, path: str) -> Record:
        name = self._new_name(node, namespace, path)
        record = Record(name, _type_aliases(node, name, path))
        self.named[name] = record
        inner = name.rpartition(".")[0]
        fields = node.get("fields")
        if not isinstance(fields, list):
            raise _wrong(path, "is a record without fields")
        known: set[str] = set()
        for one in fields:
            if not isinstance(one, dict):
                raise _wrong(path, "has a field that is not an object")
            word = _name(one.get("name"), path)
            if word in known:
                raise _wrong(path, f"has the field {word!r} twice")
            known.add(word)
            place = f"{path}.{word}"
            kind = self.parse(_part(one, "type", place), inner, place)
            if "default" in one and not self._default_fits(one["default"], kind):
                raise _wrong(place, "has a default that is not of its type")
            record.fields.append(Field(word, tuple(_aliases(one, place)), kind, "default" in one))
        return record

    def _new_name(self, node: dict[str, Json], namespace: str, path: str) -> str:
        name, space = node.get("name"), node.get("namespace", namespace)
        if not isinstance(name, str) or not isinstance(space, str):
            raise _wrong(path, "has no name")
        full = name if "." in name else _qualified(name, space)
        if not all(_NAME.fullmatch(part) for part in full.split(".")):
            raise _wrong(path, f"has the name {full!r}, which is none in Avro")
        if full in self.named or full in PRIMITIVES:
            raise _wrong(path, f"defines {full!r} a second time")
        return full

    def _default_fits(self, value: Json, kind: Type) -> bool:
        """Return True if a default is of a type; for a union of any branch, as since Avro 1.12."""
        self._default_steps += 1
        if self._default_steps > DEFAULT_STEPS_MAX:
            raise refused(SchemaType.AVRO, "its defaults take too long to check")
        match kind:
            case Union():
                return any(self._default_fits(value, branch) for branch in kind.branches)
            case Array():
                return isinstance(value, list) and all(self._default_fits(one, kind.items) for one in value)
            case Map():
                return isinstance(value, dict) and all(self._default_fits(one, kind.values) for one in value.values())
            case Record():
                return isinstance(value, dict) and all(
                    self._default_fits(value[one.name], one.type) if one.name in value else one.has_default
                    for one in kind.fields
                )
            case Enum():
                return value in kind.symbols
            case Fixed():
                return _is_bytes(value) and len(str(value)) == kind.size
            case Primitive():
                return _primitive_fits(value, kind.kind)


def _primitive_fits(value: Json, kind: str) -> bool:
    match kind, value:
        case "boolean", bool():
            return True
        case _, bool():
            return False
        case "int" | "long", int():
            most = INT_MAX if kind == "int" else LONG_MAX
            return -most - 1 <= value <= most
        case ("null", None) | ("float" | "double", int() | float()) | ("string", str()):
            return True
        case _:
            return kind == "bytes" and _is_bytes(value)


def _is_bytes(value: Json) -> bool:
    """Return True if a text can stand for bytes: Avro writes byte n as the character n."""
    return isinstance(value, str) and all(ord(character) < 256 for character in value)


def _logical(kind: str, node: dict[str, Json]) -> str | None:
    """Return a logical type with what is part of it, None when there is none or none that holds for this type."""
    name = node.get("logicalType")
    if not isinstance(name, str) or kind not in _LOGICAL.get(name, ()):
        return None
    if name != "decimal":
        return name
    return f"decimal({node.get('precision')},{node.get('scale', 0)})"


def _check_decimal(kind: str, node: dict[str, Json], path: str) -> None:
    """Raise unless precision and scale, as far as they are given and not 0, fit each other and the size of a fixed."""
    scale, precision = node.get("scale") or 0, node.get("precision") or 0
    if not isinstance(scale, int) or scale < 0:
        raise _wrong(path, f"has a decimal scale that is no positive integer: {scale!r}")
    if not isinstance(precision, int) or precision < 0:
        raise _wrong(path, f"has a decimal precision that is no positive integer: {precision!r}")
    if kind == "fixed" and precision > max(0, math.floor(math.log10(2) * (8 * _size(node, path) - 1))):
        raise _wrong(path, "has a decimal precision that does not fit its size")
    if precision and precision < scale:
        raise _wrong(path, f"has a decimal scale of {scale}, more than its precision of {precision}")


def _type_aliases(node: dict[str, Json], name: str, path: str) -> frozenset[str]:
    namespace = name.rpartition(".")[0]
    return frozenset(_qualified(alias, namespace) for alias in _aliases(node, path))


def _aliases(node: dict[str, Json], path: str) -> list[str]:
    found = node.get("aliases", [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise _wrong(path, "has aliases that are not a list of names")
    return [str(one) for one in found]


def _qualified(name: str, namespace: str) -> str:
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _name(node: Json, path: str) -> str:
    if not isinstance(node, str) or _NAME.fullmatch(node) is None:
        raise _wrong(path, f"has the name {node!r}, which is none in Avro")
    return node


def _size(node: dict[str, Json], path: str) -> int:
    size = node.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= SIZE_MAX:
        raise _wrong(path, f"has a size that is no number from 0 to {SIZE_MAX}")
    return size


def _part(node: dict[str, Json], key: str, path: str) -> Json:
    if key not in node:
        raise _wrong(path, f"has no {key!r}")
    return node[key]


def _wrong(path: str, reason: str) -> InvalidRequestError:
    return refused(SchemaType.AVRO, f"{shown(path)} {reason}")


def _refuse_endless(records: list[Record]) -> None:
    """Raise when a record is a part of itself: a list ends and an array can be empty, but such a record never ends."""
    parts = {one.name: [f.type.name for f in one.fields if isinstance(f.type, Record)] for one in records}
    try:
        TopologicalSorter(parts).prepare()
    except CycleError as error:
        raise refused(SchemaType.AVRO, f"the record {error.args[1][0]} is a part of itself, without an end") from None
