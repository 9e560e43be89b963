"""The last act of the demo: Spark carries the topic to its table, and SQL counts it, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ister.cli.exits import CheckFailedError

if TYPE_CHECKING:
    from ister.cli.demo_broker import DemoBroker

PATIENCE_S = 600.0
"""The first time, Spark's jars are fetched."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What Spark did, and what SQL says."""

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
    """Run it, and return what it found."""
    command = [
        sys.executable,
        "-c",
        "from ister.cli.demo_table import main; main()",
        broker.url,
        str(broker.data),
        topic,
    ]
    log = broker.data.parent / "pipeline.log"
    with log.open("ab") as errors:
        done = subprocess.run(  # noqa: S603  # our own program
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, timeout=PATIENCE_S, check=False
        )
    if done.returncode != 0:
        words = log.read_text(errors="replace").splitlines()
        raise CheckFailedError(
            f"the pipeline ended with exit code {done.returncode}; it said: {words[-1] if words else '-'}"
        )
    return Answer(**json.loads(done.stdout.splitlines()[-1]))
