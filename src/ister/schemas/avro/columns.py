"""Columns of an Avro schema, and the decoder of Avro payloads.

Records, lists, maps and a union of null and one other type are what they look like; logical types that Iceberg has are
used. A time of day is a text, `12:30:00.000000`, because Spark cannot read a table with a column of times. Nanoseconds are
longs, because timestamps have microseconds; a duration is a struct. Other unions, what leads back to itself, a record
without fields and a decimal of more than 38 digits are JSON. What is always null has no column. A field that is renamed is
another field to us: aliases name no columns.

fastavro is not used, for the reasons in avro/wire.py; to check with our code and then decode with fastavro
would go through every payload twice. The tests hold this reader against it.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Final

from ister.schemas.avro.types import Array, Enum, Fixed, Record, Union
from ister.schemas.avro.types import Map as AvroMap
from ister.schemas.avro.types import Primitive as AvroPrimitive
from ister.schemas.avro.wire import (
    READERS,
    big_decimal,
    decimal_of,
    duration,
    enum,
    long,
    millis,
    sized,
    string,
    time_of_day,
    uuid,
)
from ister.schemas.columns.cells import FieldBudget, UndecodableError, as_json
from ister.schemas.columns.types import DECIMAL_DIGITS_MAX, Decimal, Field, List, Map, Primitive, Room, Struct, rooted

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.schemas.avro.schema import AvroSchema
    from ister.schemas.avro.types import Type
    from ister.schemas.avro.wire import Read
    from ister.schemas.columns.cells import Value
    from ister.schemas.columns.types import Shape

ITEMS_SPARE: Final = 64
"""Items of lists and maps beyond one for each byte of a payload: those that take no bytes would have no end."""

_DECIMAL = re.compile(r"decimal\((\d{1,3}),(\d{1,3})\)", re.ASCII)
"""One of more than 999 digits stays in bytes: a byte of it could be a text of megabytes."""
_LOGICAL: Final[dict[str, Shape]] = {
    "date": Primitive.DATE,
    "time-millis": Primitive.STRING,
    "time-micros": Primitive.STRING,
    "timestamp-millis": Primitive.TIMESTAMPTZ,
    "timestamp-micros": Primitive.TIMESTAMPTZ,
    "local-timestamp-millis": Primitive.TIMESTAMP,
    "local-timestamp-micros": Primitive.TIMESTAMP,
    "uuid": Primitive.STRING,
    "big-decimal": Primitive.JSON,
    "duration": Struct(tuple(Field(name, Primitive.LONG) for name in ("months", "days", "milliseconds"))),
}
_PLAIN: Final[dict[str, Shape]] = {
    "boolean": Primitive.BOOLEAN,
    "int": Primitive.INT,
    "long": Primitive.LONG,
    "float": Primitive.FLOAT,
    "double": Primitive.DOUBLE,
    "bytes": Primitive.BINARY,
    "string": Primitive.STRING,
}


def shape_of(schema: AvroSchema) -> Struct:
    """Return the shape of a schema's values."""
    return rooted(_shape(schema.root, frozenset(), 0, Room()))


def reader(schema: AvroSchema) -> Callable[[bytes], Value]:
    """Return the decoder of payloads, which raises UndecodableError."""
    shape = _shape(schema.root, frozenset(), 0, Room())
    reading = _Reading()
    read = reading.of(schema.root, shape)
    bare = not isinstance(shape, Struct)

    def whole(payload: bytes) -> Value:
        reading.items_left = len(payload) + ITEMS_SPARE
        reading.fields.begin(payload)
        try:
            value, stop = read(payload, 0)
        except (IndexError, struct.error):
            raise UndecodableError("ends too early") from None
        except UnicodeDecodeError:
            raise UndecodableError("holds a string that is not UTF-8") from None
        if stop != len(payload):
            raise UndecodableError(f"ends at byte {stop}, and {len(payload) - stop} bytes follow")
        return {"value": value} if bare else value

    return whole


