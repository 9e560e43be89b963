"""What the last act of the demo runs: Spark carries a topic to its table, SQL counts it, and the answer is JSON."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ister.cli.demo_lake import Answer
from ister.cli.pipeline import reach
from ister.cli.remote import target_of
from ister.config import load
from ister.config.lake import catalog_properties
from ister.core.names import TopicName
from ister.lake.table import Lake
from ister.pipeline.client import BrokerClient
from ister.pipeline.loop import drain
from ister.pipeline.plan import Choice
from ister.pipeline.session import open_session
from ister.pipeline.writer import TopicWriter, WriterSettings

if TYPE_CHECKING:
    from ister.pipeline.writer import Tick


def main() -> None:
    """Carry a topic to its table, and ask SQL; prints an Answer as JSON."""
    url, data, topic = sys.argv[1:]
    config = load(None, Path(data)).config
    began = time.monotonic()
    spark = open_session(config)
    started = time.monotonic()
    broker, lake = BrokerClient(target_of(url, "--broker")), Lake.open(*catalog_properties(config))
    settings = WriterSettings(reach(config), choice=Choice((topic,)), objects_only=True)
    writer = TopicWriter(spark, broker, lake, settings)
    ticks: list[Tick] = []
    writer.start()
    drain(writer, ticks.append)
    carried = time.monotonic()
    progress = writer.topics[topic]
    name = writer.table_name(progress)
    found = spark.sql(f"SELECT count(*), count(DISTINCT topic_offset) FROM ister.{name}").first()  # noqa: S608  # our own name
    assert found is not None, "a count has a row"
    asked = time.monotonic()
    answer = Answer(
        table=name,
        rows=sum(tick.rows for tick in ticks),
        files=sum(tick.files for tick in ticks),
        commits=sum(tick.commits for tick in ticks),
        upto=lake.table(TopicName.parse(topic), progress.place.generation).upto(0),
        count=found[0],
        distinct=found[1],
        started_s=started - began,
        carried_s=carried - started,
        asked_s=asked - carried,
    )
    print(json.dumps(asdict(answer)))  # noqa: T201  # for the demo, which reads it
    broker.close()
    writer.close()
    spark.stop()
