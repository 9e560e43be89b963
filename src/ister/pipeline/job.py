"""The Spark job of a micro-batch: plans as a DataFrame, `mapInArrow`, outcomes as rows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from ister.core.errors import BusyError
from ister.pipeline.java import cause_line
from ister.pipeline.session import TICKS, in_pool
from ister.pipeline.task import OUTCOMES_SQL, pass_through, plan_rows, write_splits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from ister.pipeline.task import FilePlan, WriteJob

CAUSE_MAX = 300


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


def written_files(spark: SparkSession, tasks: Sequence[Sequence[tuple[int, FilePlan]]], job: WriteJob) -> DataFrame:
    """Return the DataFrame of outcomes of numbered file plans; its action writes the files.

    Each sequence of plans is one Arrow batch, and with the `localRelationThreshold` of our sessions one partition and task.
    Any other session distributes the rows as it likes.
    """
    plans = spark.createDataFrame(pa.Table.from_batches([plan_rows(numbered) for numbered in tasks]))
    return plans.mapInArrow(partial(write_splits, job), OUTCOMES_SQL)


def collect(spark: SparkSession, frame: Callable[[], DataFrame], description: str) -> list[Row]:
    """Run a job in the micro-batches' pool; return the rows of its DataFrame."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415  # Spark is loaded by now

    try:
        with in_pool(spark, TICKS):
            spark.sparkContext.setJobGroup("ister", description)
            return frame().collect()
    except (PySparkException, Py4JError, OSError, EOFError) as error:
        cause = _cause(error)
        raise (JobFailedError(cause) if is_alive(spark) else SparkGoneError(cause)) from error


def can_run(spark: SparkSession, tasks: int) -> bool:
    """Return True if a job that does nothing succeeds, with a Python worker for each task."""
    try:
        collect(
            spark,
            lambda: spark.range(0, tasks, 1, numPartitions=tasks).mapInArrow(pass_through, "id long"),
            "check that jobs run",
        )
    except JobFailedError:
        return False
    return True


def is_alive(spark: SparkSession) -> bool:
    """Return True if Spark can still run a job, which only its JVM knows."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()  # noqa: SLF001  # PySpark has no call for it
    except Exception:  # noqa: BLE001  # the JVM may have ended
        return False


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {cause_line(str(error))[:CAUSE_MAX]}"
