"""What is a Protobuf schema, which payloads are messages of one, and which schemas can follow which."""

import hashlib
import importlib.resources
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ister.core.errors import InvalidMessageError, InvalidRequestError, IsterError
from ister.schemas.kinds import Compatibility
from ister.schemas.protobuf.schema import ProtobufSchema
from ister.schemas.schema import incompatibilities, unreadable
from parts.counts import LONG

USER = 'syntax = "proto3"; message User { string name = 1; int32 age = 2; repeated int32 scores = 3; User boss = 4; }'

LARGE = """
// A file with one of everything.
syntax = "proto3";
package shop.v1;
import "google/protobuf/timestamp.proto";
import public "google/protobuf/any.proto";
import "google/protobuf/type.proto";
option java_package = "x.y";
option (custom.file) = { a: 1 b { c: "}" } };

message Order {
  option deprecated = true;
  reserved 4, 8 to 10, 100 to max;
  reserved "old", "older";
  string id = 1 [json_name = "ID", deprecated = true, (custom.field).x = { y: [1, 2] }];
  optional int64 count = 2;
  repeated sint32 numbers = 3 [packed = false];
  map<string, Line> lines = 5;
  map<int32, Status> by_number = 6;
  oneof payment {
    option (custom.oneof) = "x" "y";
    string card = 11;
    .shop.v1.Order.Cash cash = 12;
  }
  google.protobuf.Timestamp at = 13;
  Status status = 14; /* a block
  comment */ bytes blob = 15;
  message Cash { fixed64 amount = 1; Order.Inner deep = 2; }
  message Inner { enum Kind { NONE = 0; SOME = 0x10; NEGATIVE = -1; } Kind kind = 1; float f = 2; double d = 3; }
  bool message = 16;
  uint32 enum = 021;
  google.protobuf.Type type = 18;
  ;
}
enum Status {
  option allow_alias = true;
  reserved 5, 7 to max;
  reserved "GONE";
  UNKNOWN = 0;
  NEW = 1 [(custom.value) = -1.5e3];
  FRESH = 1;
}
message Line { sfixed32 a = 1; sfixed64 b = 2; fixed32 c = 3; uint64 d = 4; sint64 e = 5; int32 f = 6; }
service Shop { rpc Buy(stream Order) returns (Line) { option (x) = { get: "/v1" }; } }
"""

OLD = """
syntax = "proto2";
message Order {
  required string id = 1;
  optional int32 count = 2 [default = 5];
  repeated Kind kinds = 3 [packed = true];
  optional group Extra = 4 { optional string note = 1; }
  extensions 100 to 199, 1000 to max;
  extend Order { optional int32 more = 150; }
  enum Kind { A = 1; B = 2; }
}
"""


def parse(text: str | bytes) -> ProtobufSchema:
    return ProtobufSchema.parse(text.encode() if isinstance(text, str) else text)


def message(body: str, syntax: str = "proto3", more: str = "") -> ProtobufSchema:
    return parse(f'syntax = "{syntax}"; message M {{ {body} }} {more}')


def refusal(text: str | bytes) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        parse(text)
    return str(caught.value)


def complaint(schema: ProtobufSchema, payload: bytes) -> str:
    with pytest.raises(InvalidMessageError) as caught:
        schema.check(payload)
    return str(caught.value)


def compiled(text: str, tmp_path: Path) -> FileDescriptorSet:
    """Return what protoc makes of a text."""
    (tmp_path / "schema.proto").write_text(text)
    include = importlib.resources.files("grpc_tools") / "_proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{tmp_path}", f"-I{include}", "--include_imports"]
    subprocess.run(
        [*command, f"--descriptor_set_out={tmp_path / 'out'}", "schema.proto"], check=True, capture_output=True
    )
    return FileDescriptorSet.FromString((tmp_path / "out").read_bytes())


# --- definitions ------------------------------------------------------------------------------------------------------


