"""What a stop may take: everything within its time, whoever hangs."""

import asyncio
import signal
import sys
import time

import pytest

from ister.broker.topics.broker import CLOSING_S
from ister.ports.objects import FsStore
from ister.runtime.pipeline_child import PipelineChild
from ister.storage.factory import TopicsConfig, WalStorageFactory
from ister.wal import WalConfig
from parts.broker import BrokerWorld
from parts.cloud import named, told

T = "/default/t"
STUBBORN = (
    "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); sys.stdin.read()"
)


class HangingStore(FsStore):
    """A store that takes a put and never says a word."""

    async def put_if_absent(self, key, data):
        await asyncio.Event().wait()


class HangingWorld(BrokerWorld):
    def factory(self):
        config = TopicsConfig(wal=WalConfig(dir=self.directory / "wal"))
        return WalStorageFactory(config, store=HangingStore(self.directory / "objects"), metadata=self.metadata)


@pytest.mark.parametrize(("timeout_s", "closing_s"), [(10.0, CLOSING_S), (1.0, 0.2)])
def test_closing_has_time_of_its_own_behind_the_uploads(tmp_path, monkeypatch, timeout_s, closing_s):
    async def act():
        broker = await BrokerWorld(tmp_path).start()
        given = []
        shutdown = broker.factory.shutdown

        async def shut_down(seconds):
            given.append(seconds)
            await shutdown(seconds)

        monkeypatch.setattr(broker.factory, "shutdown", shut_down)
        await broker.drain(timeout_s)
        assert 0 < given[0] <= timeout_s - closing_s

    asyncio.run(act())


@pytest.mark.slow
def test_a_store_that_hangs_does_not_make_a_stop_late(tmp_path):
    async def act():
        async with HangingWorld(tmp_path).broker() as client:
            await client.send(T, await client.producer(T), b"x")
            began = time.monotonic()
            with told() as events:
                await client.broker.drain(4.0)
            assert time.monotonic() - began < 4.0
            assert len(named(events, "not_all_uploaded")) == 1

    asyncio.run(act())


class Stubborn(PipelineChild):
    """A child that does not end when it is asked to."""

    async def _run_once(self, broker_url):
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", STUBBORN, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert await self._process.stdout.readline() == b"up\n"
        self.up.set()
        return await self._process.wait()


def test_the_childs_grace_begins_when_it_is_told_and_not_when_everything_else_has_ended():
    async def act():
        child = Stubborn([], grace_s=60.0)
        child.up = asyncio.Event()
        child.begin("http://127.0.0.1:1", lambda: False)
        await child.up.wait()
        child.terminate()
        child._terminated_at -= 60.0  # the broker has drained meanwhile
        began = time.monotonic()
        await child.end()
        assert time.monotonic() - began < 30.0, "its time was over already"
        assert child._process.returncode == -signal.SIGKILL

    asyncio.run(act())


def test_a_child_that_was_not_told_before_has_its_grace_all_the_same():
    async def act():
        child = Stubborn([], grace_s=0.5)
        child.up = asyncio.Event()
        child.begin("http://127.0.0.1:1", lambda: False)
        await child.up.wait()
        began = time.monotonic()
        await child.end()
        assert time.monotonic() - began >= 0.5
        assert child._process.returncode == -signal.SIGKILL

    asyncio.run(act())
