"""The life of a subscription, decided by one seed: consumers die before they acknowledge, the broker crashes (F36).

Everything goes through the witness, which knows what must happen. At the end everybody behaves, and every message must
have been finished as the policy says.
"""

import random
from collections import Counter
from contextlib import contextmanager

from ister.core.dispatch import dispatch
from ister.core.dispatch import ledger as dispatch_ledger
from ister.core.dispatch.dispatch import Backoff, FailurePolicy, Poison, SubscriptionType
from sim.dispatch_witness import Witness, message

KEYS = ["eu-1", "eu-2", "us-1", "us-22", "asia", ""]
FILTERS = [(), (), (), ("eu-*",), ("us-?",), ("us-*", "asia"), ("nobody",)]
REST_STEPS_MAX = 4000


@contextmanager
def limits(bytes_max, waiting_max):
    """Make the machine's limits so small that a story reaches them."""
    before = dispatch_ledger.BYTES_MAX, dispatch_ledger.WAITING_MAX
    dispatch_ledger.BYTES_MAX = bytes_max
    dispatch.WAITING_MAX = dispatch_ledger.WAITING_MAX = waiting_max
    try:
        yield
    finally:
        dispatch_ledger.BYTES_MAX = before[0]
        dispatch.WAITING_MAX = dispatch_ledger.WAITING_MAX = before[1]


