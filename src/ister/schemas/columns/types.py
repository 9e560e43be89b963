"""Column types, in Iceberg's terms; every column is optional, so that a table can always grow.

A schema's shape has the names of the schema; a table's shape has the names of columns (names.py). A table's shape is
always made by `evolve.merge`, from an empty struct on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias, assert_never

import pyarrow as pa

COLUMNS_MAX: Final = 1_000
"""Columns that one schema may have. Named types can be reused, so that a small definition describes billions of them; what
is beyond is JSON."""
DEPTH_MAX: Final = 12
"""Levels of structs, lists and maps in one another; what is deeper is JSON."""
DECIMAL_DIGITS_MAX: Final = 38


class Primitive(StrEnum):
    """A column of single values. Iceberg's `time` is none of them: Spark cannot read a table that has one."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    STRING = "string"
    BINARY = "binary"
    JSON = "json"
    """A string column that holds JSON: for what Iceberg cannot type. It takes any value."""


@dataclass(frozen=True, slots=True)
class Decimal:
    """A column of decimals."""

    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class Field:
    """A part of a struct."""

    name: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Struct:
    """Fields by name; never without any, but for the root of a new table: Parquet cannot hold an empty one."""

    fields: tuple[Field, ...] = ()


@dataclass(frozen=True, slots=True)
class List:
    """Any number of elements."""

    element: Shape


@dataclass(frozen=True, slots=True)
class Map:
    """Values by string key."""

    value: Shape


@dataclass(frozen=True, slots=True)
class Opaque:
    """A user's column, of a type that no schema has. Nothing is written there, and it keeps its name."""


Shape: TypeAlias = Primitive | Decimal | Struct | List | Map | Opaque


def arrow_type(shape: Shape) -> pa.DataType:
    """Return the Arrow type of a column, as far as we write it: what is opaque in a struct is left out."""
    match shape:
        case Primitive():
            return _ARROW[shape]
        case Decimal():
            return pa.decimal128(shape.precision, shape.scale)
        case Struct():
            known = [one for one in shape.fields if not isinstance(one.shape, Opaque)]
            return pa.struct([pa.field(one.name, arrow_type(one.shape)) for one in known])
        case List():
            return pa.list_(pa.field("element", arrow_type(shape.element)))
        case Map():
            return pa.map_(pa.string(), arrow_type(shape.value))
        case Opaque():
            raise AssertionError("nothing is written to it")
        case _:
            assert_never(shape)


def columns_in(shape: Shape) -> int:
    """Return how many columns a shape has, itself included."""
    match shape:
        case Struct():
            return 1 + sum(columns_in(one.shape) for one in shape.fields)
        case List(inner) | Map(inner):
            return 1 + columns_in(inner)
        case _:
            return 1


def rooted(shape: Shape | None) -> Struct:
    """Return a struct for what a whole payload is: what is no struct is a field `value` of one."""
    return shape if isinstance(shape, Struct) else Struct((Field("value", shape or Primitive.JSON),))


@dataclass(slots=True)
class ColumnBudget:
    """Remaining columns that one schema may have."""

    left: int = COLUMNS_MAX

    def take(self, columns: int, depth: int) -> bool:
        """Take a number of columns; none when fewer are left, or they are nested too deeply."""
        if columns > self.left or depth > DEPTH_MAX:
            return False
        self.left -= columns
        return True


_ARROW: Final[dict[Primitive, pa.DataType]] = {
    Primitive.BOOLEAN: pa.bool_(),
    Primitive.INT: pa.int32(),
    Primitive.LONG: pa.int64(),
    Primitive.FLOAT: pa.float32(),
    Primitive.DOUBLE: pa.float64(),
    Primitive.DATE: pa.date32(),
    Primitive.TIMESTAMP: pa.timestamp("us"),
    Primitive.TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
    Primitive.STRING: pa.string(),
    Primitive.BINARY: pa.binary(),
    Primitive.JSON: pa.string(),
}
