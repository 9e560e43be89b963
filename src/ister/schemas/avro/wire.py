"""Avro's binary encoding: reads values, those of logical types included, and checks payloads without building them.

fastavro is not used for this, on purpose. It recurses in C, so a payload of 100 kB of nested records ends the process,
and it believes an array's count, so ten bytes fill the memory. A broker takes payloads from anyone.
"""

from __future__ import annotations

import decimal
import struct
from typing import TYPE_CHECKING, Final, TypeAlias

from ister.core.errors import InvalidMessageError
from ister.schemas.avro.types import INT_MAX, Array, Enum, Fixed, Map, Primitive, Record, Union
from ister.schemas.columns.cells import UndecodableError
from ister.schemas.columns.types import DECIMAL_DIGITS_MAX
from ister.schemas.document import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.schemas.avro.types import Type
    from ister.schemas.columns.cells import Value

Read: TypeAlias = "Callable[[bytes, int], tuple[Value, int]]"
"""Reads a value, and returns where it ends."""

DEPTH_MAX: Final = 100
STEPS_SPARE: Final = 10_000
STEPS_PER_BYTE: Final = 4
"""Steps for each byte of a payload; a value of no bytes takes one, too."""

_DECIMAL_BYTES_MAX: Final = 1_000
_EXACT: Final = decimal.Context(prec=4_000)
_VARINT_BYTES_MAX: Final = 10


def check_payload(kind: Type, payload: bytes) -> None:
    """Raise InvalidMessageError unless the payload is one value of this type, and nothing behind it."""
    walk = _Walk(payload)
    try:
        stop = walk.skip(kind, 0)
    except RecursionError:
        raise walk.wrong("is nested too deeply") from None
    except IndexError:
        raise walk.wrong("has a number that does not end, or has more than 64 bits") from None
    except UnicodeDecodeError:
        raise walk.wrong("is a string that is not UTF-8") from None
    except UndecodableError as error:
        raise walk.wrong(str(error)) from None
    if stop != len(payload):
        raise walk.wrong(f"ends at byte {stop}, and {len(payload) - stop} bytes follow")


class _Walk:
    """One walk through a payload."""

    def __init__(self, payload: bytes) -> None:
        self._data = payload
        self._steps = STEPS_SPARE + STEPS_PER_BYTE * len(payload)
        self._path: list[str] = ["$"]

    def wrong(self, reason: str) -> InvalidMessageError:
        """Return the error for the value that was reached."""
        return InvalidMessageError("payload", f"is not of its Avro schema: {shown(''.join(self._path))} {reason}")

    def skip(self, kind: Type, at: int) -> int:
        """Return where the value of a type that begins here ends."""
        self._steps -= 1
        if self._steps < 0:
            raise self.wrong("takes too long to check: it holds more values than a payload of this size may")
        match kind:
            case Primitive():
                if kind.kind in _SIZES:
                    _cut(self._data, at, _SIZES[kind.kind])
                return READERS[kind.kind](self._data, at)[1]
            case Record():
                for one in kind.fields:
                    at = self._inner(one.type, at, f".{one.name}")
                return at
            case Union():
                index, at = self._index(at, len(kind.branches), "branch of its union")
                return self._inner(kind.branches[index], at, "")
            case Enum():
                return self._index(at, len(kind.symbols), "symbol of its enum")[1]
            case Fixed():
                return at + len(_cut(self._data, at, kind.size))
            case Array():
                return self._blocks(kind.items, at, "[]")
            case Map():
                return self._blocks(kind.values, at, "{}")

    def _inner(self, kind: Type, at: int, name: str) -> int:
        path = self._path
        path.append(name)
        if len(path) > DEPTH_MAX:
            raise self.wrong(f"is nested deeper than {DEPTH_MAX} levels")
        at = self.skip(kind, at)
        path.pop()
        return at

    def _blocks(self, kind: Type, at: int, name: str) -> int:
        while True:
            count, at = long(self._data, at)
            if count == 0:
                return at
            stop = None
            if count < 0:
                size, at = long(self._data, at)
                count, stop = -count, at + size
            for _ in range(count):
                if name == "{}":
                    at = string(self._data, at)[1]
                at = self._inner(kind, at, name)
            if stop is not None and at != stop:
                raise self.wrong(f"has a block that says it ends at byte {stop}, and ends at {at}")

    def _index(self, at: int, count: int, what: str) -> tuple[int, int]:
        index, at = long(self._data, at)
        if not 0 <= index < count:
            raise self.wrong(f"is number {index}, and there is no such {what}")
        return index, at


def enum(symbols: tuple[str, ...]) -> Read:
    """Return the reader of a symbol."""

    def read(data: bytes, at: int) -> tuple[Value, int]:
        index, at = long(data, at)
        if not 0 <= index < len(symbols):
            raise UndecodableError(f"takes symbol {index} of an enum of {len(symbols)}")
        return symbols[index], at

    return read


def sized(size: int) -> Read:
    """Return the reader of a number of bytes."""

    def read(data: bytes, at: int) -> tuple[Value, int]:
        return _cut(data, at, size), at + size

    return read


def _cut(data: bytes, at: int, size: int) -> bytes:
    if not 0 <= size <= len(data) - at:
        raise UndecodableError(f"has {len(data) - at} bytes left, and needs {size}")
    return data[at : at + size]


def long(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of up to 64 bits."""
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
    number, at = long(data, at)
    if not -INT_MAX - 1 <= number <= INT_MAX:
        raise UndecodableError("has an int of more than 32 bits")
    return number, at


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = long(data, at)
    return _cut(data, at, size), at + size


def string(data: bytes, at: int) -> tuple[str, int]:
    """Read a text."""
    byte = data[at]
    if byte < 0x80 and not byte & 1 and byte >> 1 < len(data) - at:  # most texts are short, and this halves their time
        stop = at + 1 + (byte >> 1)
        return data[at + 1 : stop].decode(), stop
    size, at = long(data, at)
    return _cut(data, at, size).decode(), at + size


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise UndecodableError("has a boolean that is neither 0 nor 1")
    return data[at] == 1, at + 1


def _float(data: bytes, at: int) -> tuple[float, int]:
    return _FLOAT.unpack_from(data, at)[0], at + 4


def _double(data: bytes, at: int) -> tuple[float, int]:
    return _DOUBLE.unpack_from(data, at)[0], at + 8


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
    return number if precision <= DECIMAL_DIGITS_MAX else f"{number:f}"


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


_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")
_SIZES: Final = {"boolean": 1, "float": 4, "double": 8}
READERS: Final[dict[str, Read]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": long,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": string,
}
