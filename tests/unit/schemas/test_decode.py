import json
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.schemas.columns.cells import RowState
from ister.schemas.columns.types import Struct, arrow_type
from ister.schemas.decode import PAYLOAD_BYTES_MAX, ROWS_AT_ONCE, UNKNOWN_MAX, Decoders, decoder, shape_of
from ister.schemas.kinds import SchemaType
from ister.schemas.schema import parse
from parts.typed import avro, decode_column, decoded, json_schema, protobuf, record, table_of

OLD = json_schema({"type": "object", "properties": {"a": {"type": "integer"}}})
NEW = json_schema({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "boolean"}}})
OTHER = avro(record(a="long", c="string"))
TABLE = table_of(OLD, NEW, OTHER)
SCHEMAS = {(1, 1): OLD, (1, 2): NEW, (2, 1): OTHER, (3, 1): parse(SchemaType.STRING, b"")}


def column(rows, latest=(1, 2)):
    payloads, ids, versions = zip(*rows, strict=True)
    found = decode_column(Decoders(SCHEMAS, TABLE, latest), payloads, ids, versions)
    return found.values.to_pylist(), found.errors.to_pylist()


def test_each_payload_is_decoded_by_the_schema_that_it_names():
    values, errors = column(
        [
            (b'{"a":1}', 1, 1),
            (b'{"a":"x","b":true}', 1, 2),
            (b"\x04\x02z", 2, 1),
            (b'{"a":"latest"}', None, None),
            (b'{"a":"newest of 1"}', 1, None),
            (b"text", 3, 1),
            (None, 1, 1),
            (b"{}", 1, 3),
            (b"{}", 9, None),
            (b'{"a":2}', 1, 2),
        ]
    )
    row = {"a": None, "a_as_json": None, "b": None, "c": None}
    assert values == [
        row | {"a": 1},
        row | {"a_as_json": '"x"', "b": True},
        row | {"a": 2, "c": "z"},
        row | {"a_as_json": '"latest"'},
        row | {"a_as_json": '"newest of 1"'},
        None,
        None,
        None,
        None,
        row | {"a_as_json": "2"},
    ]
    assert errors[:7] == [None] * 7
    assert errors[7:] == ["there is no schema 1, version 3", "there is no schema 9", None]


def test_schemas_that_were_not_given_are_told_the_first_of_them_only():
    def unknown(*named):
        ids, versions = zip(*named, strict=True)
        decoders = Decoders(SCHEMAS, TABLE, (1, 2))
        for _ in range(2):  # it forgets those of the column before
            found = decode_column(decoders, [b"{}"] * len(named), ids, versions)
        return found.unknown

    assert unknown((1, 1), (None, None), (3, 1)) == []
    assert unknown((9, None), (1, 3), (1, 3), (9, 1), (1, 1)) == [(1, 3), (9, None), (9, 1)]
    assert unknown(*((number, 1) for number in range(5000, 100, -1))) == [(101 + n, 1) for n in range(UNKNOWN_MAX)]


def test_without_a_schema_there_is_no_value_and_no_error():
    assert column([(b"anything", None, None)], latest=None) == ([None], [None])


def test_plain_schemas_have_no_shape():
    for kind in (SchemaType.BYTES, SchemaType.STRING, SchemaType.NUMBER):
        assert shape_of(parse(kind, b"")) is None
        assert decoder(parse(kind, b""), TABLE, RowState()) is None


def test_no_row_is_lost_where_a_batch_is_cut():
    for rows in (0, 1, ROWS_AT_ONCE - 1, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 2 * ROWS_AT_ONCE):
        payloads = [b'{"a":"\\ud800"}' if index % 1_000 == 999 else b'{"a":%d}' % index for index in range(rows)]
        found = decode_column(Decoders({(1, 1): OLD}, TABLE, (1, 1)), payloads)
        assert found.values.type == arrow_type(TABLE)
        assert len(found.values) == len(found.errors) == rows
        bad = set(range(999, rows, 1_000))
        assert {index for index in range(rows) if found.errors[index].is_valid} == bad
        values = found.values.to_pylist()
        assert [values[index] and values[index]["a"] for index in range(rows)] == [
            None if index in bad else index for index in range(rows)
        ]


def test_a_slice_of_a_column_is_decoded_as_it_is():
    payloads = pa.array([b'{"a":%d}' % index for index in range(10)], pa.binary())[4:7]
    found = decode_column(Decoders({(1, 1): OLD}, TABLE, (1, 1)), payloads)
    assert [one["a"] for one in found.values.to_pylist()] == [4, 5, 6]


def test_a_payload_that_would_take_too_much_memory_is_left_as_it_is():
    (row,) = decoded(OLD, b" " * PAYLOAD_BYTES_MAX + b"{}")
    assert "are not decoded" in row


def test_a_table_that_does_not_have_the_columns_yet_says_so():
    (row,) = decoded(NEW, b'{"b":true}', table=table_of(OLD))
    assert row == "error: $.b: the table has no column for it"
    assert decoded(NEW, b'{"b":null}', table=table_of(OLD)) == [{"a": None}]


HOSTILE = {
    "json": json_schema(
        {
            "type": "object",
            "properties": {
                "a": {"type": "integer"},
                "b": {"type": "array", "items": {"type": "number"}},
                "c": {"type": "object", "additionalProperties": {"type": "string"}},
                "d": {},
            },
        }
    ),
    "avro": avro(
        record(
            a="long",
            b={"type": "array", "items": "double"},
            c={"type": "map", "values": ["null", "string"]},
            d=["null", "R"],
            e={"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            f={"type": "long", "logicalType": "timestamp-micros"},
            g=["int", "string", {"type": "array", "items": "null"}],
        )
    ),
    "protobuf": protobuf(
        """syntax = "proto2"; message M { optional int32 a = 1; repeated double b = 2; map<string, M> c = 3;
        optional M d = 4; repeated group G = 5 { optional string x = 1; } optional uint64 e = 6; repeated sint32 f = 7; }"""
    ),
}


@pytest.mark.parametrize("language", HOSTILE)
@given(payloads=st.lists(st.binary(max_size=60), max_size=8))
@settings(deadline=None, max_examples=200)
def test_no_bytes_raise_and_none_lose_a_row(language, payloads):
    assert len(decoded(HOSTILE[language], *payloads)) == len(payloads)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd") | st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(values=st.lists(ANY, max_size=8))
@settings(deadline=None, max_examples=200)
def test_any_json_is_typed_kept_as_json_or_refused_and_never_changed(values):
    payloads = [json.dumps(value).encode() for value in values]
    rows = decoded(HOSTILE["json"], *payloads)
    for value, payload, row in zip(values, payloads, rows, strict=True):
        if isinstance(row, dict):
            assert isinstance(value, dict)
            exact = json.loads(payload, parse_float=Decimal)
            assert row["a"] == exact.get("a"), (row, value)
            assert (row["b"], row["c"]) == (value.get("b"), value.get("c")), (row, value)
            assert json.loads(row["d"] or "null", parse_float=Decimal) == exact.get("d")
        else:
            assert row is None or row.startswith("error: ")


def test_an_empty_table_has_no_columns_for_anything():
    assert decoded(OLD, b"{}", b'{"a":1}', table=Struct((TABLE.fields[2],))) == [
        {"b": None},
        "error: $.a: the table has no column for it",
    ]
