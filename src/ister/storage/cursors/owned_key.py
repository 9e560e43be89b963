"""A metadata key with one writer: compare-and-swap, and a read after a write whose answer was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ister.core.errors import CursorTakenError, MetadataUnavailableError

if TYPE_CHECKING:
    from ister.ports.metadata import Entry, Metadata

TRIES = 4
"""A write that finds an earlier one of its own landed late is retried, this often."""


class OwnedKey:
    """One key as it was last read or written.

    Every write is on the known version, so that a second owner's write is detected. A write whose answer was lost is
    remembered by its value: before the next one the key is read, and a value that was sent here is ours. A cancelled
    call counts as one whose answer was lost.
    """

    __slots__ = ("_doubts", "_metadata", "key", "value", "version")

    def __init__(self, metadata: Metadata, key: str, entry: Entry | None = None) -> None:
        self.key = key
        self.value: bytes | None = None
        self.version = 0
        self._metadata = metadata
        self._doubts: list[bytes | None] = []
        self._adopt(entry)

    async def read(self) -> None:
        """Read the key, and accept its value whoever wrote it."""
        self._adopt(await self._metadata.get(self.key))
        self._doubts.clear()

    async def resolve(self) -> None:
        """Find out whether writes whose answer was lost have landed; makes no call if there are none."""
        if self._doubts:
            await self._recognise()

    async def set(self, value: bytes | None) -> None:
        """Write a value, or delete the key (None); CursorTakenError if another owner has written it."""
        await self.resolve()
        for _ in range(TRIES):
            if value is None and self.version == 0:
                return
            if await self._send(value):
                return
            # Refused: another owner's write, or one of ours that was still in flight at the read.
            await self._recognise()
        raise CursorTakenError(self.key)

    async def _send(self, value: bytes | None) -> bool:
        self._doubts.append(value)
        try:
            if value is None:
                done = 0 if await self._metadata.delete(self.key, version=self.version) else None
            else:
                done = await self._metadata.cas(self.key, value, version=self.version)
        except MetadataUnavailableError:
            self._doubts.pop()  # nothing happened
            raise
        if done is None:
            self._doubts.pop()
            return False
        self.value, self.version = value, done
        self._doubts.clear()
        return True

    async def _recognise(self) -> None:
        entry = await self._metadata.get(self.key)
        if (0 if entry is None else entry.version) == self.version:
            return
        if (None if entry is None else entry.value) not in self._doubts:
            raise CursorTakenError(self.key)
        self._adopt(entry)
        self._doubts.clear()

    def _adopt(self, entry: Entry | None) -> None:
        self.value, self.version = (None, 0) if entry is None else (entry.value, entry.version)
