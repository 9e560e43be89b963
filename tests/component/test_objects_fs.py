"""The directory as an object store: what a full disk, a refused name and a kill leave behind."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ister.core.errors import MissingObjectError, PutUnknownError, StoreRefusedError, StoreUnavailableError
from ister.ports.objects import FsStore, ObjectInfo
from ister.ports.objects.fs import DRAFTS
from services.objects_contract import keys


def failing(code):
    def fail(*_args, **_more):
        raise OSError(code, os.strerror(code))

    return fail


def ending(store, key, data):
    with asyncio.Runner() as runner:
        try:
            return runner.run(store.put_if_absent(key, data))
        except (StoreRefusedError, StoreUnavailableError, PutUnknownError) as error:
            return error


@pytest.mark.parametrize(
    ("call", "code", "expected"),
    [
        ("write", errno.ENOSPC, StoreUnavailableError),
        ("fdatasync", errno.EIO, StoreUnavailableError),
        ("open", errno.EACCES, StoreRefusedError),
        ("open", errno.EROFS, StoreRefusedError),
        ("link", errno.EPERM, StoreRefusedError),
        ("link", errno.EXDEV, StoreRefusedError),
        ("mkdir", errno.ENOSPC, StoreUnavailableError),
    ],
)
def test_a_failed_put_says_whose_fault_it_is_and_leaves_nothing(tmp_path, monkeypatch, call, code, expected):
    store = FsStore(tmp_path / "o")
    asyncio.run(store.put_if_absent("first", b"1"))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(code))
        end = ending(store, "d/x", b"12345")
    assert (type(end), end.cause) == (expected, os.strerror(code))
    assert list((tmp_path / "o" / DRAFTS).iterdir()) == []
    assert asyncio.run(store.stat("d/x")) is None
    assert asyncio.run(store.put_if_absent("d/x", b"12345")).size == 5


def test_a_name_that_could_not_be_synced_is_an_unknown_outcome(tmp_path, monkeypatch):
    store = FsStore(tmp_path / "o")
    asyncio.run(store.put_if_absent("first", b"1"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(errno.EIO))
        end = ending(store, "x", b"1")
    assert (type(end), end.key) == (PutUnknownError, "x")


def steps_of(monkeypatch, root):
    """Note what is synced, linked and replaced, in order."""
    seen = []
    sync, data_sync, link, replace = os.fsync, os.fdatasync, os.link, os.replace

    def where(fd):
        return os.path.relpath(Path(f"/proc/self/fd/{fd}").readlink(), root)

    monkeypatch.setattr(os, "fdatasync", lambda fd: (data_sync(fd), seen.append("data")))
    monkeypatch.setattr(os, "link", lambda *names, **more: (link(*names, **more), seen.append("link")))
    monkeypatch.setattr(os, "replace", lambda *names, **more: (replace(*names, **more), seen.append("replace")))
    monkeypatch.setattr(os, "fsync", lambda fd: (sync(fd), seen.append(where(fd))))
    return seen


def test_a_put_syncs_bytes_and_directories_before_the_name_and_its_directory_after_it(tmp_path, monkeypatch):
    store = FsStore(tmp_path / "o")
    asyncio.run(store.put_if_absent("first", b"1"))
    seen = steps_of(monkeypatch, tmp_path / "o")
    asyncio.run(store.put_if_absent("a/b/x", b"1"))
    assert seen == ["data", ".", "a", "link", "a/b"]
    seen.clear()
    asyncio.run(store.put_if_absent("a/b/y", b"1"))
    assert seen == ["data", "link", "a/b"]


def test_an_object_of_another_process_is_made_durable_as_a_new_file_and_not_by_syncing_the_old_one(
    tmp_path, monkeypatch
):
    """I4."""
    asyncio.run(FsStore(tmp_path / "o").put_if_absent("a/x", b"123"))
    before = (tmp_path / "o" / "a" / "x").stat().st_ino
    store, seen = FsStore(tmp_path / "o"), steps_of(monkeypatch, tmp_path / "o")
    asyncio.run(store.make_durable("a/x", b"123"))
    assert seen[-4:] == ["data", ".", "replace", "a"]
    assert (tmp_path / "o" / "a" / "x").stat().st_ino != before
    assert list((tmp_path / "o" / DRAFTS).iterdir()) == []


def test_an_object_that_could_not_be_made_durable_is_there_and_can_be_tried_again(tmp_path, monkeypatch):
    """I4."""
    store = FsStore(tmp_path / "o")
    asyncio.run(store.put_if_absent("x", b"123"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(errno.EIO))
        with pytest.raises(StoreUnavailableError, match="make x durable"):
            asyncio.run(store.make_durable("x", b"123"))
    asyncio.run(store.make_durable("x", b"123"))
    assert asyncio.run(store.read("x", 0, 3)) == b"123"


def test_a_directory_whose_name_could_not_be_synced_is_not_used(tmp_path, monkeypatch):
    """I4."""
    store = FsStore(tmp_path / "o")
    asyncio.run(store.put_if_absent("first", b"1"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(errno.EIO))
        end = ending(store, "d/x", b"1")
    assert isinstance(end, StoreUnavailableError)
    assert not (tmp_path / "o" / "d").exists()
    assert asyncio.run(store.put_if_absent("d/x", b"1")).size == 1


def test_a_disk_that_is_unmounted_while_it_is_used_fails_the_next_put_of_each_directory(tmp_path):
    """I22: so that each topic looks for its objects before it puts more."""
    store = FsStore(tmp_path / "o")
    for key in ("a/1/x", "b/1/x"):
        asyncio.run(store.put_if_absent(key, b"1"))
    (tmp_path / "o").rename(tmp_path / "disk")
    (tmp_path / "o").mkdir()
    for key in ("a/1/y", "b/1/y"):
        assert isinstance(ending(store, key, b"1"), StoreUnavailableError)
    assert asyncio.run(store.put_if_absent("c/1/y", b"1")).size == 1
    assert isinstance(ending(store, "b/1/y", b"1"), ObjectInfo), "told once: whoever asks again has looked"


def test_an_object_and_a_directory_cannot_share_a_name(tmp_path):
    async def main():
        store = FsStore(tmp_path)
        await store.put_if_absent("a/b", b"1")
        for key in ("a", "a/b/c"):
            with pytest.raises(StoreRefusedError, match="irectory"):
                await store.put_if_absent(key, b"2")
            with pytest.raises(MissingObjectError):
                await store.read(key, 0, 1)
            await store.delete(key)
        assert await keys(store) == ["a/b"]

    asyncio.run(main())


def test_drafts_are_never_shown_and_swept_after_an_hour(tmp_path):
    async def main():
        drafts = tmp_path / DRAFTS
        drafts.mkdir()
        (drafts / "old").write_bytes(b"torn")
        (drafts / "new").write_bytes(b"torn")
        os.utime(drafts / "old", (time.time() - 4000,) * 2)
        store = FsStore(tmp_path)
        assert await keys(store) == []
        assert await keys(store, DRAFTS) == []
        for key in (DRAFTS, f"{DRAFTS}/new"):
            with pytest.raises(StoreRefusedError):
                await store.stat(key)
        await store.put_if_absent("x", b"1")
        assert [path.name for path in drafts.iterdir()] == ["new"]

    asyncio.run(main())


def test_s16_objects_are_not_readable_by_others(tmp_path):
    asyncio.run(FsStore(tmp_path / "o").put_if_absent("a", b"1"))
    for path in (tmp_path / "o", tmp_path / "o" / "a"):
        assert path.stat().st_mode & 0o007 == 0


def test_a_link_out_of_the_directory_is_no_object(tmp_path):
    (tmp_path / "secret").write_bytes(b"1")
    store = FsStore(tmp_path / "o")
    asyncio.run(store.put_if_absent("a", b"1"))
    (tmp_path / "o" / "b").symlink_to(tmp_path / "secret")
    (tmp_path / "o" / "c").symlink_to(tmp_path)
    assert asyncio.run(keys(store)) == ["a"]
    assert asyncio.run(keys(store, "c/")) == []
    assert asyncio.run(store.stat("b")) is None


def test_a_listing_looks_only_where_its_prefix_leads(tmp_path, monkeypatch):
    async def fill():
        for name in ("a/b/1", "a/b/2", "a/bb/1", "a/c/1", "b/b/1"):
            await store.put_if_absent(name, b"1")

    store = FsStore(tmp_path / "o")
    asyncio.run(fill())
    looked = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (looked.append(path.relative_to(tmp_path / "o")), scandir(path))[1])
    for prefix, found in (("a/b/", ["a/b/1", "a/b/2"]), ("a/b/2", ["a/b/2"]), ("a/x/", []), ("a/b/1/", [])):
        assert asyncio.run(keys(store, prefix)) == found
    assert set(map(str, looked)) == {"a/b"}
    assert asyncio.run(keys(store, "a/b")) == ["a/b/1", "a/b/2", "a/bb/1"]


PUTS = """
import asyncio, sys
from ister.ports.objects import FsStore, ObjectInfo

async def main():
    store = FsStore(sys.argv[1])
    for n in range(10**6):
        await store.put_if_absent(f"d{n % 3}/{n:06}", bytes([n % 251]) * 300_000)
        print(n, flush=True)

asyncio.run(main())
"""


def test_f20_a_kill_leaves_whole_objects_and_at_most_a_draft(tmp_path, count, tell):
    kills, compared = count(3, 40), 0
    for kill in range(kills):
        root = tmp_path / str(kill)
        with subprocess.Popen([sys.executable, "-c", PUTS, root], stdout=subprocess.PIPE, text=True) as process:
            said = [process.stdout.readline() for _ in range(3 + kill % 7)]
            process.send_signal(signal.SIGKILL)
            said += process.stdout.readlines()
        acknowledged = {int(line) for line in said if line.endswith("\n")}

        async def look(root=root):
            store = FsStore(root)
            found = {int(info.key[3:]): info async for info in store.list("")}
            for n, info in found.items():
                assert await store.read(info.key, 0, info.size) == bytes([n % 251]) * 300_000
            return found.keys()

        found = asyncio.run(look())
        assert acknowledged <= found
        compared += len(found)
    tell("F20", f"{kills} kills while objects were put into a directory: {compared} objects whole, none torn")
