"""Objects that are described and missing: a disk that is not mounted, and objects that someone deleted (I22)."""

import asyncio
import shutil

import pytest

from ister.cloud import uploader
from ister.core.errors import MetadataUnknownError, MissingObjectError, NotYetInTierError
from ister.core.names import TopicName
from ister.wal import AckLevel
from parts.cloud import again, messages, named, open_parts, run, told, until
from parts.factory import T, World, read
from parts.uploads import check_objects


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(uploader, "RETRY_S", 0.005)


def test_nothing_is_put_on_a_disk_that_is_not_mounted_and_uploads_go_on_once_it_is(tmp_path):
    """I22."""

    async def story():
        world = World(tmp_path)
        await world.fill(10, pruned=0)
        (tmp_path / "objects").rename(tmp_path / "disk")
        (tmp_path / "objects").mkdir()
        factory = world.factory(level=AckLevel.CLOUD)
        with told() as events:
            storage = await factory.for_topic(T)
        assert len(named(events, "object_missing")) == 1
        assert isinstance(storage.upload_problem, MissingObjectError)
        carrier = factory.uploader(T)
        with pytest.raises(NotYetInTierError, match="is missing from"):
            await storage.append_messages(messages(10, 12))
        carrier.hurry()
        await until(lambda: carrier.failed_cycles > 3)
        assert list((tmp_path / "objects").iterdir()) == []
        assert not carrier.stopped
        await read(storage, 0, 12)
        (tmp_path / "objects").rmdir()
        (tmp_path / "disk").rename(tmp_path / "objects")
        await until(lambda: carrier.uploaded.value == 12)
        assert storage.upload_problem is None
        assert await storage.append_messages(messages(12, 13)) == range(12, 13)
        await factory.shutdown()

    run(story())


def test_a_disk_that_is_unmounted_while_topics_use_it_is_noticed_by_each_of_them(tmp_path):
    """I22."""

    async def story():
        world = World(tmp_path)
        factory = world.factory(level=AckLevel.CLOUD)
        topics = [TopicName("default", name) for name in "abc"]
        storages = [await factory.for_topic(topic) for topic in topics]
        for storage in storages:
            await storage.append_messages(messages(0, 5))
        (tmp_path / "objects").rename(tmp_path / "disk")
        (tmp_path / "objects").mkdir()
        appends = [asyncio.create_task(storage.append_messages(messages(5, 6))) for storage in storages]
        await until(lambda: all(storage.upload_problem is not None for storage in storages))
        assert list((tmp_path / "objects").rglob("*.dnb")) == []
        shutil.rmtree(tmp_path / "objects")
        (tmp_path / "disk").rename(tmp_path / "objects")
        assert await asyncio.gather(*appends) == [range(5, 6)] * 3
        await factory.shutdown()

    run(story())


@pytest.mark.parametrize("markers", ["the same", "others"])
def test_the_last_objects_are_put_again_from_the_log(tmp_path, markers):
    """I22."""

    async def story():
        parts = await open_parts(tmp_path)
        for _ in range(4):
            await parts.add(3, 100)
            if markers == "the same":
                await parts.storage.seal(0)
            await parts.uploader.drain()
        spans = await parts.spans()
        for path in parts.object_files()[2:]:
            path.unlink()
        await parts.crash()
        if markers == "others":  # what is not synced as the log knows it is copied to another file
            path = parts.log_files()[0]
            path.write_bytes(path.read_bytes() + b"torn")
        parts = await again(parts)
        with told() as events:
            await parts.uploader.recover(log_is_open=False)
            assert isinstance(parts.uploader.lasting_problem, MissingObjectError)
            await parts.add(1, 100)
            await parts.uploader.drain()
        assert len(named(events, "object_restored")) == 2
        assert parts.uploader.lasting_problem is None
        assert await parts.spans() == [*spans, (12, 13)]
        await check_objects(parts, 13, 100)
        await parts.close()

    run(story())


def test_a_lost_answer_while_an_object_is_put_again_leaves_it_described_as_it_is(tmp_path):
    """I22."""

    async def story():
        parts = await open_parts(tmp_path)
        for _ in range(2):
            await parts.add_file(3, 100)
            await parts.uploader.drain()
        for op in ("cas", "put"):
            parts.object_files()[-1].unlink()
            parts.uploader._recovered = False
            parts.uploader._epoch += 1  # as after a restart
            trouble = parts.metadata if op == "cas" else parts.store
            trouble.lose[op] = [MetadataUnknownError("m", op, "no answer")]
            with pytest.raises(MetadataUnknownError):
                await parts.uploader.drain()
            await parts.uploader.drain()
            await check_objects(parts, 6, 100)
        await parts.close()

    run(story())


def test_a_store_that_lost_every_object_is_filled_again_once_someone_confirms_it(tmp_path):
    """I22."""

    async def story():
        parts = await open_parts(tmp_path)
        for _ in range(3):
            await parts.add_file(3, 100)
            await parts.uploader.drain()
        directory = parts.object_files()[0].parent
        for path in parts.object_files():
            path.unlink()
        parts.uploader._recovered = False
        with pytest.raises(MissingObjectError):
            await parts.uploader.drain()
        (directory / "lost").touch()
        await parts.uploader.drain()
        await check_objects(parts, 9, 100)
        await parts.close()

    run(story())


def test_an_object_in_the_middle_is_put_again_when_the_log_would_be_pruned(tmp_path):
    """I22."""

    async def story():
        parts = await open_parts(tmp_path)
        for _ in range(4):
            await parts.add_file(3, 100)
            await parts.uploader.drain()
        await parts.storage.prune(3)
        parts.object_files()[1].unlink()
        assert await parts.storage.prune(9) == 9
        await check_objects(parts, 12, 100)
        parts.object_files()[1].unlink()
        with pytest.raises(MissingObjectError):
            await parts.read_objects(3, 6, 100)
        parts.object_files()[-1].unlink()
        assert await parts.storage.prune(12) == 12, "what the log had is put again"
        await parts.close()

    run(story())


def test_uploads_go_on_behind_an_object_that_nobody_has_any_more(tmp_path):
    """I22."""

    async def story():
        parts = await open_parts(tmp_path)
        for _ in range(2):
            await parts.add_file(3, 100)
            await parts.uploader.drain()
        await parts.storage.prune(6)
        parts.object_files()[-1].unlink()
        await parts.crash()
        parts = await again(parts)
        with told() as events:
            await parts.uploader.recover(log_is_open=False)
            await parts.add(1, 100)
            await parts.uploader.drain()
        assert len(named(events, "object_missing")) == 1
        assert await parts.spans() == [(0, 3), (3, 6), (6, 7)]
        await parts.close()

    run(story())
