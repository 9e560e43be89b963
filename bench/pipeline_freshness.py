"""How long a message takes from the log to a committed snapshot: 20 topics at 1,000 messages a second together.

A message's time ends when the commit that holds it has returned: from then on every query sees it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from figures import show
from ister.config import load
from ister.core.ticks import Pace
from ister.pipeline import session
from ister.pipeline.loop import Loop
from ister.pipeline.maintenance import Upkeep
from ister.pipeline.writer import TopicWriter
from pipeline_setup import CORES, lake_in, seeded_broker, verify, writer_on

TOPICS = [f"/default/fresh-{number}" for number in range(20)]
RATE = 1000
SIZE = 200
SECONDS = 40
PACE = Pace(flush_s=1.0, least_s=1.0, rows=1000, bytes=128 << 20)


class TimedWriter(TopicWriter):
    """Notes when each commit has returned."""

    commits: list[tuple[float, str, int]]

    def _commit(self, key, parts) -> None:
        super()._commit(key, parts)
        now = time.time()
        self.commits += [(now, part.progress.name, part.stop) for part in parts]


def produce(target: str) -> int:
    """Send at the rate; returns how many messages."""
    script = Path(__file__).with_name("pipeline_producer.py")
    words = [target, str(SECONDS), str(RATE), str(SIZE), *TOPICS]
    with subprocess.Popen(
        [sys.executable, str(script), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        said, _ = process.communicate("go\n")
        assert process.returncode == 0
    sent, spent = said.split()
    show(f"  {int(sent):,} messages in {float(spent):.1f} s")
    return int(sent)


def wait_for(writer: TopicWriter, rows: int) -> None:
    while sum(one.upto for one in writer.topics.values()) < rows:
        time.sleep(0.05)  # between two looks


def ages(directory: Path, writer: TimedWriter, since: dict[str, int]) -> np.ndarray:
    """Return the seconds of each message from the log to its commit."""
    lake = lake_in(directory)
    found = []
    for name in TOPICS:
        table = lake.catalog.load_table(name.strip("/").replace("/", ".").replace("-", "_"))
        rows = table.scan(selected_fields=("topic_offset", "append_time")).to_arrow().sort_by("topic_offset")
        times = rows["append_time"].cast("int64").to_numpy() / 1e6
        at = since.get(name, 0)
        for moment, topic, upto in writer.commits:
            if topic == name and upto > at:
                found.append(moment - times[at:upto])
                at = upto
    return np.concatenate(found)


def phase(writer: TimedWriter, broker, total: int) -> int:
    writer.commits = []
    total += produce(broker.target)
    wait_for(writer, total)
    return total


def main(scratch: Path) -> dict[str, float]:
    scratch.mkdir(parents=True)
    home = scratch / "lake"
    with seeded_broker(scratch / "broker", dict.fromkeys(TOPICS, 0), SIZE) as broker:
        lake = lake_in(home)
        config = load(None, home).config
        spark = session.open_session(config, master=f"local[{CORES}]")
        with writer_on(spark, broker, lake, kind=TimedWriter) as (writer, client):
            writer.commits = []
            loop = Loop(writer, client, PACE, lambda _: None)
            running = threading.Thread(target=loop.run)
            running.start()
            phase(writer, broker, 0)  # the first ticks import, compile and make tables
            since = {name: one.upto for name, one in writer.topics.items()}
            total = phase(writer, broker, sum(since.values()))
            quiet = ages(home, writer, since)
            since = {name: one.upto for name, one in writer.topics.items()}
            stop = threading.Event()
            compacting = threading.Thread(target=compact, args=(spark, lake, config, stop))
            compacting.start()
            total = phase(writer, broker, total)
            stop.set()
            compacting.join()
            busy = ages(home, writer, since)
            loop.stop()
            running.join()
            each = {name: one.upto for name, one in writer.topics.items()}
        spark.stop()
    for name, rows in each.items():
        verify(home, name.strip("/").replace("/", ".").replace("-", "_"), rows)
    assert sum(each.values()) == total
    return {
        "freshness_p50_s": round(float(np.percentile(quiet, 50)), 2),
        "freshness_p99_s": round(float(np.percentile(quiet, 99)), 2),
        "freshness_compacting_p99_s": round(float(np.percentile(busy, 99)), 2),
    }


def compact(spark, lake, config, stop: threading.Event) -> None:
    """Compact one table after the other, all the time."""
    rules = config.storage.iceberg_config.maintenance
    upkeep = Upkeep(spark, lake.catalog, rules, lambda: time.time_ns() // 1_000_000)
    done = 0
    while not stop.is_set():
        for name in TOPICS:
            if stop.is_set():
                break
            for _ in upkeep.round([name.strip("/").replace("/", ".").replace("-", "_")]):
                done += 1
    show(f"  {done} procedures beside it")


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
