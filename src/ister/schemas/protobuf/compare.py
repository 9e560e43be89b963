"""Compatibility of Protobuf schemas: whether a reader reads what a writer with another schema has written.

Messages meet by the numbers of their fields, starting from the first one of each file; what they are called matters only
there, and where a name moves to another number. A change of type is taken when every value survives it: `int32` may be
read as `int64`, but not the other way round, although both are the same on the wire and a decoder would truncate silently.
A field that the reader does not know is skipped, as Protobuf means it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ister.schemas.document import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ister.schemas.protobuf.schema import ProtobufSchema
    from ister.schemas.protobuf.types import Enum, Field, Message

REASONS_MAX: Final = 20
STEPS_MAX: Final = 200_000

_WIDER: Final = {
    "bool": {"int32", "int64", "uint32", "uint64"},
    "int32": {"int64"},
    "uint32": {"uint64", "int64"},
    "enum": {"int32", "int64"},
    "sint32": {"sint64"},
    "string": {"bytes"},
}
"""The types as which a value of a type can be read without a change."""


def unreadable(reader: ProtobufSchema, writer: ProtobufSchema) -> list[str]:
    """Return why not everything that the writer writes can be read; empty when it can."""
    one, other = reader.root.rpartition(".")[2], writer.root.rpartition(".")[2]
    if one != other:
        return [f"$: the first message changes from {other} to {one}"]
    reasons: list[str] = []
    seen = {(reader.root, writer.root)}
    work = [(reader.messages[reader.root], writer.messages[writer.root], "$")]
    steps = 0
    while work and len(reasons) < REASONS_MAX:
        mine, theirs, path = work.pop()
        steps += len(mine.fields) + len(theirs.fields)
        if steps > STEPS_MAX:
            return ["$: the schemas are too large to be compared"]
        reasons += [f"{shown(path)}: {shown(reason)}" for reason in _messages(mine, theirs)]
        for number, field in mine.fields.items():
            written = theirs.fields.get(number)
            if written is None:
                continue
            place = f"{path}.{field.name}"
            reasons += [f"{shown(place)}: {shown(reason)}" for reason in _fields(field, written, reader, writer)]
            if field.kind == written.kind and field.kind in {"message", "group"}:
                pair = field.type_name, written.type_name
                if pair not in seen:
                    seen.add(pair)
                    work.append((reader.messages[pair[0]], writer.messages[pair[1]], place))
    return reasons[:REASONS_MAX]


def reused(new: ProtobufSchema, latest: ProtobufSchema) -> list[str]:
    """Return the numbers and names that the latest version reserves and the new one uses, whatever reads what."""
    reasons = []
    for name, message in new.messages.items():
        if (before := latest.messages.get(name)) is not None:
            reasons += [
                f"{shown(name)}: the field {field.name} = {field.number} is reserved"
                for field in message.fields.values()
                if before.reserved.holds(field.number, field.name)
            ]
    for name, enum in new.enums.items():
        if (earlier := latest.enums.get(name)) is not None:
            reasons += [
                f"{shown(name)}: the value {value} = {number} is reserved"
                for value, number in enum.values.items()
                if earlier.reserved.holds(number, value)
            ]
    return reasons[:REASONS_MAX]


def _messages(reader: Message, writer: Message) -> Iterator[str]:
    numbers = {field.name: number for number, field in writer.fields.items()}
    together: dict[str, set[str | None]] = {}
    for number, field in reader.fields.items():
        written = writer.fields.get(number)
        if field.required and (written is None or not written.required):
            yield f"the reader requires {field.name} = {number}, which the writer may leave out"
        if numbers.get(field.name, number) != number:
            yield f"{field.name} moves from number {numbers[field.name]} to {number}"
        if field.oneof is not None and written is not None:
            origins = together.setdefault(field.oneof, set())
            # Fields of one oneof of the writer are never there together; two others may be.
            origin = f"oneof {written.oneof}" if written.oneof is not None else f"field {number}"
            origins.add(origin)
    for oneof, origins in together.items():
        if len(origins) > 1:
            yield f"the reader keeps one field of the oneof {oneof}, and the writer may write several of them"


def _fields(reader: Field, writer: Field, mine: ProtobufSchema, theirs: ProtobufSchema) -> Iterator[str]:
    if writer.repeated and not reader.repeated:
        yield f"the writer repeats field {writer.number}, and the reader keeps one"
    if reader.kind == writer.kind:
        if reader.kind == "enum":
            yield from _enums(mine.enums[reader.type_name], theirs.enums[writer.type_name])
    elif reader.kind not in _WIDER.get(writer.kind, ()):
        yield f"{writer.kind} cannot be read as {reader.kind} (field {writer.number})"


def _enums(reader: Enum, writer: Enum) -> Iterator[str]:
    for name, number in writer.values.items():
        if reader.values.get(name, number) != number:
            yield f"the enum's value {name} moves from {number} to {reader.values[name]}"
    if reader.closed:
        lost = sorted(set(writer.values.values()) - set(reader.values.values()))
        if lost:
            yield f"the reader's enum {reader.name} has no value {lost[0]}, and drops what it does not know"
        elif not writer.closed:
            yield f"the writer's enum {writer.name} is open, and the reader's drops what it does not know"
