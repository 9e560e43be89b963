"""The SQLite file that holds metadata: its tables, its lock, and what its errors mean. Everything here blocks.

`changes` is the history, one row per change with its value (NULL: removed) and a checksum, since SQLite has none.
`keys` says which change of a key is the last one, and which lease it hangs on. After so many changes or bytes a mark is
set, and what was superseded before the previous mark is forgotten: a watch can go back one to two such spans.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from ister.core.errors import CorruptMetadataError, LockedError, MetadataUnavailableError, MetadataUnknownError
from ister.ports.metadata import sqlite_rows as rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import TypeVar

    T = TypeVar("T")

BUSY_TIMEOUT_S = 5.0
WAL_BYTES_KEPT = 16 * 1024 * 1024
READ_TRIES = 10
WRITE_TRIES = 25
READ_PAUSE_S = 0.02


class HistoryBounds(NamedTuple):
    """After how many changes, or bytes of values, a mark is set and older history is forgotten."""

    changes_max: int = 10_000
    bytes_max: int = 64 * 1024 * 1024


class _State(NamedTuple):
    """What tells a reader how to open the file, and whether someone has changed it."""

    shared: bool
    wal_bytes: int
    main_bytes: int
    main_mtime_ns: int


class Wanted:
    """A change that someone waits for, and what became of it: a version, 0 when nothing was to change, or an error."""

    __slots__ = ("act", "action", "error", "version")

    def __init__(self, action: str, act: Callable[[sqlite3.Connection], rows.Changed]) -> None:
        self.action = action
        self.act = act
        self.version = 0
        self.error: Exception | None = None


class ReadFile:
    """Reads the file while another process may write it. Every query opens it anew, and leaves no trace beside it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def query(self, action: str, ask: Callable[[sqlite3.Connection], T]) -> T:
        """Return what a question to one consistent state gives.

        While there is a -shm file, a writer lives or has crashed, and SQLite reads the -wal file through it without
        writing. Without one everything is in the main file; asking SQLite for the others would create them. There it
        takes no locks, so an answer counts only when nobody has touched the file meanwhile.
        """
        for _ in range(READ_TRIES):
            before = self._state(action)
            if before.wal_bytes and not before.shared:
                time.sleep(READ_PAUSE_S)  # a writer that closes takes away the one, then the other
                continue
            options = "mode=ro&readonly_shm=1" if before.shared else "mode=ro&immutable=1"
            try:
                answer = self._once(action, options, ask)
            except (CorruptMetadataError, MetadataUnavailableError):
                if self._state(action) == before:
                    raise
                continue
            if before.shared or self._state(action) == before:
                return answer
        cause = "there is a -wal file and no -shm file; let the broker open it once, or copy all files of the database"
        raise MetadataUnavailableError(str(self._path), action, cause)

    def close(self) -> None:
        """Nothing is open between queries."""

    def _once(self, action: str, options: str, ask: Callable[[sqlite3.Connection], T]) -> T:
        with (
            _meaning(self._path, action),
            closing(
                sqlite3.connect(
                    f"{self._path.absolute().as_uri()}?{options}",
                    uri=True,
                    timeout=BUSY_TIMEOUT_S,
                    isolation_level=None,
                )
            ) as connection,
        ):
            connection.execute("BEGIN")
            rows.check_schema(connection, self._path)
            return ask(connection)

    def _state(self, action: str) -> _State:
        wal_bytes = 0
        with suppress(FileNotFoundError):
            wal_bytes = self._path.with_name(self._path.name + "-wal").stat().st_size
        shared = self._path.with_name(self._path.name + "-shm").exists()
        with _meaning(self._path, action):
            main = self._path.stat()
        return _State(shared, wal_bytes, main.st_size, main.st_mtime_ns)


