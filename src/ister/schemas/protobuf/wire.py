"""Protobuf's wire format: reads numbers, texts, messages, maps and groups, and checks payloads without building values.

The library is not used for this, on purpose: it gives each embedded message all of its memory, so two bytes of one with
thousands of fields cost up to 64 kilobytes. It also takes a known field of another wire type for an unknown one, so
nearly any bytes would do. Here such a field is refused; fields of unknown numbers are fine, a newer writer may have them.

A message that is there twice is one message, in two pieces (so Protobuf has it), and is read when all pieces are known.
Only a group that is there twice is refused.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, TypeAlias

from ister.core.errors import InvalidMessageError
from ister.schemas.columns.cells import UndecodableError
from ister.schemas.document import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ister.schemas.columns.cells import FieldBudget, Value
    from ister.schemas.protobuf.types import Field, Message

Row: TypeAlias = "dict[str, Value]"
Scalar: TypeAlias = "Callable[[bytes, int], tuple[Value, int]]"
"""Reads a value, and returns where it ends."""
Read: TypeAlias = "Callable[[bytes, int, int, int], tuple[Value, int]]"
"""Reads a message in [at, stop), or up to the end of the group of a number; returns where it ends."""
FieldReader: TypeAlias = "Callable[[Row, bytes, int, int], int]"
"""Reads a field into a row, and returns where it ends."""

VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = range(6)
WIRE: Final = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool", "enum"), VARINT),
    **dict.fromkeys(("fixed64", "sfixed64", "double"), FIXED64),
    **dict.fromkeys(("fixed32", "sfixed32", "float"), FIXED32),
    **dict.fromkeys(("string", "bytes", "message"), BYTES),
    "group": GROUP,
}
DEPTH_MAX: Final = 100
_PACKABLE: Final = frozenset({VARINT, FIXED64, FIXED32})
_VARINT_BYTES_MAX: Final = 10
_SHORT_BYTES_MAX: Final = 5
_NUMBER_MAX: Final = (1 << 29) - 1


def check_payload(root: str, messages: Mapping[str, Message], payload: bytes) -> None:
    """Raise InvalidMessageError unless the payload is one message of this name."""
    walk = _Walk(messages, payload)
    try:
        walk.message(messages[root], 0, len(payload))
    except (IndexError, UndecodableError):
        raise walk.wrong("has a number that does not end") from None
    except UnicodeDecodeError:
        raise walk.wrong("is a string that is not UTF-8") from None


class _Walk:
    """One walk through a payload; every byte is looked at once."""

    def __init__(self, messages: Mapping[str, Message], payload: bytes) -> None:
        self._messages = messages
        self._data = payload
        self._path: list[str] = ["$"]

    def message(self, message: Message | None, at: int, stop: int, group: int = 0) -> int:
        """Go through a message in [at, stop), or up to the end of its group; None is one of which nothing is known."""
        if len(self._path) > DEPTH_MAX:
            raise self.wrong(f"is nested deeper than {DEPTH_MAX} levels")
        seen = set()
        while at < stop:
            tag, at = self._short(at, stop)
            number, wire = tag >> 3, tag & 7
            if wire == GROUP_END:
                if not group or number != group:
                    raise self.wrong("ends a group that did not begin")
                group = 0
                break
            if not 1 <= number <= _NUMBER_MAX:
                raise self.wrong(f"has a field of number {number}")
            field = None if message is None else message.fields.get(number)
            if field is None:
                at = self._unknown(number, wire, at, stop)
            else:
                seen.add(number)
                self._path.append(f".{field.name}")
                at = self._known(field, wire, at, stop)
                self._path.pop()
        if group:
            raise self.wrong("has a group that does not end")
        if message is not None:
            for field in message.fields.values():
                if field.required and field.number not in seen:
                    raise self.wrong(f"has no {field.name}, which is required")
        return at

    def _known(self, field: Field, wire: int, at: int, stop: int) -> int:
        wanted = WIRE[field.kind]
        if wire != wanted:
            if wire == BYTES and field.repeated and wanted in _PACKABLE:
                return self._packed(wanted, at, stop)
            raise self.wrong(f"has wire type {wire}; a field of type {field.kind} has {wanted}")
        if wire == GROUP:
            return self.message(self._target(field), at, stop, field.number)
        end = self._skip(wire, at, stop)
        if field.kind == "message":
            self.message(self._target(field), self._short(at, stop)[1], end)
        elif field.kind == "string":
            start = self._short(at, stop)[1]
            self._data[start:end].decode()
        return end

    def _target(self, field: Field) -> Message:
        assert field.target is not None, "a message has a type"
        return self._messages[field.target]

    def _unknown(self, number: int, wire: int, at: int, stop: int) -> int:
        if wire != GROUP:
            return self._skip(wire, at, stop)
        self._path.append(f".{number}")
        at = self.message(None, at, stop, number)
        self._path.pop()
        return at

    def _packed(self, wire: int, at: int, stop: int) -> int:
        end = self._skip(BYTES, at, stop)
        at = self._short(at, stop)[1]
        while at < end:
            at = self._skip(wire, at, end)
        return end

    def _skip(self, wire: int, at: int, stop: int) -> int:
        """Return where a value of a wire type ends."""
        if wire == VARINT:
            return self._varint(at, stop)[1]
        if wire == BYTES:
            size, at = self._short(at, stop)
        elif wire in {FIXED64, FIXED32}:
            size = 8 if wire == FIXED64 else 4
        else:
            raise self.wrong(f"has a field of wire type {wire}, which does not exist")
        if size > stop - at:
            raise self.wrong(f"has {stop - at} bytes left, and needs {size}")
        return at + size

    def _short(self, at: int, stop: int) -> tuple[int, int]:
        """Read a tag or a size, which have 32 bits at most, however they are written."""
        return self._varint(at, min(stop, at + _SHORT_BYTES_MAX))

    def _varint(self, at: int, stop: int) -> tuple[int, int]:
        number, end = varint(self._data, at)
        if end > stop:
            raise self.wrong("has a number that does not end")
        return number, end

    def wrong(self, reason: str) -> InvalidMessageError:
        """Return the error for the field that was reached."""
        return InvalidMessageError("payload", f"is not of its Protobuf schema: {shown(''.join(self._path))} {reason}")


def read_message(
    places: Mapping[int, FieldReader],
    numbers: frozenset[int],
    late: Sequence[tuple[str, Read]],
    absent: Sequence[tuple[str, Callable[[], Value]]],
    finish: Callable[[Row], Value],
    fields: FieldBudget,
) -> Read:
    """Return the reader of a message: fields by tag, messages in it by name, what stands for absent fields."""

    def read(data: bytes, at: int, stop: int, group: int) -> tuple[Value, int]:
        fields.take(len(absent))
        row: Row = {}
        while at < stop:
            tag, at = varint(data, at)
            place = places.get(tag)
            if place is not None:
                at = place(row, data, at, stop)
            elif tag & 7 == GROUP_END and tag >> 3 == group != 0:
                group = 0
                break
            else:
                at = _skip(tag, numbers, data, at, stop)
        if at > stop or group:
            raise UndecodableError("has a part that does not end where it should")
        for name, inner in late:
            if name in row:
                row[name] = _joined(inner, data, row[name])
        for name, make in absent:
            if name not in row:
                row[name] = make()
        return finish(row), at

    return read


def into_scalar(name: str, rivals: Sequence[str], scalar: Scalar) -> FieldReader:
    """Return the reader of a single value; what else its oneof holds goes."""

    def place(row: Row, data: bytes, at: int, stop: int) -> int:  # noqa: ARG001  # called as every place
        for rival in rivals:
            row.pop(rival, None)
        row[name], at = scalar(data, at)
        return at

    return place


def into_list(name: str, scalar: Scalar) -> FieldReader:
    """Return the reader of one of many values."""

    def place(row: Row, data: bytes, at: int, stop: int) -> int:  # noqa: ARG001  # called as every place
        value, at = scalar(data, at)
        _list(row, name).append(value)
        return at

    return place


def into_packed(name: str, scalar: Scalar) -> FieldReader:
    """Return the reader of many values in one piece."""

    def place(row: Row, data: bytes, at: int, stop: int) -> int:
        at, end = _sized(data, at, stop)
        found = _list(row, name)
        while at < end:
            value, at = scalar(data, at)
            found.append(value)
        if at > end:
            raise UndecodableError("has a list that does not end where it should")
        return end

    return place


def into_messages(name: str, read: Read) -> FieldReader:
    """Return the reader of one of many messages."""

    def place(row: Row, data: bytes, at: int, stop: int) -> int:
        at, end = _sized(data, at, stop)
        _list(row, name).append(read(data, at, end, 0)[0])
        return end

    return place


def into_pieces(name: str, rivals: Sequence[str]) -> FieldReader:
    """Return the reader that notes where a piece of a single message is."""

    def place(row: Row, data: bytes, at: int, stop: int) -> int:
        for rival in rivals:
            row.pop(rival, None)
        at, end = _sized(data, at, stop)
        _list(row, name).extend((at, end))
        return end

    return place


def into_map(name: str, read: Read) -> FieldReader:
    """Return the reader of an entry of a map; of two with one key the later one counts."""

    def place(row: Row, data: bytes, at: int, stop: int) -> int:
        at, end = _sized(data, at, stop)
        entry = read(data, at, end, 0)[0]
        found = row.setdefault(name, {})
        assert isinstance(entry, dict), "an entry is a message"
        assert isinstance(found, dict), "a map is a dict"
        found[_key(entry["key"])] = entry["value"]
        return end

    return place


def into_group(name: str, number: int, rivals: Sequence[str], read: Read) -> FieldReader:
    """Return the reader of a single group."""

    def place(row: Row, data: bytes, at: int, stop: int) -> int:
        for rival in rivals:
            row.pop(rival, None)
        if name in row:
            raise UndecodableError("has a group twice")
        row[name], at = read(data, at, stop, number)
        return at

    return place


def into_groups(name: str, number: int, read: Read) -> FieldReader:
    """Return the reader of one of many groups."""

    def place(row: Row, data: bytes, at: int, stop: int) -> int:
        value, at = read(data, at, stop, number)
        _list(row, name).append(value)
        return at

    return place


def scalar_of(kind: str, names: Mapping[int, str]) -> Scalar:
    """Return the reader of values of a kind; an enum's are read by their names."""
    if kind == "enum":
        return lambda data, at: _named(names, data, at)
    return _SCALARS[kind]


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of up to 64 bits."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    number = byte & 0x7F
    for index in range(1, _VARINT_BYTES_MAX):
        byte = data[at + index]
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number & 0xFFFF_FFFF_FFFF_FFFF, at + index + 1
    raise UndecodableError("has a number that does not end")


