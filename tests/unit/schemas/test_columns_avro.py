import datetime as dt
import decimal
import io
import struct
import uuid
from base64 import b64encode
from random import Random

import fastavro
import pytest

from ister.core.errors import IsterError
from ister.schemas.avro import columns as of_avro
from ister.schemas.columns.types import COLUMNS_MAX, Decimal, Field, List, Map, Primitive, Struct, columns_in
from ister.schemas.decode import shape_of
from parts.avro import Maker, names
from parts.avro import value as random_value
from parts.typed import avro, decoded, record

P = Primitive
UTC = dt.UTC


def written(document, value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(document), value)
    return out.getvalue()


def logical(kind, name, **more):
    return {"type": kind, "logicalType": name, **more}


def fixed(name, size, logical_type=None, **more):
    return (
        {"type": "fixed", "name": name, "size": size} | ({"logicalType": logical_type} if logical_type else {}) | more
    )


DURATION = Struct((Field("months", P.LONG), Field("days", P.LONG), Field("milliseconds", P.LONG)))
MOMENT = dt.datetime(2024, 2, 29, 12, 30, 15, 123456, UTC)
MILLIS = MOMENT.replace(microsecond=123000)
CASES = [
    ("boolean", P.BOOLEAN, True, True),
    ("int", P.INT, -(1 << 31), -(1 << 31)),
    ("long", P.LONG, (1 << 63) - 1, (1 << 63) - 1),
    ("float", P.FLOAT, 0.5, 0.5),
    ("double", P.DOUBLE, 0.1, 0.1),
    ("double", P.DOUBLE, float("inf"), float("inf")),
    ("bytes", P.BINARY, b"\xff\x00", b"\xff\x00"),
    ("string", P.STRING, "häß", "häß"),
    (fixed("F", 2), P.BINARY, b"ab", b"ab"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, P.STRING, "B", "B"),
    ({"type": "array", "items": "int"}, List(P.INT), [1, -1], [1, -1]),
    ({"type": "map", "values": "long"}, Map(P.LONG), {"a": 1}, {"a": 1}),
    ({"type": "array", "items": ["null", "int"]}, List(P.INT), [1, None], [1, None]),
    ({"type": "array", "items": "null"}, P.JSON, [None], "[null]"),
    (["null", "string"], P.STRING, None, None),
    (["string", "null"], P.STRING, "a", "a"),
    (["int"], P.INT, 5, 5),
    (["int", "string"], P.JSON, "a", '"a"'),
    (["null", "int", "string"], P.JSON, 7, "7"),
    (["bytes", "double"], P.JSON, b"\xff", '"/w=="'),
    (["string", "double"], P.JSON, float("-inf"), '"-Infinity"'),
    (["string", logical("long", "timestamp-micros")], P.JSON, MOMENT, '"2024-02-29T12:30:15.123456Z"'),
    (["string", logical("int", "date")], P.JSON, MOMENT.date(), '"2024-02-29"'),
    (["string", logical("long", "time-micros")], P.JSON, MOMENT.time(), '"12:30:15.123456"'),
    (["string", logical("bytes", "decimal", precision=5, scale=2)], P.JSON, decimal.Decimal("-1.50"), '"-1.50"'),
    (logical("int", "date"), P.DATE, dt.date(1, 1, 1), dt.date(1, 1, 1)),
    (logical("int", "time-millis"), P.STRING, MILLIS.time(), "12:30:15.123000"),
    (logical("long", "time-micros"), P.STRING, MOMENT.time(), "12:30:15.123456"),
    (logical("long", "timestamp-millis"), P.TIMESTAMPTZ, MILLIS, MILLIS),
    (logical("long", "timestamp-micros"), P.TIMESTAMPTZ, MOMENT, MOMENT),
    (logical("long", "timestamp-nanos"), P.LONG, 5, 5),
    (logical("long", "local-timestamp-millis"), P.TIMESTAMP, MILLIS.replace(tzinfo=None), MILLIS.replace(tzinfo=None)),
    (logical("long", "local-timestamp-micros"), P.TIMESTAMP, MOMENT.replace(tzinfo=None), MOMENT.replace(tzinfo=None)),
    (logical("string", "uuid"), P.STRING, uuid.UUID(int=5), str(uuid.UUID(int=5))),
    (fixed("U", 16, "uuid"), P.STRING, uuid.UUID(int=1 << 90).bytes, str(uuid.UUID(int=1 << 90))),
    (
        fixed("D", 12, "duration"),
        DURATION,
        struct.pack("<III", 1, 2, (1 << 32) - 1),
        {"months": 1, "days": 2, "milliseconds": (1 << 32) - 1},
    ),
    (
        logical("bytes", "decimal", precision=38, scale=38),
        Decimal(38, 38),
        decimal.Decimal("-0." + "9" * 38),
        decimal.Decimal("-0." + "9" * 38),
    ),
    (
        fixed("N", 5, "decimal", precision=9, scale=2),
        Decimal(9, 2),
        decimal.Decimal("1234567.89"),
        decimal.Decimal("1234567.89"),
    ),
    (logical("bytes", "decimal", precision=40, scale=1), P.JSON, decimal.Decimal("1.5"), '"1.5"'),
    (logical("int", "nothing-known"), P.INT, 4, 4),
]


