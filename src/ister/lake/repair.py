"""Repair of a table that contradicts its committed offsets: truncate it to its contiguous prefix.

One commit truncates each partition and records its new end; the pipeline then appends the rest from log or objects. Nothing
is truncated that they do not hold. A missing or damaged data file is a gap like any other and is removed in the same commit,
unless an older snapshot, from before a compaction, still has its rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import structlog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import TOTAL_RECORDS, Summary, ancestors_of
from pyiceberg.table.update import AddSnapshotUpdate, AssertTableUUID
from sqlalchemy import select
from sqlalchemy.orm import Session

from ister.core.errors import CorruptError, CorruptMetadataError, IsterError
from ister.core.table.data_files import OFFSET_MAX
from ister.core.table.maintenance import GRACE_MS_MAX, spelling
from ister.core.table.names import EPOCH, UPTO, is_of, offsets_of, offsets_text, table_names
from ister.lake.catalog import load_iceberg, replace_pointer, table_row
from ister.lake.columns import differs
from ister.lake.data_file_rows import OFFSETS, deleted_of, read_rows
from ister.lake.errors import (
    CommitConflictError,
    CommitUnknownError,
    LakeUnavailableError,
    OutsideWarehouseError,
    TableMovedError,
    error_text,
)
from ister.lake.files import is_inside, is_local, of_files, open_io, require_inside, root_of, unreachable
from ister.lake.manifests import SnapshotFiles
from ister.lake.rewrite import Overwrite, Truncation, discard, replacements
from ister.lake.snapshot import Stage, delete_all, is_superseded, row_totals, stamp
from ister.lake.table import LakeTable, require_format

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    from pyiceberg.catalog import Catalog
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from ister.core.names import TopicName

log = structlog.get_logger()

SHOWN_MAX = 3
"""Unreadable data files that a diagnosis names."""
ANCESTORS_MAX = 100
"""Older snapshots that are searched for lost rows."""


class RepairRefusedError(CorruptError):
    """Neither log nor objects hold the messages that a repair would have to append again."""

    def __init__(self, table: str, losses: Sequence[str]) -> None:
        self.table, self.losses = table, tuple(losses)
        super().__init__(
            f"table {table} cannot be repaired: {'; '.join(losses)}; nothing was changed. Restore the objects, or keep the "
            "table as it is and turn it off for this topic (lake=false); rows that someone else wrote delete with `ister sql`"
        )


class Cut(NamedTuple):
    """The truncation of one partition to the offsets below `keep`, which removes `rows`."""

    partition: int
    said: int
    """The end that the table records."""
    keep: int
    rows: int

    @property
    def changes(self) -> bool:
        """True if the partition has to be changed."""
        return self.rows > 0 or self.said != self.keep


class Offsets:
    """The set of offsets of a partition, added in any order, as contiguous runs."""

    def __init__(self) -> None:
        self.rows = 0
        self.end = 0
        """The offset after the last one, unreadable rows included."""
        self._starts = np.empty(0, np.int64)
        self._stops = np.empty(0, np.int64)
        self._duplicate = OFFSET_MAX

    @property
    def runs(self) -> int:
        """The number of runs."""
        return len(self._starts)

    @property
    def whole_below(self) -> int:
        """The first offset that is missing or duplicated."""
        if not self.runs or self._starts[0] != 0:
            return 0
        return min(int(self._stops[0]), self._duplicate)

    def add(self, offsets: npt.NDArray[np.int64]) -> None:
        """Add offsets."""
        if not len(offsets):
            return
        self.rows += len(offsets)
        ordered = np.sort(offsets)
        self.end = max(self.end, int(ordered[-1]) + 1)
        steps = np.diff(ordered)
        self._note_duplicates(ordered[1:][steps == 0])
        cuts = np.flatnonzero(steps > 1)
        self._unite(ordered[[0, *(cuts + 1)]], ordered[[*cuts, -1]] + 1)

    def join(self, other: Offsets) -> None:
        """Add those of another set."""
        self.rows += other.rows
        self.end = max(self.end, other.end)
        self._duplicate = min(self._duplicate, other._duplicate)
        if other.runs:
            self._unite(other._starts, other._stops)

    def _unite(self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> None:
        starts, stops = np.concatenate((self._starts, starts)), np.concatenate((self._stops, stops))
        order = np.argsort(starts, kind="stable")
        starts, stops = starts[order], np.maximum.accumulate(stops[order])
        self._note_duplicates(starts[1:][starts[1:] < stops[:-1]])
        breaks = np.flatnonzero(starts[1:] > stops[:-1])
        self._starts, self._stops = starts[[0, *(breaks + 1)]], stops[[*breaks, -1]]

    def _note_duplicates(self, offsets: npt.NDArray[np.int64]) -> None:
        if len(offsets):
            self._duplicate = min(self._duplicate, int(offsets[0]))


class Fallback(NamedTuple):
    """A table whose newest metadata file cannot be read, and the newest one before it that can."""

    table: Table
    """As of that older file."""
    broken: str
    reason: str


class Served(NamedTuple):
    """The offsets [start, next) of a partition that log and objects hold durably, without a gap; not its table."""

    start: int
    next: int


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The problems of a table as of one snapshot: `found` describes them, `cuts` repair them."""

    table: Table
    cuts: Sequence[Cut]
    found: str
    unreadable: Sequence[str] = ()
    """Missing or damaged data files, which are removed."""
    back_to: Snapshot | None = None
    """A complete older snapshot with more rows than the newest has left."""
    ends: Mapping[int, int] = field(default_factory=dict)
    """Partition to the offset after its last row in the newest snapshot, readable or not."""

    @property
    def sound(self) -> bool:
        """True if nothing is wrong."""
        return not self.found and not any(cut.changes for cut in self.cuts)

    @property
    def upto(self) -> dict[int, int]:
        """The committed offsets after the repair."""
        return {cut.partition: cut.keep for cut in self.cuts if cut.keep or cut.said}


