"""The simulated twins of the ports: a disk that can lose power at any step, a clock that steps, a loop without waiting.

What a power loss may do here is what docs/format.md assumes of a disk: bytes that were synced stay; bytes that were not
may be there, missing, zero, garbage or older bytes; a name that was not synced may be missing; a rename is atomic.
"""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path

from ister.core.errors import LockedError
from ister.core.retry import is_transient
from ister.ports.files.files import LEVELS_OWNED, SyncLatency

SECTOR = 64


class DeadlockError(Exception):
    """Every task waits and nothing will ever wake one."""


class SimLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time; work given to threads runs at one moment and is answered at a later one."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._selector = self
        self._now = 0.0
        self._rng = random.Random(seed)

    def time(self) -> float:
        return self._now

    def select(self, timeout):
        if timeout is None:
            raise DeadlockError
        self._now += max(0.0, timeout)
        return []

    def _process_events(self, events):
        assert not events

    def _write_to_self(self):
        """Nothing to wake: nobody else is there."""

    def run_in_executor(self, executor, func, *args):
        future = self.create_future()
        self.call_later(self._rng.choice((0.0, 0.0001, 0.003)), self._work, future, func, args)
        return future

    def _work(self, future, func, args):
        try:
            result, error = func(*args), None
        except Exception as raised:  # noqa: BLE001  # a thread's exception travels in its future
            result, error = None, raised
        self.call_later(self._rng.choice((0.0, 0.0001, 0.003)), self._answer, future, result, error)

    def _answer(self, future, result, error):
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)


def run(main, seed: int = 0):
    """Run a coroutine to its end in virtual time."""
    loop = SimLoop(seed)
    try:
        return loop.run_until_complete(main)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop._ready.clear()
        loop._scheduled.clear()
        loop.close()


class SimClock:
    """A wall clock that can be stepped."""

    def __init__(self, now_us: int = 1_800_000_000_000_000) -> None:
        self.now_us = now_us

    def wall_us(self) -> int:
        self.now_us += 7
        return self.now_us


class Inode:
    """A file's bytes: what is on disk for certain, and what was done since."""

    def __init__(self, data: bytes = b"") -> None:
        self.durable = data
        self.data = bytearray(data)
        self.since: list[tuple[str, bytes | int]] = []
        self.ghosts: list[tuple[int, int]] = []
        self.writes: list[int] = []

    def copy(self) -> Inode:
        """Return a twin that goes its own way from here."""
        twin = Inode(self.durable)
        twin.data = bytearray(self.data)
        twin.since = list(self.since)
        twin.ghosts = list(self.ghosts)
        twin.writes = list(self.writes)
        return twin

    def after_power_loss(self, rng: random.Random) -> bytes:
        """Return one of the contents that this file may have when the power comes back."""
        kept = bytearray(self.durable)
        safe = len(kept)
        for op, value in self.since[: rng.randint(0, len(self.since))]:
            if op == "append":
                kept += value
            else:
                del kept[value:]
                safe = min(safe, value)
        how = rng.choice(("kept", "dropped", "cut", "mixed", "mixed", "misplaced"))
        if how == "dropped":
            del kept[safe:]
        elif how == "cut":
            del kept[rng.randint(safe, len(kept)) :]
        elif how == "misplaced":
            start = rng.choice([at for at in self.writes if at < safe] or [0])
            kept[safe:] = kept[start:safe][: len(kept) - safe]
        elif how == "mixed":
            for start in range(safe, len(kept), SECTOR):
                stop = min(start + SECTOR, len(kept))
                fate = rng.choice(("kept", "kept", "zero", "garbage"))
                if fate == "zero":
                    kept[start:stop] = bytes(stop - start)
                elif fate == "garbage":
                    kept[start:stop] = rng.randbytes(stop - start)
        for first, last in self.ghosts:
            for start in range(first, min(last, len(kept)), SECTOR):
                if rng.random() < 0.5:
                    stop = min(start + SECTOR, last, len(kept))
                    kept[start:stop] = rng.choice((bytes(stop - start), rng.randbytes(stop - start)))
        return bytes(kept)

    def sync_failed(self) -> None:
        """As Linux does: the pages count as clean now, and no later sync will ever write them."""
        safe = min([len(self.durable), *(value for op, value in self.since if op == "truncate")])
        self.ghosts.append((safe, len(self.data)))

    def truncate(self, size: int) -> None:
        """Cut; what is written there afterwards is new."""
        del self.data[size:]
        self.since.append(("truncate", size))
        self.ghosts = [(start, min(stop, size)) for start, stop in self.ghosts if start < size]