def without_custom_options(text: str) -> str:
    """Return a text that protoc takes: it knows no options that it cannot find."""
    lines = [line for line in text.splitlines() if "(custom." not in line or " = 1 [" in line]
    text = "\n".join(lines).replace(", (custom.field).x = { y: [1, 2] }", "").replace(" [(custom.value) = -1.5e3]", "")
    return text.replace('{ option (x) = { get: "/v1" }; }', "{}")


@pytest.mark.parametrize("text", [USER, LARGE, OLD])
def test_a_text_means_what_protoc_makes_of_it(text, tmp_path):
    ours = parse(text)
    theirs = parse(compiled(without_custom_options(text), tmp_path).SerializeToString())
    assert ours.root == theirs.root
    assert ours.messages == theirs.messages
    assert ours.enums == theirs.enums


def test_the_fingerprint_is_that_of_the_text_as_it_is():
    assert parse(USER).fingerprint == f"sha256:{hashlib.sha256(USER.encode()).hexdigest()}"
    assert parse(USER + "\n").fingerprint != parse(USER).fingerprint


def test_the_first_top_level_message_is_what_payloads_are():
    schema = parse('syntax = "proto3"; package p; enum E { Z = 0; } message A { E e = 1; } message B { string s = 1; }')
    assert schema.root == "p.A"
    assert set(schema.messages) == {"p.A"}


def test_of_a_descriptor_set_the_last_file_counts():
    first = FileDescriptorProto(name="one.proto", package="p", syntax="proto3")
    first.message_type.add(name="A").field.add(name="x", number=1, label=1, type=9)
    last = FileDescriptorProto(name="two.proto", package="q", syntax="proto3", dependency=["one.proto"])
    last.message_type.add(name="B").field.add(name="a", number=1, label=1, type=11, type_name=".p.A")
    schema = parse(FileDescriptorSet(file=[first, last]).SerializeToString())
    assert schema.root == "q.B"
    assert set(schema.messages) == {"q.B", "p.A"}


def test_a_single_descriptor_is_taken_as_well():
    file = FileDescriptorProto(name="one.proto", syntax="proto3")
    file.message_type.add(name="A").field.add(name="x", number=1, label=1, type=5)
    assert parse(file.SerializeToString()).root == "A"


def test_a_message_may_be_called_like_a_keyword_of_the_language():
    schema = message("string message = 1; int32 syntax = 2; bool optional = 3; M map = 4; bytes reserved_ = 5;")
    assert [field.name for field in schema.messages["M"].fields.values()] == [
        "message",
        "syntax",
        "optional",
        "map",
        "reserved_",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no message"),
        ('syntax = "proto3";', "no message"),
        ('syntax = "proto4"; message M {}', "not known"),
        ('edition = "2023"; message M {}', "FileDescriptorSet"),
        ("message M {", "ends too early"),
        ("message M { optional string a 1; }", "'=' is missing"),
        ("message M { string a = 1; }", "proto2"),
        ('syntax = "proto3"; message M { required string a = 1; }', "no field is required"),
        ('syntax = "proto3"; message M { optional group G = 1 {} }', "no groups"),
        ('syntax = "proto3"; message M { string a = 0; }', "not from 1"),
        ('syntax = "proto3"; message M { string a = 536870912; }', "not from 1"),
        ('syntax = "proto3"; message M { string a = 19001; }', "reserved"),
        ('syntax = "proto3"; message M { string a = x; }', "no integer"),
        ('syntax = "proto3"; message M { string a = 1; string b = 1; }', "duplicate"),
        ('syntax = "proto3"; message M { string a = 1; string a = 2; }', "duplicate"),
        ('syntax = "proto3"; message M { Absent a = 1; }', "Absent"),
        ('syntax = "proto3"; import "other.proto"; message M { other.Thing a = 1; }', "other.Thing"),
        ('syntax = "proto3"; message M { reserved 1; string a = 1; }', "reserved"),
        ('syntax = "proto3"; message M { reserved "a"; string a = 1; }', "reserved"),
        ('syntax = "proto3"; enum E { reserved 1; Z = 0; A = 1; } message M { E e = 1; }', "reserved"),
        ('syntax = "proto3"; message M { E e = 1; } enum E { A = 1; }', "zero"),
        ('syntax = "proto3"; message M { map<float, string> a = 1; }', "keys"),
        ('syntax = "proto3"; message M { string a = 1 [x = ]; }', "no value"),
        ('syntax = "proto3"; message M {} garbage', "begins nothing"),
        ('syntax = "proto3"; message M { @ }', "nothing in Protobuf"),
        ('syntax = "proto3"; message M { string a = 1; /* }', "nothing in Protobuf"),
        ('syntax = "proto3"; message M { string "a" = 1; }', "no name"),
        ('syntax = "proto3"; message a.M {}', "no name"),
        (b"\xff\xfe", "neither"),
        (b"\x00\x01\x02", "neither"),
    ],
)
def test_a_bad_definition_is_refused_by_name(text, reason):
    assert reason in refusal(text)


