"""Schema evolution of a table: columns are matched by name and added, never dropped.

A field that the table lacks is added. A column widens where Iceberg can (int to long, float to double, decimals to more
digits) and all that was written and will be written fits. Where it does not fit, the column stays as it is and gets
another beside it, `<column>_as_json`, which takes any value as JSON; a value goes there only if its own column cannot take
it without loss (cells.py). The same column is added on demand for a value that does not fit, whatever its schema says.
What is in a list or a map has no column beside it: then the list's or map's column gets it. A column that the table's user
added, of a type that we do not write, is one that fits nothing.

Merging the same twice changes nothing more, and what fitted a table's shape fits every later one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ister.schemas.columns.names import beside, column_for, column_in
from ister.schemas.columns.types import DECIMAL_DIGITS_MAX, Decimal, Field, List, Map, Primitive, Struct, columns_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ister.schemas.columns.cells import Path
    from ister.schemas.columns.types import Shape

TABLE_COLUMNS_MAX: Final = 4_000
"""Columns of a table's value, over all versions; a field beyond has none, and rows that have it say so."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a column."""

    path: Path
    shape: Shape


class AddField(Change):
    """A column that is new."""


class Widen(Change):
    """A column that takes more than before."""


def merge(table: Struct, wanted: Struct) -> tuple[Struct, list[Change]]:
    """Return a table's shape that also takes a schema's values, and how to get there."""
    merging = _Merge(table)
    return merging.struct(table, wanted, ()), merging.changes


def add_beside(table: Struct, columns: Iterable[Path]) -> tuple[Struct, list[Change]]:
    """Return a table's shape with a column beside each of these that has none, and how to get there."""
    merging = _Merge(table)
    for path in columns:
        table = merging.beside(table, path, ())
    return table, merging.changes


def has_beside(table: Shape, path: Path) -> bool:
    """Return True if the column at a path has another beside it."""
    match table:
        case Struct():
            columns = {one.name: one.shape for one in table.fields}
            if len(path) == 1:
                return beside(path[0]) in columns
            return path[0] in columns and has_beside(columns[path[0]], path[1:])
        case List(inner) | Map(inner):
            return has_beside(inner, path[1:])
        case _:
            return False


def takes_all(table: Shape, wanted: Shape) -> bool:
    """Return True if a column of single values holds every value of another without loss."""
    match table, wanted:
        case _ if table == wanted or table is Primitive.JSON:
            return True
        case Primitive(), Primitive():
            return (table, wanted) in _TAKES
        case Decimal(), Decimal() | Primitive():
            scale = wanted.scale if isinstance(wanted, Decimal) else 0
            return table.scale >= scale and _whole_digits(table) >= _whole_digits(wanted)
        case _:
            return False


class _Merge:
    """One merge: the changes so far, and how many columns may still be added."""

    def __init__(self, table: Struct) -> None:
        self.changes: list[Change] = []
        self._columns_left = TABLE_COLUMNS_MAX - columns_in(table)

    def struct(self, table: Struct, wanted: Struct, path: Path) -> Struct:
        columns = {one.name: one.shape for one in table.fields}
        seen: set[str] = set()
        for one in wanted.fields:
            name = column_in(columns, one.name)
            if name is None:
                self._add(columns, column_for(columns, one.name), one.shape, path, seen)
            elif name not in seen:
                seen.add(name)
                widened = self._widened(columns[name], one.shape, (*path, name))
                if widened is not None:
                    columns[name] = widened
                elif beside(name) not in columns:
                    self._add(columns, beside(name), Primitive.JSON, path, seen)
        return Struct(tuple(Field(name, shape) for name, shape in columns.items()))

    def beside(self, table: Struct, below: Path, path: Path) -> Struct:
        """Add a column beside the one at `below`, unless there is one, or no more may be added, or the path leads nowhere."""
        columns = {one.name: one.shape for one in table.fields}
        name, *rest = below
        if name not in columns:
            return table
        if rest:
            columns[name] = self._beside_below(columns[name], tuple(rest), (*path, name))
        elif beside(name).lower() not in {one.lower() for one in columns}:
            self._add(columns, beside(name), Primitive.JSON, path, set())
        return Struct(tuple(Field(one, shape) for one, shape in columns.items()))

    def _beside_below(self, table: Shape, below: Path, path: Path) -> Shape:
        match table:
            case Struct():
                return self.beside(table, below, path)
            case List(inner) | Map(inner):
                return type(table)(self._beside_below(inner, below[1:], (*path, below[0])))
            case _:
                return table

    def _add(self, columns: dict[str, Shape], name: str | None, shape: Shape, path: Path, seen: set[str]) -> None:
        if name is None:
            return
        new = _named(shape)
        size = columns_in(new)
        if size <= self._columns_left:
            self._columns_left -= size
            columns[name] = new
            seen.add(name)
            self.changes.append(AddField((*path, name), new))

    def _widened(self, table: Shape, wanted: Shape, path: Path) -> Shape | None:
        """Return a column's shape that takes a schema's values, None when it cannot be made to."""
        before = len(self.changes), self._columns_left
        widened: Shape | None
        match table, wanted:
            case Struct(), Struct():
                return self.struct(table, wanted, path)
            case (List(own), List(other)) | (Map(own), Map(other)):
                kind, step = (List, "element") if isinstance(table, List) else (Map, "value")
                inner = self._widened(own, other, (*path, step))
                widened = None if inner is None else kind(inner)
            case _ if takes_all(table, wanted):
                return table
            case _:
                widened = next((one for one in _wider(table, wanted) if takes_all(one, wanted)), None)
                if widened is not None:
                    self.changes.append(Widen(path, widened))
        if widened is None:
            del self.changes[before[0] :]
            self._columns_left = before[1]
        return widened


def _wider(table: Shape, wanted: Shape) -> list[Shape]:
    """Return what Iceberg can make of a column."""
    match table, wanted:
        case Primitive.INT, _:
            return [Primitive.LONG]
        case Primitive.FLOAT, _:
            return [Primitive.DOUBLE]
        case Decimal(), Decimal() | Primitive():
            precision = max(table.precision, _whole_digits(wanted) + table.scale)
            return [Decimal(precision, table.scale)] if precision <= DECIMAL_DIGITS_MAX else []
        case _:
            return []


def _whole_digits(shape: Decimal | Primitive) -> int:
    """Return how many digits before the point a number needs; more than any decimal has when it is no exact number."""
    return shape.precision - shape.scale if isinstance(shape, Decimal) else _DIGITS.get(shape, DECIMAL_DIGITS_MAX + 1)


def _named(shape: Shape) -> Shape:
    """Return a shape as a new column has it: the schema's names made columns' names."""
    match shape:
        case Struct():
            return merge(Struct(), shape)[0]
        case List(inner) | Map(inner):
            return type(shape)(_named(inner))
        case _:
            return shape


_TAKES: Final = frozenset(
    {
        (Primitive.LONG, Primitive.INT),
        (Primitive.DOUBLE, Primitive.FLOAT),
        (Primitive.DOUBLE, Primitive.INT),
    }
)
_DIGITS: Final = {Primitive.INT: 10, Primitive.LONG: 19}
