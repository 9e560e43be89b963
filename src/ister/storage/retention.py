"""Retention policies of topics, and the task that enforces them.

A policy deletes whole sealed files of the log, never messages that a cursor needs or that a later tier does not hold yet
(I5). The broker's own retention, which deletes uploaded files, is independent of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ister.aio.periodic import Periodic
from ister.core.errors import InvalidConfigError
from ister.core.tiers.retention import RetentionPolicy, prunable_below

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ister.core.errors import IsterError
    from ister.ports.clock import Clock
    from ister.storage.persistent import PersistentStorage

US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class ReliableOptions:
    """The size of a segment, and when it is deleted.

    `segment_size_mb` is in MiB. `retention_period_s` counts for RETAIN_UNTIL_EXPIRE only.
    """

    segment_size_mb: int
    policy: RetentionPolicy
    retention_period_s: int

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "policy", RetentionPolicy(self.policy))
        except ValueError:
            known = ", ".join(policy.value for policy in RetentionPolicy)
            raise InvalidConfigError("policy", f"{self.policy!r} is none of {known}") from None
        for setting, least in (("segment_size_mb", 1), ("retention_period_s", 0)):
            value = getattr(self, setting)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidConfigError(setting, f"{value!r} must be a whole number of at least {least}")

    @property
    def segment_bytes(self) -> int:
        """The size at which a segment is sealed."""
        return self.segment_size_mb * 1024 * 1024


async def enforce(
    storage: PersistentStorage,
    options: ReliableOptions,
    now_us: int,
    *,
    later_tier_offset: int | None = None,
    prune: Callable[[int], Awaitable[int]] | None = None,
) -> int:
    """Delete what the options do not retain; returns the oldest remaining offset.

    `later_tier_offset` is the end of a later tier that the storage does not know; its own objects count in any case.
    Deletes first and seals then, because sealing needs space on a full disk. `prune` replaces the storage's.
    """
    held = [offset for offset in (later_tier_offset, storage.later_tier_offset) if offset is not None]
    expires = options.policy is RetentionPolicy.RETAIN_UNTIL_EXPIRE
    segments = await storage.dated_segments() if expires else storage.sealed_segments()
    cursors = await storage.cursors()
    # No await between the cursors and the deletion: a new subscription is either among them, or finds the new start.
    below = prunable_below(
        segments,
        policy=options.policy,
        retention_period_s=options.retention_period_s,
        now_us=now_us,
        cursors=cursors.values(),
        later_tier_offset=min(held, default=None),
    )
    if segments and below > segments[0].first:
        await (prune or storage.prune)(below)
    # The file of an idle topic never becomes full: it is sealed when all of it has expired.
    await storage.seal(options.segment_bytes, now_us - options.retention_period_s * US_PER_S if expires else None)
    return storage.start_offset


class LogRetention:
    """Enforces one topic's policy periodically; `options` may change at any time, None is no policy."""

    def __init__(self, topic: str, storage: PersistentStorage, clock: Clock) -> None:
        self.options: ReliableOptions | None = None
        self._periodic = Periodic(topic, self.enforce, "retention_failed")
        self._storage = storage
        self._clock = clock

    @property
    def problem(self) -> IsterError | None:
        """Why the last run failed, None if it succeeded."""
        return self._periodic.problem

    async def run(self, interval_s: float) -> None:
        """Enforce it once per interval until cancelled."""
        await self._periodic.run(interval_s)

    async def enforce(self) -> int:
        """Delete what the policy does not retain; returns the oldest remaining offset."""
        if self.options is None:
            return self._storage.start_offset
        return await enforce(self._storage, self.options, self._clock.wall_us())

    def set_options(self, options: ReliableOptions | None) -> None:
        """Enforce another policy from now on; None is no policy."""
        self.options = options
