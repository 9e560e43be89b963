"""What topics cost that nobody uses: no cycle, no descriptor, no question to a store."""

import asyncio
import random
import subprocess
import sys

from ister.cloud import Retention, UploadOptions
from ister.core.message import StreamMessage
from ister.storage.factory import TopicsConfig, WalStorageFactory
from ister.wal import WalConfig
from parts.cloud import open_parts
from parts.cloud import run as run_real
from sim.cloud_machine import Network, SimMetadata, SimStore
from sim.cloud_story import ROOT, TOPIC
from sim.machine import SimClock, SimFiles, run

INTERVAL_S = 10.0


async def simulated(*, interval_s=INTERVAL_S):
    network = Network(random.Random(0))
    config = TopicsConfig(
        wal=WalConfig(dir=ROOT),
        upload=UploadOptions(interval_s=interval_s),
        retention=Retention(check_interval_minutes=10**9),
    )
    factory = WalStorageFactory(
        config, store=SimStore(network), metadata=SimMetadata(network), files=SimFiles(), clock=SimClock()
    )
    return factory, network


def test_a_topic_without_news_makes_no_cycle_and_uploads_news_within_its_interval():
    async def story():
        factory, network = await simulated()
        loop = asyncio.get_running_loop()
        storage = await factory.for_topic(TOPIC)
        uploader = factory.uploader(TOPIC)
        attempts = []
        real = uploader._attempt

        async def counted():
            attempts.append(loop.time())
            await real()

        uploader._attempt = counted
        for round_ in range(3):
            await asyncio.sleep(1000 * INTERVAL_S)
            attempts.clear()
            asked = []
            network.on_step = lambda op, key, asked=asked: asked.append(op)
            await asyncio.sleep(1000 * INTERVAL_S)
            assert (attempts, asked) == ([], [])
            at = loop.time()
            await storage.append_message(StreamMessage(b"m"))
            await asyncio.sleep(INTERVAL_S / 2)
            await storage.append_message(StreamMessage(b"m"))
            await uploader.uploaded.wait(2 * round_ + 2)
            assert INTERVAL_S * 0.9 < loop.time() - at < INTERVAL_S * 1.1, "both in one object, in time"
            assert len(attempts) == 1
        await factory.shutdown()

    run(story())


def test_someone_who_waits_for_level_cloud_on_an_idle_topic_waits_no_interval():
    async def story():
        factory, _ = await simulated(interval_s=10**6)
        loop = asyncio.get_running_loop()
        storage = await factory.for_topic(TOPIC)
        await asyncio.sleep(10**7)
        await storage.append_message(StreamMessage(b"m"))
        at = loop.time()
        await factory.uploader(TOPIC).wait_uploaded(1, 5)
        assert loop.time() - at < 1
        await factory.shutdown()

    run(story())


def test_orphans_are_not_searched_where_nothing_is_new(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        deleter = parts.deleter()
        assert (await deleter.sweep(), parts.store.count("list")) == (0, 0), "there is no object"
        await parts.add(5)
        await parts.uploader.drain()
        lists = []
        for _ in range(5):
            before = parts.store.count("list")
            await deleter.sweep()
            lists.append(parts.store.count("list") - before)
        assert lists == [1, 1, 0, 0, 0], "a put that lands late is found by the second"
        await parts.close()

    run_real(story())


MANY = """
import asyncio, gc, os, resource, sys, time
from pathlib import Path
from ister.core.message import StreamMessage
from ister.ports.metadata import SqliteMetadata
from ister.ports.objects import FsStore
from ister.storage.factory import TopicsConfig, WalStorageFactory
from ister.wal import Wal, WalConfig

directory, count, life = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
resource.setrlimit(resource.RLIMIT_NOFILE, (count // 2, count // 2))
ten = [StreamMessage(b"m" * 100)] * 10

async def main():
    metadata = await SqliteMetadata.open(directory / "metadata.db")
    factory = WalStorageFactory(
        TopicsConfig(wal=WalConfig(dir=directory / "wal")), store=FsStore(directory / "objects"), metadata=metadata
    )
    opened = await factory.start()
    assert factory.problems == {}, factory.problems
    assert len(opened) == (0 if life == "0" else count)
    if life == "1":
        assert len(os.listdir("/proc/self/fd")) < 100 < count, os.listdir("/proc/self/fd")
    names = [f"/default/t{n}" for n in range(count)]
    storages = await asyncio.gather(*(factory.for_topic(name) for name in names))
    # All at once: more files than there are descriptors.
    offsets = await asyncio.gather(*(storage.append_messages(ten) for storage in storages))
    assert {offset.start for offset in offsets} == {int(life) * 10}
    await factory.shutdown()
    await metadata.close()

asyncio.run(main())
print("done", life)
"""


def test_i10_more_topics_than_descriptors_are_opened_written_and_found_again(tmp_path, count, tell):
    many = count(300, 1000)
    for life in ("0", "1", "2"):
        ran = subprocess.run(
            [sys.executable, "-c", MANY, str(tmp_path), str(many), life],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ran.stdout.splitlines()[-1:] == [f"done {life}"], ran.stdout[-2000:] + ran.stderr[-2000:]
    tell("I10", f"{many} topics, {many // 2} descriptors: all written at once, twice, and found again")
