"""Metadata-store port: small values under ordered keys, with versions, watches and leases.

A version is a number that grows with every change of the store; that of a key is the version of its last change. 0 means
absent. Keys are text that begins with `/`, ordered by their UTF-8 bytes; values are at most 1,500,000 bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from ister.core.errors import InvalidMessageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

VALUE_BYTES_MAX = 1_500_000
"""etcd accepts requests of 1.5 MiB; the other stores have the same limit, so that what works embedded works in a cluster."""
_NO_VERSION = 2**62
"""A version that no key ever has."""


class Entry(NamedTuple):
    """One key with its value and the version of its last change."""

    key: str
    value: bytes
    version: int


class Change(NamedTuple):
    """A key was set, or removed (`value` is None), at this version."""

    key: str
    value: bytes | None
    version: int


class Lease(Protocol):
    """A lease: the store deletes its keys unless it is renewed in time.

    It renews itself. `remaining_s` counts, on a clock that never steps, from the moment at which the last renewal that
    succeeded was *sent*, so it ends here before it ends there, whatever happens to the connection.
    """

    @property
    def id(self) -> int:
        """The store's id of it."""

    @property
    def remaining_s(self) -> float:
        """The time for which it certainly holds; 0 once it is lost, and then for ever."""

    async def lost(self) -> None:
        """Return once it does not certainly hold."""

    async def revoke(self) -> None:
        """Revoke it, and delete its keys."""


class Metadata(Protocol):
    """A metadata store.

    Every call may raise MetadataUnavailableError (nothing happened, try later); `put`, `cas` and `delete` also
    MetadataUnknownError (it may have happened: read before you act again).
    """

    @property
    def name(self) -> str:
        """The location, without secrets."""

    async def get(self, key: str) -> Entry | None:
        """Return one entry, None if the key is absent."""

    async def put(self, key: str, value: bytes, *, lease: Lease | None = None) -> int:
        """Set a key unconditionally; return its version. Raise LeaseLostError if the lease has ended."""

    async def cas(self, key: str, value: bytes, *, version: int, lease: Lease | None = None) -> int | None:
        """Set a key if its version is `version` (0: absent); return the new one, None if it was another."""

    async def delete(self, key: str, *, version: int | None = None) -> bool:
        """Delete a key (only at this version, if given); return True if it was deleted."""

    async def list(
        self, prefix: str, *, start: str = "", limit: int | None = None, reverse: bool = False
    ) -> list[Entry]:
        """Return entries with keys that begin with `prefix`, in order, of one snapshot.

        Keys before `start` are left out. With `reverse` the order is descending, and keys behind `start` are left out:
        `list(p, start=k, limit=1, reverse=True)` gives the last entry that is not behind k.
        """

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Change]:
        """Yield every change behind a version, in order, each once, for ever, also across lost connections.

        A step that is cancelled loses nothing: ask again. The keys of a lease go at one version, several changes with
        the same number: to resume elsewhere, use the version of the last change *before* the newest one's.
        WatchCompactedError when the store does not remember changes that old: list again, and watch from there.
        """

    async def version(self) -> int:
        """Return the store's current version, to watch from."""

    async def lease(self, ttl_s: float) -> Lease:
        """Grant a lease that renews itself."""

    async def close(self) -> None:
        """End every watch and lease task (without revoking), and close connections."""


async def check_writable(metadata: Metadata, root: str) -> None:
    """Raise the error that a write below a root would meet, like no response or no permission. Nothing is written."""
    await metadata.cas(f"{root}/probe", b"", version=_NO_VERSION)


async def entries(metadata: Metadata, prefix: str, page: int, *, start: str = "") -> AsyncGenerator[Entry]:
    """Yield every entry with a key that begins with `prefix`, in order, from `start` on; each page is one snapshot."""
    while found := await metadata.list(prefix, start=start, limit=page):
        for entry in found:
            yield entry
        start = found[-1].key + "\0"


def key_bytes(key: str) -> bytes:
    """Return a key as it is stored; its bytes sort like its text."""
    assert key.startswith("/"), f"keys begin with /, not {key[:80]!r}"
    return key.encode()


def check_value(key: str, value: bytes) -> None:
    """Raise unless every store can hold this value."""
    if len(value) > VALUE_BYTES_MAX:
        raise InvalidMessageError(
            "metadata value", f"of {key} has {len(value)} bytes; a metadata store takes at most {VALUE_BYTES_MAX}"
        )


def after_prefix(prefix: bytes) -> bytes:
    """Return the first key behind every key that begins with `prefix`.

    There always is one: our prefixes begin with `/`, and UTF-8 has no byte 0xFF.
    """
    return prefix[:-1] + bytes([prefix[-1] + 1])


def key_range(prefix: str, start: str, *, reverse: bool) -> tuple[bytes, bytes]:
    """Return the keys [first, stop) that `Metadata.list` means."""
    low = key_bytes(prefix)
    stop = after_prefix(low)
    if not start:
        return low, stop
    edge = key_bytes(start)
    return (low, min(stop, edge + b"\0")) if reverse else (max(low, edge), stop)
