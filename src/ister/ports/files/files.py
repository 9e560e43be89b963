"""File-system port: the few calls a log needs, so that tests can make each of them fail.

Assumptions about the disk (docs/format.md): synced bytes survive, a rename is atomic, a failed sync proves nothing about any
byte.
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
from ister.core.histogram import Histogram
from ister.core.retry import is_transient
from ister.ports.files.disk_threads import SharedWorkers, ThreadWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ister.core.frames.columns import Frames
    from ister.ports.files.disk_threads import Worker
    from ister.ports.files.open_files import OpenFiles

log = structlog.get_logger()

LOCK_NAME = "LOCK"
IOV_MAX = os.sysconf("SC_IOV_MAX")
"""The number of parts that one writev accepts."""
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
DRAFT = ".tmp"
"""The suffix of a file that is being written."""
LEVELS_OWNED = 3
"""How deep a lock reaches: the owner of `<root>` owns `<root>/<namespace>/<topic>/<generation>`."""
LOCK_TRIES = 3
LOCK_PAUSE_S = 0.005
"""A process that checks whether a directory is locked holds its lock for a moment; so retry."""
QUICK_S = 0.001
QUICK_RUN = 8
"""The number of consecutive quick syncs that is required."""
BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
OTHERS_S = 0.05
"""How long a log counts as syncing after its last sync."""


class SyncLatency:
    """The fsync latency of one disk, shared by all its logs; decides whether a lone fsync may block the event loop.

    The round trip to a thread costs about 100 µs, on a disk that syncs in 260. When one producer sends one message at a
    time, and no other log syncs, that is wasted: the event loop may block itself, if the last syncs were quick.
    """

    __slots__ = ("_at", "_quick", "_user", "sync_seconds")

    def __init__(self) -> None:
        self._user: object = None
        self._at = 0.0
        self._quick = 0
        self.sync_seconds = Histogram(BOUNDS_S)

    def may_block_loop(self, user: object, now: float) -> bool:
        """Return True if a sync by `user` may block the event loop: recent syncs were quick, and no other log syncs."""
        return self._quick >= QUICK_RUN and (self._user is user or now - self._at > OTHERS_S)

    def observe(self, user: object, now: float, seconds: float) -> None:
        """Record a sync by `user`."""
        self.sync_seconds.observe(seconds)
        self._user, self._at = user, now
        if seconds < QUICK_S:
            self._quick = min(self._quick + 1, QUICK_RUN)
        else:
            # The longer the event loop was blocked, the longer it is not blocked again.
            self._quick = -int(QUICK_RUN * seconds / QUICK_S)


class File(Protocol):
    """An open file. Writes go to its end and may be short; every call may raise OSError, a write after some of its bytes."""

    def append(self, parts: Sequence[Frames]) -> int:
        """Append parts, in as few calls as possible; return how many bytes were written, perhaps fewer than given."""

    def read(self, at: int, count: int) -> bytes:
        """Read up to `count` bytes; fewer only at the end."""

    def sync(self) -> float:
        """Sync every byte; return the seconds that this took. Never call it again after it failed."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def size(self) -> int:
        """Return the size."""

    def close(self) -> None:
        """Close the file without syncing."""


class Lock(Protocol):
    """A held lock."""

    def release(self) -> None:
        """Release the lock."""


class Files(Protocol):
    """A file system."""

    def create(self, path: Path) -> File:
        """Create a file for appends; FileExistsError if it exists."""

    def create_durable(self, path: Path) -> File:
        """Create a file for appends and sync its name; a transient error or a full disk means that no file was created.

        Every descriptor is opened before the file is created.
        """

    def open(self, path: Path) -> File:
        """Open a file to read and append."""

    def open_read(self, path: Path) -> File:
        """Open a file to read only."""

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted."""

    def make_directory(self, directory: Path) -> None:
        """Create a directory and its parents, each durable in its own parent."""

    def sync_directory(self, directory: Path) -> None:
        """Sync the names in a directory."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file atomically, replacing the target."""

    def remove(self, path: Path) -> None:
        """Unlink a file."""

    def remove_directory(self, directory: Path) -> None:
        """Remove an empty directory."""

    def lock(self, directory: Path, within: Lock | None = None) -> Lock:
        """Lock a directory and what is below it; LockedError names the owner of it or of a parent directory.

        `within` is a lock of a parent directory that the caller holds for as long as this one, which then costs nothing.
        """

    def worker(self) -> Worker:
        """Return a worker thread for disk operations."""

    @property
    def open_files(self) -> OpenFiles | None:
        """The bound on open log files; None: unbounded."""

    @property
    def sync_latency(self) -> SyncLatency:
        """The fsync latency of this disk."""


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
        fd, self._fd = self._fd, -1  # its number may soon be reused
        os.close(fd)


class _OsLock:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1  # its number may soon be reused
        os.close(fd)


class _Within:
    """A lock that a parent directory's lock implies."""

    __slots__ = ()

    def release(self) -> None:
        """Do nothing: the parent stays locked."""


