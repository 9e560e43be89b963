"""Who gets a message: Exclusive, Failover and Shared."""

import pytest

from ister.core.dispatch.dispatch import Dispatch
from parts.dispatch import EXCLUSIVE, FAILOVER, SHARED, T0, machine, messages, offsets, pairs


def test_an_exclusive_consumer_gets_messages_in_offset_order_up_to_the_window():
    dispatch = machine(EXCLUSIVE, fed=15, window=10)
    assert pairs(dispatch) == [(1, n) for n in range(10)]
    assert (dispatch.unacked, dispatch.waiting) == (10, 5)
    assert offsets(dispatch) == []


def test_each_acknowledgement_makes_room_for_one_more():
    dispatch = machine(EXCLUSIVE, fed=5, window=1)
    for n in range(5):
        assert offsets(dispatch) == [n]
        assert dispatch.ack(n, T0)
    assert (dispatch.cursor, dispatch.next_offset) == (5, 5)


def test_nothing_is_delivered_and_nothing_is_read_while_nobody_is_connected():
    dispatch = machine(SHARED, ())
    dispatch.join(1, (), T0)
    dispatch.feed(messages(0, 3), T0)
    assert dispatch.room == 0
    assert offsets(dispatch) == []
    dispatch.connect(1, T0)
    assert offsets(dispatch) == [0, 1, 2]


def test_a_subscription_begins_at_its_cursor():
    dispatch = Dispatch(EXCLUSIVE, 42)
    assert (dispatch.cursor, dispatch.next_offset, dispatch.due) == (42, 42, None)


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER, SHARED])
def test_what_a_lost_consumer_held_comes_before_new_messages_and_in_offset_order(kind):
    dispatch = machine(kind, fed=4, window=4)
    assert offsets(dispatch) == [0, 1, 2, 3]
    dispatch.feed(messages(4, 8), T0)
    dispatch.ack(2, T0)
    dispatch.disconnect(1, T0)
    assert offsets(dispatch) == []
    dispatch.connect(1, T0)
    assert offsets(dispatch) == [0, 1, 3, 4]
    assert dispatch.redelivered == 3


def test_f36_what_was_acknowledged_is_not_redelivered_when_its_consumer_dies():
    dispatch = machine(SHARED, (1, 2), fed=6)
    assert pairs(dispatch) == [(1, 0), (2, 1), (1, 2), (2, 3), (1, 4), (2, 5)]
    dispatch.ack(2, T0)
    dispatch.disconnect(1, T0)
    assert pairs(dispatch) == [(2, 0), (2, 4)]


def test_a_take_over_makes_what_the_consumer_held_due_and_waits_for_its_new_stream():
    dispatch = machine(EXCLUSIVE, fed=2)
    assert offsets(dispatch) == [0, 1]
    dispatch.join(1, (), T0)
    assert offsets(dispatch) == []
    dispatch.connect(1, T0)
    assert offsets(dispatch) == [0, 1]


def test_a_second_stream_gets_what_the_first_one_held():
    dispatch = machine(FAILOVER, (1, 2), fed=2)
    assert pairs(dispatch) == [(1, 0), (1, 1)]
    dispatch.connect(1, T0)
    assert pairs(dispatch) == [(1, 0), (1, 1)]


def test_those_who_are_unknown_are_ignored_when_they_go_and_refused_when_they_come():
    dispatch = machine(SHARED)
    dispatch.disconnect(7, T0)
    dispatch.leave(7, T0)
    with pytest.raises(KeyError):
        dispatch.connect(7, T0)


@pytest.mark.parametrize(("window", "cursor"), [(0, 0), (1, -1)])
def test_a_window_and_a_cursor_must_make_sense(window, cursor):
    with pytest.raises(ValueError, match="a window of"):
        Dispatch(SHARED, cursor, window=window)


# --- Failover ---------------------------------------------------------------------------------------------------------


