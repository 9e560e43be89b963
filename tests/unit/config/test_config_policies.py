"""Policies of namespaces and topics: read from JSON and from words, refused by key, the topic's key winning."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.config.policies import CompletePolicies, Policies, merge
from ister.core.errors import InvalidRequestError


def test_json_and_back_is_the_same():
    text = '{"max_message_size":1000,"ack_level":"fsync","lake":false}'
    policies = Policies.parse(text)
    assert (policies.max_message_size, policies.ack_level, policies.lake) == (1000, "fsync", False)
    assert policies.to_json() == text


@pytest.mark.parametrize("text", ["{}", '{"ack_level": null}', " {\n} "])
def test_nothing_said_is_nothing_set(text):
    assert Policies.parse(text) == Policies()
    assert Policies.parse(text).to_json() == "{}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"max_mesage_size": 1}', "policy max_mesage_size is not a known key; did you mean max_message_size?"),
        ('{"colour": 1}', "policy colour is not a known key; known are max_producers_per_topic, "),
        ('{"\\u001b[2J": 1}', "policy (a key that is no word) is not a known key"),
        ('{"max_message_size": "1000"}', "policy max_message_size must be a whole number"),
        ('{"max_message_size": true}', "policy max_message_size must be a whole number"),
        ('{"max_message_size": 1.5}', "policy max_message_size must be a whole number"),
        ('{"max_message_size": -1}', "policy max_message_size must be at least 0"),
        ('{"max_message_size": 4294967296}', "policy max_message_size must be at most 4,294,967,295"),
        ('{"ack_level": "disk"}', "policy ack_level must be one of wal, fsync, cloud or lake"),
        ('{"ack_level": ["wal"]}', "policy ack_level must be one of wal, fsync, cloud or lake"),
        ('{"lake": 1}', "policy lake must be true or false"),
        ('{"retention_period_s": 0}', "policy retention_period_s must be at least 1"),
        ('{"lake": 1, "ack_level": 2}', "policy ack_level must be one of wal, fsync, cloud or lake (and 1 more)"),
        ('{"lake": true, "lake": false}', "policies have a key that stands twice"),
        ("[]", "policies are not a JSON object"),
        ("null", "policies are not a JSON object"),
        ("", "policies are not JSON"),
        ("{", "policies are not JSON"),
        ("[" * 60_000, "policies are not JSON"),
        ('{"lake": ' + "9" * 5000 + "}", "policies are not JSON"),
        (" " * 70_000, "policies are longer than 65,536 characters"),
    ],
)
def test_what_is_wrong_is_named_by_its_key(text, told):
    with pytest.raises(InvalidRequestError) as caught:
        Policies.parse(text)
    assert str(caught.value).startswith(told)
    assert caught.value.__cause__ is None


@given(
    st.text(max_size=60) | st.dictionaries(st.text(max_size=30), st.integers() | st.text() | st.none()).map(json.dumps)
)
def test_f40_any_text_is_read_or_refused(text):
    with suppress(InvalidRequestError):
        assert Policies.parse(Policies.parse(text).to_json()) == Policies.parse(text)


def test_words_are_read_as_people_type_them():
    policies = Policies(ack_level="fsync").changed({"max_message_size": "1000", "lake": "false", "ack_level": "cloud"})
    assert policies == Policies(max_message_size=1000, lake=False, ack_level="cloud")


def test_default_takes_a_key_out():
    policies = Policies(ack_level="fsync", lake=False).changed({"lake": "default", "max_publish_rate": "default"})
    assert policies == Policies(ack_level="fsync")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"acklevel": "wal"}, "policy acklevel is not a known key; did you mean ack_level?"),
        ({"acklevel": "default"}, "policy acklevel is not a known key; did you mean ack_level?"),
        ({"max_publish_rate": "fast"}, "policy max_publish_rate must be a whole number"),
        ({"lake": "maybe"}, "policy lake must be true or false"),
    ],
)
def test_a_bad_word_is_named_by_its_key(words, told):
    with pytest.raises(InvalidRequestError) as caught:
        Policies().changed(words)
    assert str(caught.value) == told


def test_the_topics_key_wins_over_the_namespaces_and_that_over_the_brokers():
    defaults = CompletePolicies(max_publish_rate=1, max_message_size=1, start_position="earliest")
    namespace = Policies(max_publish_rate=2, max_message_size=2)
    topic = Policies(max_publish_rate=0, lake=False)
    found = merge(namespace, topic, defaults)
    assert (found.max_publish_rate, found.max_message_size, found.start_position) == (0, 2, "earliest")
    assert found.lake is False
    assert merge(Policies(), Policies(), defaults) == defaults


def test_what_is_in_force_has_every_key():
    assert (
        set(json.loads(CompletePolicies().to_json()))
        == set(Policies.model_fields)
        == set(CompletePolicies.model_fields)
    )
