"""Periodic tasks of a topic that survive every exception and report it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from zlib import crc32

import structlog

from ister.core.errors import BusyError, IsterError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = structlog.get_logger()


class Periodic:
    """Runs `work` once per interval; `problem` is why the last run failed, None if it succeeded."""

    def __init__(self, topic: str, work: Callable[[], Awaitable[object]], failure_event: str) -> None:
        self.problem: IsterError | None = None
        self._topic = topic
        self._work = work
        self._failure_event = failure_event

    async def run(self, interval_s: float) -> None:
        """Run until cancelled. The first run is within an interval, spread by topic so that not all begin at once."""
        await asyncio.sleep(interval_s * crc32(self._topic.encode()) / (1 << 32))
        while True:
            await self._run_once()
            await asyncio.sleep(interval_s)

    async def _run_once(self) -> None:
        try:
            await self._work()
        except IsterError as error:
            self.problem = error
        except Exception as error:
            # A defect of ours: without this, the task would end unnoticed.
            log.exception("task_failed", topic=self._topic, task=getattr(self._work, "__qualname__", ""))
            self.problem = BusyError(f"unexpected {type(error).__name__}: {error}")
        else:
            self.problem = None
            return
        log.warning(self._failure_event, topic=self._topic, cause=str(self.problem))
