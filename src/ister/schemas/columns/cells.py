"""Cells: what a value becomes in a table's column: the same value, JSON in the column beside it, or an error.

A value comes as its schema's shape has it: a struct as a dict by the schema's names, a map as a dict, dates in days,
timestamps in microseconds. Nothing about it is trusted, for a payload in JSON may hold anything anywhere.

Numbers are placed one by one, by what they are: 3.0 fits a column of longs and 3.5 does not. Everything else is placed by
its type. A number of JSON with a point or an exponent stays as it was written until its column is known (`Number`): a
column of doubles takes the nearest double, every other column only the exact value. As JSON it is written as it came; bytes
are base64; decimals, dates and timestamps are texts; what is no finite number is `NaN`, `Infinity` or `-Infinity`, as a text.

A value that does not fit and has no column beside its own is a misfit: the row has an error, and the column's path is
noted in `RowState.misfits`, so that the table can get that column (evolve.add_beside) and the row be decoded again.
"""

from __future__ import annotations

import decimal
import json
import math
import struct
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from ister.schemas.columns.names import beside, column_in
from ister.schemas.columns.types import Decimal, List, Map, Opaque, Primitive, Struct, columns_in

if TYPE_CHECKING:
    from ister.schemas.columns.types import Shape
    from ister.schemas.document import Json

Value: TypeAlias = "bool | int | float | Number | str | bytes | decimal.Decimal | list[Value] | tuple[str, Value] | dict[str, Value] | None"
Fit: TypeAlias = Callable[[Value], Value]
Path: TypeAlias = tuple[str, ...]
"""Names of columns from the root; what is in a list is `element`, in a map `value`, as Iceberg has it."""

CELLS_MAX: Final = 1 << 20
"""Cells under lists and maps that one row may fill: a struct of 1,000 columns is three bytes of JSON in a list."""
TEXT_BYTES_MAX: Final = 64 << 20
"""Characters and bytes that one row may fill: a symbol of an enum is one byte of Avro, however long its name is."""
CELL_BYTES: Final = 8
"""Approximate bytes of a cell."""
MISFITS_MAX: Final = 1_000
SHOWN_MAX: Final = 50
_PATH_MAX: Final = 120

_DAY_US: Final = 86_400_000_000
_DAYS: Final = (-719_162, 2_932_896)
"""From 0001-01-01 to 9999-12-31: what every engine supports."""
_SPANS: Final = {
    Primitive.INT: (-(1 << 31), (1 << 31) - 1),
    Primitive.LONG: (-(1 << 63), (1 << 63) - 1),
    Primitive.DATE: _DAYS,
    Primitive.TIMESTAMP: (_DAYS[0] * _DAY_US, (_DAYS[1] + 1) * _DAY_US - 1),
    Primitive.TIMESTAMPTZ: (_DAYS[0] * _DAY_US, (_DAYS[1] + 1) * _DAY_US - 1),
}
_NUMBERS: Final = frozenset({Primitive.INT, Primitive.LONG, Primitive.FLOAT, Primitive.DOUBLE})
_EXACT: Final = decimal.Context(prec=100, traps=[decimal.Inexact, decimal.InvalidOperation, decimal.Overflow])


class UndecodableError(Exception):
    """A payload that cannot be decoded into its columns, with the place and the reason."""

    def __init__(self, reason: str, path: str = "") -> None:
        self.reason = reason
        self.path = path
        super().__init__(f"${path[:_PATH_MAX]}: {reason}" if path else reason)

    def under(self, place: str) -> UndecodableError:
        """Return the same as seen from one level higher."""
        return UndecodableError(self.reason, f"{place}{self.path}"[:_PATH_MAX])


@dataclass(slots=True, eq=False)
class Number:
    """A JSON number as written: one with a point or an exponent, or with thousands of digits."""

    text: str

    def __str__(self) -> str:
        """Return it as it was written."""
        return self.text

    def exact(self) -> decimal.Decimal:
        """Return its value, or raise UndecodableError when even a decimal cannot hold it."""
        try:
            return decimal.Decimal(self.text)
        except decimal.DecimalException:
            raise UndecodableError(f"{_shown(self)} is out of range") from None


