"""SQLite metadata: durable, one writer, readers without a trace, and damage that is named."""

import asyncio
import inspect
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from pathlib import Path

import pytest

from ister.core.errors import (
    InvalidConfigError,
    LockedError,
    MetadataUnavailableError,
    WatchCompactedError,
)
from ister.ports.metadata import Change, Entry, SqliteMetadata
from ister.ports.metadata.sqlite import TOGETHER_MAX
from ister.ports.metadata.sqlite_file import HistoryBounds
from services.metadata_contract import run, take

pytestmark = pytest.mark.slow

OTHER_USER = 65534

WRITER = """
import asyncio, sys
from ister.ports.metadata import SqliteMetadata

async def main():
    store = await SqliteMetadata.open(sys.argv[1])
    lease = await store.lease(60)
    await store.put("/leased", b"", lease=lease)
    last = await store.get("/n")
    n = int(last.value) if last else 0
    print("up", flush=True)
    while True:
        n += 1
        version = await store.put("/n", b"%d" % n)
        await store.put(f"/many/{n % 50}", b"x" * (n % 3000))
        print(n, version, flush=True)

asyncio.run(main())
"""


STRANGER = """
import asyncio, concurrent.futures.thread, os, sys
from pathlib import Path
from ister.ports.metadata import SqliteMetadata

async def main():
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
    assert not os.access(Path(sys.argv[1]).parent, os.W_OK)
    store = await SqliteMetadata.open(sys.argv[1], read_only=True)
    print(await store.list("/"), await store.version())
    await store.close()

asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metadata.db"


def files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_everything_survives_a_restart_and_versions_go_on(path):
    async def main():
        store = await SqliteMetadata.open(path)
        assert await store.version() == 0
        first = await store.put("/a", b"1")
        await store.put("/b", b"2")
        await store.delete("/b")
        await store.close()
        store = await SqliteMetadata.open(path)
        assert await store.get("/a") == Entry("/a", b"1", first)
        assert await store.version() == 3
        assert await take(store.watch("/", after=0), 3) == [
            Change("/a", b"1", 1), Change("/b", b"2", 2), Change("/b", None, 3),
        ]  # fmt: skip
        assert await store.put("/b", b"3") == 4
        await store.close()

    run(main())


def test_the_keys_of_leases_do_not_survive_a_restart(path):
    async def main():
        store = await SqliteMetadata.open(path)
        lease = await store.lease(60)
        for key in ("/l/1", "/l/2"):
            await store.put(key, b"", lease=lease)
        await store.put("/free", b"")
        await store.close()
        again = await SqliteMetadata.open(path)
        assert [entry.key for entry in await again.list("/")] == ["/free"]
        gone = await take(again.watch("/", after=3), 2)
        assert gone == [Change("/l/1", None, 4), Change("/l/2", None, 4)]
        await again.close()

    run(main())


def test_f17_a_second_writer_is_refused_by_name_and_a_reader_is_not(path):
    async def main():
        store = await SqliteMetadata.open(path)
        with pytest.raises(LockedError, match=rf"metadata.db is owned by process {os.getpid()}"):
            await SqliteMetadata.open(path)
        ran = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", WRITER, str(path)], capture_output=True, text=True, check=False
        )
        assert "LockedError" in ran.stderr
        await store.put("/a", b"1")
        reader = await SqliteMetadata.open(path, read_only=True)
        assert await reader.get("/a") == Entry("/a", b"1", 1)
        await reader.close()
        await store.close()
        await (await SqliteMetadata.open(path)).close()

    run(main())


def test_a_reader_follows_the_writer_by_looking_again_and_changes_nothing(path):
    async def main():
        store = await SqliteMetadata.open(path)
        await store.put("/a", b"1")
        reader = await SqliteMetadata.open(path, read_only=True)
        watch = reader.watch("/", after=0)
        assert await anext(watch) == Change("/a", b"1", 1)
        waiting = asyncio.create_task(anext(watch))
        await store.put("/a", b"2")
        assert await waiting == Change("/a", b"2", 2)
        for act in (reader.put("/a", b""), reader.cas("/a", b"", version=0), reader.delete("/a"), reader.lease(1)):
            with pytest.raises(InvalidConfigError, match="read only"):
                await act
        waiting = asyncio.create_task(anext(watch))
        await store.close()
        store = await SqliteMetadata.open(path)
        await store.put("/a", b"3")
        assert await waiting == Change("/a", b"3", 3)
        await store.close()
        before = files(path.parent)
        assert await reader.get("/a") == Entry("/a", b"3", 3)
        assert [entry.key for entry in await reader.list("/")] == ["/a"]
        assert await reader.version() == 3
        await reader.close()
        assert files(path.parent) == before
        assert set(before) == {"metadata.db", "metadata.db.lock"}

    run(main())


def test_a_reader_needs_no_right_to_write():
    if os.geteuid() != 0:
        pytest.skip("NOT TRIED: only root can become another user")
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    path = directory / "metadata.db"

    def read():
        for file in directory.glob("metadata.db*"):
            file.chmod(0o644)
        return subprocess.run(
            [sys.executable, "-c", STRANGER, path, str(OTHER_USER)], capture_output=True, text=True, check=False
        )

    async def main():
        store = await SqliteMetadata.open(path)
        answers = []
        for n in range(2):
            await store.put("/a", b"%d" % n)
        answers.append(await asyncio.to_thread(read))
        await store.close()
        before = files(directory)
        answers.append(await asyncio.to_thread(read))
        assert files(directory) == before
        return answers

    try:
        answers = run(main())
        for answer in answers:
            assert answer.stdout == "[Entry(key='/a', value=b'1', version=2)] 2\n", answer.stderr
    finally:
        shutil.rmtree(directory)


def test_what_is_not_there_cannot_be_read_and_is_not_made(path):
    with pytest.raises(MetadataUnavailableError, match="No such file"):
        run(SqliteMetadata.open(path, read_only=True))
    assert list(path.parent.iterdir()) == []
    with pytest.raises(MetadataUnavailableError, match="No such file"):
        run(SqliteMetadata.open(path.parent / "gone" / "metadata.db"))


def test_files_that_were_copied_without_their_index_are_not_read_wrongly(path):
    async def main():
        store = await SqliteMetadata.open(path)
        await store.put("/a", b"1")
        copies = path.parent / "copies"
        copies.mkdir()
        for name in ("metadata.db", "metadata.db-wal"):
            shutil.copy(path.parent / name, copies)
        await store.close()
        with pytest.raises(MetadataUnavailableError, match="let the broker open it once"):
            await SqliteMetadata.open(copies / "metadata.db", read_only=True)
        copy = await SqliteMetadata.open(copies / "metadata.db")
        assert await copy.get("/a") == Entry("/a", b"1", 1)
        await copy.close()

    run(main())


@pytest.mark.parametrize("where", ["in this process", "in another"])
def test_a_reader_is_not_disturbed_by_a_writer_that_opens_and_closes(path, count, where):
    times = count(10, 300)

    async def main():
        await (await SqliteMetadata.open(path)).close()
        reader = await SqliteMetadata.open(path, read_only=True)
        if where == "in another":
            command = [sys.executable, "-c", REOPENER, str(path), str(times)]
            writing = asyncio.create_task(asyncio.to_thread(subprocess.run, command, check=True))
        else:
            writing = asyncio.create_task(reopen(path, times))
        last = 0
        while not writing.done():
            entry = await reader.get("/n")
            seen = int(entry.value) if entry else 0
            assert seen >= last
            last = seen
        await writing
        assert int((await reader.get("/n")).value) == times
        await reader.close()

    run(main())


async def reopen(path, times):
    for n in range(1, times + 1):
        store = await SqliteMetadata.open(path)
        await store.put("/n", b"%d" % n)
        await store.close()


REOPENER = f"""
import asyncio, sys
from ister.ports.metadata import SqliteMetadata

