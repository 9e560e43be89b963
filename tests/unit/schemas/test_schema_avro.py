"""What is an Avro schema, which payloads are values of one, and which schemas can follow which."""

import hashlib
import io
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import fastavro
import pytest

from ister.core.errors import InvalidMessageError, InvalidRequestError
from ister.schemas.avro.schema import AvroSchema
from ister.schemas.kinds import Compatibility
from ister.schemas.schema import incompatibilities, unreadable


def parse(schema) -> AvroSchema:
    return AvroSchema.parse(json.dumps(schema).encode())


def record(*fields, name: str = "R", **more) -> dict:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind, **more) -> dict:
    return {"name": name, "type": kind, **more}


def refusal(schema) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        AvroSchema.parse(schema if isinstance(schema, bytes) else json.dumps(schema).encode())
    return str(caught.value)


def written(schema, value) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def complaint(schema, payload: bytes) -> str:
    with pytest.raises(InvalidMessageError) as caught:
        parse(schema).check(payload)
    return str(caught.value)


def reads(reader, writer) -> bool:
    return unreadable(parse(reader), parse(writer)) == []


def why(reader, writer) -> str:
    return " | ".join(unreadable(parse(reader), parse(writer)))


LIST = record(field("v", "int"), field("next", ["null", "L"]), name="L")

# --- definitions ------------------------------------------------------------------------------------------------------


def test_the_fingerprint_is_that_of_the_sorted_text_without_spaces():
    text = '{"fields":[{"name":"a","type":"int"}],"name":"R","type":"record"}'
    assert parse(record(field("a", "int"))).fingerprint == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def test_a_default_makes_another_schema():
    one, other = record(field("a", "int", default=1)), record(field("a", "int", default=2))
    assert parse(one).fingerprint != parse(other).fingerprint


@pytest.mark.parametrize(
    "schema",
    [
        "int",
        ["null", "string"],
        {"type": "int", "logicalType": "date"},
        {"type": "array", "items": {"type": "map", "values": "bytes"}},
        {"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A"},
        {"type": "fixed", "name": "a.b.F", "size": 0},
        LIST,
        record(field("a", record(field("b", "int"), name="Inner")), field("c", "Inner"), namespace="x.y"),
        record(field("a", record(name="z.Inner")), field("c", "z.Inner")),
        record(field("a", ["null", "int"], default=None), field("b", ["null", "int"], default=3)),
        record(field("a", {"type": "double"}, default=0), field("b", "bytes", default="\u00ff")),
        record(field("a", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2})),
        record(field("a", {"type": "map", "values": "R"}), field("b", {"type": "array", "items": "R"}, default=[])),
    ],
)
def test_a_good_schema_is_taken(schema):
    assert unreadable(parse(schema), parse(schema)) == []


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (b"{", "not JSON"),
        (5, "not a type"),
        ({}, "not a type"),
        ("strnig", "not defined"),
        ({"type": "recrod", "name": "R"}, "does not exist"),
        ({"type": "record", "name": "R"}, "without fields"),
        ({"type": "record", "fields": []}, "no name"),
        (record(name="1x"), "none in Avro"),
        (record(name="a..b"), "none in Avro"),
        (record(name="int"), "second time"),
        (record(5), "not an object"),
        (record({"name": "a"}), "no 'type'"),
        (record({"type": "int"}), "none in Avro"),
        (record(field("a-b", "int")), "none in Avro"),
        (record(field("a", "int"), field("a", "int")), "twice"),
        (record(field("a", "R2"), field("b", record(name="R2"))), "not defined before it"),
        (record(field("a", record(name="R"))), "second time"),
        ([], "union of nothing"),
        (["int", "int"], "one type twice"),
        (["null", ["int"]], "directly in a union"),
        ([{"type": "array", "items": "int"}, {"type": "array", "items": "long"}], "one type twice"),
        ({"type": "array"}, "no 'items'"),
        ({"type": "map"}, "no 'values'"),
        ({"type": "enum", "name": "E", "symbols": []}, "without symbols"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "twice"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "none of its symbols"),
        ({"type": "fixed", "name": "F", "size": -1}, "size"),
        ({"type": "fixed", "name": "F", "size": "4"}, "size"),
        ({"type": "fixed", "name": "F", "size": True}, "size"),
        (record(field("a", "int", default="x")), "default"),
        (record(field("a", "int", default=1 << 31)), "default"),
        (record(field("a", "boolean", default=1)), "default"),
        (record(field("a", "bytes", default="\u0100")), "default"),
        (record(field("a", ["null", "int"], default="x")), "default"),
        (record(field("a", record(field("b", "int"), name="I"), default={})), "default"),
        (record(field("a", "int", aliases="b")), "aliases"),
        (record(field("a", "R")), "part of itself"),
        (record(field("a", record(field("b", "R"), name="I"))), "part of itself"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 4}, "scale"),
    ],
)
def test_a_bad_schema_is_refused_by_name(schema, reason):
    assert reason in refusal(schema)


