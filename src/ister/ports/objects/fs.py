"""Object store in a directory: a file has its final name only once it is whole and on disk.

A put writes a draft in `.drafts`, syncs it, makes its directories durable, links it to its name (which fails when the name
is taken) and syncs the directory of that name. A kill leaves at most a draft, or a name that was not synced; the first put
of a process removes drafts older than an hour.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from ister.aio.background import in_background, waiting_for_disk
from ister.core.errors import (
    CorruptObjectError,
    MissingObjectError,
    ObjectExistsError,
    PutUnknownError,
    StoreRefusedError,
    StoreUnavailableError,
)
from ister.ports.files.files import OsFiles, error_text
from ister.ports.objects.store import ObjectInfo, check_key, check_prefix

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from ister.core.frames.columns import Frames

    T = TypeVar("T")

DRAFTS = ".drafts"
DRAFT_AGE_S_MAX = 3600
WRITE_BYTES = 4 << 20
PAGE = 1000
THREADS = 16
"""Of the store alone: a mount that hangs keeps these, and nothing else."""
# The directory is not ours to write, or cannot hold such a name: trying again cannot help.
REFUSED = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EOPNOTSUPP,
    errno.EXDEV,
    errno.EMLINK,
}


class FsStore:
    """A directory as an object store; safe to share between processes on one file system with hard links."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root).absolute()
        self._ready = False
        self._durable: set[Path] = set()
        self._used: set[Path] = set()

    @property
    def name(self) -> str:
        """Backend and root."""
        return f"fs {self._root}"

    async def put_if_absent(self, key: str, data: Frames) -> ObjectInfo:
        """Store bytes under a new name; return once they and their name are synced.

        Cancelling does not stop the thread that writes: the object may still appear.
        """
        self._path(key)
        return await in_background(lambda: self._put(key, memoryview(data).cast("B")))

    async def make_durable(self, key: str, data: Frames) -> None:
        """Write the bytes of an object that was found to a new file, which replaces it, and sync that and its name.

        To sync the file and the directory that are there would not do: perhaps that has failed before, and after a failed
        sync Linux marks the pages clean, so a second one succeeds for what never reached the disk.
        """
        self._path(key)
        try:
            await in_background(lambda: self._put(key, memoryview(data).cast("B"), os.replace))
        except PutUnknownError as error:
            raise StoreUnavailableError(self.name, f"make {key} durable", error.cause) from error

    async def read(self, key: str, start: int, stop: int, *, etag: str = "") -> bytes:  # noqa: ARG002  # a file has none
        """Return exactly the bytes [start, stop)."""
        path = self._path(key)
        if not 0 <= start <= stop:
            raise StoreRefusedError(self.name, f"read {key}", f"[{start}, {stop}) is no range")
        return await self._in_thread(f"read {key}", lambda: self._read(key, path, start, stop))

    async def stat(self, key: str) -> ObjectInfo | None:
        """Return an object's size, None if it does not exist."""
        path = self._path(key)
        return await self._in_thread(f"look at {key}", lambda: _info(key, path))

    async def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo]:
        """Yield the objects in key order; holds the names of one directory per level."""
        walk = self._walk("", check_prefix(self.name, prefix), after)
        while page := await self._in_thread(f"list {prefix}", lambda: list(islice(walk, PAGE))):
            for info in page:
                yield info

    async def delete(self, key: str) -> None:
        """Delete an object durably; no error if it does not exist."""
        path = self._path(key)
        await self._in_thread(f"delete {key}", lambda: _remove(path))

    async def close(self) -> None:
        """Nothing is held."""

    def _path(self, key: str) -> Path:
        check_key(self.name, key)
        if key.partition("/")[0] == DRAFTS:
            raise StoreRefusedError(self.name, f"use the key {key[:80]!r}", f"{DRAFTS} holds unfinished objects")
        return self._root / key

    async def _in_thread(self, action: str, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(_threads(), work)
        except OSError as error:
            self._fail(action, error)

    def _fail(self, action: str, error: OSError) -> NoReturn:
        cause = error_text(error)
        if error.errno in REFUSED:
            raise StoreRefusedError(self.name, action, cause) from error
        raise StoreUnavailableError(self.name, action, cause) from error

    def _put(self, key: str, data: memoryview, give_name: Callable[[Path, Path], None] | None = None) -> ObjectInfo:
        final = self._root / key
        try:
            self._prepare()
            draft = self._root / DRAFTS / secrets.token_hex(12)
            try:
                _write(draft, data)
                self._refuse_lost(final.parent)
                self._ensure_directory(final.parent)
                (give_name or _link)(draft, final)
            finally:
                with suppress(OSError):  # a draft that stays is swept later
                    draft.unlink(missing_ok=True)
        except _TakenError:
            raise ObjectExistsError(self.name, key) from None
        except OSError as error:
            self._ready = False  # perhaps the directory was removed
            self._durable.clear()
            self._fail(f"put {key}", error)
        try:
            OsFiles().sync_directory(final.parent)
        except OSError as error:
            # The object has its name, but a power cut may take it away; a second sync would prove nothing.
            raise PutUnknownError(self.name, key, error_text(error)) from error
        self._used.add(final.parent)
        return ObjectInfo(key, len(data), "")

    def _refuse_lost(self, directory: Path) -> None:
        """Fail once if a used directory is missing: the disk was perhaps unmounted, and the caller should check first."""
        if directory in self._used and not directory.is_dir():
            self._used.discard(directory)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    def _ensure_directory(self, directory: Path) -> None:
        """Make a directory and those above it, each durable before anything is put into it.

        One whose name could not be synced is removed again: a second sync would prove nothing.
        """
        if directory == self._root or (directory in self._durable and directory.is_dir()):
            return
        self._ensure_directory(directory.parent)
        made = _make_directory(directory)
        try:
            OsFiles().sync_directory(directory.parent)
        except OSError:
            if made:
                with suppress(OSError):  # another put was quicker: it is in use
                    directory.rmdir()
            raise
        self._durable.add(directory)

    def _prepare(self) -> None:
        if self._ready:
            return
        drafts = self._root / DRAFTS
        for directory in (self._root, drafts):  # one by one: only the last of a path gets its narrow mode
            OsFiles().make_directory(directory)
        oldest = time.time() - DRAFT_AGE_S_MAX
        for draft in drafts.iterdir():
            with suppress(FileNotFoundError):  # its owner, or another sweeper, was first
                if draft.stat().st_mtime < oldest:
                    draft.unlink()
        self._ready = True

    def _read(self, key: str, path: Path, start: int, stop: int) -> bytes:
        try:
            if path.is_dir():
                raise MissingObjectError(key, self.name)
            file = OsFiles().open_read(path)
        except (FileNotFoundError, NotADirectoryError):
            raise MissingObjectError(key, self.name) from None
        try:
            size = file.size()
            data = file.read(start, stop - start) if stop <= size else b""
        finally:
            file.close()
        if stop > size or len(data) != stop - start:
            raise CorruptObjectError(key, size, -1, f"it has {size} bytes, [{start}, {stop}) was asked for")
        return data

    def _walk(self, directory: str, prefix: str, after: str) -> Iterator[ObjectInfo]:
        """Go through `directory` (empty, or ending with a slash) in the order of keys."""
        below = prefix.find("/", len(directory)) + 1 if prefix.startswith(directory) else 0
        if below:
            # The way is known: where there are a thousand topics, a thousand listings would see a million names.
            name = prefix[:below]
            if _may_hold(name, prefix, after) and _is_directory(self._root / name):
                yield from self._walk(name, prefix, after)
            return
        try:
            with os.scandir(self._root / directory) as entries:
                names = sorted(
                    name
                    for name in (
                        directory + entry.name + "/" * entry.is_dir(follow_symlinks=False) for entry in entries
                    )
                    if _may_hold(name, prefix, after)
                )
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            if name.endswith("/"):
                yield from self._walk(name, prefix, after)
            elif info := _info(name, self._root / name):
                yield info


class _TakenError(Exception):
    """The final name has an owner."""


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "ister-objects")


