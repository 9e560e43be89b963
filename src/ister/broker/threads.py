"""Thread pools for CPU-bound work on client requests, with a bounded queue and a deadline.

A few threads only: they share the GIL with the event loop. Separate from asyncio's default executor, so that the broker's
own work never queues behind a client's.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from ister.core.errors import LimitError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class ClientThreads:
    """A thread pool; `waiting_max` calls may wait for a thread, and each has `deadline_s` in total."""

    def __init__(
        self, name: str, threads: int, *, waiting_max: int | None = None, deadline_s: float | None = None
    ) -> None:
        self._name = name
        self._pool = ThreadPoolExecutor(threads, f"ister-{name.replace(' ', '-')}")
        self._free = asyncio.Semaphore(threads)
        self._waiting = 0
        self._waiting_max = waiting_max
        self._deadline_s = deadline_s

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`; raise LimitError if the queue is full, or at the deadline.

        A thread cannot be cancelled: it counts as busy until its work has ended.
        """
        if self._waiting_max is not None and self._waiting >= self._waiting_max:
            raise LimitError(f"{self._waiting} calls wait for {self._name}, as many as may; try again later")
        try:
            async with asyncio.timeout(self._deadline_s):
                self._waiting += 1
                try:
                    await self._free.acquire()
                finally:
                    self._waiting -= 1
                job = asyncio.get_running_loop().run_in_executor(self._pool, work)
                job.add_done_callback(self._ended)
                return await asyncio.shield(job)
        except TimeoutError:
            raise LimitError(f"{self._name} took longer than {self._deadline_s:g} s; try again later") from None

    def _ended(self, job: asyncio.Future[T]) -> None:
        self._free.release()
        if not job.cancelled():
            job.exception()  # retrieved, so that asyncio does not warn after a timeout
