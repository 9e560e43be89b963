"""Columns of a Protobuf schema, and the decoder of Protobuf payloads.

A message is a struct, a repeated field a list, a map a map whose keys are texts, an enum the name of its value (or its
number, as a text, when it has no name). `uint64` and `fixed64` are decimals of 20 digits. The wrappers of google.protobuf
are what they wrap, its Struct, Value and ListValue are the JSON that they stand for. Its Timestamp and Duration are
structs of seconds and nanos as everywhere on the wire: Iceberg has no column for nanoseconds. What leads back to itself,
and a message without fields, is JSON.

A singular field that is not on the wire is null. In proto3 a field without `optional` is not written when it is 0, false
or empty, so there it is that and never null.

The library is not used, for the reasons in protobuf/wire.py. The tests hold this reader against it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from ister.schemas.columns.cells import FieldBudget, UndecodableError, as_json
from ister.schemas.columns.types import Decimal, Field, List, Map, Primitive, Room, Struct, rooted
from ister.schemas.protobuf.wire import (
    BYTES,
    GROUP,
    WIRE,
    into_group,
    into_groups,
    into_list,
    into_map,
    into_messages,
    into_packed,
    into_pieces,
    into_scalar,
    read_message,
    scalar_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ister.schemas.columns.cells import Value
    from ister.schemas.columns.types import Shape
    from ister.schemas.protobuf.schema import ProtobufSchema
    from ister.schemas.protobuf.types import Field as ProtoField
    from ister.schemas.protobuf.types import Message
    from ister.schemas.protobuf.wire import FieldReader, Read, Row, Scalar

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
    reading = _Reading(schema)
    read = reading.message(schema.root, shape)
    bare = not isinstance(shape, Struct)

    def whole(payload: bytes) -> Value:
        reading.fields.begin(payload)
        try:
            value = read(payload, 0, len(payload), 0)[0]
        except (IndexError, struct.error):
            raise UndecodableError("ends too early") from None
        except UnicodeDecodeError:
            raise UndecodableError("holds a string that is not UTF-8") from None
        return {"value": value} if bare else value

    return whole


def _shape(schema: ProtobufSchema) -> Shape:
    return _Shapes(schema).message(schema.root, frozenset(), 0)


def map_entry(message: Message, one: ProtoField, messages: dict[str, Message]) -> Message | None:
    """Return the entry of a field that is a map: what `map<…>` is turned into, by its name and its fields."""
    if not one.repeated or one.kind != "message" or one.target is None:
        return None
    camel = "".join(part[:1].upper() + part[1:] for part in one.name.split("_"))
    entry = messages[one.target]
    if entry.name != f"{message.name}.{camel}Entry" or set(entry.fields) != {1, 2}:
        return None
    key, value = entry.fields[1], entry.fields[2]
    if (key.name, value.name) != ("key", "value") or key.repeated or value.repeated:
        return None
    return entry


class _Shapes:
    """Goes through the messages from one of them."""

    def __init__(self, schema: ProtobufSchema) -> None:
        self._messages = schema.messages
        self._room = Room()

    def message(self, name: str, around: frozenset[str], depth: int) -> Shape:
        message = self._messages[name]
        if name in _WRAPPERS:
            return _SHAPES[message.fields[1].kind]
        if name in around or name in _JSON_MESSAGES or not message.fields:
            return Primitive.JSON
        if not self._room.take(len(message.fields), depth + 1):
            return Primitive.JSON
        inner = around | {name}
        return Struct(
            tuple(Field(one.name, self._field(message, one, inner, depth + 1)) for one in message.fields.values())
        )

    def _field(self, message: Message, one: ProtoField, around: frozenset[str], depth: int) -> Shape:
        if not one.repeated:
            return self._single(one, around, depth)
        if not self._room.take(1, depth + 1):
            return Primitive.JSON
        entry = map_entry(message, one, self._messages)
        part = self._single(one if entry is None else entry.fields[2], around, depth + 1)
        if part is Primitive.JSON:
            return Primitive.JSON
        return List(part) if entry is None else Map(part)

    def _single(self, one: ProtoField, around: frozenset[str], depth: int) -> Shape:
        if one.kind not in {"message", "group"}:
            return _SHAPES[one.kind]
        assert one.target is not None, "a message has a type"
        return self.message(one.target, around, depth)


class _Reading:
    """Makes a function of each message."""

    def __init__(self, schema: ProtobufSchema) -> None:
        self._messages = schema.messages
        self._enums = schema.enums
        self._as_json: dict[str, Read] = {}
        self.fields = FieldBudget()

    def message(self, name: str, shape: Shape) -> Read:
        if shape is Primitive.JSON:
            return self._json(name)
        fields = shape.fields if isinstance(shape, Struct) else (Field("value", shape),)
        return self._made(self._messages[name], {one.name: one.shape for one in fields}, name in _WITHOUT_PRESENCE)

    def _json(self, name: str) -> Read:
        """Return the reader of a message that becomes JSON; made when first needed, for messages lead in circles."""
        if name not in self._as_json:
            made: list[Read] = []

            def read(data: bytes, at: int, stop: int, group: int) -> tuple[Value, int]:
                if not made:
                    message = self._messages[name]
                    shapes: dict[str, Shape] = dict.fromkeys(
                        (one.name for one in message.fields.values()), Primitive.JSON
                    )
                    made.append(self._made(message, shapes, name in _WITHOUT_PRESENCE))
                return made[0](data, at, stop, group)

            self._as_json[name] = read
        return self._as_json[name]

    def _made(self, message: Message, shapes: Mapping[str, Shape], fill: bool) -> Read:  # noqa: FBT001  # a fact of the message
        """Return the reader of a message; `fill` when a field that is not there stands for 0 or nothing."""
        places: dict[int, FieldReader] = {}
        late: list[tuple[str, Read]] = []
        absent: list[tuple[str, Callable[[], Value]]] = []
        for one in message.fields.values():
            shape, name, tag = shapes[one.name], one.name, one.number << 3
            rivals = _rivals(message, one)
            entry = map_entry(message, one, self._messages)
            if entry is not None:
                value = shape.value if isinstance(shape, Map) else shape
                inner = {"key": _SHAPES[entry.fields[1].kind], "value": value}
                places[tag | BYTES] = into_map(name, self._made(entry, inner, fill=True))
                absent.append((name, dict))
                continue
            part = shape.element if isinstance(shape, List) else shape
            if one.repeated:
                absent.append((name, list))
            elif fill or one.implicit:
                absent.append((name, self._nothing(one, part)))
            if one.kind not in {"message", "group"}:
                scalar = self._scalar(one, part)
                places[tag | WIRE[one.kind]] = (
                    into_list(name, scalar) if one.repeated else into_scalar(name, rivals, scalar)
                )
                if one.repeated and WIRE[one.kind] != BYTES:
                    places[tag | BYTES] = into_packed(name, scalar)
                continue
            read = self.message(_target(one), part)
            if one.kind == "group":
                places[tag | GROUP] = (
                    into_groups(name, one.number, read) if one.repeated else into_group(name, one.number, rivals, read)
                )
            elif one.repeated:
                places[tag | BYTES] = into_messages(name, read)
            else:
                places[tag | BYTES] = into_pieces(name, rivals)
                late.append((name, read))
        finish = _FINISH.get(message.name, _as_it_is)
        return read_message(places, frozenset(message.fields), late, absent, finish, self.fields)

    def _scalar(self, one: ProtoField, shape: Shape) -> Scalar:
        scalar = scalar_of(one.kind, self._names(one))
        if shape is not Primitive.JSON:
            return scalar
        convert = as_json(_SHAPES[one.kind])

        def read(data: bytes, at: int) -> tuple[Value, int]:
            value, at = scalar(data, at)
            return convert(value), at  # type: ignore[return-value]  # JSON is made of values

        return read

    def _nothing(self, one: ProtoField, shape: Shape) -> Callable[[], Value]:
        """Return what makes the value of a field that is not there."""
        if one.kind in {"message", "group"}:
            read = self.message(_target(one), shape)
            return lambda: read(b"", 0, 0, 0)[0]
        scalar = self._scalar(one, shape)
        return lambda: scalar(bytes(8), 0)[0]

    def _names(self, one: ProtoField) -> dict[int, str]:
        if one.kind != "enum":
            return {}
        names: dict[int, str] = {}
        for name, number in self._enums[_target(one)].values.items():
            names.setdefault(number, name)
        return names


def _target(one: ProtoField) -> str:
    assert one.target is not None, "a message or an enum has a type"
    return one.target


def _rivals(message: Message, one: ProtoField) -> list[str]:
    """Return the other fields of a field's oneof."""
    if one.oneof is None:
        return []
    return [other.name for other in message.fields.values() if other.oneof == one.oneof and other is not one]


def _as_it_is(row: Row) -> Value:
    return row


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
