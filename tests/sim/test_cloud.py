"""Crash a topic with objects at every step, on disk and at the stores, and open what is left (F12, F15, F19, F20, F24)."""

import pytest

from services.objects_contract import ObjectsContract
from sim.cloud_machine import SimStore
from sim.cloud_mutants import CLOUD_MUTANTS
from sim.cloud_story import CloudStory, check, new_world

STATES_MAX = 20_000
PARTS = 2


def live_and_check(seed):
    crashes = CloudStory(seed, new_world(seed)).live()
    for step, crash in enumerate(crashes):
        check(crash, seed * 1000 + step)
    return len(crashes)


@pytest.mark.parametrize("part", range(PARTS))
def test_f12_f15_f19_f20_no_crash_leaves_a_gap_or_a_repeat(part, count, tell):
    lives = count(40, 1000) // PARTS
    states = sum(live_and_check(1_000_000 * part + life) for life in range(lives))
    tell("F12, F15, F19, F20", f"part {part}: crash at each of {states} steps of {lives} lives, 0 lost, 0 repeated")


@pytest.mark.parametrize("part", range(PARTS))
def test_f24_readers_see_each_message_once_while_it_moves(part, count, tell):
    lives = count(200, 10_000) // PARTS
    for life in range(lives):
        CloudStory(2_000_000 + 1_000_000 * part + life, new_world(life), crash_every=10**9).live()
    tell("F24", f"part {part}: two readers at random starts in each of {lives} lives: no gap, no repeat")


@pytest.mark.filterwarnings("ignore")  # a broken tier may well leave tasks behind
@pytest.mark.parametrize("mutant", CLOUD_MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_f42_a_planted_bug_of_the_cloud_tier_is_found(mutant, tell):
    states, seed, found = 0, 0, ""
    with mutant.planted():
        while states < STATES_MAX and not found:
            try:
                for step, crash in enumerate(CloudStory(seed, new_world(seed)).live()):
                    states += 1
                    check(crash, seed * 1000 + step)
            except Exception as error:  # noqa: BLE001  # however the bug shows itself
                found = f"{type(error).__name__}: {error}"
            seed += 1
    assert found, f"{mutant.name}: not noticed in {states} states"
    tell("F42", f"found after {states:5} states: {mutant.name}")


class TestSimulatedStore(ObjectsContract):
    """The twin keeps the contract of the real stores."""

    etags = True

    @pytest.fixture
    def store(self):
        return SimStore()
