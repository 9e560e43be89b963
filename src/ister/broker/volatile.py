"""Drive a subscription of a non-reliable topic: a queue for each consumer, and what does not fit is dropped."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from ister.broker.stream import Consumer, Stream, tell_promoted
from ister.core.dispatch import SubscriptionType
from ister.core.rate import TokenBucket
from ister.core.volatile import VolatileDispatch

if TYPE_CHECKING:
    from ister.broker.records import SubscriptionRecord
    from ister.core.errors import IsterError
    from ister.core.message import StreamMessage


class VolatileSubscription:
    """A subscription of a non-reliable topic."""

    def __init__(
        self, topic: str, name: str, record: SubscriptionRecord, *, queue: int, grace_s: float, rate: int
    ) -> None:
        self.name = name
        self._topic = topic
        self.record = record
        self.consumers: dict[str, Consumer] = {}
        self.delivered = self.delivered_bytes = self.dropped = 0
        self.reliable = None
        self._loop = asyncio.get_running_loop()
        self.empty_since = self._loop.time()
        self._queue = queue
        self._grace_s = grace_s
        self._by_id: dict[int, Consumer] = {}
        self._leading: Consumer | None = None
        self._dispatch = VolatileDispatch(record.kind)
        self._rate = TokenBucket(rate, self._loop.time())
        self._delayed: deque[StreamMessage] = deque()
        self._early: deque[StreamMessage] = deque()
        """What came between Subscribe and the stream that it announces, while nobody else was there to have it."""
        self._timer: asyncio.TimerHandle | None = None

    def connected(self) -> int:
        """Return how many consumers have a stream."""
        return len(self._dispatch.connected)

    def live(self, now: float) -> list[Consumer]:
        """Return the consumers that have a stream, or had one a moment ago."""
        return [consumer for consumer in self.consumers.values() if consumer.is_live(now, self._grace_s)]

    def is_forgotten(self, now: float, expiry_s: float) -> bool:
        """Tell whether nobody has listened, or been heard of, for so long."""
        heard = max((consumer.seen for consumer in self.consumers.values()), default=self.empty_since)
        return not self.connected() and now - max(self.empty_since, heard) > expiry_s

    def join(self, number: int, name: str, filters: tuple[str, ...]) -> Consumer:
        """Make a consumer known; one that is known already takes over from itself."""
        consumer = self.consumers.get(name)
        if consumer is None:
            consumer = self.consumers[name] = self._by_id[number] = Consumer(number, name, filters, self._loop.time())
        else:
            self._drop_stream(consumer)
            consumer.renew(filters, self._loop.time())
        self.empty_since = self._loop.time()
        return consumer

    def leave(self, consumer: Consumer) -> None:
        """Forget a consumer."""
        self._drop_stream(consumer)
        del self.consumers[consumer.name]
        del self._by_id[consumer.id]

    def open_stream(self, consumer: Consumer) -> Stream:
        """Begin to deliver; an earlier stream of the same consumer ends."""
        self._drop_stream(consumer)
        consumer.stream = Stream()
        self._dispatch.connect(consumer.id, consumer.filters)
        self._tell_promoted()
        while self._early:
            self._deliver(self._early.popleft())
        return consumer.stream

    def close_stream(self, consumer: Consumer, stream: Stream) -> None:
        """End a stream, unless another one has taken its place already."""
        if consumer.stream is stream:
            self._drop_stream(consumer)

    def publish(self, message: StreamMessage) -> None:
        """Hand a message to whoever is to have it; drop it when he cannot take it.

        What comes faster than the rate waits, as long as there is room for it.
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
                self._keep(message)
            else:
                self.dropped += 1
            return
        stream = self._by_id[chosen].stream
        assert stream is not None, "only connected consumers are chosen"
        stream.push(message)
        self.delivered += 1
        self.delivered_bytes += len(message.payload)

    def _keep(self, message: StreamMessage) -> None:
        """Hold a message for the stream that is about to open; nobody is waited for longer than his grace."""
        if not self._expects():
            self.dropped += len(self._early) + 1
            self._early.clear()
        elif len(self._early) < self._queue:
            self._early.append(message)
        else:
            self.dropped += 1

    def _expects(self) -> bool:
        return bool(self.connected() or self.live(self._loop.time()))

    def set_rate(self, rate: int) -> None:
        """Deliver at most so many messages a second; 0: as many as are taken."""
        if rate != self._rate.rate:
            self._rate = TokenBucket(rate, self._loop.time())

    def change_type(self, record: SubscriptionRecord) -> None:
        """Go on as another type; nobody is connected."""
        self.record = record
        self._dispatch = VolatileDispatch(record.kind)

    def close(self, failure: IsterError | None = None) -> None:
        """End every stream."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._delayed.clear()
        self._early.clear()
        for consumer in self.consumers.values():
            if consumer.stream is not None:
                consumer.stream.end(failure)
                consumer.stream = None
                consumer.left_at = self._loop.time()
                self._dispatch.disconnect(consumer.id)

    def _has_room(self, number: int) -> bool:
        stream = self._by_id[number].stream
        return stream is not None and len(stream.outbox) < self._queue

    def _drop_stream(self, consumer: Consumer) -> None:
        stream, consumer.stream = consumer.stream, None
        if stream is None:
            return
        consumer.left_at = self.empty_since = self._loop.time()
        stream.end()
        self._dispatch.disconnect(consumer.id)
        self._tell_promoted()

    def _tell_promoted(self) -> None:
        if self.record.kind is SubscriptionType.FAILOVER:
            connected = self._dispatch.connected
            now = self._by_id[connected[0]] if connected else None
            self._leading = tell_promoted(self._topic, self.name, self._leading, now)
