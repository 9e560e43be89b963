import json

import pytest

from ister.schemas.columns.evolve import TABLE_COLUMNS_MAX, AddField, add_beside, has_beside
from ister.schemas.columns.types import COLUMNS_MAX, Field, List, Map, Primitive, Struct, columns_in
from ister.schemas.decode import Decoders, shape_of
from parts.typed import decode_column, decoded, json_schema, table_of

P = Primitive


def shape_under(document):
    """Return the shape of a property with this schema, None when it has no column."""
    whole = shape_of(json_schema({"type": "object", "properties": {"x": document, "y": {"type": "string"}}}))
    return {one.name: one.shape for one in whole.fields}.get("x")


@pytest.mark.parametrize(
    ("document", "shape"),
    [
        ({"type": "boolean"}, P.BOOLEAN),
        ({"type": "integer"}, P.LONG),
        ({"type": "number"}, P.DOUBLE),
        ({"type": "string"}, P.STRING),
        ({"type": "string", "format": "date-time"}, P.STRING),
        ({"type": ["string", "null"]}, P.STRING),
        ({"type": ["integer", "number"]}, P.DOUBLE),
        ({"type": ["string", "integer"]}, P.JSON),
        ({"type": "null"}, None),
        ({}, P.JSON),
        (True, P.JSON),
        (False, None),
        ({"const": 3}, P.LONG),
        ({"enum": ["a", "b", None]}, P.STRING),
        ({"enum": [1, 2.5]}, P.DOUBLE),
        ({"enum": [1, "a"]}, P.JSON),
        ({"type": "array", "items": {"type": "integer"}}, List(P.LONG)),
        ({"type": "array"}, P.JSON),
        ({"type": "array", "items": {}}, P.JSON),
        ({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "integer"}}, P.JSON),
        ({"type": "object"}, P.JSON),
        ({"type": "object", "additionalProperties": {"type": "string"}}, Map(P.STRING)),
        ({"type": "object", "patternProperties": {"^a": {"type": "integer"}}}, P.JSON),
        (
            {"type": "object", "patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": False},
            Map(P.LONG),
        ),
        ({"type": "object", "additionalProperties": {"type": ["string", "integer"]}}, P.JSON),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, Struct((Field("a", P.LONG),))),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, P.LONG),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, P.JSON),
        ({"type": "string", "anyOf": [{"minLength": 3}, {"pattern": "^a"}]}, P.STRING),
        ({"allOf": [{"type": "object"}, {"properties": {"a": {"type": "string"}}}]}, Struct((Field("a", P.STRING),))),
    ],
    ids=lambda one: json.dumps(one) if isinstance(one, dict | bool) else "",
)
def test_every_kind_of_schema_has_its_shape(document, shape):
    assert shape_under(document) == shape


def test_what_leads_back_to_itself_is_json_there_and_typed_before():
    tree = json_schema(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "left": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
                "all": {"type": "array", "items": {"$ref": "#"}},
            },
        }
    )
    assert shape_of(tree) == Struct((Field("name", P.STRING), Field("left", P.JSON), Field("all", P.JSON)))
    (row,) = decoded(tree, b'{"name":"a","left":{"name":"b","left":null},"all":[{"name":"c"}]}')
    assert row == {"name": "a", "left": '{"name":"b","left":null}', "all": '[{"name":"c"}]'}


def test_a_part_that_two_levels_share_is_no_circle():
    shared = {
        "$defs": {"id": {"type": "object", "properties": {"id": {"type": "integer"}}}},
        "allOf": [{"$ref": "#/$defs/id"}],
        "properties": {"child": {"allOf": [{"$ref": "#/$defs/id"}], "properties": {"x": {"type": "string"}}}},
    }
    child = Struct((Field("x", P.STRING), Field("id", P.LONG)))
    assert shape_of(json_schema(shared)) == Struct((Field("child", child), Field("id", P.LONG)))


@pytest.mark.parametrize("document", [{"type": "integer"}, {"type": "array", "items": {"type": "string"}}, {}])
def test_what_is_no_object_is_under_value(document):
    (only,) = shape_of(json_schema(document)).fields
    assert only.name == "value"


def test_a_small_schema_cannot_ask_for_a_huge_table():
    defs = {"d0": {"type": "object", "properties": {"x": {"type": "string"}}}}
    for level in range(1, 40):
        inner = {"$ref": f"#/$defs/d{level - 1}"}
        defs[f"d{level}"] = {"type": "object", "properties": dict.fromkeys("abcdefgh", inner)}
    shape = shape_of(json_schema({"$defs": defs, "$ref": "#/$defs/d39"}))
    assert columns_in(shape) <= COLUMNS_MAX + 1
    wide = {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(2_000)}}
    assert shape_of(json_schema(wide)) == Struct((Field("value", P.JSON),))


