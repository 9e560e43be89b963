"""Delivery state machine of a reliable subscription. Sans-I/O, without a clock.

Events go in (a consumer connected, messages were read, one was acknowledged, time passed), deliveries come out of `take`.
A message between `cursor` and `next_offset` is in exactly one of these states:

    fed ──▶ waiting ──▶ out ──▶ finished              out: with a consumer, counted by the window
                        │ ▲
      nack, timeout, or ▼ │ due, and there is a slot
      consumer lost    retry ◀──── policy changed ──── blocked, dead: failed too often

What the specification leaves open is decided so that nothing is lost or skipped (I9):

- The ack timeout starts when the consumer's connection has taken the message (`sent`). A connection that does not take it
  is no failure of the message; a shared subscription delivers it to another consumer after the ack timeout.
- The window counts what is with consumers. A message that waits for redelivery takes no slot; `room` bounds those.
- Only failures (a nack, a timeout) exhaust a message. The `attempt` of a delivery counts losses of a consumer, too.
- Each delivery has a number of its own. `wants`, `sent` and the results of dead letters refer to one delivery, not to an
  earlier one of the same message.
- A message that this process has not delivered may be acknowledged: it was delivered before a restart.
- KeyShared: a key that only disconnected consumers accept waits until they leave. Only what no registered consumer accepts
  is skipped. A key does not advance before its dead letter is stored.
- A blocked message is delivered again when the policy changes; the new policy applies when it fails again.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from ister.core.dispatch.consumers import Consumer, Consumers
from ister.core.dispatch.failure import Backoff, FailurePolicy, Poison
from ister.core.dispatch.key_shared import KeyQueues, key_of
from ister.core.dispatch.ledger import WAITING_MAX, DeliveryState, Ledger
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
    """Send this message to this consumer; `attempt` counts from 1, `number` is unique to this delivery."""

    consumer: int
    message: StreamMessage
    attempt: int
    number: int


class DeadLetter(NamedTuple):
    """Store a copy of this message in the dead-letter topic, and report the result."""

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
        self.redelivered = self.dropped = self.skipped = 0  # counters
        self._window = window
        self._policy = policy
        self._now = 0.0
        self._next_number = 1
        self._valid_from = 1  # deliveries with a lower number precede a reset
        self._consumers = Consumers(window, grace_s)
        self._begin(kind, cursor, finished)

    def _begin(self, kind: SubscriptionType, cursor: int, finished: Sequence[tuple[int, int]]) -> None:
        self.kind = kind
        self._ledger = Ledger(cursor, finished)
        self._key_queues = KeyQueues() if kind is SubscriptionType.KEY_SHARED else None
        self._ready: list[int] = []  # not KeyShared: a heap of the retries that are due
        self._fresh: deque[int] = deque()  # not KeyShared: waiting for the first delivery, or finished meanwhile

    def restart(
        self, kind: SubscriptionType, cursor: int, now: float, *, finished: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Drop all state of messages and restart at a cursor, perhaps as another type; consumers and counters stay."""
        self._now = max(self._now, now)
        self._begin(kind, cursor, finished)
        self._valid_from = self._next_number
        for consumer in self._consumers.registered.values():
            consumer.reset(self._now)
            if self._key_queues is not None:
                self._key_queues.ring.add(consumer)

    # --- consumers ----------------------------------------------------------------------------------------------------

    def join(self, consumer: int, filters: Sequence[str], now: float) -> None:
        """Register a consumer. One that is registered already counts as disconnected until it connects again."""
        known = self._consumers.registered.get(consumer)
        self._now = max(self._now, now)
        if known is not None:
            self._lose(known, now)
        joined = self._consumers.join(consumer, filters, now)
        if self._key_queues is not None:
            if known is None:
                self._key_queues.ring.add(joined)
            self._key_queues.reroute()

    def connect(self, consumer: int, now: float) -> None:
        """Start delivering to a registered consumer. A second stream replaces the first."""
        known = self._consumers.registered[consumer]
        self._now = max(self._now, now)
        if known.connected:
            self._reclaim(known)
        elif self.kind is not SubscriptionType.SHARED:
            self._consumers.requeue_if_late(known, self._now)
        self._consumers.connect(known)
        if self._key_queues is not None:
            self._key_queues.reroute()

    def disconnect(self, consumer: int, now: float) -> None:
        """Requeue what a consumer has not acknowledged. This is not a failure of the messages."""
        known = self._consumers.registered.get(consumer)
        if known is not None:
            self._lose(known, now)

    def leave(self, consumer: int, now: float) -> None:
        """Remove a consumer; no message waits for it any more."""
        known = self._consumers.registered.get(consumer)
        if known is None:
            return
        self._lose(known, now)
        self._consumers.leave(known)
        if self._key_queues is not None:
            self._key_queues.ring.remove(known)
            self._key_queues.reroute()

    # --- messages -----------------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many more messages to read now; 0 also while none could be delivered.

        Except for KeyShared it is 0 until half of the read-ahead is delivered, so that messages are read in batches.
        """
        if not self._consumers.connected or self._ledger.full:
            return 0
        waiting = len(self._ledger.waiting)
        if self._key_queues is not None:
            return max(0, WAITING_MAX - waiting)
        ahead = max(self._window, READ_AHEAD_MIN)
        return 0 if self._ledger.blocked or waiting * 2 > ahead else ahead - waiting

    def feed(self, messages: Sequence[StreamMessage], now: float) -> None:
        """Add messages that were read. Raise ValueError, and add none, if an offset is not the next one."""
        self._now = max(self._now, now)
        offsets = self._ledger.feed(messages)
        if self._key_queues is None:
            self._fresh.extend(offsets)
        else:
            for offset in offsets:
                self._key_queues.add(offset, key_of(self._ledger.waiting[offset]))

    def skip_missing(self, stop: int, now: float) -> None:
        """Finish [next_offset, stop), which is in no tier any more and which the reader skips."""
        self._now = max(self._now, now)
        self._ledger.skip_missing(stop)

    def skip_to(self, offset: int, now: float) -> None:
        """Drop everything below `offset`, delivered or not: retention has deleted it."""
        self._now = max(self._now, now)
        self._ledger.skip_to(offset)
        if self._key_queues is not None:
            self._key_queues.skip_to(offset)

    def wants(self, offset: int, number: int) -> bool:
        """Return True if a delivery is still to be sent; False if it was finished or delivered again meanwhile."""
        state = self._ledger.out.get(offset)
        return state is not None and state.number == number

    def sent(self, consumer: int, offset: int, number: int, now: float) -> bool:
        """Start the ack timeout of a delivery that the connection has taken; True: a stalled consumer recovered, so `take`."""
        self._now = max(self._now, now)
        state = self._ledger.out.get(offset)
        if state is not None and state.number == number:
            state.sent = True
            self._ledger.restart_timeout(state, self._now)
        known = self._consumers.registered.get(consumer)
        if known is None or not known.stalled:
            return False
        known.stalled = False
        return True

    def was_delivered(self, offset: int) -> bool:
        """Return True if an unfinished message was ever delivered by this process."""
        return self._ledger.cursor.at <= offset < self._ledger.next_offset and offset not in self._ledger.waiting

    def ack(self, offset: int, now: float) -> bool:
        """Finish a message in any state; return False if it is unknown or finished already."""
        self._now = max(self._now, now)
        state = self._ledger.withdraw(offset)
        if state is None:
            return self._finish_elsewhere(offset)
        state.consumer.since = self._now
        self._finish(state)
        return True

    def nack(self, offset: int, delay_ms: int, reason: str, now: float) -> bool:
        """Schedule redelivery of a message; return False if it is not with a consumer."""
        self._now = max(self._now, now)
        state = self._ledger.withdraw(offset)
        if state is None:
            return False
        state.consumer.since = self._now
        self._fail(state, delay_ms, reason)
        return True

    def dead_letter_stored(self, offset: int, now: float, number: int | None = None) -> None:
        """Finish a message whose copy is stored, even if the policy has changed; not if a reset replays it."""
        if number is None or number >= self._valid_from:
            self.ack(offset, now)

    def dead_letter_failed(self, offset: int, now: float, number: int | None = None) -> None:
        """Retry storing the copy with back-off; not if a later delivery made the message a dead letter again."""
        self._now = max(self._now, now)
        ledger = self._ledger
        dead = ledger.dead.get(offset)
        if dead is None or (number is not None and dead.number != number):
            return
        if offset not in ledger.dead_letters and offset not in ledger.timers:
            dead.store_failures += 1
            delay_s = backoff_s(dead.store_failures, DEAD_LETTER_RETRY_MAX_S, DEAD_LETTER_RETRY_S)
            ledger.timers.set(offset, self._now + delay_s)

    def tick(self, now: float) -> None:
        """Process what is due: ack timeouts, redeliveries, retries of dead letters."""
        self._now = max(self._now, now)
        ledger = self._ledger
        while (at := self._next_timeout()) is not None and at <= self._now:
            state = next(iter(ledger.out.values()))
            if state.sent:
                ledger.withdraw(state.offset)
                self._fail(state, 0, "ack timeout")
            elif self.kind is SubscriptionType.SHARED and len(self._consumers.connected) > 1:
                state.consumer.stalled = True
                self._requeue(state)
            else:  # no other consumer may have it
                ledger.restart_timeout(state, self._now)
        for offset in ledger.timers.expired(self._now):
            retry = ledger.retry.get(offset)
            if retry is not None:
                self._offer(retry)
            else:
                ledger.dead_letters[offset] = ledger.dead[offset]

    def configure(self, window: int, now: float) -> None:
        """Change the window; a smaller window applies from the next delivery on."""
        if window < 1:
            raise ValueError(f"a window of {window}")
        self._now = max(self._now, now)
        self._window = window
        self._consumers.set_window(window)
        if self._key_queues is not None:
            self._key_queues.reroute()

    def set_policy(self, policy: FailurePolicy, now: float) -> None:
        """Change the policy. A new timeout applies to what is out, a new delay from the next failure on.

        Blocked messages are delivered again; so are dead letters that are not stored, if the new policy has none.
        """
        self._now = max(self._now, now)
        if policy == self._policy:
            return
        self._policy = policy
        ledger = self._ledger
        for state in ledger.release(dead=policy.poison is not Poison.DEAD_LETTER):
            self._offer(state)
        for offset in [offset for offset in ledger.dead if offset in ledger.timers]:
            ledger.timers.cancel(offset)
            ledger.dead_letters[offset] = ledger.dead[offset]
            ledger.dead[offset].store_failures = 0

    # --- results -----------------------------------------------------------------------------------------------------

    def take(self) -> list[Delivery]:
        """Return the deliveries that are possible as of the last event's time."""
        consumers = self._consumers
        consumers.wait_ends = None
        deliveries: list[Delivery] = []
        if not consumers.connected:
            return deliveries
        if self._key_queues is not None:
            self._take_heads(self._key_queues, deliveries)
        elif self._take_due(deliveries) and not self._ledger.blocked:
            self._take_new(deliveries)
        return deliveries

    def take_dead_letters(self) -> list[DeadLetter]:
        """Return what to store in the dead-letter topic; report each by `dead_letter_stored` or `_failed`."""
        letters = [
            DeadLetter(each.message, each.attempt, each.reason, each.number)
            for each in self._ledger.dead_letters.values()
        ]
        self._ledger.dead_letters.clear()
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
        for at in (self._ledger.timers.next, self._consumers.wait_ends):
            if at is not None and (due is None or at < due):
                due = at
        return due

    @property
    def unacked(self) -> int:
        """The number of messages with consumers, which the window bounds."""
        return len(self._ledger.out)

    @property
    def waiting(self) -> int:
        """The number of messages that were read and are with no consumer, including retries, blocked and dead ones."""
        return len(self._ledger.waiting) + self._ledger.pending

    @property
    def active(self) -> int | None:
        """The active consumer of an exclusive or failover subscription."""
        active = self._consumers.active
        shared = self.kind in {SubscriptionType.SHARED, SubscriptionType.KEY_SHARED}
        return None if active is None or shared else active.id

    def held_by(self, consumer: int) -> int:
        """Return the number of messages with a consumer."""
        known = self._consumers.registered.get(consumer)
        return 0 if known is None else known.holds

    @property
    def blocked(self) -> bool:
        """True if a message that failed too often blocks the subscription or its key."""
        return bool(self._ledger.blocked)

    # --- delivering ---------------------------------------------------------------------------------------------------

    def _take_due(self, deliveries: list[Delivery]) -> bool:
        """Deliver retries that are due, lowest offset first; return True if none is left."""
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
        """Deliver new messages in offset order."""
        fresh, waiting = self._fresh, self._ledger.waiting
        while fresh:
            if fresh[0] in waiting:  # otherwise it was finished meanwhile
                consumer = self._next_consumer(fresh[0])
                if consumer is None:
                    break
                self._send(fresh[0], consumer, deliveries)
            fresh.popleft()

    def _next_consumer(self, offset: int) -> Consumer | None:
        """Return the consumer of this message, None if it has to wait."""
        if len(self._ledger.out) >= self._window or not self._ledger.fits(offset):
            return None
        if self.kind is SubscriptionType.SHARED:
            return self._consumers.next_round_robin(self._now)
        return self._consumers.active

    def _take_heads(self, key_queues: KeyQueues, deliveries: list[Delivery]) -> None:
        """Deliver the heads of key queues, consumers in turn; skip keys that no consumer accepts."""
        ledger, ready, share = self._ledger, key_queues.ready, self._consumers.share_max
        while unwanted := key_queues.route(share):
            for offset in unwanted:
                self.skipped += self._finish_elsewhere(offset)
        while ready and len(ledger.out) < self._window:
            consumer = ready[0]
            offset = consumer.queue[0][0]
            if ledger.deliverable(offset):  # otherwise it was finished meanwhile
                if not ledger.fits(offset):
                    break
                self._send(offset, consumer, deliveries)
            key_queues.taken(consumer, share)

    def _send(self, offset: int, consumer: Consumer, deliveries: list[Delivery]) -> None:
        state = self._ledger.deliver(offset, consumer, self._next_number, self._now)
        self._next_number += 1
        if state.attempt > 1:
            self.redelivered += 1
        deliveries.append(Delivery(consumer.id, state.message, state.attempt, state.number))

    # --- withdrawing --------------------------------------------------------------------------------------------------

    def _finish(self, state: DeliveryState) -> None:
        """Finish a message that was just withdrawn."""
        self._ledger.cursor.finish(state.offset)
        if self._key_queues is not None:
            self._key_queues.finish(state.offset, key_of(state.message))
            self._key_queues.mark_ready(state.consumer, self._consumers.share_max)

    def _finish_elsewhere(self, offset: int) -> bool:
        """Finish a message that is not with a consumer; return False if there is none."""
        message = self._ledger.remove(offset)
        if message is None:
            return False
        self._ledger.cursor.finish(offset)
        if self._key_queues is not None:
            self._key_queues.finish_early(offset, key_of(message))
        return True

    def _fail(self, state: DeliveryState, delay_ms: int, reason: str) -> None:
        """Apply the failure policy to a message that was just withdrawn."""
        ledger, policy = self._ledger, self._policy
        state.failures += 1
        state.reason = reason or state.reason
        if not policy.exhausted(state.failures):
            ledger.put(state, ledger.retry)
            delay_ms = policy.delay_ms(state.failures, delay_ms)
            if delay_ms > 0:
                ledger.timers.set(state.offset, self._now + delay_ms / 1000)
            else:
                self._offer(state)
        elif policy.poison is Poison.BLOCK:
            ledger.put(state, ledger.blocked)
        elif policy.poison is Poison.DEAD_LETTER:
            state.store_failures = 0
            ledger.put(state, ledger.dead)
            ledger.dead_letters[state.offset] = state
        else:
            self.dropped += 1
            self._finish(state)
        if self._key_queues is not None:
            self._key_queues.mark_ready(state.consumer, self._consumers.share_max)

    def _lose(self, consumer: Consumer, now: float) -> None:
        """Requeue the messages of a consumer whose stream ended."""
        self._now = max(self._now, now)
        if consumer.connected:
            self._reclaim(consumer)
            self._consumers.disconnect(consumer, self._now)
            if self._key_queues is not None:
                self._key_queues.reroute()

    def _reclaim(self, consumer: Consumer) -> None:
        for state in [each for each in self._ledger.out.values() if each.consumer is consumer]:
            self._requeue(state)

    def _requeue(self, state: DeliveryState) -> None:
        """Withdraw a message from its consumer and deliver it again."""
        self._ledger.withdraw(state.offset)
        self._ledger.put(state, self._ledger.retry)
        self._offer(state)

    def _offer(self, state: DeliveryState) -> None:
        """Make a message of `retry` deliverable."""
        if self._key_queues is not None:
            self._key_queues.offer(state.offset, key_of(state.message))
        else:
            heappush(self._ready, state.offset)

    def _next_timeout(self) -> float | None:
        timeout_ms, out = self._policy.ack_timeout_ms, self._ledger.out
        if not out or not timeout_ms:
            return None
        return out[next(iter(out))].since + timeout_ms / 1000
