"""Which consumer a key belongs to."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.core.dispatch import key_shared as ring_module
from ister.core.dispatch.consumers import Consumer
from ister.core.dispatch.key_shared import Ring, glob_matches, ring_hash, wants


def consumer(number, *filters, connected=True):
    made = Consumer(number, number, 0.0, 0.0)
    made.filters, made.connected = filters, connected
    return made


def ring_of(*consumers):
    ring = Ring()
    for each in consumers:
        ring.add(each)
    return ring


KEYS = [f"key-{n}" for n in range(2_000)]


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("*", "", True),
        ("*", "anything", True),
        ("", "", True),
        ("", "a", False),
        ("?", "a", True),
        ("?", "", False),
        ("?", "ab", False),
        ("eu-*", "eu-", True),
        ("eu-*", "EU-1", False),
        ("eu-*", "xeu-1", False),
        ("*-1", "eu-1", True),
        ("*-1", "eu-12", False),
        ("a*b*c", "aXbYbZc", True),
        ("a*b*c", "acb", False),
        ("a**c", "ac", True),
        ("[ab]", "a", False),
        ("[ab]", "[ab]", True),
        ("a.c", "abc", False),
        ("?*?", "ab", True),
        ("?*?", "a", False),
        ("d\u00fcr*", "d\u00fcrer", True),
        ("a\nb", "a\nb", True),
    ],
)
def test_a_glob_matches_the_whole_key_case_and_all(pattern, key, expected):
    assert glob_matches(pattern, key) is expected


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=10))
def test_globs_agree_with_a_regular_expression(pattern, key):
    regex = "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern)
    assert glob_matches(pattern, key) == (re.fullmatch(regex, key, re.DOTALL) is not None)


def test_a_hostile_glob_costs_no_more_than_pattern_times_key():
    assert not glob_matches("*a" * 500 + "b", "a" * 1_000)


def test_a_consumer_without_filters_takes_any_key_and_one_with_several_what_one_of_them_matches():
    assert wants((), "x")
    assert wants(("a*", "x"), "x")
    assert not wants(("a*", "b*"), "x")


def test_the_hash_is_spread_evenly_and_has_32_bits():
    hashes = [ring_hash(key) for key in KEYS]
    assert all(0 <= value < 2**32 for value in hashes)
    for bit in range(32):
        assert 800 < sum(value >> bit & 1 for value in hashes) < 1200


def test_the_hash_is_upstreams():
    basis = 0xCBF29CE484222325
    folded = (basis >> 32) ^ (basis & 0xFFFFFFFF)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        folded = (folded ^ folded >> shift) * factor % 2**32
    assert ring_hash("") == folded ^ folded >> 16
    assert ring_hash("a") != ring_hash("b") != ring_hash("")


def test_every_consumer_has_a_fair_part_of_the_keys():
    ring = ring_of(*map(consumer, range(1, 5)))
    owned = [ring.owner(key).id for key in KEYS]
    for number in range(1, 5):
        assert 250 < owned.count(number) < 850


def test_a_key_moves_only_to_one_who_joins_and_only_from_one_who_leaves():
    ring = ring_of(*map(consumer, range(1, 4)))
    before = {key: ring.owner(key).id for key in KEYS}
    fourth = consumer(4)
    ring.add(fourth)
    moved = {key for key in KEYS if ring.owner(key).id != before[key]}
    assert 200 < len(moved) < 900
    assert {ring.owner(key).id for key in moved} == {4}
    ring.remove(fourth)
    assert {key: ring.owner(key).id for key in KEYS} == before


def test_one_who_is_away_is_passed_as_if_it_were_not_on_the_ring():
    away = consumer(2, connected=False)
    ring, without = ring_of(consumer(1), away, consumer(3)), ring_of(consumer(1), consumer(3))
    assert [ring.owner(key).id for key in KEYS] == [without.owner(key).id for key in KEYS]
    away.connected = True
    ring.changed()
    assert {ring.owner(key).id for key in KEYS} == {1, 2, 3}


def test_only_candidates_own_a_key():
    ring = ring_of(consumer(1, "key-1*"), consumer(2, "key-2*"), consumer(3, "nothing"))
    assert ring.owner("key-1").id == 1
    assert ring.owner("key-2").id == 2
    assert ring.owner("key-3") is None
    assert not ring.anyone_takes("key-3")


def test_a_key_is_awaited_while_one_who_takes_it_is_registered():
    away = consumer(2, "eu-*", connected=False)
    ring = ring_of(consumer(1, "us-*"), away)
    assert ring.owner("eu-1") is None
    assert ring.anyone_takes("eu-1")
    ring.remove(away)
    assert not ring.anyone_takes("eu-1")


def test_i10_owners_are_remembered_for_so_many_keys_only(monkeypatch):
    monkeypatch.setattr(ring_module, "OWNERS_KNOWN_MAX", 10)
    ring = ring_of(consumer(1), consumer(2))
    owners = [ring.owner(key).id for key in KEYS]
    assert len(ring._owners) <= 10
    assert [ring.owner(key).id for key in KEYS] == owners


def test_an_empty_ring_has_no_owner():
    assert Ring().owner("a") is None