THINGS = json_schema(
    {
        "type": "object",
        "properties": {
            "flag": {"type": "boolean"},
            "count": {"type": "integer"},
            "size": {"type": "number"},
            "name": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "by": {"type": "object", "additionalProperties": {"type": "integer"}},
            "in": {"type": "object", "properties": {"deep": {"type": "array", "items": {"type": "number"}}}},
            "any": {},
        },
    }
)


def test_values_of_every_kind_come_back():
    value = {
        "flag": True,
        "count": -(1 << 63),
        "size": 0.1,
        "name": "häß\u0000",
        "tags": ["a", None],
        "by": {"": 1, "b": None},
        "in": {"deep": [1.5, None]},
        "any": '{"x":[1,null,"ü"]}',
    }
    payload = json.dumps(value | {"any": json.loads(value["any"]), "unknown": [{}]}).encode()
    empty = dict.fromkeys(value)
    assert decoded(THINGS, payload, b"{}", b"null", None) == [value, empty, None, None]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"{", "is not JSON"),
        (b"[1]", "is not an object: list of 1"),
        (b'{"count":"1"}', "$.count: is not a number: '1'"),
        (b'{"count":true}', "$.count: is not a number"),
        (b'{"count":1.5}', "$.count: 1.5 is no integer"),
        (b'{"count":9223372036854775808}', "$.count: 9223372036854775808 is out of range"),
        (b'{"count":' + b"9" * 5_000 + b"}", "$.count: 99999"),
        (b'{"count":' + b"9" * 4_000 + b"}", "$.count: a number of"),
        (b'{"count":1e99999999999999999999}', "$.count: 1e99999999999999999999 is out of range"),
        (b'{"count":1e-400}', "$.count: 1E-400 is no integer"),
        (b'{"size":9007199254740993}', "cannot be a double without loss"),
        (b'{"size":' + b"9" * 4_000 + b"}", "cannot be a double without loss"),
        (b'{"size":NaN}', "NaN is no number"),
        (b'{"size":1e999}', "$.size: 1e999 is too large for a double"),
        (b'{"any":NaN}', "NaN is no number"),
        (b'{"name":1}', "$.name: is not a string: 1"),
        (b'{"flag":0}', "$.flag: is not a boolean: 0"),
        (b'{"name":"\\ud800"}', "half a character"),
        (b'{"any":"\\ud800"}', "half a character"),
        (b'{"by":{"\\ud800":1}}', "half a character"),
        (b'{"tags":{}}', "$.tags: is not a list: dict of 0"),
        (b'{"tags":["a",2]}', "$.tags[]: is not a string: 2"),
        (b'{"by":{"a":"x"}}', "$.by{}: is not a number: 'x'"),
        (b'{"in":{"deep":["' + b"x" * 500 + b'"]}}', "$.in.deep[]: is not a number: 'xxxx"),
        (b'{"any":' + b"[" * 10_000 + b"]" * 10_000 + b"}", "nested too deeply"),
    ],
)
def test_a_payload_that_does_not_fit_keeps_its_row_and_says_why(payload, reason):
    before, bad, after = decoded(THINGS, b'{"count":1}', payload, b'{"count":3}')
    assert before["count"] == 1
    assert after["count"] == 3
    assert bad.startswith("error: ")
    assert reason in bad
    assert len(bad) < 250


def test_a_number_is_an_integer_by_its_value():
    first, second = decoded(THINGS, b'{"count":3.0,"size":3}', b'{"count":1e3}')
    assert (first["count"], first["size"], second["count"]) == (3, 3.0, 1000)
    assert isinstance(first["size"], float)


def test_a_json_number_is_exact_in_a_column_of_longs():
    """K4."""
    rows = decoded(THINGS, b'{"count":9007199254740993.0}', b'{"count":123456789012345678.0}', b'{"count":9.2e18}')
    assert [row["count"] for row in rows] == [9007199254740993, 123456789012345678, 9_200_000_000_000_000_000]
    (row,) = decoded(THINGS, b'{"count":9007199254740993.5}')
    assert row.startswith("error: $.count: 9007199254740993.5 is no integer")


def test_a_column_of_doubles_takes_the_double_that_is_nearest_to_what_was_written():
    """K4."""
    rows = decoded(THINGS, b'{"size":12345678901234567.89}', b'{"size":0.10}', b'{"size":-1e-400}')
    assert [row["size"] for row in rows] == [12345678901234567.89, 0.1, 0.0]


