"""Which JSON Schemas can follow which: the protocol's rules, and logic for everything else."""

import pytest

from ister.schemas.json.schema import JsonSchema
from ister.schemas.kinds import Compatibility
from ister.schemas.schema import incompatibilities, unreadable
from parts.schema import definition

BACKWARD, FORWARD, FULL = Compatibility.BACKWARD, Compatibility.FORWARD, Compatibility.FULL
INT, STR, NUM = {"type": "integer"}, {"type": "string"}, {"type": "number"}


def parse(schema) -> JsonSchema:
    return JsonSchema.parse(definition(schema))


def record(*required: str, **properties) -> dict:
    schema = {"type": "object", "properties": properties}
    return {**schema, "required": list(required)} if required else schema


def reads(reader, writer) -> bool:
    return unreadable(parse(reader), parse(writer)) == []


def why(reader, writer) -> str:
    reasons = unreadable(parse(reader), parse(writer))
    assert reasons
    return " | ".join(reasons)


def follows(new, latest, mode: Compatibility) -> bool:
    return incompatibilities(parse(new), parse(latest), mode) == []


# --- the protocol's rules ---------------------------------------------------------------------------------------------


def test_backward_takes_a_new_optional_property():
    assert follows(record("name", name=STR, email=STR), record("name", name=STR), BACKWARD)


def test_backward_refuses_to_remove_a_required_property():
    assert not follows(record("name", name=STR), record("name", "age", name=STR, age=INT), BACKWARD)


def test_backward_refuses_to_make_an_optional_property_required():
    assert not follows(record("name", "age", name=STR, age=INT), record("name", name=STR, age=INT), BACKWARD)


def test_backward_refuses_to_change_the_type_of_a_property():
    assert not follows(record("id", id=INT), record("id", id=STR), BACKWARD)


def test_backward_refuses_a_new_required_property_because_old_messages_lack_it():
    assert not follows(record("name", "age", name=STR, age=INT), record("name", name=STR), BACKWARD)


def test_backward_takes_the_removal_of_an_optional_property():
    assert follows(record("name", name=STR), record("name", name=STR, nick=STR), BACKWARD)


def test_backward_takes_a_required_property_made_optional_and_forward_does_not():
    new, latest = record(name=STR), record("name", name=STR)
    assert follows(new, latest, BACKWARD)
    assert not follows(new, latest, FORWARD)


def test_forward_refuses_a_new_required_property():
    assert not follows(record("name", "email", name=STR, email=STR), record("name", name=STR), FORWARD)


def test_forward_refuses_to_change_the_type_of_a_property():
    assert not follows(record(id=INT), record(id=STR), FORWARD)


def test_forward_takes_a_new_optional_property_and_the_removal_of_one():
    assert follows(record("name", name=STR, email=STR), record("name", name=STR), FORWARD)
    assert follows(record("name", name=STR), record("name", name=STR, nick=STR), FORWARD)


def test_full_is_both():
    latest = record("id", "name", id=INT, name=STR)
    assert follows(record("id", "name", id=INT, name=STR, text=STR), latest, FULL)
    assert not follows(record("id", id=INT), latest, FULL)
    assert not follows(record("id", "name", id=NUM, name=STR), latest, FULL)


def test_none_takes_anything():
    assert follows(record("b", b=INT), record("a", a=STR), Compatibility.NONE)


def test_a_reason_names_its_direction_and_its_place():
    reasons = incompatibilities(
        parse(record(a=record(b={"type": "array", "items": STR}))),
        parse(record(a=record(b={"type": "array", "items": INT}))),
        FULL,
    )
    assert reasons == [
        "backward: $.a.b[]: the type changes: the writer may write integer, which the reader does not take",
        "forward: $.a.b[]: the type changes: the writer may write string, which the reader does not take",
    ]


# --- types and values -------------------------------------------------------------------------------------------------


def test_an_integer_is_a_number_and_not_the_other_way_round():
    assert reads(NUM, INT)
    assert not reads(INT, NUM)


