"""Threads for work that nobody waits for: one of them computes at a time, and they leave one core to the event loop.

Two that compute on the same core take it from each other, and one of them may hold Python's lock just then: the event loop
waits for a thread that does not run. For the same reason they do not run at a lower priority.
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
    """Run `work` on a thread of its own kind, while no other such work computes."""
    return await asyncio.get_running_loop().run_in_executor(_threads(), _alone, work)


@contextmanager
def waiting_for_disk() -> Iterator[None]:
    """Let other background work compute meanwhile; only for work that runs in the background."""
    _computing.release()
    try:
        yield
    finally:
        _computing.acquire()


def _alone(work: Callable[[], T]) -> T:
    with _computing:
        return work()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "ister-background", initializer=_leave_a_core)


def _leave_a_core() -> None:
    thread = threading.get_native_id()
    with suppress(OSError):  # a sandbox may forbid it; an initializer that raises would end the pool for good
        cores = sorted(os.sched_getaffinity(thread))
        if len(cores) > 1:
            os.sched_setaffinity(thread, cores[1:])
