"""Cursors in metadata that several brokers move, one after the other: each only those that it holds.

Whoever begins to serve a subscription reads its cursor anew (`adopt`), whoever ends lets go of it (`release`): from then
on nothing is written of it here, not even what was still waiting to be saved.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ister.core.hold import hold_lost
from ister.storage.cursors import NOTHING_FINISHED
from ister.storage.progress import MetadataCursors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ister.storage.cursors import Ranges


class SharedCursors(MetadataCursors):
    """MetadataCursors of which others may move those that are not adopted."""

    _released: frozenset[str] = frozenset()

    async def adopt(self, subscription: str) -> int | None:
        """Take a subscription's cursor as it is in metadata now; None when it has none."""
        await self.load()
        self.release(subscription)
        while self._saving is not None:  # it may be writing what we had of it before
            await asyncio.wait({self._saving})
        pair = self._new_pair(subscription)
        await pair.entry.read()
        await pair.record.read()
        pair.is_read = True
        cursor = None if pair.entry.value is None else self._cursor_of(subscription, pair.record)
        self._released -= {subscription}
        for known in (self._wanted, self._lowest, self._stored, self._finished, self._stored_finished):
            known.pop(subscription, None)
        if cursor is not None:
            self._finished[subscription] = self._stored_finished[subscription] = self._finished_of(pair.record)
            self._wanted[subscription] = self._lowest[subscription] = self._stored[subscription] = cursor
        return cursor

    def release(self, subscription: str) -> None:
        """Write nothing of a subscription any more; what is kept of it here stays, as the least that it can be.

        So it still counts for retention: whoever serves it now may be as far behind as that.
        """
        kept = self.kept().get(subscription)
        if kept is not None:
            self._released |= {subscription}
            self._wanted[subscription] = self._lowest[subscription] = self._stored[subscription] = kept

    async def advance(self, subscription: str, cursor: int) -> int:
        """Move a subscription on; refused when it was let go of, before or meanwhile."""
        self._check_adopted(subscription)
        moved = await super().advance(subscription, cursor)
        self._check_adopted(subscription)
        return moved

    async def put(self, subscription: str, cursor: int) -> int:
        """Move a subscription to a place; refused when it was let go of, before or meanwhile."""
        self._check_adopted(subscription)
        moved = await super().put(subscription, cursor)
        self._check_adopted(subscription)
        return moved

    async def advance_known(
        self, wanted: Mapping[str, int], finished: Mapping[str, Ranges] = NOTHING_FINISHED
    ) -> dict[str, int]:
        """Move those subscriptions on that are known and not let go of."""
        served = {name: at for name, at in wanted.items() if name not in self._released}
        return await super().advance_known(served, {name: finished[name] for name in finished if name in served})

    def _check_adopted(self, subscription: str) -> None:
        """Raise for what is not written here: counted as saved, it would let retention delete what others still need."""
        if subscription in self._released:
            raise hold_lost(str(self._topic), subscription)

    async def _write(self, name: str, cursor: int, finished: Ranges) -> None:
        if name not in self._released:
            await super()._write(name, cursor, finished)
