"""Replay one simulated life and say what happened: make sim SEED=42."""

import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import structlog

from sim.story import BrokenPromiseError, Story, check  # the path comes first


def main(seed: int) -> int:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    story = Story(seed)
    print(f"seed {seed}: fault {story.fault}, {story.config}")
    crashes = story.live()
    facts = story.facts
    print(
        f"lived: {len(facts.invoked)} messages sent, {len(facts.acked)} acknowledged or read, {len(facts.refused)} refused, synced to {facts.synced}"
    )
    states = 0
    for crash in crashes:
        try:
            states += check(crash, story.config, seed, restarts=2)
        except BrokenPromiseError as error:
            print(f"BROKEN after {states} states: {error}")
            return 1
    print(f"held: {states} crash states at {len(crashes)} steps, 0 lost, 0 repeated, 0 phantom")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