class RowState:
    """What the current row may still fill, and the columns that could not take its values."""

    __slots__ = ("cells_left", "error", "misfits", "text_left")

    def __init__(self) -> None:
        self.misfits: set[Path] = set()
        """Columns that lack one beside them, of all rows so far."""
        self.begin()

    def begin(self) -> None:
        """Begin a row."""
        self.cells_left = CELLS_MAX
        self.text_left = TEXT_BYTES_MAX
        self.error: UndecodableError | None = None

    def take_cells(self, cells: int) -> None:
        """Take a number of cells, or raise."""
        if cells > self.cells_left:
            raise UndecodableError(f"holds more than {CELLS_MAX} values")
        self.cells_left -= cells

    def take_text(self, size: int) -> None:
        """Take a number of characters or bytes, or raise."""
        if size > self.text_left:
            raise UndecodableError(f"holds more than {TEXT_BYTES_MAX} bytes of texts")
        self.text_left -= size

    def cells_filled(self) -> int:
        """Return how much the row has filled, in cells; columns outside of lists and maps are not counted."""
        return CELLS_MAX - self.cells_left + (TEXT_BYTES_MAX - self.text_left) // CELL_BYTES

    def misfit(self, column: Path | None, error: UndecodableError) -> None:
        """Record that a column could not take a value; None when there is no such column."""
        self.error = self.error or error
        if column is not None and len(self.misfits) < MISFITS_MAX:
            self.misfits.add(column)


def fitter(wanted: Struct, table: Struct, state: RowState | None = None) -> Fit:
    """Return the conversion of a schema's values to rows of a table, which raises UndecodableError."""
    state = RowState() if state is None else state
    fit = _struct(wanted, table, state, (), "")

    def whole(value: Value) -> Value:
        state.begin()
        row = fit(value)
        if state.error is not None:
            raise state.error
        return row

    return whole


def as_json(shape: Shape) -> Callable[[Value], Json]:
    """Return the conversion of values of this shape to JSON; those of another shape stay as they are."""
    match shape:
        case Primitive.FLOAT | Primitive.DOUBLE:
            return _number_as_json
        case Primitive.BINARY:
            return lambda value: b64encode(value).decode() if isinstance(value, bytes) else unchanged(value)
        case Primitive.DATE | Primitive.TIMESTAMP | Primitive.TIMESTAMPTZ:
            return lambda value: _moment(shape, value) if type(value) is int else unchanged(value)
        case Primitive() | Opaque():
            return unchanged
        case Decimal():
            return lambda value: f"{value:f}" if isinstance(value, decimal.Decimal) else str(value)
        case Struct():
            fields = {one.name: as_json(one.shape) for one in shape.fields}
            return lambda value: (
                {name: None if one is None else fields.get(name, unchanged)(one) for name, one in value.items()}
                if isinstance(value, dict)
                else unchanged(value)
            )
        case List():
            element = as_json(shape.element)
            return lambda value: (
                [None if one is None else element(one) for one in value]
                if isinstance(value, list)
                else unchanged(value)
            )
        case Map():
            inner = as_json(shape.value)
            return lambda value: (
                {name: None if one is None else inner(one) for name, one in value.items()}
                if isinstance(value, dict)
                else unchanged(value)
            )


def _fit(wanted: Shape, table: Shape, state: RowState, path: Path, place: str) -> Fit | None:
    """Return the conversion of values of one shape to a column of another, None when there is none."""
    match table, wanted:
        case Primitive.JSON, _:
            return _text_of(wanted, state)
        case Struct(), Struct():
            return _struct(wanted, table, state, path, place)
        case List(), List():
            element = _fit(wanted.element, table.element, state, (*path, "element"), f"{place}[]")
            return None if element is None else _list(element, columns_in(table.element), state)
        case Map(), Map():
            value = _fit(wanted.value, table.value, state, (*path, "value"), f"{place}{{}}")
            return None if value is None else _map(value, columns_in(table.value), state)
        case (Decimal() | Primitive(), Decimal() | Primitive()) if _is_number(table) and _is_number(wanted):
            return _number(table)
        case Primitive(), _ if table is wanted:
            return _single(table, state)
        case _:
            return None


