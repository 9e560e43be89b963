"""Compatibility of Avro schemas: whether a reader can read what a writer with another schema has written.

Avro's own rules of resolution, with two differences. Where Avro's implementations disagree about which branch of a
reader's union they take, all of those that could be taken must do. And a field that the writer lacks may be missing
without a default when null is one of its types: the protocol says so, although Avro's own decoders ask for the default.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from ister.schemas.avro.types import Array, Enum, Fixed, Map, Primitive, Record, Union, word_for
from ister.schemas.document import shown

if TYPE_CHECKING:
    from ister.schemas.avro.schema import AvroSchema
    from ister.schemas.avro.types import Type

PAIRS_MAX: Final = 100_000
REASONS_MAX: Final = 20

_PROMOTIONS: Final = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}


def unreadable(reader: AvroSchema, writer: AvroSchema) -> list[str]:
    """Return why not everything that the writer writes can be read; empty when it can.

    Every pair of types is compared once. A pair that leads back to itself fits unless something else in it does not.
    """
    reasons: list[str] = []
    seen: set[tuple[int, int]] = set()
    work: list[_TypePair] = [_TypePair("$", reader.root, writer.root)]
    while work and len(reasons) < REASONS_MAX:
        pair = work.pop()
        key = (id(pair.reader), id(pair.writer))
        if key in seen:
            continue
        seen.add(key)
        if len(seen) > PAIRS_MAX:
            return ["the schemas are too large to be compared"]
        outcome = _compare(*pair)
        if isinstance(outcome, str):
            reasons.append(f"{shown(pair.path)}: {shown(outcome)}")
        else:
            work += reversed(outcome)
    return reasons


class _TypePair(NamedTuple):
    """Two types, of which one may have to read the other."""

    path: str
    reader: Type
    writer: Type


def _compare(path: str, reader: Type, writer: Type) -> list[_TypePair] | str:
    """Return what must fit for these two to fit, or why they do not."""
    if isinstance(writer, Union):
        return [_TypePair(path, reader, branch) for branch in writer.branches]
    if isinstance(reader, Union):
        branches = [_TypePair(path, branch, writer) for branch in reader.branches if _may_match(branch, writer)]
        return branches or f"the reader's union has no place for {word_for(writer)}"
    if not _may_match(reader, writer):
        return f"{word_for(writer)} cannot be read as {word_for(reader)}"
    match reader, writer:
        case Array(), Array():
            return [_TypePair(f"{path}[]", reader.items, writer.items)]
        case Map(), Map():
            return [_TypePair(f"{path}{{}}", reader.values, writer.values)]
        case Record(), Record():
            return _compare_records(path, reader, writer)
        case Enum(), Enum():
            lost = set(writer.symbols) - set(reader.symbols)
            if lost and reader.default is None:
                return f"the reader's enum {reader.name} has no symbol {min(lost)}, and no default"
            return []
        case Fixed(), Fixed() if reader.size != writer.size:
            return f"fixed {reader.name} has {writer.size} bytes, the reader takes {reader.size}"
        case (Fixed() | Primitive(), Fixed() | Primitive()):
            # Without a logical type the bytes are taken for what they are; with another they mean another thing.
            if reader.logical and writer.logical and reader.logical != writer.logical:
                return f"the logical type changes from {writer.logical} to {reader.logical}"
            return []
        case _:
            raise AssertionError(path)


def _compare_records(path: str, reader: Record, writer: Record) -> list[_TypePair] | str:
    """Pair fields. Where decoders disagree about an alias, it neither brings a value nor excuses one."""
    written = {one.name: one.type for one in writer.fields}
    aliases = Counter(alias for one in reader.fields for alias in one.aliases)
    names = {one.name for one in reader.fields}
    pairs = []
    for wanted in reader.fields:
        found = [name for name in dict.fromkeys((wanted.name, *wanted.aliases)) if name in written]
        if len(found) > 1:
            return f"the writer has both the fields {found[0]} and {found[1]}, which are one to the reader"
        pairs += [_TypePair(f"{path}.{wanted.name}", wanted.type, written[name]) for name in found]
        certain = any(name == wanted.name or (aliases[name] == 1 and name not in names) for name in found)
        nullable = isinstance(wanted.type, Union) and len(wanted.type.not_null) < len(wanted.type.branches)
        if not (certain or wanted.has_default or nullable):
            return f"the writer has no field {wanted.name}, and it has neither a default nor null"
    return pairs


def _may_match(reader: Type, writer: Type) -> bool:
    """Return True if a decoder that compares only kinds and names would read one as the other."""
    match reader, writer:
        case Primitive(), Primitive():
            return reader.kind == writer.kind or reader.kind in _PROMOTIONS.get(writer.kind, ())
        case Fixed() | Enum() | Record(), Fixed() | Enum() | Record():
            return type(reader) is type(writer) and _same_name(reader, writer)
        case _:
            return type(reader) is type(writer)


def _same_name(reader: Fixed | Enum | Record, writer: Fixed | Enum | Record) -> bool:
    """Return True if two types match by Avro's rule: the last part of the name, or an alias of the reader."""
    return reader.name.rpartition(".")[2] == writer.name.rpartition(".")[2] or writer.name in reader.aliases
