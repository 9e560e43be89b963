"""What is a JSON Schema, and which payloads are valid under one."""

import hashlib
import json
import re
import threading

import pytest

from ister.core.errors import InvalidMessageError, InvalidRequestError
from ister.schemas.json.compare import unreadable
from ister.schemas.json.schema import SCHEMAS_MAX, JsonSchema
from ister.schemas.json.validate import PayloadValidator
from parts.schema import definition

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
USER = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
    "required": ["id"],
}


def parse(schema) -> JsonSchema:
    return JsonSchema.parse(definition(schema))


def valid(schema, value) -> bool:
    try:
        parse(schema).check(json.dumps(value).encode())
    except InvalidMessageError:
        return False
    return True


def refusal(schema) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        JsonSchema.parse(schema if isinstance(schema, bytes) else definition(schema))
    return str(caught.value)


def complaint(schema, payload: bytes) -> str:
    with pytest.raises(InvalidMessageError) as caught:
        parse(schema).check(payload)
    return str(caught.value)


# --- definitions ------------------------------------------------------------------------------------------------------


def test_the_fingerprint_does_not_depend_on_spaces_or_the_order_of_keys():
    one = JsonSchema.parse(b'{"type":"object","properties":{"a":{"type":"string"}}}')
    other = JsonSchema.parse(b'{ "properties": {"a": {"type": "string"}},\n "type": "object" }')
    assert one.fingerprint == other.fingerprint
    assert one.fingerprint.startswith("sha256:")
    assert len(one.fingerprint) == len("sha256:") + 64


def test_the_fingerprint_is_that_of_the_sorted_text_without_spaces():
    text = '{"properties":{"ä":{"type":"string"}},"type":"object"}'
    known = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    assert parse({"type": "object", "properties": {"ä": {"type": "string"}}}).fingerprint == known


def test_a_boolean_is_a_schema():
    assert valid(schema=True, value=5)
    assert not valid(schema=False, value=5)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "UTF-8"),
        (b"[]", "no schema"),
        (b'"string"', "no schema"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"minimum": NaN}', "NaN"),
        (b'{"minimum": 1e999}', "too large"),
        (b'{"title": "\\ud800"}', "not JSON that can be used"),
        ({"type": "strnig"}, "type"),
        ({"type": []}, "type"),
        ({"properties": 5}, "properties"),
        ({"properties": {"a": 5}}, r"\$\.properties\.a is no schema"),
        ({"items": [{"type": "string"}]}, "items is no schema"),
        ({"required": "a"}, "required"),
        ({"required": ["a", "a"]}, "required"),
        ({"required": [1]}, "required"),
        ({"minLength": -1}, "minLength"),
        ({"minLength": 1.5}, "minLength"),
        ({"minimum": "1"}, "minimum"),
        ({"multipleOf": 0}, "multipleOf"),
        ({"allOf": []}, "allOf"),
        ({"enum": "a"}, "enum"),
        ({"$schema": "http://example.org/mine"}, r"\$schema"),
        ({"$schema": 5}, r"\$schema"),
        ({"$id": 5}, r"\$id"),
        ({"$defs": {"a": {"$schema": DRAFT_7}}}, "another dialect"),
        ({"$schema": DRAFT_4, "properties": {"a": True}}, "draft 4"),
        ({"$schema": DRAFT_4, "required": []}, "draft 4"),
        ({"$schema": DRAFT_7, "dependencies": {"a": [1]}}, "dependencies"),
        ({"$dynamicRef": "#a"}, "not supported"),
        ({"readOnly": "yes"}, "readOnly"),
    ],
)
def test_a_definition_of_a_wrong_form_is_refused_by_name(schema, reason):
    assert re.search(reason, refusal(schema))


@pytest.mark.parametrize("pattern", ["(", "(?=a)b", r"(a)\1", "a{5000}"])
def test_a_pattern_that_cannot_be_searched_for_in_bounded_time_is_refused(pattern):
    assert "pattern" in refusal({"properties": {"a": {"pattern": pattern}}})
    assert "pattern" in refusal({"patternProperties": {pattern: {}}})


