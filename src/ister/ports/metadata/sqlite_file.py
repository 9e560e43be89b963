"""SQLite file of the metadata store: tables, lock, error mapping. Everything here blocks.

`changes` is the history, one row per change with its value (NULL: removed) and a checksum, since SQLite has none.
`keys` has the last change of each key, and its lease. After so many changes or bytes a mark is set, and history that was
superseded before the previous mark is deleted: a watch can go back one to two such spans.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from ister.core.errors import (
    CorruptMetadataError,
    MetadataUnavailableError,
    MetadataUnknownError,
    WatchCompactedError,
)
from ister.ports.files.files import OsFiles, lock_file
from ister.ports.metadata.store import Change, Entry, after_prefix
from ister.ports.metadata.watches import BATCH_CHANGES, History, WatchPosition, whole

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


SCHEMA = 1
APPLICATION_ID = 0x49537465  # "ISte"

_TABLES = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL)",
    "CREATE TABLE changes (version INTEGER, key BLOB, value BLOB, crc INTEGER NOT NULL, PRIMARY KEY (version, key))",
    "CREATE TABLE keys (key BLOB PRIMARY KEY, version INTEGER NOT NULL, lease INTEGER) WITHOUT ROWID",
    "CREATE INDEX keys_of_leases ON keys (lease) WHERE lease IS NOT NULL",
)


class Changed(NamedTuple):
    """How many keys were changed, at which version, with how many bytes of values."""

    keys: int = 0
    version: int = 0
    value_bytes: int = 0


class HistoryBounds(NamedTuple):
    """The changes, or bytes of values, after which a mark is set and older history is deleted."""

    changes_max: int = 10_000
    bytes_max: int = 64 * 1024 * 1024


class _State(NamedTuple):
    """The state of the files: how a reader opens them, and whether they have changed."""

    shared: bool
    wal_bytes: int
    main_bytes: int
    main_mtime_ns: int


@dataclass(slots=True, eq=False)
class PendingChange:
    """A pending change and its outcome: a version, 0 if there was nothing to change, or an error."""

    action: str
    act: Callable[[sqlite3.Connection], Changed]
    version: int = 0
    error: Exception | None = None


class ReadFile:
    """Reads the file while another process may write it. Every query opens it, and creates no file beside it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def query(self, action: str, ask: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of a query of one consistent state.

        While there is a -shm file, a writer lives or has crashed, and SQLite reads the -wal file through it without
        writing. Without one everything is in the main file; asking SQLite for the others would create them. There it
        takes no locks, so a result counts only if the file has not changed meanwhile.
        """
        for _ in range(READ_TRIES):
            before = self._state(action)
            if before.wal_bytes and not before.shared:
                time.sleep(READ_PAUSE_S)  # a closing writer deletes -shm, then -wal
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
            _mapped_errors(self._path, action),
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
            check_schema(connection, self._path)
            return ask(connection)

    def _state(self, action: str) -> _State:
        wal_bytes = 0
        with suppress(FileNotFoundError):
            wal_bytes = self._path.with_name(self._path.name + "-wal").stat().st_size
        shared = self._path.with_name(self._path.name + "-shm").exists()
        with _mapped_errors(self._path, action):
            main = self._path.stat()
        return _State(shared, wal_bytes, main.st_size, main.st_mtime_ns)


class WriteFile:
    """Owns the file: one process, one connection, one thread."""

    def __init__(self, path: Path, bounds: HistoryBounds) -> None:
        self._path = path
        self._bounds = bounds
        self._broken = ""
        with _mapped_errors(path, "open"):
            # Beside the file: SQLite's own locks are dropped when any descriptor of the file is closed.
            self._lock = lock_file(path.with_name(path.name + ".lock"), path)
            try:
                self._connection = _open_retrying(path)
            except BaseException:
                os.close(self._lock)
                raise
        try:
            with _mapped_errors(path, "open"):
                self._since = since_mark(self._connection)
            self.change("remove the keys of ended leases", remove_all_leased)
        except BaseException:
            self.close()
            raise

    def query(self, action: str, ask: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of a query."""
        with _mapped_errors(self._path, action):
            return ask(self._connection)

    def change(self, action: str, act: Callable[[sqlite3.Connection], Changed]) -> int:
        """Make changes of one version durable; return that version, or 0 if there was nothing to change.

        A failed sync is not tried again, and nothing is written any more: Linux marks the pages clean, so a second sync
        would succeed for data that never reached the disk.
        """
        if self._broken:
            raise MetadataUnavailableError(str(self._path), action, f"{self._broken}; open it again")
        connection = self._connection
        try:
            with _mapped_errors(self._path, action):
                connection.execute("BEGIN IMMEDIATE")
                changed = act(connection)
                if changed.keys:
                    changes, size = self._since[0] + changed.keys, self._since[1] + changed.value_bytes
                    if changes >= self._bounds.changes_max or size >= self._bounds.bytes_max:
                        forget_history(connection, mark=changed.version)
                        changes, size = 0, 0
            with _mapped_errors(self._path, action, committing=True):
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

    def change_all(self, pending: Sequence[PendingChange]) -> None:
        """Make many changes durable with one sync, in order, each as if it were alone, with its own outcome."""
        if len(pending) > 1 and not self._broken:
            with suppress(MetadataUnavailableError, CorruptMetadataError, sqlite3.Error):
                self._change_together(pending)
                return
        # One of them failed before the commit: try each alone, so that the error is attributed to it.
        for change in pending:
            try:
                change.version = self.change(change.action, change.act)
            except Exception as error:  # noqa: BLE001  # the caller of this change gets it
                change.error = error

    def _change_together(self, pending: Sequence[PendingChange]) -> None:
        results: list[Changed] = []

        def act(connection: sqlite3.Connection) -> Changed:
            results.extend(change.act(connection) for change in pending)
            version = max(result.version for result in results)
            return Changed(sum(r.keys for r in results), version, sum(r.value_bytes for r in results))

        try:
            self.change(f"make {len(pending)} changes", act)
        except MetadataUnknownError as error:
            for change in pending:
                change.error = MetadataUnknownError(str(self._path), change.action, error.cause)
            return
        for change, result in zip(pending, results, strict=True):
            change.version = result.version

    def close(self) -> None:
        """Close the file, then release its lock."""
        try:
            with _mapped_errors(self._path, "close"):
                self._connection.close()
        finally:
            os.close(self._lock)


def _open_retrying(path: Path) -> sqlite3.Connection:
    """Open the file to write.

    SQLite shares its index of the -wal file among the connections of a process: while one that reads has opened it
    without the right to write, ours has no such right either. It closes in a moment.
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
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Check the file, or create its tables, and choose the journal."""
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
        check_schema(connection, path)
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":  # network file systems cannot share memory
        raise MetadataUnavailableError(str(path), "open", f"its journal is {mode}; put it on a local file system")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
    create_tables(connection)
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise CorruptMetadataError(str(path), found)
    OsFiles().sync_directory(path.parent)


@contextmanager
def _mapped_errors(path: Path, action: str, *, committing: bool = False) -> Iterator[None]:
    """Map errors of SQLite and of the system to ours."""
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


# --- the tables, inside whatever transaction is open ---------------------------------------------------------------------


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables in an empty file."""
    connection.execute("BEGIN IMMEDIATE")
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
        for statement in _TABLES:
            connection.execute(statement)
        numbers = [("schema", SCHEMA), ("version", 0), ("mark", 0), ("forgotten", 0)]
        connection.executemany("INSERT INTO meta VALUES (?, ?)", numbers)
    connection.execute("COMMIT")


def check_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Raise unless this release wrote the file, or an older one that it knows."""
    if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
        raise CorruptMetadataError(str(path), "it is a database, but not Ister's metadata")
    schema = meta_number(connection, "schema")
    if schema > SCHEMA:
        raise CorruptMetadataError(
            str(path), f"a newer release wrote it (schema {schema}, this one knows {SCHEMA}); use that release"
        )


def meta_number(connection: sqlite3.Connection, name: str) -> int:
    """Return a number of the table `meta`."""
    (value,) = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return int(value)


def since_mark(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return how many changes, and bytes of values, the history holds since the last mark."""
    changes, size = connection.execute(
        "SELECT count(*), ifnull(sum(length(value)), 0) FROM changes WHERE version > ?",
        (meta_number(connection, "mark"),),
    ).fetchone()
    return changes, size


def get_entry(connection: sqlite3.Connection, path: Path, key: bytes) -> Entry | None:
    """Return one entry."""
    row = connection.execute(
        "SELECT key, value, version, crc FROM keys LEFT JOIN changes USING (key, version) WHERE key = ?", (key,)
    ).fetchone()
    return None if row is None else _entry(path, *row)


def list_entries(
    connection: sqlite3.Connection, path: Path, first: bytes, stop: bytes, limit: int, *, reverse: bool
) -> list[Entry]:
    """Return the entries with keys in [first, stop), at most `limit` of them (all, when negative)."""
    order = "DESC" if reverse else "ASC"
    found = connection.execute(
        "SELECT key, value, version, crc FROM keys LEFT JOIN changes USING (key, version)"  # noqa: S608  # no input
        f" WHERE key >= ? AND key < ? ORDER BY key {order} LIMIT ?",
        (first, stop, limit),
    )
    return [_entry(path, *row) for row in found]


def read_changes(connection: sqlite3.Connection, path: Path, prefix: bytes, place: WatchPosition) -> History:
    """Return some changes behind a place, all of one state of the file."""
    if place.version < meta_number(connection, "forgotten"):
        raise WatchCompactedError(str(path), place.version)
    version = meta_number(connection, "version")
    found = connection.execute(
        "SELECT key, value, version, crc FROM changes WHERE (version, key) > (?, ?) AND key >= ? AND key < ?"
        " ORDER BY version, key LIMIT ?",
        (place.version, place.key, prefix, after_prefix(prefix), BATCH_CHANGES),
    ).fetchall()
    changes = [_change(path, *row) for row in found]
    if len(found) == BATCH_CHANGES:
        return History(changes, WatchPosition(found[-1][2], found[-1][0]))
    return History(changes, max(place, whole(version)))


def put_key(
    connection: sqlite3.Connection, key: bytes, value: bytes, *, lease: int | None, expected: int | None
) -> Changed:
    """Set a key; when `expected` is given, only if that is its version."""
    if expected is not None and _version(connection, key) != expected:
        return Changed()
    version = _next_version(connection)
    _record(connection, version, key, value)
    connection.execute("REPLACE INTO keys (key, version, lease) VALUES (?, ?, ?)", (key, version, lease))
    return Changed(1, version, len(value))


def delete_key(connection: sqlite3.Connection, key: bytes, *, expected: int | None) -> Changed:
    """Remove a key; when `expected` is given, only if that is its version."""
    version = _version(connection, key)
    if version == 0 or expected not in {None, version}:
        return Changed()
    return _remove(connection, [key])


def remove_leased(connection: sqlite3.Connection, lease: int) -> Changed:
    """Remove the keys of a lease."""
    found = connection.execute("SELECT key FROM keys WHERE lease = ? ORDER BY key", (lease,))
    return _remove(connection, [key for (key,) in found])


def remove_all_leased(connection: sqlite3.Connection) -> Changed:
    """Delete the keys of every lease: their owners lived in a process that has ended."""
    return _remove(
        connection, [key for (key,) in connection.execute("SELECT key FROM keys WHERE lease IS NOT NULL ORDER BY key")]
    )


def forget_history(connection: sqlite3.Connection, *, mark: int) -> None:
    """Delete what was superseded before the last mark, and set a new mark."""
    forgotten = meta_number(connection, "mark")
    connection.execute(
        "DELETE FROM changes WHERE version <= ? AND NOT EXISTS"
        " (SELECT 1 FROM keys WHERE keys.key = changes.key AND keys.version = changes.version)",
        (forgotten,),
    )
    connection.execute("UPDATE meta SET value = ? WHERE name = 'forgotten'", (forgotten,))
    connection.execute("UPDATE meta SET value = ? WHERE name = 'mark'", (mark,))


def _version(connection: sqlite3.Connection, key: bytes) -> int:
    row = connection.execute("SELECT version FROM keys WHERE key = ?", (key,)).fetchone()
    return 0 if row is None else row[0]


def _next_version(connection: sqlite3.Connection) -> int:
    connection.execute("UPDATE meta SET value = value + 1 WHERE name = 'version'")
    return meta_number(connection, "version")


def _remove(connection: sqlite3.Connection, keys: list[bytes]) -> Changed:
    if not keys:
        return Changed()
    version = _next_version(connection)
    for key in keys:
        connection.execute("DELETE FROM keys WHERE key = ?", (key,))
        _record(connection, version, key, None)
    return Changed(len(keys), version)


def _record(connection: sqlite3.Connection, version: int, key: bytes, value: bytes | None) -> None:
    connection.execute("INSERT INTO changes VALUES (?, ?, ?, ?)", (version, key, value, _crc(version, key, value)))


def _crc(version: int, key: bytes, value: bytes | None) -> int:
    crc = crc32(key, crc32(version.to_bytes(8, "big")))
    return crc if value is None else crc32(value, crc32(b"=", crc))


def _entry(path: Path, key: bytes, value: bytes | None, version: int, crc: int | None) -> Entry:
    change = _change(path, key, value, version, crc)
    if change.value is None:
        raise CorruptMetadataError(f"{change.key} in {path}", "its value is missing")
    return Entry(change.key, change.value, version)


def _change(path: Path, key: bytes, value: bytes | None, version: int, crc: int | None) -> Change:
    if crc is None or _crc(version, key, value) != crc:
        raise CorruptMetadataError(f"{key.decode(errors='replace')} in {path}", "its bytes are not those that were put")
    return Change(key.decode(), value, version)
