"""JSON Schemas at random: the library is the judge of payloads, and payloads are the judge of compatibility."""

import json
from collections import Counter
from random import Random

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ister.core.errors import InvalidMessageError, InvalidRequestError, IsterError
from ister.schemas.json.dialects import DIALECTS
from ister.schemas.json.schema import JsonSchema
from ister.schemas.schema import unreadable
from parts.counts import LONG
from parts.schema import JsonMaker, definition, is_written, json_pair, value

DRAFTS = {dialect.draft: dialect for dialect in DIALECTS}
LIBRARY = {
    2020: jsonschema.Draft202012Validator,
    2019: jsonschema.Draft201909Validator,
    7: jsonschema.Draft7Validator,
    6: jsonschema.Draft6Validator,
    4: jsonschema.Draft4Validator,
}


def is_valid(schema: JsonSchema, payload) -> bool:
    try:
        schema.check(json.dumps(payload).encode())
    except InvalidMessageError:
        return False
    return True


@pytest.mark.parametrize("draft", sorted(DRAFTS))
def test_a_payload_is_valid_exactly_when_the_library_says_so(draft, count, tell):
    seen = Counter()
    for seed in range(count(200, 10_000)):
        chance = Random(seed)
        schema = {"$schema": DRAFTS[draft].uri, **JsonMaker(chance, draft).schema()}
        if draft == 2019 and "unevaluated" in json.dumps(schema):
            continue  # the library takes the keywords of additionalProperties for names of properties there
        try:
            ours = JsonSchema.parse(definition(schema))
        except InvalidRequestError as error:
            seen["refused"] += 1
            if "refers to itself" not in str(error):
                with pytest.raises(jsonschema.SchemaError):
                    LIBRARY[draft].check_schema(schema)
            continue
        theirs = LIBRARY[draft](schema)
        for _ in range(10):
            payload = value(chance)
            try:
                expected = theirs.is_valid(payload)
            except TypeError:
                continue  # the library wants to know how long `"items": true` is
            seen[expected] += 1
            assert is_valid(ours, payload) is expected, (seed, schema, payload)
    assert seen[True] > 100
    assert seen[False] > 100
    tell("schemas", f"draft {draft}: {seen[True]} valid and {seen[False]} invalid payloads judged as the library does")


def test_what_is_called_compatible_is_read_by_every_reader(count, tell):
    seen = Counter()
    for seed in range(count(500, 30_000)):
        chance = Random(seed)
        pair = json_pair(chance)
        try:
            reader, writer = (JsonSchema.parse(definition(one)) for one in pair)
        except InvalidRequestError:
            continue
        compatible = unreadable(reader, writer) == []
        seen["compatible" if compatible else "incompatible"] += 1
        for _ in range(30):
            payload = value(chance)
            if is_valid(writer, payload) and is_written(writer, [writer.root], payload):
                read = is_valid(reader, payload)
                seen[compatible, read] += 1
                assert read or not compatible, (seed, pair, payload)
    assert seen[True, True] > 500
    assert seen[False, False] > 10, "some of what is called incompatible is"
    tell("schemas", f"JSON: {seen[True, True]} payloads read under {seen['compatible']} changed schemas called compatible, "
                    f"{seen[False, False]} not read under {seen['incompatible']} called incompatible")  # fmt: skip


def test_every_schema_can_follow_itself(count):
    for seed in range(count(200, 5_000)):
        schema = definition(JsonMaker(Random(seed)).schema())
        try:
            parsed = JsonSchema.parse(schema)
        except InvalidRequestError:
            continue
        assert unreadable(parsed, JsonSchema.parse(schema)) == [], seed


WORDS = [*sorted(DRAFTS[2020].known), "id", "a"]
REFERENCES = ["#", "#/a", "#/a/b", "http://[", "x#y", "#/%", "a:b:c", "#é"]
HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)
        | st.dictionaries(st.sampled_from(["$ref", "$id", "$anchor"]), st.sampled_from(REFERENCES), min_size=1)
    ),
    max_leaves=10,
)


@settings(max_examples=10_000 if LONG else 300, deadline=None, suppress_health_check=list(HealthCheck))
@given(HOSTILE | st.binary(), st.sampled_from(DIALECTS), st.binary(max_size=20) | st.text(max_size=5).map(json.dumps))
def test_nothing_but_our_own_errors_comes_of_a_hostile_definition(document, dialect, payload):
    if isinstance(document, dict):
        document.setdefault("$schema", dialect.uri)
    try:
        schema = JsonSchema.parse(document if isinstance(document, bytes) else json.dumps(document).encode())
        unreadable(schema, schema)
        schema.check(payload if isinstance(payload, bytes) else payload.encode())
    except IsterError:
        pass
