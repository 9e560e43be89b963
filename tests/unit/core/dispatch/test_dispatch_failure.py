"""What a failure leads to: delays, timeouts, poison, dead letters, changed policies."""

import pytest

from ister.core.dispatch.dispatch import Backoff, FailurePolicy, Poison
from ister.core.dispatch.ledger import Timers
from parts.dispatch import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    T0,
    keyed,
    letters,
    machine,
    messages,
    offsets,
    pairs,
    take,
)

EXPONENTIAL = FailurePolicy()
FIXED = FailurePolicy(backoff=Backoff.FIXED)


@pytest.mark.parametrize(
    ("policy", "failures", "asked_ms", "delay_ms"),
    [
        (EXPONENTIAL, 1, 0, 1_000),
        (EXPONENTIAL, 2, 0, 2_000),
        (EXPONENTIAL, 4, 0, 8_000),
        (EXPONENTIAL, 7, 0, 60_000),
        (EXPONENTIAL, 10**9, 0, 60_000),
        (EXPONENTIAL, 1, 5_000, 5_000),
        (EXPONENTIAL, 4, 5_000, 8_000),
        (EXPONENTIAL, 1, 2**64 - 1, 60_000),
        (FIXED, 1, 0, 1_000),
        (FIXED, 5, 0, 1_000),
        (FIXED, 5, 70_000, 60_000),
    ],
)
def test_the_delay_is_the_larger_of_the_policys_and_the_consumers_and_at_most_the_maximum(
    policy, failures, asked_ms, delay_ms
):
    assert policy.delay_ms(failures, asked_ms) == delay_ms


def test_the_defaults_are_those_of_the_protocol():
    assert FailurePolicy() == FailurePolicy(
        max_redelivery_count=5,
        ack_timeout_ms=30_000,
        base_redelivery_delay_ms=1_000,
        max_redelivery_delay_ms=60_000,
        backoff=Backoff.EXPONENTIAL,
        poison=Poison.BLOCK,
        dead_letter_topic=None,
    )


def test_a_nacked_message_comes_again_after_its_delay_with_a_higher_attempt():
    dispatch = machine(EXCLUSIVE, fed=2)
    assert [d.attempt for d in take(dispatch)] == [1, 1]
    assert dispatch.nack(0, 0, "bad", T0)
    assert dispatch.due == T0 + 1
    dispatch.tick(T0 + 0.999)
    assert take(dispatch) == []
    dispatch.tick(T0 + 1)
    assert [(d.message.offset, d.attempt) for d in take(dispatch)] == [(0, 2)]


def test_delays_double_to_the_millisecond_up_to_the_most_unless_a_longer_one_is_asked_for():
    policy = {"max_redelivery_count": 9, "base_redelivery_delay_ms": 100, "max_redelivery_delay_ms": 400}
    dispatch = machine(EXCLUSIVE, fed=1, **policy)
    now = T0
    for asked_ms, delay_s in ((150, 0.15), (0, 0.2), (0, 0.4), (0, 0.4), (9_999, 0.4)):
        assert offsets(dispatch) == [0]
        dispatch.nack(0, asked_ms, "", now)
        assert dispatch.due == pytest.approx(now + delay_s, abs=1e-6)
        dispatch.tick(now + delay_s - 0.001)
        assert offsets(dispatch) == []
        now += delay_s + 1e-6
        dispatch.tick(now)


def test_a_message_that_waits_for_its_next_try_takes_no_slot_of_the_window():
    dispatch = machine(EXCLUSIVE, fed=3, window=1)
    assert offsets(dispatch) == [0]
    dispatch.nack(0, 0, "", T0)
    assert offsets(dispatch) == [1]
    dispatch.tick(T0 + 1)
    assert offsets(dispatch) == []
    dispatch.ack(1, T0 + 1)
    assert offsets(dispatch) == [0]
    assert dispatch.cursor == 0


def test_a_delivery_that_is_not_answered_in_time_fails_by_ack_timeout():
    dispatch = machine(EXCLUSIVE, fed=1, max_redelivery_count=0, poison=Poison.DEAD_LETTER)
    take(dispatch)
    assert dispatch.due == T0 + 30
    dispatch.tick(T0 + 29.9)
    assert letters(dispatch) == []
    dispatch.tick(T0 + 30)
    assert [(letter.attempt, letter.reason) for letter in dispatch.take_dead_letters()] == [(1, "ack timeout")]


