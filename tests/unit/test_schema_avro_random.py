"""Avro schemas at random: fastavro writes, and decodes what is called compatible."""

import io
import json
from collections import Counter
from random import Random

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counts import LONG
from ister.core.errors import InvalidMessageError, IsterError
from ister.core.schemas.avro import AvroSchema
from ister.core.schemas.schema import unreadable

PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]


class Maker:
    """Makes a schema; the names of types are few, so that those of two schemas meet."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._names: list[str] = []
        self._open: list[str] = []

    def kind(self, depth: int = 3):
        chance = self._chance
        choice = chance.randrange(12)
        if choice <= 3 or depth == 0:
            return chance.choice(PRIMITIVES)
        if choice == 4:
            return {"type": "array", "items": self.kind(depth - 1)}
        if choice == 5:
            return {"type": "map", "values": self.kind(depth - 1)}
        if choice == 6 and self._names:
            return chance.choice(self._names)
        if choice == 7:
            return self._union(depth)
        if choice == 8 and (name := self._new("E")):
            symbols = chance.sample(["A", "B", "C"], chance.randint(1, 3))
            made = {"type": "enum", "name": name, "symbols": symbols}
            return made | ({"default": symbols[0]} if chance.random() < 0.3 else {})
        if choice == 9 and (name := self._new("F")):
            return {"type": "fixed", "name": name, "size": chance.randint(0, 2)}
        if name := self._new("R"):
            return self._record(name, depth)
        return "int"

    def _new(self, letter: str) -> str | None:
        free = [name for name in (f"{letter}1", f"{letter}2", f"{letter}3") if name not in [*self._names, *self._open]]
        if not free:
            return None
        name = self._chance.choice(free[:2])
        if letter == "R":
            self._open.append(name)
        else:
            self._names.append(name)
        return name

    def _record(self, name: str, depth: int):
        fields = []
        for word in self._chance.sample(["a", "b", "c"], self._chance.randint(0, 3)):
            kind = ["null", self._chance.choice(self._open)] if self._chance.random() < 0.15 else self.kind(depth - 1)
            made = {"name": word, "type": kind}
            if self._chance.random() < 0.4 and (default := self._default(kind)) is not ...:
                made["default"] = default
            if self._chance.random() < 0.1:
                made["aliases"] = [self._chance.choice(["a", "b", "c"])]
            fields.append(made)
        self._open.remove(name)
        self._names.append(name)
        return {"type": "record", "name": name, "fields": fields}

    def _union(self, depth: int):
        branches, words = [], set()
        for _ in range(self._chance.randint(1, 3)):
            kind = self.kind(depth - 1)
            word = (
                kind if isinstance(kind, str) else kind[0] if isinstance(kind, list) else kind.get("name", kind["type"])
            )
            if not isinstance(kind, list) and word not in words:
                words.add(word)
                branches.append(kind)
        return branches or ["null", "int"]

    def _default(self, kind):
        simple = {
            "null": None,
            "boolean": True,
            "int": 1,
            "long": 2,
            "float": 0.5,
            "double": 1.5,
            "bytes": "x",
            "string": "s",
        }
        if isinstance(kind, str):
            return simple.get(kind, ...)
        if isinstance(kind, list):
            return self._default(kind[0])
        return {"array": [], "map": {}}.get(kind["type"], ...)


def change(chance: Random, schema):
    """Return a schema that differs a little: types become unions or wider, fields come and go."""
    if isinstance(schema, str):
        options = {"int": "long", "long": "double", "float": "double", "string": "bytes"}
        return options.get(schema, schema) if chance.random() < 0.2 else schema
    if isinstance(schema, list):
        return [
            *(change(chance, one) for one in schema),
            *(["boolean"] if chance.random() < 0.2 and "boolean" not in schema else []),
        ]
    made = {key: change(chance, value) if key in {"items", "values"} else value for key, value in schema.items()}
    if schema["type"] == "enum" and chance.random() < 0.4:
        made["symbols"] = [*dict.fromkeys([*schema["symbols"], chance.choice("ABC")])]
    if schema["type"] == "record":
        fields = [dict(one, type=change(chance, one["type"])) for one in schema["fields"] if chance.random() < 0.85]
        if chance.random() < 0.4 and all(one["name"] != "new" for one in fields):
            fields.append(chance.choice([{"name": "new", "type": "int", "default": 1}, {"name": "new", "type": ["null", "int"]}, {"name": "new", "type": "int"}]))  # fmt: skip
        for one in fields:
            try:
                AvroSchema.parse(json.dumps({"type": "record", "name": "T", "fields": [one]}).encode())
            except IsterError as error:
                if "default" in str(error):
                    del one["default"]
        made["fields"] = fields
    return made


def value(chance: Random, kind, named: dict, depth: int = 5):
    """Return a value of a type; a union's is given with its branch, so that fastavro need not guess."""
    if isinstance(kind, list):
        options = [one for one in kind if one == "null"] if depth <= 0 and "null" in kind else kind
        branch = chance.choice(options)
        name = branch if isinstance(branch, str) else branch.get("name", branch["type"])
        return (
            (name, value(chance, branch, named, depth - 1))
            if name not in PRIMITIVES
            else value(chance, branch, named, depth)
        )
    if isinstance(kind, str) and kind in named:
        kind = named[kind]
    word = kind if isinstance(kind, str) else kind["type"]
    match word:
        case "null":
            return None
        case "boolean":
            return chance.random() < 0.5
        case "int":
            return chance.choice([0, 1, -1, 2**31 - 1, -(2**31)])
        case "long":
            return chance.choice([0, 1, -1, 2**63 - 1, -(2**63)])
        case "float" | "double":
            return chance.choice([0.0, 1.5, -2.0])
        case "string":
            return chance.choice(["", "a", "é"])
        case "bytes":
            return chance.choice([b"", b"a"])
        case "array":
            return [
                value(chance, kind["items"], named, depth - 1) for _ in range(chance.randint(0, 2 if depth > 0 else 0))
            ]
        case "map":
            return {key: value(chance, kind["values"], named, depth - 1) for key in chance.sample("xyz", chance.randint(0, 2 if depth > 0 else 0))}  # fmt: skip
        case "enum":
            return chance.choice(kind["symbols"])
        case "fixed":
            return b"q" * kind["size"]
        case _:
            return {one["name"]: value(chance, one["type"], named, depth - 1) for one in kind["fields"]}


