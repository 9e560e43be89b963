"""Avro's binary encoding: one walk through a payload, which builds values or only checks them.

fastavro is not used for this, on purpose. It recurses in C, so a payload of 100 kB of nested records ends the process,
and it believes an array's count, so ten bytes fill the memory. A broker takes payloads from anyone.
"""

from __future__ import annotations

import decimal
import struct
from typing import TYPE_CHECKING, Final

from ister.schemas.avro.types import INT_MAX, Array, Enum, Fixed, Map, Primitive, Record, Union
from ister.schemas.columns import types as shapes
from ister.schemas.columns.cells import UndecodableError
from ister.schemas.walk import MALFORMED, Budget, Checker, fixed

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.schemas.avro.types import Leaf, Type
    from ister.schemas.columns.cells import Value
    from ister.schemas.columns.types import Shape
    from ister.schemas.walk import Read

DEPTH_MAX: Final = 100
STEPS_SPARE: Final = 10_000
STEPS_PER_BYTE: Final = 4
"""Values that are checked for each byte of a payload; one of no bytes counts, too."""

_JSON: Final = shapes.Primitive.JSON
_DECIMAL_BYTES_MAX: Final = 1_000
_EXACT: Final = decimal.Context(prec=4_000)
_VARINT_BYTES_MAX: Final = 10


def checker(root: Type) -> Checker:
    """Return the checker of payloads that are one value of a type, and nothing behind it."""

    def compile_walk() -> Callable[[bytes], Value]:
        reason = "takes too long to check: it holds more values than a payload of this size may"
        steps = Budget(STEPS_SPARE, STEPS_PER_BYTE, reason)
        return Walker(_unconverted, build=False, fields=steps, items=steps).walk(root, None)

    return Checker("Avro", compile_walk)


