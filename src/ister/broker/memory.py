"""Memory that is no longer needed goes back to the system, where its C library can (glibc); elsewhere nothing happens."""

from __future__ import annotations

import ctypes
from typing import Final

LARGE: Final = 1 << 20
"""A buffer of this size or more is mapped by itself, and gone when it is freed."""
MMAP_THRESHOLD: Final = -3
"""`M_MMAP_THRESHOLD` of <malloc.h>."""


def map_large_buffers() -> None:
    """Keep large buffers out of the heap, for good.

    glibc begins so, and stops with the first large buffer that is freed: from then on those of that size come from the
    heap, where whatever small thing is made after one keeps its hole from being given back. Uploads and reads of a
    consumer far behind go through buffers of megabytes: 60 MB of holes after 100,000 messages of a kilobyte.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, LARGE)


def give_back() -> None:
    """Return free memory to the system: opening a thousand topics leaves 15 MB of holes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
