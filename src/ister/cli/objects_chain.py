"""Decide which objects make up a topic when only their names are known: those that join and reach farthest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ister.core.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ister.core.names import TopicName
    from ister.core.segment import ObjectName


class HoleError(CorruptError):
    """The objects of a topic do not hold all that their names promise."""

    def __init__(self, topic: TopicName, start: int, stop: int, reason: str) -> None:
        self.topic = topic
        self.start = start
        self.stop = stop
        self.reason = reason
        super().__init__(
            f"topic {topic}: offsets [{start}, {stop}) are missing: {reason}; nothing of this topic was written: restore "
            "those objects from a copy, or move the later ones away, and rebuild again from nothing"
        )


class Piece(NamedTuple):
    """An object, by its name and size."""

    key: str
    name: ObjectName
    size: int


@dataclass(frozen=True, slots=True)
class Chain:
    """Objects that follow each other without a hole, from `start` to `stop`."""

    start: int
    stop: int
    pieces: tuple[Piece, ...]


def find_chain(pieces: Sequence[Piece]) -> Chain:
    """Return the chain from the lowest start that reaches farthest; of two that reach as far, the one of larger objects."""
    if not pieces:
        return Chain(0, 0, ())
    reach: dict[int, int] = {}
    best: dict[int, Piece] = {}
    for piece in sorted(pieces, key=lambda piece: (-piece.name.start, -piece.name.stop)):
        start, stop = piece.name.start, piece.name.stop
        far = reach.get(stop, stop)
        if far > reach.get(start, start):
            reach[start], best[start] = far, piece
    at = first = min(piece.name.start for piece in pieces)
    chain = []
    while at in best:
        chain.append(best[at])
        at = best[at].name.stop
    return Chain(first, at, tuple(chain))


def gaps(topic: TopicName, chain: Chain, pieces: Sequence[Piece]) -> list[HoleError]:
    """Return what keeps a chain from holding all that the names of its topic's objects promise.

    Either offsets that no object has, or such that only objects have which do not join.
    """
    stop = max((piece.name.stop for piece in pieces), default=0)
    start = min((piece.name.start for piece in pieces), default=0)
    found = []
    if start < chain.start:
        found.append(HoleError(topic, start, chain.start, "only damaged objects have them"))
    if chain.stop < stop:
        beyond = sorted(piece.name for piece in pieces if piece.name.stop > chain.stop)
        behind = [name.start for name in beyond if name.start > chain.stop]
        if all(name.start > chain.stop for name in beyond):
            reason = "no object has them, and later ones are there"
            found.append(HoleError(topic, chain.stop, behind[0], reason))
        else:
            reason = "the objects that have them are damaged, or do not join those before"
            found.append(HoleError(topic, chain.stop, stop if not behind else behind[0], reason))
    return found
