"""An hour of a table with ten rows a second: 3,600 consecutive micro-batches on a virtual clock, with default maintenance.

Micro-batches are a second apart on that clock, which also determines snapshot timestamps, expiry and maintenance. Broker,
producer and TopicWriter are real, except that tasks run in this process instead of in a Spark job: 3,600 jobs would take too
long (half an hour, by estimate) and should leave the same table. Maintenance runs on Spark, between two micro-batches, not
concurrently. The rows' append_time is the broker's real clock.

    commit_ms_10, commit_ms_1000    median duration of commits around the 10th and the 1,000th
    snapshots, manifests            maxima, read after every micro-batch and every procedure
    files_live_max                  maximum of live data files, read as often
    files_live_before_last_round    live data files after the last micro-batch, before the final round of maintenance
    files_live_after_1h_trickle     live data files after that round
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path

from broker_client import Client
from figures import show
from ister.config import load
from ister.pipeline import session
from ister.pipeline.maintenance import Result, Upkeep, state_of
from ister.pipeline.task import outcome_of
from ister.pipeline.topic_writer import TopicWriter
from pipeline_clock import VirtualClock, stamp_again
from pipeline_setup import CORES, lake_in, seeded_broker, verify, writer_on

TICKS = int(os.environ.get("ISTER_BENCH_TICKS", "3600"))
ROWS = 10
SIZE = 200
TOPIC = "/default/trickle"
TABLE = "default.trickle"


class TrickleWriter(TopicWriter):
    """Runs tasks in this process, and records the duration of each commit."""

    commits_ms: list[float]

    def _run(self, plans):
        job = self._job(plans)
        job = job._replace(reach=job.reach.whole())
        return [outcome_of(plan, job) for plan in plans]

    def _open_table(self, key) -> None:
        super()._open_table(key)
        commit = self._tables[key].commit_add_files

        def timed(*given):
            began = time.perf_counter()
            landed = commit(*given)
            self.commits_ms.append((time.perf_counter() - began) * 1000)
            return landed

        self._tables[key].commit_add_files = timed


class Most:
    """Maxima of the table; each update reads it through the catalog."""

    def __init__(self, catalog) -> None:
        self._catalog = catalog
        self.snapshots = self.manifests = self.files = self.files_now = 0

    def look(self) -> None:
        table = self._catalog.load_table(TABLE)
        current = table.current_snapshot()
        self.files_now = int(current.summary["total-data-files"])
        self.snapshots = max(self.snapshots, len(table.metadata.snapshots))
        self.manifests = max(self.manifests, len(current.manifests(table.io)))
        self.files = max(self.files, self.files_now)


def maintain(upkeep: Upkeep, catalog, clock: VirtualClock, most: Most) -> list[str]:
    """Run a round of maintenance; return its results."""
    done = []
    for result in upkeep.round([TABLE]):
        assert isinstance(result, Result), result  # no other writer, so no conflict
        done.append(result.procedure.value)
        clock.ms += 1
        stamp_again(catalog, TABLE, clock)
        most.look()
    return done


def trickle(writer: TrickleWriter, upkeep: Upkeep, catalog, clock: VirtualClock, target: str, round_s: int):
    """Run micro-batches and maintenance; return the maxima, and the state before the last round of maintenance."""
    most, began_ms, before_last = Most(catalog), clock.ms, 0
    with asyncio.Runner() as runner:
        client = runner.run(connect(target))
        producer = runner.run(client.producer(TOPIC))
        writer.refresh()  # creates the table through the library, with real timestamps
        stamp_again(catalog, TABLE, clock)
        for tick in range(1, TICKS + 1):
            clock.ms = began_ms + tick * 1000
            runner.run(producer.send_all((tick - 1) * ROWS, [bytes(SIZE)] * ROWS, ROWS))
            told = writer.tick()
            assert (told.rows, told.commits, told.failed) == (ROWS, 1, {}), told
            most.look()
            if tick % round_s == 0 or tick == TICKS:
                before_last = most.files_now
                done = maintain(upkeep, catalog, clock, most)
                show(
                    f"  {tick} ticks: {statistics.median(writer.commits_ms[-100:]):.0f} ms a commit, {most.snapshots} snapshots "
                    f"and {most.manifests} manifests at most, {before_last} live files, {most.files_now} after {', '.join(done)}"
                )
        runner.run(client.close())
    return most, before_last


async def connect(target: str) -> Client:
    return Client(target)  # needs a running event loop


def main(scratch: Path) -> dict[str, float | None]:
    scratch.mkdir(parents=True)
    home = scratch / "lake"
    clock = VirtualClock(time.time_ns() // 1_000_000 - (TICKS + 1) * 1000)
    lake = lake_in(home, now_ms=clock)
    config = load(None, home).config
    rules = config.storage.iceberg_config.maintenance
    with seeded_broker(scratch / "broker", {TOPIC: 0}, SIZE) as broker:
        spark = session.open_session(config, master=f"local[{CORES}]")
        upkeep = Upkeep(spark, lake.catalog, rules, clock)
        with writer_on(spark, broker, lake, only=(TOPIC,), kind=TrickleWriter) as (writer, _):
            writer.commits_ms = times = []
            most, before_last = trickle(writer, upkeep, lake.catalog, clock, broker.target, rules.interval_minutes * 60)
        spark.stop()
    verify(home, TABLE, TICKS * ROWS)
    state = state_of(lake.catalog.load_table(TABLE))
    stamps = sorted(one.timestamp_ms for one in state.lineage)
    assert stamps[-1] <= clock.ms, "a snapshot was not stamped by the virtual clock"
    assert len(state.files) == most.files_now, "the summary counts other files than the manifests have"
    found = {
        "commit_ms_10": median(times[5:16]),
        "commit_ms_1000": median(times[950:1050]),
        "snapshots": most.snapshots,
        "manifests": most.manifests,
        "files_live_max": most.files,
        "files_live_before_last_round": before_last,
        "files_live_after_1h_trickle": len(state.files),
    }
    return {name: value if value is None else round(value, 1) for name, value in found.items()}


def median(times: list[float]) -> float | None:
    return statistics.median(times) if times else None  # a run of fewer micro-batches


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
