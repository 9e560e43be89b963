"""Decide who gets which message of a subscription, and when again: a state machine without clock or I/O.

Events go in (a consumer came, messages were read, one was acknowledged, time has passed), deliveries come out of `take`.
A message between `cursor` and `next_offset` is in exactly one of these places:

    fed ──▶ waiting ──▶ out ──▶ finished              out: with a consumer, counted by the window
                        │ ▲
      nack, timeout, or ▼ │ due, and there is a slot
      consumer gone    retry ◀──── policy changed ──── blocked, dead: failed too often

What the texts leave open is decided so that nothing is lost or skipped (I9):

- A message counts as unanswered once its consumer's connection has taken it (`sent`). What a connection does not take is
  no failure of the message, however long that lasts: shared consumers hand it to another after the ack timeout.
- The window counts what is with consumers. A message that waits for its next try takes no slot; `room` bounds those.
- Only failures (a nack, a timeout) exhaust a message. The `attempt` of a delivery counts losses of a consumer, too.
- Each hand-out has a number of its own. `wants`, `sent` and the answers to dead letters refer to one hand-out: what became
  of an earlier one of the same message does not concern the present one.
- A message that this process has not handed out may be acknowledged: by someone who got it before a restart.
- KeyShared: a key that only absent consumers take waits for them until they leave, however long that is. Only what no
  registered consumer takes is skipped. A key whose dead letter is not stored yet stays where it is.
- A blocked message is handed out again when the policy changes, and judged by the new policy when it fails again.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from ister.core.dispatch_consumers import Consumer, Consumers
from ister.core.dispatch_lanes import Lanes, key_of
from ister.core.dispatch_ledger import WAITING_MAX, Ledger, Parcel
from ister.core.failure import Backoff, FailurePolicy, Poison
from ister.core.retry import backoff_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ister.core.message import StreamMessage

__all__ = ["Backoff", "DeadLetter", "Delivery", "Dispatch", "FailurePolicy", "Poison", "SubscriptionType"]

READ_AHEAD_MIN = 128
DEAD_LETTER_RETRY_S = 0.5
DEAD_LETTER_RETRY_MAX_S = 60.0


class SubscriptionType(IntEnum):
    """How messages are shared among consumers; the numbers are those of the wire."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3


class Delivery(NamedTuple):
    """Send this message to this consumer; `attempt` is 1 the first time, `number` is this hand-out's alone."""

    consumer: int
    message: StreamMessage
    attempt: int
    number: int


class DeadLetter(NamedTuple):
    """Store a copy of this message in the dead letter topic, and say how that went."""

    message: StreamMessage
    attempt: int
    reason: str
    number: int = 0