def test_the_line_of_a_mistake_is_named():
    assert "line 3" in refusal('syntax = "proto3";\nmessage M {\n  string = 1;\n}')


def test_messages_may_not_be_nested_without_end():
    assert "nested" in refusal('syntax = "proto3";' + "message M {" * 1000 + "}" * 1000)


def test_a_large_definition_takes_no_long_time():
    messages = "".join(
        f"message M{n} {{ {''.join(f'string f{k} = {k};' for k in range(1, 1000))} }}" for n in range(30)
    )
    assert len(message("".join(f"M{n} m{n} = {n + 1};" for n in range(30)), more=messages).messages) == 31


# --- payloads ---------------------------------------------------------------------------------------------------------


def classes(text: str):
    """Return the class of a schema's first message."""
    from ister.schemas.protobuf.schema import _build, _from_text

    file = _from_text(text.encode())
    name = f"{file.package}.{file.message_type[0].name}".lstrip(".")
    return message_factory.GetMessageClass(_build([file]).FindMessageTypeByName(name))


def test_a_payload_that_was_written_with_the_schema_passes():
    user = classes(USER)
    payload = user(name="grüße", age=-1, scores=[1, -2, 300], boss=user(name="x")).SerializeToString()
    parse(USER).check(payload)
    parse(USER).check(b"")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\x0a\x05ab", "needs 5"),
        (b"\x0a\x02\xff\xff", "not UTF-8"),
        (b"\x08\x01", "$.name has wire type 0"),
        (b"\x12\x01x", "$.age has wire type 2"),
        (b"\x10", "does not end"),
        (b"\x8a\x80\x80\x80\x80\x00\x00", "does not end"),
        (b"\x0a\x80\x80\x80\x80\x80\x00", "does not end"),
        (b"\x10" + b"\xff" * 11, "does not end"),
        (b"\x22\x04\x0a\x02\xff\xff", "$.boss.name"),
        (b"\x1a\x02\x80\x80", "does not end"),
        (b"\x00\x01", "number 0"),
        (b"\x2b", "group that does not end"),
        (b"\x2b\x34", "ends a group"),
        (b"\x2c", "ends a group"),
        (b"\x04", "ends a group"),
        (b"\x2f", "wire type 7"),
        (b'{"name": "x"}', "not of its Protobuf schema"),
    ],
)
def test_a_payload_that_is_no_message_of_the_schema_is_refused_with_its_place(payload, reason):
    assert reason in complaint(parse(USER), payload)


def test_fields_of_unknown_numbers_pass():
    parse(USER).check(b"\x28\x05\x32\x01x\x3b\x08\x01\x3c\x41" + b"\0" * 8 + b"\x4d" + b"\0" * 4)


