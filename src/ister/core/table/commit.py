"""The commit rule: an append is accepted only from the current owner and only at the table's committed offset.

The table itself is the checkpoint. A repeated, late or concurrent append does not start where the table ends, so it is
refused, and no message is in the table twice or left out (docs/adr, the fenced commit).
"""

from __future__ import annotations

from enum import Enum
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FANOUT = 8
"""Manifests of one size class that are merged into one."""
ENTRIES_MAX = 512
"""A manifest of this many files is not merged again: rewriting it would take longer than a commit may."""


class TableProgress(NamedTuple):
    """A table's own record of its topic, its owner and its committed offsets."""

    topic: str
    generation: int
    epoch: int
    upto: Mapping[int, int]


class Append(NamedTuple):
    """A proposed append: the offsets [start, stop) of each partition."""

    topic: str
    generation: int
    epoch: int
    spans: Mapping[int, tuple[int, int]]


class FileRows(NamedTuple):
    """The rows of one data file."""

    partition: int
    first_offset: int
    last_offset: int
    rows: int


class Decision(Enum):
    """The outcome of an append that is not refused."""

    COMMIT = "commit"
    LANDED = "landed"
    """This owner has committed it already: the catalog's answer was lost."""


class Why(Enum):
    """The kind of refusal, which decides what the caller does next."""

    FOREIGN = "foreign"
    """The table belongs to another topic or generation: this topic stops."""
    EPOCH = "epoch"
    """Another owner: the writer stops."""
    UNCLAIMED = "unclaimed"
    """This owner has not claimed the table: claim it first."""
    GAP = "gap"
    """The append does not start where the table ends, or does not match its files: plan again."""


class Refused(NamedTuple):
    """An append that must not be committed."""

    why: Why
    reason: str


COMMIT: Literal[Decision.COMMIT] = Decision.COMMIT
LANDED: Literal[Decision.LANDED] = Decision.LANDED
Verdict = Decision | Refused


def decide(held: TableProgress, append: Append) -> Verdict:
    """Return COMMIT for an append that starts where the table ends, LANDED for one that it has, else the refusal."""
    if refused := check_owner(held, append.topic, append.generation, append.epoch):
        return refused
    if held.epoch < append.epoch:
        return Refused(Why.UNCLAIMED, f"the table is claimed by epoch {held.epoch}, not yet by {append.epoch}")
    if not append.spans:
        return Refused(Why.GAP, "nothing is offered")
    for partition, (start, stop) in append.spans.items():
        if not 0 <= start < stop:
            return Refused(Why.GAP, f"offsets [{start}, {stop}) of partition {partition} are no messages")
    if all(held.upto.get(partition, 0) == stop for partition, (_, stop) in append.spans.items()):
        return LANDED
    for partition, (start, stop) in append.spans.items():
        upto = held.upto.get(partition, 0)
        if upto != start:
            return Refused(
                Why.GAP,
                f"offsets [{start}, {stop}) of partition {partition} were offered, and the table ends at {upto}",
            )
    return COMMIT


def check_owner(held: TableProgress, topic: str, generation: int, epoch: int) -> Refused | None:
    """Return the refusal for a topic, generation or epoch that the table does not belong to, else None."""
    if held.topic != topic:
        return Refused(Why.FOREIGN, f"the table is that of {held.topic or 'no topic'}, not of {topic}")
    if held.generation != generation:
        return Refused(Why.FOREIGN, f"the table is of generation {held.generation}, the topic is of {generation}")
    if held.epoch > epoch:
        return Refused(Why.EPOCH, f"epoch {held.epoch} owns the table, and this is epoch {epoch}")
    return None


def upto_after(held: TableProgress, append: Append) -> dict[int, int]:
    """Return the committed offsets after an append."""
    return {**held.upto, **{partition: stop for partition, (_, stop) in append.spans.items()}}


def check_files(spans: Mapping[int, tuple[int, int]], files: Iterable[FileRows]) -> Refused | None:
    """Return the refusal for files that do not hold exactly these offsets: one is missing, doubled or short, else None."""
    by_partition = {key: list(group) for key, group in groupby(sorted(files), key=attrgetter("partition"))}
    if extra := by_partition.keys() - spans.keys():
        return Refused(Why.GAP, f"there are files of partition {min(extra)}, and none was offered")
    for partition, (start, stop) in spans.items():
        expected = start
        for run in by_partition.get(partition, []):
            if run.first_offset != expected or run.rows != run.last_offset - run.first_offset + 1 or run.rows < 1:
                return Refused(
                    Why.GAP,
                    f"a file has {run.rows} rows, offsets {run.first_offset} to {run.last_offset} of partition "
                    f"{partition}, where {expected} should come next",
                )
            expected = run.last_offset + 1
        if expected != stop:
            return Refused(Why.GAP, f"the files of partition {partition} end at {expected}, and {stop} was offered")
    return None


def check_summary(
    property_upto: Mapping[int, int], newest_summary_upto: Mapping[int, int] | None, *, records: int, deletes: int
) -> str | None:
    """Return how a table's property contradicts its snapshots, None when they agree.

    The newest summary is that of the nearest ancestor of the current snapshot that has one. Rewrites have none; when all
    snapshots with one have expired, the row count must match instead. `records` are the rows of the current snapshot's data
    files, `deletes` the most that its delete files may remove. With a summary, fewer rows than messages are valid unless
    there are none: users delete rows, for example on an erasure request.
    """
    upto = {partition: offset for partition, offset in property_upto.items() if offset}
    messages = sum(upto.values())
    if newest_summary_upto is not None:
        summary = {partition: offset for partition, offset in newest_summary_upto.items() if offset}
        if summary != upto:
            return (
                f"its property says {_shown(upto)}, its newest snapshot of ours {_shown(summary)}: it was rolled back"
            )
    elif not records - deletes <= messages <= records:
        return f"its property says {_shown(upto)}, and no snapshot of ours is there, but {records} rows"
    if messages and not records:
        return f"its property says {_shown(upto)}, and it has no rows: it was emptied"
    return None


def check_surplus(property_upto: Mapping[int, int], *, records: int, deletes: int) -> str | None:
    """Return the problem of a table with more rows than messages, None when it has no such rows.

    It stops appends, not readers: these verify each row.
    """
    if records - deletes <= sum(property_upto.values()):
        return None
    return f"its property says {_shown(property_upto)}, and it has {records - deletes} rows: someone appended to it"


def to_merge(entries: Sequence[int]) -> list[int]:
    """Return the positions of the manifests to merge into one; none when they are few enough.

    `entries` are the files in each. As in an LSM tree, FANOUT small ones become a larger one, and so on: each file is
    rewritten into a manifest a few times in its life, and there are few manifests at any time.
    """
    merged: list[int] = []
    least, limit = 0, FANOUT
    while limit <= ENTRIES_MAX:
        if sum(least <= count < limit for count in entries) + bool(merged) >= FANOUT:
            merged = [position for position, count in enumerate(entries) if count < limit]
        least, limit = limit, limit * FANOUT
    return merged


def _shown(offsets: Mapping[int, int]) -> str:
    if not offsets:
        return "nothing"
    shown = ", ".join(f"{partition}: {offset}" for partition, offset in sorted(offsets.items())[:8])
    return f"{{{shown}{', …' if len(offsets) > 8 else ''}}}"
