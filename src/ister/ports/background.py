"""Threads for work that nobody waits for: they step back behind those that serve producers and consumers.

Work given to them must hold Python's lock only for moments: a thread that has stepped back and holds it would make
everyone wait.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache

THREADS = 2
"""One reads and checks the next object while the other puts the last one. Few, because each may keep an object's memory."""
NICENESS = 10


@cache
def background() -> ThreadPoolExecutor:
    """Return the threads, which the whole process shares."""
    return ThreadPoolExecutor(THREADS, "ister-background", initializer=_step_back)


def _step_back() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
