"""The Spark job of a micro-batch: file plans as a DataFrame, `mapInArrow`, outcomes as rows."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from ister.core.errors import BusyError
from ister.pipeline.java import cause_line
from ister.pipeline.session import TICKS, in_pool
from ister.pipeline.task import OUTCOMES_SQL, Verdict, pass_through, plan_rows, write_splits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from ister.pipeline.task import FilePlan, Outcome, WriteJob


class JobFailedError(BusyError):
    """Spark gave up a job; nothing of it was committed."""

    def __init__(self, cause: str) -> None:
        self.cause = cause
        super().__init__(f"Spark's job failed: {cause}; nothing was committed, the next tick tries again")


class SparkGoneError(BusyError):
    """Spark has ended; only a new process can start another."""

    def __init__(self, cause: str) -> None:
        self.cause = cause
        super().__init__(f"Spark has ended: {cause}; nothing was committed, start the pipeline again")


def write_files(spark: SparkSession, tasks: Sequence[Sequence[tuple[int, FilePlan]]], job: WriteJob) -> list[Outcome]:
    """Write numbered file plans, those of a sequence by one task; return their outcomes in the order of their numbers."""
    with spark_job(spark, f"{sum(map(len, tasks))} files"):
        # An Arrow batch is one partition, with the `localRelationThreshold` of our sessions.
        plans = spark.createDataFrame(pa.Table.from_batches([plan_rows(task) for task in tasks]))
        rows = plans.mapInArrow(partial(write_splits, job), OUTCOMES_SQL).collect()
    return [(Verdict(row.verdict), row.text) for row in sorted(rows)]


def can_run(spark: SparkSession, tasks: int) -> bool:
    """Return True if a job that does nothing succeeds, with a Python worker for each task."""
    try:
        with spark_job(spark, "check that jobs run"):
            spark.range(0, tasks, 1, numPartitions=tasks).mapInArrow(pass_through, "id long").collect()
    except JobFailedError:
        return False
    return True


@contextmanager
def spark_job(spark: SparkSession, description: str) -> Iterator[None]:
    """Run a job in the micro-batches' pool; raise JobFailedError or SparkGoneError if it fails."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415  # Spark is loaded by now

    try:
        with in_pool(spark, TICKS):
            spark.sparkContext.setJobGroup("ister", description)
            yield
    except (PySparkException, Py4JError, OSError, EOFError) as error:
        cause = f"{type(error).__name__}: {cause_line(str(error))}"
        raise (JobFailedError(cause) if is_alive(spark) else SparkGoneError(cause)) from error


def is_alive(spark: SparkSession) -> bool:
    """Return True if Spark can still run a job, which only its JVM knows."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()  # noqa: SLF001  # PySpark has no call for it
    except Exception:  # noqa: BLE001  # the JVM may have ended
        return False