def test_a_definition_may_not_be_nested_without_end():
    assert "nested" in refusal(b'{"type":"array","items":' * 1000 + b'"int"' + b"}" * 1000)


def test_defaults_that_fit_in_too_many_ways_are_refused():
    value = {"f": None}
    for _ in range(25):
        value = {"f": value}
    b = record(field("f", ["null", "A", "B", "int"]), field("last", "string"), name="B")
    a = record(field("f", ["null", "A", b]), field("last", "string"), name="A")
    assert "default" in refusal(record(field("x", a, default=value)))


# --- payloads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (LIST, {"v": 1, "next": {"v": -(2**31), "next": None}}),
        (record(field("a", "string"), field("b", "boolean")), {"a": "grüße", "b": True}),
        ({"type": "map", "values": ["null", "double"]}, {"x": None, "y": 1.5}),
        ({"type": "array", "items": "long"}, [2**63 - 1, -(2**63)]),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
        ({"type": "fixed", "name": "F", "size": 3}, b"abc"),
        ("null", None),
        ("float", 1.0),
        ("bytes", b"\xff"),
    ],
)
def test_a_payload_that_was_written_with_the_schema_passes(schema, value):
    parse(schema).check(written(schema, value))


@pytest.mark.parametrize(
    ("schema", "payload", "reason"),
    [
        ("int", b"", "does not end"),
        ("int", b"\x80", "does not end"),
        ("int", b"\x02\x00", "1 bytes follow"),
        ("int", b"\x80\x80\x80\x80\x10", "32 bits"),
        ("long", b"\xff" * 9 + b"\x02", "64 bits"),
        ("boolean", b"\x02", "neither 0 nor 1"),
        ("boolean", b"", "needs 1"),
        ("string", b"\x04\xff\xff", "not UTF-8"),
        ("string", b"\x06ab", "needs 3"),
        ("bytes", b"\x01", "needs -1"),
        ("double", b"\0" * 7, "needs 8"),
        (["null", "int"], b"\x04", "no such branch"),
        (["null", "int"], b"\x01", "no such branch"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "no such symbol"),
        (record(field("a", record(field("b", "string"), name="I"))), b"\x02\xff", "$.a.b"),
        ({"type": "array", "items": "int"}, b"\x01\x04\x02\x00", "says it ends"),
        ({"type": "map", "values": "int"}, b"\x02\x02\xff\x02\x00", "not UTF-8"),
        ("null", b'{"a": 1}', "follow"),
    ],
)
def test_a_payload_that_is_no_value_of_the_schema_is_refused_with_its_place(schema, payload, reason):
    assert reason in complaint(schema, payload)


def test_blocks_may_say_how_long_they_are():
    parse({"type": "array", "items": "int"}).check(b"\x03\x04\x02\x04\x00")


def test_a_payload_of_a_few_bytes_cannot_hold_a_billion_values():
    assert "too long" in complaint({"type": "array", "items": "null"}, b"\x80\x80\x80\x80\x80\x80\x40\x00")
    assert "too long" in complaint(
        {"type": "array", "items": record(name="E")}, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x00"
    )


def test_records_that_double_without_a_byte_are_refused():
    kind = "null"
    for n in range(15):
        kind = record(field("a", kind), field("b", f"R{n - 1}" if n else "null"), name=f"R{n}")
    assert "too long" in complaint(kind, b"")


def test_a_payload_may_not_be_nested_without_end():
    parse(LIST).check(b"\x02\x02" * 40 + b"\x02\x00")
    assert "nested" in complaint(LIST, b"\x02\x02" * 100_000 + b"\x02\x00")


def test_threads_that_check_at_once_do_not_share_their_limits():
    schema, payload = parse(LIST), b"\x02\x02" * 40 + b"\x02\x00"
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(schema.check, [payload] * 400)) == [None] * 400
    finally:
        sys.setswitchinterval(interval)


# --- compatibility ----------------------------------------------------------------------------------------------------


def test_the_protocols_examples_hold():
    old, new = record(field("name", "string")), record(field("name", "string"), field("age", "int", default=0))
    assert incompatibilities(parse(new), parse(old), Compatibility.BACKWARD) == []
    nullable = record(field("name", "string"), field("mail", ["null", "string"], default=None))
    assert incompatibilities(parse(nullable), parse(old), Compatibility.FULL) == []
    two = record(field("name", "string"), field("age", "int"))
    assert incompatibilities(parse(old), parse(two), Compatibility.BACKWARD) == [], "a reader may skip a field"
    assert incompatibilities(parse(old), parse(two), Compatibility.FORWARD) != []


