"""Decide how a run of frames is cut into shares for several tasks: at places that an index knows, never within a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

SPLIT_BYTES = 16 * 1024 * 1024
"""How large a share is when nobody says: a task decodes it whole, in about seven times the memory."""
SPLIT_BYTES_MIN = 64 * 1024
"""No index has places closer to each other."""
SPLITS_MAX = 1000


class Cut(NamedTuple):
    """A place between two frames: everything before `byte` is below `offset`, everything behind is not."""

    offset: int
    byte: int


class Share(NamedTuple):
    """The frames from one cut to another."""

    start: Cut
    stop: Cut


def share_out(start: Cut, places: Iterable[tuple[int, int]], stop: Cut, split_bytes: int) -> list[Share]:
    """Cover [start, stop) without a hole, in shares of about `split_bytes`; places outside of it are passed over.

    A share ends at the first place where it is large enough, so it is larger by what lies between two places at most.
    """
    shares: list[Share] = []
    begin = start
    for place in places:
        cut = Cut(*place)
        inside = begin.offset < cut.offset < stop.offset and cut.byte < stop.byte
        if inside and cut.byte - begin.byte >= split_bytes:
            shares.append(Share(begin, cut))
            begin = cut
    if begin.offset < stop.offset:
        shares.append(Share(begin, stop))
    return shares
