"""What Ister asks of an object store: six calls on finished bytes, so that each of them can be made to fail.

Objects never change. There is no open writer, no append, no rename and no overwrite: an object is there whole, under a
name that nobody had before, or it is not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ister.core.columns import Frames


class ObjectInfo(NamedTuple):
    """What the store says of an object; `etag` is empty where the store has none."""

    key: str
    size: int
    etag: str


class CloudStore(Protocol):
    """An object store; keys are relative to the configured root.

    Every call may raise StoreUnavailableError (try later) or StoreRefusedError (the configuration is wrong). Calls
    retry by themselves, a bounded number of times, each attempt with a time limit.
    """

    @property
    def name(self) -> str:
        """Where it is, for people: backend and root, no secrets."""
        ...

    async def put_if_absent(self, key: str, data: Frames) -> ObjectInfo:
        """Store finished bytes under a new name; returns once they are durable and verified.

        ObjectExistsError when there is an object of that name, whoever put it, perhaps an earlier attempt of this very
        call. PutUnknownError when it cannot be told whether the object is there; also cancelling leaves it unknown.
        """
        ...

    async def make_durable(self, key: str, data: Frames) -> None:
        """Return once an object that was found, not put by us, survives power loss; `data` are the bytes it was seen to have.

        Whoever put it may have died, or failed, before it was durable. Call it before anything relies on the object.
        A remote store shows only what it keeps, so there is nothing to do.
        """
        ...

    async def read(self, key: str, start: int, stop: int, *, etag: str = "") -> bytes:
        """Return exactly the bytes [start, stop).

        MissingObjectError when there is no such object; CorruptObjectError when it is shorter, or is not the one with
        this etag (where the store can tell).
        """
        ...

    async def stat(self, key: str) -> ObjectInfo | None:
        """Return what is known of an object, None when there is none."""
        ...

    def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo]:
        """Give the objects whose keys begin with `prefix` and sort behind `after`, in order of their keys.

        Close it (`aclosing`) when you stop early. Sizes are right; an etag may be empty although `stat` has one.
        """
        ...

    async def delete(self, key: str) -> None:
        """Take an object away; no error when there is none."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
