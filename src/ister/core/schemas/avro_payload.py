"""Decide whether bytes are one value of an Avro schema: nothing is built, nothing is trusted.

fastavro is not used for this, on purpose. It recurses in C, so a payload of 100 kB of nested records ends the process,
and it believes an array's count, so ten bytes fill the memory. A broker takes payloads from anyone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ister.core.errors import InvalidMessageError
from ister.core.schemas.avro_types import INT_MAX, LONG_MAX, Array, Enum, Fixed, Map, Primitive, Record, Union
from ister.core.schemas.document import shown

if TYPE_CHECKING:
    from ister.core.schemas.avro_types import Type

DEPTH_MAX: Final = 100
STEPS_SPARE: Final = 10_000
STEPS_PER_BYTE: Final = 4
"""A value of no bytes costs a step, too; so many steps may be taken for each byte that there is."""
VARINT_BYTES_MAX: Final = 10


def check_payload(kind: Type, payload: bytes) -> None:
    """Raise InvalidMessageError unless the payload is one value of this type, and nothing behind it."""
    walk = _Walk(payload)
    try:
        stop = walk.skip(kind, 0)
    except RecursionError:
        raise walk.wrong("is nested too deeply") from None
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
                return self._primitive(kind.kind, at)
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
                return self._bytes(kind.size, at)
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
            count, at = self._long(at)
            if count == 0:
                return at
            stop = None
            if count < 0:
                size, at = self._long(at)
                count, stop = -count, at + size
            for _ in range(count):
                if name == "{}":
                    at = self._primitive("string", at)
                at = self._inner(kind, at, name)
            if stop is not None and at != stop:
                raise self.wrong(f"has a block that says it ends at byte {stop}, and ends at {at}")

    def _primitive(self, kind: str, at: int) -> int:
        match kind:
            case "null":
                return at
            case "boolean":
                stop = self._bytes(1, at)
                if self._data[at] > 1:
                    raise self.wrong("is a boolean that is neither 0 nor 1")
                return stop
            case "int":
                number, at = self._long(at)
                if not -INT_MAX - 1 <= number <= INT_MAX:
                    raise self.wrong("is an int of more than 32 bits")
                return at
            case "long":
                return self._long(at)[1]
            case "float":
                return self._bytes(4, at)
            case "double":
                return self._bytes(8, at)
            case _:
                size, at = self._long(at)
                stop = self._bytes(size, at)
                if kind == "string":
                    self._check_text(at, stop)
                return stop

    def _check_text(self, at: int, stop: int) -> None:
        try:
            self._data[at:stop].decode()
        except UnicodeDecodeError:
            raise self.wrong("is a string that is not UTF-8") from None

    def _bytes(self, size: int, at: int) -> int:
        if not 0 <= size <= len(self._data) - at:
            raise self.wrong(f"has {len(self._data) - at} bytes left, and needs {size}")
        return at + size

    def _index(self, at: int, count: int, what: str) -> tuple[int, int]:
        index, at = self._long(at)
        if not 0 <= index < count:
            raise self.wrong(f"is number {index}, and there is no such {what}")
        return index, at

    def _long(self, at: int) -> tuple[int, int]:
        data = self._data
        number = shift = 0
        for index in range(at, min(at + VARINT_BYTES_MAX, len(data))):
            byte = data[index]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                if number > 2 * LONG_MAX + 1:
                    break
                return (number >> 1) ^ -(number & 1), index + 1
            shift += 7
        raise self.wrong("has a number that does not end, or has more than 64 bits")