def test_the_time_for_an_answer_begins_when_the_connection_has_taken_the_message():
    dispatch = machine(EXCLUSIVE, fed=1)
    [delivery] = dispatch.take()
    dispatch.sent(1, 0, delivery.number, T0 + 20)
    dispatch.tick(T0 + 49)
    assert (dispatch.unacked, dispatch.due) == (1, T0 + 50)
    dispatch.tick(T0 + 50)
    assert dispatch.unacked == 0


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED])
def test_what_was_never_sent_does_not_fail_however_long_its_only_consumer_stalls(kind):
    dispatch = machine(kind, max_redelivery_count=0)
    dispatch.feed(keyed("a", "b"), T0)
    deliveries = dispatch.take()
    for n in range(1, 100):
        dispatch.tick(T0 + 30 * n)
        assert dispatch.take() == []
    assert not dispatch.blocked
    assert [dispatch.wants(each.message.offset, each.number) for each in deliveries] == [True, True]


def test_a_stalled_connection_gets_a_message_once_more_when_it_timed_out_there_and_not_at_all_when_that_was_answered():
    dispatch = machine(EXCLUSIVE, fed=1, base_redelivery_delay_ms=0)
    take(dispatch)
    dispatch.tick(T0 + 30)
    [delivery] = dispatch.take()  # into its queue, where it stays
    for n in range(2, 100):
        dispatch.tick(T0 + 30 * n)
        assert dispatch.take() == []
    assert dispatch.wants(0, delivery.number)
    assert dispatch.ack(0, T0 + 3000)
    assert not dispatch.wants(0, delivery.number)


def test_shared_consumers_take_over_what_another_ones_connection_does_not_take_and_that_is_no_failure():
    dispatch = machine(SHARED, (1, 2), fed=4, window=4, max_redelivery_count=0)
    deliveries = dispatch.take()
    assert [delivery.consumer for delivery in deliveries] == [1, 2, 1, 2]
    for offset in (1, 3):
        dispatch.sent(2, offset, deliveries[offset].number, T0)
        dispatch.ack(offset, T0)
    dispatch.tick(T0 + 30)
    assert pairs(dispatch) == [(2, 0), (2, 2)]
    assert not dispatch.wants(0, deliveries[0].number)
    dispatch.ack(0, T0 + 30)
    dispatch.ack(2, T0 + 30)
    dispatch.feed(messages(4, 6), T0 + 30)
    assert pairs(dispatch) == [(2, 4), (2, 5)]
    dispatch.ack(4, T0 + 30)
    dispatch.ack(5, T0 + 30)
    assert dispatch.sent(1, 0, deliveries[0].number, T0 + 31), "it goes on, and has its turns again"
    dispatch.feed(messages(6, 8), T0 + 31)
    assert pairs(dispatch) == [(1, 6), (2, 7)]


def test_deliveries_time_out_in_the_order_of_sending_also_when_they_were_sent_again():
    dispatch = machine(EXCLUSIVE, fed=2, base_redelivery_delay_ms=0)
    take(dispatch)
    dispatch.nack(0, 0, "", T0 + 10)
    assert offsets(dispatch) == [0]
    dispatch.tick(T0 + 30)
    assert offsets(dispatch) == [1]
    assert dispatch.due == T0 + 40


def test_a_timeout_without_a_delay_is_due_again_at_once():
    dispatch = machine(EXCLUSIVE, fed=1, base_redelivery_delay_ms=0)
    take(dispatch)
    dispatch.tick(T0 + 30)
    assert offsets(dispatch) == [0]


def test_without_an_ack_timeout_a_delivery_may_take_for_ever():
    dispatch = machine(EXCLUSIVE, fed=1, ack_timeout_ms=0)
    take(dispatch)
    assert dispatch.due is None
    dispatch.tick(T0 + 10**6)
    assert dispatch.unacked == 1


def test_a_new_ack_timeout_counts_for_what_is_out():
    dispatch = machine(EXCLUSIVE, fed=1)
    take(dispatch)
    dispatch.set_policy(FailurePolicy(ack_timeout_ms=5_000), T0 + 1)
    assert dispatch.due == T0 + 5


def test_nacks_of_what_is_unknown_finished_or_not_out_are_ignored():
    dispatch = machine(EXCLUSIVE, fed=3, window=1)
    take(dispatch)
    dispatch.ack(0, T0)
    for offset in (0, 1, 2, 99):
        assert not dispatch.nack(offset, 0, "", T0)
    assert offsets(dispatch) == [1]


def fail(dispatch, offset, times, now=T0):
    """Nack a message that often, with no delay in the policy."""
    for _ in range(times):
        assert offset in offsets(dispatch)
        assert dispatch.nack(offset, 0, "bad", now)


