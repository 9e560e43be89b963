"""Freshness: time from the log to a committed snapshot, of 20 topics with 1,000 messages a second in total.

It ends when the commit has returned: from then on every query sees the message. Three phases of 40 s: the first creates the
tables and is not measured, the second runs alone, during the third one table after the other is compacted. A figure is valid
only if the producer kept its rate; that of the third phase only if something was compacted (`compactions`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from figures import show
from ister.config import load
from ister.core.table.maintenance import Procedure
from ister.lake.snapshot import wall_ms
from ister.pipeline import session
from ister.pipeline.loop import Loop
from ister.pipeline.maintenance import Result, Upkeep
from ister.pipeline.pacing import Pace
from ister.pipeline.topic_writer import TopicWriter
from pipeline_setup import CORES, lake_in, seeded_broker, verify, writer_on

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

TOPICS = [f"/default/fresh-{number}" for number in range(20)]
RATE = 1000
SIZE = 200
SECONDS = 40
EACH = RATE * SECONDS // len(TOPICS)
"""Messages per phase and topic."""
LATE = 1.05
"""Tolerance of the producer's duration; beyond it, the rate was not kept."""
WAIT_S = 120.0
"""Time limit for the tables to catch up after the producer has ended."""
PACE = Pace(flush_s=1.0, least_s=1.0, rows=1000, bytes=128 << 20)


class TimedWriter(TopicWriter):
    """Records when each commit returned."""

    commits: list[tuple[float, str, int]]
    reached: dict[str, int]

    def _commit(self, key, parts) -> None:
        super()._commit(key, parts)
        now = time.time()
        self.commits += [(now, part.progress.name, part.stop) for part in parts]
        self.reached |= {part.progress.name: part.stop for part in parts}


def table_of(topic: str) -> str:
    return topic.strip("/").replace("/", ".").replace("-", "_")


def produce(target: str) -> None:
    """Send at the rate, evenly over the topics."""
    script = Path(__file__).with_name("pipeline_producer.py")
    words = [target, str(SECONDS), str(RATE), str(SIZE), *TOPICS]
    with subprocess.Popen(
        [sys.executable, str(script), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            said, _ = process.communicate("go\n", timeout=SECONDS + WAIT_S)
        except BaseException:
            process.kill()
            raise
    assert process.returncode == 0, "the producer has failed, and has said why"
    sent, spent = int(said.split()[0]), float(said.split()[1])
    show(f"  {sent:,} messages in {spent:.1f} s")
    assert sent == EACH * len(TOPICS)
    assert spent <= LATE * SECONDS, f"{sent / spent:,.0f} messages a second were sent instead of {RATE:,}"


def phase(writer: TimedWriter, running: Future[None], target: str, number: int) -> None:
    """Produce, and wait until the tables hold everything."""
    writer.commits = []
    produce(target)
    deadline = time.monotonic() + WAIT_S
    while behind := [name for name in TOPICS if writer.reached.get(name, 0) < number * EACH]:
        if running.done():
            running.result()
            raise RuntimeError("the writer has ended")
        assert time.monotonic() < deadline, f"{WAIT_S:.0f} s after the last message these tables are behind: {behind}"
        time.sleep(0.05)  # poll interval


def ages(directory: Path, writer: TimedWriter, number: int) -> np.ndarray:
    """Return the seconds from log to commit of each message of a phase."""
    lake = lake_in(directory)
    found = []
    for name in TOPICS:
        table = lake.catalog.load_table(table_of(name))
        rows = table.scan(selected_fields=("topic_offset", "append_time")).to_arrow().sort_by("topic_offset")
        times = rows["append_time"].cast("int64").to_numpy() / 1e6
        at = (number - 1) * EACH
        for moment, topic, upto in writer.commits:
            if topic == name:
                found.append(moment - times[at:upto])
                at = upto
        assert at == number * EACH == len(times), f"{name} has {len(times)} rows, commits noted up to {at}"
    lake.close()
    return np.concatenate(found)


@contextmanager
def compacting(pool: ThreadPoolExecutor, upkeep: Upkeep) -> Iterator[list[int]]:
    """Compact in the background of the with block; then append the number of compactions that rewrote files."""
    stop, told = threading.Event(), list[int]()
    work = pool.submit(compact, upkeep, stop)
    try:
        yield told
    finally:
        stop.set()
        told.append(work.result())  # or raises its exception


def compact(upkeep: Upkeep, stop: threading.Event) -> int:
    """Maintain one table after the other until stopped; return the number of compactions that rewrote files."""
    seen: Counter[str] = Counter()
    compactions = 0
    while not stop.is_set():
        for name in TOPICS:
            if stop.is_set():
                break
            for one in upkeep.round([table_of(name)]):
                seen[one.procedure.value if isinstance(one, Result) else type(one).__name__] += 1
                compactions += isinstance(one, Result) and one.procedure is Procedure.COMPACT and one.removed > 0
        stop.wait(0.1)
    show(f"  beside it: {dict(seen)}; {compactions} compactions rewrote files")
    return compactions


def main(scratch: Path) -> dict[str, float]:
    scratch.mkdir(parents=True)
    home = scratch / "lake"
    with seeded_broker(scratch / "broker", dict.fromkeys(TOPICS, 0), SIZE) as broker:
        lake = lake_in(home)
        config = load(None, home).config
        spark = session.open_session(config, master=f"local[{CORES}]")
        upkeep = Upkeep(spark, lake.catalog, config.storage.iceberg_config.maintenance, wall_ms)
        with (
            writer_on(spark, broker, lake, kind=TimedWriter) as (writer, client),
            ThreadPoolExecutor(2, "bench") as pool,
        ):
            writer.commits, writer.reached = [], {}
            loop = Loop(writer, client, PACE, lambda _: None)
            running = pool.submit(loop.run)
            try:
                phase(writer, running, broker.target, 1)  # the first micro-batches import, compile and create tables
                phase(writer, running, broker.target, 2)
                quiet = ages(home, writer, 2)
                with compacting(pool, upkeep) as told:
                    phase(writer, running, broker.target, 3)
                busy = ages(home, writer, 3)
            finally:
                loop.stop()
            running.result()
        spark.stop()
    [compactions] = told
    assert compactions, "nothing was compacted while freshness was measured"
    for name in TOPICS:
        verify(home, table_of(name), 3 * EACH)
    return {
        "freshness_p50_s": round(float(np.percentile(quiet, 50)), 2),
        "freshness_p99_s": round(float(np.percentile(quiet, 99)), 2),
        "freshness_compacting_p99_s": round(float(np.percentile(busy, 99)), 2),
        "compactions": compactions,
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
