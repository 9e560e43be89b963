"""What a broker says of the stores that it depends on: that they do not answer, are full, or that uploads have stopped."""

import asyncio
import json

import pytest

from ister.broker.metrics import health as dependencies
from ister.broker.metrics.health import Dependencies, Readiness, probes_of, readiness_response
from ister.broker.registry.validation import Validation
from ister.broker.server import Ports, Serving
from ister.broker.services.producer import ProducerService
from ister.core.errors import CorruptLogError, MetadataUnavailableError, StoreRefusedError
from ister.core.names import TopicName
from ister.ports.metadata import MemoryMetadata, SqliteMetadata
from ister.ports.metadata.store import check_writable
from ister.ports.objects import FsStore
from ister.storage.factory import TopicsConfig, WalStorageFactory
from ister.wal import WalConfig
from parts.broker import BrokerWorld, until
from parts.cloud import TroubledStore, named, told

T = "/default/t"
NAME = TopicName("default", "t")
PORTS = Ports(
    host="127.0.0.1", broker=0, admin=0, metrics=None,
    message_bytes_max=4 << 20, keepalive_s=30.0, keepalive_timeout_s=10.0, drain_timeout_s=10.0,
)  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(dependencies, "PROBE_INTERVAL_S", 0.01)
    monkeypatch.setattr(dependencies, "PROBE_TIMEOUT_S", 0.05)


def said(state):
    return json.loads(b"".join(readiness_response(state).body))


def test_a_store_that_fails_or_hangs_is_told_until_it_works_again_and_logged_once():
    """L12."""

    async def act():
        trouble = {}

        async def metadata():
            if trouble.get("metadata"):
                raise trouble["metadata"]

        async def objects():
            if "objects" in trouble:
                await asyncio.Event().wait()

        watched = Dependencies({"metadata": metadata, "objects": objects})
        with told() as events:
            watched.start()
            for error in (MetadataUnavailableError("etcd", "cas", "no space"), ValueError("a bug of ours")):
                trouble["metadata"] = error
                await until(lambda: watched.failing == {"metadata"})
                del trouble["metadata"]
                await until(lambda: not watched.failing)
            trouble["objects"] = True
            await until(lambda: watched.failing == {"objects"})
            del trouble["objects"]
            await until(lambda: not watched.failing)
            await watched.stop()
        assert [event["dependency"] for event in named(events, "dependency_failed")] == [
            "metadata", "metadata", "objects",
        ]  # fmt: skip
        assert len(named(events, "dependency_recovered")) == 3
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(act())


def test_what_is_degraded_is_told_and_leaves_the_broker_ready():
    """L12."""
    stopped = {NAME: CorruptLogError("/secret/wal-1.log", 0, 0, "rot")}
    state = Readiness(topics=1, degraded=["metadata", "uploads"], uploads_stopped=stopped)
    content = said(state)
    assert (state.ready, content["status"]) == (True, "ready")
    assert content["degraded"] == ["metadata", "uploads"]
    assert content["uploads_stopped"] == [{"topic": T, "problem": "CorruptLogError"}]
    assert said(Readiness())["degraded"] == []


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_probe_of_metadata_writes_nothing(tmp_path, kind):
    """L12."""

    async def act():
        metadata = MemoryMetadata() if kind == "memory" else await SqliteMetadata.open(tmp_path / "metadata.db")
        version = await metadata.version()
        await check_writable(metadata, "/danube-data")
        assert (await metadata.version(), await metadata.list("/")) == (version, [])
        await metadata.close()

    asyncio.run(act())


def test_a_broker_says_that_its_store_refuses_it_and_that_uploads_of_a_topic_have_stopped(tmp_path):
    """L12."""

    async def act():
        world = BrokerWorld(tmp_path)
        store = TroubledStore(FsStore(tmp_path / "objects"))
        config = TopicsConfig(wal=WalConfig(dir=tmp_path / "wal"))
        world.factory = lambda: WalStorageFactory(config, store=store, metadata=world.metadata)
        async with world.broker() as client:
            broker = client.broker
            await client.producer(T)
            watched = Dependencies(probes_of(world.metadata, broker.factory))
            validation = Validation(broker.schemas)
            serving = Serving(broker, PORTS, ProducerService(broker, validation), validation, watched)
            watched.start()
            assert said(serving.readiness())["degraded"] == []
            store.fail["list"] = StoreRefusedError("s3", "list", "there is no such bucket or container")
            await until(lambda: said(serving.readiness())["degraded"] == ["objects"])
            uploader = broker.factory.uploader(NAME)
            uploader.problem, uploader.stopped = CorruptLogError("f", 0, 0, "rot"), True
            content = said(serving.readiness())
            assert content["degraded"] == ["objects", "uploads"]
            assert content["uploads_stopped"] == [{"topic": T, "problem": "CorruptLogError"}]
            store.fail.clear()
            await until(lambda: said(serving.readiness())["degraded"] == ["uploads"])
            await watched.stop()

    asyncio.run(act())
