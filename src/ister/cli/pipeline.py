"""Run the pipeline, and tell where it is."""

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

from ister.cli.display import many, say
from ister.cli.remote import target_of
from ister.config.lake import catalog_properties, file_properties, require_shared_catalog
from ister.core.errors import BusyError
from ister.core.ticks import Pace
from ister.core.tokens import PARENT_VARIABLE, TOKEN_VARIABLE
from ister.lake.files import of_files
from ister.lake.table import Lake
from ister.pipeline.client import BrokerClient
from ister.pipeline.loop import Loop, Wanted, drain
from ister.pipeline.maintenance import Upkeep
from ister.pipeline.plan import Choice
from ister.pipeline.schedule import Schedule
from ister.pipeline.session import open_session
from ister.pipeline.status import FILE_NAME, PipelineMetrics, Status
from ister.pipeline.task import SECRETS_VARIABLE, Reach
from ister.pipeline.writer import TopicWriter, WriterSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from ister.config import Config, Loaded
    from ister.pipeline.progress import TopicProgress
    from ister.pipeline.writer import Tick

log = structlog.get_logger()

ORPHAN_GRACE_S = 10.0
"""How long a pipeline whose parent is gone has for what it is doing; then it ends as if it were killed, which loses nothing."""


class NotCarriedError(BusyError):
    """Topics whose tables do not have what their logs had."""

    def __init__(self, causes: dict[str, str]) -> None:
        self.causes = causes
        told = "; ".join(f"{topic}: {cause or 'nothing moved'}" for topic, cause in causes.items())
        super().__init__(
            f"{many(len(causes), 'topic')} not carried, all others were; mend what is named, run it again: {told}"
        )


class RunOptions(NamedTuple):
    """What `ister pipeline run` was told."""

    broker: str
    master: str
    once: bool
    topics: tuple[str, ...]
    metrics_port: int | None


def run(loaded: Loaded, options: RunOptions) -> None:
    """Carry topics to their tables until told to stop, or once."""
    config = loaded.config
    require_shared_catalog(config, "ister pipeline")
    if os.environ.pop(PARENT_VARIABLE, None) is not None:
        threading.Thread(target=end_with_parent, name="ister-parent", daemon=True).start()
    local = options.master.startswith("local")
    token = os.environ.pop(TOKEN_VARIABLE, None) if local else None
    tell_secrets(config)
    began = time.monotonic()
    spark = open_session(config, master=options.master)
    log.info("spark_started", master=options.master, seconds=round(time.monotonic() - began, 1))
    broker = BrokerClient(target_of(options.broker, "--broker"), token)
    lake = Lake.open(
        *catalog_properties(config), grace_ms=config.storage.iceberg_config.maintenance.file_grace_minutes * 60_000
    )
    writer = TopicWriter(spark, broker, lake, settings(config, options, spark, token))
    told = Teller(writer, Path(loaded.home) / FILE_NAME, options)
    behind: list[TopicProgress] = []
    try:
        writer.start()
        if options.once:
            Wanted(broker, writer.epoch).start()  # so that the broker sees an owner at work
            behind = drain(writer, told)
        else:
            with maintaining(config, spark):
                keep_going(writer, broker, pace(config), told)
    finally:
        broker.close()
        writer.close()
        spark.stop()
    if options.once:
        told.sum_up()
        if behind:
            raise NotCarriedError({one.name: one.error for one in behind})


def end_with_parent() -> None:
    """Wait for the end of stdin, which is that of our parent, however it ended; then end, and Java with us."""
    while os.read(0, 4096):
        pass
    log.warning("parent_gone")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_GRACE_S)
    os._exit(128 + signal.SIGTERM)


def keep_going(writer: TopicWriter, broker: BrokerClient, at: Pace, told: Teller) -> None:
    """Tick until SIGTERM or SIGINT."""
    loop = Loop(writer, broker, at, told)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: loop.stop())
    loop.run()
    log.info("pipeline_stopped")


@contextmanager
def maintaining(config: Config, spark: SparkSession) -> Iterator[None]:
    """Maintain tables on a schedule meanwhile, unless the configuration says not to."""
    rules = config.storage.iceberg_config.maintenance
    if not rules.enabled:
        yield
        return
    lake = Lake.open(*catalog_properties(config))
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
    """Return how the writer works, as the configuration and the command line say."""
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
    """Return how often tables are committed to."""
    writer = config.storage.iceberg_config.writer
    return Pace(
        writer.flush_interval_ms / 1000,
        writer.min_commit_interval_ms / 1000,
        writer.batch_size,
        writer.max_memory_bytes,
    )


def reach(config: Config) -> Reach:
    """Return what executors are told of files and objects; no secrets."""
    cloud = config.wal_cloud.cloud
    return Reach(file_properties(config), cloud.backend, cloud.absolute_root(), cloud.public_options())


def tell_secrets(config: Config) -> None:
    """Put secrets into the environment, which Python workers on this machine inherit; on a cluster its owner does that."""
    _, properties = catalog_properties(config)
    public = file_properties(config)
    files = {name: value for name, value in of_files(properties).items() if public.get(name) != value}
    secrets = {"files": files, "options": config.wal_cloud.cloud.secret_options()}
    os.environ.setdefault(SECRETS_VARIABLE, json.dumps(secrets))


class Teller:
    """Tells each tick: to the log, to the status file, to metrics."""

    def __init__(self, writer: TopicWriter, path: Path, options: RunOptions) -> None:
        self._writer = writer
        self._path = path
        self._rows = self._files = self._commits = 0
        self._failed: dict[str, str] = {}
        self._metrics = PipelineMetrics()
        if options.metrics_port is not None:
            self._metrics.listen("127.0.0.1", options.metrics_port)

    def __call__(self, tick: Tick) -> None:
        """Tell one tick."""
        status = Status.of(self._writer)
        status.write(self._path)
        self._metrics.note(tick, status)
        self._rows += tick.rows
        self._files += tick.files
        self._commits += tick.commits
        if tick.commits:
            log.info("tick", rows=tick.rows, files=tick.files, commits=tick.commits, seconds=round(tick.seconds, 3))
        for topic, cause in tick.failed.items():
            if self._failed.get(topic) != cause:
                log.error("topic_stopped", topic=topic, cause=cause)
        for topic in self._failed.keys() - tick.failed.keys():
            log.info("topic_goes_on", topic=topic)
        self._failed = tick.failed

    def sum_up(self) -> None:
        """Say for people what was done."""
        say(f"{many(self._rows, 'row')} in {many(self._files, 'file')} and {many(self._commits, 'commit')}.")
