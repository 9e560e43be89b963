"""What bounds a subscription: window, bytes, room, the cursor; and acknowledgements that come late."""

import random

import pytest

from ister.core.dispatch.dispatch import Dispatch, FailurePolicy, Poison
from ister.core.dispatch.ledger import Cursor
from parts.dispatch import EXCLUSIVE, KEY_SHARED, SHARED, T0, keyed, machine, message, messages, offsets

MIB = 2**20


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
def test_a_larger_window_counts_at_once(kind):
    dispatch = machine(kind, window=2)
    dispatch.feed(keyed(*"abcdef"), T0)
    assert len(dispatch.take()) == 2
    dispatch.configure(5, T0)
    assert len(dispatch.take()) == 3


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
def test_a_smaller_window_counts_from_the_next_delivery_on(kind):
    dispatch = machine(kind, window=4)
    dispatch.feed(keyed(*"abcdefgh"), T0)
    assert offsets(dispatch) == [0, 1, 2, 3]
    dispatch.configure(2, T0)
    for offset in (0, 1):
        dispatch.ack(offset, T0)
        assert offsets(dispatch) == []
    dispatch.ack(2, T0)
    assert offsets(dispatch) == [4]


def test_a_window_of_nothing_is_refused():
    with pytest.raises(ValueError, match="a window of 0"):
        machine(EXCLUSIVE).configure(0, T0)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
def test_i10_at_most_32_mib_are_out_but_one_message_always_may_be(kind):
    dispatch = machine(kind)
    dispatch.feed([message(n, f"k{n}", 20 * MIB) for n in range(2)] + [message(2, "k2", 40 * MIB)], T0)
    for n in range(3):
        assert offsets(dispatch) == [n]
        dispatch.ack(n, T0)
    dispatch.feed([message(n, f"k{n}", 16 * MIB) for n in range(3, 6)], T0)
    assert offsets(dispatch) == [3, 4]


def test_i10_the_bytes_of_what_is_tried_again_count_too():
    dispatch = machine(EXCLUSIVE, base_redelivery_delay_ms=0)
    dispatch.feed([message(n, None, 20 * MIB) for n in range(2)], T0)
    assert offsets(dispatch) == [0]
    dispatch.nack(0, 0, "", T0)
    assert offsets(dispatch) == [0]
    dispatch.nack(0, 10, "", T0)
    assert offsets(dispatch) == [1]
    dispatch.tick(T0 + 1)
    assert offsets(dispatch) == []
    dispatch.ack(1, T0 + 1)
    assert offsets(dispatch) == [0]


def test_the_window_is_ten_unless_another_is_set():
    dispatch = Dispatch(EXCLUSIVE, 0)
    dispatch.join(1, (), T0)
    dispatch.connect(1, T0)
    dispatch.feed(messages(0, 20), T0)
    assert len(dispatch.take()) == 10


def test_room_is_what_is_read_ahead_and_comes_in_runs():
    dispatch = machine(EXCLUSIVE, window=1)
    assert dispatch.room == 128
    dispatch.feed(messages(0, 128), T0)
    for left in range(128, 64, -1):
        assert (dispatch.waiting, dispatch.room) == (left, 0)
        (offset,) = offsets(dispatch)
        dispatch.ack(offset, T0)
    assert (dispatch.waiting, dispatch.room) == (64, 64)


def test_a_large_window_reads_further_ahead():
    assert machine(SHARED, window=1_000).room == 1_000


@pytest.mark.parametrize("kind", [EXCLUSIVE, KEY_SHARED])
def test_i10_nothing_is_read_when_32_mib_wait(kind):
    dispatch = machine(kind, window=1)
    dispatch.feed([message(n, "k", 16 * MIB) for n in range(3)], T0)
    dispatch.take()
    assert dispatch.room == 0
    dispatch.ack(0, T0)
    dispatch.take()
    assert dispatch.room > 0


