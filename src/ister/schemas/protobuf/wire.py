"""Protobuf's wire format: one walk through a payload, which builds values or only checks them.

The library is not used for this, on purpose: it gives each embedded message all of its memory, so two bytes of one with
thousands of fields cost up to 64 kilobytes. It also takes a known field of another wire type for an unknown one, so
nearly any bytes would do. Here such a field is refused; fields of unknown numbers are fine, a newer writer may have them.

A message that is there twice is one message, in two pieces (so Protobuf has it), and is built when all pieces are known.
Only a group that is there twice is refused. A check reads every piece on its own.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

from ister.schemas.columns.cells import UndecodableError
from ister.schemas.walk import MALFORMED, field_budget, fixed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ister.schemas.columns.cells import Value
    from ister.schemas.protobuf.types import Message
    from ister.schemas.walk import Read

Row: TypeAlias = "dict[str, Value]"
ReadMessage: TypeAlias = "Callable[[bytes, int, int, int], tuple[Value, int]]"
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
_VARINT_BYTES_MAX: Final = 10
_SHORT_BYTES_MAX: Final = 5
_NUMBER_MAX: Final = (1 << 29) - 1
_ENDLESS: Final = "has a number that does not end"
_DROPPED: Final[deque[Value]] = deque(maxlen=0)


class Walker:
    """Compiles fields and messages to functions that read them; these build values, or only check them.

    A check is stricter about tags and sizes: they have 32 bits at most, however they are written. Limits are counted in
    the walker, so it serves one thread at a time.
    """

    def __init__(self, *, build: bool) -> None:
        self._build = build
        self._fields = field_budget()
        self._depth = 0
        self._depth_max = sys.maxsize if build else DEPTH_MAX
        self._short = varint if build else _short
        self._sized = _sized_by(self._short)
        self._list = _list if build else _drop
        self._late: dict[str, ReadMessage] = {}

    def walk(self, read: ReadMessage) -> Callable[[bytes], Value]:
        """Return what reads a payload of one message; it raises what MALFORMED lists."""

        def walk(payload: bytes) -> Value:
            self._depth = 0
            self._fields.begin(payload)
            return read(payload, 0, len(payload), 0)[0]

        return walk

    def late(self, name: str, compile_message: Callable[[], ReadMessage]) -> ReadMessage:
        """Return the reader of a message that is compiled when first read, for messages lead in circles."""
        if name in self._late:
            return self._late[name]
        compiled: list[ReadMessage] = []

        def read(data: bytes, at: int, stop: int, group: int) -> tuple[Value, int]:
            if not compiled:
                compiled.append(compile_message())
            return compiled[0](data, at, stop, group)

        def read_level(data: bytes, at: int, stop: int, group: int) -> tuple[Value, int]:
            self._depth += 1
            if self._depth > DEPTH_MAX:
                raise _too_deep()
            found = read(data, at, stop, group)
            self._depth -= 1
            return found

        self._late[name] = read if self._build else read_level
        return self._late[name]

    def message(
        self,
        message: Message,
        fields: Mapping[int, FieldReader],
        *,
        late: Sequence[tuple[str, ReadMessage]] = (),
        absent: Sequence[tuple[str, Callable[[], Value]]] = (),
        required: Sequence[str] = (),
        finish: Callable[[Row], Value] | None = None,
    ) -> ReadMessage:
        """Return the reader of a message: fields by tag, messages in it by name, what stands for absent fields."""
        short, take, count, field_for = self._short, self._fields.take, len(absent), fields.get

        def read(data: bytes, at: int, stop: int, group: int) -> tuple[Value, int]:
            take(count)
            row: Row = {}
            while at < stop:
                tag, at = short(data, at)
                field = field_for(tag)
                try:
                    if field is not None:
                        at = field(row, data, at, stop)
                    elif tag & 7 == GROUP_END and tag >> 3 == group != 0:
                        group = 0
                        break
                    else:
                        at = self._skip(tag, message, data, at, stop)
                except MALFORMED as error:
                    known = message.fields.get(tag >> 3)
                    error.add_note(f".{tag >> 3 if known is None else known.name}")
                    raise
            if at > stop or group:
                raise UndecodableError("has a part that does not end where it should")
            for name, inner in late:
                if name in row:
                    row[name] = _joined(inner, data, row[name])
            for name, make in absent:
                if name not in row:
                    row[name] = make()
            for name in required:
                if name not in row:
                    raise UndecodableError(f"has no {name}, which is required")
            return row if finish is None else finish(row), at

        return read

    def _skip(self, tag: int, message: Message, data: bytes, at: int, stop: int) -> int:
        """Skip an unknown field, and all that is in it if it is a group."""
        if (known := message.fields.get(tag >> 3)) is not None and tag & 7 != GROUP_END:
            raise UndecodableError(
                f"has wire type {tag & 7} in field {tag >> 3}; the type {known.kind} has {WIRE[known.kind]}"
            )
        open_groups: list[int] = []
        while True:
            number, wire = tag >> 3, tag & 7
            match wire:
                case 4 if open_groups and open_groups.pop() == number:
                    pass
                case 4:
                    raise UndecodableError(f"has wire type 4 in field {number}, which ends a group that did not begin")
                case _ if not number or (number > _NUMBER_MAX and not self._build):
                    raise UndecodableError(f"has a field of number {number}")
                case 0:
                    at = varint(data, at)[1]
                case 1:
                    at += 8
                case 2:
                    at = self._sized(data, at, stop)[1]
                case 3:
                    open_groups.append(number)
                    if self._depth + len(open_groups) > self._depth_max:
                        raise _too_deep()
                case 5:
                    at += 4
                case _:
                    raise UndecodableError(f"has wire type {wire} in field {number}, which does not exist")
            if at > stop or (open_groups and at == stop):
                raise UndecodableError(f"ends too early, in a {'group' if open_groups else 'field'} that does not end")
            if not open_groups:
                return at
            tag, at = self._short(data, at)

    # --- fields -------------------------------------------------------------------------------------------------------

    def one(self, name: str, rivals: Sequence[str], scalar: Read) -> FieldReader:
        """Return the reader of a single value; what else its oneof holds is dropped."""

        def read(row: Row, data: bytes, at: int, stop: int) -> int:  # noqa: ARG001  # called as every field
            for rival in rivals:
                row.pop(rival, None)
            row[name], at = scalar(data, at)
            return at

        return read

    def many(self, name: str, scalar: Read) -> FieldReader:
        """Return the reader of one of many values."""
        listed = self._list

        def read(row: Row, data: bytes, at: int, stop: int) -> int:  # noqa: ARG001  # called as every field
            value, at = scalar(data, at)
            listed(row, name).append(value)
            return at

        return read

    def packed(self, name: str, scalar: Read) -> FieldReader:
        """Return the reader of many values in one piece."""
        listed, sized = self._list, self._sized

        def read(row: Row, data: bytes, at: int, stop: int) -> int:
            at, end = sized(data, at, stop)
            found = listed(row, name)
            while at < end:
                value, at = scalar(data, at)
                found.append(value)
            if at > end:
                raise UndecodableError("has a list that does not end where it should")
            return end

        return read

    def messages(self, name: str, inner: ReadMessage) -> FieldReader:
        """Return the reader of one of many messages."""
        listed, sized = self._list, self._sized

        def read(row: Row, data: bytes, at: int, stop: int) -> int:
            at, end = sized(data, at, stop)
            listed(row, name).append(inner(data, at, end, 0)[0])
            return end

        return read

    def pieces(self, name: str, rivals: Sequence[str]) -> FieldReader:
        """Return the reader that notes where a piece of a single message is."""
        sized = self._sized

        def read(row: Row, data: bytes, at: int, stop: int) -> int:
            for rival in rivals:
                row.pop(rival, None)
            at, end = sized(data, at, stop)
            _list(row, name).extend((at, end))
            return end

        return read

    def entries(self, name: str, inner: ReadMessage) -> FieldReader:
        """Return the reader of an entry of a map; of two with one key the later one counts."""
        sized = self._sized

        def read(row: Row, data: bytes, at: int, stop: int) -> int:
            at, end = sized(data, at, stop)
            entry = inner(data, at, end, 0)[0]
            found = row.setdefault(name, {})
            assert isinstance(entry, dict), "an entry is a message"
            assert isinstance(found, dict), "a map is a dict"
            key = entry["key"]
            found[key if isinstance(key, str) else str(key).lower()] = entry["value"]
            return end

        return read

    def group(self, name: str, number: int, rivals: Sequence[str], inner: ReadMessage) -> FieldReader:
        """Return the reader of a single group."""

        def read(row: Row, data: bytes, at: int, stop: int) -> int:
            for rival in rivals:
                row.pop(rival, None)
            if name in row:
                raise UndecodableError("has a group twice")
            row[name], at = inner(data, at, stop, number)
            return at

        return read

    def scalar(self, kind: str, names: Mapping[int, str]) -> Read:
        """Return the reader of values of a kind; an enum's are read by their names. For a check a number is a number."""
        sized = self._sized

        def read_bytes(data: bytes, at: int) -> tuple[Value, int]:
            at, end = sized(data, at, len(data))
            return data[at:end], end

        def read_string(data: bytes, at: int) -> tuple[Value, int]:
            at, end = sized(data, at, len(data))
            return data[at:end].decode(), end

        def read_enum(data: bytes, at: int) -> tuple[Value, int]:
            number, at = _int32(data, at)
            return names.get(number) or str(number), at

        if not self._build and WIRE[kind] == VARINT:
            return varint
        return {"bytes": read_bytes, "string": read_string, "enum": read_enum}.get(kind) or _NUMBERS[kind]


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
    raise UndecodableError(_ENDLESS)