def _skip(tag: int, numbers: frozenset[int], data: bytes, at: int, stop: int) -> int:
    """Go over a field that is not known, and over all that is in it if it is a group."""
    if tag >> 3 in numbers:
        raise UndecodableError(f"has field {tag >> 3} with wire type {tag & 7}")
    open_groups: list[int] = []
    while True:
        number, wire = tag >> 3, tag & 7
        if not number:
            raise UndecodableError("has a field of number 0")
        match wire:
            case 0:
                at = varint(data, at)[1]
            case 1:
                at += 8
            case 2:
                at = _sized(data, at, stop)[1]
            case 3:
                open_groups.append(number)
            case 5:
                at += 4
            case 4 if open_groups and open_groups.pop() == number:
                pass
            case _:
                raise UndecodableError(f"has field {number} with wire type {wire}")
        if at > stop:
            raise UndecodableError("ends too early")
        if not open_groups:
            return at
        tag, at = varint(data, at)


def _sized(data: bytes, at: int, stop: int) -> tuple[int, int]:
    size, at = varint(data, at)
    if size > stop - at:
        raise UndecodableError(f"has {stop - at} bytes left, and needs {size}")
    return at, at + size


def _joined(read: Read, data: bytes, pieces: Value) -> Value:
    """Read a message of which the pieces are known."""
    assert isinstance(pieces, list), "a list of starts and stops"
    spans: list[int] = pieces  # type: ignore[assignment]  # what into_pieces has noted
    if len(spans) == 2:
        return read(data, spans[0], spans[1], 0)[0]
    whole = b"".join(data[start:stop] for start, stop in zip(spans[::2], spans[1::2], strict=True))
    return read(whole, 0, len(whole), 0)[0]