def find_table(catalog: Catalog, topic: TopicName, generation: int) -> Table | None:
    """Return a topic's table, None when there is none; LakeUnavailableError when one cannot be read."""
    for name in table_names(topic, generation):
        try:
            table = load_iceberg(catalog, name)
        except Exception as error:
            raise LakeUnavailableError(".".join(name), "read", error) from error
        if table is not None and is_of(table.properties, topic, generation):
            require_inside(table)
            return table
    return None


def fallback_of(catalog: Catalog, topic: TopicName, generation: int) -> Fallback | None:
    """Return the newest readable older metadata of an unreadable table; only for a SQL catalog and a local warehouse."""
    if not isinstance(catalog, SqlCatalog):
        return None
    for name in table_names(topic, generation):
        pointers = _pointers(catalog, name)
        if pointers is None or not is_local(pointers[0]):
            continue
        if (root := root_of(catalog.properties)) is not None and not is_inside(pointers[0], root):
            raise OutsideWarehouseError(".".join(name), pointers[0], root)
        _, reason = _read(catalog, name, pointers[0])
        if reason:
            for location in _older(*pointers):
                table, _ = _read(catalog, name, location)
                if table is not None and is_of(table.properties, topic, generation):
                    require_inside(table)
                    return Fallback(table, pointers[0], reason)
    return None


def fall_back(catalog: Catalog, fallback: Fallback) -> None:
    """Point the catalog at the older metadata by compare-and-swap."""
    assert isinstance(catalog, SqlCatalog), "other catalogs have no fallback"
    name = fallback.table.name()
    chosen = fallback.table.metadata_location
    if not replace_pointer(catalog, name, fallback.broken, chosen, None):
        raise CommitConflictError(".".join(name), 1, "its metadata was replaced meanwhile")
    log.warning("table_fell_back", table=".".join(name), broken=fallback.broken, chosen=chosen)


def cuts_of(held: Mapping[int, Offsets], recorded: Mapping[int, int] | None) -> list[Cut]:
    """Return the truncation of each partition; `recorded` are the ends in the table's property, None when unreadable.

    Rows after the recorded end are truncated: the pipeline would append their offsets a second time.
    """
    cuts = []
    for partition in sorted({*held, *(recorded or {})}):
        offsets = held.get(partition, Offsets())
        end = offsets.whole_below if recorded is None else recorded.get(partition, 0)
        keep = min(offsets.whole_below, end)
        cuts.append(Cut(partition, end, keep, offsets.rows - keep))
    return cuts


