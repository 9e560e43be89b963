"""The process of demo/lake.py: writes a topic to its table with Spark, counts it in SQL, and prints JSON."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ister.cli.demo.lake import Answer
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

if TYPE_CHECKING:
    from ister.pipeline.topic_writer import MicroBatch


def main() -> None:
    """Write a topic to its table and count it; print an Answer as JSON."""
    url, data, topic = sys.argv[1:]
    config = load(None, Path(data)).config
    began = time.monotonic()
    spark = open_session(config)
    started = time.monotonic()
    broker, lake = BrokerClient(target_of(url, "--broker")), LakeCatalog.open(*catalog_properties(config))
    settings = WriterSettings(reach(config), choice=Choice((topic,)), objects_only=True)
    writer = TopicWriter(spark, broker, lake, settings)
    ticks: list[MicroBatch] = []
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
