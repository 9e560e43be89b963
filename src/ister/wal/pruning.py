"""Delete a log's oldest files: whole ones, in order, one call after the other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from ister.wal.active import ActiveFiles
    from ister.wal.directory import Segment

log = structlog.get_logger()


class Pruner:
    """Prunes one log."""

    def __init__(self, disk: ActiveFiles, log_name: str) -> None:
        self._disk = disk
        self._log_name = log_name
        self.files_gone = 0
        self._job: asyncio.Task[None] | None = None

    async def ended(self) -> None:
        """Return once nothing is being deleted: a file must never go before an older one, or the log has a hole."""
        while self._job is not None and not self._job.done():
            await asyncio.wait({self._job})  # how it ended is told to whoever asked for it

    async def prune(self, before: int) -> None:
        """Delete sealed files that hold only offsets below `before`; nothing else may be under way.

        From this moment on the log starts behind them. A file that the disk refuses to delete becomes part of it again.
        """
        segments = self._disk.segments
        count = 0
        while count + 1 < len(segments) and segments[count + 1].first <= before:
            count += 1
        doomed, segments[:] = segments[:count], segments[count:]
        if doomed:
            self._job = asyncio.create_task(self._remove(doomed))
            await asyncio.shield(self._job)

    async def _remove(self, doomed: list[Segment]) -> None:
        disk = self._disk
        gone = 0
        try:
            gone = await asyncio.get_running_loop().run_in_executor(None, disk.remove, doomed)
        finally:
            disk.segments[:0] = doomed[gone:]
        self.files_gone += gone
        size = sum(segment.size for segment in doomed[:gone])
        log.info("log_pruned", log=self._log_name, files=gone, bytes=size, start=disk.segments[0].first)