def losses(cuts: Sequence[Cut], served: Mapping[int, Served], ends: Mapping[int, int]) -> Iterator[str]:
    """Describe every offset that a repair would lose, because log and objects do not hold it.

    The pipeline must append [keep, …) again, so log or objects must hold all offsets up to the recorded end (`said`) and
    the last row (`ends`).
    """
    for cut in cuts:
        stop = max(cut.said, ends.get(cut.partition, 0))
        if not cut.changes and stop <= cut.keep:
            continue
        has = served.get(cut.partition)
        if has is None:
            if stop > cut.keep:
                yield f"partition {cut.partition} lacks offsets [{cut.keep}, {stop}), and the broker has no such partition"
        elif cut.keep < has.start:
            none = " (this broker holds none of its messages; if it is read-only, name the owner's by --broker)"
            yield (
                f"partition {cut.partition} is whole below offset {cut.keep} only, and log and objects begin at {has.start}"
                f"{none if has.start == has.next else ''}: offsets [{cut.keep}, {has.start}) would be lost"
            )
        elif cut.keep > has.next:
            yield (
                f"partition {cut.partition} holds offsets up to {cut.keep}, and its log ends at {has.next}: this is not the "
                "log that the table was made from"
            )
        elif stop > has.next:
            yield (
                f"partition {cut.partition} is whole below offset {cut.keep} only and goes up to {stop}, and its log ends at "
                f"{has.next}: offsets [{has.next}, {stop}) would be lost"
            )


def examine(table: Table, topic: TopicName, generation: int) -> Diagnosis:
    """Compare the offsets in a table, read from two columns of all its rows, with its recorded ends.

    LakeUnavailableError when a file cannot be reached: it does not count as missing.
    """
    name = ".".join(table.name())
    require_format(table)
    if wrong := differs(table.schema()):
        raise TableMovedError(name, wrong)
    found, recorded = "", None
    try:
        recorded = offsets_of(table.properties.get(UPTO, ""), name)
        LakeTable(table, topic, generation).check_surplus()
    except TableMovedError as error:
        found = error.found
    except CorruptMetadataError as error:
        found = str(error)
    held, unreadable = _held(table, table.current_snapshot())
    cuts = cuts_of(held, recorded)
    ends = {partition: offsets.end for partition, offsets in held.items()}
    problems = [found] if found else []
    problems += [f"data file {path}: {reason}" for path, reason in list(unreadable.items())[:SHOWN_MAX]]
    if len(unreadable) > SHOWN_MAX:
        problems.append(f"{len(unreadable) - SHOWN_MAX:,} more data files like these")
    for older in _ancestors(table, unreadable, _rows_left(cuts)) if unreadable else ():
        held_then, lost = _held(table, older)
        then = cuts_of(held_then, recorded)
        if not lost and not any(cut.rows for cut in then) and _rows_left(then) > _rows_left(cuts):
            problems.append(f"an older snapshot is all there: it goes back to snapshot {older.snapshot_id}")
            return Diagnosis(table, then, "; ".join(problems), back_to=older, ends=ends)
    return Diagnosis(table, cuts, "; ".join(problems), tuple(unreadable), ends=ends)


def mend(diagnosis: Diagnosis) -> None:
    """Truncate the table and record its ends, in one commit on top of the examined snapshot.

    CommitConflictError: another commit came first, examine again. CommitUnknownError: it may have landed.
    """
    table, name = diagnosis.table, ".".join(diagnosis.table.name())
    upto = offsets_text(diagnosis.upto)
    summary = {UPTO: upto, EPOCH: table.properties.get(EPOCH, "0")}
    try:
        if diagnosis.back_to is None and (diagnosis.unreadable or any(cut.rows for cut in diagnosis.cuts)):
            _overwrite(diagnosis, summary)
        else:
            staged = Stage(table, {}, grace_ms=GRACE_MS_MAX).write([], summary, {UPTO: upto}, onto=diagnosis.back_to)
            _commit(table, staged.requirements, staged.updates, _rows_left(diagnosis.cuts))
    except IsterError:
        raise
    except Exception as error:
        raise LakeUnavailableError(name, "write manifests of", error) from error
    log.info("table_mended", table=name, upto=upto, rows=sum(cut.rows for cut in diagnosis.cuts))


