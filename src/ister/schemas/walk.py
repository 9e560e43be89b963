"""What the walks through binary payloads share: limits, errors with their places, and their two uses, check and decode."""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from ister.core.errors import InvalidMessageError
from ister.schemas.columns.cells import CELLS_MAX, UndecodableError, as_json, unchanged
from ister.schemas.columns.types import Struct
from ister.schemas.document import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.schemas.columns.cells import Value
    from ister.schemas.columns.types import Shape

Read: TypeAlias = "Callable[[bytes, int], tuple[Value, int]]"
"""Reads a value, and returns where it ends."""

MALFORMED: Final = (UndecodableError, IndexError, struct.error, UnicodeDecodeError)
"""What a walk raises for bytes that are not of their schema; each level adds its name as a note."""


@dataclass(slots=True)
class Budget:
    """Remaining values of a payload: those that take no bytes would be unbounded."""

    spare: int
    per_byte: int
    reason: str
    left: int = 0

    def begin(self, payload: bytes) -> None:
        """Begin a payload."""
        self.left = self.spare + self.per_byte * len(payload)

    def take(self, values: int) -> None:
        """Take a number of values, or raise UndecodableError."""
        self.left -= values
        if self.left < 0:
            raise UndecodableError(self.reason)


def field_budget() -> Budget:
    """Return the budget of fields to build: one that is null in Avro or not set in proto3 takes no bytes."""
    return Budget(CELLS_MAX, 1, f"gives over {CELLS_MAX} fields more than it has bytes")


class Checker(threading.local):
    """Checks payloads by a walk that builds nothing. The walk counts in itself, so every thread has one of its own."""

    def __init__(self, kind: str, compile_walk: Callable[[], Callable[[bytes], Value]]) -> None:
        self._kind = kind
        self._walk = compile_walk()

    def check(self, payload: bytes) -> None:
        """Raise InvalidMessageError unless a payload is one value of its schema."""
        try:
            self._walk(payload)
        except (*MALFORMED, RecursionError) as error:
            place = "".join(("$", *reversed(getattr(error, "__notes__", ()))))
            reason = f"is not of its {self._kind} schema: {shown(place)} {_reason(error)}"
            raise InvalidMessageError("payload", reason) from None


def decoder(walk: Callable[[bytes], Value], shape: Shape | None) -> Callable[[bytes], Value]:
    """Return the decoder of payloads by a walk that builds values of a shape; it raises UndecodableError."""
    bare = not isinstance(shape, Struct)

    def decode(payload: bytes) -> Value:
        try:
            value = walk(payload)
        except MALFORMED as error:
            raise UndecodableError(_reason(error)) from None
        return {"value": value} if bare else value

    return decode


def fixed(form: str) -> Read:
    """Return the reader of a number of a fixed size."""
    unpack, size = struct.Struct(form).unpack_from, struct.calcsize(form)
    return lambda data, at: (unpack(data, at)[0], at + size)


def converted(read: Read, convert: Callable[[Value], Value]) -> Read:
    """Return a reader whose values are converted."""

    def read_converted(data: bytes, at: int) -> tuple[Value, int]:
        value, at = read(data, at)
        return convert(value), at

    return read_converted


def read_as_json(read: Read, shape: Shape) -> Read:
    """Return a reader of values of a shape that gives them as JSON."""
    convert = as_json(shape)
    return read if convert is unchanged else converted(read, convert)  # type: ignore[arg-type]  # JSON is made of values


def _reason(error: Exception) -> str:
    match error:
        case UnicodeDecodeError():
            return "holds a string that is not UTF-8"
        case IndexError() | struct.error():
            return "ends too early, in a number that does not end"
        case RecursionError():
            return "is nested too deeply"
        case _:
            return str(error)