{inspect.getsource(reopen)}
asyncio.run(reopen(sys.argv[1], int(sys.argv[2])))
"""


def test_f6_what_was_acknowledged_survives_kill_9(path, count, tell):
    acked = (0, 0)
    kills = count(3, 50)
    for kill in range(kills):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        with writer:
            assert writer.stdout.readline() == "up\n"
            for _ in range(random.Random(kill).randrange(1, 60)):
                acked = tuple(map(int, writer.stdout.readline().split()))
            writer.send_signal(signal.SIGKILL)
            rest = [tuple(map(int, line.split())) for line in writer.stdout if line.endswith("\n")]
            acked = ([acked] + [pair for pair in rest if len(pair) == 2])[-1]

        async def look(acked=acked):
            reader = await SqliteMetadata.open(path, read_only=True)
            store = None
            try:
                seen = await reader.get("/n")
                assert await reader.get("/leased") is not None
                store = await SqliteMetadata.open(path)
                assert await store.get("/n") == seen
                assert await store.get("/leased") is None
                assert (int(seen.value), seen.version) in {acked, (acked[0] + 1, acked[1] + 2)}
                assert await store.version() >= acked[1]
            finally:
                await reader.close()
                if store:
                    await store.close()

        run(look())
    tell("F6", f"SQLite metadata: {kills} kills, {acked[0]} rounds acknowledged")


def test_history_is_bounded_and_an_old_watch_is_told(path, count):
    async def main():
        store = await SqliteMetadata.open(path, bounds=HistoryBounds(changes_max=10))
        await store.put("/kept", b"once")
        old = store.watch("/", after=0)
        assert (await anext(old)).key == "/kept"
        idle = store.watch("/idle", after=0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(idle), 0.02)
        for n in range(60):
            await store.put("/a", b"%d" % n)
            if n % 5 == 0:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(idle), 0.01)
        with pytest.raises(WatchCompactedError, match="list again"):
            await anext(old)
        version = await store.version()
        assert [change.value for change in await take(store.watch("/", after=version - 10), 10)] == [
            b"%d" % n for n in range(50, 60)
        ]
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT count(*) FROM changes").fetchone()[0] <= 22
        assert await store.get("/kept") == Entry("/kept", b"once", 1)
        await store.put("/idle", b"")
        assert (await anext(idle)).key == "/idle"
        for _ in range(7):  # the bound holds across restarts
            await store.close()
            store = await SqliteMetadata.open(path, bounds=HistoryBounds(changes_max=10))
            for _ in range(9):
                await store.put("/b", b"")
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT count(*) FROM changes").fetchone()[0] <= 24
        with pytest.raises(WatchCompactedError):
            await anext(store.watch("/", after=version))
        await store.close()
        store = await SqliteMetadata.open(path, bounds=HistoryBounds(bytes_max=100_000))
        version = await store.version()
        for _ in range(4):
            await store.put("/big", b"x" * 60_000)
        with pytest.raises(WatchCompactedError):
            await anext(store.watch("/", after=version))
        await store.close()

    run(main())


def test_s16_files_are_not_readable_by_others(path):
    async def main():
        store = await SqliteMetadata.open(path)
        await store.put("/a", b"1")
        assert {name.name: name.stat().st_mode & 0o007 for name in path.parent.iterdir()} == dict.fromkeys(
            ["metadata.db", "metadata.db-shm", "metadata.db-wal", "metadata.db.lock"], 0
        )
        await store.close()

    run(main())


def test_f37_a_put_whose_caller_gave_up_is_seen_by_watches_or_did_not_happen(path):
    async def main():
        store = await SqliteMetadata.open(path)
        watch = store.watch("/", after=0)
        rng = random.Random(1)
        for n in range(50):
            put = asyncio.create_task(store.put(f"/{n}", b""))
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
            put.cancel()
            await asyncio.wait({put})
        await store.put("/last", b"")
        seen = []
        while "/last" not in seen:
            seen.append((await anext(watch)).key)
        assert sorted(seen) == [entry.key for entry in await store.list("/")]
        await store.close()

    run(main())


def test_changes_that_wait_at_the_same_time_share_a_sync_and_are_made_in_order(path):
    async def main():
        store = await SqliteMetadata.open(path)
        commits = []
        store._file._connection.set_trace_callback(lambda text: commits.append(text) if text == "COMMIT" else None)
        held = threading.Event()
        store._thread.submit(held.wait)
        many = 2 * TOGETHER_MAX + 10
        puts = [asyncio.create_task(store.put(f"/{n:04}", b"%d" % n)) for n in range(many)]
        taken = asyncio.create_task(store.cas("/0000", b"late", version=0))
        mine = asyncio.create_task(store.cas("/0001", b"mine", version=2))
        given_up = asyncio.create_task(store.put("/given-up", b""))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.sleep(0)
        held.set()
        assert [await put for put in puts] == list(range(1, many + 1))
        assert (await taken, await mine) == (None, many + 1)
        assert len(commits) == 3
        entries = await store.list("/")
        assert len(entries) == many
        assert entries[1] == Entry("/0001", b"mine", many + 1)
        await store.close()
        again = await SqliteMetadata.open(path)
        assert await again.list("/") == entries
        await again.close()

    run(main())
