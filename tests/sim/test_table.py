"""Crash a topic with a table at every step, empty its store, lose its disk, and read it from all tiers (F24, D5, I5)."""

import pytest

from sim.machine import run
from sim.table_machine import SimTable
from sim.table_mutants import TABLE_MUTANTS
from sim.table_story import TableStory, check, new_table_world

STATES_MAX = 5_000
PARTS = 2


def live_and_check(seed):
    world = new_table_world(seed)
    crashes = TableStory(seed, world).live()
    for step, crash in enumerate(crashes):
        check(crash, seed * 1000 + step)
    return len(crashes)


@pytest.mark.parametrize("part", range(PARTS))
def test_d5_no_crash_of_a_topic_with_a_table_leaves_a_gap_or_a_repeat(part, count, tell):
    lives = count(8, 600) // PARTS
    states = sum(live_and_check(3_000_000 * (part + 1) + life) for life in range(lives))
    assert states > lives
    tell(
        "D5, I5, I6", f"part {part}: crash at each of {states} steps of {lives} lives with a table, 0 lost, 0 repeated"
    )


@pytest.mark.parametrize("part", range(PARTS))
def test_f24_readers_see_each_message_once_on_all_four_tiers(part, count, tell):
    lives, reads = count(50, 10_000) // PARTS, 0
    for life in range(lives):
        world = new_table_world(life)
        TableStory(5_000_000 + 1_000_000 * part + life, world, crash_every=10**9).live()
        reads += world.table.reads
    assert reads > 0
    tell("F24", f"part {part}: three readers in each of {lives} lives, {reads} reads of the table: no gap, no repeat")


@pytest.mark.filterwarnings("ignore")  # a broken tier may well leave tasks behind
@pytest.mark.parametrize("mutant", TABLE_MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_f42_a_planted_bug_of_the_table_tier_is_found(mutant, tell):
    states, seed, found = 0, 0, ""
    with mutant.planted():
        while states < STATES_MAX and not found:
            try:
                for step, crash in enumerate(TableStory(seed, new_table_world(seed)).live()):
                    states += 1
                    check(crash, seed * 1000 + step)
            except Exception as error:  # noqa: BLE001  # however the bug shows itself
                found = f"{type(error).__name__}: {error}"
            seed += 1
    assert found, f"{mutant.name}: not noticed in {states} states"
    tell("F42", f"found after {states:5} states: {mutant.name}")


def test_the_simulated_table_is_a_table():
    async def story():
        table = SimTable()
        assert (await table.look()).upto == 0
        await table.prove(3, 3)
        assert await table.open(0, 0).read() == []
        assert table.place(0) is None
        await table.close()

    run(story())
