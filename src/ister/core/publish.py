"""Decide whether messages may be appended to a table: exactly what comes next, by its owner, or nothing.

The table itself is the checkpoint. An offer is committed only when it begins where the table ends, so whoever commits
twice, late or beside someone else is refused, and no message is there twice or left out (docs/adr, the fenced commit).
"""

from __future__ import annotations

from enum import Enum
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FANOUT = 8
"""So many manifests of one size become one."""
ENTRIES_MAX = 512
"""A manifest with so many files is not merged again: rewriting it would take longer than a commit may."""


class Held(NamedTuple):
    """What a table says of itself."""

    topic: str
    generation: int
    epoch: int
    upto: Mapping[int, int]


class Offer(NamedTuple):
    """What someone wants to append: for each partition the offsets [from, upto)."""

    topic: str
    generation: int
    epoch: int
    spans: Mapping[int, tuple[int, int]]


class Run(NamedTuple):
    """The rows of one data file."""

    partition: int
    first_offset: int
    last_offset: int
    rows: int


class Decision(Enum):
    """What to do with an offer that is not refused."""

    COMMIT = "commit"
    LANDED = "landed"
    """The table holds it already, by this owner: an answer was lost."""


class Why(Enum):
    """What kind of refusal it is, for whoever decides what to do next."""

    FOREIGN = "foreign"
    """The table is another topic's, or another generation's: this topic stops."""
    EPOCH = "epoch"
    """Another owner: stop altogether."""
    UNCLAIMED = "unclaimed"
    """This owner has not claimed the table: claim it first."""
    GAP = "gap"
    """The offer does not begin where the table ends, or its files do not make it up: plan again."""


class Refused(NamedTuple):
    """An offer that must not be committed."""

    why: Why
    reason: str


COMMIT: Literal[Decision.COMMIT] = Decision.COMMIT
LANDED: Literal[Decision.LANDED] = Decision.LANDED
Verdict = Decision | Refused


def decide(held: Held, offer: Offer) -> Verdict:
    """Commit an offer that begins where the table ends; refuse every other, save the one that is there already."""
    if refused := disowned(held, offer.topic, offer.generation, offer.epoch):
        return refused
    if held.epoch < offer.epoch:
        return Refused(Why.UNCLAIMED, f"the table is claimed by epoch {held.epoch}, not yet by {offer.epoch}")
    if not offer.spans:
        return Refused(Why.GAP, "nothing is offered")
    for partition, (start, stop) in offer.spans.items():
        if not 0 <= start < stop:
            return Refused(Why.GAP, f"offsets [{start}, {stop}) of partition {partition} are no messages")
    if all(held.upto.get(partition, 0) == stop for partition, (_, stop) in offer.spans.items()):
        return LANDED
    for partition, (start, stop) in offer.spans.items():
        upto = held.upto.get(partition, 0)
        if upto != start:
            return Refused(
                Why.GAP,
                f"offsets [{start}, {stop}) of partition {partition} were offered, and the table ends at {upto}",
            )
    return COMMIT


def disowned(held: Held, topic: str, generation: int, epoch: int) -> Refused | None:
    """Refuse whoever has no right to a table, whatever he wants to do with it."""
    if held.topic != topic:
        return Refused(Why.FOREIGN, f"the table is that of {held.topic or 'no topic'}, not of {topic}")
    if held.generation != generation:
        return Refused(Why.FOREIGN, f"the table is of generation {held.generation}, the topic is of {generation}")
    if held.epoch > epoch:
        return Refused(Why.EPOCH, f"epoch {held.epoch} owns the table, and this is epoch {epoch}")
    return None


def after(held: Held, offer: Offer) -> dict[int, int]:
    """Return what the table holds once the offer is committed."""
    return {**held.upto, **{partition: stop for partition, (_, stop) in offer.spans.items()}}


def misfit(spans: Mapping[int, tuple[int, int]], runs: Iterable[Run]) -> Refused | None:
    """Refuse files that are not exactly the offered offsets: one too few, twice the same, rows that do not count up."""
    ordered = sorted(runs)
    files = {partition: list(of_it) for partition, of_it in groupby(ordered, key=attrgetter("partition"))}
    if extra := files.keys() - spans.keys():
        return Refused(Why.GAP, f"there are files of partition {min(extra)}, and none was offered")
    for partition, (start, stop) in spans.items():
        place = start
        for run in files.get(partition, []):
            if run.first_offset != place or run.rows != run.last_offset - run.first_offset + 1 or run.rows < 1:
                return Refused(
                    Why.GAP,
                    f"a file has {run.rows} rows, offsets {run.first_offset} to {run.last_offset} of partition "
                    f"{partition}, where {place} should come next",
                )
            place = run.last_offset + 1
        if place != stop:
            return Refused(Why.GAP, f"the files of partition {partition} end at {place}, and {stop} was offered")
    return None


def check_summary(
    property_upto: Mapping[int, int], newest_summary_upto: Mapping[int, int] | None, *, records: int, deletes: int
) -> str | None:
    """Return what is wrong with a table whose property and snapshots do not tell the same, None when they do.

    The newest summary is that of the nearest ancestor of the current snapshot that has one; rewrites carry none, and
    when all that carried one are expired, the number of rows must do. `records` are the rows of the current snapshot's data
    files, `deletes` how many of them its delete files may take away. While a summary is there, fewer rows than messages
    are no fault, unless there are none: whoever must forget someone deletes rows.
    """
    upto = {partition: offset for partition, offset in property_upto.items() if offset}
    messages = sum(upto.values())
    if newest_summary_upto is not None:
        summary = {partition: offset for partition, offset in newest_summary_upto.items() if offset}
        if summary != upto:
            return f"its property says {_said(upto)}, its newest snapshot of ours {_said(summary)}: it was rolled back"
    elif not records - deletes <= messages <= records:
        return f"its property says {_said(upto)}, and no snapshot of ours is there, but {records} rows"
    if messages and not records:
        return f"its property says {_said(upto)}, and it has no rows: it was emptied"
    return None


def check_surplus(property_upto: Mapping[int, int], *, records: int, deletes: int) -> str | None:
    """Return what is wrong with a table that has more rows than messages, None when it has not: they are not ours.

    It keeps an owner from appending, and no reader from what is whole: that one looks at each row.
    """
    if records - deletes <= sum(property_upto.values()):
        return None
    return f"its property says {_said(property_upto)}, and it has {records - deletes} rows: someone appended to it"


def to_merge(entries: Sequence[int]) -> list[int]:
    """Return which manifests to write as one, by position; none when they are few enough.

    `entries` are the files in each. As with the digits of a counter, FANOUT small ones become a bigger one, and so on:
    a file is listed anew a few times in its life, and there are few manifests at any time.
    """
    merged: list[int] = []
    least, limit = 0, FANOUT
    while limit <= ENTRIES_MAX:
        if sum(least <= count < limit for count in entries) + bool(merged) >= FANOUT:
            merged = [position for position, count in enumerate(entries) if count < limit]
        least, limit = limit, limit * FANOUT
    return merged


def _said(offsets: Mapping[int, int]) -> str:
    if not offsets:
        return "nothing"
    shown = ", ".join(f"{partition}: {offset}" for partition, offset in sorted(offsets.items())[:8])
    return f"{{{shown}{', …' if len(offsets) > 8 else ''}}}"
