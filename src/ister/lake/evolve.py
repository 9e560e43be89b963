"""Give a table the columns that its topic's schemas ask for: `value`, grown by name, and `decode_error`.

A change of columns is a commit of its own, before the append that needs it. It removes nothing and requires nothing, so
two owners that do it at once do no harm. A column of JSON says so in its comment: Iceberg has no such type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, assert_never

import structlog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from ister.core.typed.evolve import AddField, merge
from ister.core.typed.shape import Decimal, Field, List, Map, Primitive, Struct
from ister.lake.errors import CommitConflictError, LakeUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

    from ister.core.typed.evolve import Change
    from ister.core.typed.shape import Shape
    from ister.lake.commit import LakeTable

log = structlog.get_logger()

VALUE = "value"
DECODE_ERROR = "decode_error"
JSON_COMMENT = "JSON"
TRIES = 8

_TYPES: dict[Primitive, IcebergType] = {
    Primitive.BOOLEAN: BooleanType(),
    Primitive.INT: IntegerType(),
    Primitive.LONG: LongType(),
    Primitive.FLOAT: FloatType(),
    Primitive.DOUBLE: DoubleType(),
    Primitive.DATE: DateType(),
    Primitive.TIMESTAMP: TimestampType(),
    Primitive.TIMESTAMPTZ: TimestamptzType(),
    Primitive.STRING: StringType(),
    Primitive.BINARY: BinaryType(),
    Primitive.JSON: StringType(),
}
_SHAPES = {kind: shape for shape, kind in _TYPES.items() if shape is not Primitive.JSON}


def evolve(table: LakeTable, wanted: Sequence[Struct]) -> Struct:
    """Have a table take the values of all these shapes; returns the shape of its column `value`."""
    for _ in range(TRIES):
        before = value_shape(table.schema)
        shape = before or Struct()
        changes: list[Change] = []
        for one in wanted:
            shape, more = merge(shape, one)
            changes += more
        if before is not None and not changes:
            return before
        try:
            table.change_columns(changes_of(before, shape, changes))
        except CommitFailedException:
            table.refresh()
            continue
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            raise LakeUnavailableError(".".join(table.identifier), "change the columns of", cause) from error
        log.info("table_columns_changed", table=".".join(table.identifier), columns=len(changes))
    raise CommitConflictError(".".join(table.identifier), TRIES, "others change its columns each time")


class ColumnChange(NamedTuple):
    """A column to add, or else to widen: where, and what it is to be."""

    path: tuple[str, ...]
    field: NestedField
    is_new: bool


def changes_of(before: Struct | None, shape: Struct, changes: Sequence[Change]) -> list[ColumnChange]:
    """Return the columns to add or to widen; a table without a value gets it whole."""
    if before is None:
        return [
            ColumnChange((VALUE,), _field(VALUE, shape), is_new=True),
            ColumnChange((DECODE_ERROR,), _field(DECODE_ERROR, Primitive.STRING), is_new=True),
        ]
    found: dict[tuple[str, ...], ColumnChange] = {}
    added: set[tuple[str, ...]] = set()
    for change in changes:
        # Several versions at once may go on changing a column that is only now added: it is added as it is in the end.
        if not any(change.path[:length] in added for length in range(1, len(change.path) + 1)):
            if is_new := isinstance(change, AddField):
                added.add(change.path)
            field = _field(change.path[-1], _at(shape, change.path))
            found[change.path] = ColumnChange((VALUE, *change.path), field, is_new)
    return list(found.values())


def _at(shape: Shape, path: Sequence[str]) -> Shape:
    """Return the shape of a column within another."""
    for name in path:
        match shape:
            case Struct():
                shape = next(one.shape for one in shape.fields if one.name == name)
            case List():
                shape = shape.element
            case Map():
                shape = shape.value
            case _:
                raise AssertionError(f"{path} leads into a single value")
    return shape


def value_shape(schema: Schema) -> Struct | None:
    """Return the shape of a table's column `value`; None while it has none."""
    if VALUE not in schema.column_names:
        return None
    shape = _shape(schema.find_field(VALUE))
    return shape if isinstance(shape, Struct) else None


def _shape(field: NestedField) -> Shape:
    kind = field.field_type
    match kind:
        case StructType():
            return Struct(tuple(Field(one.name, _shape(one)) for one in kind.fields))
        case ListType():
            return List(_shape(kind.element_field))
        case MapType():
            return Map(_shape(kind.value_field))
        case DecimalType():
            return Decimal(kind.precision, kind.scale)
        case _ if field.doc == JSON_COMMENT:
            return Primitive.JSON
        case _:
            return _SHAPES[kind]


def _field(name: str, shape: Shape) -> NestedField:
    """Return a column; its ids, and those within, are given when it is added."""
    comment = JSON_COMMENT if shape is Primitive.JSON else None
    return NestedField(field_id=0, name=name, field_type=_type(shape), required=False, doc=comment)


def _type(shape: Shape) -> IcebergType:
    match shape:
        case Primitive():
            return _TYPES[shape]
        case Decimal():
            return DecimalType(shape.precision, shape.scale)
        case Struct():
            return StructType(*(_field(one.name, one.shape) for one in shape.fields))
        case List():
            return ListType(element_id=0, element_type=_type(shape.element), element_required=False)
        case Map():
            return MapType(
                key_id=0, key_type=StringType(), value_id=0, value_type=_type(shape.value), value_required=False
            )
        case _:
            assert_never(shape)
