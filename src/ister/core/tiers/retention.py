"""Retention rules: which segments of a log and which objects may be deleted, whole and oldest first. Pure.

Under every policy a segment is retained that a subscription has not acknowledged completely, or that a later tier (objects,
table) does not hold completely. The active file is never deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, assert_never

from ister.core.errors import InvalidConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_US_PER_S = 1_000_000


class RetentionPolicy(Enum):
    """When a message that no subscription and no later tier needs is deleted."""

    RETAIN_UNTIL_ACK = "retain_until_ack"
    """Once every subscription has acknowledged it; without a subscription, never."""
    RETAIN_UNTIL_EXPIRE = "retain_until_expire"
    """Once it is older than the retention period, too; without a subscription, by age alone."""


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """Offsets [first, stop), the append time of the newest of them, and their bytes on disk.

    An append time of 0 is unknown; such a segment never expires.
    """

    first: int
    stop: int
    append_time_us: int
    size: int = 0


def prunable_below(
    segments: Sequence[SealedSegment],
    *,
    policy: RetentionPolicy,
    retention_period_s: int,
    now_us: int,
    cursors: Collection[int],
    later_tier_offset: int | None,
) -> int:
    """Return the offset below which the log may be pruned: a segment's end, or the first offset if nothing may.

    `segments` are the sealed ones, oldest first. Everything below a cursor is acknowledged by its subscription.
    `later_tier_offset` is the offset below which every enabled later tier holds the data, None if none is enabled.

    An earlier `now_us` never deletes more, so a clock that steps back only delays. A later one does delete more.
    """
    if retention_period_s < 0:
        raise InvalidConfigError("retention_period_s", f"{retention_period_s!r} must not be negative")
    assert all(before.stop == after.first for before, after in pairwise(segments)), "a log has no holes"
    if not segments:
        return 0
    needed_from = min(cursors, default=segments[-1].stop)
    if later_tier_offset is not None:
        needed_from = min(needed_from, later_tier_offset)
    below = segments[0].first
    for segment in segments:
        if segment.stop > needed_from:
            break
        match policy:
            case RetentionPolicy.RETAIN_UNTIL_ACK:
                released = bool(cursors)
            case RetentionPolicy.RETAIN_UNTIL_EXPIRE:
                released = _is_expired(segment, retention_period_s, now_us)
            case _:
                assert_never(policy)
        if not released:
            break
        below = segment.stop
    return below


def _is_expired(segment: SealedSegment, retention_period_s: float, now_us: int) -> bool:
    if segment.first == segment.stop:
        return True
    # After a clock stepped back, a message from the future has an age of 0.
    age_us = max(0, now_us - segment.append_time_us)
    return segment.append_time_us > 0 and age_us > retention_period_s * _US_PER_S


def overdue_below(
    segments: Sequence[SealedSegment],
    *,
    active_bytes: int,
    time_s: int | None,
    size_bytes: int | None,
    now_us: int,
) -> int:
    """Return the offset below which a log is too old or too large: a segment's end, or the first offset.

    `segments` are the sealed ones, oldest first; the active file counts for the size and is never deleted.
    """
    assert all(before.stop == after.first for before, after in pairwise(segments)), "a log has no holes"
    if not segments:
        return 0
    below = segments[0].first
    total = active_bytes + sum(segment.size for segment in segments)
    for segment in segments:
        too_large = size_bytes is not None and total > size_bytes
        too_old = time_s is not None and _is_expired(segment, time_s, now_us)
        if not (too_large or too_old):
            break
        below = segment.stop
        total -= segment.size
    return below


def proven_below(segments: Sequence[SealedSegment], *, wanted: int, uploaded: int) -> int:
    """Return the largest end of a segment below `wanted` that was uploaded completely."""
    ends = [segment.stop for segment in segments if segment.stop <= min(wanted, uploaded)]
    return max(ends, default=segments[0].first if segments else 0)


def objects_droppable_below(objects: Sequence[SealedSegment], *, upto: int, retention_s: float, now_us: int) -> int:
    """Return the offset below which objects may be deleted: an object's end, or the first offset if nothing may.

    `objects` are described ones, oldest first. An object is deleted only if it is completely below `upto`, which the table
    holds, has expired, and every older one is deleted, too. The last of `objects` is always retained: the next one begins
    at its end.

    Cursors do not retain objects: the table serves subscriptions that are behind.
    """
    assert all(before.stop <= after.first for before, after in pairwise(objects)), "objects are in order"
    if not objects:
        return 0
    below = objects[0].first
    for piece in objects[:-1]:
        if piece.stop > upto or not _is_expired(piece, retention_s, now_us):
            break
        below = piece.stop
    return below
