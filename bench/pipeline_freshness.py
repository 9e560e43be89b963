"""How long a message takes from the log to a committed snapshot: 20 topics at 1,000 messages a second together.

A message's time ends when the commit that holds it has returned: from then on every query sees it. Three phases of 40 s: the
first one makes the tables and is not counted, the second has the machine to itself, beside the third one table after the other
is compacted. A figure counts only when the producer has kept its rate; that of the third phase only when something was
compacted meanwhile, whose number is `compactions`.
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
"""How many messages a phase sends to each topic."""
LATE = 1.05
"""A producer that took longer than planned by more than this had another rate."""
WAIT_S = 120.0
"""For how long the tables may be behind a producer that has ended."""
PACE = Pace(flush_s=1.0, least_s=1.0, rows=1000, bytes=128 << 20)


class TimedWriter(TopicWriter):
    """Notes when each commit has returned."""

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
    """Send at the rate, to each topic the same number of messages."""
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
    """Produce, and wait until the tables have it all."""
    writer.commits = []
    produce(target)
    deadline = time.monotonic() + WAIT_S
    while behind := [name for name in TOPICS if writer.reached.get(name, 0) < number * EACH]:
        if running.done():
            running.result()
            raise RuntimeError("the writer has ended")
        assert time.monotonic() < deadline, f"{WAIT_S:.0f} s after the last message these tables are behind: {behind}"
        time.sleep(0.05)  # between two looks


def ages(directory: Path, writer: TimedWriter, number: int) -> np.ndarray:
    """Return the seconds of each message of a phase from the log to its commit."""
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
    """Compact beside what is done meanwhile; when that ends, gives how many compactions rewrote something."""
    stop, told = threading.Event(), list[int]()
    work = pool.submit(compact, upkeep, stop)
    try:
        yield told
    finally:
        stop.set()
        told.append(work.result())  # or what it has failed with


def compact(upkeep: Upkeep, stop: threading.Event) -> int:
    """Maintain one table after the other until told to stop; returns how many compactions rewrote something."""
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
                phase(writer, running, broker.target, 1)  # the first ticks import, compile and make tables
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
