"""Decide how far a stream goes at each trigger; performs no I/O.

What Spark keeps of it in its checkpoint is JSON:

    {"offsets": {"0": 120, "1": 98}, "generations": {"0": 1, "1": 1}}

An offset is the next to be read. The generation tells a topic from another of the same name that was made after it was
deleted: its offsets mean other messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypedDict

from ister.core.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Mark(NamedTuple):
    """A place in one partition."""

    generation: int
    offset: int


Marks = dict[int, Mark]
"""A place in every partition, by their numbers."""


class MarksJson(TypedDict):
    """What stands in a checkpoint."""

    offsets: dict[str, int]
    generations: dict[str, int]


NEW_CHECKPOINT = "this query cannot go on: start another, with a checkpoint of its own"
WRITE_AGAIN = "what was written is deleted with it: create the topic with its policies, then write again"


class TopicChangedError(ClientError):
    """The topic is not the one that a query began with: it was deleted, and perhaps created again."""

    def __init__(self, topic: str, reason: str, advice: str = NEW_CHECKPOINT) -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(f"{topic} {reason}; {advice}")


def to_json(marks: Marks) -> MarksJson:
    """Return what Spark keeps; equal marks give equal text, by which Spark sees that nothing is new."""
    ordered = sorted(marks.items())
    return {
        "offsets": {str(number): mark.offset for number, mark in ordered},
        "generations": {str(number): mark.generation for number, mark in ordered},
    }


def from_json(found: MarksJson) -> Marks:
    """Read what Spark kept."""
    generations = found["generations"]
    return {int(number): Mark(generations[number], offset) for number, offset in found["offsets"].items()}


def check_same(topic: str, before: Marks, now: Marks) -> None:
    """Refuse to go on in a topic that lost a partition, or was deleted and made again."""
    for number, mark in before.items():
        if number not in now:
            raise TopicChangedError(topic, f"has no partition {number} any more")
        if now[number].generation != mark.generation:
            raise TopicChangedError(topic, "was deleted and made again since the query began")


def advance(start: Mapping[int, int], stop: Mapping[int, int], limit: int | None) -> dict[int, int]:
    """Return how far each partition is read next: at most `limit` offsets together, each its part of what waits.

    A partition that ends before its start, because the query begins at an offset that is still to come, stays there.
    """
    waiting = {number: max(0, stop[number] - start[number]) for number in sorted(stop)}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return {number: start[number] + count for number, count in waiting.items()}
    shares = {number: count * limit // total for number, count in waiting.items()}
    left = limit - sum(shares.values())
    for number, count in waiting.items():
        if left and shares[number] < count:
            shares[number] += 1
            left -= 1
    return {number: start[number] + share for number, share in shares.items()}