class Walker:
    """Compiles types to functions that read a value; these build it, or only check it and then count levels.

    `leaf` compiles the types without parts. Limits are counted in the walker, so it serves one thread at a time.
    """

    def __init__(
        self, leaf: Callable[[Leaf, Shape | None], Read], *, build: bool, fields: Budget, items: Budget
    ) -> None:
        self._leaf = leaf
        self._build = build
        self._fields = fields
        self._items = items
        self._depth = 0
        self._late: dict[int, Read] = {}

    def walk(self, root: Type, shape: Shape | None) -> Callable[[bytes], Value]:
        """Return what reads a whole payload; it raises what MALFORMED lists."""
        read = self._of(root, shape)

        def walk(payload: bytes) -> Value:
            self._depth = 0
            self._fields.begin(payload)
            self._items.begin(payload)
            value, stop = read(payload, 0)
            if stop != len(payload):
                raise UndecodableError(f"ends at byte {stop}, and {len(payload) - stop} bytes follow")
            return value

        return walk

    def _of(self, kind: Type, shape: Shape | None) -> Read:
        if isinstance(kind, Primitive | Fixed | Enum):
            return self._leaf(kind, shape)
        if shape is not None and shape is not _JSON:
            return self._compile(kind, shape)
        if id(kind) not in self._late:
            self._late[id(kind)] = self._compile_late(kind)
        return self._late[id(kind)]

    def _compile_late(self, kind: Union | Record | Array | Map) -> Read:
        """Return the reader of a type that has no columns; compiled when first called, for types lead in circles."""
        compiled: list[Read] = []

        def read(data: bytes, at: int) -> tuple[Value, int]:
            if not compiled:
                compiled.append(self._compile(kind, _JSON))
            return compiled[0](data, at)

        def read_level(data: bytes, at: int) -> tuple[Value, int]:
            self._depth += 1
            if self._depth > DEPTH_MAX:
                raise UndecodableError(f"is nested deeper than {DEPTH_MAX} levels")
            found = read(data, at)
            self._depth -= 1
            return found

        return read if self._build else read_level

    def _compile(self, kind: Union | Record | Array | Map, shape: Shape) -> Read:
        match kind:
            case Union():
                return _pick([self._of(one, shape) for one in kind.branches])
            case Record():
                columns = {one.name: one.shape for one in shape.fields} if isinstance(shape, shapes.Struct) else {}
                return self._record(
                    [(one.name, self._of(one.type, columns.get(one.name, _JSON))) for one in kind.fields]
                )
            case Array():
                element = shape.element if isinstance(shape, shapes.List) else _JSON
                return self._blocks(self._of(kind.items, element), keyed=False)
            case Map():
                value = shape.value if isinstance(shape, shapes.Map) else _JSON
                return self._blocks(self._of(kind.values, value), keyed=True)

    def _record(self, fields: list[tuple[str, Read]]) -> Read:
        build, take, count = self._build, self._fields.take, len(fields)

        def read(data: bytes, at: int) -> tuple[Value, int]:
            take(count)
            row: dict[str, Value] = {}
            try:
                if build:
                    for name, field in fields:
                        row[name], at = field(data, at)
                else:
                    for name, field in fields:  # noqa: B007  # the handler below uses the name
                        at = field(data, at)[1]
            except MALFORMED as error:
                error.add_note(f".{name}")
                raise
            return row, at

        return read

    def _blocks(self, item: Read, *, keyed: bool) -> Read:
        """Return the reader of an array, or of a map, whose items have keys: blocks of items, up to an empty one."""
        build, take = self._build, self._items.take

        def read(data: bytes, at: int) -> tuple[Value, int]:
            items: list[Value] = []
            entries: dict[str, Value] = {}
            while True:
                count, at = _long(data, at)
                if not count:
                    return entries if keyed else items, at
                stop = None
                if count < 0:
                    size, at = _long(data, at)
                    count, stop = -count, at + size
                take(count)
                try:
                    if not build:
                        for _ in range(count):
                            at = item(data, _string(data, at)[1] if keyed else at)[1]
                    elif keyed:
                        for _ in range(count):
                            name, at = _string(data, at)
                            entries[name], at = item(data, at)
                    else:
                        for _ in range(count):
                            value, at = item(data, at)
                            items.append(value)
                except MALFORMED as error:
                    error.add_note("{}" if keyed else "[]")
                    raise
                if stop is not None and at != stop:
                    raise UndecodableError(f"has a block that says it ends at byte {stop}, and ends at {at}")

        return read


def _pick(branches: list[Read]) -> Read:
    def read(data: bytes, at: int) -> tuple[Value, int]:
        index, at = _long(data, at)
        if not 0 <= index < len(branches):
            raise UndecodableError(f"takes branch {index} of a union of {len(branches)}: there is no such branch")
        return branches[index](data, at)

    return read


def _unconverted(kind: Leaf, _shape: Shape | None) -> Read:
    """Return the reader for checks: without logical types, and numbers of a fixed size are as good as any bytes."""
    size = _SIZES.get(kind.kind) if isinstance(kind, Primitive) else None
    return basic(kind) if size is None else _sized(size)


def basic(kind: Leaf) -> Read:
    """Return the reader of a type without parts, as if it had no logical type."""
    match kind:
        case Enum():
            return _enum(kind.symbols)
        case Fixed():
            return _sized(kind.size)
        case Primitive():
            return _READERS[kind.kind]


def _enum(symbols: tuple[str, ...]) -> Read:
    def read(data: bytes, at: int) -> tuple[Value, int]:
        index, at = _long(data, at)
        if not 0 <= index < len(symbols):
            raise UndecodableError(f"takes symbol {index} of an enum of {len(symbols)}: there is no such symbol")
        return symbols[index], at

    return read


def _sized(size: int) -> Read:

    def read(data: bytes, at: int) -> tuple[Value, int]:
        return _cut(data, at, size), at + size

    return read


