"""Work that is begun before it is needed: when it fails, that is told when it is needed, or never."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import asyncio

    T = TypeVar("T")


def ahead(work: asyncio.Future[T]) -> asyncio.Future[T]:
    """Return the same work; asyncio does not complain when nobody asks how it ended."""
    work.add_done_callback(_noticed)
    return work


def _noticed(work: asyncio.Future[T]) -> None:
    if not work.cancelled():
        work.exception()