def _list(row: Row, name: str) -> list[Value]:
    found = row.get(name)
    if found is None:
        found = row[name] = []
    assert isinstance(found, list), "a field has one place"
    return found


def _key(value: Value) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _named(names: Mapping[int, str], data: bytes, at: int) -> tuple[Value, int]:
    number, at = _int32(data, at)
    return names.get(number) or str(number), at


def _int64(data: bytes, at: int) -> tuple[int, int]:
    number, at = varint(data, at)
    return number - ((number >> 63) << 64), at


def _int32(data: bytes, at: int) -> tuple[int, int]:
    number, at = _int64(data, at)
    if not -(1 << 31) <= number < 1 << 31:
        raise UndecodableError("has a number of more than 32 bits")
    return number, at


def _uint32(data: bytes, at: int) -> tuple[int, int]:
    number, at = varint(data, at)
    if number >> 32:
        raise UndecodableError("has a number of more than 32 bits")
    return number, at


def _sint64(data: bytes, at: int) -> tuple[int, int]:
    number, at = varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _sint32(data: bytes, at: int) -> tuple[int, int]:
    number, at = _uint32(data, at)
    return (number >> 1) ^ -(number & 1), at


def _bool(data: bytes, at: int) -> tuple[bool, int]:
    number, at = varint(data, at)
    return number != 0, at


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    at, end = _sized(data, at, len(data))
    return data[at:end], end


def _string(data: bytes, at: int) -> tuple[str, int]:
    at, end = _sized(data, at, len(data))
    return data[at:end].decode(), end


def _fixed(form: str) -> Scalar:
    unpack, size = struct.Struct(form).unpack_from, struct.calcsize(form)
    return lambda data, at: (unpack(data, at)[0], at + size)


_SCALARS: Final[dict[str, Scalar]] = {
    "int32": _int32,
    "int64": _int64,
    "uint32": _uint32,
    "uint64": varint,
    "sint32": _sint32,
    "sint64": _sint64,
    "bool": _bool,
    "fixed32": _fixed("<I"),
    "fixed64": _fixed("<Q"),
    "sfixed32": _fixed("<i"),
    "sfixed64": _fixed("<q"),
    "float": _fixed("<f"),
    "double": _fixed("<d"),
    "string": _string,
    "bytes": _bytes,
}
