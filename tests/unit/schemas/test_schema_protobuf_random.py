"""Protobuf schemas at random: what the library writes under one, it reads unchanged under those called compatible."""

from collections import Counter
from random import Random

from google.protobuf import message_factory

from ister.schemas.protobuf.schema import ProtobufSchema, _build, _from_text
from ister.schemas.schema import unreadable

KINDS = {
    "bool": [True, False],
    "int32": [0, 1, -1, 2**31 - 1, -(2**31)],
    "int64": [0, -1, 2**63 - 1, -(2**63)],
    "uint32": [0, 2**32 - 1],
    "uint64": [0, 2**64 - 1],
    "sint32": [0, -(2**31)],
    "sint64": [0, -(2**63)],
    "fixed32": [2**32 - 1],
    "sfixed64": [-1],
    "float": [1.5],
    "double": [-2.5],
    "string": ["", "é"],
    "bytes": [b"", b"\xff"],
    "E": [0, 1],
    "N": None,
}


def fields(chance: Random) -> dict[int, tuple[str, str]]:
    """Return a label and a type for each of some numbers."""
    numbers = chance.sample(range(1, 5), chance.randint(0, 4))
    return {number: (chance.choice(["", "", "repeated "]), chance.choice(list(KINDS))) for number in numbers}


def changed(chance: Random, made: dict[int, tuple[str, str]]) -> dict[int, tuple[str, str]]:
    made = dict(made)
    wider = {"bool": "int64", "int32": "int64", "uint32": "uint64", "sint32": "sint64", "string": "bytes", "E": "int32"}
    for number, (label, kind) in list(made.items()):
        act = chance.randrange(6)
        if act == 0:
            del made[number]
        elif act == 1:
            made[number] = (label, wider.get(kind, kind))
        elif act == 2:
            made[number] = ("repeated ", kind)
        elif act == 3:
            made[number] = (label, chance.choice(list(KINDS)))
    return made


def text(outer, inner) -> str:
    def body(made) -> str:
        return " ".join(f"{label}{kind} f{number} = {number};" for number, (label, kind) in made.items())

    return f'syntax = "proto3"; message M {{ {body(outer)} }} message N {{ {body(inner)} }} enum E {{ A = 0; B = 1; }}'


def class_of(source: str):
    file = _from_text(source.encode())
    return message_factory.GetMessageClass(_build([file]).FindMessageTypeByName("M"))


def fill(chance: Random, message, depth: int = 3) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None:
            for _ in range(chance.randint(0, 2) if depth else 0):
                inner = getattr(message, field.name)
                fill(chance, inner.add() if field.is_repeated else inner, depth - 1)
                if not field.is_repeated:
                    inner.SetInParent()
            continue
        values = KINDS["E" if field.enum_type else _kind(field)]
        if field.is_repeated:
            getattr(message, field.name).extend(chance.choices(values, k=chance.randint(0, 3)))
        else:
            setattr(message, field.name, chance.choice(values))


def _kind(field) -> str:
    words = {
        1: "double",
        2: "float",
        3: "int64",
        4: "uint64",
        5: "int32",
        7: "fixed32",
        8: "bool",
        9: "string",
        12: "bytes",
    }
    words |= {13: "uint32", 16: "sfixed64", 17: "sint32", 18: "sint64"}
    return words[field.type]


def survives(written, read) -> bool:
    """Tell whether every value of the fields that both have arrived as it was."""
    for field in read.DESCRIPTOR.fields:
        source = written.DESCRIPTOR.fields_by_number.get(field.number)
        if source is None:
            continue
        if field.message_type is not None and not source.is_repeated and not written.HasField(source.name):
            continue
        sent, got = getattr(written, source.name), getattr(read, field.name)
        before = list(sent) if source.is_repeated else [sent]
        after = list(got) if field.is_repeated else [got]
        if field.is_repeated and not source.is_repeated and not after:
            before = [one for one in before if one]  # a value that is the default is not sent
        if len(before) != len(after):
            return False
        for one, other in zip(before, after, strict=True):
            if field.message_type is not None:
                if not survives(one, other):
                    return False
            elif (one.encode() if isinstance(one, str) and isinstance(other, bytes) else one) != other:
                return False
    return True


def test_what_is_called_compatible_arrives_unchanged(count, tell):
    seen = Counter()
    for seed in range(count(300, 20_000)):
        chance = Random(seed)
        outer, inner = fields(chance), fields(chance)
        sources = text(outer, inner), text(changed(chance, outer), changed(chance, inner))
        writer, reader = (ProtobufSchema.parse(source.encode()) for source in sources)
        compatible = unreadable(reader, writer) == []
        seen["compatible" if compatible else "incompatible"] += sources[0] != sources[1]
        writes, reads = map(class_of, sources)
        for _ in range(5):
            message = writes()
            fill(chance, message)
            payload = message.SerializeToString()
            writer.check(payload)
            if compatible:
                reader.check(payload)
                assert survives(message, reads.FromString(payload)), (seed, sources, message)
                seen["payloads"] += 1
    assert seen["compatible"] > 20
    assert seen["incompatible"] > 20
    tell(
        "schemas",
        f"Protobuf: {seen['payloads']} payloads unchanged under {seen['compatible']} changed schemas called compatible",
    )