class SimFiles:
    """A file system in memory; `on_step` is called before each operation that changes it, and may raise OSError."""

    def __init__(self) -> None:
        self.names_now: dict[Path, Inode] = {}
        self.names_durable: dict[Path, Inode] = {}
        self.names_since: dict[Path, list[tuple[str, Path, Path | Inode | None]]] = {}
        self.directories: set[Path] = set()
        self.locked: set[Path] = set()
        self.capacity: int | None = None
        self.sync_latency = SyncLatency()
        self.open_files = None
        self.sync_s = 0.01
        self.unreadable: set[Path] = set()
        self.on_step = lambda op, path: None  # nothing happens unless a test wants it
        self.steps = 0

    # --- the machine goes down ----------------------------------------------------------------------------------------

    def killed(self) -> SimFiles:
        """Return the disk as a killed process leaves it: nothing is locked, and what was not synced still is not."""
        image = SimFiles()
        copies: dict[int, Inode] = {}

        def copy(inode: Inode) -> Inode:
            return copies.setdefault(id(inode), inode.copy())

        image.names_now = {path: copy(inode) for path, inode in self.names_now.items()}
        image.names_durable = {path: copy(inode) for path, inode in self.names_durable.items()}
        image.names_since = {
            directory: [(op, path, copy(other) if isinstance(other, Inode) else other) for op, path, other in changes]
            for directory, changes in self.names_since.items()
        }
        image.directories = set(self.directories)
        return image

    def unpowered(self, rng: random.Random) -> SimFiles:
        """Return one of the disks that a power loss may leave."""
        names = dict(self.names_durable)
        for changes in self.names_since.values():
            if rng.random() < 0.5:
                survived = changes[: rng.randint(0, len(changes))]
            else:
                survived = [change for change in changes if rng.random() < 0.5]
            for op, path, other in survived:
                if op == "create":
                    names[path] = other
                elif op == "rename" and path in names:
                    names[other] = names.pop(path)
                elif op == "remove":
                    names.pop(path, None)
        image = SimFiles()
        image.directories = set(self.directories)
        image.names_now = {path: Inode(inode.after_power_loss(rng)) for path, inode in names.items()}
        image.names_durable = dict(image.names_now)
        return image

    # --- the port -----------------------------------------------------------------------------------------------------

    def _step(self, op: str, path: Path) -> None:
        self.steps += 1
        try:
            self.on_step(op, path)
        except OSError as error:
            if op.startswith("sync") and is_transient(error):
                raise OSError(errno.EIO, f"it could not be synced ({error.strerror})") from error
            raise

    def create(self, path: Path) -> SimFile:
        self._step("create", path)
        self._need_directory(path.parent)
        if path in self.names_now:
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        if self.capacity is not None and self.room() < 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        inode = self.names_now[path] = Inode()
        self._changed("create", path, inode)
        return SimFile(self, inode, path)

    def create_durable(self, path: Path) -> SimFile:
        file = self.create(path)
        try:
            self.sync_directory(path.parent)
        except OSError as error:
            raise OSError(errno.EIO, f"it could not be synced ({error.strerror})") from error
        return file

    def open(self, path: Path) -> SimFile:
        return SimFile(self, self._inode(path), path)

    def open_read(self, path: Path) -> SimFile:
        return SimFile(self, self._inode(path), path)

    def names(self, directory: Path) -> list[str]:
        if directory in self.names_now:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(directory))
        self._need_directory(directory)
        inside = [path for path in [*self.names_now, *self.directories] if path.parent == directory]
        return sorted(path.name for path in inside if path != directory)

    def make_directory(self, directory: Path) -> None:
        self.directories |= {directory, *directory.parents}

    def sync_directory(self, directory: Path) -> None:
        self._step("sync_directory", directory)
        self._need_directory(directory)
        for path in [path for path in self.names_durable if path.parent == directory]:
            del self.names_durable[path]
        self.names_durable |= {path: inode for path, inode in self.names_now.items() if path.parent == directory}
        self.names_since.pop(directory, None)

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename", source)
        self._inode(source)
        self.names_now[target] = self.names_now.pop(source)
        self._changed("rename", source, target)

    def remove(self, path: Path) -> None:
        self._step("remove", path)
        self._inode(path)
        del self.names_now[path]
        self._changed("remove", path, None)

    def remove_directory(self, directory: Path) -> None:
        self._need_directory(directory)
        if any(path.parent == directory for path in [*self.names_now, *self.directories]):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", str(directory))
        self.directories.discard(directory)

    def lock(self, directory: Path, within: SimLock | None = None) -> SimLock:
        self._need_directory(directory)
        above = [] if within is not None else directory.parents[:LEVELS_OWNED]
        for owned in (directory, *above):
            if owned in self.locked:
                raise LockedError(str(owned), "process 1")
        if within is not None:
            return SimLock(self, None)
        self.locked.add(directory)
        return SimLock(self, directory)

    def worker(self) -> SimWorker:
        return SimWorker()

    def room(self) -> int:
        """How many bytes are left."""
        assert self.capacity is not None
        return self.capacity - sum(len(inode.data) for inode in self.names_now.values())

    def _changed(self, op: str, path: Path, other: Path | Inode | None) -> None:
        self.names_since.setdefault(path.parent, []).append((op, path, other))

    def _need_directory(self, directory: Path) -> None:
        if directory not in self.directories:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(directory))

    def _inode(self, path: Path) -> Inode:
        if path not in self.names_now:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        if path in self.unreadable:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return self.names_now[path]