def _struct(wanted: Struct, table: Struct, state: RowState, path: Path, place: str) -> Fit:
    columns = {one.name: one.shape for one in table.fields}
    places: list[tuple[str, str, Fit, str, Fit | None]] = []
    seen: set[str] = set()
    for one in wanted.fields:
        column = column_in(columns, one.name)
        if column is None or column in seen:
            places.append((one.name, "", _refuse("the table has no column for it"), "", None))
            continue
        seen.add(column)
        spare = beside(column)
        text = _text_of(one.shape, state) if columns.get(spare) in _TEXTS else None
        fit_one = _fit(one.shape, columns[column], state, (*path, column), f"{place}.{one.name}")
        places.append((one.name, column, fit_one or _OTHER_TYPE, spare, text))

    def fit(value: Value) -> Value:
        if type(value) is not dict:
            raise _not("an object", value)
        row: dict[str, Value] = {}
        for name, column, fit_one, spare, text in places:
            inner = value.get(name)
            if inner is None:
                continue
            try:
                row[column] = fit_one(inner)
            except UndecodableError as error:
                if text is not None:
                    row[spare] = text(inner)
                else:
                    lacks = None if not column or spare in columns else (*path, column)
                    state.misfit(lacks, error.under(f"{place}.{name}"))
        return row

    return fit


def _list(element: Fit, width: int, state: RowState) -> Fit:
    def fit(value: Value) -> Value:
        if type(value) is not list:
            raise _not("a list", value)
        state.take_cells(width * len(value))
        try:
            return [None if one is None else element(one) for one in value]
        except UndecodableError as error:
            raise error.under("[]") from None

    return fit


def _map(inner: Fit, width: int, state: RowState) -> Fit:
    def fit(value: Value) -> Value:
        if type(value) is not dict:
            raise _not("an object", value)
        state.take_cells(width * len(value))
        state.take_text(sum(map(len, value)))
        try:
            return [(name, None if one is None else inner(one)) for name, one in value.items()]
        except UndecodableError as error:
            raise error.under("{}") from None

    return fit


def _single(kind: Primitive, state: RowState) -> Fit:
    """Return what takes booleans, texts, bytes or moments; texts and bytes count by how long they are."""
    word, python = _SINGLE[kind]
    low, high = _SPANS.get(kind, (0, 0))
    take_text = state.take_text

    def fit_boolean(value: Value) -> Value:
        if type(value) is not bool:
            raise _not(word, value)
        return value

    def fit_text(value: Value) -> Value:
        if type(value) is not python:
            raise _not(word, value)
        take_text(len(value))  # type: ignore[arg-type]  # it is a str or bytes
        return value

    def fit_moment(value: Value) -> Value:
        if type(value) is not int:
            raise _not(word, value)
        if not low <= value <= high:
            raise UndecodableError(f"{_shown(value)} is out of range for a {word}")
        return value

    return fit_boolean if python is bool else fit_moment if python is int else fit_text


def _number(table: Shape) -> Fit:
    match table:
        case Decimal():
            return lambda value: _decimal(table, value)
        case Primitive.FLOAT:
            return _float
        case Primitive.DOUBLE:
            return _double
        case _:
            assert isinstance(table, Primitive), "a number's column"
            low, high = _SPANS[table]
            return lambda value: value if type(value) is int and low <= value <= high else _whole(low, high, value)


def _exact(value: Value) -> int | float | decimal.Decimal:
    if isinstance(value, Number):
        return value.exact()
    if isinstance(value, bool) or not isinstance(value, int | float | decimal.Decimal):
        raise _not("a number", value)
    return value


def _whole(low: int, high: int, value: Value) -> int:
    value = _exact(value)
    if isinstance(value, float) and not value.is_integer():
        raise UndecodableError(f"{_shown(value)} is no integer")
    if not low <= value <= high:
        raise UndecodableError(f"{_shown(value)} is out of range")
    if isinstance(value, decimal.Decimal) and value != value.to_integral_value():
        raise UndecodableError(f"{_shown(value)} is no integer")
    return int(value)