def _shape(kind: Type, around: frozenset[int], depth: int, room: Room) -> Shape | None:
    """Return the shape of a type, None when it is always null."""
    match kind:
        case AvroPrimitive() | Fixed() | Enum():
            return _leaf(kind)
        case Union():
            return _union(kind, around, depth, room)
        case Record():
            if id(kind) in around or not room.take(len(kind.fields), depth + 1):
                return Primitive.JSON
            inner = around | {id(kind)}
            shapes = ((one.name, _shape(one.type, inner, depth + 1, room)) for one in kind.fields)
            fields = tuple(Field(name, shape) for name, shape in shapes if shape is not None)
            return Struct(fields) if fields else Primitive.JSON
        case Array() | AvroMap():
            if not room.take(1, depth + 1):
                return Primitive.JSON
            part = _shape(kind.items if isinstance(kind, Array) else kind.values, around, depth + 1, room)
            if part is None or part is Primitive.JSON:
                return Primitive.JSON
            return List(part) if isinstance(kind, Array) else Map(part)


def _union(kind: Union, around: frozenset[int], depth: int, room: Room) -> Shape | None:
    others = [one for one in kind.branches if not _is_null(one)]
    if not others:
        return None
    return _shape(others[0], around, depth, room) if len(others) == 1 else Primitive.JSON


def _leaf(kind: AvroPrimitive | Fixed | Enum) -> Shape | None:
    if isinstance(kind, Enum):
        return Primitive.STRING
    digits = _digits(kind)
    if digits is not None:
        return Decimal(*digits) if digits[0] <= DECIMAL_DIGITS_MAX else Primitive.JSON
    if kind.logical in _LOGICAL and _fits_its_size(kind):
        return _LOGICAL[kind.logical]
    return Primitive.BINARY if isinstance(kind, Fixed) else _PLAIN.get(kind.kind)


def _digits(kind: AvroPrimitive | Fixed) -> tuple[int, int] | None:
    """Return a decimal's precision and scale, None when it is none, or not a valid one, which Avro has us ignore."""
    found = _DECIMAL.fullmatch(kind.logical or "")
    if found is None:
        return None
    precision, scale = int(found[1]), int(found[2])
    return (precision, scale) if 0 <= scale <= precision and precision else None


def _fits_its_size(kind: AvroPrimitive | Fixed) -> bool:
    return isinstance(kind, AvroPrimitive) or (kind.logical, kind.size) in {("uuid", 16), ("duration", 12)}


def _is_null(kind: Type) -> bool:
    return isinstance(kind, AvroPrimitive) and kind.kind == "null"


