"""Retry policy: which errors are transient, and how long to wait before the next attempt. Pure."""

from __future__ import annotations

import errno

from ister.core.errors import BusyError, PoisonedError, StoreRefusedError

TRANSIENT_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.ENOBUFS})
"""The process or the machine is out of resources for the moment; the file is not damaged."""


def is_transient(error: BaseException) -> bool:
    """Return True if the same operation may succeed later without a restart.

    A refused credential counts: it may be renewed while the broker runs. A poisoned log does not: its file must be opened again.
    """
    if isinstance(error, PoisonedError):
        return False
    return isinstance(error, (BusyError, StoreRefusedError, MemoryError)) or (
        isinstance(error, OSError) and error.errno in TRANSIENT_ERRNOS
    )


def backoff_s(attempts: int, max_s: float, first_s: float = 1.0) -> float:
    """Return the delay after `attempts` failed attempts in a row: `first_s`, then twice as long each time, at most `max_s`."""
    return min(max_s, first_s * 2.0 ** min(attempts - 1, 20))
