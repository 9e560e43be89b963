"""Decide when a topic's policy lets go of messages: its options, and who enforces them from time to time.

A policy only takes from the log, whole sealed files, and never what a cursor needs or what a later tier does not hold yet
(I5). What the log keeps although objects have it is the broker's own retention, which goes on beside any policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from ister.cloud.deleter import check_periodically
from ister.core.errors import InvalidConfigError, IsterError
from ister.core.retain import RetentionPolicy, prunable_below

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ister.ports.clock import Clock
    from ister.storage.persistent import PersistentStorage

log = structlog.get_logger()

US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class ReliableOptions:
    """How large a segment becomes, and when it is deleted.

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
    """Delete what the options no longer keep; returns the oldest offset that is left.

    `later_tier_offset` is the offset below which a later tier holds the data that the storage does not know of; what its own
    objects do not hold yet is kept in any case. Deletes first and seals then: on a full disk there is no room to seal, and
    deleting makes some. `prune` is called instead of the storage's.
    """
    held = [offset for offset in (later_tier_offset, storage.later_tier_offset) if offset is not None]
    expires = options.policy is RetentionPolicy.RETAIN_UNTIL_EXPIRE
    segments = await storage.dated_segments() if expires else storage.sealed_segments()
    cursors = await storage.cursors()
    # No await from the cursors to the deletion: a subscription that begins meanwhile is either among them, or finds the
    # new start.
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
    # A file that nobody writes to any more never becomes full: it is sealed when all of it has expired.
    await storage.seal(options.segment_bytes, now_us - options.retention_period_s * US_PER_S if expires else None)
    return storage.start_offset


class Keeper:
    """Enforces one topic's policy again and again; `options` may change at any time, None is no policy."""

    def __init__(self, topic: str, storage: PersistentStorage, clock: Clock) -> None:
        self.options: ReliableOptions | None = None
        self.problem: IsterError | None = None
        self._topic = topic
        self._storage = storage
        self._clock = clock

    async def run(self, interval_s: float) -> None:
        """Enforce it until cancelled."""
        await check_periodically(self._topic, interval_s, self.enforce, self._report)

    def _report(self, error: IsterError | None) -> None:
        self.problem = error
        if error is not None:
            log.warning("retention_failed", topic=self._topic, cause=str(error))

    async def enforce(self) -> int:
        """Delete what may go now; returns the oldest offset that is left."""
        if self.options is None:
            return self._storage.start_offset
        return await enforce(self._storage, self.options, self._clock.wall_us())
