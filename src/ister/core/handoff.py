"""Decide which tier serves which offsets: the log when it can, objects for what is older, and no guess in between."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ister.core.errors import MissingSpanError, OffsetOutOfRangeError


class Tier(Enum):
    """Where messages are."""

    LOG = "log"
    OBJECTS = "objects"


class Span(NamedTuple):
    """The offsets [start, stop) that a tier holds; nothing when they are equal."""

    start: int
    stop: int

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int) and self.start <= offset < self.stop


NOTHING = Span(0, 0)


class Serve(NamedTuple):
    """Read from this tier, up to `stop`; then decide again."""

    tier: Tier
    stop: int


def serve(offset: int, log: Span, objects: Span, *, unreadable: Span = NOTHING) -> Serve:
    """Return the tier that serves `offset`, and up to where.

    The log's end is part of it: a reader waits there. `unreadable` is a part of the log that turned out to be damaged.
    MissingSpanError when neither tier has an offset that both sides of the gap say must exist.
    """
    if log.start <= offset <= log.stop and offset not in unreadable:
        return Serve(Tier.LOG, unreadable.start if unreadable.start > offset else log.stop)
    if offset in objects:
        stop = objects.stop
        if offset < log.start:
            stop = min(stop, log.start)
        elif offset in unreadable:
            stop = min(stop, unreadable.stop)
        return Serve(Tier.OBJECTS, stop)
    start = min(objects.start, log.start) if objects.start < objects.stop else log.start
    if start <= offset < log.stop:
        raise MissingSpanError(offset, log.start if offset < log.start else unreadable.stop)
    raise OffsetOutOfRangeError(offset, start, log.stop)
