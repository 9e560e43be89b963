"""The consumers of a subscription, and their streams (open ReceiveMessages calls)."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from ister.core.retry import backoff_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.core.errors import IsterError
    from ister.core.message import StreamMessage

log = structlog.get_logger()

TAKE_OVER_S = 1.0
TAKE_OVER_MAX_S = 30.0
"""Bounds of the back-off before another stream of the same consumer replaces the present one. Clients reopen an ended stream
at once, so two processes with one name would otherwise replace each other without a pause, each time with redelivery."""
TAKE_OVER_CALM_S = 60.0
"""A stream that lasted this long resets the back-off."""
TAKE_OVERS_LOGGED = 3
"""How many in a row are logged; one or two are a client that lost its connection."""


class Stream:
    """A queue that its subscription fills within the window, and the connection empties."""

    __slots__ = ("_loop", "_ready", "ended", "failure", "opened_at", "outbox", "over")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] | None = None
        self.outbox: deque[tuple[StreamMessage, int]] = deque()
        """Messages, each with the number of its delivery, 0 on a non-reliable topic."""
        self.ended = False
        self.opened_at = self._loop.time()
        self.over = asyncio.Event()
        self.failure: IsterError | None = None

    def push(self, message: StreamMessage, number: int = 0) -> None:
        """Queue a message for the connection."""
        self.outbox.append((message, number))
        if self._ready is not None:
            self._wake()

    def end(self, failure: IsterError | None = None) -> None:
        """End the stream, with an error if there is one."""
        self.ended = True
        self.over.set()
        self.failure = failure
        self.outbox.clear()
        self._wake()

    async def wait(self) -> None:
        """Return once there is a message or the stream has ended."""
        if self.outbox or self.ended:
            return
        self._ready = self._loop.create_future()
        try:
            await self._ready
        finally:
            self._ready = None

    def _wake(self) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)


@dataclass(slots=True, eq=False)
class Consumer:
    """A consumer of a subscription, with or without an open stream."""

    id: int
    name: str
    filters: tuple[str, ...]
    left_at: float
    seen: float
    stream: Stream | None = None
    take_overs: int = 0

    async def wait_to_take_over(self, topic: str, subscription: str) -> None:
        """Return once another stream may replace the present one: it has ended, or the back-off has passed."""
        loop = asyncio.get_running_loop()
        while (stream := self.stream) is not None:
            until = stream.opened_at + backoff_s(self.take_overs + 1, TAKE_OVER_MAX_S, TAKE_OVER_S)
            if loop.time() >= until:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await stream.over.wait()
        if stream is None:
            return
        self.take_overs = self.take_overs + 1 if loop.time() - stream.opened_at < TAKE_OVER_CALM_S else 0
        if self.take_overs == TAKE_OVERS_LOGGED:
            log.warning("consumer_contended", topic=topic, subscription=subscription, consumer=self.name)

    def is_expired(self, now: float, expiry_s: float) -> bool:
        """Return True if it has no stream and sent nothing for `expiry_s`."""
        return self.stream is None and now - max(self.left_at, self.seen) > expiry_s

    def is_live(self, now: float, grace_s: float) -> bool:
        """Return True if it has a stream, or had one within the grace period."""
        return self.stream is not None or now - self.left_at < grace_s


class ConsumerSet(dict[str, Consumer]):
    """The consumers of a subscription by name, and their streams.

    `disconnected` is called with each consumer whose stream ended, unless all end at once (`end_streams`).
    """

    def __init__(self, topic: str, subscription: str, grace_s: float, disconnected: Callable[[Consumer], None]) -> None:
        super().__init__()
        self.by_id: dict[int, Consumer] = {}
        self._topic = topic
        self._subscription = subscription
        self._grace_s = grace_s
        self._disconnected = disconnected
        self._active: Consumer | None = None
        self._loop = asyncio.get_running_loop()

    def connected(self) -> int:
        """Return the number of consumers that have a stream."""
        return sum(consumer.stream is not None for consumer in self.values())

    def live(self, now: float) -> list[Consumer]:
        """Return the consumers that have a stream, or had one within the grace period."""
        return [consumer for consumer in self.values() if consumer.is_live(now, self._grace_s)]

    def expired(self, now: float, expiry_s: float) -> list[Consumer]:
        """Return the consumers without a stream that sent nothing for `expiry_s`."""
        return [consumer for consumer in self.values() if consumer.is_expired(now, expiry_s)]

    def join(self, number: int, name: str, filters: tuple[str, ...]) -> Consumer:
        """Add a consumer; the stream of one that is known already ends."""
        consumer, now = self.get(name), self._loop.time()
        if consumer is None:
            consumer = self[name] = self.by_id[number] = Consumer(number, name, filters, now, now)
        else:
            self.drop_stream(consumer)
            consumer.filters, consumer.left_at, consumer.seen = filters, now, now
        return consumer

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        self.drop_stream(consumer)
        del self[consumer.name], self.by_id[consumer.id]

    def open_stream(self, consumer: Consumer) -> Stream:
        """Return a new stream; an earlier one of the consumer ends, which does not count as a disconnect."""
        if consumer.stream is not None:
            consumer.stream.end()
        consumer.stream = Stream()
        return consumer.stream

    def drop_stream(self, consumer: Consumer) -> None:
        """End a consumer's stream, if there is one."""
        stream, consumer.stream = consumer.stream, None
        if stream is not None:
            consumer.left_at = self._loop.time()
            stream.end()
            self._disconnected(consumer)

    def end_streams(self, failure: IsterError | None) -> list[Consumer]:
        """End every stream; return the consumers that had one."""
        ended = [consumer for consumer in self.values() if consumer.stream is not None]
        for consumer in ended:
            assert consumer.stream is not None, "chosen above"
            consumer.stream.end(failure)
            consumer.stream = None
            consumer.left_at = self._loop.time()
        return ended

    def set_active(self, number: int | None) -> None:
        """Log when another consumer of a failover subscription becomes the active one."""
        active = None if number is None else self.by_id[number]
        if active is None or active is self._active:
            return
        if self._active is not None:
            log.info("consumer_promoted", topic=self._topic, subscription=self._subscription, consumer=active.name)
        self._active = active
