"""Columns of a Protobuf schema, and the decoder and the checker of Protobuf payloads.

A message is a struct, a repeated field a list, a map a map whose keys are texts, an enum the name of its value (or its
number, as a text, when it has no name). `uint64` and `fixed64` are decimals of 20 digits. The wrappers of google.protobuf
are what they wrap, its Struct, Value and ListValue are the JSON that they stand for. Its Timestamp and Duration are
structs of seconds and nanos as everywhere on the wire: Iceberg has no column for nanoseconds. What leads back to itself,
and a message without fields, is JSON.

A singular field that is not on the wire is null. In proto3 a field without `optional` is not written when it is 0, false
or empty, so there it is that and never null.

The library is not used, for the reasons in protobuf/wire.py. The tests compare this decoder with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ister.schemas.columns.types import ColumnBudget, Decimal, Field, List, Map, Primitive, Struct, rooted
from ister.schemas.protobuf.parse import map_entry_name
from ister.schemas.protobuf.wire import BYTES, GROUP, WIRE, Walker
from ister.schemas.walk import Checker, decoder, read_as_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ister.schemas.columns.cells import Value
    from ister.schemas.columns.types import Shape
    from ister.schemas.protobuf.schema import ProtobufSchema
    from ister.schemas.protobuf.types import Enum, Message
    from ister.schemas.protobuf.types import Field as ProtoField
    from ister.schemas.protobuf.wire import FieldReader, ReadMessage, Row
    from ister.schemas.walk import Read

_GOOGLE: Final = "google.protobuf."
_WRAPPERS: Final = frozenset(
    f"{_GOOGLE}{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_WITHOUT_PRESENCE: Final = _WRAPPERS | {f"{_GOOGLE}Timestamp", f"{_GOOGLE}Duration"}
"""Messages that are known to leave out what is 0 or empty."""
_JSON_MESSAGES: Final = frozenset({f"{_GOOGLE}Struct", f"{_GOOGLE}Value", f"{_GOOGLE}ListValue"})
_SHAPES: Final[dict[str, Shape]] = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), Primitive.INT),
    **dict.fromkeys(("int64", "sint64", "sfixed64", "uint32", "fixed32"), Primitive.LONG),
    **dict.fromkeys(("uint64", "fixed64"), Decimal(20, 0)),
    "float": Primitive.FLOAT,
    "double": Primitive.DOUBLE,
    "bool": Primitive.BOOLEAN,
    "string": Primitive.STRING,
    "bytes": Primitive.BINARY,
    "enum": Primitive.STRING,
}


def shape_of(schema: ProtobufSchema) -> Struct:
    """Return the shape of a schema's values."""
    return rooted(_shape(schema))


def reader(schema: ProtobufSchema) -> Callable[[bytes], Value]:
    """Return the decoder of payloads, which raises UndecodableError."""
    shape = _shape(schema)
    return decoder(_Compiler(schema.messages, schema.enums, build=True).walk(schema.root, shape), shape)


def checker(root: str, messages: Mapping[str, Message], enums: Mapping[str, Enum]) -> Checker:
    """Return the checker of payloads that are one message of this name."""
    return Checker("Protobuf", lambda: _Compiler(messages, enums, build=False).walk(root, Primitive.JSON))


def _shape(schema: ProtobufSchema) -> Shape:
    return _Shapes(schema).message(schema.root, frozenset(), 0)


def map_entry(message: Message, one: ProtoField, messages: Mapping[str, Message]) -> Message | None:
    """Return the entry of a field that is a map: what `map<…>` is turned into, by its name and its fields."""
    if not one.repeated or one.kind != "message" or one.target is None:
        return None
    entry = messages[one.target]
    if entry.name != f"{message.name}.{map_entry_name(one.name)}" or set(entry.fields) != {1, 2}:
        return None
    key, value = entry.fields[1], entry.fields[2]
    if (key.name, value.name) != ("key", "value") or key.repeated or value.repeated:
        return None
    return entry


class _Shapes:
    """Derives shapes from messages."""

    def __init__(self, schema: ProtobufSchema) -> None:
        self._messages = schema.messages
        self._budget = ColumnBudget()

    def message(self, name: str, around: frozenset[str], depth: int) -> Shape:
        message = self._messages[name]
        if name in _WRAPPERS:
            return _SHAPES[message.fields[1].kind]
        if name in around or name in _JSON_MESSAGES or not message.fields:
            return Primitive.JSON
        if not self._budget.take(len(message.fields), depth + 1):
            return Primitive.JSON
        inner = around | {name}
        return Struct(
            tuple(Field(one.name, self._field(message, one, inner, depth + 1)) for one in message.fields.values())
        )

    def _field(self, message: Message, one: ProtoField, around: frozenset[str], depth: int) -> Shape:
        if not one.repeated:
            return self._single(one, around, depth)
        if not self._budget.take(1, depth + 1):
            return Primitive.JSON
        entry = map_entry(message, one, self._messages)
        part = self._single(one if entry is None else entry.fields[2], around, depth + 1)
        if part is Primitive.JSON:
            return Primitive.JSON
        return List(part) if entry is None else Map(part)

    def _single(self, one: ProtoField, around: frozenset[str], depth: int) -> Shape:
        if one.kind not in {"message", "group"}:
            return _SHAPES[one.kind]
        return self.message(one.type_name, around, depth)


