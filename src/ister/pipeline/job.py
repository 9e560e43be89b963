"""Run a tick's one Spark job, in the ticks' pool; tell a job that failed from a Spark that is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ister.core.errors import BusyError
from ister.pipeline.java import cause_line
from ister.pipeline.session import TICKS, in_pool
from ister.pipeline.task import run_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import Row, SparkSession

CAUSE_MAX = 300


class JobFailedError(BusyError):
    """Spark has given a job up; nothing of it was committed."""

    def __init__(self, cause: str) -> None:
        self.cause = cause
        super().__init__(f"Spark's job failed: {cause}; nothing was committed, the next tick tries again")


class SparkGoneError(BusyError):
    """Spark has ended, and with it every job to come: only a new process has another."""

    def __init__(self, cause: str) -> None:
        self.cause = cause
        super().__init__(f"Spark has ended: {cause}; nothing was committed, start the pipeline again")


def run_job(
    spark: SparkSession,
    tasks: int,
    do: Callable[..., Iterator[pa.RecordBatch]],
    columns: str,
    text: str,
) -> list[Row]:
    """Have so many tasks do something, each with its number; returns what they gave."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415  # Spark is there by now

    try:
        with in_pool(spark, TICKS):
            spark.sparkContext.setJobGroup("ister", text)
            return spark.range(0, tasks, 1, numPartitions=tasks).mapInArrow(do, columns).collect()
    except (PySparkException, Py4JError, OSError, EOFError) as error:
        cause = _cause(error)
        raise (JobFailedError(cause) if is_alive(spark) else SparkGoneError(cause)) from error


def can_run(spark: SparkSession, tasks: int) -> bool:
    """Return True if a job that does nothing ends well, with a Python worker for each task."""
    try:
        run_job(spark, tasks, run_nothing, "id long", "to see whether jobs run")
    except JobFailedError:
        return False
    return True


def is_alive(spark: SparkSession) -> bool:
    """Tell whether Spark can still run a job; asks Java, which may be gone itself."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()  # noqa: SLF001  # PySpark tells it nowhere else
    except Exception:  # noqa: BLE001  # whoever cannot say is not alive
        return False


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {cause_line(str(error))[:CAUSE_MAX]}"
