"""The table of the demo: a process that writes the topic to it with Spark and counts its rows in SQL."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ister.cli.exit_codes import CheckFailedError

if TYPE_CHECKING:
    from ister.cli.demo.broker import DemoBroker

TIMEOUT_S = 600.0
"""Long enough to download Spark's jars, the first time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What Spark wrote, and what SQL counted."""

    table: str
    rows: int
    files: int
    commits: int
    upto: int
    count: int
    distinct: int
    started_s: float
    carried_s: float
    asked_s: float


def carry_and_count(broker: DemoBroker, topic: str) -> Answer:
    """Run the process, and return its result."""
    command = [
        sys.executable,
        "-c",
        "from ister.cli.demo.table import main; main()",
        broker.url,
        str(broker.data),
        topic,
    ]
    log = broker.data.parent / "pipeline.log"
    with log.open("ab") as errors:
        done = subprocess.run(  # noqa: S603  # our own program
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, timeout=TIMEOUT_S, check=False
        )
    if done.returncode != 0:
        words = log.read_text(errors="replace").splitlines()
        raise CheckFailedError(
            f"the pipeline ended with exit code {done.returncode}; it said: {words[-1] if words else '-'}"
        )
    return Answer(**json.loads(done.stdout.splitlines()[-1]))
