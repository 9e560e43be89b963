"""Columns of an Avro schema, and the decoder of Avro payloads.

Records, lists, maps and a union of null and one other type are the corresponding columns; logical types that Iceberg has
are used. A time of day is a text, `12:30:00.000000`, because Spark cannot read a table with a column of times. Nanoseconds are
longs, because timestamps have microseconds; a duration is a struct. Other unions, what leads back to itself, a record
without fields and a decimal of more than 38 digits are JSON. What is always null has no column. A field that is renamed is
another field to us: aliases name no columns.

fastavro is not used, for the reasons in avro/wire.py. The tests compare this decoder with it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ister.schemas.avro.types import Array, Enum, Fixed, Record, Union
from ister.schemas.avro.types import Map as AvroMap
from ister.schemas.avro.types import Primitive as AvroPrimitive
from ister.schemas.avro.wire import Walker, basic, big_decimal, decimal_of, duration, millis, time_of_day, uuid
from ister.schemas.columns.types import (
    DECIMAL_DIGITS_MAX,
    ColumnBudget,
    Decimal,
    Field,
    List,
    Map,
    Primitive,
    Struct,
    rooted,
)
from ister.schemas.walk import Budget, converted, decoder, field_budget, read_as_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.schemas.avro.schema import AvroSchema
    from ister.schemas.avro.types import Leaf, Type
    from ister.schemas.columns.cells import Value
    from ister.schemas.columns.types import Shape
    from ister.schemas.walk import Read

ITEMS_SPARE: Final = 64
"""Items of lists and maps beyond one for each byte of a payload: those that take no bytes would be unbounded."""

_DECIMAL = re.compile(r"decimal\((\d{1,3}),(\d{1,3})\)", re.ASCII)
"""One of more than 999 digits stays in bytes: a byte of it could be a text of megabytes."""
_LOGICAL: Final[dict[str, tuple[Shape, Callable[[Value], Value] | None]]] = {
    "date": (Primitive.DATE, None),
    "time-millis": (Primitive.STRING, lambda value: time_of_day(millis(value))),
    "time-micros": (Primitive.STRING, time_of_day),
    "timestamp-millis": (Primitive.TIMESTAMPTZ, millis),
    "timestamp-micros": (Primitive.TIMESTAMPTZ, None),
    "local-timestamp-millis": (Primitive.TIMESTAMP, millis),
    "local-timestamp-micros": (Primitive.TIMESTAMP, None),
    "uuid": (Primitive.STRING, None),
    "uuid of 16 bytes": (Primitive.STRING, uuid),
    "big-decimal": (Primitive.JSON, big_decimal),
    "duration of 12 bytes": (
        Struct(tuple(Field(name, Primitive.LONG) for name in ("months", "days", "milliseconds"))),
        duration,
    ),
}
"""The column of a logical type, and what converts its values."""
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
    return rooted(_shape(schema.root, frozenset(), 0, ColumnBudget()))


def reader(schema: AvroSchema) -> Callable[[bytes], Value]:
    """Return the decoder of payloads, which raises UndecodableError."""
    shape = _shape(schema.root, frozenset(), 0, ColumnBudget())
    items = Budget(ITEMS_SPARE, 1, "says that it holds more items than it can")
    return decoder(Walker(_read_leaf, build=True, fields=field_budget(), items=items).walk(schema.root, shape), shape)


def _shape(kind: Type, around: frozenset[int], depth: int, budget: ColumnBudget) -> Shape | None:
    """Return the shape of a type, None when it is always null."""
    match kind:
        case AvroPrimitive() | Fixed() | Enum():
            return _leaf(kind)[0]
        case Union():
            if len(kind.not_null) > 1:
                return Primitive.JSON
            return _shape(kind.not_null[0], around, depth, budget) if kind.not_null else None
        case Record():
            if id(kind) in around or not budget.take(len(kind.fields), depth + 1):
                return Primitive.JSON
            inner = around | {id(kind)}
            shapes = ((one.name, _shape(one.type, inner, depth + 1, budget)) for one in kind.fields)
            fields = tuple(Field(name, shape) for name, shape in shapes if shape is not None)
            return Struct(fields) if fields else Primitive.JSON
        case Array() | AvroMap():
            if not budget.take(1, depth + 1):
                return Primitive.JSON
            part = _shape(kind.items if isinstance(kind, Array) else kind.values, around, depth + 1, budget)
            if part is None or part is Primitive.JSON:
                return Primitive.JSON
            return List(part) if isinstance(kind, Array) else Map(part)


def _leaf(kind: Leaf) -> tuple[Shape | None, Callable[[Value], Value] | None]:
    """Return the shape of a type without parts, and what converts its values from the basic type."""
    if isinstance(kind, Enum):
        return Primitive.STRING, None
    digits = _digits(kind)
    if digits is not None:
        shape = Decimal(*digits) if digits[0] <= DECIMAL_DIGITS_MAX else Primitive.JSON
        return shape, lambda value: decimal_of(value, *digits)
    if isinstance(kind, Fixed):
        return _LOGICAL.get(f"{kind.logical} of {kind.size} bytes", (Primitive.BINARY, None))
    return _LOGICAL.get(kind.logical or "", (_PLAIN.get(kind.kind), None))


def _digits(kind: AvroPrimitive | Fixed) -> tuple[int, int] | None:
    """Return a decimal's precision and scale, None when it is none, or not a valid one, which Avro has us ignore."""
    found = _DECIMAL.fullmatch(kind.logical or "")
    if found is None:
        return None
    precision, scale = int(found[1]), int(found[2])
    return (precision, scale) if 0 <= scale <= precision and precision else None


def _read_leaf(kind: Leaf, shape: Shape | None) -> Read:
    """Return the reader of a type without parts; its values are JSON if that is the shape around it."""
    own, convert = _leaf(kind)
    read = basic(kind) if convert is None else converted(basic(kind), convert)
    return read if shape is not Primitive.JSON or own is None else read_as_json(read, own)