class WriteFile:
    """Owns the file: one process, one connection, one thread."""

    def __init__(self, path: Path, bounds: HistoryBounds) -> None:
        self._path = path
        self._bounds = bounds
        self._broken = ""
        with _meaning(path, "open"):
            self._lock = _lock(path)
            try:
                self._connection = _open_patiently(path)
            except BaseException:
                os.close(self._lock)
                raise
        try:
            with _meaning(path, "open"):
                self._since = rows.since_mark(self._connection)
            self.change("remove the keys of ended leases", rows.remove_all_leased)
        except BaseException:
            self.close()
            raise

    def query(self, action: str, ask: Callable[[sqlite3.Connection], T]) -> T:
        """Return what a question gives."""
        with _meaning(self._path, action):
            return ask(self._connection)

    def change(self, action: str, act: Callable[[sqlite3.Connection], rows.Changed]) -> int:
        """Make changes of one version durable; returns that version, or 0 when there was nothing to change.

        A failed sync is not tried again, and nothing is written any more: Linux marks the pages clean, so a second sync
        would succeed for data that never reached the disk.
        """
        if self._broken:
            raise MetadataUnavailableError(str(self._path), action, f"{self._broken}; open it again")
        connection = self._connection
        try:
            with _meaning(self._path, action):
                connection.execute("BEGIN IMMEDIATE")
                changed = act(connection)
                if changed.keys:
                    changes, size = self._since[0] + changed.keys, self._since[1] + changed.value_bytes
                    if changes >= self._bounds.changes_max or size >= self._bounds.bytes_max:
                        rows.forget(connection, mark=changed.version)
                        changes, size = 0, 0
            with _meaning(self._path, action, committing=True):
                connection.execute("COMMIT" if changed.keys else "ROLLBACK")
        except MetadataUnknownError as error:
            self._broken = error.cause
            raise
        finally:
            if connection.in_transaction:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
        if not changed.keys:
            return 0
        self._since = (changes, size)
        return changed.version

    def change_all(self, wanted: Sequence[Wanted]) -> None:
        """Make many changes durable with one sync, in order, each as if it were alone; each is told its own outcome."""
        if len(wanted) > 1 and not self._broken:
            with suppress(MetadataUnavailableError, CorruptMetadataError, sqlite3.Error):
                self._change_together(wanted)
                return
        # One of them failed before anything was committed: whose fault it was shows when each is tried by itself.
        for change in wanted:
            try:
                change.version = self.change(change.action, change.act)
            except Exception as error:  # noqa: BLE001  # it belongs to whoever wanted this
                change.error = error

    def _change_together(self, wanted: Sequence[Wanted]) -> None:
        results: list[rows.Changed] = []

        def act(connection: sqlite3.Connection) -> rows.Changed:
            results.extend(change.act(connection) for change in wanted)
            version = max(result.version for result in results)
            return rows.Changed(sum(r.keys for r in results), version, sum(r.value_bytes for r in results))

        try:
            self.change(f"make {len(wanted)} changes", act)
        except MetadataUnknownError as error:
            for change in wanted:
                change.error = MetadataUnknownError(str(self._path), change.action, error.cause)
            return
        for change, result in zip(wanted, results, strict=True):
            change.version = result.version

    def close(self) -> None:
        """Let go of the file, then of its lock."""
        try:
            with _meaning(self._path, "close"):
                self._connection.close()
        finally:
            os.close(self._lock)


def _open_patiently(path: Path) -> sqlite3.Connection:
    """Open the file to write.

    SQLite shares its index of the -wal file among the connections of a process: while one that reads has opened it
    without the right to write, ours has no such right either. Such a one is gone in a moment.
    """
    for _ in range(WRITE_TRIES):
        try:
            return _open(path)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
                raise
            time.sleep(READ_PAUSE_S)
    return _open(path)


def _open(path: Path) -> sqlite3.Connection:
    with suppress(FileExistsError):
        # Only a new file is opened here: closing a descriptor drops the locks SQLite holds on the file in this process.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640))
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
            rows.check_schema(connection, path)
        _use_wal(connection, path)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
        rows.create(connection)
        _check_pages(connection, path)
        _sync_directory(path.parent)
    except BaseException:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection, path: Path) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":  # network file systems cannot share memory
        raise MetadataUnavailableError(str(path), "open", f"its journal is {mode}; put it on a local file system")


def _check_pages(connection: sqlite3.Connection, path: Path) -> None:
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise CorruptMetadataError(str(path), found)


def _lock(path: Path) -> int:
    """Own the file, by a lock beside it: SQLite's own locks are dropped when any descriptor of the file is closed."""
    fd = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
        os.close(fd)
        if not isinstance(error, BlockingIOError):
            raise
        raise LockedError(str(path), f"process {holder}" if holder else "another process") from None
    with suppress(OSError):  # a full disk keeps the name from the next one's error message, and no more
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _meaning(path: Path, action: str, *, committing: bool = False) -> Iterator[None]:
    """Say what an error of SQLite or of the system means to our callers."""
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.InterfaceError):
        raise
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            raise CorruptMetadataError(str(path), str(error)) from error
        if committing and code == sqlite3.SQLITE_IOERR:
            raise MetadataUnknownError(str(path), action, str(error)) from error
        raise MetadataUnavailableError(str(path), action, str(error)) from error
    except OSError as error:
        raise MetadataUnavailableError(str(path), action, str(error)) from error
