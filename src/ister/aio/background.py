"""Background threads: one of them computes at a time, and they leave one core to the event loop.

Two computing threads on one core preempt each other, perhaps while one holds the GIL: the event loop would wait for a thread
that does not run. For the same reason they do not run at a lower priority.
"""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    T = TypeVar("T")

THREADS = 2
"""One computes while the other waits for the disk. Few, because each may keep an object's memory."""

_computing = threading.Lock()


async def in_background(work: Callable[[], T]) -> T:
    """Run `work` on a background thread, while no other background work computes."""
    return await asyncio.get_running_loop().run_in_executor(_threads(), _exclusively, work)


@contextmanager
def waiting_for_disk() -> Iterator[None]:
    """Let other background work compute meanwhile; only for callers in the background."""
    _computing.release()
    try:
        yield
    finally:
        _computing.acquire()


def mark_retrieved(work: asyncio.Future[T]) -> asyncio.Future[T]:
    """Return the same future; asyncio does not log its exception if nobody awaits it."""
    work.add_done_callback(lambda done: done.cancelled() or done.exception())
    return work


def _exclusively(work: Callable[[], T]) -> T:
    with _computing:
        return work()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "ister-background", initializer=_leave_one_core)


def _leave_one_core() -> None:
    thread = threading.get_native_id()
    with suppress(OSError):  # a sandbox may forbid it; an initializer that raises would break the pool
        cores = sorted(os.sched_getaffinity(thread))
        if len(cores) > 1:
            os.sched_setaffinity(thread, cores[1:])
