"""Who waits for the table: producers say what they wait for, and the pipeline is woken for it.

What is wanted is kept until it is reached, so a pipeline that comes late, or comes back, is told at once. Many waiters of
one topic are one wakeup.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Wanted(NamedTuple):
    """Someone waits for everything below `upto` of one topic and generation to be in the table."""

    topic: str
    generation: int
    upto: int


class Wakeups:
    """What is waited for, and who wants to know."""

    def __init__(self) -> None:
        self._wanted: dict[tuple[str, int], int] = {}
        self._watches: set[_Watch] = set()

    @property
    def is_watched(self) -> bool:
        """Whether anyone wants to know."""
        return bool(self._watches)

    def wake(self, topic: str, generation: int, upto: int) -> None:
        """Say that someone begins to wait for everything below `upto` to be in the table."""
        key = (topic, generation)
        if upto > self._wanted.get(key, 0):
            self._wanted[key] = upto
            for watch in self._watches:
                watch.tell(key)

    def reached(self, topic: str, generation: int, upto: int) -> None:
        """Say that the table holds everything below `upto`."""
        key = (topic, generation)
        if self._wanted.get(key, upto + 1) <= upto:
            del self._wanted[key]

    def forget(self, topic: str) -> None:
        """Forget what was waited for in a topic that is gone."""
        for key in [key for key in self._wanted if key[0] == topic]:
            del self._wanted[key]

    def end(self) -> None:
        """End every watch that there is; those who come later are not meant."""
        for watch in self._watches:
            watch.end()

    async def watch(self) -> AsyncGenerator[Wanted]:
        """Give what is waited for now and from now on; a topic whose end moves while nobody asks is given once."""
        watch = _Watch(self._wanted)
        self._watches.add(watch)
        try:
            while (key := await watch.next()) is not None:
                if key in self._wanted:
                    yield Wanted(*key, self._wanted[key])
        finally:
            self._watches.discard(watch)


class _Watch:
    """What one who watches has not been given yet: no more than there are topics."""

    def __init__(self, wanted: dict[tuple[str, int], int]) -> None:
        self._untold = dict.fromkeys(wanted)
        self._news = asyncio.Event()
        self._ended = False

    def tell(self, key: tuple[str, int]) -> None:
        self._untold[key] = None
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    async def next(self) -> tuple[str, int] | None:
        while not self._ended:
            if self._untold:
                key = next(iter(self._untold))
                del self._untold[key]
                return key
            self._news.clear()
            await self._news.wait()
        return None
