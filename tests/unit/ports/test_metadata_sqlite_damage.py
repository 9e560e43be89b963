"""What a damaged file, a full disk and a failed sync do to SQLite metadata."""

import asyncio
import sqlite3
import threading
from contextlib import closing

import pytest

from ister.core.errors import CorruptMetadataError, MetadataUnavailableError, MetadataUnknownError
from ister.ports.metadata import Entry, SqliteMetadata
from services.metadata_contract import run, take


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metadata.db"


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("not a database", lambda data: b"x" * len(data)),
        ("cut", lambda data: data[:5000]),
        ("a page of zeros", lambda data: data[:4096] + bytes(4096) + data[8192:]),
    ],
)
def test_a_damaged_file_is_named(path, name, damage):
    async def read_all():
        reader = await SqliteMetadata.open(path, read_only=True)
        try:
            await reader.list("/")
        finally:
            await reader.close()

    async def main():
        store = await SqliteMetadata.open(path)
        for n in range(50):
            await store.put(f"/{n}", b"x" * 1000)
        await store.close()
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises(CorruptMetadataError, match=str(path)):
            await SqliteMetadata.open(path)
        with pytest.raises(CorruptMetadataError, match=str(path)):
            await read_all()

    run(main())


def test_a_flipped_bit_in_a_value_is_not_served(path):
    async def main():
        store = await SqliteMetadata.open(path)
        await store.put("/good", b"good")
        await store.put("/bad", b"these bytes")
        await store.close()
        path.write_bytes(path.read_bytes().replace(b"these bytes", b"those bytes"))
        store = await SqliteMetadata.open(path)
        assert (await store.get("/good")).value == b"good"
        for act in (store.get("/bad"), store.list("/"), take(store.watch("/", after=0), 2)):
            with pytest.raises(CorruptMetadataError, match=r"/bad in .*metadata.db"):
                await act
        await store.close()

    run(main())


def test_a_newer_schema_and_a_foreign_database_are_refused(path):
    async def main():
        await (await SqliteMetadata.open(path)).close()
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE meta SET value = 2 WHERE name = 'schema'")
        foreign = path.with_name("catalog.db")
        with closing(sqlite3.connect(foreign)) as connection, connection:
            connection.execute("CREATE TABLE iceberg_tables (a)")
        before = foreign.read_bytes()
        for read_only in (False, True):
            with pytest.raises(CorruptMetadataError, match=r"newer release wrote it .schema 2, this one knows 1"):
                await SqliteMetadata.open(path, read_only)
            with pytest.raises(CorruptMetadataError, match="not Ister's metadata"):
                await SqliteMetadata.open(foreign, read_only)
        assert foreign.read_bytes() == before

    run(main())


def test_f10_a_full_disk_refuses_keeps_reading_and_resumes(path):
    async def main():
        store = await SqliteMetadata.open(path)
        await store.put("/a", b"before")
        connection = store._file._connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(MetadataUnavailableError, match="full"):
            await store.put("/a", b"x" * 100_000)
        assert await store.get("/a") == Entry("/a", b"before", 1)
        connection.execute("PRAGMA max_page_count = 1000000")
        assert await store.put("/a", b"x" * 100_000) == 2
        await store.close()

    run(main())


@pytest.mark.parametrize("together", [1, 20])
def test_f8_after_a_failed_sync_the_outcome_is_unknown_and_nothing_more_is_written(path, together):
    class Failing:
        def __init__(self, connection):
            self.connection = connection

        def __getattr__(self, name):
            return getattr(self.connection, name)

        def execute(self, statement, *values):
            if statement == "COMMIT":
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
                raise error
            return self.connection.execute(statement, *values)

    async def main():
        store = await SqliteMetadata.open(path)
        await store.put("/a", b"1")
        good = store._file._connection
        store._file._connection = Failing(good)
        outcomes = await asyncio.gather(*(store.put(f"/{n}", b"2") for n in range(together)), return_exceptions=True)
        unknown = [outcome for outcome in outcomes if isinstance(outcome, MetadataUnknownError)]
        assert len(unknown) >= min(2, together), "the first turn takes one or all, the next the rest"
        assert "disk I/O error" in str(unknown[0])
        assert all(isinstance(outcome, (MetadataUnknownError, MetadataUnavailableError)) for outcome in outcomes)
        store._file._connection = good
        with pytest.raises(MetadataUnavailableError, match="open it again"):
            await store.put("/a", b"3")
        assert [entry.key for entry in await store.list("/")] == ["/a"]
        assert (await store.get("/a")).value == b"1"
        await store.close()

    run(main())


def test_a_change_that_fails_takes_none_of_those_with_it_that_shared_its_sync(path):
    def bad(connection):
        connection.execute("INSERT INTO keys VALUES (x'00', 1, NULL)")
        raise sqlite3.OperationalError("made up")

    async def main():
        store = await SqliteMetadata.open(path)
        held = threading.Event()
        store._thread.submit(held.wait)  # so that all of them wait together
        good = [asyncio.create_task(store.put(f"/{n}", b"")) for n in range(5)]
        failing = asyncio.create_task(store._change("do what cannot be done", bad))
        good += [asyncio.create_task(store.put(f"/{n}", b"")) for n in range(5, 10)]
        await asyncio.sleep(0)
        held.set()
        with pytest.raises(MetadataUnavailableError, match="could not do what cannot be done: made up"):
            await failing
        assert [await put for put in good] == list(range(1, 11))
        assert [entry.key for entry in await store.list("/")] == [f"/{n}" for n in range(10)]
        assert store._file._connection.execute("SELECT count(*) FROM keys").fetchone() == (10,)
        await store.close()

    run(main())