def _short(data: bytes, at: int) -> tuple[int, int]:
    """Read a tag or a size as a check does: of 32 bits, in five bytes at most."""
    number, end = varint(data, at)
    if end - at > _SHORT_BYTES_MAX:
        raise UndecodableError(_ENDLESS)
    return number, end


def _sized_by(short: Callable[[bytes, int], tuple[int, int]]) -> Callable[[bytes, int, int], tuple[int, int]]:
    def sized(data: bytes, at: int, stop: int) -> tuple[int, int]:
        size, at = short(data, at)
        if size > stop - at:
            raise UndecodableError(f"has {stop - at} bytes left, and needs {size}")
        return at, at + size

    return sized


def _joined(read: ReadMessage, data: bytes, pieces: Value) -> Value:
    """Read a message of which the pieces are known."""
    assert isinstance(pieces, list), "a list of starts and stops"
    spans: list[int] = pieces  # type: ignore[assignment]  # what `pieces` has noted
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


def _drop(row: Row, name: str) -> deque[Value]:
    """Record that a field is present; what is appended to the result is dropped."""
    row[name] = None
    return _DROPPED


def _too_deep() -> UndecodableError:
    return UndecodableError(f"is nested deeper than {DEPTH_MAX} levels")


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


_NUMBERS: Final[dict[str, Read]] = {
    "int32": _int32,
    "int64": _int64,
    "uint32": _uint32,
    "uint64": varint,
    "sint32": _sint32,
    "sint64": _sint64,
    "bool": _bool,
    "fixed32": fixed("<I"),
    "fixed64": fixed("<Q"),
    "sfixed32": fixed("<i"),
    "sfixed64": fixed("<q"),
    "float": fixed("<f"),
    "double": fixed("<d"),
}
