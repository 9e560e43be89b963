import json
from random import Random

import pytest
from google.protobuf import json_format

from ister.schemas.columns.types import COLUMNS_MAX, Decimal, Field, List, Map, Primitive, Struct, columns_in
from ister.schemas.decode import shape_of
from parts.typed import decoded, message_class, protobuf

P = Primitive
INT32, INT64 = 1 << 31, 1 << 63
SCALARS = [
    ("int32", P.INT, [-INT32, -1, 0, 1, INT32 - 1]),
    ("sint32", P.INT, [-INT32, -1, 0, 1, INT32 - 1]),
    ("sfixed32", P.INT, [-INT32, -1, 0, 1, INT32 - 1]),
    ("int64", P.LONG, [-INT64, -1, 0, 1, INT64 - 1]),
    ("sint64", P.LONG, [-INT64, -1, 0, 1, INT64 - 1]),
    ("sfixed64", P.LONG, [-INT64, -1, 0, 1, INT64 - 1]),
    ("uint32", P.LONG, [0, 1, 2 * INT32 - 1]),
    ("fixed32", P.LONG, [0, 1, 2 * INT32 - 1]),
    ("uint64", Decimal(20, 0), [0, 1, 2 * INT64 - 1]),
    ("fixed64", Decimal(20, 0), [0, 1, 2 * INT64 - 1]),
    ("float", P.FLOAT, [0.0, -0.5, float("inf")]),
    ("double", P.DOUBLE, [0.0, 0.1, float("-inf")]),
    ("bool", P.BOOLEAN, [False, True]),
    ("string", P.STRING, ["", "häß"]),
    ("bytes", P.BINARY, [b"", b"\xff\x00"]),
]


def fields_of(schema):
    return {one.name: one.shape for one in shape_of(schema).fields}


@pytest.mark.parametrize(("kind", "shape", "values"), SCALARS, ids=lambda one: str(one)[:20])
def test_every_scalar_alone_repeated_packed_or_not_and_in_a_map(kind, shape, values):
    text = f"""syntax = "proto3"; message M {{
        optional {kind} one = 1; repeated {kind} many = 2; map<string, {kind}> by = 3;
    }}"""
    schema = protobuf(text)
    assert fields_of(schema) == {"one": shape, "many": List(shape), "by": Map(shape)}
    made = message_class(text, "M")
    loose = message_class(text.replace('"proto3"', '"proto2"'), "M")  # there lists are not packed
    for value in values:
        by = {"k": value, "": values[0]}
        for kinds in (made, loose):
            payload = kinds(one=value, many=values, by=by).SerializeToString()
            assert decoded(schema, payload) == [{"one": value, "many": values, "by": by}]
    assert decoded(schema, b"") == [{"one": None, "many": [], "by": {}}]


