"""Schema evolution of a table: columns are matched by name and added, never dropped.

A field that the table lacks is added. A column widens where Iceberg can (int to long, float to double, decimals to more
digits) and all that was written and will be written fits. Where it does not fit, the column stays as it is and gets
another beside it, `<column>_as_json`, which takes any value as JSON; a value goes there only if its own column cannot take
it without loss (fit.py). The same column is made on demand when a value comes that does not fit, whatever its schema says. What is in a list or a map has no room beside it: then the list's or map's column gets it. A
column that the table's user added, of a type that we do not write, is one that fits nothing.

Merging the same twice changes nothing more, and what fitted a table's shape fits every later one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from ister.schemas.columns.names import beside, column_for, column_in
from ister.schemas.columns.types import DECIMAL_DIGITS_MAX, Decimal, Field, List, Map, Primitive, Struct, columns_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ister.schemas.columns.cells import Path
    from ister.schemas.columns.types import Shape

TABLE_COLUMNS_MAX: Final = 4_000
"""Columns of a table's value, over all versions; a field beyond has none, and rows that have it say so."""


@dataclass(frozen=True, slots=True)
class AddField:
    """A column that is new."""

    path: Path
    shape: Shape


@dataclass(frozen=True, slots=True)
class Widen:
    """A column that takes more than before."""

    path: Path
    shape: Shape


Change: TypeAlias = AddField | Widen


def merge(table: Struct, wanted: Struct) -> tuple[Struct, list[Change]]:
    """Return a table's shape that also takes a schema's values, and how to get there."""
    growth = _Growth(TABLE_COLUMNS_MAX - columns_in(table))
    return growth.struct(table, wanted, ()), growth.changes


def add_beside(table: Struct, columns: Iterable[Path]) -> tuple[Struct, list[Change]]:
    """Return a table's shape with a column beside each of these that has none, and how to get there."""
    growth = _Growth(TABLE_COLUMNS_MAX - columns_in(table))
    for path in columns:
        table = growth.beside(table, path, ())
    return table, growth.changes


def has_beside(table: Shape, path: Path) -> bool:
    """Return True if the column at a path has another beside it."""
    match table:
        case Struct():
            columns = {one.name: one.shape for one in table.fields}
            if len(path) == 1:
                return beside(path[0]) in columns
            return path[0] in columns and has_beside(columns[path[0]], path[1:])
        case List():
            return has_beside(table.element, path[1:])
        case Map():
            return has_beside(table.value, path[1:])
        case _:
            return False


def takes_all(table: Shape, wanted: Shape) -> bool:
    """Return True if a column of single values holds every value of another without loss."""
    match table, wanted:
        case _ if table == wanted or table is Primitive.JSON:
            return True
        case Primitive(), Primitive():
            return (table, wanted) in _TAKES
        case Decimal(), Decimal():
            whole, wanted_whole = table.precision - table.scale, wanted.precision - wanted.scale
            return table.scale >= wanted.scale and whole >= wanted_whole
        case Decimal(), Primitive() if wanted in _DIGITS:
            return table.precision - table.scale >= _DIGITS[wanted]
        case _:
            return False


class _Growth:
    """One merge: the changes so far, and how many columns there is room for."""

    def __init__(self, room: int) -> None:
        self.changes: list[Change] = []
        self._room = room

    def struct(self, table: Struct, wanted: Struct, path: Path) -> Struct:
        columns = {one.name: one.shape for one in table.fields}
        seen: set[str] = set()
        for one in wanted.fields:
            name = column_in(columns, one.name)
            if name is None:
                self._add(columns, column_for(columns, one.name), one.shape, path, seen)
            elif name not in seen:
                seen.add(name)
                grown = self._grown(columns[name], one.shape, (*path, name))
                if grown is not None:
                    columns[name] = grown
                elif beside(name) not in columns:
                    self._add(columns, beside(name), Primitive.JSON, path, seen)
        return Struct(tuple(Field(name, shape) for name, shape in columns.items()))

    def beside(self, table: Struct, below: Path, path: Path) -> Struct:
        """Add a column beside the one at `below`, unless there is one, or no room, or the path leads nowhere."""
        columns = {one.name: one.shape for one in table.fields}
        name, *rest = below
        if name not in columns:
            return table
        if rest:
            columns[name] = self._beside_under(columns[name], tuple(rest), (*path, name))
        elif beside(name).lower() not in {one.lower() for one in columns}:
            self._add(columns, beside(name), Primitive.JSON, path, set())
        return Struct(tuple(Field(one, shape) for one, shape in columns.items()))

    def _beside_under(self, table: Shape, below: Path, path: Path) -> Shape:
        match table:
            case Struct():
                return self.beside(table, below, path)
            case List():
                return List(self._beside_under(table.element, below[1:], (*path, below[0])))
            case Map():
                return Map(self._beside_under(table.value, below[1:], (*path, below[0])))
            case _:
                return table

    def _add(self, columns: dict[str, Shape], name: str | None, shape: Shape, path: Path, seen: set[str]) -> None:
        if name is None:
            return
        new = _named(shape)
        size = columns_in(new)
        if size <= self._room:
            self._room -= size
            columns[name] = new
            seen.add(name)
            self.changes.append(AddField((*path, name), new))

    def _grown(self, table: Shape, wanted: Shape, path: Path) -> Shape | None:
        """Return a column's shape that takes a schema's values, None when it cannot be made to."""
        before = len(self.changes), self._room
        grown: Shape | None
        match table, wanted:
            case Struct(), Struct():
                return self.struct(table, wanted, path)
            case List(), List():
                inner = self._grown(table.element, wanted.element, (*path, "element"))
                grown = None if inner is None else List(inner)
            case Map(), Map():
                inner = self._grown(table.value, wanted.value, (*path, "value"))
                grown = None if inner is None else Map(inner)
            case _ if takes_all(table, wanted):
                return table
            case _:
                grown = next((one for one in _wider(table, wanted) if takes_all(one, wanted)), None)
                if grown is not None:
                    self.changes.append(Widen(path, grown))
        if grown is None:
            del self.changes[before[0] :]
            self._room = before[1]
        return grown


def _wider(table: Shape, wanted: Shape) -> list[Shape]:
    """Return what Iceberg can make of a column."""
    match table, wanted:
        case Primitive.INT, _:
            return [Primitive.LONG]
        case Primitive.FLOAT, _:
            return [Primitive.DOUBLE]
        case Decimal(), Decimal():
            return _more_digits(table, wanted.precision - wanted.scale)
        case Decimal(), Primitive() if wanted in _DIGITS:
            return _more_digits(table, _DIGITS[wanted])
        case _:
            return []


def _more_digits(table: Decimal, whole: int) -> list[Shape]:
    precision = max(table.precision, whole + table.scale)
    return [Decimal(precision, table.scale)] if precision <= DECIMAL_DIGITS_MAX else []


def _named(shape: Shape) -> Shape:
    """Return a shape as a new column has it: the schema's names made columns' names."""
    match shape:
        case Struct():
            return merge(Struct(), shape)[0]
        case List():
            return List(_named(shape.element))
        case Map():
            return Map(_named(shape.value))
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
