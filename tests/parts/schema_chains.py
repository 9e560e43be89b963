"""Chains of random, compatible schema changes in three languages."""

import io
import json
from base64 import b64decode

import fastavro

from ister.schemas.columns.names import beside, column_in
from ister.schemas.columns.types import DEPTH_MAX
from parts.typed import avro, json_schema, message_class, protobuf

SCALARS = ["bool", "int", "long", "float", "double", "string", "bytes"]


WIDER = {"int": ["long"], "float": ["double"]}


SECOND_WIDER = {"json": {"int": ["long", "double"], "long": ["double"]}}


class Part:
    """A field of a struct: its kind, whether it can be null, its number."""

    def __init__(self, kind, number):
        self.kind = kind
        self.number = number
        self.optional = False


class Shaped:
    """A struct whose fields change."""

    def __init__(self):
        self.parts: dict[str, Part] = {}
        self.numbers = 0

    def add(self, name, kind):
        self.numbers += 1
        self.parts[name] = Part(kind, self.numbers)


def copied(kind):
    """Return a kind that later changes leave alone."""
    if isinstance(kind, tuple):
        return kind[0], copied(kind[1])
    if not isinstance(kind, Shaped):
        return kind
    made = Shaped()
    made.numbers = kind.numbers
    for name, part in kind.parts.items():
        made.parts[name] = Part(copied(part.kind), part.number)
        made.parts[name].optional = part.optional
    return made


def random_kind(chance, depth):
    choice = chance.randrange(10)
    if choice < 6 or not depth:
        return chance.choice(SCALARS)
    inner = random_kind(chance, 0) if chance.random() < 0.5 else random_struct(chance, depth - 1)
    return inner if isinstance(inner, Shaped) and choice == 6 else (chance.choice(["list", "map"]), inner)


def random_struct(chance, depth):
    made = Shaped()
    for name in chance.sample("pqrst", chance.randint(1, 3)):
        made.add(name, random_kind(chance, depth))
    return made


def structs_in(kind):
    if isinstance(kind, tuple):
        yield from structs_in(kind[1])
    elif isinstance(kind, Shaped):
        yield kind
        for part in kind.parts.values():
            yield from structs_in(part.kind)


def change(chance, root, language, *, compatible):
    """Change one thing somewhere: mostly add, widen or make optional; leave out, and give another type if that may be."""
    where = chance.choice(list(structs_in(root)))
    name = chance.choice(list(where.parts))
    part = where.parts[name]
    action = chance.randrange(10)
    if action < 4:
        fresh = f"f{where.numbers}" if language == "protobuf" or chance.random() < 0.9 else name.swapcase()
        if fresh not in where.parts:
            where.add(fresh, random_kind(chance, 2))
            where.parts[fresh].optional = True
    elif action < 7:
        wider = SECOND_WIDER.get(language, WIDER)
        if isinstance(part.kind, str):
            part.kind = chance.choice(wider.get(part.kind, [part.kind]))
        elif isinstance(part.kind, tuple) and isinstance(part.kind[1], str):
            part.kind = part.kind[0], chance.choice(wider.get(part.kind[1], [part.kind[1]]))
    elif action < 8:
        part.optional = True
    elif action < 9 and len(where.parts) > 1:
        del where.parts[name]
    elif not compatible:
        part.kind = random_kind(chance, 2)


def random_value(chance, kind, *, optional=False):
    if optional and chance.random() < 0.3:
        return None
    match kind:
        case "bool":
            return chance.random() < 0.5
        case "int":
            return chance.choice([1, -1, (1 << 31) - 1, -(1 << 31)])
        case "long":
            return chance.choice([1, -1, (1 << 63) - 1, -(1 << 63)])
        case "float":
            return chance.choice([1.0, -0.5, 2.0**100])
        case "double":
            return chance.choice([1.0, 0.1, 1e300])
        case "string":
            return chance.choice(["a", "é€", "x" * 20])
        case "bytes":
            return chance.choice([b"a", b"\xff\0"])
        case ("list", inner):
            return [random_value(chance, inner) for _ in range(chance.randrange(3))]
        case ("map", inner):
            return {key: random_value(chance, inner) for key in chance.sample(["k", "l", "é"], chance.randrange(3))}
        case _:
            return {name: random_value(chance, one.kind, optional=one.optional) for name, one in kind.parts.items()}


def seen(value, got, *, text, depth=1):
    """Tell whether what is in a table is what was written; what became JSON, or lies too deep, is compared as such."""
    if value is None or value in ([], {}):
        return got is None or got in ([], {}) or (depth + 1 >= DEPTH_MAX and got in ("[]", "{}"))
    inner = depth + 1
    match value:
        case bytes():
            return got == value if not text else b64decode(got) == value
        case list() | dict() if isinstance(got, str):
            return not text and inner >= DEPTH_MAX and seen(value, json.loads(got), text=True)
        case list():
            pairs = zip(value, got, strict=True)
            return len(got) == len(value) and all(seen(a, b, text=text, depth=inner) for a, b in pairs)
        case dict() if text:
            return all(seen(one, got.get(name), text=True) for name, one in value.items())
        case dict() if set(got) == set(value) and not any(beside(name) in got for name in value):
            return all(seen(one, got[name], text=False, depth=inner) for name, one in value.items())
        case dict():
            return all(seen_in(got, name, one, depth=inner) for name, one in value.items())
        case _:
            return got == value and isinstance(got, bool) == isinstance(value, bool)