@pytest.mark.parametrize(
    ("reader", "writer", "fits"),
    [
        ({}, STR, True),
        (STR, {}, False),
        (True, STR, True),
        (False, STR, False),
        (STR, False, True),
        ({"type": ["string", "null"]}, STR, True),
        (STR, {"type": ["string", "null"]}, False),
        ({"type": ["string", "number"]}, {"type": ["string", "integer"]}, True),
        ({"enum": ["a", "b", "c"]}, {"enum": ["a", "b"]}, True),
        ({"enum": ["a", "b"]}, {"enum": ["a", "b", "c"]}, False),
        (STR, {"enum": ["a", "b"]}, True),
        (STR, {"enum": ["a", 1]}, False),
        ({"enum": ["a"]}, STR, False),
        ({"const": 1}, {"enum": [1.0]}, True),
        ({"enum": [True, False, None]}, {"type": ["boolean", "null"]}, True),
        ({"maxLength": 1}, {"type": "string", "enum": ["a", "bb", 7], "minLength": 2}, False),
        ({"maxLength": 2}, {"type": "string", "enum": ["a", "bb", "ccc"], "maxLength": 2}, True),
    ],
)
def test_types_and_listed_values_are_compared_as_sets(reader, writer, fits):
    assert reads(reader, writer) is fits


@pytest.mark.parametrize(
    ("reader", "writer", "fits"),
    [
        ({"minimum": 0}, {**NUM, "minimum": 1}, True),
        ({"minimum": 1}, {**NUM, "minimum": 0}, False),
        ({"minimum": 0}, NUM, False),
        ({"exclusiveMinimum": 0}, {**NUM, "minimum": 0}, False),
        ({"exclusiveMinimum": 0}, {**NUM, "exclusiveMinimum": 0}, True),
        ({"minimum": 0}, {**NUM, "exclusiveMinimum": 0}, True),
        ({"minimum": 1}, {**INT, "exclusiveMinimum": 0}, True),
        ({"minimum": 1}, {**NUM, "exclusiveMinimum": 0}, False),
        ({"maximum": 2}, {**INT, "maximum": 2.9}, True),
        ({"exclusiveMaximum": 3}, {**INT, "maximum": 2.9}, True),
        ({"maximum": 9}, {**NUM, "maximum": 10, "exclusiveMaximum": 9}, True),
        ({"multipleOf": 2}, {**INT, "multipleOf": 4}, True),
        ({"multipleOf": 4}, {**INT, "multipleOf": 2}, False),
        ({"multipleOf": 0.5}, INT, True),
        ({"multipleOf": 0.5}, NUM, False),
        ({"minimum": 0}, STR, True),
        ({"minLength": 1}, {**STR, "minLength": 2}, True),
        ({"maxLength": 5}, {**STR, "maxLength": 9}, False),
        ({"minLength": 0}, STR, True),
        ({"pattern": "^a"}, {**STR, "pattern": "^a"}, True),
        ({"pattern": "a"}, {**STR, "pattern": "^a"}, False),
        ({"pattern": "a"}, INT, True),
    ],
)
def test_limits_matter_only_for_what_they_limit(reader, writer, fits):
    assert reads(reader, writer) is fits


def test_draft_4_says_in_another_way_that_a_limit_is_left_out():
    old = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "number",
        "minimum": 0,
        "exclusiveMinimum": True,
    }
    assert reads({**NUM, "exclusiveMinimum": 0}, old)
    assert not reads({**NUM, "exclusiveMinimum": 1}, old)
    assert reads(old, {**old, "minimum": 1})
    assert "draft 4" in why(old, {**NUM, "exclusiveMinimum": 0})


# --- objects ----------------------------------------------------------------------------------------------------------


def test_a_closed_reader_refuses_what_it_does_not_name():
    closed = {**record(a=STR), "additionalProperties": False}
    assert reads(closed, record(a=STR))
    assert not reads(closed, record(a=STR, b=STR))
    assert reads(record(a=STR, b=STR), closed)


def test_a_writer_that_describes_its_other_properties_may_write_them():
    writer = {**record(a=STR), "additionalProperties": INT}
    assert reads({**record(a=STR), "additionalProperties": NUM}, writer)
    assert not reads(record(a=STR, b=STR), writer)
    assert reads(record(a=STR, b=INT), writer)
    assert not reads({**record(a=STR), "additionalProperties": False}, writer)


def test_patterns_of_names_are_compared():
    writer = {"type": "object", "patternProperties": {"^x": INT}}
    assert reads({"patternProperties": {"^x": NUM}}, writer)
    assert not reads({"patternProperties": {"^x": STR}}, writer)
    assert not reads({"patternProperties": {"^y": STR}}, writer), "a name may match both"
    assert not reads({"additionalProperties": STR}, writer)
    assert not reads(record(xa=STR), writer)
    assert reads({"patternProperties": {"^x": INT}, "additionalProperties": False}, writer)


