"""F42: a simulator that finds nothing proves nothing, so bugs are planted in the real code and must be found."""

import re
from pathlib import Path

import pytest

from sim.cloud_mutants import CLOUD_MUTANTS
from sim.dispatch_mutants import DISPATCH_MUTANTS
from sim.mutants import MUTANTS
from sim.story import Story, check

STATES_MAX = 20_000


@pytest.mark.filterwarnings("ignore")  # a broken log may well leave tasks behind
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_f42_a_planted_bug_is_found(mutant, tell):
    states, seed, found = 0, 0, ""
    with mutant.planted():
        while states < STATES_MAX and not found:
            story = Story(seed)
            try:
                for crash in story.live():
                    states += check(crash, story.config, seed)
            except Exception as error:  # noqa: BLE001  # however the bug shows itself
                found = f"{type(error).__name__}: {error}"
            seed += 1
    assert found, f"{mutant.name}: not noticed in {states} states"
    tell("F42", f"found after {states:5} states: {mutant.name}")


def test_f42_there_are_at_least_twelve_planted_bugs():
    assert len({mutant.name for mutant in MUTANTS}) >= 12


def test_f42_the_docs_list_every_planted_bug():
    listed = re.findall(
        r"^\d+\. (.+)$", (Path(__file__).parent.parent.parent / "docs" / "faults.md").read_text(), re.MULTILINE
    )
    assert listed == [mutant.name for mutant in [*MUTANTS, *CLOUD_MUTANTS, *DISPATCH_MUTANTS]]
