"""The table of the demo: a process that writes the topic to it with Spark and counts its rows in SQL."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ister.cli.exit_codes import CheckFailedError

if TYPE_CHECKING:
    from ister.cli.demo.broker import DemoBroker
    from ister.pipeline.topic_writer import MicroBatch

TIMEOUT_S = 600.0
"""Long enough to download Spark's jars, the first time."""
_MAIN = "from ister.cli.demo.lake import main; main()"


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
    written_s: float
    queried_s: float


def write_and_count(broker: DemoBroker, topic: str) -> Answer:
    """Run the process, and return its result."""
    log = broker.data.parent / "pipeline.log"
    with log.open("ab") as errors:
        done = subprocess.run(  # noqa: S603  # our own program
            [sys.executable, "-c", _MAIN, broker.url, str(broker.data), topic],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            timeout=TIMEOUT_S,
            check=False,
        )
    if done.returncode != 0:
        words = log.read_text(errors="replace").splitlines()
        raise CheckFailedError(
            f"the pipeline ended with exit code {done.returncode}; it said: {words[-1] if words else '-'}"
        )
    return Answer(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Write a topic to its table and count it; print an Answer as JSON."""
    from ister.client.channel import target_of
    from ister.client.storage import BrokerClient
    from ister.config import load
    from ister.config.catalog import catalog_properties
    from ister.core.names import TopicName
    from ister.lake.catalog import LakeCatalog
    from ister.pipeline.loop import drain
    from ister.pipeline.plan import Choice
    from ister.pipeline.session import open_session
    from ister.pipeline.topic_writer import TopicWriter, WriterSettings
    from ister.runtime.pipeline import reach

    url, data, topic = sys.argv[1:]
    config = load(None, Path(data)).config
    began = time.monotonic()
    spark = open_session(config)
    started = time.monotonic()
    broker, lake = BrokerClient(target_of(url, "--broker")), LakeCatalog.open(*catalog_properties(config))
    settings = WriterSettings(reach(config), choice=Choice((topic,)), objects_only=True)
    writer = TopicWriter(spark, broker, lake, settings)
    batches: list[MicroBatch] = []
    writer.start()
    drain(writer, batches.append)
    written = time.monotonic()
    progress = writer.topics[topic]
    name = writer.table_name(progress)
    found = spark.sql(f"SELECT count(*), count(DISTINCT topic_offset) FROM ister.{name}").first()  # noqa: S608  # our own name
    assert found is not None, "a count has a row"
    queried = time.monotonic()
    answer = Answer(
        table=name,
        rows=sum(batch.rows for batch in batches),
        files=sum(batch.files for batch in batches),
        commits=sum(batch.commits for batch in batches),
        upto=lake.table(TopicName.parse(topic), progress.place.generation).upto(0),
        count=found[0],
        distinct=found[1],
        started_s=started - began,
        written_s=written - started,
        queried_s=queried - written,
    )
    print(json.dumps(asdict(answer)))  # noqa: T201  # for the demo, which reads it
    broker.close()
    writer.close()
    spark.stop()