def test_counts_of_properties_follow_from_the_names():
    assert reads({**record(a=STR), "minProperties": 1}, record("a", a=STR))
    assert not reads({"minProperties": 2}, record("a", a=STR, b=STR))
    assert reads({"maxProperties": 2}, record(a=STR, b=STR))
    assert not reads({"maxProperties": 1}, record(a=STR, b=STR))


def test_names_of_properties_are_checked_one_by_one():
    assert reads({"propertyNames": {"maxLength": 2}, **record(ab=STR)}, record(ab=STR))
    assert not reads({"propertyNames": {"maxLength": 1}}, record(ab=STR))


def test_what_a_property_brings_with_it_is_compared():
    writer = record("b", a=STR, b=STR)
    assert reads({**record(b=STR), "dependentRequired": {"a": ["b"]}}, writer)
    assert not reads({**record(b=STR), "dependentRequired": {"b": ["a"]}}, writer)
    assert reads({**record(b=STR), "dependentRequired": {"z": ["a"]}}, writer), "z is never written"
    assert not reads({**record(b=STR), "dependentSchemas": {"a": record(b=INT)}}, writer)
    assert reads({**record(b=STR), "dependentSchemas": {"a": record(b=STR)}}, writer)


# --- arrays -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reader", "writer", "fits"),
    [
        ({"items": NUM}, {"items": INT}, True),
        ({"items": INT}, {"items": NUM}, False),
        ({"items": INT}, {}, False),
        ({"items": INT}, {"maxItems": 0}, True),
        ({"prefixItems": [INT, STR]}, {"prefixItems": [INT], "items": STR}, True),
        ({"prefixItems": [INT], "items": STR}, {"prefixItems": [INT], "items": INT}, False),
        ({"prefixItems": [INT], "items": False}, {"prefixItems": [INT], "maxItems": 1}, True),
        ({"prefixItems": [INT], "items": False}, {"prefixItems": [INT]}, False),
        ({"minItems": 1}, {"minItems": 2}, True),
        ({"maxItems": 1}, {"maxItems": 2}, False),
        ({"uniqueItems": True}, {"uniqueItems": True}, True),
        ({"uniqueItems": True}, {}, False),
        ({"uniqueItems": True}, {"maxItems": 1}, True),
        ({"contains": INT}, {"contains": INT}, True),
        ({"contains": NUM}, {"contains": INT}, False),
    ],
)
def test_items_are_compared_place_by_place(reader, writer, fits):
    assert reads({"type": "array", **reader}, {"type": "array", **writer}) is fits


# --- alternatives -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["anyOf", "oneOf"])
def test_a_property_can_become_nullable_for_readers_and_not_back(word):
    nullable = {word: [{"type": "null"}, STR]}
    assert reads(record(a=nullable), record(a=STR))
    assert not reads(record(a=STR), record(a=nullable))
    assert reads(record(a=nullable), record(a={"type": ["null", "string"]}))
    assert reads(record(a={"type": ["string", "null"]}), record(a=nullable))


def test_one_of_must_be_the_only_one_that_takes_it():
    assert reads({"oneOf": [STR, INT]}, STR)
    assert not reads({"oneOf": [NUM, INT]}, INT), "both would take it"
    assert reads({"anyOf": [NUM, INT]}, INT)


def test_alternatives_may_be_told_apart_by_a_constant():
    def shape(kind: str, **properties) -> dict:
        return record("kind", kind={"const": kind}, **properties)

    before = {"oneOf": [shape("circle", r=NUM), shape("square", side=NUM)]}
    after = {"oneOf": [shape("circle", r=NUM, colour=STR), shape("square", side=NUM), shape("dot")]}
    assert reads(after, before)
    assert not reads(before, after)
    assert follows(after, before, BACKWARD)


def test_what_is_the_same_in_both_need_not_be_understood():
    odd = {"oneOf": [record(a=STR), record(b=STR)], "not": {"required": ["z"]}, "if": record("a"), "then": record("b")}
    assert reads({**odd, "title": "a remark"}, odd)
    assert reads({**odd, "properties": {"n": NUM}}, {**odd, "properties": {"n": INT}})