class SimWorker:
    """A thread that the simulated loop runs; it does one thing after the other, like the real one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs = []
        self._busy = self._closed = False

    def run(self, work, then):
        self._jobs.append((work, then))
        if not self._busy:
            self._start()

    def close(self):
        self._closed = True

    def _start(self):
        self._busy = True
        work, then = self._jobs.pop(0)

        def answer(job):
            self._busy = False
            error = job.exception()
            try:
                if not self._closed:
                    then(None if error else job.result(), error)
            finally:
                if self._jobs and not self._busy:
                    self._start()

        self._loop.run_in_executor(None, work).add_done_callback(answer)


class SimLock:
    def __init__(self, files: SimFiles, directory: Path | None) -> None:
        self._files = files
        self._directory = directory

    def release(self) -> None:
        self._files.locked.discard(self._directory)


class SimFile:
    def __init__(self, files: SimFiles, inode: Inode, path: Path) -> None:
        self._files = files
        self._inode = inode
        self._path = path
        self._open = True

    def append(self, parts) -> int:
        data = b"".join(parts)
        short = self._act("append")
        if short is not None:
            data = data[: short % max(1, len(data))]
        elif self._files.capacity is not None and len(data) > self._files.room():
            data = data[: max(0, self._files.room())]
            if not data:
                raise OSError(errno.ENOSPC, "No space left on device")
        self._inode.writes.append(len(self._inode.data))
        self._inode.data += data
        self._inode.since.append(("append", data))
        return len(data)

    def read(self, at: int, count: int) -> bytes:
        assert self._open
        return bytes(self._inode.data[at : at + count])

    def sync(self) -> float:
        try:
            self._act("sync")
        except OSError:
            self._inode.sync_failed()
            raise
        self._inode.durable = bytes(self._inode.data)
        self._inode.since = []
        return self._files.sync_s

    def truncate(self, size: int) -> None:
        self._act("truncate")
        assert size <= len(self._inode.data)
        self._inode.truncate(size)

    def size(self) -> int:
        return len(self._inode.data)

    def close(self) -> None:
        self._open = False

    def _act(self, op: str) -> int | None:
        if not self._open:
            raise OSError(errno.EBADF, "Bad file descriptor")
        try:
            self._files._step(op, self._path)
        except ShortWriteError as short:
            return short.count
        return None


class ShortWriteError(Exception):
    """Raised by a test's `on_step` to make an append take fewer bytes than it was given."""

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__(count)
