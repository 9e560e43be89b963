"""Maintain tables on a schedule: a thread beside the ticks, which never wait for it.

What goes wrong with a table is told in the log and tried again in the next round; nothing of it ends the pipeline.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import structlog

from ister.core.errors import IsterError
from ister.pipeline.maintenance import tables_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from ister.pipeline.maintenance import Upkeep

log = structlog.get_logger()

GRACE_S = 3.0
"""How long the end of the process waits for a procedure whose jobs were cancelled."""


class Schedule:
    """Rounds of maintenance, one each interval; the first after one, since a start is busy enough."""

    def __init__(self, spark: SparkSession, catalog: Catalog, upkeep: Upkeep, interval_s: float) -> None:
        self._spark = spark
        self._catalog = catalog
        self._upkeep = upkeep
        self._interval_s = interval_s
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ister-maintenance", daemon=True)

    def start(self) -> None:
        """Begin to wait for the first round."""
        self._thread.start()

    def stop(self) -> None:
        """End it, and what it is doing: a procedure that is cut short has not changed its table."""
        self._ending.set()
        if self._thread.is_alive():
            self._spark.sparkContext.cancelAllJobs()  # the ticks have ended, so these are the procedure's
            self._thread.join(GRACE_S)

    def round(self) -> None:
        """Do what every table needs now; a table that cannot be maintained does not keep others from it."""
        try:
            names = list(tables_of(self._catalog))
        except Exception as error:  # noqa: BLE001  # the root of a thread: the next round tries again
            log.warning("maintenance_waits", cause=_said(error))
            return
        done = failed = 0
        for name in names:
            try:
                for outcome in self._upkeep.round([name]):
                    if self._ending.is_set():
                        return
                    if isinstance(outcome, IsterError):
                        failed += 1
                        log.warning("maintenance_failed", table=name, cause=str(outcome))
                    else:
                        done += 1
            except Exception as error:  # noqa: BLE001  # the root of a thread: the next round tries again
                if self._ending.is_set():
                    return
                failed += 1
                log.error("maintenance_failed", table=name, cause=_said(error))  # noqa: TRY400  # an event, no traceback
        if done or failed:
            log.info("maintenance_round", tables=len(names), procedures=done, failed=failed)

    def _run(self) -> None:
        while not self._ending.wait(self._interval_s):
            self.round()


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