def test_i10_nothing_is_read_when_ten_thousand_wait_for_another_try():
    dispatch = machine(EXCLUSIVE, window=10_000, fed=10_001)
    assert len(dispatch.take()) == 10_000
    for offset in range(9_999):
        dispatch.nack(offset, 0, "", T0)
    assert dispatch.room > 0
    dispatch.nack(9_999, 0, "", T0)
    assert dispatch.room == 0
    dispatch.ack(17, T0)
    assert dispatch.room > 0


def test_dead_letters_that_cannot_be_stored_count_as_waiting_for_another_try():
    dispatch = machine(EXCLUSIVE, fed=2, max_redelivery_count=0, poison=Poison.DEAD_LETTER)
    dispatch.take()
    dispatch.nack(0, 0, "", T0)
    assert dispatch.room > 0
    dispatch.feed([message(2, None, 32 * MIB - 1)], T0)
    dispatch.ack(1, T0)
    dispatch.take()
    dispatch.nack(2, 0, "", T0)
    assert dispatch.room == 0
    dispatch.dead_letter_stored(0, T0)
    assert dispatch.room > 0


# --- feeding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fed", [[1], [0, 2], [0, 1, 1], [0, 1, 2, 4], [3]])
def test_i9_messages_with_a_hole_are_refused_and_none_is_taken(fed):
    dispatch = machine(EXCLUSIVE)
    with pytest.raises(ValueError, match="fed offset"):
        dispatch.feed([message(offset) for offset in fed], T0)
    assert (dispatch.next_offset, dispatch.waiting, offsets(dispatch)) == (0, 0, [])


# --- the cursor -------------------------------------------------------------------------------------------------------


def test_the_cursor_is_the_lowest_unacknowledged_offset():
    dispatch = machine(EXCLUSIVE, fed=5)
    dispatch.take()
    cursors = []
    for offset in (1, 3, 0, 4, 2):
        dispatch.ack(offset, T0)
        cursors.append(dispatch.cursor)
    assert cursors == [0, 0, 2, 2, 5]


def test_the_cursor_is_right_after_acknowledgements_in_any_order():
    rng = random.Random(1)
    for _ in range(200):
        cursor, order, left = Cursor(3), list(range(3, 23)), set(range(3, 23))
        rng.shuffle(order)
        for offset in order:
            cursor.finish(offset)
            left.discard(offset)
            assert cursor.at == min(left, default=23)
            assert len(cursor._starts) == len(cursor.ranges) <= len(left)
        assert len(cursor.ranges) == 0


def test_the_cursor_skips_what_was_finished_behind_a_deleted_part():
    cursor = Cursor(0)
    for offset in (2, 5, 6, 9):
        cursor.finish(offset)
    cursor.skip_to(5)
    assert (cursor.at, len(cursor.ranges)) == (7, 1)
    cursor.skip_to(3)
    assert cursor.at == 7
    cursor.skip_to(20)
    assert (cursor.at, len(cursor.ranges), cursor._starts) == (20, 0, {})


def test_i10_one_message_that_takes_for_ever_costs_no_memory_for_those_behind_it():
    dispatch = machine(EXCLUSIVE, window=2)
    dispatch.feed(messages(0, 1), T0)
    dispatch.take()
    for offset in range(1, 5_000):
        dispatch.feed([message(offset)], T0)
        dispatch.take()
        dispatch.ack(offset, T0)
    assert dispatch.cursor == 0
    assert len(dispatch.finished) == 1
    dispatch.ack(0, T0)
    assert (dispatch.cursor, len(dispatch.finished)) == (5_000, 0)


# --- late acknowledgements --------------------------------------------------------------------------------------------


def test_an_acknowledgement_counts_after_the_message_was_scheduled_again():
    dispatch = machine(EXCLUSIVE, fed=1)
    dispatch.take()
    dispatch.nack(0, 0, "", T0)
    assert dispatch.ack(0, T0)
    dispatch.tick(T0 + 60)
    assert (offsets(dispatch), dispatch.cursor, dispatch.due) == ([], 1, None)