def _cut(data: bytes, at: int, size: int) -> bytes:
    if not 0 <= size <= len(data) - at:
        raise UndecodableError(f"has {len(data) - at} bytes left, and needs {size}")
    return data[at : at + size]


def _long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    number = byte & 0x7F
    for index in range(1, _VARINT_BYTES_MAX):
        byte = data[at + index]
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if number >> 64:
                break
            return (number >> 1) ^ -(number & 1), at + index + 1
    raise UndecodableError("has a number that does not end, or has more than 64 bits")


def _int(data: bytes, at: int) -> tuple[int, int]:
    number, at = _long(data, at)
    if not -INT_MAX - 1 <= number <= INT_MAX:
        raise UndecodableError("has an int of more than 32 bits")
    return number, at


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(data, at)
    return _cut(data, at, size), at + size


def _string(data: bytes, at: int) -> tuple[str, int]:
    byte = data[at]
    if byte < 0x80 and not byte & 1 and byte >> 1 < len(data) - at:  # most texts are short, and this halves their time
        stop = at + 1 + (byte >> 1)
        return data[at + 1 : stop].decode(), stop
    size, at = _long(data, at)
    return _cut(data, at, size).decode(), at + size


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    value = _BOOLEANS.get(data[at : at + 1] or _cut(data, at, 1))
    if value is None:
        raise UndecodableError("has a boolean that is neither 0 nor 1")
    return value, at + 1


def _null(data: bytes, at: int) -> tuple[None, int]:  # noqa: ARG001  # called as every read
    return None, at


def millis(value: Value) -> Value:
    """Return milliseconds in microseconds."""
    assert isinstance(value, int), "a time is a number"
    return value * 1_000


def time_of_day(value: Value) -> Value:
    """Return a time of day as a text that sorts as times do."""
    assert isinstance(value, int), "a time is a number"
    seconds, micros = divmod(value, 1_000_000)
    if not 0 <= seconds < 86_400:
        raise UndecodableError(f"has {value} for a time of day in microseconds")
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"


def decimal_of(value: Value, precision: int, scale: int) -> Value:
    """Return a decimal, or its text when it has more digits than a column can hold."""
    assert isinstance(value, bytes), "a decimal is in bytes"
    if len(value) > _DECIMAL_BYTES_MAX:
        raise UndecodableError(f"has a decimal of {len(value)} bytes")
    number = _EXACT.scaleb(decimal.Decimal(int.from_bytes(value, signed=True)), -scale)
    return number if precision <= shapes.DECIMAL_DIGITS_MAX else f"{number:f}"


def big_decimal(value: Value) -> Value:
    """Return the text of a decimal that brings its own scale: bytes in bytes, then an int."""
    assert isinstance(value, bytes), "a decimal is in bytes"
    unscaled, at = _bytes(value, 0)
    scale, stop = _int(value, at)
    if stop != len(value) or len(unscaled) > _DECIMAL_BYTES_MAX or not -_DECIMAL_BYTES_MAX < scale < _DECIMAL_BYTES_MAX:
        raise UndecodableError("has a decimal that cannot be read")
    return f"{_EXACT.scaleb(decimal.Decimal(int.from_bytes(unscaled, signed=True)), -scale):f}"


def uuid(value: Value) -> Value:
    """Return the text of a UUID."""
    assert isinstance(value, bytes), "these are 16 bytes"
    text = value.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def duration(value: Value) -> Value:
    """Return the three numbers of a duration."""
    assert isinstance(value, bytes), "these are 12 bytes"
    return dict(zip(("months", "days", "milliseconds"), struct.unpack("<III", value), strict=True))


_BOOLEANS: Final = {b"\0": False, b"\1": True}
_SIZES: Final = {"float": 4, "double": 8}
_READERS: Final[dict[str, Read]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": fixed("<f"),
    "double": fixed("<d"),
    "bytes": _bytes,
    "string": _string,
}