def test_a_message_is_delivered_once_more_than_it_may_be_redelivered():
    dispatch = machine(EXCLUSIVE, fed=1, base_redelivery_delay_ms=0, max_redelivery_count=5, poison=Poison.DROP)
    fail(dispatch, 0, 6)
    assert offsets(dispatch) == []
    assert (dispatch.cursor, dispatch.dropped) == (1, 1)


def test_the_loss_of_a_consumer_is_not_a_failure_and_does_not_exhaust():
    dispatch = machine(EXCLUSIVE, fed=1, base_redelivery_delay_ms=0, max_redelivery_count=1, poison=Poison.DROP)
    for attempt in range(1, 10):
        assert [d.attempt for d in take(dispatch)] == [attempt]
        dispatch.disconnect(1, T0)
        dispatch.connect(1, T0)
    fail(dispatch, 0, 1)
    assert dispatch.cursor == 0
    fail(dispatch, 0, 1)
    assert dispatch.cursor == 1


# --- Block ------------------------------------------------------------------------------------------------------------


def blocked(kind=EXCLUSIVE):
    dispatch = machine(kind, fed=2, window=2, max_redelivery_count=0)
    take(dispatch)
    dispatch.feed(messages(2, 5), T0)
    dispatch.nack(0, 0, "bad", T0)
    return dispatch


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
def test_block_stops_new_messages_and_reading(kind):
    dispatch = blocked(kind)
    assert dispatch.blocked
    assert (offsets(dispatch), dispatch.room) == ([], 0)


def test_other_retries_go_on_while_a_message_blocks():
    dispatch = machine(EXCLUSIVE, fed=3, window=3, max_redelivery_count=1, base_redelivery_delay_ms=0)
    take(dispatch)
    dispatch.feed(messages(3, 5), T0)
    dispatch.nack(0, 0, "", T0)
    assert offsets(dispatch) == [0]
    dispatch.nack(0, 0, "", T0)
    dispatch.nack(1, 0, "", T0)
    assert dispatch.blocked
    assert offsets(dispatch) == [1]


def test_a_blocked_subscription_goes_on_when_the_policy_changes():
    dispatch = blocked()
    dispatch.set_policy(FailurePolicy(max_redelivery_count=3), T0)
    assert not dispatch.blocked
    assert [(d.message.offset, d.attempt) for d in take(dispatch)] == [(0, 2)]
    dispatch.ack(0, T0)
    assert offsets(dispatch) == [2]


def test_the_same_policy_again_changes_nothing():
    dispatch = blocked()
    dispatch.set_policy(FailurePolicy(max_redelivery_count=0), T0)
    assert dispatch.blocked
    assert offsets(dispatch) == []


def test_a_blocked_message_that_fails_again_is_judged_by_the_new_policy():
    dispatch = blocked()
    dispatch.set_policy(FailurePolicy(max_redelivery_count=0, poison=Poison.DROP), T0)
    assert offsets(dispatch) == [0]
    assert dispatch.cursor == 0
    dispatch.nack(0, 0, "", T0)
    assert dispatch.cursor == 1


def test_a_late_acknowledgement_unblocks():
    dispatch = blocked()
    assert dispatch.ack(0, T0)
    assert not dispatch.blocked
    assert offsets(dispatch) == [2]


# --- DeadLetter -------------------------------------------------------------------------------------------------------


def dead(kind=EXCLUSIVE):
    dispatch = machine(kind, fed=2, max_redelivery_count=0, poison=Poison.DEAD_LETTER)
    take(dispatch)
    dispatch.nack(0, 0, "", T0)
    return dispatch


@pytest.mark.parametrize("poison", [Poison.BLOCK, Poison.DEAD_LETTER])
def test_what_is_due_again_blocked_or_dead_counts_as_waiting(poison):
    """J13."""
    dispatch = machine(EXCLUSIVE, fed=10, max_redelivery_count=1, base_redelivery_delay_ms=1000, poison=poison)
    take(dispatch)
    for offset in range(10):
        dispatch.nack(offset, 0, "", T0)
    assert (dispatch.waiting, dispatch.unacked) == (10, 0), "all are due again in a second"
    dispatch.tick(T0 + 1)
    take(dispatch)
    assert (dispatch.waiting, dispatch.unacked) == (0, 10)
    for offset in range(5):
        dispatch.nack(offset, 0, "", T0 + 1)
    assert (dispatch.waiting, dispatch.unacked) == (5, 5)


def test_a_dead_letter_is_finished_only_when_its_copy_is_stored():
    dispatch = dead()
    assert letters(dispatch) == [0]
    assert letters(dispatch) == []
    assert dispatch.cursor == 0
    dispatch.dead_letter_stored(0, T0)
    assert dispatch.cursor == 1


