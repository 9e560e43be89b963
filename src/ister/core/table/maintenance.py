"""The maintenance rule: which files to compact, which snapshots to expire, and which procedures are due. Pure.

A file is deleted only a grace period after it left its table, so that running queries can finish. Rewritten files leave the
table with the rewriting snapshot, whatever their age, so the snapshot before a rewrite is retained until the rewrite itself
is older than the grace period.
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
"""Fewer files than this in a partition are not compacted, unless together they fill a file: Iceberg's own rule."""
SMALL, LARGE = 0.5, 1.8
"""A file outside of these fractions of the target is rewritten.

Iceberg's own are 0.75 and 1.8, which never converge: from a partition a little larger than 1.1 targets it writes two files
of 0.55, which it would rewrite again. It never writes smaller ones where it writes several.
"""
GROUP_TARGETS_MIN = 2
"""Files are rewritten in groups; a smaller group limit can leave files uncompacted for ever."""
MANIFESTS_MAX = 50
"""Above this, planning a query opens many small files."""
GRACE_MS_MAX = 24 * 3_600_000
"""The longest grace period: each rewrite within it retains two snapshots, which every commit copies."""
ORPHANS_EVERY_MS = 24 * 3_600_000
"""Orphan removal lists the whole table, so it runs once a day."""


class Procedure(Enum):
    """A maintenance procedure, in order of execution."""

    COMPACT = "compact"
    MANIFESTS = "manifests"
    EXPIRE = "expire"
    ORPHANS = "orphans"


@dataclass(frozen=True, slots=True)
class Lineage:
    """A snapshot of the table: its parent, its time and its operation."""

    snapshot_id: int
    parent_id: int | None
    timestamp_ms: int
    operation: str
    has_upto: bool = False
    """Its summary has the committed offsets: it is ours."""


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of the newest snapshot."""

    partition: str
    size: int


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Files to rewrite, and their bytes."""

    files: int
    size: int


@dataclass(frozen=True, slots=True)
class TableState:
    """The current state of a table; `named` are the snapshots of branches and tags, `current` is that of main."""

    files: Sequence[LiveFile]
    manifests: int
    lineage: Sequence[Lineage]
    named: Collection[int]
    current: int | None


def to_compact(files: Iterable[LiveFile], target_bytes: int) -> Rewrite:
    """Return the files that compaction to this target would rewrite."""
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
    """Return the snapshots to expire, oldest first: all but the newest `keep` and those still needed.

    Needed are: snapshots of branches and tags; the newest ancestor of `current`, the snapshot of main, with the committed
    offsets; a snapshot that anything but an append replaced within the grace period, since only it still has the removed
    files; and its replacement, which is the record of that.
    """
    assert keep >= 1, "the current snapshot stays"
    newest_first = sorted(lineage, key=lambda one: (one.timestamp_ms, one.snapshot_id), reverse=True)
    needed = {one.snapshot_id for one in newest_first[:keep]} | set(named)
    by_id = {one.snapshot_id: one for one in lineage}
    witness = by_id.get(current) if current is not None else None
    while witness is not None and not witness.has_upto:
        witness = by_id.get(witness.parent_id) if witness.parent_id is not None else None
    needed |= set() if witness is None else {witness.snapshot_id}
    for child in lineage:
        if child.operation != APPEND and child.parent_id is not None and child.timestamp_ms > now_ms - grace_ms:
            needed |= {child.parent_id, child.snapshot_id}
    return [one.snapshot_id for one in reversed(newest_first) if one.snapshot_id not in needed]


def due(
    state: TableState,
    *,
    target_bytes: int,
    keep: int,
    grace_ms: int,
    now_ms: int,
    done_ms: Mapping[Procedure, int],
) -> list[Procedure]:
    """Return the procedures that are due, in order; `done_ms` has the time of each one's last run."""
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
    """Return the canonical form of a location: `file:/x`, `file:///x` and `/x` are one file, as s3, s3a and s3n are."""
    scheme, mark, rest = location.partition(":")
    if not mark or "/" in scheme:
        scheme, rest = "", location
    scheme = scheme.lower()
    if scheme in {"", "file"}:
        return "/" + rest.lstrip("/")
    return f"{'s3' if scheme in {'s3a', 's3n'} else scheme}://{rest.lstrip('/')}"


def overlap(one: str, other: str) -> bool:
    """Return True if one of two canonical directories is the other, or inside it."""
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")
