"""KeyShared: one message of a key at a time, in order, for a consumer that takes the key."""

import pytest

from ister.core.dispatch.dispatch import FailurePolicy, Poison
from parts.dispatch import KEY_SHARED, T0, keyed, machine, message, offsets, pairs


def filtered(**filters):
    """Consumers 1, 2, … with these filters, connected."""
    dispatch = machine(KEY_SHARED, ())
    for number, globs in enumerate(filters.values(), 1):
        dispatch.join(number, globs, T0)
        dispatch.connect(number, T0)
    return dispatch


def test_one_message_of_a_key_is_in_flight_and_the_next_follows_its_acknowledgement():
    dispatch = machine(KEY_SHARED, (1, 2))
    dispatch.feed(keyed("a", "a", "b", "a", "b"), T0)
    assert sorted(offsets(dispatch)) == [0, 2]
    dispatch.ack(0, T0)
    assert offsets(dispatch) == [1]
    dispatch.ack(2, T0)
    assert offsets(dispatch) == [4]
    dispatch.ack(1, T0)
    assert offsets(dispatch) == [3]


def test_the_key_is_the_routing_key_and_without_one_the_producers_name():
    dispatch = machine(KEY_SHARED, (1,))
    dispatch.feed([message(0, None), message(1, "p"), message(2, ""), message(3, None, producer="q")], T0)
    assert offsets(dispatch) == [0, 2, 3]


def test_a_key_always_goes_to_the_same_consumer():
    dispatch = machine(KEY_SHARED, (1, 2, 3), window=300)
    keys = [f"key-{n}" for n in range(50)]
    owners = {}
    for turn in range(3):
        dispatch.feed(keyed(*keys, start=50 * turn), T0)
        for delivery in dispatch.take():
            assert owners.setdefault(delivery.message.routing_key, delivery.consumer) == delivery.consumer
            dispatch.ack(delivery.message.offset, T0)
    assert set(owners.values()) == {1, 2, 3}
    assert dispatch.cursor == 150


def test_a_nacked_message_holds_its_key_back_and_no_other():
    dispatch = machine(KEY_SHARED)
    dispatch.feed(keyed("a", "a", "b", "b"), T0)
    assert offsets(dispatch) == [0, 2]
    dispatch.nack(0, 0, "", T0)
    dispatch.ack(2, T0)
    assert offsets(dispatch) == [3]
    dispatch.tick(T0 + 1)
    assert offsets(dispatch) == [0]


def test_one_hot_key_does_not_stall_the_others():
    dispatch = machine(KEY_SHARED, window=2)
    dispatch.feed(keyed(*["hot"] * 9_000, "cold"), T0)
    assert offsets(dispatch) == [0, 9_000]
    assert dispatch.room == 10_000 - 8_999
    dispatch.feed(keyed(*["hot"] * dispatch.room, start=9_001), T0)
    assert dispatch.room == 0


def test_filters_decide_who_is_a_candidate():
    dispatch = filtered(eu=["eu-*"], us=["us-?"])
    dispatch.feed(keyed("eu-1", "us-1", "us-2", "eu-22"), T0)
    assert sorted(pairs(dispatch)) == [(1, 0), (1, 3), (2, 1), (2, 2)]


def test_filters_of_a_consumer_that_joins_again_are_replaced():
    dispatch = filtered(one=["eu-*"], other=["us-*"])
    dispatch.join(1, ["asia"], T0)
    dispatch.connect(1, T0)
    dispatch.feed(keyed("asia"), T0)
    assert pairs(dispatch) == [(1, 0)]


def test_what_nobody_takes_is_skipped_once_somebody_is_connected():
    dispatch = machine(KEY_SHARED, ())
    dispatch.join(1, ["eu-*"], T0)
    dispatch.feed(keyed("us-1", "us-1", "us-2", "eu-1"), T0)
    assert (pairs(dispatch), dispatch.cursor) == ([], 0)
    dispatch.connect(1, T0)
    assert (pairs(dispatch), dispatch.cursor, dispatch.skipped) == ([(1, 3)], 3, 3)


def test_i9_a_key_waits_for_a_consumer_that_is_away_however_long():
    dispatch = filtered(eu=["eu-*"], us=["us-*"])
    dispatch.disconnect(1, T0)
    dispatch.feed(keyed("eu-1", "us-1"), T0)
    assert pairs(dispatch) == [(2, 1)]
    dispatch.tick(T0 + 3600)
    assert (pairs(dispatch), dispatch.cursor) == ([], 0)
    dispatch.connect(1, T0 + 3600)
    assert pairs(dispatch) == [(1, 0)]


def test_a_key_whose_only_consumer_leaves_is_skipped():
    dispatch = filtered(eu=["eu-*"], us=["us-*"])
    dispatch.feed(keyed("eu-1", "us-1"), T0)
    assert sorted(pairs(dispatch)) == [(1, 0), (2, 1)]
    dispatch.leave(1, T0)
    assert (pairs(dispatch), dispatch.cursor) == ([], 1)


def test_f36_what_a_lost_consumer_held_goes_to_another_candidate():
    dispatch = machine(KEY_SHARED, (1, 2), window=20)
    dispatch.feed(keyed(*"abcdefgh"), T0)
    first = pairs(dispatch)
    held = sorted(offset for consumer, offset in first if consumer == 1)
    assert held
    dispatch.ack(held.pop(), T0)
    dispatch.disconnect(1, T0)
    assert sorted(pairs(dispatch)) == [(2, offset) for offset in held]