class Dispatch:
    """One subscription. `now` is a monotonic time in seconds. Call `take` after each event, and `tick` when `due`.

    `finished` are ranges [start, stop) beyond the cursor that need no delivery.
    """

    def __init__(
        self,
        kind: SubscriptionType,
        cursor: int,
        *,
        finished: Sequence[tuple[int, int]] = (),
        window: int = 10,
        policy: FailurePolicy = FailurePolicy(),  # noqa: B008  # it is frozen
        grace_s: float = 10.0,
    ) -> None:
        if window < 1 or cursor < 0:
            raise ValueError(f"a window of {window} at cursor {cursor}")
        self.redelivered = self.dropped = self.skipped = 0  # how many so far: tried again, given up, taken by nobody
        self._window = window
        self._policy = policy
        self._now = 0.0
        self._next_number = 1
        self._valid_from = 1  # what was handed out by a lower number was forgotten by a reset
        self._consumers = Consumers(window, grace_s)
        self._begin(kind, cursor, finished)

    def _begin(self, kind: SubscriptionType, cursor: int, finished: Sequence[tuple[int, int]]) -> None:
        self.kind = kind
        self._ledger = Ledger(cursor, finished)
        self._lanes = Lanes() if kind is SubscriptionType.KEY_SHARED else None
        self._ready: list[int] = []  # without lanes: a heap of the retries that are due
        self._fresh: deque[int] = deque()  # without lanes: what waits for its first delivery, or was finished meanwhile

    def restart(
        self, kind: SubscriptionType, cursor: int, now: float, *, finished: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Forget every message and begin again at a cursor, perhaps as another type; consumers and counters stay."""
        self._now = max(self._now, now)
        self._begin(kind, cursor, finished)
        self._valid_from = self._next_number
        for consumer in self._consumers.registered.values():
            consumer.reset(self._now)
            if self._lanes is not None:
                self._lanes.ring.add(consumer)

    # --- consumers ----------------------------------------------------------------------------------------------------

    def join(self, consumer: int, filters: Sequence[str], now: float) -> None:
        """Register a consumer. If it is registered, this is a take-over: its stream counts as gone until it connects."""
        known = self._consumers.registered.get(consumer)
        self._now = max(self._now, now)
        if known is not None:
            self._lose(known, now)
        joined = self._consumers.join(consumer, filters, now)
        if self._lanes is not None:
            if known is None:
                self._lanes.ring.add(joined)
            self._lanes.reroute()

    def connect(self, consumer: int, now: float) -> None:
        """Let a registered consumer have messages. A second stream takes the place of the first."""
        known = self._consumers.registered[consumer]
        self._now = max(self._now, now)
        if known.connected:
            self._reclaim(known)
        elif self.kind is not SubscriptionType.SHARED:
            self._consumers.queue_behind_if_late(known, self._now)
        self._consumers.connect(known)
        if self._lanes is not None:
            self._lanes.reroute()

    def disconnect(self, consumer: int, now: float) -> None:
        """Let what a consumer has not acknowledged be handed out again. This is not a failure of the messages."""
        known = self._consumers.registered.get(consumer)
        if known is not None:
            self._lose(known, now)

    def leave(self, consumer: int, now: float) -> None:
        """Forget a consumer; nothing waits for it any more."""
        known = self._consumers.registered.get(consumer)
        if known is None:
            return
        self._lose(known, now)
        self._consumers.leave(known)
        if self._lanes is not None:
            self._lanes.ring.remove(known)
            self._lanes.reroute()

    # --- messages -----------------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many more messages to read now; 0 also while none could be delivered.

        Without lanes it is 0 until half of what was read ahead is gone, so that messages are read in runs.
        """
        if not self._consumers.connected or self._ledger.full:
            return 0
        waiting = len(self._ledger.waiting)
        if self._lanes is not None:
            return max(0, WAITING_MAX - waiting)
        ahead = max(self._window, READ_AHEAD_MIN)
        return 0 if self._ledger.blocked or waiting * 2 > ahead else ahead - waiting

    def feed(self, messages: Sequence[StreamMessage], now: float) -> None:
        """Take what was read. ValueError when an offset is not the next one, and then nothing is taken."""
        self._now = max(self._now, now)
        offsets = self._ledger.feed(messages)
        if self._lanes is None:
            self._fresh.extend(offsets)
        else:
            for offset in offsets:
                self._lanes.add(offset, key_of(self._ledger.waiting[offset]))

    def skip_missing(self, stop: int, now: float) -> None:
        """Finish what is to be fed next, [next_offset, stop): the reader was told to skip what no tier has any more."""
        self._now = max(self._now, now)
        self._ledger.skip_missing(stop)

    def skip_to(self, offset: int, now: float) -> None:
        """Forget everything below: retention has deleted it. What is out and below is not waited for any more."""
        self._now = max(self._now, now)
        self._ledger.skip_to(offset)
        if self._lanes is not None:
            self._lanes.skip_to(offset)

    def wants(self, offset: int, number: int) -> bool:
        """Whether a hand-out still holds, so that it is to be sent; otherwise it was finished or handed out again meanwhile."""
        parcel = self._ledger.out.get(offset)
        return parcel is not None and parcel.number == number

    def sent(self, consumer: int, offset: int, number: int, now: float) -> bool:
        """Begin to wait for an answer: the connection has taken a delivery. True: a stalled consumer gets more, so `take`."""
        self._now = max(self._now, now)
        parcel = self._ledger.out.get(offset)
        if parcel is not None and parcel.number == number:
            parcel.sent = True
            self._ledger.count_from(parcel, self._now)
        known = self._consumers.registered.get(consumer)
        if known is None or not known.stalled:
            return False
        known.stalled = False
        return True

    def was_handed_out(self, offset: int) -> bool:
        """Whether an unfinished message was ever given to a consumer here."""
        return self._ledger.cursor.at <= offset < self._ledger.next_offset and offset not in self._ledger.waiting

    def ack(self, offset: int, now: float) -> bool:
        """Finish a message, wherever it is by now; False when it is unknown or finished already."""
        self._now = max(self._now, now)
        parcel = self._ledger.take_back(offset)
        if parcel is None:
            return self._finish_elsewhere(offset)
        parcel.consumer.since = self._now
        self._finish(parcel)
        return True

    def nack(self, offset: int, delay_ms: int, reason: str, now: float) -> bool:
        """Have a message delivered again later; False when it is not with a consumer (any more)."""
        self._now = max(self._now, now)
        parcel = self._ledger.take_back(offset)
        if parcel is None:
            return False
        parcel.consumer.since = self._now
        self._fail(parcel, delay_ms, reason)
        return True

    def dead_letter_stored(self, offset: int, now: float, number: int | None = None) -> None:
        """Finish a message whose copy is safe, even if the policy has changed meanwhile; not if it is replayed."""
        if number is None or number >= self._valid_from:
            self.ack(offset, now)

    def dead_letter_failed(self, offset: int, now: float, number: int | None = None) -> None:
        """Offer the copy again, later each time; not if another hand-out has made the message a dead letter again."""
        self._now = max(self._now, now)
        ledger = self._ledger
        dead = ledger.dead.get(offset)
        if dead is None or (number is not None and dead.number != number):
            return
        if offset not in ledger.letters and offset not in ledger.timers:
            dead.letter_failures += 1
            delay_s = backoff_s(dead.letter_failures, DEAD_LETTER_RETRY_MAX_S, DEAD_LETTER_RETRY_S)
            ledger.timers.set(offset, self._now + delay_s)

    def tick(self, now: float) -> None:
        """Do what is due: time deliveries out, make retries deliverable, offer dead letters again."""
        self._now = max(self._now, now)
        ledger = self._ledger
        while (at := self._next_timeout()) is not None and at <= self._now:
            parcel = next(iter(ledger.out.values()))
            if parcel.sent:
                ledger.take_back(parcel.offset)
                self._fail(parcel, 0, "ack timeout")
            elif self.kind is SubscriptionType.SHARED and len(self._consumers.connected) > 1:
                parcel.consumer.stalled = True
                self._hand_on(parcel)
            else:  # it is nobody else's
                ledger.count_from(parcel, self._now)
        for offset in ledger.timers.expired(self._now):
            retry = ledger.retry.get(offset)
            if retry is not None:
                self._offer(retry)
            else:
                ledger.letters[offset] = ledger.dead[offset]

    def configure(self, window: int, now: float) -> None:
        """Change the window. What is out stays out; a smaller window counts from the next delivery on."""
        if window < 1:
            raise ValueError(f"a window of {window}")
        self._now = max(self._now, now)
        self._window = window
        self._consumers.set_window(window)
        if self._lanes is not None:
            self._lanes.reroute()

    def set_policy(self, policy: FailurePolicy, now: float) -> None:
        """Change the policy. A new timeout counts for what is out, a new delay from the next failure on.

        Blocked messages are handed out again; so are dead letters that are not stored, if the new policy has none.
        """
        self._now = max(self._now, now)
        if policy == self._policy:
            return
        self._policy = policy
        ledger = self._ledger
        for parcel in ledger.release(dead=policy.poison is not Poison.DEAD_LETTER):
            self._offer(parcel)
        for offset in [offset for offset in ledger.dead if offset in ledger.timers]:
            ledger.timers.cancel(offset)
            ledger.letters[offset] = ledger.dead[offset]
            ledger.dead[offset].letter_failures = 0

    # --- what came of it ----------------------------------------------------------------------------------------------

    def take(self) -> list[Delivery]:
        """Hand out what may be handed out, as of the last event's time."""
        consumers = self._consumers
        consumers.patience_ends = None
        deliveries: list[Delivery] = []
        if not consumers.connected:
            return deliveries
        if self._lanes is not None:
            self._take_heads(self._lanes, deliveries)
        elif self._take_due(deliveries) and not self._ledger.blocked:
            self._take_new(deliveries)
        return deliveries

    def take_dead_letters(self) -> list[DeadLetter]:
        """Return what is to be stored in the dead letter topic; each is answered by `dead_letter_stored` or `_failed`."""
        letters = [
            DeadLetter(each.message, each.attempt, each.reason, each.number) for each in self._ledger.letters.values()
        ]
        self._ledger.letters.clear()
        return letters

    @property
    def cursor(self) -> int:
        """Everything below is acknowledged or skipped."""
        return self._ledger.cursor.at

    @property
    def finished(self) -> list[tuple[int, int]]:
        """The ranges [start, stop) beyond the cursor that are finished, in order."""
        return self._ledger.cursor.ranges

    @property
    def next_offset(self) -> int:
        """The offset to feed next."""
        return self._ledger.next_offset

    @property
    def due(self) -> float | None:
        """When `tick` is needed next, as of the last `take`; None: never."""
        due = self._next_timeout()
        for at in (self._ledger.timers.next, self._consumers.patience_ends):
            if at is not None and (due is None or at < due):
                due = at
        return due

    @property
    def unacked(self) -> int:
        """How many deliveries are with consumers: what the window bounds."""
        return len(self._ledger.out)

    @property
    def waiting(self) -> int:
        """How many messages were read and are with no consumer: those that are due again, blocked or dead included."""
        return len(self._ledger.waiting) + self._ledger.kept

    @property
    def active(self) -> int | None:
        """The one consumer that gets everything; None when there is none, or when they share."""
        active = self._consumers.active
        shared = self.kind in {SubscriptionType.SHARED, SubscriptionType.KEY_SHARED}
        return None if active is None or shared else active.id

    def held_by(self, consumer: int) -> int:
        """Return how many deliveries are with a consumer."""
        known = self._consumers.registered.get(consumer)
        return 0 if known is None else known.holds

    @property
    def blocked(self) -> bool:
        """Whether a message that failed too often holds others up."""
        return bool(self._ledger.blocked)

    # --- handing out --------------------------------------------------------------------------------------------------

    def _take_due(self, deliveries: list[Delivery]) -> bool:
        """Hand out what is due again, lowest offset first; whether none of it is left."""
        ready = self._ready
        while ready:
            if ready[0] in self._ledger.retry:  # otherwise it was finished meanwhile
                consumer = self._next_consumer(ready[0])
                if consumer is None:
                    return False
                self._send(ready[0], consumer, deliveries)
            heappop(ready)
        return True

    def _take_new(self, deliveries: list[Delivery]) -> None:
        """Hand out what was never handed out, in offset order."""
        fresh, waiting = self._fresh, self._ledger.waiting
        while fresh:
            if fresh[0] in waiting:  # otherwise it was finished meanwhile
                consumer = self._next_consumer(fresh[0])
                if consumer is None:
                    break
                self._send(fresh[0], consumer, deliveries)
            fresh.popleft()

    def _next_consumer(self, offset: int) -> Consumer | None:
        """Return who gets this message now; None when it has to wait."""
        if len(self._ledger.out) >= self._window or not self._ledger.fits(offset):
            return None
        if self.kind is SubscriptionType.SHARED:
            return self._consumers.next_turn(self._now)
        return self._consumers.active

    def _take_heads(self, lanes: Lanes, deliveries: list[Delivery]) -> None:
        """Hand out heads of lanes, one consumer after the other; skip what nobody takes."""
        ledger, ready, share = self._ledger, lanes.ready, self._consumers.share_max
        while unwanted := lanes.route(share):
            for offset in unwanted:
                self.skipped += self._finish_elsewhere(offset)
        while ready and len(ledger.out) < self._window:
            consumer = ready[0]
            offset = consumer.queue[0][0]
            if ledger.deliverable(offset):  # otherwise it was finished meanwhile
                if not ledger.fits(offset):
                    break
                self._send(offset, consumer, deliveries)
            lanes.taken(consumer, share)

    def _send(self, offset: int, consumer: Consumer, deliveries: list[Delivery]) -> None:
        parcel = self._ledger.hand_out(offset, consumer, self._next_number, self._now)
        self._next_number += 1
        if parcel.attempt > 1:
            self.redelivered += 1
        deliveries.append(Delivery(consumer.id, parcel.message, parcel.attempt, parcel.number))

    # --- taking back --------------------------------------------------------------------------------------------------

    def _finish(self, parcel: Parcel) -> None:
        """Finish what has just been taken back."""
        self._ledger.cursor.finish(parcel.offset)
        if self._lanes is not None:
            self._lanes.finish(parcel.offset, key_of(parcel.message))
            self._lanes.may_have_more(parcel.consumer, self._consumers.share_max)

    def _finish_elsewhere(self, offset: int) -> bool:
        """Finish what is not with a consumer; False when there is no such message."""
        message = self._ledger.remove(offset)
        if message is None:
            return False
        self._ledger.cursor.finish(offset)
        if self._lanes is not None:
            self._lanes.finish_early(offset, key_of(message))
        return True

    def _fail(self, parcel: Parcel, delay_ms: int, reason: str) -> None:
        """Decide what the failure of what has just been taken back leads to."""
        ledger, policy = self._ledger, self._policy
        parcel.failures += 1
        parcel.reason = reason or parcel.reason
        if not policy.exhausted(parcel.failures):
            ledger.keep(parcel, ledger.retry)
            delay_ms = policy.delay_ms(parcel.failures, delay_ms)
            if delay_ms > 0:
                ledger.timers.set(parcel.offset, self._now + delay_ms / 1000)
            else:
                self._offer(parcel)
        elif policy.poison is Poison.BLOCK:
            ledger.keep(parcel, ledger.blocked)
        elif policy.poison is Poison.DEAD_LETTER:
            parcel.letter_failures = 0
            ledger.keep(parcel, ledger.dead)
            ledger.letters[parcel.offset] = parcel
        else:
            self.dropped += 1
            self._finish(parcel)
        if self._lanes is not None:
            self._lanes.may_have_more(parcel.consumer, self._consumers.share_max)

    def _lose(self, consumer: Consumer, now: float) -> None:
        """Take back what a consumer holds, now that its stream is gone."""
        self._now = max(self._now, now)
        if consumer.connected:
            self._reclaim(consumer)
            self._consumers.disconnect(consumer, self._now)
            if self._lanes is not None:
                self._lanes.reroute()

    def _reclaim(self, consumer: Consumer) -> None:
        for parcel in [each for each in self._ledger.out.values() if each.consumer is consumer]:
            self._hand_on(parcel)

    def _hand_on(self, parcel: Parcel) -> None:
        """Take something from its consumer and let it be handed out again."""
        self._ledger.take_back(parcel.offset)
        self._ledger.keep(parcel, self._ledger.retry)
        self._offer(parcel)

    def _offer(self, parcel: Parcel) -> None:
        """Let something of `retry` be handed out."""
        if self._lanes is not None:
            self._lanes.offer(parcel.offset, key_of(parcel.message))
        else:
            heappush(self._ready, parcel.offset)

    def _next_timeout(self) -> float | None:
        timeout_ms, out = self._policy.ack_timeout_ms, self._ledger.out
        if not out or not timeout_ms:
            return None
        return out[next(iter(out))].since + timeout_ms / 1000