def test_a_json_number_in_a_column_of_json_is_the_text_that_was_written():
    """K4."""
    texts = [
        "12345678901234567.89",
        "0.10",
        "1e400",
        "-0.0",
        "[1,1E5,1.0]",
        '{"a":{"b":[0.10,"x",null,true]}}',
        "9" * 5000,
    ]
    rows = decoded(THINGS, *(b'{"any":%s}' % text.encode() for text in texts))
    assert [row["any"] for row in rows] == texts


@pytest.mark.parametrize("unknown", ["1e400", "9" * 5_000, "1e99999999999999999999"])
def test_a_number_that_no_column_asks_for_may_be_of_any_size(unknown):
    """K4."""
    (row,) = decoded(THINGS, b'{"count":1,"not_in_schema":%s}' % unknown.encode())
    assert row["count"] == 1


@pytest.mark.parametrize(
    ("payload", "column", "text"),
    [
        (b'{"count":18446744073709551615}', "count", "18446744073709551615"),
        (b'{"count":1.50}', "count", "1.50"),
        (b'{"size":9007199254740993}', "size", "9007199254740993"),
        (b'{"size":1e400}', "size", "1e400"),
        (b'{"name":{"a":[1.0]}}', "name", '{"a":[1.0]}'),
        (b'{"tags":["a",0.10]}', "tags", '["a",0.10]'),
        (b'{"by":{"a":"x"}}', "by", '{"a":"x"}'),
        (b'{"in":"text"}', "in", '"text"'),
    ],
)
def test_a_value_that_does_not_fit_its_column_goes_beside_it_and_the_row_is_kept(payload, column, text):
    """K4."""
    table = table_of(THINGS)
    found = decode_column(Decoders({(1, 1): THINGS}, table, (1, 1)), [payload])
    assert found.misfits == [(column,)]
    grown, changes = add_beside(table, found.misfits)
    assert changes == [AddField((f"{column}_as_json",), P.JSON)]
    assert has_beside(grown, (column,))
    assert not has_beside(table, (column,))
    assert add_beside(grown, found.misfits) == (grown, [])
    (row,) = decoded(THINGS, payload, table=grown)
    assert row[column] is None
    assert row[f"{column}_as_json"] == text


def test_all_values_of_a_row_that_do_not_fit_are_known_at_once_wherever_they_are():
    """K4."""
    inner = {"type": "object", "properties": {"n": {"type": "integer"}}}
    schema = json_schema(
        {
            "type": "object",
            "properties": {
                "a": {"type": "integer"},
                "s": inner,
                "l": {"type": "array", "items": inner},
                "m": {"type": "object", "additionalProperties": inner},
            },
        }
    )
    table = table_of(schema)
    payload = b'{"a":0.5,"s":{"n":0.5},"l":[{"n":1},{"n":0.5}],"m":{"k":{"n":0.5}}}'
    found = decode_column(Decoders({(1, 1): schema}, table, (1, 1)), [payload])
    assert found.errors.to_pylist() == ["$.a: 0.5 is no integer"]
    assert found.misfits == [("a",), ("l", "element", "n"), ("m", "value", "n"), ("s", "n")]
    grown, _ = add_beside(table, found.misfits)
    assert all(has_beside(grown, path) for path in found.misfits)
    n, json_n = {"n": 1, "n_as_json": None}, {"n": None, "n_as_json": "0.5"}
    assert decoded(schema, payload, table=grown) == [
        {"a": None, "a_as_json": "0.5", "s": json_n, "l": [n, json_n], "m": {"k": json_n}}
    ]


def test_a_table_without_room_for_another_column_keeps_the_row_with_an_error():
    """K4."""
    full = Struct((*table_of(THINGS).fields, *(Field(f"c{index}", P.INT) for index in range(TABLE_COLUMNS_MAX - 13))))
    assert columns_in(full) == TABLE_COLUMNS_MAX
    assert add_beside(full, [("count",)]) == (full, [])
    assert add_beside(full, [("gone",), ("count", "x"), ("tags", "element", "y")]) == (full, [])
    (row,) = decoded(THINGS, b'{"count":0.5}', table=full)
    assert row == "error: $.count: 0.5 is no integer"


def test_many_empty_structs_in_a_list_are_refused_before_they_fill_the_memory():
    wide = {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(900)}}
    schema = json_schema({"type": "object", "properties": {"x": {"type": "array", "items": wide}}})
    few, many = decoded(schema, b'{"x":[{},{}]}', b'{"x":[' + b",".join([b"{}"] * 2_000) + b"]}")
    assert len(few["x"]) == 2
    assert "more than 1048576 values" in many