ALL = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/any.proto";
message All {
  enum Kind { NONE = 0; SOME = 1; }
  message Inner { optional int32 a = 1; repeated string b = 2; Inner in = 3; }
  message Empty {}
  Kind kind = 1;
  repeated Kind kinds = 2;
  message Plain { optional int32 a = 1; repeated string b = 2; }
  Plain plain = 3;
  repeated Plain plains = 4;
  map<int32, Plain> by_number = 5;
  map<bool, Kind> by_flag = 6;
  Inner inner = 7;
  Empty empty = 8;
  oneof choice { string text = 9; Plain other = 10; int64 number = 11; }
  google.protobuf.Timestamp at = 12;
  google.protobuf.Int64Value wrapped = 13;
  google.protobuf.StringValue word = 14;
  google.protobuf.Struct free = 15;
  google.protobuf.Value any_value = 16;
  google.protobuf.Any thing = 17;
  map<string, Inner> trees = 18;
}"""
PLAIN = Struct((Field("a", P.INT), Field("b", List(P.STRING))))


def test_messages_enums_maps_oneofs_and_known_types_have_their_shapes():
    shapes = fields_of(protobuf(ALL))
    assert shapes == {
        "kind": P.STRING,
        "kinds": List(P.STRING),
        "plain": PLAIN,
        "plains": List(PLAIN),
        "by_number": Map(PLAIN),
        "by_flag": Map(P.STRING),
        "inner": Struct((Field("a", P.INT), Field("b", List(P.STRING)), Field("in", P.JSON))),
        "empty": P.JSON,
        "text": P.STRING,
        "other": PLAIN,
        "number": P.LONG,
        "at": Struct((Field("seconds", P.LONG), Field("nanos", P.INT))),
        "wrapped": P.LONG,
        "word": P.STRING,
        "free": P.JSON,
        "any_value": P.JSON,
        "thing": Struct((Field("type_url", P.STRING), Field("value", P.BINARY))),
        "trees": Map(Struct((Field("a", P.INT), Field("b", List(P.STRING)), Field("in", P.JSON)))),
    }


def test_messages_enums_maps_oneofs_and_known_types_come_back():
    made = message_class(ALL, "All")()
    made.kind = 1
    made.kinds.extend([0, 1, 7])
    made.plain.a = 5
    made.plains.add(a=1, b=["x"])
    made.plains.add()
    made.by_number[-3].a = 4
    made.by_flag[True] = 1
    made.by_flag[False] = 0
    made.inner.a = 1
    getattr(made.inner, "in").a = 2
    made.empty.SetInParent()
    made.other.b.append("o")
    made.at.seconds = -5
    made.wrapped.SetInParent()
    made.word.value = "w"
    json_format.ParseDict({"a": [1, None, {"b": True}], "c": "x"}, made.free)
    made.any_value.null_value = 0
    made.thing.value = b"\1"
    made.trees["t"].a = 9
    (row,) = decoded(protobuf(ALL), made.SerializeToString())
    assert {name: row[name] for name in row if row[name] is not None} == {
        "kind": "SOME",
        "kinds": ["NONE", "SOME", "7"],
        "plain": {"a": 5, "b": []},
        "plains": [{"a": 1, "b": ["x"]}, {"a": None, "b": []}],
        "by_number": {"-3": {"a": 4, "b": []}},
        "by_flag": {"true": "SOME", "false": "NONE"},
        "inner": {"a": 1, "b": [], "in": '{"a":2,"b":[]}'},
        "empty": "{}",
        "other": {"a": None, "b": ["o"]},
        "at": {"seconds": -5, "nanos": 0},
        "wrapped": 0,
        "word": "w",
        "free": row["free"],
        "thing": {"type_url": "", "value": b"\1"},
        "trees": {"t": {"a": 9, "b": [], "in": None}},
    }
    assert json.loads(row["free"]) == {"a": [1, None, {"b": True}], "c": "x"}


def test_the_last_of_a_oneof_counts_and_pieces_of_a_message_are_one():
    kind = message_class(ALL, "All")
    pieces = [kind(text="t"), kind(other={"a": 1, "b": ["x"]}), kind(other={"b": ["y"]}), kind(plain={"a": 1})]
    pieces.append(kind(plain={"a": 2, "b": ["z"]}))
    payload = b"".join(one.SerializeToString() for one in pieces)
    (row,) = decoded(protobuf(ALL), payload)
    assert (row["text"], row["other"], row["plain"]) == (None, {"a": 1, "b": ["x", "y"]}, {"a": 2, "b": ["z"]})
    (row,) = decoded(protobuf(ALL), payload + kind(number=0).SerializeToString())
    assert (row["text"], row["other"], row["number"]) == (None, None, 0)


def test_groups_are_structs_and_unknown_fields_are_skipped():
    text = """syntax = "proto2"; message M {
        optional group One = 1 { optional int32 a = 1; } repeated group Many = 2 { optional string b = 1; }
    }"""
    kind = message_class(text, "M")
    made = kind()
    made.one.a = 3
    made.many.add(b="x")
    made.many.add(b="y")
    schema = protobuf(text)
    more = b"\x18\x05" + b"\x23\x0a\x01z\x23\x24\x24" + b"\x2d1234" + b"\x3112345678" + b"\x3a\x01q"
    expected = {"one": {"a": 3}, "many": [{"b": "x"}, {"b": "y"}]}
    assert decoded(schema, made.SerializeToString() + more) == [expected]
    assert decoded(schema, made.SerializeToString() * 2) == ["error: has a group twice"]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\x08", "ends too early"),
        (b"\x08" + b"\xff" * 10, "does not end"),
        (b"\x08\x80\x80\x80\x80\x10", "more than 32 bits"),
        (b"\x0a\x01a", "wire type 2"),
        (b"\x1a\x05a", "needs 5"),
        (b"\x1a\x02\x08", "needs 2"),
        (b"\x4a\x01\xff", "not UTF-8"),
        (b"\x00\x00", "number 0"),
        (b"\x0c", "wire type 4"),
        (b"\xa3\x06", "ends too early"),
        (b"\xa6\x06", "wire type 6"),
        (b"\x1a\x01\x08\x08\x05", "does not end where it should"),
        (b"\x12\x01\x80\x01", "does not end where it should"),
        (b"\x3a" + b"\xff\xff\xff\xff\x0f" + b"a", "needs"),
    ],
)
def test_a_payload_that_does_not_fit_keeps_its_row_and_says_why(payload, reason):
    good, bad = decoded(protobuf(ALL), b"\x08\x01", payload)
    assert good["kind"] == "SOME"
    assert bad.startswith("error: ")
    assert reason in bad


@pytest.mark.parametrize("kind", ["int32", "uint32", "sint32"])
def test_a_number_of_more_bits_than_its_type_is_refused_and_never_cut(kind):
    schema = protobuf(f'syntax = "proto3"; message M {{ optional {kind} x = 1; }}')
    (row,) = decoded(schema, b"\x08\x80\x80\x80\x80\x10")
    assert row == "error: has a number of more than 32 bits"


def test_messages_nested_without_end_are_an_error():
    body = b""
    for _ in range(3_000):
        size, head = len(body), b""
        while size > 127:
            head += bytes([size & 127 | 128])
            size >>= 7
        body = b"\x1a" + head + bytes([size]) + body
    text = 'syntax = "proto3"; message T { int32 a = 1; T t = 3; }'
    assert decoded(protobuf(text), body) == ["error: is nested too deeply"]
    groups = 'syntax = "proto2"; message T { optional group G = 1 { optional T t = 2; } }'
    assert decoded(protobuf(groups), b"\x0b" * 100_000)[0].startswith("error: ")


def test_a_small_schema_cannot_ask_for_a_huge_table():
    levels = "".join(f"message M{n} {{ M{n + 1} a = 1; M{n + 1} b = 2; M{n + 1} c = 3; }}" for n in range(300))
    schema = protobuf(f'syntax = "proto3"; {levels} message M300 {{ int32 x = 1; }}')
    assert columns_in(shape_of(schema)) <= COLUMNS_MAX + 1
    assert isinstance(decoded(schema, b"")[0], dict)


def test_random_messages_are_read_as_the_library_reads_them(count, tell):
    kind, schema = message_class(ALL, "All"), protobuf(ALL)
    read = refused = 0
    for seed in range(count(400, 50_000)):
        chance = Random(seed)
        made = kind()
        fill(made, chance, 3)
        payload = bytearray(made.SerializeToString())
        (row,) = decoded(schema, bytes(payload))
        wanted = json_format.MessageToDict(made, preserving_proto_field_name=True)
        for name in ("plain", "plains", "other", "text"):
            assert strip(row[name]) == strip(wanted.get(name)), (seed, name)
        assert row["kind"] == wanted.get("kind", "NONE"), "a field without presence that is not there is 0"
        assert {key: strip(one) for key, one in row["by_number"].items()} == {
            key: strip(one) for key, one in wanted.get("by_number", {}).items()
        }, seed
        assert json.loads(row["free"] or "null") == wanted.get("free"), seed
        read += 1
        for _ in range(chance.randint(1, 3)):
            if payload:
                payload[chance.randrange(len(payload))] = chance.randrange(256)
        refused += isinstance(decoded(schema, bytes(payload))[0], str)
    tell("F33", f"{read} random Protobuf messages as the library reads them, {refused} mutated ones refused")
    assert refused > read // 10


def strip(value):
    """Return a value without what stands for nothing."""
    match value:
        case dict():
            return {name: kept for name, one in value.items() if (kept := strip(one)) is not None}
        case list():
            return [strip(one) for one in value] or None
        case _:
            return value


def fill(made, chance, depth):
    """Fill a message at random."""
    for field in made.DESCRIPTOR.fields:
        if chance.random() < 0.5:
            continue
        name = field.name
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            if name == "by_number":
                fill(made.by_number[chance.randint(-9, 9)], chance, depth - 1)
            elif name == "by_flag":
                made.by_flag[chance.random() < 0.5] = chance.randrange(2)
        elif name in {"free", "any_value", "at", "thing"}:  # JSON has its own ideas of these
            if name == "free":
                json_format.ParseDict({"k": [chance.randrange(5), None, {"z": "é"}]}, made.free)
        elif field.message_type is not None:
            if depth:
                for _ in range(chance.randrange(3) if field.is_repeated else 1):
                    fill(getattr(made, name).add() if field.is_repeated else getattr(made, name), chance, depth - 1)
                if not field.is_repeated:
                    getattr(made, name).SetInParent()
        elif field.enum_type is not None:
            getattr(made, name).extend([0, 1]) if field.is_repeated else setattr(made, name, 1)
        elif field.type == field.TYPE_STRING:
            getattr(made, name).append("é") if field.is_repeated else setattr(made, name, chance.choice(["a", "ß"]))
        elif field.type == field.TYPE_BYTES:
            setattr(made, name, b"\1")
        else:
            setattr(made, name, chance.choice([-1, 1, 5, -(1 << 31), (1 << 31) - 1]))