def test_a_field_that_the_writer_lacks_needs_a_default_or_null():
    old = record(field("a", "int"))
    assert not reads(record(field("a", "int"), field("b", "int")), old)
    assert reads(record(field("a", "int"), field("b", "int", default=1)), old)
    assert reads(record(field("a", "int"), field("b", ["int", "null"])), old), "the protocol says so; Avro would not"
    assert "$: the writer has no field b" in why(record(field("a", "int"), field("b", "int")), old)


@pytest.mark.parametrize(
    ("writer", "readers"),
    [
        ("int", {"int", "long", "float", "double"}),
        ("long", {"long", "float", "double"}),
        ("float", {"float", "double"}),
        ("double", {"double"}),
        ("string", {"string", "bytes"}),
        ("bytes", {"bytes", "string"}),
        ("boolean", {"boolean"}),
        ("null", {"null"}),
    ],
)
def test_a_type_is_promoted_as_avro_says(writer, readers):
    kinds = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
    assert {reader for reader in kinds if reads(reader, writer)} == readers
    assert {
        reader for reader in kinds if reads({"type": "array", "items": reader}, {"type": "array", "items": writer})
    } == readers


def test_records_meet_by_the_last_part_of_their_name_or_an_alias():
    assert reads(record(name="a.R"), record(name="b.R"))
    assert not reads(record(name="S"), record(name="R"))
    assert reads(record(name="S", aliases=["R"]), record(name="R"))
    assert reads(record(name="x.S", aliases=["R"]), record(name="x.R"))
    assert not reads(record(name="x.S", aliases=["R"]), record(name="y.R"))


def test_fields_meet_by_name_or_an_alias_of_the_reader():
    assert reads(record(field("b", "int", aliases=["a"])), record(field("a", "int")))
    assert not reads(record(field("b", "int")), record(field("a", "int", aliases=["b"])))
    assert not reads(record(field("b", "int", aliases=["a"])), record(field("a", "string")))


def test_an_alias_that_could_mean_two_fields_is_no_help():
    two = record(field("a", "int"), field("b", "int"))
    assert "one to the reader" in why(record(field("b", "int", aliases=["a"])), two)
    assert not reads(record(field("b", "int", aliases=["a"]), field("a", "int")), record(field("a", "int")))
    assert not reads(
        record(field("b", "int", aliases=["a"]), field("c", "int", aliases=["a"])), record(field("a", "int"))
    )


def test_every_branch_of_a_writers_union_must_be_readable():
    assert reads(["null", "string", "int"], ["null", "int"])
    assert not reads(["null", "int"], ["null", "int", "string"])
    assert not reads("int", ["null", "int"])
    assert reads(["null", "int"], "int")
    assert reads(["null", "double"], ["null", "int"])
    assert reads("long", ["int", "long"])


def test_a_union_does_not_excuse_what_is_in_it():
    assert not reads(["null", record(field("a", "int"))], ["null", record(field("a", "string"))])
    assert not reads(["null", {"type": "array", "items": "int"}], {"type": "array", "items": "string"})


def test_every_record_that_a_decoder_might_take_in_a_union_must_do():
    assert not reads(
        [record(field("a", "string"), name="x.R"), record(field("a", "int"), name="y.R")],
        record(field("a", "int"), name="y.R"),
    )


def test_an_enum_may_lose_symbols_only_with_a_default():
    two, three = (
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]},
    )
    assert reads(three, two)
    assert not reads(two, three)
    assert reads({**two, "default": "A"}, three)
    assert "C" in why(two, three)
    assert not reads({**two, "name": "F"}, two)


def test_fixed_has_one_name_and_one_size():
    assert not reads({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 8})
    assert not reads({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "G", "size": 4})
    assert not reads({"type": "fixed", "name": "F", "size": 4}, "bytes")


def test_a_logical_type_may_come_or_go_but_not_change():
    date, millis, micros = (
        {"type": kind, "logicalType": word}
        for kind, word in [("int", "date"), ("long", "timestamp-millis"), ("long", "timestamp-micros")]
    )
    assert reads(date, "int")
    assert reads("int", date)
    assert not reads(micros, millis)
    assert not reads(millis, date)
    assert reads({"type": "long", "logicalType": "unheard-of"}, millis)
    money = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
    assert reads(money, dict(money))
    assert not reads({**money, "scale": 3}, money)


def test_recursive_types_are_compared_to_the_end():
    wider = record(field("v", "long"), field("next", ["null", "L"]), name="L")
    assert reads(wider, LIST)
    assert not reads(LIST, wider)
    assert "$.v" in why(LIST, wider)


def test_a_change_of_the_kind_is_named():
    assert why("int", "string") == "$: string cannot be read as int"
    assert why({"type": "map", "values": "int"}, {"type": "array", "items": "int"}) == "$: array cannot be read as map"
