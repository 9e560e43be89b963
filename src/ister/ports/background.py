"""Threads for work that nobody waits for: they leave one core to those that serve producers and consumers.

They do not run at a lower priority: a thread that holds Python's lock and does not get to run makes everyone wait.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache

THREADS = 2
"""One reads and checks the next object while the other puts the last one. Few, because each may keep an object's memory."""


@cache
def background() -> ThreadPoolExecutor:
    """Return the threads, which the whole process shares."""
    return ThreadPoolExecutor(THREADS, "ister-background", initializer=_leave_a_core)


def _leave_a_core() -> None:
    thread = threading.get_native_id()
    cores = sorted(os.sched_getaffinity(thread))
    if len(cores) > 1:
        os.sched_setaffinity(thread, cores[1:])
