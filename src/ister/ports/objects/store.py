"""Object-store port: six calls on whole objects, so that tests can make each of them fail.

Objects are immutable. There is no open writer, no append, no rename and no overwrite: an object exists whole, under a new
name, or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from ister.core.errors import StoreRefusedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ister.core.frames.columns import Frames

KEY_BYTES_MAX = 1024


class ObjectInfo(NamedTuple):
    """Key, size and etag of an object; `etag` is empty if the store has none."""

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
        """Backend and root, without secrets."""

    async def put_if_absent(self, key: str, data: Frames) -> ObjectInfo:
        """Store bytes under a new name; return once they are durable and verified.

        ObjectExistsError if there is an object of that name, perhaps from an earlier attempt of this very call.
        PutUnknownError if it is unknown whether the object exists; cancelling leaves it unknown, too.
        """

    async def make_durable(self, key: str, data: Frames) -> None:
        """Return once an object that was found, not put by us, survives power loss; `data` are its bytes as read.

        Its writer may have failed before it was durable. Call it before anything relies on the object. A remote store
        returns only durable objects, so there is nothing to do.
        """

    async def read(self, key: str, start: int, stop: int, *, etag: str = "") -> bytes:
        """Return exactly the bytes [start, stop).

        MissingObjectError if there is no such object; CorruptObjectError if it is shorter, or has another etag (where
        the store can compare).
        """

    async def stat(self, key: str) -> ObjectInfo | None:
        """Return an object's size and etag, None if it does not exist."""

    def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo]:
        """Yield the objects whose keys begin with `prefix` and sort behind `after`, in key order.

        Close it (`aclosing`) when you stop early. Sizes are right; an etag may be empty although `stat` has one.
        """

    async def delete(self, key: str) -> None:
        """Delete an object; no error if it does not exist."""

    async def close(self) -> None:
        """Close connections."""


def check_key(store: str, key: str) -> str:
    """Return the key, or raise StoreRefusedError without a request."""
    reason = key_fault(key)
    if reason:
        raise StoreRefusedError(store, f"use the key {key[:80]!r}", reason)
    return key


def check_prefix(store: str, prefix: str) -> str:
    """Return what keys may begin with, or raise StoreRefusedError; it may end within a name or behind a slash."""
    reason = key_fault(prefix.removesuffix("/")) if prefix else ""
    if reason:
        raise StoreRefusedError(store, f"list {prefix[:80]!r}", reason)
    return prefix


def key_fault(key: str) -> str:
    """Return why a key is invalid, empty if it is valid."""
    if not key:
        return "it is empty"
    if len(key.encode(errors="replace")) > KEY_BYTES_MAX:
        return f"it has more than {KEY_BYTES_MAX} bytes"
    if not key.isprintable() or "\\" in key:
        return "it has characters that not every store takes"
    for part in key.split("/"):
        if part in {"", ".", ".."}:
            return "it has an empty part, '.' or '..' between its slashes"
        # OpenDAL trims a key's ends, so such a key would be another object's.
        if part != part.strip():
            return "it has a part that begins or ends with a space"
    return ""
