"""Log pruning behind the later tiers: what exceeds the retention and is provably in objects or the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from ister.aio.periodic import Periodic
from ister.cloud.proof import sweep_orphans
from ister.core import defaults
from ister.core.errors import InvalidConfigError
from ister.core.tiers.retention import overdue_below, proven_below

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ister.cloud.descriptors import ObjectCatalog
    from ister.cloud.uploader import Uploader
    from ister.core.tiers.retention import SealedSegment
    from ister.ports.clock import Clock
    from ister.ports.objects import CloudStore

log = structlog.get_logger()

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What the log retains although objects have it, with the specified defaults."""

    time_minutes: int | None = defaults.RETENTION_MINUTES
    size_mb: int | None = defaults.RETENTION_MB
    check_interval_minutes: float = defaults.RETENTION_CHECK_MINUTES

    def __post_init__(self) -> None:
        for setting in ("time_minutes", "size_mb"):
            value = getattr(self, setting)
            if value is not None and value < 0:
                raise InvalidConfigError(setting, f"{value!r} must not be negative")
        if not self.check_interval_minutes > 0:
            raise InvalidConfigError("check_interval_minutes", f"{self.check_interval_minutes!r} must be more than 0")

    @property
    def check_interval_s(self) -> float:
        """The interval between checks."""
        return self.check_interval_minutes * 60

    @property
    def size_bytes(self) -> int | None:
        """The retained size in bytes."""
        return None if self.size_mb is None else self.size_mb * MIB


class PrunableLog(Protocol):
    """A log that can be pruned."""

    @property
    def log_start(self) -> int:
        """The oldest offset that the log itself holds."""

    @property
    def active_bytes(self) -> int:
        """The size of the active file."""

    async def dated_segments(self) -> Sequence[SealedSegment]:
        """Return the sealed files with their append times and sizes, oldest first."""

    async def prune(self, before: int) -> int:
        """Delete sealed files that hold only offsets below `before`; return the log's new start offset."""


class Deleter(Periodic):
    """One topic's deleter: `run` as a task, or call `tick`.

    `held` returns the end of the tier behind which the log is pruned; without it, that is the uploader's.
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
        assert uploader is not None or held is not None, "a log is pruned behind another tier"
        super().__init__(str(catalog.topic), self._check, "prune_failed")
        self._log = prunable
        self._store = store
        self._catalog = catalog
        self._uploader = uploader
        self._held = held
        self._retention = retention
        self._clock = clock
        self._sweep_from = self._sweep_next = 0
        self._growth = GrowthWatch(self._topic, retention)

    async def _check(self) -> None:
        await self.tick()
        await self.sweep()

    async def tick(self) -> int:
        """Prune what the retention allows; return the log's oldest offset."""
        segments = await self._log.dated_segments()
        wanted = overdue_below(
            segments,
            active_bytes=self._log.active_bytes,
            time_s=None if self._retention.time_minutes is None else self._retention.time_minutes * 60,
            size_bytes=self._retention.size_bytes,
            now_us=self._clock.wall_us(),
        )
        held = self._reached()
        self._growth.check(
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
        """Delete orphans: first among all objects, then among new ones."""
        if self._uploader is None:
            return 0  # no uploads, no new orphans
        upto = self._uploader.uploaded.value
        if self._sweep_from == self._sweep_next == upto:
            return 0  # nothing is new
        swept = await sweep_orphans(self._store, self._catalog, upto, after=self._sweep_from)
        # One round behind: a put with a lost response may land late.
        self._sweep_from, self._sweep_next = self._sweep_next, upto
        return swept

    def _reached(self) -> int:
        if self._held is not None:
            return self._held()
        assert self._uploader is not None, "a log is pruned behind another tier"
        return self._uploader.uploaded.value


class GrowthWatch:
    """Warns while a log grows that cannot be pruned."""

    def __init__(self, topic: str, retention: Retention) -> None:
        self._topic = topic
        self._limit = retention.size_bytes or 1024 * MIB

    def check(self, size: int, hint: str) -> None:
        """Warn if the size exceeds the limit, and again each time it has doubled."""
        if size > self._limit:
            log.warning("log_grows", topic=self._topic, bytes=size, hint=hint)
            self._limit = size * 2
