"""An hour of a table that gets a few rows every second: 3,600 commits back to back, maintained as by default.

The ticks do not wait for the clock, and a round of maintenance comes every 600 of them, which is what ten minutes have.
Snapshots are stamped with the real time, so none is an hour old at the end: what the grace keeps, is kept here too.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import uuid
from pathlib import Path

from figures import show
from ister.config import load
from ister.core.names import TopicName
from ister.lake.parquet import write_files
from ister.lake.schema import table_rows
from ister.pipeline import session
from ister.pipeline.maintenance import Upkeep, state_of
from pipeline_rows import messages
from pipeline_setup import CORES, lake_in, verify

TICKS = int(os.environ.get("ISTER_BENCH_TICKS", "3600"))
ROUND = 600
ROWS = 10
TABLE = "default.trickle"


def main(scratch: Path) -> dict[str, float]:
    scratch.mkdir(parents=True)
    lake = lake_in(scratch)
    config = load(None, scratch).config
    spark = session.open_session(config, master=f"local[{CORES}]")
    upkeep = Upkeep(spark, lake.catalog, config.storage.iceberg_config.maintenance, lambda: time.time_ns() // 1_000_000)
    table = lake.table(TopicName.parse("/default/trickle"), 1)
    table.claim(1)
    times: list[float] = []
    snapshots = manifests = 0
    for tick in range(TICKS):
        at = tick * ROWS
        files = write_files(
            {},
            table.location,
            [table_rows(messages(at, at + ROWS), 0)],
            partition=0,
            name=uuid.uuid4().hex,
            target_bytes=1 << 26,
        )
        began = time.perf_counter()
        table.commit_add_files(files, {0: (at, at + ROWS)})
        times.append((time.perf_counter() - began) * 1000)
        if (tick + 1) % 100 == 0:
            state = state_of(lake.catalog.load_table(TABLE))
            snapshots, manifests = max(snapshots, len(state.lineage)), max(manifests, state.manifests)
        if (tick + 1) % ROUND == 0:
            done = [str(result) for result in upkeep.round([TABLE])]
            show(
                f"  {tick + 1} ticks: {statistics.median(times[-100:]):.0f} ms a commit, {snapshots} snapshots; {done}"
            )
    verify(scratch, TABLE, TICKS * ROWS)
    found = {
        "commit_ms_10": statistics.median(times[5:16]),
        "commit_ms_1000": statistics.median(times[950:1050]),
        "snapshots": snapshots,
        "manifests": manifests,
        "files_live_after_1h_trickle": len(state_of(lake.catalog.load_table(TABLE)).files),
    }
    spark.stop()
    return {name: round(value, 1) for name, value in found.items()}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
