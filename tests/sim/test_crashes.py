"""Crash at every step of seeded lives, open what is left, crash again while opening and after (F1, F11, F14)."""

import pytest

from sim.story import Story, check

# Seeds that once found a bug, and the bug.
CORPUS = {
    6: "a new file's name was not synced when the log was opened again after kill -9",
    118: "an error of the closing sync left close() as a bare OSError",
    121: "the closing marker's page could be a ghost of a failed sync, in front of acknowledged messages",
    1_000_303: "the checker asked too much: within the loss window of level wal an offset may go to another message",
    2_000_019: "a refused message came back: its cut was not synced when the log was opened again after kill -9",
    1_000_023: "the same, when a mended function was never called",
}
PARTS = 4


def live_and_check(seed):
    story = Story(seed)
    crashes = story.live()
    return sum(check(crash, story.config, seed, restarts=3 if seed % 5 == 0 else 1) for crash in crashes)


@pytest.mark.parametrize("part", range(PARTS))
def test_f1_f11_f14_no_crash_loses_repeats_or_invents_a_message(part, count, tell):
    goal = count(40_000, 1_000_000) // PARTS
    states = lives = 0
    while states < goal:
        states += live_and_check(1_000_000 * part + lives)
        lives += 1
    tell("F1, F11, F14", f"part {part}: {states} crash states in {lives} lives, 0 lost, 0 phantom")


@pytest.mark.parametrize("seed", sorted(CORPUS))
def test_a_seed_that_found_a_bug_stays_in_the_corpus(seed):
    assert live_and_check(seed) > 0, CORPUS[seed]
