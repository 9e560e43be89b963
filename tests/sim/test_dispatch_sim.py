"""Consumers die before they acknowledge (F36), and planted bugs of the machine that must notice (F42)."""

from collections import Counter

import pytest

from ister.core.dispatch.dispatch import SubscriptionType
from sim.dispatch_mutants import DISPATCH_MUTANTS
from sim.dispatch_story import Story

STORIES_MAX = 1_000


@pytest.mark.parametrize("kind", SubscriptionType, ids=lambda kind: kind.name.lower())
def test_f36_a_consumer_dies_before_ack_and_only_what_is_unacknowledged_is_redelivered(kind, count, tell):
    stories = count(75, 2_500)
    counts = Counter()
    for seed in range(1_000_000 * kind, 1_000_000 * kind + stories):
        try:
            counts += Story(seed, kind).live()
        except Exception as error:
            raise AssertionError(f"Story({seed}, {kind!r}): {error}") from error
    assert counts["died with messages in hand"] > stories / 4
    finished = ", ".join(f"{number} {name}" for name, number in sorted(counts.items()) if name != "steps to rest")
    tell("F36", f"{kind.name.lower()}: {stories} lives ({finished}): I9 held, none delivered after its acknowledgement")


@pytest.mark.parametrize("mutant", DISPATCH_MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_f42_a_planted_bug_of_dispatch_is_found(mutant, tell):
    found, seed = "", 0
    with mutant.planted():
        while not found and seed < STORIES_MAX:
            try:
                Story(seed).live()
            except Exception as error:  # noqa: BLE001  # however the bug shows itself
                found = f"{type(error).__name__}: {error}"
            seed += 1
    assert found, f"{mutant.name}: not noticed in {seed} lives"
    tell("F42", f"found after {seed:5} lives: {mutant.name}")


def test_f42_the_planted_bugs_of_dispatch_have_names_of_their_own():
    assert len({mutant.name for mutant in DISPATCH_MUTANTS}) == len(DISPATCH_MUTANTS) >= 8
