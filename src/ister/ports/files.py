"""The file system: the few calls a log needs, so that each of them can be made to fail.

What is assumed of the disk is in docs/format.md: a sync that returned keeps its bytes, a rename is atomic, a failed
sync proves nothing about any byte.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import structlog

from ister.core.errors import DiskFullError, LockedError, ResourceExhaustedError
from ister.core.retry import is_transient
from ister.ports.pace import Pace
from ister.ports.worker import SharedWorkers, ThreadWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ister.core.columns import Frames
    from ister.ports.slots import Slots
    from ister.ports.worker import Worker

log = structlog.get_logger()

LOCK_NAME = "LOCK"
IOV_MAX = os.sysconf("SC_IOV_MAX")
"""How many parts one writev takes; more of them are refused as an invalid argument."""
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
DRAFT = ".tmp"
"""What is added to a file's name while it is written."""
LEVELS_OWNED = 3
"""How deep a lock reaches: the owner of `<root>` owns `<root>/<namespace>/<topic>/<generation>`."""
LOCK_TRIES = 3
LOCK_PAUSE_S = 0.005
"""Whoever looks whether a directory is owned holds its lock for a moment; that is no reason to be refused."""


class File(Protocol):
    """An open file. Writes go to its end and may be short; every call may raise OSError, a write after some of its bytes."""

    def append(self, parts: Sequence[Frames]) -> int:
        """Write at the end, in as few calls as possible; returns how many bytes were taken, perhaps fewer than given."""
        ...

    def read(self, at: int, count: int) -> bytes:
        """Read up to `count` bytes; fewer only at the end."""
        ...

    def sync(self) -> float:
        """Return once every byte is on disk; returns the seconds that this took. Never call it again after it failed."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        ...

    def size(self) -> int:
        """How many bytes there are."""
        ...

    def close(self) -> None:
        """Let go of the file; syncs nothing."""
        ...


class Lock(Protocol):
    """A held lock."""

    def release(self) -> None:
        """Let the next owner in."""
        ...


class Files(Protocol):
    """A file system."""

    def create(self, path: Path) -> File:
        """Make a new file to append to; FileExistsError when the name is taken."""
        ...

    def create_durable(self, path: Path) -> File:
        """Make a new file to append to, and sync its name; a transient error or a full disk means that no file was made.

        Every descriptor that this takes is taken before the file is made.
        """
        ...

    def open(self, path: Path) -> File:
        """Open a file to read and append."""
        ...

    def open_read(self, path: Path) -> File:
        """Open a file to read only."""
        ...

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted."""
        ...

    def make_directory(self, directory: Path) -> None:
        """Make a directory and its parents, each durable in its own parent."""
        ...

    def sync_directory(self, directory: Path) -> None:
        """Return once every name in it is on disk."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, replacing what had it, atomically."""
        ...

    def remove(self, path: Path) -> None:
        """Take a name away."""
        ...

    def remove_directory(self, directory: Path) -> None:
        """Take an empty directory away."""
        ...

    def lock(self, directory: Path, within: Lock | None = None) -> Lock:
        """Own a directory and what is below; LockedError names the owner when it has one, or a directory above it has.

        `within` is a lock of a directory above that the caller holds for as long as this one, which then costs nothing.
        """
        ...

    def worker(self) -> Worker:
        """Return a thread that waits for this disk."""
        ...

    @property
    def slots(self) -> Slots | None:
        """How many logs keep a file of this disk open; None: as many as there are."""
        ...

    @property
    def pace(self) -> Pace:
        """How quick this disk's syncs are."""
        ...


class _OsFile:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def append(self, parts: Sequence[Frames]) -> int:
        if len(parts) == 1:
            return os.write(self._fd, parts[0])
        taken = 0
        for at in range(0, len(parts), IOV_MAX):
            some = parts[at : at + IOV_MAX]
            wrote = os.writev(self._fd, some)
            taken += wrote
            if wrote < sum(len(part) for part in some):
                break
        return taken

    def read(self, at: int, count: int) -> bytes:
        data = os.pread(self._fd, count, at)
        while len(data) < count:
            more = os.pread(self._fd, count - len(data), at + len(data))
            if not more:
                break
            data += more
        return data

    def sync(self) -> float:
        began = time.monotonic()
        _sync(os.fdatasync, self._fd)
        return time.monotonic() - began

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        fd, self._fd = self._fd, -1  # its number may soon be another file's
        os.close(fd)


class _OsLock:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1  # its number may soon be another file's
        os.close(fd)


class _Within:
    """A lock that another one above it stands for."""

    __slots__ = ()

    def release(self) -> None:
        """Do nothing: the one above is held as before."""