@pytest.mark.parametrize(
    "reference",
    [
        "http://localhost:1/schema.json",
        "https://json-schema.org/draft/2020-12/schema",
        "file:///etc/passwd",
        "other.json",
        "#/$defs/absent",
        "#absent",
        "http://[",
    ],
)
def test_nothing_is_fetched_and_a_reference_to_elsewhere_is_refused(reference):
    refusal({"properties": {"a": {"$ref": reference}}})


def test_a_reference_to_something_that_is_no_schema_is_refused():
    assert "no schema" in refusal({"$ref": "#/enum/0", "enum": [5]})


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {
            "properties": {"x": {"$ref": "#/$defs/a"}},
            "$defs": {"a": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/a"}]}},
        },
        {"not": {"$ref": "#"}},
    ],
)
def test_a_schema_that_refers_to_itself_for_the_same_value_is_refused(schema):
    assert "refers to itself" in refusal(schema)


def test_a_schema_that_doubles_at_every_reference_is_refused():
    laughs = {f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(14)}
    assert "apply to one value" in refusal({"$ref": "#/$defs/l0", "$defs": {**laughs, "l14": {}}})


def test_a_chain_of_references_has_an_end():
    chain = {f"l{n}": {"$ref": f"#/$defs/l{n + 1}"} for n in range(100)}
    assert "nested" in refusal({"$ref": "#/$defs/l0", "$defs": {**chain, "l100": {}}})


def test_the_number_of_schemas_is_bounded():
    assert "more than" in refusal({"properties": {f"p{n}": {} for n in range(SCHEMAS_MAX + 1)}})


def test_a_definition_may_not_be_larger_than_a_mebibyte():
    assert "bytes" in refusal(definition({"description": "x" * (1 << 20)}))


def test_a_definition_may_not_be_nested_without_end():
    assert "nested" in refusal(b'{"items":' * 100 + b"{}" + b"}" * 100)
    assert "nested" in refusal(b'{"items":' * 100_000 + b"{}" + b"}" * 100_000)


def test_an_enum_of_draft_4_that_would_be_compared_pair_by_pair_is_refused():
    assert "enum" in refusal({"$schema": DRAFT_4, "enum": [[n] for n in range(600)]})
    parse({"$schema": DRAFT_4, "enum": [str(n) for n in range(600)]})


# --- payloads ---------------------------------------------------------------------------------------------------------


def test_a_payload_that_is_valid_passes():
    parse(USER).check(b'{"id": 1, "name": "a", "more": [1]}')


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b'{"id": "1"}', r"$.id: it is of type string, not integer"),
        (b'{"name": "a"}', "it has no 'id'"),
        (b"[]", "it is of type array, not object"),
        (b"{", "is not JSON"),
        (b"", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"NaN", "is not JSON"),
        (b'{"id": 1} x', "is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"id": ' + b"9" * 5000 + b"}", "is not JSON"),
    ],
)
def test_a_payload_that_is_not_valid_is_refused_with_its_place(payload, reason):
    assert reason in complaint(USER, payload)


def test_one_and_one_point_nought_are_the_same_and_true_is_not():
    assert valid({"const": 1}, 1.0)
    assert not valid({"const": 1}, value=True)
    assert not valid({"enum": [0]}, value=False)
    assert valid({"type": "integer"}, 2.0)
    assert not valid({"$schema": DRAFT_4, "type": "integer"}, 2.0)
    assert not valid({"uniqueItems": True}, [1, 1.0])
    assert valid({"uniqueItems": True}, [1, True, "1", [1], {"a": 1}])
    assert not valid({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2.0, "a": 1}])


def test_a_multiple_is_judged_as_it_is_written():
    assert valid({"multipleOf": 0.1}, 0.3)
    assert valid({"multipleOf": 0.01}, 4.35)
    assert not valid({"multipleOf": 0.1}, 0.35)
    assert valid({"multipleOf": 3}, 10**300 * 3)
    assert not valid({"multipleOf": 7.5}, 1e300 + 1)