@pytest.mark.parametrize(("document", "shape", "value", "expected"), CASES, ids=lambda one: str(one)[:40])
def test_every_type_has_its_shape_and_its_values_come_back(document, shape, value, expected):
    whole = record(x=document, y="string")
    schema = avro(whole)
    assert shape_of(schema) == Struct((Field("x", shape), Field("y", P.STRING)))
    # fastavro asks for a timestamp in nanoseconds as something else than a number; the bytes are the same.
    plain = record(x="long", y="string") if "nanos" in str(document) else record(x=as_written(document), y="string")
    assert decoded(schema, written(plain, {"x": value, "y": "z"})) == [{"x": expected, "y": "z"}]


def as_written(document):
    """Return a type without what fastavro would not take our bytes for."""
    if (
        isinstance(document, dict)
        and document["type"] == "fixed"
        and document.get("logicalType") in {"uuid", "duration"}
    ):
        return {name: part for name, part in document.items() if name != "logicalType"}
    return document


def test_a_decimal_that_brings_its_own_scale_is_json():
    schema = avro(record(x=logical("bytes", "big-decimal")))
    inner = written("bytes", (12345).to_bytes(2)) + written("int", 3)
    assert decoded(schema, written("bytes", inner)) == [{"x": '"12.345"'}]


def test_a_logical_type_that_is_invalid_or_out_of_all_bounds_is_ignored():
    for kind in (
        logical("bytes", "decimal"),
        logical("bytes", "decimal", precision=999_999, scale=999_999),
        fixed("D", 11, "duration"),
        fixed("U", 15, "uuid"),
    ):
        assert shape_of(avro(record(x=kind))) == Struct((Field("x", P.BINARY),))


def test_what_is_always_null_has_no_column_and_what_is_no_record_is_under_value():
    assert shape_of(avro(record(x="null", y=["null"], z="int"))) == Struct((Field("z", P.INT),))
    assert shape_of(avro(record())) == shape_of(avro("null")) == Struct((Field("value", P.JSON),))
    assert decoded(avro("int"), written("int", 5)) == [{"value": 5}]
    assert decoded(avro(record()), b"") == [{"value": "{}"}]


def test_what_leads_back_to_itself_is_json_there():
    document = record(name="string", next=["null", "R"])
    schema = avro(document)
    assert shape_of(schema) == Struct((Field("name", P.STRING), Field("next", P.JSON)))
    value = {"name": "a", "next": {"name": "b", "next": {"name": "c", "next": None}}}
    assert decoded(schema, written(document, value)) == [
        {"name": "a", "next": '{"name":"b","next":{"name":"c","next":null}}'}
    ]
    deep = b"\x02a\x02" * 50_000 + b"\x02a\x00"
    assert decoded(schema, deep) == ["error: is nested too deeply"]


