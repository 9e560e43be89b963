"""Tier selection: the log, else objects, else the table serves an offset; each up to where a cheaper one begins. Pure."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ister.core.errors import MissingOffsetsError, OffsetOutOfRangeError


class Tier(Enum):
    """The tiers, the cheapest first."""

    LOG = "log"
    OBJECTS = "objects"
    TABLE = "table"


class OffsetRange(NamedTuple):
    """Offsets [start, stop); empty if they are equal."""

    start: int
    stop: int

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int) and self.start <= offset < self.stop


NOTHING = OffsetRange(0, 0)


class Serve(NamedTuple):
    """Read from this tier up to `stop`, then select again."""

    tier: Tier
    stop: int


def serve(
    offset: int,
    log: OffsetRange,
    objects: OffsetRange,
    table: OffsetRange = NOTHING,
    *,
    unreadable: OffsetRange = NOTHING,
    lost: OffsetRange = NOTHING,
) -> Serve:
    """Return the cheapest tier that serves `offset`, and up to where: its end, or where a cheaper one begins.

    The log serves its end, too: a reader waits there. `unreadable` is a damaged part of the log, `lost` a damaged or
    missing part of the objects. MissingOffsetsError if no tier has an offset that lies between the first and the last.
    """
    tiers = (
        (Tier.LOG, without(OffsetRange(log.start, log.stop + 1), unreadable)),
        (Tier.OBJECTS, without(objects, lost)),
        (Tier.TABLE, without(table, NOTHING)),
    )
    following: list[int] = []
    for tier, pieces in tiers:
        for piece in pieces:
            if offset in piece:
                end = min(piece.stop, log.stop) if tier is Tier.LOG else piece.stop
                return Serve(tier, min([end, *following]))
        following += [piece.start for piece in pieces if piece.start > offset]
    start = min([log.start, *(span.start for span in (objects, table) if span.start < span.stop)])
    if start <= offset < log.stop:
        raise MissingOffsetsError(offset, min(following))
    raise OffsetOutOfRangeError(offset, start, log.stop)


def without(span: OffsetRange, hole: OffsetRange) -> list[OffsetRange]:
    """Return the non-empty parts of a range that are outside `hole`."""
    if hole.start >= hole.stop:
        parts = [span]
    else:
        parts = [
            OffsetRange(span.start, min(span.stop, hole.start)),
            OffsetRange(max(span.start, hole.stop), span.stop),
        ]
    return [part for part in parts if part.start < part.stop]