def seen_in(row, name, value, *, depth=1):
    column = column_in(row, name)
    if column is None:
        return value is None
    if row[column] is not None:
        return row.get(beside(column)) is None and seen(value, row[column], text=False, depth=depth)
    text = row.get(beside(column))
    return seen(value, None if text is None else json.loads(text), text=True)


class Json:
    """Writes JSON; there are no bytes in it."""

    name = "json"

    def schema(self, root):
        self.root = root
        document = self._document(root)
        self.definition = json.dumps(document).encode()
        return json_schema(document)

    def _document(self, kind, *, optional=False):
        made = self._bare(kind)
        return made | {"type": [made["type"], "null"]} if optional else made

    def _bare(self, kind):
        match kind:
            case "bool":
                return {"type": "boolean"}
            case "int" | "long":
                return {"type": "integer"}
            case "float" | "double":
                return {"type": "number"}
            case "string" | "bytes":
                return {"type": "string"}
            case ("list", inner):
                return {"type": "array", "items": self._bare(inner)}
            case ("map", inner):
                return {"type": "object", "additionalProperties": self._bare(inner)}
            case _:
                parts = {name: self._document(one.kind, optional=one.optional) for name, one in kind.parts.items()}
                return {"type": "object", "properties": parts}

    def value(self, chance):
        return without_bytes(random_value(chance, self.root))

    def payload(self, value):
        return json.dumps(value).encode()


class Avro:
    """Writes Avro, by fastavro."""

    name = "avro"

    def schema(self, root):
        self.root = root
        self._records = 0
        document = self._kind(root)
        self.definition = json.dumps(document).encode()
        self._parsed = fastavro.parse_schema(json.loads(json.dumps(document)))
        return avro(document)

    def _kind(self, kind):
        match kind:
            case str():
                return {"bool": "boolean"}.get(kind, kind)
            case ("list", inner):
                return {"type": "array", "items": self._kind(inner)}
            case ("map", inner):
                return {"type": "map", "values": self._kind(inner)}
            case _:
                self._records += 1
                name = f"R{self._records}"
                fields = []
                for word, one in kind.parts.items():
                    inner = self._kind(one.kind)
                    fields.append({"name": word, "type": ["null", inner] if one.optional else inner})
                return {"type": "record", "name": name, "fields": fields}

    def value(self, chance):
        return random_value(chance, self.root)

    def payload(self, value):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self._parsed, value)
        return out.getvalue()


class Protobuf:
    """Writes Protobuf, by its own library; every scalar says whether it is there."""

    name = "protobuf"

    def schema(self, root):
        self.root = root
        text = f'syntax = "proto3"; {self._message("M", root)}'
        self.definition = text.encode()
        self._class = message_class(text, "M")
        return protobuf(text)

    def _message(self, name, kind):
        lines = []
        for word, one in kind.parts.items():
            inner = one.kind[1] if isinstance(one.kind, tuple) else one.kind
            if isinstance(inner, Shaped):
                lines.append(self._message(f"T_{word}", inner))
                typed = f"T_{word}"
            else:
                typed = {"int": "int32", "long": "int64"}.get(inner, inner)
            label = {"list": f"repeated {typed}", "map": f"map<string, {typed}>"}
            front = label[one.kind[0]] if isinstance(one.kind, tuple) else f"optional {typed}"
            lines.append(f"{front} {word} = {one.number};")
        return f"message {name} {{ {' '.join(lines)} }}"

    def value(self, chance):
        return random_value(chance, self.root)

    def payload(self, value):
        made = self._class()
        self._fill(made, value)
        return made.SerializeToString()

    def _fill(self, made, value):
        made.SetInParent()
        for name, one in value.items():
            match one:
                case None:
                    pass
                case dict() if made.DESCRIPTOR.fields_by_name[name].is_repeated:
                    for key, inner in one.items():
                        if isinstance(inner, dict):
                            self._fill(getattr(made, name)[key], inner)
                        else:
                            getattr(made, name)[key] = inner
                case dict():
                    self._fill(getattr(made, name), one)
                case list():
                    for inner in one:
                        if isinstance(inner, dict):
                            self._fill(getattr(made, name).add(), inner)
                        else:
                            getattr(made, name).append(inner)
                case _:
                    setattr(made, name, one)


def without_bytes(value):
    match value:
        case bytes():
            return value.hex()
        case list():
            return [without_bytes(one) for one in value]
        case dict():
            return {name: without_bytes(one) for name, one in value.items()}
        case _:
            return value
