"""Measure the pipeline: throughput against Kafka and Spark's own sink, freshness, micro-batches, and an hour of a trickle.

Each stage is a process with a Spark session of its own; session start is not measured. The last line is one
JSON object; docs/performance.md explains the figures. Run `make bench-peers` first: without Kafka its figures are null.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import show

STAGES = ("throughput", "freshness", "ticks", "trickle")


def main() -> None:
    wanted = sys.argv[1:] or STAGES
    scratch = Path(tempfile.mkdtemp(prefix="ister-bench-", dir=os.environ.get("ISTER_BENCH_DIR", "/var/tmp")))
    figures: dict[str, float | None] = {}
    try:
        for stage in wanted:
            show(f"--- {stage}")
            script = Path(__file__).with_name(f"pipeline_{stage}.py")
            done = subprocess.run(
                [sys.executable, str(script), str(scratch / stage)], stdout=subprocess.PIPE, check=True
            )
            figures |= json.loads(done.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    for name, value in figures.items():
        print(f"{name:32}{'not measured':>16}" if value is None else f"{name:32}{value:>16,.2f}")
    if "ratio" in figures and figures["ratio"] is None:
        print("Kafka was left out: `make bench-peers` fetches it, then measure again")
    print(json.dumps({"bench": "pipeline", **figures}))


if __name__ == "__main__":
    main()