def test_a_dead_letter_that_could_not_be_stored_is_offered_again_later_each_time():
    """J10."""
    dispatch = dead()
    dispatch.ack(1, T0)
    now = T0
    for delay_s in (0.5, 1, 2, 4, 8, 16, 32, 60, 60):
        dispatch.tick(now)
        assert letters(dispatch) == [0]
        dispatch.dead_letter_failed(0, now)
        dispatch.dead_letter_failed(0, now)
        assert letters(dispatch) == []
        assert dispatch.due == now + delay_s
        now += delay_s
    assert dispatch.cursor == 0


def test_a_dead_letter_is_offered_at_once_and_soon_again_when_the_policy_changes():
    """J10."""
    dispatch = dead()
    now = T0
    for delay_s in (0.5, 1, 2):
        assert letters(dispatch) == [0]
        dispatch.dead_letter_failed(0, now)
        now += delay_s
        dispatch.tick(now)
    assert letters(dispatch) == [0]
    dispatch.dead_letter_failed(0, now)
    dispatch.set_policy(FailurePolicy(poison=Poison.DEAD_LETTER, dead_letter_topic="/default/other"), now)
    assert letters(dispatch) == [0]
    dispatch.dead_letter_failed(0, now)
    assert dispatch.due == now + 0.5


def test_a_dead_letter_tells_the_last_known_reason_and_how_often_it_was_delivered():
    dispatch = machine(EXCLUSIVE, fed=1, base_redelivery_delay_ms=0, max_redelivery_count=2, poison=Poison.DEAD_LETTER)
    for reason in ("bad", "worse", ""):
        take(dispatch)
        dispatch.nack(0, 0, reason, T0)
    assert [(letter.attempt, letter.reason) for letter in dispatch.take_dead_letters()] == [(3, "worse")]


def test_an_acknowledgement_that_comes_before_the_copy_is_made_saves_it():
    dispatch = dead()
    assert dispatch.ack(0, T0)
    assert letters(dispatch) == []
    dispatch.dead_letter_failed(0, T0)
    dispatch.dead_letter_stored(0, T0)
    dispatch.tick(T0 + 9)
    assert (dispatch.cursor, letters(dispatch)) == (1, [])


def test_dead_letters_that_were_not_stored_are_delivered_again_under_a_policy_without_them():
    dispatch = dead()
    dispatch.take_dead_letters()
    dispatch.dead_letter_failed(0, T0)
    dispatch.set_policy(FailurePolicy(), T0)
    assert offsets(dispatch) == [0]
    dispatch.tick(T0 + 0.5)
    assert letters(dispatch) == []
    dispatch.dead_letter_stored(0, T0 + 1)
    assert dispatch.cursor == 1


def test_a_dead_letter_that_was_not_taken_yet_is_none_any_more_under_a_policy_without_them():
    dispatch = dead()
    dispatch.set_policy(FailurePolicy(), T0)
    assert (letters(dispatch), offsets(dispatch)) == ([], [0])


def test_a_dead_letter_is_offered_at_once_when_another_topic_is_named():
    dispatch = dead()
    dispatch.take_dead_letters()
    dispatch.dead_letter_failed(0, T0)
    dispatch.set_policy(FailurePolicy(poison=Poison.DEAD_LETTER, dead_letter_topic="/default/other"), T0)
    assert letters(dispatch) == [0]
    dispatch.dead_letter_failed(0, T0 + 0.4)
    dispatch.tick(T0 + 0.6)
    assert letters(dispatch) == []


def test_a_key_waits_until_the_copy_of_its_dead_letter_is_stored():
    dispatch = machine(KEY_SHARED, max_redelivery_count=0, poison=Poison.DEAD_LETTER)
    dispatch.feed(keyed("a", "a", "b"), T0)
    assert offsets(dispatch) == [0, 2]
    dispatch.nack(0, 0, "", T0)
    assert offsets(dispatch) == []
    dispatch.dead_letter_stored(0, T0)
    assert offsets(dispatch) == [1]


# --- timers -----------------------------------------------------------------------------------------------------------


def test_only_the_last_timer_of_an_offset_counts():
    timers = Timers()
    timers.set(1, 5.0)
    timers.set(2, 6.0)
    timers.set(1, 7.0)
    assert timers.next == 6.0
    assert timers.expired(6.5) == [2]
    assert timers.expired(7.0) == [1]
    assert (timers.next, timers.expired(99.0)) == (None, [])


def test_i10_cancelled_timers_do_not_pile_up():
    timers = Timers()
    for offset in range(10_000):
        timers.set(offset, -float(offset))
        timers.cancel(offset - 10)
        assert len(timers._heap) < 100
        assert timers.next == -offset
    assert timers.expired(0.0) == list(range(9_999, 9_989, -1))
