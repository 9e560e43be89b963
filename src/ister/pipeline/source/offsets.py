"""Offsets of a stream at each trigger. Pure.

Spark stores them in its checkpoint as JSON:

    {"offsets": {"0": 120, "1": 98}, "generations": {"0": 1, "1": 1}, "begins": {"0": 0, "1": 90}}

An offset is the next to be read. The generation distinguishes a topic from one of the same name that was created after it was
deleted. A partition's begin is the offset at which the query began with it: the batch that began there has no other record of
it, and is repeated from there. It never changes, because Spark takes a changed text for new data. Checkpoints of older releases
have no begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, NotRequired, TypedDict

from ister.core.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Mark(NamedTuple):
    """A position in one partition."""

    generation: int
    offset: int
    begin: int | None = None
    """Where the query began with this partition; None in a checkpoint of an older release."""


Marks = dict[int, Mark]
"""A position in every partition, by number."""


class MarksJson(TypedDict):
    """The offsets of a checkpoint."""

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
    """The topic of a query was deleted, and perhaps created again."""

    def __init__(self, topic: str, reason: str, advice: str = NEW_CHECKPOINT) -> None:
        self.topic, self.reason = topic, reason
        super().__init__(f"{topic} {reason}; {advice}")


def to_json(marks: Marks) -> MarksJson:
    """Return the JSON for Spark; equal marks give equal text, by which Spark sees that there is no new data."""
    ordered = sorted(marks.items())
    found: MarksJson = {
        "offsets": {str(number): mark.offset for number, mark in ordered},
        "generations": {str(number): mark.generation for number, mark in ordered},
    }
    begins = {str(number): mark.begin for number, mark in ordered if mark.begin is not None}
    return {**found, "begins": begins} if begins else found


def from_json(found: MarksJson) -> Marks:
    """Parse a checkpoint's JSON."""
    generations, begins = found["generations"], found.get("begins", {})
    return {
        int(number): Mark(generations[number], offset, begins.get(number))
        for number, offset in found["offsets"].items()
    }


def check_same(topic: str, before: Marks, now: Marks) -> None:
    """Raise if a topic lost a partition, or was deleted and created again."""
    for number, mark in before.items():
        if number not in now:
            raise TopicChangedError(topic, f"has no partition {number} any more")
        if now[number].generation != mark.generation:
            raise TopicChangedError(topic, "was deleted and made again since the query began")


def advance(start: Mapping[int, int], stop: Mapping[int, int], limit: int | None) -> dict[int, int]:
    """Return the next end of each partition: at most `limit` offsets together.

    Each partition with a backlog gets one offset, then a share of the rest in proportion to its backlog. The first to get
    one rotates by the offsets that were read, so that a limit below the number of partitions reaches all of them in turn.
    A partition that ends before its start, because the query begins at a future offset, stays there.
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
