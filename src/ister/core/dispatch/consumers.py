"""The consumers of a dispatch in join order: the active one of failover, the round robin of shared subscriptions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

QUIET_S = 0.25


@dataclass(slots=True, eq=False)
class Consumer:
    """One registered consumer.

    `place` is its position in join order. `since` is when it last acknowledged, or got a message while it held none.
    `stalled`: its connection took nothing for an ack timeout, so others got its messages. `queue` and `queued` belong to
    `KeyQueues`.
    """

    id: int
    place: int
    since: float
    away_since: float
    filters: tuple[str, ...] = ()
    connected: bool = False
    holds: int = 0
    stalled: bool = False
    queue: list[tuple[int, str]] = field(default_factory=list)
    queued: bool = False

    def reset(self, now: float) -> None:
        """Drop the state of its messages; place and connection stay."""
        self.holds = 0
        self.since = now
        self.stalled = False
        self.queue.clear()
        self.queued = False


class Consumers:
    """The registered, connected and active consumers, and the next of the round robin."""

    def __init__(self, window: int, grace_s: float) -> None:
        self.registered: dict[int, Consumer] = {}
        self.connected: list[Consumer] = []  # by place
        self.active: Consumer | None = None
        self.wait_ends: float | None = None
        self.share = self.share_max = window
        self._window = window
        self._grace_s = grace_s
        self._places = 0
        self._next = 0  # index into connected
        self._served = -1  # the place that got the last message

    def join(self, number: int, filters: Sequence[str], now: float) -> Consumer:
        """Register a consumer, or change the filters of a registered one."""
        consumer = self.registered.get(number)
        if consumer is None:
            consumer = self.registered[number] = Consumer(number, self._new_place(), now, now)
        consumer.filters = tuple(filters)
        return consumer

    def connect(self, consumer: Consumer) -> None:
        """Mark a consumer as connected."""
        consumer.connected = True
        consumer.stalled = False
        self._recompute()

    def disconnect(self, consumer: Consumer, now: float) -> None:
        """Mark a consumer as disconnected; if it was active, the earliest joined of the others becomes active."""
        consumer.connected = False
        consumer.away_since = now
        self._recompute()

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer that is not connected."""
        del self.registered[consumer.id]

    def requeue_if_late(self, consumer: Consumer, now: float) -> None:
        """Move a reconnecting consumer to the last place if it was away longer than the grace period."""
        if now - consumer.away_since > self._grace_s:
            consumer.place = self._new_place()

    def set_window(self, window: int) -> None:
        """Change the window, and with it the shares."""
        self._window = window
        self._recompute()

    def next_round_robin(self, now: float) -> Consumer | None:
        """Return the next consumer in exact round robin; None if the message has to wait.

        A consumer that is stalled, or holds its share and has not acknowledged for `QUIET_S`, is skipped. One that holds
        its share and acknowledged recently is waited for until `wait_ends`: with more it would soon hold the whole window.
        """
        connected = self.connected
        at = self._next
        for _ in connected:
            consumer = connected[at]
            at += 1
            if at == len(connected):
                at = 0
            if consumer.stalled:
                continue
            if consumer.holds >= self.share:
                if now >= consumer.since + QUIET_S:
                    continue
                if consumer.holds >= self.share_max:
                    self.wait_ends = consumer.since + QUIET_S
                    return None
            self._next = at
            self._served = consumer.place
            return consumer
        return None

    def _new_place(self) -> int:
        self._places += 1
        return self._places

    def _recompute(self) -> None:
        """Recompute what depends on which consumers are connected."""
        self.connected = sorted((c for c in self.registered.values() if c.connected), key=lambda c: c.place)
        if self.active is None or not self.active.connected:
            self.active = self.connected[0] if self.connected else None
        count = max(1, len(self.connected))
        self.share = max(1, self._window // count)
        self.share_max = -(-self._window // count)
        self._next = next((n for n, c in enumerate(self.connected) if c.place > self._served), 0)