class _Compiler:
    """Compiles messages to functions that read them. For a check every field is read as one of many, which are dropped."""

    def __init__(self, messages: Mapping[str, Message], enums: Mapping[str, Enum], *, build: bool) -> None:
        self._messages = messages
        self._enums = enums
        self._build = build
        self._walker = Walker(build=build)

    def walk(self, root: str, shape: Shape) -> Callable[[bytes], Value]:
        return self._walker.walk(self._message(root, shape))

    def _message(self, name: str, shape: Shape) -> ReadMessage:
        message = self._messages[name]
        if shape is Primitive.JSON:
            shapes: dict[str, Shape] = dict.fromkeys((one.name for one in message.fields.values()), shape)
            return self._walker.late(name, lambda: self._compile(message, shapes, name in _WITHOUT_PRESENCE))
        fields = shape.fields if isinstance(shape, Struct) else (Field("value", shape),)
        return self._compile(message, {one.name: one.shape for one in fields}, name in _WITHOUT_PRESENCE)

    def _compile(self, message: Message, shapes: Mapping[str, Shape], fill: bool) -> ReadMessage:  # noqa: FBT001  # a fact of the message
        """Return the reader of a message; `fill` when a field that is not there stands for 0 or nothing."""
        walker = self._walker
        fields: dict[int, FieldReader] = {}
        late: list[tuple[str, ReadMessage]] = []
        absent: list[tuple[str, Callable[[], Value]]] = []
        for one in message.fields.values():
            shape, name, tag, wire = shapes[one.name], one.name, one.number << 3, WIRE[one.kind]
            many, rivals = one.repeated or not self._build, _rivals(message, one)
            entry = map_entry(message, one, self._messages) if self._build else None
            if entry is not None:
                value = shape.value if isinstance(shape, Map) else shape
                inner = {"key": _SHAPES[entry.fields[1].kind], "value": value}
                fields[tag | BYTES] = walker.entries(name, self._compile(entry, inner, fill=True))
                absent.append((name, dict))
                continue
            part = shape.element if isinstance(shape, List) else shape
            if self._build and one.repeated:
                absent.append((name, list))
            elif self._build and (fill or one.implicit):
                absent.append((name, self._nothing(one, part)))
            if one.kind not in {"message", "group"}:
                scalar = self._scalar(one, part)
                fields[tag | wire] = walker.many(name, scalar) if many else walker.one(name, rivals, scalar)
                if one.repeated and wire != BYTES:
                    fields[tag | BYTES] = walker.packed(name, scalar)
                continue
            read = self._message(one.type_name, part)
            if wire == GROUP and many:
                fields[tag | wire] = walker.many(name, _group(read, one.number))
            elif wire == GROUP:
                fields[tag | wire] = walker.group(name, one.number, rivals, read)
            elif many:
                fields[tag | wire] = walker.messages(name, read)
            else:
                fields[tag | wire] = walker.pieces(name, rivals)
                late.append((name, read))
        if not self._build:
            return walker.message(
                message, fields, required=[one.name for one in message.fields.values() if one.required]
            )
        return walker.message(message, fields, late=late, absent=absent, finish=_FINISH.get(message.name))

    def _scalar(self, one: ProtoField, shape: Shape) -> Read:
        scalar = self._walker.scalar(one.kind, self._names(one))
        return read_as_json(scalar, _SHAPES[one.kind]) if shape is Primitive.JSON and self._build else scalar

    def _nothing(self, one: ProtoField, shape: Shape) -> Callable[[], Value]:
        """Return what makes the value of a field that is not there."""
        if one.kind in {"message", "group"}:
            read = self._message(one.type_name, shape)
            return lambda: read(b"", 0, 0, 0)[0]
        scalar = self._scalar(one, shape)
        return lambda: scalar(bytes(8), 0)[0]

    def _names(self, one: ProtoField) -> dict[int, str]:
        if one.kind != "enum":
            return {}
        # Of two names for one number the first counts.
        return {number: name for name, number in reversed(self._enums[one.type_name].values.items())}


def _group(read: ReadMessage, number: int) -> Read:
    return lambda data, at: read(data, at, len(data), number)


def _rivals(message: Message, one: ProtoField) -> list[str]:
    """Return the other fields of a field's oneof."""
    if one.oneof is None:
        return []
    return [other.name for other in message.fields.values() if other.oneof == one.oneof and other is not one]


def _value(row: Row) -> Value:
    """Return what a google.protobuf.Value stands for: the one that is there, and null for its null."""
    row.pop("null_value", None)
    return next(iter(row.values()), None)


_FINISH: Final[dict[str, Callable[[Row], Value]]] = {
    **dict.fromkeys(_WRAPPERS, lambda row: row["value"]),
    f"{_GOOGLE}Struct": lambda row: row["fields"],
    f"{_GOOGLE}ListValue": lambda row: row["values"],
    f"{_GOOGLE}Value": _value,
}
"""What messages with a meaning of their own become."""
