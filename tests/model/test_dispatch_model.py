"""Whatever happens to a subscription in whatever order: nothing is lost or skipped (I9), nothing grows without bound (I10).

The witness checks after each step that every offset between the cursor and the next one is in exactly one place, that the
cursor is the lowest unfinished offset, that no delivery exceeds the window or goes to someone who is not connected, that
Exclusive, Failover and Shared deliver exactly what their rules say, and KeyShared one message of a key at a time, in order.
"""

from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ister.core.dispatch.dispatch import Backoff, FailurePolicy, Poison, SubscriptionType
from sim.dispatch_story import limits
from sim.dispatch_witness import Witness, message

KEYS = ["eu-1", "eu-2", "us-1", "us-22", ""]
FILTERS = [[], ["eu-*"], ["us-?", ""], ["*2"]]
done = Counter()

policies = st.builds(
    FailurePolicy,
    max_redelivery_count=st.integers(0, 3),
    ack_timeout_ms=st.sampled_from([0, 400, 3_000]),
    base_redelivery_delay_ms=st.sampled_from([0, 100, 1_000]),
    max_redelivery_delay_ms=st.sampled_from([0, 500, 60_000]),
    backoff=st.sampled_from(Backoff),
    poison=st.sampled_from(Poison),
)
consumers = st.integers(1, 3)
picks = st.integers(0, 50)


class Subscription(RuleBasedStateMachine):
    """One subscription, and the witness."""

    @initialize(
        kind=st.sampled_from(SubscriptionType),
        window=st.integers(1, 6),
        policy=policies,
        few_bytes=st.booleans(),
        few_messages=st.booleans(),
        joined=st.lists(consumers, unique=True),
    )
    def begin(self, kind, window, policy, few_bytes, few_messages, joined):
        self.limits = limits(12 if few_bytes else 2**25, 6 if few_messages else 10_000)
        self.limits.__enter__()
        self.witness = Witness(kind, window=window, policy=policy)
        self.saved = 0, []
        for number in joined:
            self.witness.join(number)
            self.witness.connect(number)

    def teardown(self):
        if hasattr(self, "limits"):
            self.limits.__exit__(None, None, None)

    def some(self, state, pick):
        notes = self.witness.in_state(state)
        return notes[pick % len(notes)].offset if notes else None

    # --- consumers ----------------------------------------------------------------------------------------------------

    @rule(number=consumers, filters=st.sampled_from(FILTERS))
    def join(self, number, filters):
        self.witness.join(number, filters)

    @precondition(lambda self: self.witness.people)
    @rule(pick=picks)
    def connect(self, pick):
        people = sorted(self.witness.people)
        self.witness.connect(people[pick % len(people)])

    @precondition(lambda self: self.witness.connected)
    @rule(pick=picks)
    def disconnect(self, pick):
        connected = self.witness.connected
        self.witness.disconnect(connected[pick % len(connected)].id)
        done["lost consumer"] += 1

    @precondition(lambda self: self.witness.people)
    @rule(pick=picks)
    def leave(self, pick):
        people = sorted(self.witness.people)
        self.witness.leave(people[pick % len(people)])

    # --- messages -----------------------------------------------------------------------------------------------------

    @rule(fed=st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from([0, 1, 10, 20])), min_size=1, max_size=6))
    def feed(self, fed):
        end = self.witness.end
        self.witness.feed([message(end + n, key, size) for n, (key, size) in enumerate(fed)])
        done["message"] += len(fed)

    @rule(pick=picks)
    def drain(self, pick):
        writing = [person.id for person in self.witness.connected if person.writing is not None]
        if writing:
            self.witness.drain(writing[pick % len(writing)])

    @rule(pick=picks)
    def ack(self, pick):
        offset = self.some("out", pick)
        if offset is not None:
            self.witness.ack(offset)

    @rule(missing=st.integers(1, 4))
    def the_reader_skips_what_is_missing(self, missing):
        self.witness.skip_missing(self.witness.end + missing)

    @rule(pick=picks)
    def ack_anything(self, pick):
        self.witness.ack(max(0, self.witness.end - pick))

    @rule(pick=picks, delay_ms=st.sampled_from([0, 700, 2**64 - 1]), reason=st.sampled_from(["", "bad"]))
    def nack(self, pick, delay_ms, reason):
        offset = self.some("out", pick)
        if offset is not None:
            self.witness.nack(offset, delay_ms, reason)

    @rule(pick=picks)
    def nack_anything(self, pick):
        self.witness.nack(max(0, self.witness.end - pick))

    @rule(pick=picks, well=st.booleans())
    def answer_for_a_dead_letter(self, pick, well):
        offset = self.some("dead", pick)
        if offset is not None:
            (self.witness.letter_stored if well else self.witness.letter_failed)(offset)

    @rule(further=st.integers(0, 5))
    def retention_deletes(self, further):
        self.witness.skip_to(self.witness.cursor + further)

    # --- time, the operator, and crashes ------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.25, 1.0, 11.0]))
    def time_passes(self, seconds):
        self.witness.tick(self.witness.now + seconds)

    @rule(seconds=st.sampled_from([0.001, 0.1, 3.0]))
    def time_passes_and_nobody_ticks(self, seconds):
        self.witness.now += seconds

    @rule()
    def wait_until_due(self):
        due = self.witness.machine.due
        if due is not None:
            self.witness.tick(max(self.witness.now, due))

    @rule(window=st.integers(1, 6))
    def configure(self, window):
        self.witness.configure(window)

    @rule(policy=policies)
    def set_policy(self, policy):
        self.witness.set_policy(policy)

    @rule(back=st.integers(0, 8))
    def the_operator_resets_the_cursor(self, back):
        cursor = max(0, self.witness.end - back)
        self.witness.reset(cursor)
        self.saved = cursor, []

    @rule(kind=st.sampled_from(SubscriptionType))
    def the_type_changes(self, kind):
        self.witness.change_type(kind)

    @rule()
    def save_the_progress(self):
        self.saved = self.witness.machine.cursor, self.witness.machine.finished

    @rule(really=st.integers(0, 3))
    def crash(self, really):
        if not really:
            self.witness.restart(*self.saved)
            done["crash"] += 1

    @invariant()
    def count(self):
        done["step"] += 1


def test_i9_i10_no_order_of_events_loses_skips_or_repeats_a_message(count, tell):
    goal = count(3_000, 200_000)
    done.clear()
    while done["step"] < goal:
        run_state_machine_as_test(
            Subscription,
            settings=settings(
                max_examples=max(2, min(400, (goal - done["step"]) // 40)),
                stateful_step_count=60,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    counts = ", ".join(f"{name}: {number}" for name, number in sorted(done.items()) if name != "step")
    tell("I9, I10", f"{done['step']} steps of a subscription ({counts}): the rules of dispatch held after each")
