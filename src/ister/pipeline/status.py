"""Status of a running pipeline: a file in the data directory, and metrics."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

if TYPE_CHECKING:
    from pathlib import Path

    from ister.pipeline.topic_writer import MicroBatch, TopicWriter

log = structlog.get_logger()

FILE_NAME = "pipeline.json"


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """Status of one topic."""

    table: str
    upto: int
    next: int
    lag_s: float
    undecoded: int
    error: str


@dataclass(frozen=True, slots=True)
class Status:
    """Status of a pipeline."""

    pid: int
    epoch: int
    time_s: float
    topics: dict[str, TopicStatus]

    @classmethod
    def of(cls, writer: TopicWriter) -> Status:
        """Return the status of a pipeline."""
        now = writer.now()
        topics = {
            one.name: TopicStatus(
                writer.table_name(one), one.upto, one.next, round(one.lag_s(now), 3), one.undecoded, one.error
            )
            for one in writer.topics.values()
        }
        return cls(os.getpid(), writer.epoch, time.time(), topics)

    def write(self, path: Path) -> None:
        """Replace the file atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)  # a pipeline may be the first to use its data directory
        beside = path.with_suffix(f".{self.pid}.tmp")
        beside.write_text(json.dumps(asdict(self), separators=(",", ":")))
        beside.replace(path)

    @classmethod
    def read(cls, path: Path) -> Status | None:
        """Return the status that was written last; None if there is none."""
        try:
            content = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        topics = {name: TopicStatus(**topic) for name, topic in content.pop("topics").items()}
        return cls(topics=topics, **content)


class PipelineMetrics:
    """The pipeline's metrics in Prometheus' form, on a port of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self._ticks = counter("ister_pipeline_ticks", "Ticks that ended.")
        self._seconds = histogram("ister_pipeline_tick_seconds", "How long ticks took.")
        self._rows = counter("ister_pipeline_rows", "Rows committed to tables.")
        self._files = counter("ister_pipeline_files", "Data files committed to tables.")
        self._bytes = counter("ister_pipeline_file_bytes", "Bytes of these files.")
        self._commits = counter("ister_pipeline_commits", "Commits, one a table and tick.")
        self._commit_seconds = histogram("ister_pipeline_commit_seconds", "How long commits took, landed or not.")
        self._conflicts = counter("ister_pipeline_commit_conflicts", "Times that another commit came first.")
        self._unknowns = counter(
            "ister_pipeline_commit_unknowns", "Times that the catalog did not say whether it took one."
        )
        self._failing = gauge("ister_pipeline_topics_failing", "Topics that do not come along.")
        self._lag = gauge("ister_pipeline_lag_messages", "Messages not yet in the table.", ["topic"])
        self._lag_s = gauge("ister_pipeline_lag_seconds", "How long the oldest of them waits.", ["topic"])
        self._undecoded = gauge("ister_pipeline_undecoded_rows", "Rows whose payload did not decode.", ["topic"])

    def listen(self, host: str, port: int) -> None:
        """Serve the metrics; a port that is taken is logged, and stops nothing else."""
        try:
            start_http_server(port, host, self.registry)
        except OSError as error:
            log.warning("metrics_not_told", port=port, cause=str(error))

    def note(self, batch: MicroBatch, status: Status) -> None:
        """Count a micro-batch, and set the gauges of topics."""
        self._ticks.inc()
        self._seconds.observe(batch.seconds)
        self._rows.inc(batch.rows)
        self._files.inc(batch.files)
        self._bytes.inc(batch.bytes)
        self._commits.inc(batch.commits)
        for one in batch.attempts:
            self._commit_seconds.observe(one.seconds)
            self._conflicts.inc(one.conflicts)
            self._unknowns.inc(one.unknowns)
        self._failing.set(len(batch.failed))
        self._lag.clear()
        self._lag_s.clear()
        self._undecoded.clear()
        for name, topic in status.topics.items():
            self._lag.labels(name).set(max(0, topic.next - topic.upto))
            self._lag_s.labels(name).set(topic.lag_s)
            self._undecoded.labels(name).set(topic.undecoded)
