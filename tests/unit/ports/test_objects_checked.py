"""Checked reads: damage is believed only after the store gave the same wrong answer several times (L2)."""

import asyncio

import pytest

from ister.core.errors import CorruptObjectError, MissingObjectError, StoreUnavailableError
from ister.core.tiers.splits import Split
from ister.pipeline import task
from ister.pipeline.task import Reach, decoded
from ister.ports.objects import FsStore, checked
from ister.ports.objects.checked import READS, read_checked
from ister.storage.plan_splits import plan_splits
from parts.cloud import TroubledStore, again, flipped, named, open_parts, run, told
from sim.cloud_machine import SimStore
from sim.machine import run as run_in_virtual_time


def is_abc(data):
    if data != b"abc":
        raise CorruptObjectError("k", 0, -1, "it is not abc")
    return "fine"


async def stored(data=b"abc"):
    store = TroubledStore(SimStore())
    await store.put_if_absent("k", data)
    return store


@pytest.mark.parametrize("wrong", range(1, READS))
def test_a_range_that_was_changed_in_transit_is_read_again(wrong):
    """L2."""

    async def story():
        store = await stored()
        store.spoil += [flipped(1)] * wrong
        assert await read_checked(store, "k", 0, 3, check=is_abc) == "fine"
        assert len(store.reads) == wrong + 1

    run(story())


def test_an_object_that_a_store_did_not_find_for_a_moment_is_looked_for_again():
    """L2."""

    async def story():
        store = await stored()
        store.fail["read"] = [MissingObjectError("k", "s")]
        assert await read_checked(store, "k", 0, 3, check=is_abc) == "fine"

    run(story())


def test_damage_is_told_once_every_read_gave_the_same_bytes():
    """L2."""

    async def story():
        store = await stored(b"abd")
        with pytest.raises(CorruptObjectError, match="it is not abc"):
            await read_checked(store, "k", 0, 3, check=is_abc)
        assert len(store.reads) == READS

    run(story())


def test_answers_that_differ_are_no_proof_of_damage():
    """L2."""

    async def story():
        store = await stored()
        store.spoil += [flipped(at % 3) for at in range(READS)]
        with pytest.raises(StoreUnavailableError, match="different answers"):
            await read_checked(store, "k", 0, 3, check=is_abc)

    run(story())


def test_the_reads_are_spread_over_seconds(monkeypatch):
    """L2."""
    monkeypatch.setattr(checked, "PAUSE_S", 0.5)

    async def story():
        loop = asyncio.get_running_loop()
        store = await stored(b"abd")
        began = loop.time()
        with pytest.raises(CorruptObjectError):
            await read_checked(store, "k", 0, 3, check=is_abc)
        assert loop.time() - began >= 0.5 + 1 + 2

    run_in_virtual_time(story())


@pytest.mark.parametrize("start", [0, 700])
def test_a_reader_goes_on_when_a_range_was_changed_in_transit(tmp_path, start):
    """L2."""

    async def story():
        parts = await open_parts(tmp_path)
        await parts.add(1000, 5000)
        await parts.uploader.drain()
        parts.store.spoil += [flipped(20_000), lambda data: data, flipped(100), flipped(100)]
        await parts.read_objects(start, 1000, 5000)
        assert parts.store.spoil == []
        await parts.close()

    run(story())


@pytest.mark.parametrize("has_log", [True, False])
def test_an_object_is_adopted_although_it_was_changed_in_transit_at_first(tmp_path, has_log):
    """L2: without it, the offsets of an object that a lost log does not have are given to other messages."""

    async def story():
        parts = await open_parts(tmp_path)
        await parts.add(5, 100)
        parts.metadata.fail["cas"] = [StoreUnavailableError("m", "cas", "killed")]
        with pytest.raises(StoreUnavailableError):
            await parts.uploader.drain()
        await parts.crash()
        if not has_log:
            for path in (tmp_path / "log").iterdir():
                path.unlink()
        parts = await again(parts)
        parts.store.spoil += [flipped(50), flipped(90)]
        with told() as events:
            last = await parts.uploader.recover(log_is_open=False)
        assert (last.start, last.stop) == (0, 5)
        assert len(named(events, "object_adopted")) == 1
        await parts.close()

    run(story())


def test_a_plan_reads_a_place_in_an_object_again(tmp_path):
    """L2."""

    async def story():
        parts = await open_parts(tmp_path)
        await parts.add(50, 100)
        await parts.uploader.drain()
        parts.store.spoil += [flipped(50)]
        (found,) = await plan_splits(parts.storage, 7, 50, with_log=False, split_bytes=900_000, splits_max=10)
        assert (found.start, found.stop) == (7, 50)
        await parts.close()

    run(story())


def test_a_task_reads_an_object_again_before_it_decodes_any_of_it(tmp_path, monkeypatch):
    """L2."""

    async def story():
        parts = await open_parts(tmp_path)
        await parts.add(50, 100)
        await parts.uploader.drain()
        (descriptor,) = await parts.descriptors()
        await parts.close()
        return Split(0, 50, 0, descriptor.size, key=parts.catalog.object_key(descriptor))

    source = run(story())
    store = TroubledStore(FsStore(tmp_path / "objects"))
    monkeypatch.setattr(task, "open_store", lambda _settings: store)
    reach = Reach({}, "fs", str(tmp_path / "objects"), {})
    store.spoil += [flipped(3000), flipped(20)]
    assert sum(batch.num_rows for batch in decoded(source, reach)) == 50
    store.spoil += [flipped(3000)] * READS
    with pytest.raises(CorruptObjectError):
        next(decoded(source, reach))
