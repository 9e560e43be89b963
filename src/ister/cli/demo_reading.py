"""Decide when something was read rightly: exactly the offsets that were due, within a time, with their own bytes."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING

from ister.cli.demo_messages import demo_message
from ister.cli.display import bars, many
from ister.cli.exits import CheckFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ister.core.message import StreamMessage
    from ister.storage.tiers import TieredReader
    from ister.wal import WalReader

SILENCE_S = 60
"""How long a step may go without a sign of life before the demo says that it hangs."""


async def read_span(
    reader: WalReader | TieredReader,
    span: range,
    take: Callable[[list[StreamMessage], int], None],
    advance: Callable[[int], None],
) -> None:
    """Read exactly these offsets, handing on what was read and where it should start."""
    at = span.start
    while at < span.stop:
        try:
            async with asyncio.timeout(SILENCE_S):
                messages = await reader.read()
        except TimeoutError:
            raise CheckFailedError(f"no message came for {SILENCE_S} seconds, where offset {at} was due") from None
        take(messages, at)
        at += len(messages)
        advance(len(messages))
    if at != span.stop:
        raise CheckFailedError(f"{many(at - span.stop, 'message')} came that nobody had stored")


class PayloadSum:
    """A checksum over the payloads of messages whose offsets have no hole."""

    def __init__(self) -> None:
        self._sum = blake2b(digest_size=8)

    @property
    def text(self) -> str:
        """The checksum so far."""
        return self._sum.hexdigest()

    def add(self, messages: Sequence[StreamMessage], start: int) -> None:
        """Take the messages that should have the offsets from `start` on."""
        if [message.offset for message in messages] != [*range(start, start + len(messages))]:
            raise CheckFailedError(f"the offsets behind {start} have a hole or are repeated")
        self._sum.update(b"".join([message.payload for message in messages]))

    def insist(self, span: range, who: str) -> None:
        """Compare with the checksum of what was stored."""
        stored = blake2b(digest_size=8)
        for number in span:
            stored.update(demo_message(number).payload)
        if stored.hexdigest() != self.text:
            raise CheckFailedError(f"{who} read other payloads than those that were stored")


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show one progress bar; gives what moves it on."""
    with bars() as progress:
        task = progress.add_task(what, total=total)
        yield lambda step: progress.advance(task, step)


def rate(count: int, seconds: float) -> str:
    """Return how fast something was, roundly."""
    return f"{round(count / max(seconds, 1e-6), -3):,.0f} a second"
