"""Progress in metadata when the store answers badly, or we are killed: nothing is lost, and nothing is guessed."""

import asyncio
import random

import pytest

from ister.core.errors import MetadataUnavailableError, MetadataUnknownError
from parts.progress import FAULTS, KEY, Script, made, opened
from sim.cloud_machine import Network, SimMetadata
from sim.machine import run

STORY = (("advance", "a", 3), ("advance", "b", 4), ("advance", "a", 5), ("put", "a", 2), ("forget", "b", 0),
         ("advance", "b", 1), ("put", "c", 0), ("forget", "c", 0))  # fmt: skip
ENDS = {"a": 2, "b": 1}
WRITES = 14


async def act(cursors, what, name, cursor):
    return await (cursors.forget(name) if what == "forget" else getattr(cursors, what)(name, cursor))


def holds(kept, found):
    """Whether a crash that left `found` was counted on."""
    return all(name in kept and kept[name] <= cursor for name, cursor in found.items())


async def seen(metadata):
    """What the next owner would see."""
    return (await opened(metadata.copy(Script()))).durable()


async def one_fault(at, fault, *, again):
    """Live through STORY with one call going wrong; `again` says whether what failed is asked for again at once."""
    metadata = SimMetadata(Script(at, fault))
    cursors, failed = made(metadata), 0
    expected = MetadataUnavailableError if fault == "unavailable" else MetadataUnknownError
    for step in (("load", "", 0), *STORY):
        try:
            await (cursors.load() if step[0] == "load" else act(cursors, *step))
        except expected:
            failed += 1
            if step[0] == "load":
                await cursors.load()
            else:
                assert holds(cursors.durable(), await seen(metadata)), (at, fault, step)
                if again:
                    await act(cursors, *step)
        if not failed:
            assert cursors.durable() == await seen(metadata)
    await cursors.settle()
    assert cursors.durable() == ENDS == await seen(metadata), (at, fault)
    return failed, metadata.network.calls


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_one_call_that_goes_wrong_anywhere_is_told_and_nothing_is_lost(fault, again):
    async def story():
        at, told = 0, 0
        while True:
            failed, calls = await one_fault(at, fault, again=again)
            if at >= len(calls):
                break
            assert failed <= 1
            told += failed
            at += 1
        assert told >= WRITES

    run(story())


@pytest.mark.parametrize("fault", ["unknown", "landed"])
def test_an_outcome_that_is_not_known_is_looked_up_before_the_key_is_written_again(fault):
    async def story():
        at, looked = 0, 0
        while True:
            failed, calls = await one_fault(at, fault, again=True)
            if at >= len(calls):
                break
            if failed:
                key = calls[at][1]
                following = [op for op, name in calls[at + 1 :] if name == key]
                assert following[0] == "get", (at, calls[at])
                looked += 1
            at += 1
        assert looked == WRITES

    run(story())


def test_after_a_call_that_did_nothing_nobody_looks():
    async def story():
        script = Script()
        cursors = await opened(SimMetadata(script))
        await cursors.advance("s", 1)
        script.at, script.fault = len(script.calls), "unavailable"
        with pytest.raises(MetadataUnavailableError):
            await cursors.advance("s", 5)
        script.calls.clear()
        script.fault = ""
        assert await cursors.advance("s", 5) == 5
        assert script.calls == [("cas", KEY)]

    run(story())


def test_a_write_that_landed_without_an_answer_is_not_written_twice():
    async def story():
        script = Script()
        metadata = SimMetadata(script)
        cursors = await opened(metadata)
        await cursors.advance("s", 1)
        script.at, script.fault = len(script.calls), "landed"
        with pytest.raises(MetadataUnknownError):
            await cursors.advance("s", 5)
        version = (await metadata.get(KEY)).version
        assert await cursors.advance("s", 5) == 5
        assert (await metadata.get(KEY)).version == version

    run(story())


def test_f1_no_crash_behind_a_bad_network_leaves_less_than_was_answered_or_more_than_was_counted_on(count, tell):
    lives = count(30, 1000)
    crashes = sum(run(_life(seed), seed) for seed in range(lives))
    tell("F1", f"cursors in metadata: {crashes} crashes in {lives} lives")
    assert crashes >= 20 * lives


async def _life(seed):
    rng = random.Random(seed)
    metadata = SimMetadata(Network(rng, trouble=0.0))
    cursors = await opened(metadata)
    metadata.network.trouble = 0.15
    answered, crashes = {}, []

    def crash(op, key):
        crashes.append((metadata.copy(Network(random.Random(0))), cursors.durable(), dict(answered)))

    async def live(name):
        for _ in range(6):
            cursor = rng.randint(0, 50)
            what = rng.choice(("advance", "advance", "advance", "put", "forget"))
            try:
                if what != "advance":
                    answered.pop(name, None)
                await act(cursors, what, name, cursor)
            except (MetadataUnavailableError, MetadataUnknownError):
                continue
            if what != "forget":
                answered[name] = cursor if what == "put" else max(cursor, answered.get(name, 0))

    metadata.network.on_step = crash
    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(live(name))
    crash("end", "")
    for image, kept, promised in crashes:
        found = (await opened(image)).durable()
        assert holds(kept, found), (seed, kept, found)
        assert all(found.get(name, -1) >= cursor for name, cursor in promised.items()), (seed, promised, found)
    return len(crashes)