def test_an_acknowledgement_counts_after_its_consumer_was_lost():
    dispatch = machine(EXCLUSIVE, fed=1)
    dispatch.take()
    dispatch.disconnect(1, T0)
    assert dispatch.ack(0, T0)
    dispatch.connect(1, T0)
    assert offsets(dispatch) == []


def test_an_acknowledgement_counts_for_what_was_delivered_before_a_restart():
    dispatch = machine(EXCLUSIVE, cursor=5, fed=3)
    assert dispatch.ack(6, T0)
    assert offsets(dispatch) == [5, 7]
    assert dispatch.ack(5, T0)
    assert dispatch.cursor == 7


def test_acknowledging_what_is_unknown_or_finished_changes_nothing():
    dispatch = machine(EXCLUSIVE, cursor=5, fed=2)
    dispatch.take()
    assert dispatch.ack(5, T0)
    for offset in (5, 4, 7, -1):
        assert not dispatch.ack(offset, T0)
    assert dispatch.cursor == 6


# --- retention --------------------------------------------------------------------------------------------------------


def test_what_retention_deleted_is_forgotten_wherever_it_was():
    dispatch = machine(EXCLUSIVE, fed=8, window=4, max_redelivery_count=0, poison=Poison.DEAD_LETTER)
    dispatch.take()
    dispatch.nack(0, 0, "", T0)
    dispatch.skip_to(6, T0)
    assert (dispatch.cursor, dispatch.unacked, dispatch.take_dead_letters()) == (6, 0, [])
    assert not dispatch.ack(1, T0)
    assert offsets(dispatch) == [6, 7]
    assert dispatch.due == T0 + 30


def test_it_goes_on_behind_a_deleted_part_that_was_never_read():
    dispatch = machine(EXCLUSIVE, fed=2)
    dispatch.take()
    dispatch.skip_to(10**12, T0)
    assert (dispatch.cursor, dispatch.next_offset) == (10**12, 10**12)
    dispatch.feed(messages(10**12, 10**12 + 2), T0)
    assert offsets(dispatch) == [10**12, 10**12 + 1]


def test_nothing_is_forgotten_when_only_finished_messages_were_deleted():
    dispatch = machine(EXCLUSIVE, fed=3)
    dispatch.take()
    dispatch.ack(0, T0)
    dispatch.skip_to(1, T0)
    assert (dispatch.cursor, dispatch.unacked, dispatch.next_offset) == (1, 2, 3)


def test_what_was_handed_out_is_not_looked_through_again():
    dispatch = machine(EXCLUSIVE, window=100, fed=100)
    dispatch.take()
    assert not dispatch._fresh


@pytest.mark.parametrize(
    "event",
    [
        lambda dispatch, now: dispatch.feed([], now),
        lambda dispatch, now: dispatch.skip_to(0, now),
        lambda dispatch, now: dispatch.configure(10, now),
        lambda dispatch, now: dispatch.set_policy(FailurePolicy(), now),
        lambda dispatch, now: dispatch.join(1, (), now),
        lambda dispatch, now: dispatch.disconnect(1, now),
        lambda dispatch, now: dispatch.ack(99, now),
        lambda dispatch, now: dispatch.nack(99, 0, "", now),
        lambda dispatch, now: dispatch.dead_letter_failed(99, now),
        lambda dispatch, now: dispatch.tick(now),
    ],
)
def test_a_delivery_is_timed_from_the_last_event_on(event):
    dispatch = machine(EXCLUSIVE, fed=1)
    event(dispatch, T0 + 7)
    dispatch.connect(1, T0)
    dispatch.take()
    assert dispatch.due == T0 + 37


def test_time_never_goes_back():
    dispatch = machine(EXCLUSIVE, fed=2, window=1)
    dispatch.take()
    dispatch.ack(0, T0 + 50)
    dispatch.tick(T0)
    dispatch.take()
    assert dispatch.due == T0 + 80