class OsFiles:
    """The real file system; logs share `threads` worker threads, or have one each if that is None."""

    def __init__(self, threads: int | None = None, open_files: OpenFiles | None = None) -> None:
        self._workers = None if threads is None else SharedWorkers("ister-disk", threads)
        self.sync_latency = SyncLatency()
        self.open_files = open_files
        self._durable: set[Path] = set()

    def create(self, path: Path) -> File:
        """Create a file for appends; FileExistsError if it exists."""
        return _OsFile(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640))

    def create_durable(self, path: Path) -> File:
        """Create a file for appends and sync its name."""
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            file = self.create(path)
            try:
                os.fsync(directory)
            except OSError as error:
                file.close()
                # Neither transient nor a full disk, which would mean that no file was created.
                raise OSError(errno.EIO, f"it could not be synced ({error_text(error)})") from error
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
        """Create a directory and its parents, each durable in its own parent."""
        directory = directory.absolute()
        chain = (directory, *directory.parents)
        if not directory.is_dir():
            self._durable.difference_update([path for path in chain if not path.is_dir()])  # removed meanwhile
            directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        for path in chain[:-1]:
            if path in self._durable:
                continue
            try:
                self.sync_directory(path.parent)
            except PermissionError:
                break  # a directory that we cannot read was not created by us
            self._durable.add(path)

    def sync_directory(self, directory: Path) -> None:
        """Sync the names in a directory."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync(os.fsync, fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file atomically, replacing the target."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Unlink a file."""
        path.unlink()

    def remove_directory(self, directory: Path) -> None:
        """Remove an empty directory."""
        directory.rmdir()

    def lock(self, directory: Path, within: Lock | None = None) -> Lock:
        """Lock a directory and what is below it; LockedError names the owner of it or of a parent directory."""
        if within is not None:
            # A process that locks this directory alone does so before it checks its parents, and the parent was locked
            # before this check: one of the two sees the other.
            _check_unlocked(directory)
            return _Within()
        lock = _OsLock(lock_file(directory / LOCK_NAME, directory))
        try:
            for above in directory.absolute().parents[:LEVELS_OWNED]:
                _check_unlocked(above)
        except BaseException:
            lock.release()
            raise
        return lock

    def worker(self) -> Worker:
        """Return a worker thread for disk operations."""
        return ThreadWorker("ister-disk") if self._workers is None else self._workers.worker()


def lock_file(path: Path, owned: Path) -> int:
    """Lock a file exclusively, write our process id into it and return its descriptor; LockedError names the owner."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        _flock(fd, owned, fcntl.LOCK_EX)
    except BaseException:
        os.close(fd)
        raise
    with suppress(OSError):  # a full disk keeps the process id from the next error message, and no more
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _flock(fd: int, owned: Path, how: int) -> None:
    """Lock an open lock file; LockedError names the owner."""
    for _ in range(LOCK_TRIES - 1):
        with suppress(BlockingIOError):
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return
        time.sleep(LOCK_PAUSE_S)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
        raise LockedError(str(owned), f"process {holder}" if holder else "another process") from None


def _check_unlocked(directory: Path) -> None:
    """Raise LockedError if a directory is locked; change nothing."""
    try:
        fd = os.open(directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        _flock(fd, directory, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def _sync(call: Callable[[int], None], fd: int) -> None:
    """Sync a file or a directory; a failure is never transient, because a second sync would prove nothing."""
    try:
        call(fd)
    except OSError as error:
        if is_transient(error):
            raise OSError(errno.EIO, f"it could not be synced ({error_text(error)})") from error
        raise


def append_all(file: File, parts: Sequence[Frames]) -> None:
    """Write every byte, also after a short write; for files without readers."""
    for part in parts:
        rest = memoryview(part)
        while rest:
            taken = file.append([rest])
            if taken <= 0:
                raise OSError(errno.EIO, "the file takes no bytes")
            rest = rest[taken:]


def create_draft(files: Files, path: Path) -> tuple[Path, File]:
    """Create a draft beside `path`, replacing one that a failed write has left."""
    draft = path.with_name(path.name + DRAFT)
    with suppress(FileNotFoundError):
        files.remove(draft)
    return draft, files.create(draft)


def read_file(files: Files, path: Path) -> bytes:
    """Return the content of a small file."""
    file = files.open_read(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def replace_file(files: Files, path: Path, data: bytes, *, durable: bool = False) -> None:
    """Replace a small file atomically. If `durable`, it is synced: a crash leaves the old one or the new one, whole."""
    draft, file = create_draft(files, path)
    try:
        append_all(file, [data])
        if durable:
            file.sync()
    finally:
        file.close()
    files.rename(draft, path)
    if durable:
        files.sync_directory(path.parent)


def close_file(file: File, name: str) -> None:
    """Close a file whose bytes are synced or do not count; log an error."""
    try:
        file.close()
    except OSError as error:
        log.warning("file_not_closed", file=name, cause=error_text(error))


def as_busy(error: OSError, log_name: str, action: str) -> DiskFullError | ResourceExhaustedError | None:
    """Return the error for a full disk, or for a process out of resources; None if `error` is neither."""
    if error.errno in NO_SPACE:
        return DiskFullError(log_name)
    return ResourceExhaustedError(action, error_text(error)) if is_transient(error) else None


def error_text(error: BaseException) -> str:
    """Return the text of an error, without its errno."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
