import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_specifications_wiring_runs_from_python():
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / "wal_wiring.py"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "stored before anyone reads: offsets [0, 1, 2]",
        "stored while a reader waits at the end: offsets [3]",
        "the waiting reader got: ['four']",
        "replayed from offset 1: [(1, 'two'), (2, 'three'), (3, 'four')]",
        "billing acknowledged offset 2 and goes on at 3",
        "opened again: billing goes on at 3, with 'four'",
    ]
