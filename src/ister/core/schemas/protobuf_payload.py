"""Decide whether bytes are one message of a Protobuf schema: nothing is built, nothing is trusted.

The library is not used for this, on purpose: it gives each embedded message all of its memory, so two bytes of one with
thousands of fields cost up to 64 kilobytes. It also takes a known field of another wire type for an unknown one, so
nearly any bytes would do. Here such a field is refused; fields of unknown numbers are fine, a newer writer may have them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ister.core.errors import InvalidMessageError
from ister.core.schemas.document import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ister.core.schemas.protobuf_types import Field, Message

DEPTH_MAX: Final = 100
VARINT_BYTES_MAX: Final = 10
SHORT_BYTES_MAX: Final = 5
NUMBER_MAX: Final = (1 << 29) - 1

_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)
_WIRE: Final = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool", "enum"), _VARINT),
    **dict.fromkeys(("fixed64", "sfixed64", "double"), _FIXED64),
    **dict.fromkeys(("fixed32", "sfixed32", "float"), _FIXED32),
    **dict.fromkeys(("string", "bytes", "message"), _BYTES),
    "group": _GROUP,
}
_PACKABLE: Final = frozenset({_VARINT, _FIXED64, _FIXED32})


def check_payload(root: str, messages: Mapping[str, Message], payload: bytes) -> None:
    """Raise InvalidMessageError unless the payload is one message of this name."""
    _Walk(messages, payload).message(messages[root], 0, len(payload))


class _Walk:
    """One walk through a payload; every byte is looked at once."""

    def __init__(self, messages: Mapping[str, Message], payload: bytes) -> None:
        self._messages = messages
        self._data = payload
        self._path: list[str] = ["$"]

    def message(self, message: Message | None, at: int, stop: int, group: int = 0) -> int:
        """Go through a message in [at, stop), or up to the end of its group; None is one of which nothing is known."""
        if len(self._path) > DEPTH_MAX:
            raise self._wrong(f"is nested deeper than {DEPTH_MAX} levels")
        seen = set()
        while at < stop:
            tag, at = self._short(at, stop)
            number, wire = tag >> 3, tag & 7
            if wire == _GROUP_END:
                if not group or number != group:
                    raise self._wrong("ends a group that did not begin")
                group = 0
                break
            if not 1 <= number <= NUMBER_MAX:
                raise self._wrong(f"has a field of number {number}")
            field = None if message is None else message.fields.get(number)
            if field is None:
                at = self._unknown(number, wire, at, stop)
            else:
                seen.add(number)
                self._path.append(f".{field.name}")
                at = self._known(field, wire, at, stop)
                self._path.pop()
        if group:
            raise self._wrong("has a group that does not end")
        if message is not None:
            for field in message.fields.values():
                if field.required and field.number not in seen:
                    raise self._wrong(f"has no {field.name}, which is required")
        return at

    def _known(self, field: Field, wire: int, at: int, stop: int) -> int:
        wanted = _WIRE[field.kind]
        if wire != wanted:
            if wire == _BYTES and field.repeated and wanted in _PACKABLE:
                return self._packed(wanted, at, stop)
            raise self._wrong(f"has wire type {wire}; a field of type {field.kind} has {wanted}")
        if wire == _GROUP:
            return self.message(self._target(field), at, stop, field.number)
        end = self._skip(wire, at, stop)
        if field.kind == "message":
            self.message(self._target(field), self._short(at, stop)[1], end)
        elif field.kind == "string":
            start = self._short(at, stop)[1]
            try:
                self._data[start:end].decode()
            except UnicodeDecodeError:
                raise self._wrong("is a string that is not UTF-8") from None
        return end

    def _target(self, field: Field) -> Message:
        assert field.target is not None, "a message has a type"
        return self._messages[field.target]

    def _unknown(self, number: int, wire: int, at: int, stop: int) -> int:
        if wire != _GROUP:
            return self._skip(wire, at, stop)
        self._path.append(f".{number}")
        at = self.message(None, at, stop, number)
        self._path.pop()
        return at

    def _packed(self, wire: int, at: int, stop: int) -> int:
        end = self._skip(_BYTES, at, stop)
        at = self._short(at, stop)[1]
        while at < end:
            at = self._skip(wire, at, end)
        return end

    def _skip(self, wire: int, at: int, stop: int) -> int:
        """Return where a value of a wire type ends."""
        if wire == _VARINT:
            return self._varint(at, stop)[1]
        if wire == _BYTES:
            size, at = self._short(at, stop)
        elif wire in {_FIXED64, _FIXED32}:
            size = 8 if wire == _FIXED64 else 4
        else:
            raise self._wrong(f"has a field of wire type {wire}, which does not exist")
        if size > stop - at:
            raise self._wrong(f"has {stop - at} bytes left, and needs {size}")
        return at + size

    def _short(self, at: int, stop: int) -> tuple[int, int]:
        """Read a tag or a size, which have 32 bits at most, however they are written."""
        return self._varint(at, min(stop, at + SHORT_BYTES_MAX))

    def _varint(self, at: int, stop: int) -> tuple[int, int]:
        data = self._data
        number = shift = 0
        for index in range(at, min(at + VARINT_BYTES_MAX, stop)):
            byte = data[index]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number & 0xFFFF_FFFF_FFFF_FFFF, index + 1
            shift += 7
        raise self._wrong("has a number that does not end")

    def _wrong(self, reason: str) -> InvalidMessageError:
        return InvalidMessageError("payload", f"is not of its Protobuf schema: {shown(''.join(self._path))} {reason}")
