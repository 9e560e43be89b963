"""Avro schemas at random: fastavro writes, and decodes what is called compatible."""

import io
import json
from collections import Counter
from random import Random

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ister.core.errors import InvalidMessageError, IsterError
from ister.schemas.avro.schema import AvroSchema
from ister.schemas.schema import unreadable
from parts.avro import PRIMITIVES, Maker, names, value
from parts.counts import LONG


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


def fastavro_accepts(document) -> bool:
    """Return fastavro's verdict; it compares defaults less strictly than we do, so it is not asked about them."""
    try:
        fastavro.parse_schema(json.loads(json.dumps(document)), _ignore_default_error=True)
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType):
        return False
    return True


def we_accept(document) -> bool:
    try:
        parsed(document)
    except IsterError:
        return False
    return True


DECIMAL = st.fixed_dictionaries(
    {"type": st.sampled_from(["bytes", "fixed", "string", "record"]), "logicalType": st.sampled_from(["decimal", "date"])},
    optional={
        "precision": st.sampled_from([None, True, -1, 0, 1, 2, 4, 5, 9, 10, 1.5, "4", 10**400]),
        "scale": st.sampled_from([None, True, -1, 0, 1, 2, 4, 5, 1.5, "1", 10**400]),
    },
).map(lambda one: {**one, **{"fixed": {"name": "F", "size": 4}, "record": {"name": "R", "fields": []}}.get(one["type"], {})})  # fmt: skip


@settings(max_examples=5_000 if LONG else 500, deadline=None, suppress_health_check=list(HealthCheck))
@given(DECIMAL)
def test_a_decimal_is_accepted_exactly_when_fastavro_accepts_it(document):
    assert we_accept(document) is fastavro_accepts(document)


@settings(max_examples=10_000 if LONG else 500, deadline=None, suppress_health_check=list(HealthCheck))
@given(JSON)
def test_a_definition_that_we_accept_is_accepted_by_fastavro(document):
    assert not we_accept(document) or fastavro_accepts(document)


def test_definitions_that_are_changed_at_random_are_accepted_by_fastavro_if_by_us(count, tell):
    seen = Counter()
    for seed in range(count(300, 20_000)):
        chance = Random(seed)
        schema = change(chance, Maker(chance).kind())
        text = json.dumps(schema)
        for old, new in chance.sample(CHANGES, 2):
            text = text.replace(old, new, 1)
        ours = we_accept(json.loads(text))
        seen[ours] += 1
        assert not ours or fastavro_accepts(json.loads(text)), (seed, text)
    assert min(seen[True], seen[False]) > 20
    tell("schemas", f"Avro: {seen[True]} definitions accepted by us and by fastavro, {seen[False]} refused")


CHANGES = [
    ('"int"', '"R0"'), ('"name": "', '"name": "a.'), ('"name": "', '"namespace": "n", "name": "'), ('"name"', '"nome"'),
    ('"symbols": ["', '"symbols": ["1'), ('"type": "enum"', '"type": "fixed"'), ('"string"', '{"type": "string"}'),
    ('"size": ', '"logicalType": "decimal", "precision": 3, "size": '), ('"long"', '{"type": "long", "aliases": 5}'),
    ('"name": "', '"aliases": "x", "name": "'), ('"items"', '"values"'), ('"null"', '["null"]'),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_a_schema_can_follow_itself(seed):
    schema = Maker(Random(seed)).kind()
    assert unreadable(parsed(schema), parsed(schema)) == []
