"""Metadata store in memory, for tests; it can be disconnected like a store behind a network."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, NamedTuple

from ister.core.errors import MetadataUnavailableError, WatchCompactedError
from ister.ports.metadata.leases import LeaseTable
from ister.ports.metadata.store import Change, Entry, after_prefix, check_value, key_bytes, key_range
from ister.ports.metadata.watches import BATCH_CHANGES, ChangeSignal, History, HistoryWatch, WatchPosition, whole

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from ister.ports.metadata.store import Lease

HISTORY_CHANGES = 10_000


class _Held(NamedTuple):
    value: bytes
    version: int
    lease: int | None


class MemoryMetadata:
    """A metadata store with the lifetime of this object."""

    def __init__(self, *, history_changes: int = HISTORY_CHANGES, monotonic: Callable[[], float] | None = None) -> None:
        self._keys: list[bytes] = []
        self._held: dict[bytes, _Held] = {}
        self._version = 0
        self._forgotten = 0
        self._history: list[tuple[WatchPosition, bytes | None]] = []
        self._history_changes = history_changes
        self._changes = ChangeSignal()
        self._cut = ""
        self._leases = LeaseTable(
            self.name, monotonic=monotonic or _loop_time, check=self._check, remove=self._remove_lease
        )

    @property
    def name(self) -> str:
        """The location, without secrets."""
        return "memory"

    def cut(self, cause: str = "cut off") -> None:
        """Simulate a lost network: calls are refused, renewals fail, leases end."""
        self._cut = cause

    def mend(self) -> None:
        """Undo `cut`."""
        self._cut = ""
        self._changes.notify(self._version)

    async def get(self, key: str) -> Entry | None:
        """Return one entry, None if the key is absent."""
        self._check(f"get {key}")
        held = self._held.get(key_bytes(key))
        return None if held is None else Entry(key, held.value, held.version)

    async def put(self, key: str, value: bytes, *, lease: Lease | None = None) -> int:
        """Set a key unconditionally; return its version. Raise LeaseLostError if the lease has ended."""
        check_value(key, value)
        lease_id = self._leases.number(lease)
        self._check(f"put {key}")
        return self._set(key_bytes(key), bytes(value), lease_id)

    async def cas(self, key: str, value: bytes, *, version: int, lease: Lease | None = None) -> int | None:
        """Set a key if its version is `version` (0: absent); return the new one, None if it was another."""
        check_value(key, value)
        lease_id = self._leases.number(lease)
        self._check(f"cas {key}")
        held = self._held.get(key_bytes(key))
        if (held.version if held else 0) != version:
            return None
        return self._set(key_bytes(key), bytes(value), lease_id)

    async def delete(self, key: str, *, version: int | None = None) -> bool:
        """Delete a key (only at this version, if given); return True if it was deleted."""
        self._check(f"delete {key}")
        held = self._held.get(key_bytes(key))
        if held is None or (version is not None and held.version != version):
            return False
        self._remove([key_bytes(key)])
        return True

    async def list(
        self, prefix: str, *, start: str = "", limit: int | None = None, reverse: bool = False
    ) -> list[Entry]:
        """Return entries with keys that begin with `prefix`, in order."""
        first, stop = key_range(prefix, start, reverse=reverse)
        self._check(f"list {prefix}")
        keys = self._keys[bisect_left(self._keys, first) : bisect_left(self._keys, stop)]
        keys = (keys[::-1] if reverse else keys)[:limit]
        return [Entry(key.decode(), self._held[key].value, self._held[key].version) for key in keys]

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Change]:
        """Yield every change behind a version, in order, each once, for ever, also across lost connections."""
        first = key_bytes(prefix)

        async def read(place: WatchPosition) -> History:
            self._check(f"watch {prefix}")
            return self._read(first, after_prefix(first), place)

        return HistoryWatch(read, self._changes, after=after, poll_s=None)

    async def version(self) -> int:
        """Return the store's current version, to watch from."""
        self._check("tell its version")
        return self._version

    async def lease(self, ttl_s: float) -> Lease:
        """Grant a lease that renews itself."""
        return self._leases.grant(ttl_s)

    async def close(self) -> None:
        """End every watch and lease task (without revoking)."""
        self._changes.close()
        await self._leases.close()

    def _check(self, action: str) -> None:
        cause = "it is closed" if self._changes.closed else self._cut
        if cause:
            raise MetadataUnavailableError(self.name, action, cause)

    async def _remove_lease(self, lease_id: int) -> None:
        self._remove([key for key in self._keys if self._held[key].lease == lease_id])

    def _set(self, key: bytes, value: bytes, lease_id: int | None) -> int:
        if key not in self._held:
            insort(self._keys, key)
        self._held[key] = _Held(value, self._version + 1, lease_id)
        self._record([(key, value)])
        return self._version

    def _remove(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            del self._held[key]
            del self._keys[bisect_left(self._keys, key)]
        if keys:
            self._record([(key, None) for key in keys])

    def _record(self, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        self._version += 1
        self._history += [(WatchPosition(self._version, key), value) for key, value in changes]
        if len(self._history) > 2 * self._history_changes:
            self._forgotten = self._history[-self._history_changes][0].version - 1
            del self._history[: self._find(whole(self._forgotten))]
        self._changes.notify(self._version)

    def _find(self, place: WatchPosition) -> int:
        return bisect_right(self._history, place, key=lambda change: change[0])

    def _read(self, first: bytes, stop: bytes, place: WatchPosition) -> History:
        if place.version < self._forgotten:
            raise WatchCompactedError(self.name, place.version)
        changes = []
        for at, value in self._history[self._find(place) :]:
            if first <= at.key < stop:
                changes.append(Change(at.key.decode(), value, at.version))
                if len(changes) == BATCH_CHANGES:
                    return History(changes, at)
        return History(changes, max(place, whole(self._version)))


def _loop_time() -> float:
    """Return the loop's time, which may be virtual."""
    return asyncio.get_running_loop().time()
