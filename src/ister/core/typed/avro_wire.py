"""Decide what bytes in Avro's binary form mean, value by value, and what those of logical types stand for."""

from __future__ import annotations

import decimal
import struct
from typing import TYPE_CHECKING, Final, TypeAlias

from ister.core.schemas.avro_types import INT_MAX
from ister.core.typed.fit import UndecodableError
from ister.core.typed.shape import DECIMAL_DIGITS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.core.typed.fit import Value

Read: TypeAlias = "Callable[[bytes, int], tuple[Value, int]]"
"""Reads a value, and returns where it ends."""

_DECIMAL_BYTES_MAX: Final = 1_000
_EXACT: Final = decimal.Context(prec=4_000)
_VARINT_BYTES_MAX: Final = 10


def enum(symbols: tuple[str, ...]) -> Read:
    """Return what reads one of some words."""

    def read(data: bytes, at: int) -> tuple[Value, int]:
        index, at = long(data, at)
        if not 0 <= index < len(symbols):
            raise UndecodableError(f"takes symbol {index} of an enum of {len(symbols)}")
        return symbols[index], at

    return read


def sized(size: int) -> Read:
    """Return what reads so many bytes."""

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
    """Return a decimal, or its text when no column can hold so many digits."""
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