class Story:
    """One subscription, its consumers, and its topic."""

    def __init__(self, seed, kind=None):
        self.rng = rng = random.Random(seed)
        self.witness = Witness(
            kind if kind is not None else rng.choice(list(SubscriptionType)),
            window=rng.choice([1, 1, 2, 3, 5, 10]),
            policy=self.some_policy(),
            cursor=rng.choice([0, 0, 7]),
        )
        self.begin = self.witness.cursor
        self.saved = self.begin, []
        self.topic = []  # None is a message that no tier has any more
        self.received = []  # offsets in the hands of someone, perhaps of someone dead
        self.counts = Counter()
        self.acts = [self.publish] * 6 + [self.read] * 8 + [self.answer] * 14 + [self.wait] * 6
        self.acts += [self.drain] * 10
        self.acts += [self.die] * 3 + [self.come] * 6 + [self.join] * 2 + [self.leave, self.configure, self.set_policy]
        self.acts += [self.answer_late] * 2 + [self.save] * 2 + [self.expire, self.crash, self.reset]
        self.acts += [self.change_type] * (kind is None)

    def some_policy(self):
        rng = self.rng
        return FailurePolicy(
            max_redelivery_count=rng.choice([0, 1, 2, 5]),
            ack_timeout_ms=rng.choice([0, 500, 3_000]),
            base_redelivery_delay_ms=rng.choice([0, 100, 1_000]),
            max_redelivery_delay_ms=rng.choice([0, 500, 60_000]),
            backoff=rng.choice(list(Backoff)),
            poison=rng.choice(list(Poison)),
        )

    def live(self, steps=150):
        """Live through so many acts, and come to rest; return what was done."""
        with limits(*self.rng.choice([(12, 10_000), (32 * 2**20, 5), (32 * 2**20, 10_000)])):
            for _ in range(steps):
                self.witness.now += self.rng.choice([0.0, 0.0, 0.001, 0.1])  # not every event is a tick
                self.rng.choice(self.acts)()
            self.rest()
        assert self.witness.how.keys() >= set(range(self.begin, self.end)), "a message was lost"
        self.counts.update(self.witness.how.values())
        return self.counts

    @property
    def end(self):
        return self.begin + len(self.topic)

    # --- acts ---------------------------------------------------------------------------------------------------------

    def publish(self):
        for _ in range(self.rng.randint(1, 4)):
            size = self.rng.choice([0, 1, 1, 10])
            is_there = self.rng.random() < 0.97
            self.topic.append(message(self.end, self.rng.choice(KEYS), size) if is_there else None)

    def read(self):
        start = self.witness.end - self.begin
        room = min(self.witness.machine.room, self.rng.randint(1, 5))
        messages = self.topic[start:][:room]
        if messages and messages[0] is None:
            stop = next((at for at, found in enumerate(self.topic) if at >= start and found), len(self.topic))
            self.witness.skip_missing(self.begin + stop)
        elif messages:
            self.witness.feed(messages[: messages.index(None)] if None in messages else messages)

    def drain(self):
        writing = [person for person in self.witness.connected if person.writing is not None]
        if writing:
            self.counts["a stalled consumer went on"] += (person := self.rng.choice(writing)).stalled
            self.witness.drain(person.id)

    def answer(self):
        held = [n for n in self.witness.notes.values() if n.state == "out"]
        if held:
            self.answer_one(self.rng.choice(held).offset)

    def answer_one(self, offset):
        draw = self.rng.random()
        if draw < 0.7:
            self.received.append(offset)
            self.witness.ack(offset)
        elif draw < 0.95:
            self.received.append(offset)
            self.witness.nack(offset, self.rng.choice([0, 0, 700]), self.rng.choice(["", "bad", "worse"]))
        else:
            self.letters()

    def answer_late(self):
        """Someone answers for something he had long ago, or that never was."""
        offset = self.rng.choice([*self.received, self.rng.randint(0, self.end + 3)])
        if self.rng.random() < 0.7:
            self.counts["late acknowledgement"] += offset in self.witness.notes
            self.witness.ack(offset)
        else:
            self.witness.nack(offset)

    def letters(self):
        """Some copies are stored, some are not, and some take longer than what happens meanwhile."""
        for letter in list(self.witness.letters_out):
            if (draw := self.rng.random()) < 0.8:
                self.witness.letters_out.remove(letter)
                (self.witness.letter_stored if draw < 0.4 else self.witness.letter_failed)(*letter)

    def wait(self):
        witness = self.witness
        due = witness.machine.due
        if due is not None and self.rng.random() < 0.6:
            witness.tick(max(witness.now, due))
        else:
            witness.tick(witness.now + self.rng.choice([0.0, 0.01, 0.2, 0.3, 2.0, 15.0]))
        self.letters()

    def die(self):
        connected = self.witness.connected
        if connected:
            person = self.rng.choice(connected)
            self.counts["died with messages in hand"] += bool(self.witness.held_by(person.id))
            self.witness.disconnect(person.id)

    def come(self):
        if self.witness.people:
            self.witness.connect(self.rng.choice(list(self.witness.people)))

    def join(self):
        self.witness.join(self.rng.randint(1, 4), self.rng.choice(FILTERS))

    def leave(self):
        if self.witness.people:
            self.witness.leave(self.rng.choice(list(self.witness.people)))

    def configure(self):
        self.witness.configure(self.rng.choice([1, 2, 3, 10]))

    def set_policy(self):
        self.witness.set_policy(self.some_policy())

    def save(self):
        """Save the progress as a clean stop does, with what is finished beyond the cursor."""
        self.saved = self.witness.machine.cursor, self.witness.machine.finished

    def expire(self):
        if self.rng.random() < 0.2 and self.end > self.witness.cursor:
            self.witness.skip_to(self.rng.randint(self.witness.cursor, self.end))

    def crash(self):
        if self.rng.random() < 0.4:
            if self.rng.random() < 0.3:
                self.save()
                self.counts["clean stop"] += 1
            else:
                self.counts["crash"] += 1
            self.received += self.witness.notes
            self.witness.restart(*self.saved)

    def reset(self):
        if self.rng.random() < 0.4:
            self.counts["reset"] += 1
            self.received += self.witness.notes
            cursor = self.rng.randint(self.begin, self.end)
            self.witness.reset(cursor)
            self.saved = cursor, []
            for offset in range(self.begin, cursor):
                self.witness.how.setdefault(offset, "passed over")

    def change_type(self):
        if self.rng.random() < 0.4:
            self.counts["change of type"] += 1
            self.received += self.witness.notes
            self.witness.change_type(self.rng.choice(list(SubscriptionType)))

    # --- the end ------------------------------------------------------------------------------------------------------

    def rest(self):
        """Let everybody do what they should until nothing is left to do."""
        witness = self.witness
        if not witness.people:
            witness.join(1)
        for number in list(witness.people):
            witness.connect(number)
        for step in range(REST_STEPS_MAX):
            if witness.machine.cursor == self.end:
                return
            self.read()
            for person in witness.connected:
                while person.writing is not None:
                    witness.drain(person.id)
            out = witness.in_state("out")
            for note in out[: self.rng.randint(1, 3)]:
                witness.ack(note.offset)
            while witness.letters_out:
                witness.letter_stored(*witness.letters_out.pop())
            if witness.machine.blocked:
                witness.set_policy(self.some_policy())
            due = witness.machine.due
            if not out and due is not None:
                witness.tick(max(due, witness.now))
            self.counts["steps to rest"] = step
        raise AssertionError(f"it does not come to rest: {witness.notes}")
