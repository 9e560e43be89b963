"""Prune a topic's log behind its later tiers: what is old or too much, and provably in completed objects or the table."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

import structlog

from ister.cloud.proof import sweep_orphans
from ister.core.errors import BusyError, InvalidConfigError, IsterError
from ister.core.retain import overdue_below, proven_below

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ister.cloud.catalog import ObjectCatalog
    from ister.cloud.log import PrunableLog
    from ister.cloud.uploader import Uploader
    from ister.ports.clock import Clock
    from ister.ports.objects import CloudStore

log = structlog.get_logger()

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What the log keeps although objects have it; the defaults are the specified ones."""

    time_minutes: int | None = 2880
    size_mb: int | None = 20480
    check_interval_minutes: float = 5

    def __post_init__(self) -> None:
        for setting in ("time_minutes", "size_mb"):
            value = getattr(self, setting)
            if value is not None and value < 0:
                raise InvalidConfigError(setting, f"{value!r} must not be negative")
        if not self.check_interval_minutes > 0:
            raise InvalidConfigError("check_interval_minutes", f"{self.check_interval_minutes!r} must be more than 0")

    @property
    def check_interval_s(self) -> float:
        """How often it is looked what may go."""
        return self.check_interval_minutes * 60

    @property
    def size_bytes(self) -> int | None:
        """The size in bytes."""
        return None if self.size_mb is None else self.size_mb * MIB


def first_check_s(topic: str, interval_s: float) -> float:
    """Return after how long a topic is checked first: within an interval, and not all topics at the same moment."""
    return interval_s * crc32(topic.encode()) / (1 << 32)


async def check_periodically(
    topic: str, interval_s: float, check: Callable[[], Awaitable[object]], report: Callable[[IsterError | None], None]
) -> None:
    """Run `check` once per interval until cancelled; whatever it raises is reported, and it runs again."""
    await asyncio.sleep(first_check_s(topic, interval_s))
    while True:
        try:
            await check()
        except IsterError as error:
            report(error)
        except Exception as error:
            # A defect of ours: without this, the task would end and nobody would know.
            log.exception("task_failed", topic=topic, task=getattr(check, "__qualname__", ""))
            report(BusyError(f"unexpected {type(error).__name__}: {error}"))
        else:
            report(None)
        await asyncio.sleep(interval_s)


class Deleter:
    """One topic's deleter; `run` as a task, or `tick` by hand.

    `held` is how far the tier is behind which the log is pruned; without it, that is how far the uploader is.
    """

    def __init__(
        self,
        prunable: PrunableLog,
        store: CloudStore,
        catalog: ObjectCatalog,
        uploader: Uploader | None,
        retention: Retention,
        clock: Clock,
        *,
        held: Callable[[], int] | None = None,
    ) -> None:
        assert uploader is not None or held is not None, "a log is pruned behind something"
        self._log = prunable
        self._store = store
        self._catalog = catalog
        self._uploader = uploader
        self._held = held
        self._retention = retention
        self._clock = clock
        self._sweep_from = self._sweep_next = 0
        self._growth = GrowthWatch(str(catalog.topic), retention)
        self.problem: IsterError | None = None

    async def run(self) -> None:
        """Check again and again until cancelled."""
        await check_periodically(str(self._catalog.topic), self._retention.check_interval_s, self._check, self._report)

    async def _check(self) -> None:
        await self.tick()
        await self.sweep()

    def _report(self, error: IsterError | None) -> None:
        self.problem = error
        if error is not None:
            log.warning("prune_failed", topic=str(self._catalog.topic), cause=str(error))

    async def tick(self) -> int:
        """Prune what may go; returns the oldest offset that is left in the log."""
        segments = await self._log.dated_segments()
        wanted = overdue_below(
            segments,
            active_bytes=self._log.active_bytes,
            time_s=None if self._retention.time_minutes is None else self._retention.time_minutes * 60,
            size_bytes=self._retention.size_bytes,
            now_us=self._clock.wall_us(),
        )
        held = self._reached()
        self._growth.look(
            self._log.active_bytes + sum(segment.size for segment in segments if segment.stop > held),
            "these bytes are not uploaded yet, so they cannot be pruned: see what keeps the uploader from it"
            if self._uploader is not None
            else "these bytes are not in the table yet, so they cannot be pruned: see what keeps the pipeline from it",
        )
        below = proven_below(segments, wanted=wanted, uploaded=held)
        start = self._log.log_start
        if below <= start:
            return start
        return await self._log.prune(below)

    async def sweep(self) -> int:
        """Delete orphans; at first among all objects, then among those that are new."""
        if self._uploader is None:
            return 0  # without one there is no new orphan
        upto = self._uploader.uploaded.value
        if self._sweep_from == self._sweep_next == upto:
            return 0  # nothing is new
        swept = await sweep_orphans(self._store, self._catalog, upto, after=self._sweep_from)
        # One round behind: a put whose answer was lost may land late.
        self._sweep_from, self._sweep_next = self._sweep_next, upto
        return swept

    def _reached(self) -> int:
        if self._held is not None:
            return self._held()
        assert self._uploader is not None, "a log is pruned behind something"
        return self._uploader.uploaded.value


class GrowthWatch:
    """Warns as a log grows that cannot be pruned."""

    def __init__(self, topic: str, retention: Retention) -> None:
        self._topic = topic
        self._limit = retention.size_bytes or 1024 * MIB

    def look(self, size: int, hint: str) -> None:
        """Warn when the size has passed the limit, and again each time it has doubled."""
        if size > self._limit:
            log.warning("log_grows", topic=self._topic, bytes=size, hint=hint)
            self._limit = size * 2