def test_a_repeated_number_may_come_packed_or_not():
    parse(USER).check(b"\x1a\x02\x01\x02\x18\x03")


def test_a_required_field_must_be_there_at_every_depth():
    schema = message(
        "required string a = 1; optional M m = 2; optional group G = 3 { required int32 x = 1; }", "proto2"
    )
    schema.check(b"\x0a\x00\x12\x02\x0a\x00\x1b\x08\x01\x1c")
    assert "no a" in complaint(schema, b"")
    assert "$.m has no a" in complaint(schema, b"\x0a\x00\x12\x00")
    assert "$.g has no x" in complaint(schema, b"\x0a\x00\x1b\x1c")


def test_a_payload_may_not_be_nested_without_end():
    def nested(depth: int) -> bytes:
        payload = b""
        for _ in range(depth):
            size, head = len(payload), bytearray(b"\x22")
            while size > 0x7F:
                head.append(size & 0x7F | 0x80)
                size >>= 7
            payload = bytes(head) + bytes([size]) + payload
        return payload

    parse(USER).check(nested(50))
    assert "nested" in complaint(parse(USER), nested(500))
    assert "nested" in complaint(parse(USER), b"\x2b" * 10_000)


def test_what_passes_is_parsed_by_the_library(count, tell):
    user, schema, passed = classes(USER), parse(USER), 0
    for seed in range(count(5_000, 300_000)):
        chance = Random(seed)
        scores = [chance.choice([0, -1, 300]) for _ in range(chance.randint(0, 3))]
        boss = user(name="b") if chance.random() < 0.3 else None
        original = user(name=chance.choice(["", "a", "é"]), age=chance.choice([0, -1, 5]), scores=scores, boss=boss)
        payload = bytearray(original.SerializeToString())
        schema.check(bytes(payload))
        for _ in range(chance.randint(1, 3)):
            at, byte = chance.randrange(12), chance.choice([chance.randrange(256), 0x80, 0xFF, 0])
            payload[at : at + 1] = [byte]
        try:
            schema.check(bytes(payload))
        except InvalidMessageError:
            continue
        user.FromString(bytes(payload))
        passed += 1
    assert passed > 100
    tell("schemas", f"Protobuf: {passed} damaged payloads that pass are parsed by the library")


# --- compatibility ----------------------------------------------------------------------------------------------------


def reads(reader: ProtobufSchema, writer: ProtobufSchema) -> bool:
    return unreadable(reader, writer) == []


def why(reader: ProtobufSchema, writer: ProtobufSchema) -> str:
    return " | ".join(unreadable(reader, writer))


def test_fields_may_come_and_go():
    assert reads(message("string a = 1; int32 b = 2;"), message("string a = 1;"))
    assert reads(message("string a = 1;"), message("string a = 1; int32 b = 2;"))


def test_a_number_cannot_be_used_again_for_another_type():
    assert why(message("int32 a = 1;"), message("string a = 1;")) == "$.a: string cannot be read as int32 (field 1)"
    assert not reads(message("string b = 1;"), message("double a = 1;"))