def _double(value: Value) -> float:
    if type(value) is float:
        return value
    if isinstance(value, Number):
        number = float(value.text)
        if math.isinf(number):
            raise UndecodableError(f"{_shown(value)} is too large for a double")
        return number
    if isinstance(value, bool) or not isinstance(value, int | decimal.Decimal):
        raise _not("a number", value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or (int(number) if isinstance(value, int) else decimal.Decimal(number)) != value:
        raise UndecodableError(f"{_shown(value)} cannot be a double without loss")
    return number


def _float(value: Value) -> float:
    number = _double(value.exact() if isinstance(value, Number) else value)
    if math.isfinite(number):
        try:
            same = struct.unpack("<f", struct.pack("<f", number))[0] == number
        except OverflowError:
            same = False
        if not same:
            raise UndecodableError(f"{_shown(value)} cannot be a float without loss")
    return number


def _decimal(table: Decimal, value: Value) -> decimal.Decimal:
    value = _exact(value)
    try:
        scaled = _EXACT.quantize(_EXACT.create_decimal(value), decimal.Decimal(1).scaleb(-table.scale))
    except decimal.DecimalException:
        scaled = None
    if scaled is None or (scaled and scaled.adjusted() >= table.precision - table.scale):
        raise UndecodableError(f"{_shown(value)} cannot be a decimal({table.precision},{table.scale}) without loss")
    return scaled


def _text_of(wanted: Shape, state: RowState) -> Fit:
    convert = as_json(wanted)

    def fit(value: Value) -> Value:
        try:
            text = _written(convert(value))
        except (ValueError, TypeError):
            raise UndecodableError("holds what is no JSON") from None
        state.take_text(len(text))
        return text

    return fit


def _written(value: Json) -> str:
    """Write JSON: by Python's encoder, which is quick and does not know `Number`, or else value by value."""
    try:
        return _encode(value)
    except TypeError:
        return _written_by_value(value)


def _written_by_value(value: Json | Number) -> str:
    match value:
        case Number():
            return value.text
        case str():
            return encode_basestring(value)
        case dict():
            entries = [f"{encode_basestring(name)}:{_written_by_value(one)}" for name, one in value.items()]
            return f"{{{','.join(entries)}}}"
        case list():
            return f"[{','.join(map(_written_by_value, value))}]"
        case _:
            return _encode(value)


_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _number_as_json(value: Value) -> Json:
    if type(value) is not float or math.isfinite(value):
        return unchanged(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _moment(kind: Primitive, value: int) -> Json:
    low, high = _SPANS[kind]
    if not low <= value <= high:
        return value
    if kind is Primitive.DATE:
        return str(np.datetime64(value, "D"))
    text = str(np.datetime64(value, "us"))
    return f"{text}Z" if kind is Primitive.TIMESTAMPTZ else text


def unchanged(value: Value) -> Json:
    """Return what is JSON already; the encoder finds what is not."""
    return value  # type: ignore[return-value]


def _is_number(shape: Shape) -> bool:
    return isinstance(shape, Decimal) or shape in _NUMBERS


def _refuse(reason: str) -> Fit:
    def fit(value: Value) -> Value:  # noqa: ARG001  # called as every fit
        raise UndecodableError(reason)

    return fit


def _not(word: str, value: Value) -> UndecodableError:
    return UndecodableError(f"is not {word}: {_shown(value)}")


def _shown(value: Value) -> str:
    """Return what an error may repeat of a value."""
    if isinstance(value, dict | list | bytes):
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    text = str(value)[: SHOWN_MAX + 1]
    cut = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
    return repr("".join(one if one.isprintable() else "?" for one in cut)) if isinstance(value, str) else cut


_OTHER_TYPE: Final = _refuse("the table's column is of another type")
_TEXTS: Final = frozenset({Primitive.JSON, Primitive.STRING})
_SINGLE: Final[dict[Primitive, tuple[str, type]]] = {
    Primitive.BOOLEAN: ("a boolean", bool),
    Primitive.STRING: ("a string", str),
    Primitive.BINARY: ("bytes", bytes),
    Primitive.DATE: ("date", int),
    Primitive.TIMESTAMP: ("timestamp", int),
    Primitive.TIMESTAMPTZ: ("timestamp", int),
}
