"""A subscription of a non-reliable topic: one bounded queue a consumer; messages that do not fit are dropped."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from ister.broker.topics.consumer import ConsumerSet
from ister.core.dispatch.dispatch import SubscriptionType
from ister.core.dispatch.non_reliable import NonReliableDispatch
from ister.core.rate import TokenBucket

if TYPE_CHECKING:
    from ister.broker.topics.consumer import Consumer, Stream
    from ister.broker.topics.records import SubscriptionRecord
    from ister.core.dispatch.delivery_id import DeliveryId
    from ister.core.errors import IsterError
    from ister.core.message import StreamMessage


class NonReliableSubscription:
    """A subscription of a non-reliable topic."""

    def __init__(
        self, topic: str, name: str, record: SubscriptionRecord, *, queue: int, grace_s: float, rate: int
    ) -> None:
        self.name = name
        self.record = record
        self.consumers = ConsumerSet(topic, name, grace_s, self._disconnected)
        self.delivered = self.delivered_bytes = self.dropped = 0
        self.reliable = None
        self._loop = asyncio.get_running_loop()
        self.empty_since = self._loop.time()
        self._queue = queue
        self._dispatch = NonReliableDispatch(record.kind)
        self._rate = TokenBucket(rate, self._loop.time())
        self._delayed: deque[StreamMessage] = deque()
        self._early: deque[StreamMessage] = deque()
        """Messages between Subscribe and the opening of the stream, while no other consumer is connected."""
        self._timer: asyncio.TimerHandle | None = None

    def connected(self) -> int:
        """Return the number of consumers that have a stream."""
        return len(self._dispatch.connected)

    def is_expired(self, now: float, expiry_s: float) -> bool:
        """Return True if it had no stream, and no consumer sent anything, for `expiry_s`."""
        heard = max((consumer.seen for consumer in self.consumers.values()), default=self.empty_since)
        return not self.connected() and now - max(self.empty_since, heard) > expiry_s

    def join(self, number: int, name: str, filters: tuple[str, ...]) -> Consumer:
        """Add a consumer; the stream of one that is known already ends."""
        consumer = self.consumers.join(number, name, filters)
        self.empty_since = self._loop.time()
        return consumer

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        self.consumers.leave(consumer)

    def open_stream(self, consumer: Consumer) -> Stream:
        """Open a stream; an earlier one of the same consumer ends."""
        self.consumers.drop_stream(consumer)
        stream = self.consumers.open_stream(consumer)
        self._dispatch.connect(consumer.id, consumer.filters)
        self._update_active()
        while self._early:
            self._deliver(self._early.popleft())
        return stream

    def close_stream(self, consumer: Consumer, stream: Stream) -> None:
        """End a stream, unless another one has replaced it."""
        if consumer.stream is stream:
            self.consumers.drop_stream(consumer)

    def ack(self, offset: int, delivery: DeliveryId | None) -> None:
        """Ignore an acknowledgement: nothing is delivered again."""

    def nack(self, offset: int, delay_ms: int, reason: str, delivery: DeliveryId | None) -> None:
        """Ignore a negative acknowledgement."""

    def publish(self, message: StreamMessage) -> None:
        """Deliver a message to a consumer, or drop it if no queue has room.

        Messages above the rate wait, up to the size of a queue.
        """
        if not self._delayed and self._rate.grant(1, self._loop.time()):
            self._deliver(message)
        elif len(self._delayed) < self._queue and self._expects():
            self._delayed.append(message)
            self._release_later()
        else:
            self.dropped += 1

    def _release_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_at(self._rate.next_at(), self._release)

    def _release(self) -> None:
        self._timer = None
        for _ in range(self._rate.grant(len(self._delayed), self._loop.time())):
            self._deliver(self._delayed.popleft())
        if self._delayed:
            self._release_later()

    def _deliver(self, message: StreamMessage) -> None:
        key = message.producer_name if message.routing_key is None else message.routing_key
        chosen = self._dispatch.choose(key, self._has_room)
        if chosen is None:
            if not self.connected():
                self._defer(message)
            else:
                self.dropped += 1
            return
        stream = self.consumers.by_id[chosen].stream
        assert stream is not None, "only connected consumers are chosen"
        stream.push(message)
        self.delivered += 1
        self.delivered_bytes += len(message.payload)

    def _defer(self, message: StreamMessage) -> None:
        """Queue a message for a stream that is about to open, within the grace period of its consumer."""
        if not self._expects():
            self.dropped += len(self._early) + 1
            self._early.clear()
        elif len(self._early) < self._queue:
            self._early.append(message)
        else:
            self.dropped += 1

    def _expects(self) -> bool:
        return bool(self.connected() or self.consumers.live(self._loop.time()))

    def set_rate(self, rate: int) -> None:
        """Limit deliveries to `rate` messages a second; 0 is no limit."""
        if rate != self._rate.rate:
            self._rate = TokenBucket(rate, self._loop.time())

    def configure(self, record: SubscriptionRecord) -> None:
        """Apply another type, to which it changes only without connected consumers."""
        before, self.record = self.record, record
        if record.kind is not before.kind:
            self._dispatch = NonReliableDispatch(record.kind)

    def close(self, failure: IsterError | None = None) -> None:
        """End every stream."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._delayed.clear()
        self._early.clear()
        for consumer in self.consumers.end_streams(failure):
            self._dispatch.disconnect(consumer.id)

    def _has_room(self, number: int) -> bool:
        stream = self.consumers.by_id[number].stream
        return stream is not None and len(stream.outbox) < self._queue

    def _disconnected(self, consumer: Consumer) -> None:
        self.empty_since = self._loop.time()
        self._dispatch.disconnect(consumer.id)
        self._update_active()

    def _update_active(self) -> None:
        if self.record.kind is SubscriptionType.FAILOVER:
            self.consumers.set_active(next(iter(self._dispatch.connected), None))
