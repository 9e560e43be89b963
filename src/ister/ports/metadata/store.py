"""What Ister asks of a metadata store: small values under ordered keys, with versions, watches and leases.

A version is a number that grows with every change of the store; that of a key is the version of its last change. 0 means
absent. Keys are text that begins with `/`, ordered by their UTF-8 bytes; values are at most 1,500,000 bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_NO_VERSION = 2**62
"""No key ever has it."""


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
    """A promise of the store to remove some keys unless we keep saying that we live.

    It renews itself. `remaining_s` counts, on a clock that never steps, from the moment at which the last renewal that
    succeeded was *sent*, so it ends here before it ends there, whatever happens to the connection.
    """

    @property
    def id(self) -> int:
        """The store's number for it."""
        ...

    @property
    def remaining_s(self) -> float:
        """How long it certainly still holds; 0 once it is lost, and then for ever."""
        ...

    async def lost(self) -> None:
        """Return once it does not certainly hold any more."""
        ...

    async def revoke(self) -> None:
        """Give it up, and remove its keys."""
        ...


class Metadata(Protocol):
    """A metadata store.

    Every call may raise MetadataUnavailableError (nothing happened, try later); `put`, `cas` and `delete` also
    MetadataUnknownError (it may have happened: look).
    """

    @property
    def name(self) -> str:
        """Where it is, for people: no secrets."""
        ...

    async def get(self, key: str) -> Entry | None:
        """Return one entry, None when there is none."""
        ...

    async def put(self, key: str, value: bytes, *, lease: Lease | None = None) -> int:
        """Set a key whatever it was; returns its version. LeaseLostError when the lease is gone."""
        ...

    async def cas(self, key: str, value: bytes, *, version: int, lease: Lease | None = None) -> int | None:
        """Set a key if its version still is `version` (0: absent); returns the new one, None when it was another."""
        ...

    async def delete(self, key: str, *, version: int | None = None) -> bool:
        """Remove a key (only at this version, when given); returns whether it was removed."""
        ...

    async def list(
        self, prefix: str, *, start: str = "", limit: int | None = None, reverse: bool = False
    ) -> list[Entry]:
        """Return entries whose keys begin with `prefix`, in order, all of one moment.

        Keys before `start` are left out. With `reverse` the order is descending, and keys behind `start` are left out:
        `list(p, start=k, limit=1, reverse=True)` gives the last entry that is not behind k.
        """
        ...

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Change]:
        """Give every change behind a version, in order, each once, for ever; goes on through lost connections.

        A step that is cancelled loses nothing: ask again. The keys of a lease go at one version, several changes with
        the same number: to resume elsewhere, use the version of the last change *before* the newest one's.
        WatchCompactedError when the store does not remember changes that old: list again, and watch from there.
        """
        ...

    async def version(self) -> int:
        """Return the store's version now, to watch from."""
        ...

    async def lease(self, ttl_s: float) -> Lease:
        """Make a lease that renews itself."""
        ...

    async def close(self) -> None:
        """End every watch and lease task (without revoking), and let go of connections."""
        ...


async def check_writable(metadata: Metadata, root: str) -> None:
    """Raise what a write below a root would meet: no answer, no space, no permission. Nothing is written."""
    await metadata.cas(f"{root}/probe", b"", version=_NO_VERSION)
