"""Whom a message of a non-reliable topic goes to."""

from itertools import islice

import pytest

from ister.core.dispatch.dispatch import SubscriptionType
from ister.core.dispatch.non_reliable import NonReliableDispatch


def everyone(_):
    return True


def dispatch_of(kind, *consumers):
    dispatch = NonReliableDispatch(kind)
    for consumer in consumers:
        dispatch.connect(consumer)
    return dispatch


def test_a_shared_message_goes_round_in_the_order_of_joining():
    dispatch = dispatch_of(SubscriptionType.SHARED, 7, 3, 5)
    assert [dispatch.choose("", everyone) for _ in range(36)] == [7, 3, 5] * 12


def test_a_shared_message_goes_to_the_next_one_when_the_first_is_full_and_is_dropped_when_all_are():
    dispatch = dispatch_of(SubscriptionType.SHARED, 1, 2, 3)
    assert [dispatch.choose("", lambda number: number != 2) for _ in range(4)] == [1, 3, 1, 3]
    assert dispatch.choose("", lambda _: False) is None


@pytest.mark.parametrize("gone", [1, 2, 3])
@pytest.mark.parametrize("before", range(4))
def test_when_one_leaves_the_turn_stays_with_whoever_had_it(gone, before):
    dispatch = dispatch_of(SubscriptionType.SHARED, 1, 2, 3)
    for _ in range(before):
        dispatch.choose("", everyone)
    expected = [number for number in islice([1, 2, 3] * 2, before % 3, before % 3 + 3) if number != gone]
    dispatch.disconnect(gone)
    assert [dispatch.choose("", everyone) for _ in range(2)] == expected


@pytest.mark.parametrize("kind", [SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER])
def test_of_several_the_first_one_has_it_and_when_it_goes_the_next(kind):
    dispatch = dispatch_of(kind, 4, 2)
    assert dispatch.choose("", everyone) == 4
    dispatch.disconnect(4)
    assert dispatch.choose("", everyone) == 2
    dispatch.disconnect(2)
    assert dispatch.choose("", everyone) is None


def test_a_key_stays_with_its_consumer_and_only_moves_when_that_one_goes():
    dispatch = dispatch_of(SubscriptionType.KEY_SHARED, 1, 2, 3)
    keys = [f"key-{number}" for number in range(100)]
    before = {key: dispatch.choose(key, everyone) for key in keys}
    assert set(before.values()) == {1, 2, 3}
    assert {key: dispatch.choose(key, everyone) for key in keys} == before
    dispatch.disconnect(2)
    after = {key: dispatch.choose(key, everyone) for key in keys}
    assert all(after[key] == before[key] for key in keys if before[key] != 2)
    assert set(after.values()) == {1, 3}


def test_a_filter_keeps_other_keys_away_and_a_key_that_nobody_wants_is_dropped():
    dispatch = NonReliableDispatch(SubscriptionType.KEY_SHARED)
    dispatch.connect(1, ["a-*"])
    assert dispatch.choose("a-1", everyone) == 1
    assert dispatch.choose("b-1", everyone) is None