def _may_hold(name: str, prefix: str, after: str) -> bool:
    if name == f"{DRAFTS}/":
        return False
    if not name.endswith("/"):
        return name.startswith(prefix) and name > after
    return (name.startswith(prefix) or prefix.startswith(name)) and (name > after or after.startswith(name))


def _is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)  # a link is none: what it leads to is not ours
    except (FileNotFoundError, NotADirectoryError):
        return False


def _info(key: str, path: Path) -> ObjectInfo | None:
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return ObjectInfo(key, found.st_size, "") if found.st_mode & 0o170000 == 0o100000 else None


def _write(draft: Path, data: memoryview) -> None:
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    try:
        at = 0
        while at < len(data):
            at += os.write(fd, data[at : at + WRITE_BYTES])
        with waiting_for_disk():
            os.fdatasync(fd)
        if os.fstat(fd).st_size != len(data):
            raise OSError(errno.EIO, "the file has another size than was written")
    finally:
        os.close(fd)


def _make_directory(directory: Path) -> bool:
    """Create a directory; return True if it did not exist."""
    try:
        directory.mkdir(mode=0o750)
    except FileExistsError:
        if not directory.is_dir():  # an object has the name of a directory that this key needs
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
        return False
    return True


def _link(draft: Path, final: Path) -> None:
    try:
        final.hardlink_to(draft)
    except FileExistsError:
        if final.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from None
        raise _TakenError from None


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        path.unlink()
        OsFiles().sync_directory(path.parent)