def test_a_condition_must_do_both_ways():
    assert reads({"if": {"minLength": 3}, "then": {"maxLength": 9}, "else": STR}, {**STR, "maxLength": 5})
    assert "if" in why({"if": {"minLength": 3}, "then": {"maxLength": 9}}, {**STR, "maxLength": 10})


def test_not_is_decided_where_kinds_differ():
    assert reads({"not": STR}, INT)
    assert "not" in why({"not": {"minimum": 5}}, {**INT, "maximum": 4})
    red, blue = record("kind", kind={"const": "red"}), record("kind", kind={"const": "blue"})
    reader = {"properties": {"kind": {}}, "not": red}
    assert reads(reader, blue)
    del red["type"], blue["type"]
    assert not reads(reader, blue), "a text is what both take"


def test_properties_of_conditions_and_of_other_alternatives_may_be_written():
    writer = {**record(kind=STR), "if": record("kind"), "then": record(extra=STR)}
    assert not reads(record(kind=STR, extra=INT), writer)
    assert reads(record(kind=STR, extra=STR), writer)
    either_way = {**record(kind=STR), "if": record("kind"), "then": record(extra=STR), "else": record(extra=INT)}
    assert not reads(record(kind=STR, extra=STR), either_way)
    assert not reads(record(kind=STR, extra=INT), either_way)
    either = {"type": "object", "anyOf": [record(a=STR), record(b=STR)]}
    assert not reads({"maxProperties": 1}, either), "both may hold"
    assert not reads(record(b=INT), either)


# --- references and recursion -----------------------------------------------------------------------------------------


def test_references_are_followed_and_their_names_do_not_matter():
    writer = {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": INT}}
    assert reads({"properties": {"a": {"$ref": "#/$defs/other"}}, "$defs": {"other": NUM}}, writer)
    assert reads(record(a=NUM), {**writer, "type": "object"})
    assert not reads({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": STR}}, writer)


def tree(value, **more) -> dict:
    return {
        "$ref": "#/$defs/t",
        "$defs": {"t": record(v=value, left={"$ref": "#/$defs/t"}, right={"$ref": "#/$defs/t"}, **more)},
    }


def test_recursive_schemas_are_compared_to_the_end():
    assert reads(tree(NUM), tree(INT))
    assert not reads(tree(INT), tree(NUM))
    assert follows(tree(INT, note=STR), tree(INT), FULL)
    assert not reads(tree(INT, note=INT), tree(INT, note=STR))


def test_an_assumption_that_fails_is_not_remembered():
    """While n is compared, q is found to fit if n does; n does not, another alternative does, and q is asked for again."""

    def lists(last) -> dict:
        parts = {"n": record(q={"$ref": "#/$defs/q"}, z=last), "q": record(back={"$ref": "#/$defs/n"})}
        return {**record(first={"anyOf": [{"$ref": "#/$defs/n"}, {}]}, second={"$ref": "#/$defs/q"}), "$defs": parts}

    writer = {**lists(STR), **record(first={"$ref": "#/$defs/n"}, second={"$ref": "#/$defs/q"})}
    assert "$.second" in why(lists(INT), writer)
    assert reads(lists(STR), writer)


def test_all_of_is_taken_together_for_the_writer_and_apart_for_the_reader():
    writer = {"allOf": [{**INT, "minimum": 1}, {"maximum": 5}]}
    assert reads({"allOf": [{"minimum": 0}, {"maximum": 9}]}, writer)
    assert not reads({"allOf": [{"minimum": 0}, {"maximum": 4}]}, writer)


def test_what_cannot_be_decided_is_refused_with_its_place():
    assert why(record(a={"contains": INT}), record(a={"type": "array", "items": INT})).startswith("$.a: contains")
    assert "unevaluated" in why({**record(a=STR), "unevaluatedProperties": False}, {"allOf": [record(a=STR)]})


def test_a_comparison_has_an_end():
    def tangle(kind: dict) -> dict:
        names = [f"p{n}" for n in range(12)]
        parts = {
            name: {"anyOf": [record(**{other: {"$ref": f"#/$defs/{other}"} for other in names[i % 3 :: 3]}), kind]}
            for i, name in enumerate(names)
        }
        return {"$ref": "#/$defs/p0", "$defs": parts}

    assert unreadable(parse(tangle(INT)), parse(tangle(STR)))
