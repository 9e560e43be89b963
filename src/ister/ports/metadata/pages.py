"""Go through many entries a page at a time, so that no question is too large for a store to answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ister.ports.metadata.store import Entry, Metadata


async def entries(metadata: Metadata, prefix: str, page: int, *, start: str = "") -> AsyncGenerator[Entry]:
    """Give every entry whose key begins with `prefix`, in order, from the key `start` on; each page is of one moment."""
    while found := await metadata.list(prefix, start=start, limit=page):
        for entry in found:
            yield entry
        start = found[-1].key + "\0"
