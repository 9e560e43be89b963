"""One open ReceiveMessages: what was given to a consumer and not yet taken by its connection."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from ister.core.retry import backoff_s

if TYPE_CHECKING:
    from ister.core.errors import IsterError
    from ister.core.message import StreamMessage

log = structlog.get_logger()

TAKE_OVER_S = 1.0
TAKE_OVER_MAX_S = 30.0
"""How long a stream is left to its connection before another one of the same consumer may take its place: twice as long each
time. Clients open their stream again at once when it ends, so two processes with one name would otherwise take it from each
other without a pause, and each time what was delivered is delivered again."""
TAKE_OVER_CALM_S = 60.0
"""A stream that lasted so long was nobody's rival."""
TAKE_OVERS_TOLD = 3
"""After how many in a row it is told: one or two are a client whose connection was lost unseen."""


class Stream:
    """A queue that its subscription fills, within its window, and that the connection empties."""

    __slots__ = ("_loop", "_news", "ended", "failure", "opened_at", "outbox", "over")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Future[None] | None = None
        self.outbox: deque[tuple[StreamMessage, int]] = deque()
        """Messages, each with the number of its hand-out, 0 on a topic that is not reliable."""
        self.ended = False
        self.opened_at = self._loop.time()
        self.over = asyncio.Event()
        self.failure: IsterError | None = None

    def push(self, message: StreamMessage, number: int = 0) -> None:
        """Give a message to the connection."""
        self.outbox.append((message, number))
        if self._news is not None:
            self._wake()

    def end(self, failure: IsterError | None = None) -> None:
        """Say that nothing more comes, and why, if it is an error."""
        self.ended = True
        self.over.set()
        self.failure = failure
        self.outbox.clear()
        self._wake()

    async def wait(self) -> None:
        """Return once there is a message, or the end."""
        if self.outbox or self.ended:
            return
        self._news = self._loop.create_future()
        try:
            await self._news
        finally:
            self._news = None

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


class Consumer:
    """A consumer that is known to its subscription, with or without an open stream."""

    __slots__ = ("filters", "id", "left_at", "name", "seen", "stream", "take_overs")

    def __init__(self, number: int, name: str, filters: tuple[str, ...], now: float) -> None:
        self.id = number
        self.name = name
        self.filters = filters
        self.stream: Stream | None = None
        self.left_at = self.seen = now
        self.take_overs = 0

    async def wait_to_take_over(self, topic: str, subscription: str) -> None:
        """Return once another stream may take the place of the present one: it has ended, or had its time."""
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
        if self.take_overs == TAKE_OVERS_TOLD:
            log.warning("consumer_contended", topic=topic, subscription=subscription, consumer=self.name)

    def renew(self, filters: tuple[str, ...], now: float) -> None:
        """Let it begin anew: it subscribed again, and has its grace to open a stream."""
        self.filters = filters
        self.left_at = self.seen = now

    def is_forgotten(self, now: float, expiry_s: float) -> bool:
        """Tell whether it has no stream, and nothing was heard of it for so long."""
        return self.stream is None and now - max(self.left_at, self.seen) > expiry_s

    def is_live(self, now: float, grace_s: float) -> bool:
        """Tell whether it has a stream, or had one a moment ago."""
        return self.stream is not None or now - self.left_at < grace_s


def tell_promoted(topic: str, subscription: str, before: Consumer | None, now: Consumer | None) -> Consumer | None:
    """Say when another consumer of a failover subscription takes over; returns who leads, or led last."""
    if now is None or now is before:
        return before
    if before is not None:
        log.info("consumer_promoted", topic=topic, subscription=subscription, consumer=now.name)
    return now
