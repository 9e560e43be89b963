"""Metadata store in one SQLite file: durable, one writing process, any number of readers."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ister.core.errors import InvalidConfigError, MetadataUnavailableError
from ister.ports.metadata.leases import LeaseTable
from ister.ports.metadata.sqlite_file import (
    HistoryBounds,
    PendingChange,
    ReadFile,
    WriteFile,
    delete_key,
    get_entry,
    list_entries,
    meta_number,
    put_key,
    read_changes,
    remove_leased,
)
from ister.ports.metadata.store import check_value, key_bytes, key_range
from ister.ports.metadata.watches import POLL_S, ChangeSignal, History, HistoryWatch, WatchPosition

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator, Callable
    from typing import Self, TypeVar

    from ister.ports.metadata.sqlite_file import Changed
    from ister.ports.metadata.store import Change, Entry, Lease

    T = TypeVar("T")


TOGETHER_MAX = 256
"""The largest number of changes that share a sync."""


class SqliteMetadata:
    """A metadata store in a file, with one thread for the disk.

    Leases live in the writing process: when it ends, so do they, and the next one removes their keys at open.
    """

    def __init__(
        self, path: Path, thread: ThreadPoolExecutor, file: WriteFile | ReadFile, monotonic: Callable[[], float]
    ) -> None:
        self._path = path
        self._thread = thread
        self._file = file
        self._loop = asyncio.get_running_loop()
        self._changes = ChangeSignal()
        self._pending: deque[PendingChange] = deque()
        self._leases = LeaseTable(self.name, monotonic=monotonic, check=self._check, remove=self._remove_lease)

    @classmethod
    async def open(
        cls,
        path: Path | str,
        read_only: bool = False,  # noqa: FBT001, FBT002  # the word is the meaning
        *,
        bounds: HistoryBounds = HistoryBounds(),  # noqa: B008  # it never changes
        monotonic: Callable[[], float] | None = None,
    ) -> Self:
        """Open the file to write it as its owner, or only to read it.

        LockedError when another process writes it; CorruptMetadataError when it is damaged, or a newer release wrote it.
        """
        path = Path(path)
        loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, thread_name_prefix="ister-metadata")
        try:
            file = await loop.run_in_executor(thread, partial(_open, path, bounds, read_only=read_only))
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(path, thread, file, monotonic or loop.time)

    @property
    def name(self) -> str:
        """The location, without secrets."""
        return f"sqlite {self._path}"

    async def get(self, key: str) -> Entry | None:
        """Return one entry, None if the key is absent."""
        return await self._ask(f"get {key}", partial(get_entry, path=self._path, key=key_bytes(key)))

    async def put(self, key: str, value: bytes, *, lease: Lease | None = None) -> int:
        """Set a key unconditionally; return its version. Raise LeaseLostError if the lease has ended."""
        return await self._put(f"put {key}", key, value, lease, None)

    async def cas(self, key: str, value: bytes, *, version: int, lease: Lease | None = None) -> int | None:
        """Set a key if its version is `version` (0: absent); return the new one, None if it was another."""
        return await self._put(f"cas {key}", key, value, lease, version) or None

    async def delete(self, key: str, *, version: int | None = None) -> bool:
        """Delete a key (only at this version, if given); return True if it was deleted."""
        act = partial(delete_key, key=key_bytes(key), expected=version)
        return await self._change(f"delete {key}", act) != 0

    async def list(
        self, prefix: str, *, start: str = "", limit: int | None = None, reverse: bool = False
    ) -> list[Entry]:
        """Return entries with keys that begin with `prefix`, in order."""
        first, stop = key_range(prefix, start, reverse=reverse)
        most = -1 if limit is None else limit
        ask = partial(list_entries, path=self._path, first=first, stop=stop, limit=most, reverse=reverse)
        return await self._ask(f"list {prefix}", ask)

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Change]:
        """Yield every change behind a version, in order, each once, for ever."""
        first = key_bytes(prefix)

        async def read(place: WatchPosition) -> History:
            return await self._ask(f"watch {prefix}", partial(read_changes, path=self._path, prefix=first, place=place))

        poll_s = POLL_S if isinstance(self._file, ReadFile) else None
        return HistoryWatch(read, self._changes, after=after, poll_s=poll_s)

    async def version(self) -> int:
        """Return the store's current version, to watch from."""
        return await self._ask("tell its version", partial(meta_number, name="version"))

    async def lease(self, ttl_s: float) -> Lease:
        """Grant a lease that renews itself."""
        self._writer()
        return self._leases.grant(ttl_s)

    async def close(self) -> None:
        """End every watch and lease task (without revoking), and close the file."""
        if self._changes.closed:
            return
        self._changes.close()
        await self._leases.close()
        await self._loop.run_in_executor(self._thread, self._file.close)
        self._thread.shutdown(wait=False)

    async def _put(self, action: str, key: str, value: bytes, lease: Lease | None, expected: int | None) -> int:
        check_value(key, value)
        act = partial(
            put_key,
            key=key_bytes(key),
            value=bytes(value),
            lease=self._leases.number(lease),
            expected=expected,
        )
        return await self._change(action, act)

    async def _ask(self, action: str, ask: Callable[[sqlite3.Connection], T]) -> T:
        self._check(action)
        return await self._loop.run_in_executor(self._thread, self._file.query, action, ask)

    async def _change(self, action: str, act: Callable[[sqlite3.Connection], Changed]) -> int:
        """Make a change; all that wait for the thread at the same time share a sync."""
        self._check(action)
        pending = PendingChange(action, act)
        file = self._writer()
        self._pending.append(pending)
        try:
            await self._loop.run_in_executor(self._thread, self._commit, file)
        except asyncio.CancelledError:
            with suppress(ValueError):  # else it is being made, or was
                self._pending.remove(pending)
            raise
        if pending.error is not None:
            raise pending.error
        return pending.version

    def _commit(self, file: WriteFile) -> None:
        """Commit the pending changes and notify the watches, also of changes with a cancelled caller."""
        pending: list[PendingChange] = []
        with suppress(IndexError):
            while len(pending) < TOGETHER_MAX:
                pending.append(self._pending.popleft())
        if not pending:
            return  # committed with earlier ones
        file.change_all(pending)
        version = max(change.version for change in pending)
        if version:
            self._loop.call_soon_threadsafe(self._changes.notify, version)

    def _check(self, action: str) -> None:
        if self._changes.closed:
            raise MetadataUnavailableError(str(self._path), action, "it is closed")

    def _writer(self) -> WriteFile:
        if isinstance(self._file, ReadFile):
            raise InvalidConfigError("read_only", f"{self._path} was opened to be read only; the broker writes it")
        return self._file

    async def _remove_lease(self, lease_id: int) -> None:
        await self._change("remove the keys of a lease", partial(remove_leased, lease=lease_id))


def _open(path: Path, bounds: HistoryBounds, *, read_only: bool) -> WriteFile | ReadFile:
    if not read_only:
        return WriteFile(path, bounds)
    file = ReadFile(path)
    file.query("open", partial(meta_number, name="version"))
    return file