def test_what_stands_beside_a_reference_counts_from_2019_on():
    beside = {"$ref": "#/definitions/text", "maxLength": 1, "definitions": {"text": {"type": "string"}}}
    assert not valid(beside, "ab")
    assert valid({"$schema": DRAFT_7, **beside}, "ab")


def test_references_are_found_by_path_anchor_and_address():
    schema = {
        "$id": "http://example.org/root.json",
        "properties": {
            "path": {"$ref": "#/$defs/a~1b%20c"},
            "anchor": {"$ref": "#word"},
            "address": {"$ref": "inner.json"},
            "deep": {"$ref": "inner.json#/$defs/n"},
            "odd": {"$ref": "#/components/0"},
        },
        "$defs": {
            "a/b c": {"type": "string"},
            "w": {"$anchor": "word", "type": "null"},
            "i": {
                "$id": "inner.json",
                "type": "array",
                "items": {"$ref": "#/$defs/n"},
                "$defs": {"n": {"type": "integer"}},
            },
        },
        "components": [{"type": "boolean"}],
    }
    assert valid(schema, {"path": "x", "anchor": None, "address": [1], "deep": 2, "odd": True})
    for name, wrong in {"path": 1, "anchor": 1, "address": ["x"], "deep": "x", "odd": 1}.items():
        assert not valid(schema, {name: wrong}), name


def test_a_recursive_schema_checks_at_every_depth():
    tree = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}}}
    assert valid(tree, {"v": 1, "next": {"v": 2, "next": {"v": 3}}})
    assert not valid(tree, {"v": 1, "next": {"v": 2, "next": {"v": "3"}}})


def test_composed_schemas_can_be_closed_by_unevaluated_properties():
    schema = {
        "allOf": [{"properties": {"a": {}}}, {"patternProperties": {"^x": {}}}],
        "anyOf": [{"properties": {"b": {"type": "integer"}}, "required": ["b"]}, True],
        "unevaluatedProperties": False,
    }
    assert valid(schema, {"a": 1, "b": 1, "xyz": 2})
    assert not valid(schema, {"a": 1, "b": "no integer, so not evaluated"})
    assert not valid(schema, {"c": 1})


def doubling(word: str, last: dict, **more) -> dict:
    """Return a schema whose lists are checked twice at each level, by references that lead in no circle."""
    parts = {f"l{n}": {"items": {word: [{"$ref": f"#/$defs/l{n + 1}"}] * 2, **more}} for n in range(39)}
    return {"$ref": "#/$defs/l0", "$defs": {**parts, "l39": last}}


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (doubling("allOf", {}), b"[" * 40 + b"]" * 40),
        *((doubling(word, {"minItems": 1}), b"[" * 40 + b"]" * 40) for word in ("anyOf", "oneOf")),
        (doubling("anyOf", {"minItems": 1}, unevaluatedItems=False), b"[" * 40 + b"]" * 40),
        ({"items": {"anyOf": [*([{"type": "string"}] * 1000), {"type": "integer"}]}}, b"[" + b"1," * 100_000 + b"1]"),
        ({"unevaluatedItems": False, "anyOf": [{"prefixItems": [{}] * 3}] * 500}, b"[" + b"1," * 50_000 + b"1]"),
        ({"patternProperties": {f"(a+)+{n}$": {} for n in range(500)}}, b'{"' + b"a" * 30_000 + b'":1}'),
    ],
)
def test_a_payload_that_would_take_for_ever_is_refused(schema, payload):
    assert "takes too long" in complaint(schema, payload)


