"""A second opinion on core/dispatch: every event goes to the machine and to a slow, plain account of the rules.

The account knows offsets, not heaps: it looks through everything after each event. For Exclusive, Failover and Shared it
says exactly what must be delivered to whom. For KeyShared it says what may be, and what must not be left lying.
"""

from dataclasses import dataclass, field

from ister.core.dispatch import ledger as dispatch_ledger
from ister.core.dispatch.dispatch import Backoff, Dispatch, FailurePolicy, Poison, SubscriptionType
from ister.core.dispatch.key_shared import ring_hash
from ister.core.message import MsgID, StreamMessage

QUIET_S = 0.25
ONE_AT_A_TIME = {SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER}


@dataclass(eq=False)
class Person:
    """A consumer, and its connection: what waits in it, and the one message that it is writing."""

    id: int
    place: int
    filters: tuple[str, ...]
    since: float
    connected: bool = False
    stalled: bool = False
    outbox: list[tuple[int, int]] = field(default_factory=list)  # offset, and number of the hand-out
    writing: tuple[int, int] | None = None


@dataclass(eq=False)
class Note:
    """An unfinished message, and where it must be: waiting, out, retry, blocked or dead."""

    offset: int
    key: str
    size: int
    state: str = "waiting"
    to: int = 0
    since: float = 0.0
    sent: bool = False
    turn: int = 0
    number: int = 0
    deliveries: int = 0
    failures: int = 0
    reason: str = ""
    at: float | None = None  # of retry: when it is due, if it is not; of dead: when it is offered again
    letter: str = ""  # of dead: "offered" or "taken", or "" while it waits for `at`
    store_failures: int = 0


def message(offset, key="", size=1):
    return StreamMessage(bytes(size), MsgID(topic_offset=offset), producer_name="p", routing_key=key)


def matches(pattern, key):
    """Globs by recursion."""
    if not pattern:
        return not key
    if pattern[0] == "*":
        return any(matches(pattern[1:], key[n:]) for n in range(len(key) + 1))
    return bool(key) and pattern[0] in {"?", key[0]} and matches(pattern[1:], key[1:])


