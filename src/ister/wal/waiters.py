"""Who waits for a log's disk, and for what; each is told once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from ister.core.errors import IsterError

    Waiter = asyncio.Future[int]
    Refusals = list[tuple[Sequence[Waiter], IsterError]]


class Waiters:
    """Those who wait for a sync, for the next file, for the end of a job; and those who are refused after a sync."""

    __slots__ = ("job", "refused", "rotated", "synced")

    def __init__(self) -> None:
        self.synced: list[tuple[int, Waiter]] = []
        self.rotated: list[Waiter] = []
        self.refused: Refusals = []
        self.job: list[asyncio.Future[None]] = []

    def want_sync(self, synced_offset: int) -> bool:
        """Tell whether someone waits for more than is synced."""
        return bool(self.refused) or any(offset > synced_offset for offset, _ in self.synced)

    def tell_synced(self, synced_offset: int) -> None:
        """Tell those who waited for no more than this."""
        waiting, self.synced = self.synced, []
        for wanted, waiter in waiting:
            if wanted > synced_offset:
                self.synced.append((wanted, waiter))
            elif not waiter.done():
                waiter.set_result(wanted - 1)

    def tell_rotated(self, offset: int) -> None:
        """Tell everyone who waited for the next file where it starts."""
        waiting, self.rotated = self.rotated, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(offset)

    def fail_rotated(self, error: IsterError) -> None:
        """Tell everyone who waited for the next file that there is none."""
        waiting, self.rotated = self.rotated, []
        fail(waiting, error)

    def tell_job_ended(self) -> None:
        """Tell everyone who waited for the disk to be free."""
        waiting, self.job = self.job, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def fail_all(self, error: IsterError) -> None:
        """Tell everyone who waited for something to be on disk that nobody knows whether it is."""
        fail([waiter for _, waiter in self.synced], error)
        for waiters, _ in self.refused:
            fail(waiters, error)
        self.synced, self.refused = [], []
        self.fail_rotated(error)


def fail(waiters: Sequence[Waiter], error: IsterError) -> None:
    """Tell everyone who still waits."""
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(error)
            waiter.exception()  # a waiter that was cancelled meanwhile is no reason for a warning
