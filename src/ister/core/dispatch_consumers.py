"""Decide whose turn it is: the consumers of a subscription, in the order in which they joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

QUIET_S = 0.25


class Consumer:
    """One registered consumer.

    `place` orders by joining. `since` is when it last answered, or was last given something while it had nothing:
    how long it has kept what it holds without a word. `stalled`: its connection took nothing for so long that others got
    its messages. `queue` and `queued` belong to `Lanes`.
    """

    __slots__ = ("away_since", "connected", "filters", "holds", "id", "place", "queue", "queued", "since", "stalled")

    def __init__(self, number: int, place: int, now: float) -> None:
        self.id = number
        self.place = place
        self.filters: tuple[str, ...] = ()
        self.connected = False
        self.away_since = now
        self.holds = 0
        self.since = now
        self.stalled = False
        self.queue: list[tuple[int, str]] = []
        self.queued = False

    def reset(self, now: float) -> None:
        """Hold nothing; place and connection stay."""
        self.holds = 0
        self.since = now
        self.stalled = False
        self.queue.clear()
        self.queued = False


class Consumers:
    """Who is registered, who is connected, who is active, and who is next."""

    def __init__(self, window: int, grace_s: float) -> None:
        self.registered: dict[int, Consumer] = {}
        self.connected: list[Consumer] = []  # by place
        self.active: Consumer | None = None
        self.patience_ends: float | None = None
        self.share = self.share_max = window
        self._window = window
        self._grace_s = grace_s
        self._places = 0
        self._next = 0  # index into connected
        self._served = -1  # the place that was served last

    def join(self, number: int, filters: Sequence[str], now: float) -> Consumer:
        """Register a consumer, or give a registered one other filters."""
        consumer = self.registered.get(number)
        if consumer is None:
            consumer = self.registered[number] = Consumer(number, self._new_place(), now)
        consumer.filters = tuple(filters)
        return consumer

    def connect(self, consumer: Consumer) -> None:
        """Let a consumer take part."""
        consumer.connected = True
        consumer.stalled = False
        self._count_again()

    def disconnect(self, consumer: Consumer, now: float) -> None:
        """Let it take part no more. If it was the active one, the earliest joined of the others is, at once."""
        consumer.connected = False
        consumer.away_since = now
        self._count_again()

    def leave(self, consumer: Consumer) -> None:
        """Forget a consumer that is not connected."""
        del self.registered[consumer.id]

    def queue_behind_if_late(self, consumer: Consumer, now: float) -> None:
        """Give a returning consumer the last place when it was away longer than its grace."""
        if now - consumer.away_since > self._grace_s:
            consumer.place = self._new_place()

    def set_window(self, window: int) -> None:
        """Compute the shares anew."""
        self._window = window
        self._count_again()

    def next_turn(self, now: float) -> Consumer | None:
        """Return whose turn it is, exactly round robin, and move on; None when a message has to wait.

        A consumer that is stalled, or holds its share and has been quiet for `QUIET_S`, is passed over. One that holds
        its share and was not quiet that long is waited for, until `patience_ends`: given more, it would soon have every
        slot of the window, and the others none.
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
                    self.patience_ends = consumer.since + QUIET_S
                    return None
            self._next = at
            self._served = consumer.place
            return consumer
        return None

    def _new_place(self) -> int:
        self._places += 1
        return self._places

    def _count_again(self) -> None:
        """Bring everything that depends on who is connected up to date."""
        self.connected = sorted((c for c in self.registered.values() if c.connected), key=lambda c: c.place)
        if self.active is None or not self.active.connected:
            self.active = self.connected[0] if self.connected else None
        count = max(1, len(self.connected))
        self.share = max(1, self._window // count)
        self.share_max = -(-self._window // count)
        self._next = next((n for n, c in enumerate(self.connected) if c.place > self._served), 0)