class _Once(Transaction):
    """PyIceberg's transaction, committed once: its own retries, and deletes manifests after a conflict."""

    def __init__(self, table: Table, rows: int) -> None:
        super().__init__(table)
        self._rows = rows

    def commit_transaction(self) -> Table:
        requirements = (*self._requirements, AssertTableUUID(uuid=self._table.metadata.table_uuid))
        _commit(self._table, requirements, self._updates, self._rows)
        return self._table


def _overwrite(diagnosis: Diagnosis, summary: dict[str, str]) -> None:
    """Commit the table without its unreadable data files and the truncated rows."""
    table, snapshot = diagnosis.table, diagnosis.table.current_snapshot()
    assert snapshot is not None, "it has files"
    truncations = [Truncation(cut.partition, cut.keep) for cut in diagnosis.cuts if cut.rows]
    files = replacements(table, snapshot, diagnosis.unreadable, truncations)
    transaction = _Once(table, _rows_left(diagnosis.cuts))
    try:
        with Overwrite(transaction, table.io, summary) as change:
            for one in files:
                change.delete_data_file(one.old)
                if one.new is not None:
                    change.append_data_file(one.new)
        transaction.set_properties({UPTO: summary[UPTO]})
    except BaseException:
        discard(table.io, files)
        raise
    transaction.commit_transaction()


def _commit(
    table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...], rows: int
) -> None:
    """Commit once, with `rows` left; after any error check whether it has landed."""
    name = ".".join(table.name())
    updates, made = _settled(table, updates, rows)
    assert made, "without a snapshot, commits in flight would not conflict with it"
    try:
        table.catalog.commit_table(table, requirements, updates)
    except Exception as error:
        try:
            fresh = table.catalog.load_table(table.name())
        except Exception:  # noqa: BLE001  # then the outcome is unknown
            raise CommitUnknownError(name, error) from error
        if fresh.metadata.snapshot_by_id(made[-1].snapshot_id) is not None:
            return
        if is_superseded(made[0], fresh.metadata):
            delete_all(table, [path for snapshot in made for path in _written(table, snapshot)])
        elif not isinstance(error, CommitFailedException):
            raise CommitUnknownError(name, error) from error
        raise CommitConflictError(name, 1, error) from error


def _settled(
    table: Table, updates: tuple[TableUpdate, ...], rows: int
) -> tuple[tuple[TableUpdate, ...], list[Snapshot]]:
    """Return the updates with corrected timestamps and row counts of snapshots, and these snapshots.

    PyIceberg subtracts the rows of a removed file once, though it was listed twice.
    """
    made: list[Snapshot] = []
    settled: list[TableUpdate] = []
    for change in updates:
        if not isinstance(change, AddSnapshotUpdate):
            settled.append(change)
            continue
        summary, time_ms = change.snapshot.summary, stamp(table.metadata, change.snapshot.timestamp_ms)
        if summary is not None:
            records, deletes = row_totals(summary)
            totals = {**summary.additional_properties, TOTAL_RECORDS: str(min(records, rows + deletes))}
            summary = Summary(operation=summary.operation, **totals)
        made.append(change.snapshot.model_copy(update={"timestamp_ms": time_ms, "summary": summary}))
        settled.append(AddSnapshotUpdate(snapshot=made[-1]))
    return tuple(settled), made


def _written(table: Table, snapshot: Snapshot) -> Iterator[str]:
    """Yield the files that were written for a snapshot."""
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id == snapshot.snapshot_id:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id:
                    yield entry.data_file.file_path
            yield manifest.manifest_path
    yield snapshot.manifest_list


