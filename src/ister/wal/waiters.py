"""Futures of the callers that wait for a log's disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from ister.core.errors import IsterError

    T = TypeVar("T")
    Waiter = asyncio.Future[int]
    Refusals = list[tuple[Sequence[Waiter], IsterError]]


class Waiters:
    """Waiters for a sync, for a rotation, for the end of a disk operation; and appends to refuse after the next sync."""

    __slots__ = ("idle", "refused", "rotated", "synced")

    def __init__(self) -> None:
        self.synced: list[tuple[int, Waiter]] = []
        self.rotated: list[Waiter] = []
        self.refused: Refusals = []
        self.idle: list[asyncio.Future[None]] = []

    def want_sync(self, synced_offset: int) -> bool:
        """Return True if a waiter needs another sync."""
        return bool(self.refused) or any(offset > synced_offset for offset, _ in self.synced)

    def resolve_synced(self, synced_offset: int) -> None:
        """Resolve the waiters for offsets up to this one."""
        waiting, self.synced = self.synced, []
        for wanted, waiter in waiting:
            if wanted > synced_offset:
                self.synced.append((wanted, waiter))
            elif not waiter.done():
                waiter.set_result(wanted - 1)

    def resolve_rotated(self, offset: int) -> None:
        """Resolve the waiters for a rotation with the first offset of the new file."""
        waiting, self.rotated = self.rotated, []
        _resolve(waiting, offset)

    def fail_rotated(self, error: IsterError) -> None:
        """Fail the waiters for a rotation."""
        waiting, self.rotated = self.rotated, []
        fail(waiting, error)

    def resolve_idle(self) -> None:
        """Resolve the waiters for the end of a disk operation."""
        waiting, self.idle = self.idle, []
        _resolve(waiting, None)

    def fail_all(self, error: IsterError) -> None:
        """Fail every waiter for durability: whether its bytes are on disk is unknown."""
        fail([waiter for _, waiter in self.synced], error)
        for waiters, _ in self.refused:
            fail(waiters, error)
        self.synced, self.refused = [], []
        self.fail_rotated(error)


def _resolve(waiters: Sequence[asyncio.Future[T]], result: T) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(result)


def fail(waiters: Sequence[Waiter], error: IsterError) -> None:
    """Set the exception of every waiter that is not done."""
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(error)
            waiter.exception()  # retrieved: a cancelled caller is no reason for a warning