class _Reading:
    """Makes a function of each type, which returns a value and where it ends."""

    def __init__(self) -> None:
        self.items_left = 0
        self.fields = FieldBudget()
        self._as_json: dict[int, Read] = {}

    def of(self, kind: Type, shape: Shape | None) -> Read:
        match kind:
            case AvroPrimitive() | Fixed() | Enum():
                return _read_leaf(kind)
            case _ if shape is None or shape is Primitive.JSON:
                return self._json(kind)
            case Union():
                return _pick([self.of(one, None if _is_null(one) else shape) for one in kind.branches])
            case Record():
                assert isinstance(shape, Struct), "a record that is not JSON is a struct"
                shapes = {one.name: one.shape for one in shape.fields}
                return self._record([(one.name, self.of(one.type, shapes.get(one.name))) for one in kind.fields])
            case Array():
                assert isinstance(shape, List), "an array that is not JSON is a list"
                return self._list(self.of(kind.items, shape.element))
            case AvroMap():
                assert isinstance(shape, Map), "a map that is not JSON is a map"
                return self._map(self.of(kind.values, shape.value))

    def _json(self, kind: Type) -> Read:
        """Return the reader of a type whose values become JSON; made when first needed, for types lead in circles."""
        if id(kind) not in self._as_json:
            made: list[Read] = []

            def read(data: bytes, at: int) -> tuple[Value, int]:
                if not made:
                    made.append(self._made_json(kind))
                return made[0](data, at)

            self._as_json[id(kind)] = read
        return self._as_json[id(kind)]

    def _made_json(self, kind: Type) -> Read:
        match kind:
            case AvroPrimitive() | Fixed() | Enum():
                return _leaf_as_json(kind)
            case Union():
                return _pick([self._json(one) for one in kind.branches])
            case Record():
                return self._record([(one.name, self._json(one.type)) for one in kind.fields])
            case Array():
                return self._list(self._json(kind.items))
            case AvroMap():
                return self._map(self._json(kind.values))

    def _record(self, fields: list[tuple[str, Read]]) -> Read:
        def read(data: bytes, at: int) -> tuple[Value, int]:
            self.fields.take(len(fields))
            row: dict[str, Value] = {}
            for name, field in fields:
                row[name], at = field(data, at)
            return row, at

        return read

    def _list(self, item: Read) -> Read:
        def read(data: bytes, at: int) -> tuple[Value, int]:
            found: list[Value] = []
            count, at, stop = self._block(data, at)
            while count:
                for _ in range(count):
                    value, at = item(data, at)
                    found.append(value)
                _check_stop(at, stop)
                count, at, stop = self._block(data, at)
            return found, at

        return read

    def _map(self, item: Read) -> Read:
        def read(data: bytes, at: int) -> tuple[Value, int]:
            found: dict[str, Value] = {}
            count, at, stop = self._block(data, at)
            while count:
                for _ in range(count):
                    name, at = string(data, at)
                    found[name], at = item(data, at)
                _check_stop(at, stop)
                count, at, stop = self._block(data, at)
            return found, at

        return read

    def _block(self, data: bytes, at: int) -> tuple[int, int, int | None]:
        """Read how many items follow, and where they end if the block has its size."""
        count, at = long(data, at)
        stop = None
        if count < 0:
            size, at = long(data, at)
            count, stop = -count, at + size
        self.items_left -= count
        if self.items_left < 0:
            raise UndecodableError("says that it holds more items than it can")
        return count, at, stop


def _check_stop(at: int, stop: int | None) -> None:
    if stop is not None and at != stop:
        raise UndecodableError(f"has a block that says it ends at byte {stop}, and ends at {at}")


def _pick(branches: list[Read]) -> Read:
    def read(data: bytes, at: int) -> tuple[Value, int]:
        index, at = long(data, at)
        if not 0 <= index < len(branches):
            raise UndecodableError(f"takes branch {index} of a union of {len(branches)}")
        return branches[index](data, at)

    return read


def _leaf_as_json(kind: AvroPrimitive | Fixed | Enum) -> Read:
    shape = _leaf(kind)
    read = _read_leaf(kind)
    if shape is None or shape in {Primitive.JSON, Primitive.STRING, Primitive.INT, Primitive.LONG, Primitive.BOOLEAN}:
        return read
    convert = as_json(shape)

    def read_as_json(data: bytes, at: int) -> tuple[Value, int]:
        value, at = read(data, at)
        return convert(value), at  # type: ignore[return-value]  # JSON is made of values

    return read_as_json


def _read_leaf(kind: AvroPrimitive | Fixed | Enum) -> Read:
    if isinstance(kind, Enum):
        return enum(kind.symbols)
    read = sized(kind.size) if isinstance(kind, Fixed) else READERS[kind.kind]
    digits = _digits(kind)
    if digits is not None:
        return _then(read, lambda value: decimal_of(value, *digits))
    if not _fits_its_size(kind):
        return read
    match kind.logical:
        case "timestamp-millis" | "local-timestamp-millis":
            return _then(read, millis)
        case "time-millis":
            return _then(read, lambda value: time_of_day(millis(value)))
        case "time-micros":
            return _then(read, time_of_day)
        case "uuid" if isinstance(kind, Fixed):
            return _then(read, uuid)
        case "duration":
            return _then(read, duration)
        case "big-decimal":
            return _then(read, big_decimal)
        case _:
            return read


def _then(read: Read, convert: Callable[[Value], Value]) -> Read:
    def both(data: bytes, at: int) -> tuple[Value, int]:
        value, at = read(data, at)
        return convert(value), at

    return both