def _pointers(catalog: SqlCatalog, name: tuple[str, str]) -> tuple[str, str | None] | None:
    """Return the current and the previous metadata location of a table, None when there is no such table."""
    columns = IcebergTables.metadata_location, IcebergTables.previous_metadata_location
    with Session(catalog.engine) as session:
        found = session.execute(select(*columns).where(*table_row(catalog, name))).first()
    return None if found is None or found[0] is None else (found[0], found[1])


def _older(current: str, previous: str | None) -> Iterator[str]:
    """Yield older metadata files: the previous one, then the others of its directory, newest first."""
    if previous is not None:
        yield previous
    directory = Path(spelling(current)).parent
    for path in sorted(directory.glob("*.metadata.json"), key=lambda path: path.name, reverse=True):
        if spelling(current) != str(path):
            yield f"file://{path}"


def _read(catalog: Catalog, name: tuple[str, str], location: str) -> tuple[Table | None, str]:
    """Read a metadata file and the manifests of its snapshot; return the table, or the problem."""
    files = open_io(of_files(catalog.properties), location)
    try:
        metadata = FromInputFile.table_metadata(files.new_input(location))
        table = Table(name, metadata, location, files, catalog)
        snapshot = table.current_snapshot()
        for manifest in () if snapshot is None else snapshot.manifests(files):
            manifest.fetch_manifest_entry(files)
    except Exception as error:  # noqa: BLE001  # however it is damaged, it cannot be used
        return None, error_text(error)
    return table, ""


def _rows_left(cuts: Sequence[Cut]) -> int:
    return sum(cut.keep for cut in cuts)


def _ancestors(table: Table, unreadable: Mapping[str, str], rows: int) -> Iterator[Snapshot]:
    """Yield older snapshots with more than `rows` rows, all in readable files, newest first: from before a compaction."""
    ancestors = ancestors_of(table.current_snapshot(), table.metadata)
    for snapshot in islice(ancestors, 1, ANCESTORS_MAX):
        try:
            entries = SnapshotFiles(snapshot, table.io).entries
        except Exception as error:  # noqa: BLE001  # its manifests may be deleted; an older snapshot may do
            name, cause = ".".join(table.name()), error_text(error)
            log.info("snapshot_not_read", table=name, snapshot=snapshot.snapshot_id, cause=cause)
            continue
        if sum(entry.rows for entry in entries) > rows and not any(entry.path in unreadable for entry in entries):
            yield snapshot


def _held(table: Table, snapshot: Snapshot | None) -> tuple[dict[int, Offsets], dict[str, str]]:
    """Return the offsets of each partition, and the problem of each unreadable data file; reads a few MiB at a time."""
    name, held = ".".join(table.name()), dict[int, Offsets]()
    unreadable = dict[str, str]()
    try:
        listed = SnapshotFiles(snapshot, table.io)
    except Exception as error:
        raise LakeUnavailableError(name, "list files of", error) from error
    for entry in listed.entries:
        found: dict[int, Offsets] = {}
        try:
            for rows in read_rows(table.io, entry, None, deleted_of(entry, listed.deletes, table.io), OFFSETS):
                numbers, offsets = rows["partition"].to_numpy(), rows["topic_offset"].to_numpy()
                for number in np.unique(numbers):
                    found.setdefault(int(number), Offsets()).add(offsets[numbers == number])
        except (OSError, ValueError, pa.ArrowException) as error:
            is_missing = isinstance(error, FileNotFoundError)
            if not is_missing and isinstance(error, OSError) and (problem := unreachable(table.io, entry.path)):
                raise LakeUnavailableError(name, f"read {entry.path} of", problem) from error
            unreadable[entry.path] = "it is not there" if is_missing else f"it cannot be decoded ({error})"
            continue
        for partition, seen in found.items():
            held.setdefault(partition, Offsets()).join(seen)
    for entry in (entry for entry in listed.entries if entry.path in unreadable):
        first, last = entry.partition_first, entry.partition_last
        for number in {first, last, *(one for one in held if first <= one <= last)} - {OFFSET_MAX}:
            lost = held.setdefault(number, Offsets())
            lost.end = max(lost.end, entry.last + 1 if entry.last < OFFSET_MAX else 0)
    return held, unreadable