@pytest.mark.parametrize("word", ["allOf", "anyOf"])
def test_a_list_that_references_in_a_circle_check_twice_at_each_level_is_checked_in_time(word):
    circle = {"items": {word: [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}, "type": "array"}
    schema = {"$ref": "#/$defs/a", "$defs": {"a": circle}}
    parse(schema).check(b"[" * 40 + b"]" * 40)
    reason = {"allOf": "it is of type integer, not array", "anyOf": "takes too long to say where"}[word]
    assert reason in complaint(schema, b"[" * 40 + b"5" + b"]" * 40)


def test_a_payload_is_checked_at_every_depth_that_json_can_have():
    tree = {"anyOf": [{"allOf": [{"items": {"$ref": "#"}, "unevaluatedItems": {"$ref": "#"}}]}, {"type": "integer"}]}
    parse(tree).check(b"[" * 900 + b"]" * 900)
    assert "nested too deeply" in complaint(tree, b"[" * 1001 + b"]" * 1001)


def test_references_may_lead_from_each_schema_to_the_next():
    chain = {f"l{n}": {"properties": {"a": {"$ref": f"#/$defs/l{n + 1}"}}} for n in range(1_400)}
    schema = parse({"$ref": "#/$defs/l0", "$defs": {**chain, "l1400": {"type": "string"}}})
    schema.check(b'{"a":' * 900 + b"{}" + b"}" * 900)


def test_large_patterns_are_counted():
    parse({"patternProperties": {f"^.{{1,255}}{n}$": {} for n in range(32)}})
    assert "pattern" in refusal({"patternProperties": {f"^.{{1,255}}{n}$": {} for n in range(33)}})


def test_a_pattern_that_backtracks_elsewhere_does_not_here():
    assert not valid({"pattern": "^(a+)+$"}, "a" * 10_000 + "b")


def test_half_a_character_is_refused_where_a_pattern_would_have_to_read_it():
    assert "half a character" in complaint({"pattern": "a"}, b'"\\ud800"')


def test_a_reason_does_not_repeat_a_payload_at_length():
    long = json.dumps({"a" * 10_000: 1}).encode()
    assert len(complaint({"additionalProperties": False}, long)) < 500


# --- threads ----------------------------------------------------------------------------------------------------------

REFERRED = {
    "by a reference": {"$ref": "#/$defs/order", "$defs": {"order": USER}},
    "by a reference of a reference": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": USER}},
    "by itself": {"$ref": "#/$defs/a", "$defs": {"a": {**USER, "properties": {"next": {"$ref": "#/$defs/a"}}}}},
    "beside unevaluated properties": {
        "allOf": [{"$ref": "#/$defs/order"}],
        "unevaluatedProperties": False,
        "$defs": {"order": USER},
    },
}


@pytest.mark.parametrize("schema", REFERRED.values(), ids=REFERRED.keys())
def test_two_threads_that_use_a_schema_first_both_check_all_of_it(monkeypatch, schema):
    """J2."""
    parsed, compile_part = parse(schema), PayloadValidator._compile
    reached, go_on = threading.Event(), threading.Event()

    def held_up(*args):
        reached.set()
        go_on.wait(10)
        return compile_part(*args)

    monkeypatch.setattr(PayloadValidator, "_compile", held_up)
    first = threading.Thread(target=lambda: (parsed.check(b'{"id": 1}'), reached.set()))
    first.start()
    assert reached.wait(10)
    try:
        with pytest.raises(InvalidMessageError, match="has no 'id'"):
            parsed.check(b"{}")
    finally:
        go_on.set()
        first.join(10)


def test_checking_and_comparing_change_nothing_that_threads_share(monkeypatch):
    """J2. A comparison adds compiled parts, each whole, to a cache that checking does not use."""
    parsed = [parse(schema) for schema in (*REFERRED.values(), {"enum": [1], "$defs": {"unused": USER}})]
    before = [{**vars(one.validator), "_validators": None} for one in parsed]
    for one in parsed:
        unreadable(one, parsed[0])
    assert before == [{**vars(one.validator), "_validators": None} for one in parsed]

    def never(*_):
        raise AssertionError("compiled at run time")

    monkeypatch.setattr(PayloadValidator, "_compile", never)
    for one in parsed:
        with pytest.raises(InvalidMessageError):
            one.check(b"{}")


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["1e400", "-1e400"])
@pytest.mark.parametrize("schema", [{"multipleOf": 0.01}, {"type": "number"}, {"maximum": 5}, {}])
def test_a_number_that_no_float_can_hold_is_refused(schema, number):
    """J13."""
    assert "too large" in complaint(schema, number.encode())