class OsFiles:
    """The machine's file system; with `threads`, its logs share so many to wait for the disk, else each has its own."""

    def __init__(self, threads: int | None = None, slots: Slots | None = None) -> None:
        self._workers = None if threads is None else SharedWorkers("ister-disk", threads)
        self.pace = Pace()
        self.slots = slots
        self._durable: set[Path] = set()

    def create(self, path: Path) -> File:
        """Make a new file to append to; FileExistsError when the name is taken."""
        return _OsFile(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640))

    def create_durable(self, path: Path) -> File:
        """Make a new file to append to, and sync its name; a transient error or a full disk means that no file was made.

        Every descriptor that this takes is taken before the file is made.
        """
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            file = self.create(path)
            try:
                os.fsync(directory)
            except OSError as error:
                file.close()
                # Neither transient nor a full disk, which would mean that no file was made.
                raise OSError(errno.EIO, f"it could not be synced ({said(error)})") from error
        finally:
            os.close(directory)
        return file

    def open(self, path: Path) -> File:
        """Open a file to read and append."""
        return _OsFile(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC))

    def open_read(self, path: Path) -> File:
        """Open a file to read only."""
        return _OsFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted."""
        return sorted(path.name for path in directory.iterdir())

    def make_directory(self, directory: Path) -> None:
        """Make a directory and its parents, each durable in its own parent."""
        directory = directory.absolute()
        chain = (directory, *directory.parents)
        if not directory.is_dir():
            self._durable.difference_update([path for path in chain if not path.is_dir()])  # someone has removed it
            directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        for path in chain[:-1]:
            if path in self._durable:
                continue
            try:
                self.sync_directory(path.parent)
            except PermissionError:
                break  # what we may not read, we have not made
            self._durable.add(path)

    def sync_directory(self, directory: Path) -> None:
        """Return once every name in it is on disk."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync(os.fsync, fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, replacing what had it, atomically."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Take a name away."""
        path.unlink()

    def remove_directory(self, directory: Path) -> None:
        """Take an empty directory away."""
        directory.rmdir()

    def lock(self, directory: Path, within: Lock | None = None) -> Lock:
        """Own a directory and what is below; LockedError names the owner when it has one, or a directory above it has.

        `within` is a lock of a directory above that the caller holds for as long as this one, which then costs nothing.
        """
        if within is not None:
            # Only who asks for this directory alone locks it alone. He does so before he looks above, and the one above
            # was locked before we look here: one of us sees the other.
            _look(directory)
            return _Within()
        fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            _own(fd, directory, fcntl.LOCK_EX)
            for above in directory.absolute().parents[:LEVELS_OWNED]:
                _look(above)
        except BaseException:
            os.close(fd)
            raise
        with suppress(OSError):  # a full disk keeps the name from the next one's error message, and no more
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return _OsLock(fd)

    def worker(self) -> Worker:
        """Return a thread that waits for this disk."""
        return ThreadWorker("ister-disk") if self._workers is None else self._workers.worker()


def _own(fd: int, directory: Path, how: int) -> None:
    """Lock an open lock file; LockedError names who has it."""
    for _ in range(LOCK_TRIES - 1):
        with suppress(BlockingIOError):
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return
        time.sleep(LOCK_PAUSE_S)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
        raise LockedError(str(directory), f"process {holder}" if holder else "another process") from None


def _look(directory: Path) -> None:
    """Raise LockedError when someone owns a directory; changes nothing."""
    try:
        fd = os.open(directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        _own(fd, directory, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def _sync(call: Callable[[int], None], fd: int) -> None:
    """Sync a file or a directory; a failed sync is never transient, because a second one would prove nothing."""
    try:
        call(fd)
    except OSError as error:
        if is_transient(error):
            raise OSError(errno.EIO, f"it could not be synced ({said(error)})") from error
        raise


def append_all(file: File, parts: Sequence[Frames]) -> None:
    """Write every byte, going on after a short write; for files that nobody reads yet."""
    for part in parts:
        rest = memoryview(part)
        while rest:
            taken = file.append([rest])
            if taken <= 0:
                raise OSError(errno.EIO, "the file takes no bytes")
            rest = rest[taken:]


def create_draft(files: Files, path: Path) -> tuple[Path, File]:
    """Make a file under a temporary name beside `path`, in place of one that a failed write has left."""
    draft = path.with_name(path.name + DRAFT)
    with suppress(FileNotFoundError):
        files.remove(draft)
    return draft, files.create(draft)


def replace_file(files: Files, path: Path, data: bytes) -> None:
    """Put a small file in place whole; not synced, for caches."""
    draft, file = create_draft(files, path)
    try:
        append_all(file, [data])
    finally:
        file.close()
    files.rename(draft, path)


def close_file(file: File, name: str) -> None:
    """Close a file whose bytes are synced or do not count: an error is logged, and nothing depends on it."""
    try:
        file.close()
    except OSError as error:
        log.warning("file_not_closed", file=name, cause=said(error))


def as_busy(error: OSError, log_name: str, action: str) -> DiskFullError | ResourceExhaustedError | None:
    """Return the error for a full disk, or for a process out of resources; None when `error` is neither."""
    if error.errno in NO_SPACE:
        return DiskFullError(log_name)
    return ResourceExhaustedError(action, said(error)) if is_transient(error) else None


def said(error: BaseException) -> str:
    """Return what an error says of itself, without its number."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
