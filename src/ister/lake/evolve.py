"""Schema evolution of a table for its topic's schemas: the columns `value`, matched by name, and `decode_error`.

A change of columns is a commit of its own, before the append that needs it. It removes nothing and adds no required column,
so two owners may do it concurrently. A JSON column is marked by its comment: Iceberg has no such type.

Columns that a user added are never written and do not prevent appends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, assert_never

import structlog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
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

from ister.lake.columns import SCHEMA
from ister.lake.errors import CommitConflictError, LakeUnavailableError
from ister.schemas.columns.evolve import AddField, add_beside, merge
from ister.schemas.columns.types import Decimal, Field, List, Map, Opaque, Primitive, Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.types import IcebergType

    from ister.lake.table import LakeTable
    from ister.schemas.columns.cells import Path
    from ister.schemas.columns.evolve import Change
    from ister.schemas.columns.types import Shape

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


def evolve(table: LakeTable, wanted: Sequence[Struct], misfits: Sequence[Path] = ()) -> Struct | None:
    """Evolve a table to hold values of all these shapes; return the shape of its column `value`.

    `misfits` are columns within it that need a second column, for values that do not fit.
    None when a user's column has one of our names: the table is not changed.
    """
    for _ in range(TRIES):
        if reason := _taken(table.schema):
            log.warning("table_not_typed", table=".".join(table.identifier), cause=reason)
            return None
        before = value_shape(table.schema)
        missing = [name for name in (VALUE, DECODE_ERROR) if name not in {field.name for field in table.schema.fields}]
        shape = before or Struct()
        changes: list[Change] = []
        for one in wanted:
            shape, more = merge(shape, one)
            changes += more
        shape, more = add_beside(shape, misfits)
        changes += more
        if before is not None and not changes and not missing:
            return before
        try:
            table.change_columns(column_changes(missing, before, shape, changes))
        except CommitFailedException:
            table.refresh()
            continue
        except Exception as error:
            raise LakeUnavailableError(".".join(table.identifier), "change the columns of", error) from error
        log.info("table_columns_changed", table=".".join(table.identifier), columns=len(changes))
    raise CommitConflictError(".".join(table.identifier), TRIES, "others change its columns each time")


class ColumnChange(NamedTuple):
    """A column to add or to widen: its path and its new field."""

    path: tuple[str, ...]
    field: NestedField
    is_new: bool


def column_changes(
    missing: Sequence[str], before: Struct | None, shape: Struct, changes: Sequence[Change]
) -> list[ColumnChange]:
    """Return the columns of ours that a table lacks, then those to add or to widen within the `value` that it has."""
    shapes: dict[str, Shape] = {VALUE: shape, DECODE_ERROR: Primitive.STRING}
    found, added = dict[tuple[str, ...], ColumnChange](), set[tuple[str, ...]]()
    for name in missing:
        found[(name,)] = ColumnChange((name,), _field(name, shapes[name]), is_new=True)
    for change in () if before is None else changes:
        # Several schema versions may change a column that is added now: it is added in its final shape.
        if not any(change.path[:length] in added for length in range(1, len(change.path) + 1)):
            if is_new := isinstance(change, AddField):
                added.add(change.path)
            path = (VALUE, *change.path)
            found[path] = ColumnChange(path, _field(path[-1], _at(shape, change.path)), is_new)
    return list(found.values())


def _at(shape: Shape, path: Sequence[str]) -> Shape:
    """Return the shape at a path."""
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
    """Return the shape of a table's column `value`; None when it has none."""
    shape = next((_shape(field) for field in schema.fields if field.name == VALUE), None)
    return shape if isinstance(shape, Struct) else None


def own_columns(schema: Schema) -> Schema:
    """Return the columns of a table that we write; the others are null in our files, by Iceberg's rules."""
    ours = {field.field_id for field in SCHEMA.fields}
    kept = [field for field in schema.fields if field.field_id in ours or field.name in {VALUE, DECODE_ERROR}]
    return Schema(*(_known(field) if field.name == VALUE else field for field in kept))


def _taken(schema: Schema) -> str | None:
    """Return which user's column has the name of one of ours; None when there is none."""
    for field in schema.fields:
        if field.name == VALUE and not isinstance(_shape(field), Struct):
            return f"its column {VALUE} is {field.field_type}, and no struct of ours"
        if field.name == DECODE_ERROR and (field.required or not isinstance(field.field_type, StringType)):
            return f"its column {DECODE_ERROR} is {field.field_type}, and no optional string"
    return None


def _known(field: NestedField) -> NestedField:
    """Return a column without its opaque fields."""
    return NestedField(field.field_id, field.name, _known_type(field.field_type), required=False, doc=field.doc)


def _known_type(kind: IcebergType) -> IcebergType:
    match kind:
        case StructType():
            return StructType(*(_known(one) for one in kind.fields if not isinstance(_shape(one), Opaque)))
        case ListType():
            return ListType(kind.element_id, _known_type(kind.element_type), element_required=False)
        case MapType():
            value = _known_type(kind.value_type)
            return MapType(kind.key_id, kind.key_type, kind.value_id, value, value_required=False)
        case _:
            return kind


def _shape(field: NestedField) -> Shape:
    """Return the shape of a column; a required one, or a type that no schema maps to, is opaque."""
    kind = field.field_type
    match kind:
        case _ if field.required:
            return Opaque()
        case StructType():
            fields = tuple(Field(one.name, _shape(one)) for one in kind.fields)
            known = [one for one in fields if not isinstance(one.shape, Opaque)]
            return Struct(fields) if known and not any(one.required for one in kind.fields) else Opaque()
        case ListType():
            element = _shape(kind.element_field)
            return element if isinstance(element, Opaque) else List(element)
        case MapType():
            value = _shape(kind.value_field)
            return Map(value) if isinstance(kind.key_type, StringType) and not isinstance(value, Opaque) else Opaque()
        case DecimalType():
            return Decimal(kind.precision, kind.scale)
        case StringType() if field.doc == JSON_COMMENT:
            return Primitive.JSON
        case _:
            return _SHAPES.get(kind, Opaque())


def _field(name: str, shape: Shape) -> NestedField:
    """Return a column; its field ids are assigned when it is added."""
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
        case Opaque():
            raise AssertionError("no schema maps to it")
        case _:
            assert_never(shape)
