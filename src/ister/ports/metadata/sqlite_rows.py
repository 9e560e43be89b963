"""The rows of the metadata file: what is asked of them and how they change, inside whatever transaction is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from ister.core.errors import CorruptMetadataError, WatchCompactedError
from ister.ports.metadata.keys import after_prefix
from ister.ports.metadata.store import Change, Entry
from ister.ports.metadata.watches import BATCH_CHANGES, History, Place, whole

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

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


def create(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty file."""
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
    schema = number(connection, "schema")
    if schema > SCHEMA:
        raise CorruptMetadataError(
            str(path), f"a newer release wrote it (schema {schema}, this one knows {SCHEMA}); use that release"
        )


def number(connection: sqlite3.Connection, name: str) -> int:
    """Return one of the store's own numbers."""
    (value,) = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return int(value)


def since_mark(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return how many changes, and bytes of values, the history holds since the last mark."""
    changes, size = connection.execute(
        "SELECT count(*), ifnull(sum(length(value)), 0) FROM changes WHERE version > ?", (number(connection, "mark"),)
    ).fetchone()
    return changes, size


def get(connection: sqlite3.Connection, path: Path, key: bytes) -> Entry | None:
    """Return one entry."""
    row = connection.execute(
        "SELECT key, value, version, crc FROM keys LEFT JOIN changes USING (key, version) WHERE key = ?", (key,)
    ).fetchone()
    return None if row is None else _entry(path, *row)


def listing(
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


def history(connection: sqlite3.Connection, path: Path, prefix: bytes, place: Place) -> History:
    """Return some changes behind a place, all of one state of the file."""
    if place.version < number(connection, "forgotten"):
        raise WatchCompactedError(str(path), place.version)
    version = number(connection, "version")
    found = connection.execute(
        "SELECT key, value, version, crc FROM changes WHERE (version, key) > (?, ?) AND key >= ? AND key < ?"
        " ORDER BY version, key LIMIT ?",
        (place.version, place.key, prefix, after_prefix(prefix), BATCH_CHANGES),
    ).fetchall()
    changes = [_change(path, *row) for row in found]
    if len(found) == BATCH_CHANGES:
        return History(changes, Place(found[-1][2], found[-1][0]))
    return History(changes, max(place, whole(version)))


def put(
    connection: sqlite3.Connection, key: bytes, value: bytes, *, lease: int | None, expected: int | None
) -> Changed:
    """Set a key; when `expected` is given, only if that is its version."""
    if expected is not None and _version(connection, key) != expected:
        return Changed()
    version = _next_version(connection)
    _record(connection, version, key, value)
    connection.execute("REPLACE INTO keys (key, version, lease) VALUES (?, ?, ?)", (key, version, lease))
    return Changed(1, version, len(value))


def delete(connection: sqlite3.Connection, key: bytes, *, expected: int | None) -> Changed:
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
    """Remove the keys of every lease: those that held them lived in a process that is gone."""
    return _remove(
        connection, [key for (key,) in connection.execute("SELECT key FROM keys WHERE lease IS NOT NULL ORDER BY key")]
    )


def forget(connection: sqlite3.Connection, *, mark: int) -> None:
    """Forget what was superseded before the last mark, and set a new one."""
    forgotten = number(connection, "mark")
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
    return number(connection, "version")


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
