"""A pipeline process: Spark, the broker's client, the catalog and the writer, assembled from a configuration."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import structlog

from ister.client.channel import target_of
from ister.client.storage import BrokerClient
from ister.config.catalog import catalog_properties, file_properties, require_shared_catalog
from ister.config.environment import PARENT_VARIABLE, SECRETS_VARIABLE, TOKEN_VARIABLE
from ister.core.errors import BusyError
from ister.lake.catalog import LakeCatalog
from ister.lake.files import of_files
from ister.pipeline.loop import Loop, Wakeups, drain
from ister.pipeline.maintenance import Schedule, Upkeep
from ister.pipeline.pacing import Pace
from ister.pipeline.plan import Choice
from ister.pipeline.session import open_session
from ister.pipeline.status import FILE_NAME, PipelineMetrics, Status
from ister.pipeline.task import Reach
from ister.pipeline.topic_writer import TopicWriter, WriterSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from ister.config import Config, Loaded
    from ister.pipeline.topic_writer import MicroBatch, TopicProgress

log = structlog.get_logger()

ORPHAN_GRACE_S = 10.0
"""How long a pipeline whose parent ended has to finish its work; then it exits as if killed, which loses nothing."""


class NotCarriedError(BusyError):
    """Topics that were not written to their tables."""

    def __init__(self, causes: dict[str, str]) -> None:
        self.causes = causes
        errors = "; ".join(f"{topic}: {cause or 'nothing moved'}" for topic, cause in causes.items())
        topics = f"{len(causes):,} topic{'' if len(causes) == 1 else 's'}"
        super().__init__(f"{topics} not carried, all others were; mend what is named, run it again: {errors}")


class RunOptions(NamedTuple):
    """The options of `ister pipeline run`."""

    broker: str
    master: str
    once: bool
    topics: tuple[str, ...]
    metrics_port: int | None


def run(loaded: Loaded, options: RunOptions, summary: Callable[[int, int, int], None]) -> None:
    """Write topics to their tables until SIGTERM, or once; then `summary` is called with the rows, files and commits."""
    config = loaded.config
    require_shared_catalog(config, "ister pipeline")
    if os.environ.pop(PARENT_VARIABLE, None) is not None:
        threading.Thread(target=end_with_parent, name="ister-parent", daemon=True).start()
    local = options.master.startswith("local")
    token = os.environ.pop(TOKEN_VARIABLE, None) if local else None
    export_secrets(config)
    began = time.monotonic()
    spark = open_session(config, master=options.master)
    log.info("spark_started", master=options.master, seconds=round(time.monotonic() - began, 1))
    broker = BrokerClient(target_of(options.broker, "--broker"), token)
    lake = LakeCatalog.open(
        *catalog_properties(config), grace_ms=config.storage.iceberg_config.maintenance.file_grace_minutes * 60_000
    )
    writer = TopicWriter(spark, broker, lake, settings(config, options, spark, token))
    reporter = BatchReporter(writer, Path(loaded.home) / FILE_NAME, options)
    behind: list[TopicProgress] = []
    try:
        writer.start()
        if options.once:
            Wakeups(broker, writer.epoch).start()  # so that the broker sees an active owner
            behind = drain(writer, reporter)
        else:
            with maintaining(config, spark):
                run_loop(writer, broker, pace(config), reporter)
    finally:
        broker.close()
        writer.close()
        spark.stop()
    if options.once:
        summary(reporter.rows, reporter.files, reporter.commits)
        if behind:
            raise NotCarriedError({one.name: one.error for one in behind})


def end_with_parent() -> None:
    """Wait for the end of stdin, which is the end of the parent process; then exit, and Java with us."""
    while os.read(0, 4096):
        pass
    log.warning("parent_gone")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_GRACE_S)
    os._exit(128 + signal.SIGTERM)


def run_loop(writer: TopicWriter, broker: BrokerClient, at: Pace, reporter: BatchReporter) -> None:
    """Run micro-batches until SIGTERM or SIGINT."""
    loop = Loop(writer, broker, at, reporter)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: loop.stop())
    loop.run()
    log.info("pipeline_stopped")


@contextmanager
def maintaining(config: Config, spark: SparkSession) -> Iterator[None]:
    """Maintain tables on a schedule in the background, unless the configuration disables it."""
    rules = config.storage.iceberg_config.maintenance
    if not rules.enabled:
        yield
        return
    lake = LakeCatalog.open(*catalog_properties(config))
    catalog = lake.catalog
    upkeep = Upkeep(spark, catalog, rules, lambda: time.time_ns() // 1_000_000)
    schedule = Schedule(spark, catalog, upkeep, rules.interval_minutes * 60.0)
    schedule.start()
    try:
        yield
    finally:
        schedule.stop()
        lake.close()


def settings(config: Config, options: RunOptions, spark: SparkSession, token: str | None) -> WriterSettings:
    """Return the settings of the writer."""
    writer = config.storage.iceberg_config.writer
    return WriterSettings(
        reach(config),
        name=f"ister on {options.master}",
        choice=Choice(options.topics, writer.exclude),
        target_file_bytes=writer.target_file_bytes,
        cores=max(1, spark.sparkContext.defaultParallelism),
        objects_only=token is None,
    )


def pace(config: Config) -> Pace:
    """Return the commit intervals and batch sizes."""
    writer = config.storage.iceberg_config.writer
    return Pace(
        writer.flush_interval_ms / 1000,
        writer.min_commit_interval_ms / 1000,
        writer.batch_size,
        writer.max_memory_bytes,
    )


def reach(config: Config) -> Reach:
    """Return what executors need to reach files and objects, without secrets."""
    cloud = config.wal_cloud.cloud
    return Reach(file_properties(config), cloud.backend, cloud.absolute_root(), cloud.public_options())


def export_secrets(config: Config) -> None:
    """Put secrets into the environment, which Python workers on this machine inherit; on a cluster its operator does."""
    _, properties = catalog_properties(config)
    public = file_properties(config)
    files = {name: value for name, value in of_files(properties).items() if public.get(name) != value}
    secrets = {"files": files, "options": config.wal_cloud.cloud.secret_options()}
    os.environ.setdefault(SECRETS_VARIABLE, json.dumps(secrets))


class BatchReporter:
    """Reports each micro-batch: to the log, to the status file, to metrics."""

    def __init__(self, writer: TopicWriter, path: Path, options: RunOptions) -> None:
        self._writer = writer
        self._path = path
        self.rows = self.files = self.commits = 0
        self._failed: dict[str, str] = {}
        self._metrics = PipelineMetrics()
        if options.metrics_port is not None:
            self._metrics.listen("127.0.0.1", options.metrics_port)

    def __call__(self, batch: MicroBatch) -> None:
        """Report one micro-batch."""
        status = Status.of(self._writer)
        status.write(self._path)
        self._metrics.note(batch, status)
        self.rows += batch.rows
        self.files += batch.files
        self.commits += batch.commits
        if batch.commits:
            log.info("tick", rows=batch.rows, files=batch.files, commits=batch.commits, seconds=round(batch.seconds, 3))
        for topic, cause in batch.failed.items():
            if self._failed.get(topic) != cause:
                log.error("topic_stopped", topic=topic, cause=cause)
        for topic in self._failed.keys() - batch.failed.keys():
            log.info("topic_goes_on", topic=topic)
        self._failed = batch.failed
