import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def lines_of(example):
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / example],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_the_specifications_wiring_runs_from_python():
    assert lines_of("wal_wiring.py") == [
        "stored before anyone reads: offsets [0, 1, 2]",
        "stored while a reader waits at the end: offsets [3]",
        "the waiting reader got: ['four']",
        "replayed from offset 1: [(1, 'two'), (2, 'three'), (3, 'four')]",
        "billing acknowledged offset 2 and goes on at 3",
        "opened again: billing goes on at 3, with 'four'",
    ]


def test_a_topic_with_objects_runs_from_python_and_outlives_its_log():
    assert lines_of("topics_with_objects.py") == [
        "stored, and in an object: offsets [0, 1, 2]",
        "pruned: the log starts at 3, the topic at 0",
        "stored, and in an object: offsets [3]",
        "one reader over both tiers: ['one', 'two', 'three', 'four']",
        "the log is lost: the topic goes on at 4, and has ['one', 'two', 'three', 'four']",
    ]
