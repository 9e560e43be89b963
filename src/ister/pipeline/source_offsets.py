"""Decide how far a stream goes at each trigger; performs no I/O.

What Spark keeps of it in its checkpoint is JSON:

    {"offsets": {"0": 120, "1": 98}, "generations": {"0": 1, "1": 1}, "begins": {"0": 0, "1": 90}}

An offset is the next to be read. The generation tells a topic from another of the same name that was made after it was
deleted: its offsets mean other messages. A partition's begin is the offset at which the query began with it: the batch that
began there has no other record of it, and is repeated from there. It stays for good, because Spark takes a checkpoint whose
text changes for new data. Checkpoints of older releases have no begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, NotRequired, TypedDict

from ister.core.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Mark(NamedTuple):
    """A place in one partition."""

    generation: int
    offset: int
    begin: int | None = None
    """Where the query began with this partition; None in a checkpoint of an older release."""


Marks = dict[int, Mark]
"""A place in every partition, by their numbers."""


class MarksJson(TypedDict):
    """What stands in a checkpoint."""

    offsets: dict[str, int]
    generations: dict[str, int]
    begins: NotRequired[dict[str, int]]


NEW_CHECKPOINT = "this query cannot go on: start another, with a checkpoint of its own"
CREATE_FIRST = (
    "a stream creates its topic in its first batch only, so that one that was deleted does not lose its policies: create it, "
    "then start the query again"
)
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
    found: MarksJson = {
        "offsets": {str(number): mark.offset for number, mark in ordered},
        "generations": {str(number): mark.generation for number, mark in ordered},
    }
    begins = {str(number): mark.begin for number, mark in ordered if mark.begin is not None}
    return {**found, "begins": begins} if begins else found


def from_json(found: MarksJson) -> Marks:
    """Read what Spark kept."""
    generations, begins = found["generations"], found.get("begins", {})
    return {
        int(number): Mark(generations[number], offset, begins.get(number))
        for number, offset in found["offsets"].items()
    }


def check_same(topic: str, before: Marks, now: Marks) -> None:
    """Refuse to go on in a topic that lost a partition, or was deleted and made again."""
    for number, mark in before.items():
        if number not in now:
            raise TopicChangedError(topic, f"has no partition {number} any more")
        if now[number].generation != mark.generation:
            raise TopicChangedError(topic, "was deleted and made again since the query began")


def advance(start: Mapping[int, int], stop: Mapping[int, int], limit: int | None) -> dict[int, int]:
    """Return how far each partition is read next: at most `limit` offsets together.

    Each partition that has something to read gets one offset, then its part of what is left of the limit, in proportion to
    what it has. Whoever is first to get one rotates by the offsets that were read, so that a limit below the number of
    partitions reaches all of them in turn. A partition that ends before its start, because the query begins at an offset
    that is still to come, stays there.
    """
    numbers = sorted(stop)
    waiting = {number: max(0, stop[number] - start[number]) for number in numbers}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return {number: start[number] + count for number, count in waiting.items()}
    first = sum(start[number] for number in numbers) % len(numbers)
    ready = [number for number in numbers[first:] + numbers[:first] if waiting[number]]
    shares = dict.fromkeys(numbers, 0) | dict.fromkeys(ready[:limit], 1)
    rest = max(0, limit - len(ready))
    for number in ready:
        shares[number] += (waiting[number] - 1) * rest // max(1, total - len(ready))
    left = limit - sum(shares.values())
    for number in ready:
        if left and shares[number] < waiting[number]:
            shares[number] += 1
            left -= 1
    return {number: start[number] + shares[number] for number in numbers}