@dataclass
class Witness:
    """The machine and the account of it."""

    kind: SubscriptionType
    window: int = 10
    policy: FailurePolicy = field(default_factory=FailurePolicy)
    cursor: int = 0
    grace_s: float = 10.0
    now: float = 100.0

    def __post_init__(self):
        self.people = {}
        self.places = 0
        self.how = {}  # offset → how it was finished, through all lives
        self.nodes = {}
        self.next_number = 1
        self.restart(self.cursor)

    def restart(self, cursor, finished=()):
        """Begin anew from a cursor and ranges that were saved; those who are registered are so still."""
        self.next_number = 1
        self.letters_out = []  # (offset, number) of what is being stored
        self.machine = Dispatch(
            self.kind, cursor, finished=finished, window=self.window, policy=self.policy, grace_s=self.grace_s,
        )  # fmt: skip
        self._begin(cursor, finished)
        self.valid_from = 1
        self.turns = 0
        self.served = -1
        self.active = None
        self.away = {}
        people = sorted(self.people.values(), key=lambda person: person.place)
        self.people = {}
        for person in people:
            self.join(person.id, person.filters)

    def _begin(self, cursor, finished):
        self.notes = {}
        self.finished_before = {offset for start, stop in finished for offset in range(start, stop)}
        self.cursor = self.end = cursor

    def reset(self, cursor):
        """The operator moves the cursor: what was acknowledged beyond it comes again."""
        self.machine.restart(self.kind, cursor, self.now)
        self._reset(cursor, [])

    def change_type(self, kind):
        """What is outstanding is handed out again, what is acknowledged is not."""
        cursor, finished = self.machine.cursor, self.machine.finished
        self.machine.restart(kind, cursor, self.now, finished=finished)
        self.kind = kind
        self._reset(cursor, finished)

    def _reset(self, cursor, finished):
        self.valid_from = self.next_number
        self._begin(cursor, finished)
        for person in self.people.values():
            person.since, person.stalled, person.outbox = self.now, False, []
        self.look()

    # --- consumers ----------------------------------------------------------------------------------------------------

    @property
    def connected(self):
        return sorted((p for p in self.people.values() if p.connected), key=lambda p: p.place)

    def join(self, number, filters=()):
        self.machine.join(number, filters, self.now)
        person = self.people.get(number)
        if person is None:
            self.places += 1
            self.people[number] = Person(number, self.places, tuple(filters), self.now)
            self.away[number] = self.now
        else:
            self._lost(person)
            person.filters = tuple(filters)
        self.look()

    def connect(self, number):
        self.machine.connect(number, self.now)
        person = self.people[number]
        if person.connected:
            self._take_back(person)
        elif self.kind is not SubscriptionType.SHARED and self.now - self.away[number] > self.grace_s:
            self.places += 1
            person.place = self.places
        person.connected, person.since, person.stalled = True, self.now, False
        person.outbox, person.writing = [], None
        self.active = self.active or person
        self.look()

    def disconnect(self, number):
        self.machine.disconnect(number, self.now)
        self._lost(self.people[number])
        self.look()

    def leave(self, number):
        self.machine.leave(number, self.now)
        self._lost(self.people[number])
        del self.people[number]
        self.look()

    def _lost(self, person):
        if person.connected:
            self._take_back(person)
            person.connected = False
            self.away[person.id] = self.now
            if self.active is person:
                self.active = next(iter(self.connected), None)

    def _take_back(self, person):
        for note in self.held_by(person.id):
            note.state, note.at = "retry", None

    # --- messages -----------------------------------------------------------------------------------------------------

    def feed(self, messages):
        self.machine.feed(messages, self.now)
        for each in messages:
            if self.end not in self.finished_before:
                self.notes[self.end] = Note(self.end, each.routing_key, len(each.payload))
            self.end += 1
        self.look()

    def skip_missing(self, stop):
        """The reader was told to skip what no tier has any more."""
        self.machine.skip_missing(stop, self.now)
        for offset in range(self.end, stop):
            self._finish(offset, "missing")
        self.end = stop
        self.look()

    def drain(self, number):
        """A connection has taken the message that it was writing."""
        person = self.people[number]
        (offset, delivery), person.writing = person.writing, None
        assert self.machine.sent(number, offset, delivery, self.now) == person.stalled, "who is stalled"
        note = self._held(offset, delivery)
        if note is not None:
            self.turns += 1
            note.since, note.sent, note.turn = self.now, True, self.turns
        person.stalled = False
        self.look()

    def skip_to(self, offset):
        self.machine.skip_to(offset, self.now)
        for low in range(self.cursor, offset):
            if low in self.notes or low >= self.end:
                self._finish(low, "expired")
        self.end = max(self.end, offset)
        self.look()

    def ack(self, offset):
        note = self.notes.get(offset)
        assert self.machine.ack(offset, self.now) == (note is not None), f"acknowledging {offset}"
        if note is not None:
            if note.state == "out":
                self.people[note.to].since = self.now
            self._finish(offset, "acknowledged")
        self.look()

    def nack(self, offset, delay_ms=0, reason=""):
        note = self.notes.get(offset)
        is_out = note is not None and note.state == "out"
        assert self.machine.nack(offset, delay_ms, reason, self.now) == is_out, f"nacking {offset}"
        if is_out:
            self.people[note.to].since = self.now
            self._fail(note, delay_ms, reason)
        self.look()

    def letter_stored(self, offset, number=None):
        self.machine.dead_letter_stored(offset, self.now, number)
        if offset in self.notes and (number is None or number >= self.valid_from):
            self._finish(offset, "stored")
        self.look()

    def letter_failed(self, offset, number=None):
        self.machine.dead_letter_failed(offset, self.now, number)
        note = self.notes.get(offset)
        if note is not None and note.state == "dead" and note.letter == "taken" and number in {None, note.number}:
            note.letter, note.at = "", self.now + min(0.5 * 2**note.store_failures, 60)
            note.store_failures += 1
        self.look()

    def tick(self, now):
        self.now = now
        self.machine.tick(now)
        timeout_s = self.policy.ack_timeout_ms / 1000
        for note in sorted(self.in_state("out"), key=lambda note: note.turn):
            if not timeout_s or note.since + timeout_s > now:
                continue
            if note.sent:
                self._fail(note, 0, "ack timeout")
            elif self.kind is SubscriptionType.SHARED and len(self.connected) > 1:
                note.state, note.at = "retry", None
                self.people[note.to].stalled = True
            else:
                self.turns += 1
                note.since, note.turn = now, self.turns
        for note in self.notes.values():
            if note.at is not None and note.at <= now:
                note.at = None
                if note.state == "dead":
                    note.letter = "offered"
        self.look()

    def configure(self, window):
        self.window = window
        self.machine.configure(window, self.now)
        self.look()

    def set_policy(self, policy):
        self.machine.set_policy(policy, self.now)
        if policy != self.policy:
            for note in self.notes.values():
                if note.state == "blocked" or (note.state == "dead" and policy.poison is not Poison.DEAD_LETTER):
                    note.state, note.at = "retry", None
                elif note.state == "dead" and note.at is not None:
                    note.letter, note.at, note.store_failures = "offered", None, 0
        self.policy = policy
        self.look()

    def _fail(self, note, delay_ms, reason):
        policy = self.policy
        note.failures += 1
        note.reason = reason or note.reason
        if note.failures <= policy.max_redelivery_count:
            own = policy.base_redelivery_delay_ms
            if policy.backoff is Backoff.EXPONENTIAL:
                own *= 2 ** (note.failures - 1)
            delay_ms = min(max(own, delay_ms), policy.max_redelivery_delay_ms)
            note.state, note.at = "retry", (self.now + delay_ms / 1000 if delay_ms else None)
        elif policy.poison is Poison.DROP:
            assert note.deliveries > policy.max_redelivery_count
            self._finish(note.offset, "dropped")
        elif policy.poison is Poison.BLOCK:
            note.state = "blocked"
        else:
            note.state, note.letter, note.store_failures = "dead", "offered", 0

    def _finish(self, offset, how):
        self.notes.pop(offset, None)
        self.how[offset] = how

    # --- what must come of it -----------------------------------------------------------------------------------------

    def in_state(self, state):
        return [note for note in self.notes.values() if note.state == state]

    def held_by(self, number):
        return [note for note in self.notes.values() if note.state == "out" and note.to == number]

    def _held(self, offset, number):
        """What is with a consumer by this hand-out."""
        note = self.notes.get(offset)
        return note if note is not None and note.state == "out" and note.number == number else None

    def look(self):
        """Take what the machine hands out, and compare everything."""
        before = self.machine.cursor
        deliveries = self.machine.take()
        if self.kind is SubscriptionType.KEY_SHARED:
            patience = None
            self._skip_unwanted()
            for delivery in deliveries:
                self._check_head(delivery)
            self._check_nothing_was_left()
        else:
            expected, patience = self._expected()
            assert [(d.consumer, d.message.offset, d.attempt, d.number) for d in deliveries] == expected, (
                "wrong deliveries"
            )
        letters = self.machine.take_dead_letters()
        offered = [note for note in self.in_state("dead") if note.letter == "offered"]
        told = sorted((each.message.offset, each.attempt, each.reason, each.number) for each in letters)
        assert told == sorted((n.offset, n.deliveries, n.reason, n.number) for n in offered), "wrong dead letters"
        for note in offered:
            note.letter = "taken"
            self.letters_out.append((note.offset, note.number))
        self._write(deliveries)
        self._check_places(before)
        self._check_due(patience)
        self._check_room()
        return deliveries

    def _write(self, deliveries):
        """Let every connection that writes nothing begin with the next message that is still wanted."""
        for delivery in deliveries:
            self.people[delivery.consumer].outbox.append((delivery.message.offset, delivery.number))
        for person in self.connected:
            while person.writing is None and person.outbox:
                offset, number = person.outbox.pop(0)
                wanted = self._held(offset, number) is not None
                assert self.machine.wants(offset, number) == wanted, f"whether {offset} is still to be sent"
                if wanted:
                    person.writing = offset, number
            assert not person.stalled or person.writing is not None, "nothing would ever wake it"

    def _note_delivery(self, note, number):
        person = self.people[number]
        if not self.held_by(number):
            person.since = self.now
        self.turns += 1
        note.state, note.to, note.since, note.sent, note.turn = "out", number, self.now, False, self.turns
        note.deliveries += 1
        note.number = self.next_number
        self.next_number += 1

    def _fits(self, note):
        out = self.in_state("out")
        return not out or sum(each.size for each in out) + note.size <= dispatch_ledger.BYTES_MAX

    def _expected(self):
        """Play what must be delivered; return it, and until when a consumer is waited for."""
        expected = []
        while self.connected and len(self.in_state("out")) < self.window:
            ready = [note for note in self.in_state("retry") if note.at is None]
            new = [] if self.in_state("blocked") else self.in_state("waiting")
            note = min(ready or new, key=lambda note: note.offset, default=None)
            if note is None or not self._fits(note):
                break
            person, patience = self._next_person()
            if person is None:
                return expected, patience
            self._note_delivery(note, person.id)
            expected.append((person.id, note.offset, note.deliveries, note.number))
        return expected, None

    def _next_person(self):
        if self.kind in ONE_AT_A_TIME:
            return self.active, None
        connected = self.connected
        behind = [p for p in connected if p.place > self.served]
        ahead = [p for p in connected if p.place <= self.served]
        for person in behind + ahead:
            if person.stalled:
                continue
            holds = len(self.held_by(person.id))
            if holds >= max(1, self.window // len(connected)):
                if self.now >= person.since + QUIET_S:
                    continue
                if holds >= -(-self.window // len(connected)):
                    return None, person.since + QUIET_S
            self.served = person.place
            return person, None
        return None, None

    # --- KeyShared ----------------------------------------------------------------------------------------------------

    def _wanted_by(self, key, people):
        return [p for p in people if not p.filters or any(matches(f, key) for f in p.filters)]

    def _owner(self, key):
        candidates = self._wanted_by(key, self.connected)
        if not candidates:
            return None
        at = ring_hash(key)
        nodes = []
        for person in candidates:
            if person.id not in self.nodes:
                self.nodes[person.id] = [ring_hash(f"{person.id}-{n}") for n in range(100)]
            nodes += [((node - at) % 2**32, node, person.id) for node in self.nodes[person.id]]
        return min(nodes)[2]

    def _heads(self):
        heads = {}
        for note in sorted(self.notes.values(), key=lambda note: note.offset):
            heads.setdefault(note.key, note)
        return heads

    def _skip_unwanted(self):
        """What nobody takes is finished, once somebody is connected and nothing of the key is out."""
        if not self.connected:
            return
        stopped = set()
        for note in sorted(self.notes.values(), key=lambda note: note.offset):
            if note.key in stopped or self._wanted_by(note.key, self.people.values()):
                continue
            if note.state == "waiting" or (note.state == "retry" and note.at is None):
                self._finish(note.offset, "skipped")
            else:
                stopped.add(note.key)

    def _check_head(self, delivery):
        note = self.notes.get(delivery.message.offset)
        assert note is not None, f"{delivery.message.offset} is delivered after it was finished"
        assert note.state == "waiting" or (note.state == "retry" and note.at is None), f"delivered while {note.state}"
        assert self._heads()[note.key] is note, f"{note.offset} overtakes another message of its key"
        assert self.people[delivery.consumer].connected, "delivered to nobody"
        assert delivery.consumer == self._owner(note.key), "delivered to another than the key's owner"
        assert self._fits(note), "too many bytes are out"
        self._note_delivery(note, delivery.consumer)
        assert (delivery.attempt, delivery.number) == (note.deliveries, note.number)
        assert len(self.in_state("out")) <= self.window, "the window is exceeded"
        assert len(self.held_by(delivery.consumer)) <= -(-self.window // len(self.connected)), "more than its share"

    def _check_nothing_was_left(self):
        if len(self.in_state("out")) >= self.window:
            return
        ready = [n for n in self._heads().values() if n.state == "waiting" or (n.state == "retry" and n.at is None)]
        if not all(self._fits(note) for note in ready):
            return
        for note in ready:
            owner = self._owner(note.key)
            full = owner is not None and len(self.held_by(owner)) >= -(-self.window // len(self.connected))
            assert owner is None or full, f"{note.offset} is left lying"

    # --- what always holds --------------------------------------------------------------------------------------------

    def _check_places(self, before):
        machine, ledger = self.machine, self.machine._ledger
        while self.cursor not in self.notes and (self.cursor < self.end or self.cursor in self.finished_before):
            self.cursor += 1
        assert machine.cursor == self.cursor, f"the cursor is {machine.cursor}, not {self.cursor}"
        assert before <= machine.cursor
        assert machine.next_offset == self.end
        seen = range(self.cursor, max(self.end, *self.finished_before, 0) + 1)
        open_ = {offset for offset in seen if offset in self.notes or offset >= self.end} - self.finished_before
        finished = {offset for start, stop in machine.finished for offset in range(start, stop)}
        assert finished == set(seen) - open_, "what is finished beyond the cursor"
        places = {"waiting": ledger.waiting, "out": ledger.out, "retry": ledger.retry,
                  "blocked": ledger.blocked, "dead": ledger.dead}  # fmt: skip
        for state, place in places.items():
            assert sorted(place) == sorted(n.offset for n in self.in_state(state)), f"what is {state}"
        assert (machine.unacked, machine.waiting) == (len(ledger.out), len(self.notes) - len(ledger.out))
        assert machine.blocked == bool(self.in_state("blocked"))
        sizes = {state: sum(note.size for note in self.in_state(state)) for state in places}
        assert ledger._waiting_bytes == sizes["waiting"]
        assert ledger._out_bytes == sizes["out"]
        assert ledger._pending_bytes == sizes["retry"] + sizes["blocked"] + sizes["dead"]
        most = len(self.notes) + len(self.finished_before)
        assert len(ledger.cursor.ranges) <= most, "the account of finished offsets grows without bound"

    def _check_due(self, patience):
        times = [note.at for note in self.notes.values() if note.at is not None]
        if self.policy.ack_timeout_ms:
            times += [note.since + self.policy.ack_timeout_ms / 1000 for note in self.in_state("out")]
        if patience is not None:
            times.append(patience)
        assert self.machine.due == min(times, default=None), "due at another time"

    def _check_room(self):
        room = self.machine.room
        assert room >= 0
        if not self.connected:
            assert room == 0, "read for nobody"
        elif not self.in_state("waiting") and not self.in_state("blocked") and not self.machine._ledger.full:
            assert room > 0, "nothing is read, and nothing waits"