def test_the_earliest_joined_connected_consumer_is_active():
    dispatch = machine(FAILOVER, (5, 3, 4), fed=2)
    assert pairs(dispatch) == [(5, 0), (5, 1)]


def test_the_next_in_join_order_is_promoted_at_once_and_gets_the_unacknowledged_first():
    dispatch = machine(FAILOVER, (5, 3, 4), fed=3, window=3)
    dispatch.take()
    dispatch.feed(messages(3, 5), T0)
    dispatch.ack(1, T0)
    dispatch.disconnect(5, T0)
    assert pairs(dispatch) == [(3, 0), (3, 2), (3, 3)]


def test_one_who_returns_within_the_grace_keeps_its_slot_but_does_not_push_the_active_one_aside():
    dispatch = machine(FAILOVER, (1, 2, 3), fed=1)
    dispatch.disconnect(1, T0)
    dispatch.connect(1, T0 + 10)
    assert pairs(dispatch) == [(2, 0)]
    dispatch.disconnect(2, T0 + 10)
    assert pairs(dispatch) == [(1, 0)]


def test_the_grace_begins_when_the_stream_is_lost():
    dispatch = machine(FAILOVER, (1, 2, 3), fed=1)
    dispatch.disconnect(1, T0 + 100)
    dispatch.connect(1, T0 + 105)
    dispatch.leave(2, T0 + 105)
    assert pairs(dispatch) == [(1, 0)]


def test_one_who_returns_after_the_grace_queues_at_the_end():
    dispatch = machine(FAILOVER, (1, 2, 3), fed=1)
    dispatch.disconnect(1, T0)
    dispatch.connect(1, T0 + 10.1)
    dispatch.disconnect(2, T0 + 10.1)
    assert pairs(dispatch) == [(3, 0)]
    dispatch.disconnect(3, T0 + 10.1)
    assert pairs(dispatch) == [(1, 0)]


def test_a_second_loss_without_a_return_does_not_begin_the_grace_anew():
    dispatch = machine(FAILOVER, (1, 2, 3), fed=1)
    dispatch.disconnect(1, T0)
    dispatch.disconnect(1, T0 + 9)
    dispatch.join(1, (), T0 + 9)
    dispatch.connect(1, T0 + 11)
    dispatch.leave(2, T0 + 11)
    assert pairs(dispatch) == [(3, 0)]


def test_one_who_left_and_joins_again_is_the_last():
    dispatch = machine(FAILOVER, (1, 2), fed=1)
    dispatch.leave(1, T0)
    dispatch.join(1, (), T0)
    dispatch.connect(1, T0)
    assert pairs(dispatch) == [(2, 0)]


def test_the_active_consumer_and_what_each_holds_can_be_told():
    dispatch = machine(FAILOVER, (5, 3), fed=2)
    dispatch.take()
    assert (dispatch.active, dispatch.held_by(5), dispatch.held_by(3), dispatch.held_by(9)) == (5, 2, 0, 0)
    dispatch.leave(5, T0)
    assert dispatch.active == 3
    dispatch.leave(3, T0)
    assert dispatch.active is None
    assert machine(SHARED, (1,)).active is None


def test_the_grace_is_ten_seconds_unless_another_is_set():
    for away_s, active in ((10, 1), (10.5, 3)):
        dispatch = Dispatch(FAILOVER, 0)
        for consumer in (1, 2, 3):
            dispatch.join(consumer, (), T0)
            dispatch.connect(consumer, T0)
        dispatch.disconnect(1, T0)
        dispatch.connect(1, T0 + away_s)
        dispatch.leave(2, T0 + away_s)
        assert dispatch.active == active


# --- Shared -----------------------------------------------------------------------------------------------------------


