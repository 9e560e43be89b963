"""Metadata in memory forgets, and can be cut off, like the real ones."""

import asyncio

import pytest

from ister.core.errors import MetadataUnavailableError, WatchCompactedError
from ister.ports.metadata import MemoryMetadata
from ister.ports.metadata.watches import ChangeSignal
from services.metadata_contract import take
from sim.machine import run


def test_history_is_bounded_and_an_old_watch_is_told():
    async def main():
        store = MemoryMetadata(history_changes=10)
        old = store.watch("/", after=0)
        for n in range(50):
            await store.put("/a", b"%d" % n)
        with pytest.raises(WatchCompactedError, match="behind version 0"):
            await anext(old)
        assert [change.value for change in await take(store.watch("/", after=40), 10)] == [
            b"%d" % n for n in range(40, 50)
        ]
        assert len(store._history) <= 20
        await store.close()

    run(main())


def test_a_change_signal_from_before_the_wait_is_noticed():
    async def main():
        signal = ChangeSignal()
        signal.notify(5)
        await signal.wait(4, None)
        signal.notify(3)
        await signal.wait(4, None)
        before = asyncio.get_running_loop().time()
        await signal.wait(5, 7)
        assert asyncio.get_running_loop().time() == before + 7
        signal.close()
        await signal.wait(5, None)

    run(main())


def test_a_watch_goes_on_when_the_connection_is_mended():
    async def main():
        store = MemoryMetadata()
        watch = store.watch("/", after=0)
        await store.put("/a", b"1")
        store.cut("no route")
        waiting = asyncio.create_task(anext(watch))
        for act in (store.put("/a", b""), store.get("/a"), store.list("/"), store.delete("/a"), store.lease(1)):
            with pytest.raises(MetadataUnavailableError, match="no route"):
                await act
        await asyncio.sleep(60)
        assert not waiting.done()
        store.mend()
        assert (await waiting).value == b"1"
        await store.close()

    run(main())