def names(schema, found=None) -> dict:
    """Return the named types of a schema."""
    found = {} if found is None else found
    if isinstance(schema, list):
        for one in schema:
            names(one, found)
    elif isinstance(schema, dict):
        if "name" in schema:
            found[schema["name"]] = schema
        for inner in [schema.get("items"), schema.get("values"), *(one["type"] for one in schema.get("fields", []))]:
            names(inner, found)
    return found


def with_nulls(schema):
    """Return a schema as a decoder needs it: the protocol lets a field be missing if it can be null, Avro wants to be told."""
    if isinstance(schema, list):
        return [with_nulls(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: with_nulls(inner) if key in {"items", "values"} else inner for key, inner in schema.items()}
    if "fields" in schema:
        made["fields"] = [with_null(one) for one in schema["fields"]]
    return made


def with_null(field):
    made = dict(field, type=with_nulls(field["type"]))
    if isinstance(made["type"], list) and "null" in made["type"] and "default" not in made:
        made["default"] = None
    return made


def parsed(schema) -> AvroSchema:
    return AvroSchema.parse(json.dumps(schema).encode())


def test_what_is_called_compatible_is_decoded_by_fastavro(count, tell):
    seen = Counter()
    for seed in range(count(1500, 100_000)):
        chance = Random(seed)
        writer = Maker(chance).kind()
        reader = change(chance, writer) if chance.random() < 0.9 else Maker(chance).kind()
        if chance.random() < 0.3:
            writer, reader = reader, writer
        try:
            ours, theirs = parsed(reader), parsed(writer)
        except IsterError:
            seen["refused"] += 1
            continue
        compatible = unreadable(ours, theirs) == []
        seen["compatible" if compatible else "incompatible"] += reader != writer
        for _ in range(5):
            out = io.BytesIO()
            try:
                fastavro.schemaless_writer(out, writer, value(chance, writer, names(writer)))
            except (RecursionError, ValueError):
                continue
            theirs.check(out.getvalue())
            try:
                fastavro.schemaless_reader(io.BytesIO(out.getvalue()), writer, with_nulls(reader))
                decoded = True
            except TypeError:
                continue  # fastavro stumbles over a type that a reader's union only mentions
            except Exception:  # noqa: BLE001  # whatever it is, it was not decoded
                decoded = False
            seen[compatible, decoded] += 1
            assert decoded or not compatible, (seed, reader, writer, out.getvalue())
    assert seen[True, True] > 1000
    assert seen[False, False] > 100
    tell("schemas", f"Avro: {seen[True, True]} payloads decoded under {seen['compatible']} changed schemas called compatible, "
                    f"{seen[False, False]} not decoded under {seen['incompatible']} called incompatible")  # fmt: skip


def test_a_payload_that_passes_is_decoded_by_fastavro_to_its_end(count, tell):
    seen = Counter()
    for seed in range(count(1500, 100_000)):
        chance = Random(seed)
        schema = Maker(chance).kind()
        try:
            ours = parsed(schema)
        except IsterError:
            continue
        out = io.BytesIO()
        try:
            fastavro.schemaless_writer(out, schema, value(chance, schema, names(schema)))
        except (RecursionError, ValueError):
            continue
        payload = bytearray(out.getvalue())
        for _ in range(chance.randint(0, 2)):
            act = chance.randrange(3)
            if act == 0 and payload:
                payload[chance.randrange(len(payload))] = chance.randrange(256)
            elif act == 1 and payload:
                del payload[chance.randrange(len(payload)) :]
            else:
                payload.append(chance.randrange(256))
        try:
            ours.check(bytes(payload))
            passes = True
        except InvalidMessageError:
            passes = False
        seen[passes] += 1
        if passes:
            source = io.BytesIO(bytes(payload))
            fastavro.schemaless_reader(source, schema, None)
            assert source.read() == b"", (seed, schema, bytes(payload))
    assert min(seen[True], seen[False]) > 100
    tell(
        "schemas",
        f"Avro: {seen[True]} damaged or whole payloads that pass are decoded to their end, {seen[False]} do not pass",
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "name", "fields", "items", "values", "symbols", "size", "default", "aliases", "namespace", "logicalType", "precision", "scale"]),
            inner | st.sampled_from([*PRIMITIVES, "record", "enum", "fixed", "array", "map", "error", "decimal", "R", ".", "a.b"]),
            max_size=5,
        )
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=10_000 if LONG else 300, deadline=None, suppress_health_check=list(HealthCheck))
@given(JSON | st.binary(), st.binary(max_size=30))
def test_nothing_but_our_own_errors_comes_of_a_hostile_definition(document, payload):
    try:
        schema = AvroSchema.parse(document if isinstance(document, bytes) else json.dumps(document).encode())
        unreadable(schema, schema)
        schema.check(payload)
    except IsterError:
        pass


@pytest.mark.parametrize("seed", range(3))
def test_a_schema_can_follow_itself(seed):
    schema = Maker(Random(seed)).kind()
    assert unreadable(parsed(schema), parsed(schema)) == []
