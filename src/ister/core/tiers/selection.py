"""Tier selection: the log, else objects, else the table serves an offset; each up to where a cheaper one begins. Pure."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ister.core.errors import MissingSpanError, OffsetOutOfRangeError


class Tier(Enum):
    """The tiers, the cheapest first."""

    LOG = "log"
    OBJECTS = "objects"
    TABLE = "table"


class Span(NamedTuple):
    """Offsets [start, stop); empty if they are equal."""

    start: int
    stop: int

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int) and self.start <= offset < self.stop


NOTHING = Span(0, 0)


class Serve(NamedTuple):
    """Read from this tier up to `stop`, then select again."""

    tier: Tier
    stop: int


def serve(
    offset: int,
    log: Span,
    objects: Span,
    table: Span = NOTHING,
    *,
    unreadable: Span = NOTHING,
    lost: Span = NOTHING,
) -> Serve:
    """Return the cheapest tier that serves `offset`, and up to where: its end, or where a cheaper one begins.

    The log serves its end, too: a reader waits there. `unreadable` is a damaged part of the log, `lost` a damaged or
    missing part of the objects. MissingSpanError if no tier has an offset that lies between the first and the last.
    """
    tiers = (
        (Tier.LOG, without(Span(log.start, log.stop + 1), unreadable)),
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
        raise MissingSpanError(offset, min(following))
    raise OffsetOutOfRangeError(offset, start, log.stop)


def without(span: Span, hole: Span) -> list[Span]:
    """Return the non-empty parts of a range that are outside `hole`."""
    if hole.start >= hole.stop:
        parts = [span]
    else:
        parts = [Span(span.start, min(span.stop, hole.start)), Span(max(span.start, hole.stop), span.stop)]
    return [part for part in parts if part.start < part.stop]
