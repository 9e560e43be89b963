"""A topic's background tasks: they end when they are cancelled, survive what they did not expect, and say so."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from ister.cloud import UploadOptions, uploader
from ister.cloud.uploader import EQUAL_ANSWERS
from ister.core.errors import ForeignObjectError, NotYetInTierError, StoreUnavailableError
from ister.core.frames.segment import object_key
from ister.core.names import TopicName
from ister.core.tiers.retention import RetentionPolicy
from ister.ports.metadata import MemoryMetadata
from ister.ports.objects import FsStore, StoreSettings, open_store
from ister.storage import factory as factory_module
from ister.storage.factory import TopicsConfig, WalStorageFactory
from ister.storage.retention import LogRetention, ReliableOptions
from ister.wal import AckLevel, WalConfig
from parts.cloud import DEADLINE_S, TroubledStore, messages, named, open_parts, run, told, until
from sim.cloud_machine import SimMetadata, SimStore
from sim.machine import SimClock, SimFiles
from sim.machine import run as run_in_virtual_time

TOPIC = TopicName("default", "t")
DOWN = StoreUnavailableError("fs", "put", "no route")


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(uploader, "RETRY_S", 0.002)


def factory_in(directory, store, **upload):
    config = TopicsConfig(wal=WalConfig(dir=directory / "wal"), upload=UploadOptions(**upload), drain_timeout_s=0.1)
    return WalStorageFactory(config, store=store, metadata=MemoryMetadata())


# --- ending -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", range(4))
def test_shutdown_ends_although_someone_hurries_an_uploader_that_backs_off(tmp_path, turns):
    """I6."""

    async def story():
        store = TroubledStore(FsStore(tmp_path / "objects"))
        store.fail["put"] = DOWN
        factory = factory_in(tmp_path, store, interval_s=60)
        storage = await factory.for_topic(TOPIC)
        await storage.append_message(messages(0, 1)[0])
        carrier = factory.uploader(TOPIC)
        carrier.hurry()
        await until(lambda: carrier.problem is DOWN)
        for _ in range(10):
            await asyncio.sleep(0)
        carrier.hurry()
        for _ in range(turns):
            await asyncio.sleep(0)
        await factory.shutdown()

    run(story(), 20)


@pytest.mark.parametrize("swallowed", [2, 10**9])
def test_a_task_that_swallows_its_cancellation_is_cancelled_again_and_not_waited_for_without_end(
    tmp_path, monkeypatch, swallowed
):
    """I6."""
    monkeypatch.setattr(factory_module, "CANCEL_AGAIN_S", 0.01)

    async def stubborn(stop):
        left = swallowed
        while left and not stop.is_set():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                left -= 1

    async def story():
        stop = asyncio.Event()
        factory = factory_in(tmp_path, FsStore(tmp_path / "objects"))
        await factory.for_topic(TOPIC)
        task = asyncio.create_task(stubborn(stop), name="stubborn")
        factory._open[TOPIC].tasks.append(task)
        await asyncio.sleep(0)
        with told() as events:
            await factory.shutdown()
        found = named(events, "task_not_cancelled")
        assert found[0]["tasks"] == ["stubborn"]
        assert len(found) == min(swallowed - 1, factory_module.CANCELS_MAX)
        stop.set()
        task.cancel()

    run(story(), 20)


# --- what nobody expected -----------------------------------------------------------------------------------------------


def test_an_uploader_survives_an_unexpected_error_and_says_so(tmp_path, soon):
    """C12."""

    async def story():
        parts = await open_parts(tmp_path, level=AckLevel.CLOUD)
        parts.store.fail["put"] = [ZeroDivisionError("a defect"), MemoryError()]
        with told() as events:
            parts.run_uploader()
            assert await parts.storage.append_messages(messages(0, 5)) == range(5)
        assert [event["task"] for event in named(events, "task_failed")] == ["uploader"] * 2
        assert "ZeroDivisionError: a defect" in named(events, "upload_failed")[0]["cause"]
        assert not parts.tasks[0].done()
        await until(lambda: parts.uploader.problem is None)
        await parts.close()

    run(story())


@pytest.mark.parametrize("who", ["deleter", "keeper"])
def test_retention_survives_an_unexpected_error_and_says_so(tmp_path, who):
    """C12."""

    async def story():
        parts = await open_parts(tmp_path)
        await parts.add_file(5)
        if who == "deleter":
            task = parts.deleter(check_interval_minutes=0.0001)
            main = task.run(0.006)
        else:
            task = LogRetention("t", parts.storage, parts.clock)
            task.options = ReliableOptions(1, RetentionPolicy.RETAIN_UNTIL_EXPIRE, 0)
            main = task.run(0.005)
        dated, calls = parts.storage.dated_segments, []

        async def failing():
            calls.append(1)
            if len(calls) < 3:
                raise ZeroDivisionError("a defect")
            return await dated()

        parts.storage.dated_segments = failing
        with told() as events:
            parts.tasks.append(asyncio.create_task(main))
            await until(lambda: len(calls) >= 2)
            assert "ZeroDivisionError: a defect" in str(task.problem)
            await until(lambda: task.problem is None)
        assert len(named(events, "task_failed")) == 2
        await parts.close()

    run(story())


# --- when an upload begins ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["periodic", "none"])
def test_an_upload_begins_once_an_objects_worth_of_bytes_was_appended_whatever_the_sync_mode(tmp_path, mode):
    """I18."""

    async def story():
        parts = await open_parts(tmp_path, upload={"max_object_mb": 1}, sync_mode=mode, fsync_interval_ms=5000)
        parts.run_uploader()
        await parts.add(1)
        await until(lambda: parts.store.count("list") == 1)
        await parts.add(12, 100_000)
        await until(lambda: parts.uploader.uploaded.value >= 12)
        await parts.close()

    run(story())


def test_a_log_that_cannot_be_synced_does_not_make_the_uploader_spin():
    """I18."""

    async def story():
        loop = asyncio.get_running_loop()
        parts = await open_parts(
            Path("/sim"), store=TroubledStore(SimStore()), files=SimFiles(), upload={"max_object_mb": 1, "interval_s": 60},
            sync_mode="none",
        )  # fmt: skip
        cycles = []
        cycle = parts.uploader._cycle

        async def counted():
            cycles.append(loop.time())
            await cycle()

        async def refused():
            raise StoreUnavailableError("disk", "sync", "no")

        parts.uploader._cycle, parts.wal.sync = counted, refused
        await parts.add(30, 100_000)
        parts.run_uploader()
        await asyncio.sleep(300)
        assert len(cycles) <= 7
        await parts.end_tasks()
        del parts.wal.sync
        await parts.close()

    run_in_virtual_time(story())


# --- one wrong answer ---------------------------------------------------------------------------------------------------


def test_a_wrong_answer_about_an_object_that_was_just_put_stops_no_upload(tmp_path, soon):
    """L1."""

    async def story():
        parts = await open_parts(tmp_path, level=AckLevel.CLOUD)
        key = object_key(TOPIC, 1, 0, 5)
        wrong = ForeignObjectError(key, "a proxy answered")
        parts.store.fail["put"] = [wrong] * (EQUAL_ANSWERS - 1)
        parts.run_uploader()
        assert await parts.storage.append_messages(messages(0, 5)) == range(5)
        assert not parts.uploader.stopped
        parts.store.fail["put"] = [wrong] * (EQUAL_ANSWERS - 1)
        assert await parts.storage.append_messages(messages(5, 6)) == range(5, 6), "counted from the start again"
        await parts.close()

    run(story())


def test_a_proxy_that_answers_for_the_store_behind_a_put_stops_no_upload(tmp_path, soon, monkeypatch):
    """L1."""

    async def story():
        store = open_store(StoreSettings("memory", "proxied"))
        parts = await open_parts(tmp_path, store=TroubledStore(store), level=AckLevel.CLOUD)
        look, wrong = store._look, [27, 27, 27]

        async def proxied(key):
            found = await look(key)
            return SimpleNamespace(content_length=wrong.pop(), etag="", content_md5="") if found and wrong else found

        monkeypatch.setattr(store, "_look", proxied)
        parts.run_uploader()
        assert await parts.storage.append_messages(messages(0, 5)) == range(5)
        assert (parts.uploader.stopped, wrong) == (False, [])
        await parts.read_objects(0, 5)
        await parts.close()

    run(story())


def test_the_answers_that_stop_an_upload_are_spread_over_seconds_although_someone_waits():
    """L1."""

    async def story():
        loop = asyncio.get_running_loop()
        store = TroubledStore(SimStore())
        config = TopicsConfig(wal=WalConfig(dir=Path("/sim"), level=AckLevel.CLOUD), cloud_timeout_s=100)
        factory = WalStorageFactory(config, store=store, metadata=SimMetadata(), files=SimFiles(), clock=SimClock())
        storage = await factory.for_topic(TOPIC)
        await store.put_if_absent(object_key(TOPIC, 1, 0, 1), b"<html>")
        began = loop.time()
        assert storage.upload_problem is None
        with pytest.raises(NotYetInTierError, match="is not a copy of this log"):
            await storage.append_message(messages(0, 1)[0])
        assert 5 <= loop.time() - began <= DEADLINE_S
        assert factory.uploader(TOPIC).stopped
        assert isinstance(storage.upload_problem, ForeignObjectError)
        await factory.shutdown()

    run_in_virtual_time(story())
