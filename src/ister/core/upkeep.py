"""Decide what a table needs to stay quick: which files to compact, which snapshots to let go, and whether it is time.

A file leaves the disk only some time after it left its table, so that a query that began before can finish. What is
rewritten leaves the table with the rewriting snapshot, whatever its own age; the snapshot before a rewrite is therefore
kept until the rewrite itself is older than that grace, by everyone who lets snapshots go.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

APPEND = "append"
FILES_MIN = 5
"""Fewer files than this in a partition are left for later, unless together they fill a file: Iceberg's own rule."""
SMALL, LARGE = 0.5, 1.8
"""A file outside of these shares of the target is worth rewriting.

Iceberg's own are 0.75 and 1.8, and do not come to rest: of a partition a little larger than 1.1 targets it makes two files
of 0.55, which it would rewrite again. It never makes smaller ones where it makes several.
"""
GROUP_TARGETS_MIN = 2
"""Files are rewritten in groups; one that has room for less can be left alone for ever, whatever is in the table."""
MANIFESTS_MAX = 50
"""Above this, planning a query opens many small files."""
GRACE_MS_MAX = 24 * 3_600_000
"""The longest that files may be asked to stay: each rewrite within it keeps two snapshots, which every commit carries along."""
ORPHANS_EVERY_MS = 24 * 3_600_000
"""Looking for files without an owner lists the whole table, so it is done once a day."""


class Procedure(Enum):
    """What can be done to a table, in the order in which it is done."""

    COMPACT = "compact"
    MANIFESTS = "manifests"
    EXPIRE = "expire"
    ORPHANS = "orphans"


@dataclass(frozen=True, slots=True)
class Lineage:
    """A snapshot of the table: which one it replaced, when, and how."""

    snapshot_id: int
    parent_id: int | None
    timestamp_ms: int
    operation: str
    tells_upto: bool = False
    """It is ours, and says how far the table goes."""


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of the newest snapshot."""

    partition: str
    size: int


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Files that are worth rewriting, and their bytes."""

    files: int
    size: int


@dataclass(frozen=True, slots=True)
class TableState:
    """What a table looks like now; `named` are the snapshots that a branch or a tag names, `current` is main's."""

    files: Sequence[LiveFile]
    manifests: int
    lineage: Sequence[Lineage]
    named: Collection[int]
    current: int | None


def to_compact(files: Iterable[LiveFile], target_bytes: int) -> Rewrite:
    """Return what compaction to this size would rewrite."""
    by_partition: dict[str, list[int]] = defaultdict(list)
    for file in files:
        if not int(SMALL * target_bytes) <= file.size <= int(LARGE * target_bytes):
            by_partition[file.partition].append(file.size)
    chosen = [
        sizes
        for sizes in by_partition.values()
        if len(sizes) >= FILES_MIN
        or (len(sizes) > 1 and sum(sizes) > target_bytes)
        or sum(sizes) > LARGE * target_bytes
    ]
    return Rewrite(sum(map(len, chosen)), sum(map(sum, chosen)))


def expirable(
    lineage: Sequence[Lineage], *, named: Collection[int], current: int | None, keep: int, grace_ms: int, now_ms: int
) -> list[int]:
    """Return the snapshots to let go, oldest first: all but the newest `keep`, and but those that someone needs.

    Needed are: what a branch or a tag names; the newest one that tells how far the table goes, among the ancestors of
    `current`, the snapshot of main; a snapshot that was replaced by anything but an append less than the grace ago, since only it still holds the files that left; and what
    replaced it, without which nobody would know.
    """
    assert keep >= 1, "the current snapshot stays"
    newest_first = sorted(lineage, key=lambda one: (one.timestamp_ms, one.snapshot_id), reverse=True)
    kept = {one.snapshot_id for one in newest_first[:keep]} | set(named)
    by_id = {one.snapshot_id: one for one in lineage}
    witness = by_id.get(current) if current is not None else None
    while witness is not None and not witness.tells_upto:
        witness = by_id.get(witness.parent_id) if witness.parent_id is not None else None
    kept |= set() if witness is None else {witness.snapshot_id}
    for child in lineage:
        if child.operation != APPEND and child.parent_id is not None and child.timestamp_ms > now_ms - grace_ms:
            kept |= {child.parent_id, child.snapshot_id}
    return [one.snapshot_id for one in reversed(newest_first) if one.snapshot_id not in kept]


def due(
    state: TableState,
    *,
    target_bytes: int,
    keep: int,
    grace_ms: int,
    now_ms: int,
    done_ms: Mapping[Procedure, int],
) -> list[Procedure]:
    """Return the procedures that the table needs now, in their order; `done_ms` is when each was last done."""
    found = []
    if to_compact(state.files, target_bytes).files:
        found.append(Procedure.COMPACT)
    if state.manifests > MANIFESTS_MAX:
        found.append(Procedure.MANIFESTS)
    if expirable(state.lineage, named=state.named, current=state.current, keep=keep, grace_ms=grace_ms, now_ms=now_ms):
        found.append(Procedure.EXPIRE)
    if now_ms - done_ms.get(Procedure.ORPHANS, 0) >= ORPHANS_EVERY_MS and state.lineage:
        found.append(Procedure.ORPHANS)
    return found


def spelling(location: str) -> str:
    """Return one spelling for a file's address: `file:/x`, `file:///x` and `/x` are one file, as s3, s3a and s3n are."""
    scheme, mark, rest = location.partition(":")
    if not mark or "/" in scheme:
        scheme, rest = "", location
    scheme = scheme.lower()
    if scheme in {"", "file"}:
        return "/" + rest.lstrip("/")
    return f"{'s3' if scheme in {'s3a', 's3n'} else scheme}://{rest.lstrip('/')}"


def overlap(one: str, other: str) -> bool:
    """Tell whether of two directories one is the other, or within it; both spelt in the same way."""
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")