WIDER = {
    "bool": {"int32", "int64", "uint32", "uint64"},
    "int32": {"int64"},
    "uint32": {"uint64", "int64"},
    "sint32": {"sint64"},
    "string": {"bytes"},
}
SCALARS = ["bool", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64", "float", "double", "string", "bytes"]  # fmt: skip


@pytest.mark.parametrize("written", SCALARS)
def test_a_type_is_read_as_another_only_if_every_value_survives(written):
    readers = {kind for kind in SCALARS if reads(message(f"{kind} a = 1;"), message(f"{written} a = 1;"))}
    assert readers == {written, *WIDER.get(written, ())}


EDGES = {
    "bool": [True],
    "int32": [-(2**31), 2**31 - 1],
    "uint32": [2**32 - 1],
    "sint32": [-(2**31), 2**31 - 1],
    "string": ["grüße"],
}


@pytest.mark.parametrize("written", sorted(WIDER))
def test_the_values_at_the_edges_do_survive(written):
    for kind in WIDER[written]:
        for value in EDGES[written]:
            payload = classes(f'syntax = "proto3"; message M {{ {written} a = 1; }}')(a=value).SerializeToString()
            read = classes(f'syntax = "proto3"; message M {{ {kind} a = 1; }}').FromString(payload).a
            assert read == (value.encode() if kind == "bytes" else value), (written, kind)


def test_a_field_may_become_repeated_and_not_back():
    assert reads(message("repeated string a = 1;"), message("string a = 1;"))
    assert "repeats" in why(message("string a = 1;"), message("repeated string a = 1;"))


def test_a_required_field_may_not_come_and_what_was_required_may_go():
    one, other = message("required string a = 1;", "proto2"), message("optional string a = 1;", "proto2")
    assert "requires a" in why(one, other)
    assert not reads(one, message("optional string b = 2;", "proto2"))
    assert reads(other, one)
    assert incompatibilities(other, one, Compatibility.FORWARD) != [], "the old reader still asks for it"


def test_a_name_may_not_move_to_another_number():
    assert "a moves from number 1 to 2" in why(message("string a = 2;"), message("string a = 1;"))
    assert reads(message("string b = 1;"), message("string a = 1;")), "a new name for a number is fine"


def test_a_reserved_number_or_name_may_not_be_used_in_any_mode_but_none():
    latest = message('reserved 2, 5 to 9; reserved "b"; string a = 1;')
    for body in ("string a = 1; string c = 2;", "string a = 1; string c = 7;", "string a = 1; string b = 3;"):
        for mode in (Compatibility.BACKWARD, Compatibility.FORWARD, Compatibility.FULL):
            assert any("reserved" in reason for reason in incompatibilities(message(body), latest, mode)), body
        assert incompatibilities(message(body), latest, Compatibility.NONE) == []
    assert incompatibilities(message("string a = 1; string c = 3;"), latest, Compatibility.FULL) == []


def test_a_field_may_be_reserved_once_it_is_removed():
    assert (
        incompatibilities(
            message("reserved 2; string a = 1;"), message("string a = 1; string b = 2;"), Compatibility.FULL
        )
        == []
    )


def test_messages_within_are_compared_and_may_be_called_otherwise():
    writer = message("A x = 1;", more="message A { int32 n = 1; }")
    assert reads(message("B x = 1;", more="message B { int64 n = 1; }"), writer)
    assert why(message("B x = 1;", more="message B { string n = 1; }"), writer).startswith("$.x.n:")
    assert not reads(message("bytes x = 1;"), writer)


def test_maps_are_compared_by_key_and_value():
    assert reads(message("map<string, int64> a = 1;"), message("map<string, int32> a = 1;"))
    assert not reads(message("map<string, int32> a = 1;"), message("map<string, int64> a = 1;"))
    assert "$.a.key" in why(message("map<int32, int32> a = 1;"), message("map<string, int32> a = 1;"))


def test_recursive_messages_are_compared_to_the_end():
    assert reads(message("M next = 1; int64 v = 2;"), message("M next = 1; int32 v = 2;"))
    assert not reads(message("M next = 1; int32 v = 2;"), message("M next = 1; int64 v = 2;"))


def test_an_open_enum_keeps_what_it_does_not_know_and_a_closed_one_does_not():
    def enum(values: str, syntax: str) -> ProtobufSchema:
        label = "optional " if syntax == "proto2" else ""
        return message(f"{label}E e = 1;", syntax, f"enum E {{ {values} }}")

    assert reads(enum("A = 0;", "proto3"), enum("A = 0; B = 1;", "proto3"))
    assert "no value 1" in why(enum("A = 0;", "proto2"), enum("A = 0; B = 1;", "proto2"))
    assert reads(enum("A = 0; B = 1;", "proto2"), enum("A = 0;", "proto2"))
    assert "open" in why(enum("A = 0;", "proto2"), enum("A = 0;", "proto3"))
    assert "B moves from 1 to 2" in why(enum("A = 0; B = 2;", "proto3"), enum("A = 0; B = 1;", "proto3"))
    assert reads(message("int32 e = 1;"), enum("A = 0;", "proto3"))
    assert not reads(enum("A = 0;", "proto3"), message("int32 e = 1;"))


def test_two_fields_cannot_move_into_one_oneof():
    apart, together = message("string a = 1; string b = 2;"), message("oneof o { string a = 1; string b = 2; }")
    assert "oneof o" in why(together, apart)
    assert reads(apart, together)
    assert reads(message("oneof o { string a = 1; } string b = 2;"), apart)
    assert reads(message("oneof p { string a = 1; string b = 2; int32 c = 3; }"), together)


def test_optional_in_proto3_is_no_oneof_of_its_own():
    assert reads(message("optional string a = 1; optional string b = 2;"), message("string a = 1; string b = 2;"))


def test_a_group_is_no_message():
    group = message("optional group G = 1 { optional string a = 1; }", "proto2")
    assert not reads(message("optional N g = 1;", "proto2", "message N { optional string a = 1; }"), group)
    assert reads(group, group)


def test_the_first_message_must_keep_its_name():
    text = 'syntax = "proto3"; package {}; message {} {{ string a = 1; }}'
    assert reads(parse(text.format("p", "A")), parse(text.format("q", "A")))
    assert "first message" in why(parse(text.format("p", "B")), parse(text.format("p", "A")))


def test_text_and_descriptors_of_one_schema_can_follow_each_other(tmp_path):
    ours, theirs = parse(USER), parse(compiled(USER, tmp_path).SerializeToString())
    assert incompatibilities(ours, theirs, Compatibility.FULL) == []


# --- hostile ----------------------------------------------------------------------------------------------------------

WORDS = ["message", "enum", "M", "{", "}", "=", ";", "1", "0", "-", "string", "int32", "map", "<", ">", ",", "oneof", "reserved", "to", "max", "option", "(", ")", "[", "]", '"a"', "repeated", "optional", "required", "group", "extend", "extensions", "a", "b", ".", "import", "package", "service", "0x", "1.5", "//", "/*", "*/", "'"]  # fmt: skip


@settings(max_examples=20_000 if LONG else 500, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.sampled_from(WORDS), max_size=40).map(lambda words: " ".join(words).encode())
    | st.binary(max_size=60)
    | st.lists(st.sampled_from(WORDS), max_size=20).map(lambda words: f'syntax = "proto3"; message M {{ {" ".join(words)} }}'.encode()),
    st.binary(max_size=30),
)  # fmt: skip
def test_nothing_but_our_own_errors_comes_of_a_hostile_definition(text, payload):
    try:
        schema = ProtobufSchema.parse(text)
        unreadable(schema, schema)
        schema.check(payload)
    except IsterError:
        pass


@settings(max_examples=20_000 if LONG else 500, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_nothing_but_our_own_errors_comes_of_damaged_descriptors(data):
    file = bytearray(
        FileDescriptorSet(
            file=[FileDescriptorProto.FromString(descriptor_pb2.DESCRIPTOR.serialized_pb)]
        ).SerializeToString()
    )
    for _ in range(data.draw(st.integers(1, 3))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    try:
        schema = ProtobufSchema.parse(bytes(file))
        unreadable(schema, schema)
        schema.check(b"\x0a\x00")
    except IsterError:
        pass


def test_the_pool_of_the_process_is_left_alone():
    parse('syntax = "proto3"; package only.here; message Once { string a = 1; }')
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("only.here.Once")