def test_one_who_returns_has_its_keys_again():
    dispatch = machine(KEY_SHARED, (1, 2), window=20)
    dispatch.feed(keyed(*"abcdefgh"), T0)
    owners = dict(reversed(pair) for pair in pairs(dispatch))
    for offset in range(8):
        dispatch.ack(offset, T0)
    dispatch.disconnect(1, T0)
    dispatch.connect(1, T0)
    dispatch.feed(keyed(*"abcdefgh", start=8), T0)
    assert {offset - 8: consumer for consumer, offset in pairs(dispatch)} == owners


def test_a_new_owner_waits_for_what_the_old_one_holds():
    dispatch = machine(KEY_SHARED, (1,), window=40)
    keys = [f"key-{n}" for n in range(20)]
    dispatch.feed(keyed(*keys, *keys), T0)
    assert len(dispatch.take()) == 20
    dispatch.join(2, (), T0)
    dispatch.connect(2, T0)
    assert dispatch.take() == []
    followers = []
    for offset in range(20):
        dispatch.ack(offset, T0)
        followers += pairs(dispatch)
        assert [follower for _, follower in followers] == list(range(20, 21 + offset))
    assert {consumer for consumer, _ in followers} == {1, 2}


def test_f34_a_consumer_never_holds_more_than_its_share_so_that_others_have_slots():
    dispatch = filtered(slow=["s*"], quick=["q*"])
    dispatch.feed(keyed(*[f"s{n}" for n in range(20)], *[f"q{n}" for n in range(20)]), T0)
    done = 0
    while deliveries := pairs(dispatch):
        for consumer, offset in deliveries:
            if consumer == 2:
                done += dispatch.ack(offset, T0)
    assert (done, dispatch.unacked) == (20, 5)
    dispatch.ack(0, T0)
    assert offsets(dispatch) == [5]


def test_block_stops_its_key_only_and_until_the_policy_changes():
    dispatch = machine(KEY_SHARED, max_redelivery_count=0)
    dispatch.feed(keyed("a", "a", "b", "b"), T0)
    assert offsets(dispatch) == [0, 2]
    dispatch.nack(0, 0, "", T0)
    dispatch.ack(2, T0)
    assert offsets(dispatch) == [3]
    assert dispatch.blocked
    assert dispatch.room > 0
    dispatch.set_policy(FailurePolicy(max_redelivery_count=1), T0)
    assert offsets(dispatch) == [0]
    dispatch.ack(0, T0)
    assert offsets(dispatch) == [1]


def test_dropping_a_message_keeps_the_rest_of_its_key():
    dispatch = machine(KEY_SHARED, max_redelivery_count=0, poison=Poison.DROP)
    dispatch.feed(keyed("a", "a", "a"), T0)
    assert offsets(dispatch) == [0]
    dispatch.nack(0, 0, "", T0)
    assert (offsets(dispatch), dispatch.cursor, dispatch.dropped) == ([1], 1, 1)


def test_a_late_acknowledgement_lets_the_key_go_on():
    dispatch = machine(KEY_SHARED)
    dispatch.feed(keyed("a", "a", "a", "a"), T0)
    dispatch.take()
    dispatch.nack(0, 0, "", T0)
    assert dispatch.ack(2, T0)
    assert dispatch.ack(0, T0)
    assert offsets(dispatch) == [1]
    dispatch.tick(T0 + 1)
    dispatch.ack(1, T0)
    assert offsets(dispatch) == [3]


@pytest.mark.parametrize("below", [1, 2, 3])
def test_a_key_goes_on_behind_what_retention_has_deleted(below):
    dispatch = machine(KEY_SHARED)
    dispatch.feed(keyed("a", "a", "a", "a"), T0)
    assert offsets(dispatch) == [0]
    dispatch.skip_to(below, T0)
    assert offsets(dispatch) == [below]
    assert not dispatch.ack(0, T0)
    dispatch.ack(below, T0)
    assert dispatch.cursor == below + 1


def test_i10_acknowledgements_of_what_was_never_delivered_leave_nothing_behind():
    dispatch = machine(KEY_SHARED, (1, 2), window=2)
    dispatch.feed(keyed(*[f"k{n}" for n in range(50)]), T0)
    dispatch.take()
    for turn in range(1, 100):
        dispatch.feed(keyed(*[f"k{n}" for n in range(50)], start=50 * turn), T0)
        dispatch.take()
        for offset in range(50 * turn - 40, 50 * turn):
            dispatch.ack(offset, T0)
        dispatch.take()
    key_queues = dispatch._key_queues
    queued = sum(len(consumer.queue) for consumer in key_queues.ring.consumers) + len(key_queues._unrouted)
    assert queued < 4 * len(key_queues._queues) + 100


def test_i10_keys_that_wait_for_someone_are_not_noted_twice_when_others_come_and_go():
    dispatch = filtered(eu=["eu-*"], us=["us-*"])
    dispatch.disconnect(1, T0)
    dispatch.feed(keyed("eu-1", "eu-2", "us-1"), T0)
    for _ in range(10):
        dispatch.take()
        dispatch.connect(2, T0)
    dispatch.take()
    assert len(dispatch._key_queues._stranded) == 2