def test_shared_is_exact_round_robin_in_join_order():
    dispatch = machine(SHARED, (30, 10, 20), fed=36, window=10)
    got = {10: [], 20: [], 30: []}
    while deliveries := pairs(dispatch):
        for consumer, offset in deliveries:
            got[consumer].append(offset)
            assert dispatch.ack(offset, T0)
    assert got == {30: [*range(0, 36, 3)], 10: [*range(1, 36, 3)], 20: [*range(2, 36, 3)]}


def test_the_round_goes_on_where_it_was_when_someone_comes_or_goes():
    dispatch = machine(SHARED, (1, 2, 3), fed=2)
    assert pairs(dispatch) == [(1, 0), (2, 1)]
    dispatch.join(4, (), T0)
    dispatch.connect(4, T0)
    dispatch.leave(3, T0)
    dispatch.feed(messages(2, 5), T0)
    assert pairs(dispatch) == [(4, 2), (1, 3), (2, 4)]


def test_a_redelivery_goes_to_whoever_is_next():
    dispatch = machine(SHARED, (1, 2), fed=3, base_redelivery_delay_ms=0)
    assert pairs(dispatch) == [(1, 0), (2, 1), (1, 2)]
    dispatch.nack(0, 0, "", T0)
    assert pairs(dispatch) == [(2, 0)]


def busy(window=4):
    """Consumer 2 acknowledges at once, consumer 1 never does, and it is its turn."""
    dispatch = machine(SHARED, (1, 2), fed=20, window=window)
    held = []
    for _ in range(20):
        for consumer, offset in pairs(dispatch):
            if consumer == 2:
                dispatch.ack(offset, T0)
            else:
                held.append(offset)
    return dispatch, held


def test_f34_a_stalled_consumer_is_waited_for_a_quarter_of_a_second_and_then_passed_over():
    dispatch, held = busy()
    assert len(held) == 2
    assert dispatch.due == T0 + 0.25
    dispatch.tick(T0 + 0.24)
    assert pairs(dispatch) == []
    dispatch.tick(T0 + 0.25)
    got = []
    while deliveries := pairs(dispatch):
        got += deliveries
        for _, offset in deliveries:
            dispatch.ack(offset, T0 + 0.25)
    assert got == [(2, offset) for offset in range(4, 20)]
    assert dispatch.unacked == 2


def test_a_stalled_consumer_that_answers_has_its_turn_again():
    dispatch, held = busy()
    dispatch.tick(T0 + 1)
    assert pairs(dispatch) == [(2, 4), (2, 5)]
    dispatch.ack(held[0], T0 + 1)
    assert pairs(dispatch) == [(1, 6)]
    dispatch.nack(held[1], 0, "", T0 + 1)
    assert pairs(dispatch) == []  # whose turn it is, 2, holds its share and was not quiet long enough


def test_a_nack_is_an_answer_too():
    dispatch, held = busy()
    dispatch.tick(T0 + 1)
    dispatch.nack(held[0], 0, "", T0 + 1)
    dispatch.take()
    assert dispatch.held_by(1) == 2


def test_a_consumer_below_its_share_is_never_passed_over():
    dispatch = machine(SHARED, (1, 2), fed=2, window=10)
    assert pairs(dispatch) == [(1, 0), (2, 1)]
    dispatch.feed(messages(2, 6), T0 + 100)
    assert pairs(dispatch) == [(1, 2), (2, 3), (1, 4), (2, 5)]


def test_being_idle_is_not_being_quiet():
    dispatch = machine(SHARED, (1, 2, 3), window=4)
    dispatch.feed(messages(0, 4), T0 + 3600)
    assert pairs(dispatch) == [(1, 0), (2, 1), (3, 2), (1, 3)]


def test_a_lone_consumer_may_have_the_whole_window():
    dispatch = machine(SHARED, (1,), fed=10, window=10)
    dispatch.take()
    dispatch.ack(0, T0)
    dispatch.feed(messages(10, 12), T0 + 5)
    assert offsets(dispatch) == [10]