def test_a_small_schema_cannot_ask_for_a_huge_table():
    kinds = [{"name": "f0", "type": record(a="int") | {"name": "R0"}}]
    for level in range(1, 400):
        fields = [{"name": name, "type": f"R{level - 1}"} for name in "abcd"]
        kinds.append({"name": f"f{level}", "type": {"type": "record", "name": f"R{level}", "fields": fields}})
    schema = avro({"type": "record", "name": "Top", "fields": kinds})
    assert columns_in(shape_of(schema)) <= COLUMNS_MAX + 1
    assert decoded(schema, b"")[0].startswith("error: ")


@pytest.mark.parametrize(
    ("document", "payload", "reason"),
    [
        ("int", b"", "ends too early"),
        ("int", b"\x02\x02", "ends at byte 1, and 1 bytes follow"),
        ("int", written("long", 1 << 31), "more than 32 bits"),
        ("long", b"\xff" * 10, "does not end"),
        ("boolean", b"\x02", "neither 0 nor 1"),
        ("string", written("bytes", b"\xff"), "not UTF-8"),
        ("string", b"\x01", "needs -1"),
        ("bytes", written("long", 1 << 40), "needs"),
        ("double", b"\0" * 7, "ends too early"),
        (["null", "int"], b"\x04", "branch 2"),
        (["null", "int"], b"\x01", "branch -1"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "symbol 1"),
        ({"type": "array", "items": "null"}, written("long", 1 << 40) + b"\0", "more items than it can"),
        ({"type": "array", "items": "int"}, b"\x01\x04\x02\x00", "ends at byte"),
        (logical("int", "date"), written("int", 2_932_897), "out of range for a date"),
        (logical("long", "time-micros"), written("long", 86_400_000_000), "86400000000 for a time of day"),
        (logical("long", "timestamp-millis"), written("long", 1 << 62), "out of range for a timestamp"),
        (logical("bytes", "decimal", precision=2, scale=1), written("bytes", b"\x64"), "decimal(2,1)"),
        (logical("bytes", "decimal", precision=2, scale=1), written("bytes", b"\x7f" * 2_000), "2000 bytes"),
        (logical("bytes", "big-decimal"), written("bytes", b"\x00"), "ends too early"),
    ],
)
def test_a_payload_that_does_not_fit_keeps_its_row_and_says_why(document, payload, reason):
    (bad,) = decoded(avro(record(x=document)), payload)
    assert bad.startswith("error: ")
    assert reason in bad


def plain(value):
    """Return a value with bytes as JSON columns have them, so that it can be compared wherever it is."""
    match value:
        case bytes():
            return b64encode(value).decode()
        case list():
            return [plain(one) for one in value]
        case dict():
            return {name: plain(one) for name, one in value.items()}
        case _:
            return value


def test_random_values_are_read_as_fastavro_reads_them(count, tell):
    read = as_json = 0
    for seed in range(count(1_000, 30_000)):
        chance = Random(seed)
        kinds = [Maker(chance).kind()]
        document = {"type": "record", "name": "Root", "fields": [{"name": "x", "type": kind} for kind in kinds]}
        try:
            schema = avro(document)
            value = random_value(chance, document, names(document))
        except (IsterError, RecursionError):
            continue
        payload = written(document, value)
        wanted = fastavro.schemaless_reader(io.BytesIO(payload), fastavro.parse_schema(document), None)
        got = of_avro.reader(schema)(payload)
        if Primitive.JSON in [one.shape for one in shape_of(schema).fields if one.name == "value"]:
            got = got["value"]
        assert plain(got) == plain(wanted), seed
        (row,) = decoded(schema, payload)
        assert isinstance(row, dict), seed
        read += 1
        as_json += "json" in str(shape_of(schema))
    tell("F33", f"{read} random Avro values are read as fastavro reads them, {as_json} of them partly as JSON")
    assert read > 500
    assert as_json > 100
