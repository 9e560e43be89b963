"""Mend a table that is not as it was left: keep what it holds without a hole, cut off the rest, and let it say so.

One commit cuts and tells how far the table goes now; the pipeline appends what is missing at its next tick, from the log or
the objects. Nothing is cut that they could not give back. A data file that is gone or damaged is a hole like any other, and
leaves the table in the same commit; unless an older snapshot, from before a compaction, still has its rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import pyarrow as pa
import structlog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import (
    TOTAL_EQUALITY_DELETES,
    TOTAL_POSITION_DELETES,
    TOTAL_RECORDS,
    Summary,
    ancestors_of,
)
from pyiceberg.table.update import AddSnapshotUpdate, AssertTableUUID
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from ister.core.errors import CorruptError, CorruptMetadataError, IsterError
from ister.core.layout import OFFSET_MAX, Part
from ister.core.tables import (
    EPOCH,
    GENERATION,
    TOPIC,
    UPTO,
    offsets_of,
    offsets_text,
    table_of,
    with_generation,
    with_hash,
)
from ister.core.upkeep import GRACE_MS_MAX, spelling
from ister.lake.catalog import load_iceberg
from ister.lake.commit import LakeTable, require_format
from ister.lake.deletes import deleted_of
from ister.lake.errors import (
    CommitConflictError,
    CommitUnknownError,
    LakeUnavailableError,
    OutsideWarehouseError,
    TableMovedError,
)
from ister.lake.files import is_inside, is_local, of_files, open_io, require_inside, root_of, unreachable
from ister.lake.index import FileIndex
from ister.lake.lane import OFFSETS, read_lane
from ister.lake.rewrite import Behind, Overwrite, discard, replacements
from ister.lake.schema import differs
from ister.lake.snapshot import Stage, delete_all, is_superseded, stamp

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    from pyiceberg.catalog import Catalog
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from sqlalchemy import ColumnElement, CursorResult

    from ister.core.names import TopicName

log = structlog.get_logger()

SHOWN_MAX = 3
"""So many of the data files that cannot be read are named."""
ANCESTORS_MAX = 100
"""How many older snapshots are looked at for what a newer one has lost."""


class RepairRefusedError(CorruptError):
    """What would have to be appended again is nowhere any more."""

    def __init__(self, table: str, losses: Sequence[str]) -> None:
        self.table = table
        self.losses = tuple(losses)
        super().__init__(
            f"table {table} cannot be repaired: {'; '.join(losses)}; nothing was changed. Restore the objects, or keep the "
            "table as it is and turn it off for this topic (lake=false); rows that someone else wrote delete with `ister sql`"
        )


class Cut(NamedTuple):
    """What becomes of one partition: its `rows` at or behind `keep` go, and it goes as far as that."""

    partition: int
    said: int
    """How far the table says it goes."""
    keep: int
    rows: int

    @property
    def changes(self) -> bool:
        """Tell whether there is anything to do."""
        return self.rows > 0 or self.said != self.keep


class Offsets:
    """Which offsets of a partition there are, in whatever order and pieces they come: as runs without a hole, so a few."""

    def __init__(self) -> None:
        self.rows = 0
        self.end = 0
        """The offset behind the last one, also of rows that cannot be read."""
        self._starts = np.empty(0, np.int64)
        self._stops = np.empty(0, np.int64)
        self._twice: int | None = None

    @property
    def runs(self) -> int:
        """How many runs they make up."""
        return len(self._starts)

    @property
    def whole_below(self) -> int:
        """The offset below which each is there once: the first that is missing, or that is there twice."""
        if not self.runs or self._starts[0] != 0:
            return 0
        first_hole = int(self._stops[0])
        return first_hole if self._twice is None else min(first_hole, self._twice)

    def add(self, offsets: npt.NDArray[np.int64]) -> None:
        """Count some more."""
        if not len(offsets):
            return
        self.rows += len(offsets)
        ordered = np.sort(offsets)
        self.end = max(self.end, int(ordered[-1]) + 1)
        steps = np.diff(ordered)
        self._note_twice(ordered[1:][steps == 0])
        cuts = np.flatnonzero(steps > 1)
        self._unite(ordered[[0, *(cuts + 1)]], ordered[[*cuts, -1]] + 1)

    def join(self, other: Offsets) -> None:
        """Count what was counted elsewhere."""
        self.rows += other.rows
        self.end = max(self.end, other.end)
        if other._twice is not None:
            self._note_twice(np.array([other._twice]))
        if other.runs:
            self._unite(other._starts, other._stops)

    def _unite(self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> None:
        starts, stops = np.concatenate((self._starts, starts)), np.concatenate((self._stops, stops))
        order = np.argsort(starts, kind="stable")
        starts, stops = starts[order], np.maximum.accumulate(stops[order])
        self._note_twice(starts[1:][starts[1:] < stops[:-1]])
        breaks = np.flatnonzero(starts[1:] > stops[:-1])
        self._starts, self._stops = starts[[0, *(breaks + 1)]], stops[[*breaks, -1]]

    def _note_twice(self, offsets: npt.NDArray[np.int64]) -> None:
        if len(offsets):
            first = int(offsets[0])
            self._twice = first if self._twice is None else min(first, self._twice)


class Fallback(NamedTuple):
    """A table whose newest metadata file cannot be read, and the newest one before it that can."""

    table: Table
    """As that older file has it."""
    broken: str
    reason: str


class Served(NamedTuple):
    """The offsets [start, next) of a partition that log and objects hold durably, without a gap; never what a table has."""

    start: int
    next: int


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with a table as of one snapshot; `found` says it, beside where to cut."""

    table: Table
    cuts: Sequence[Cut]
    found: str
    ruined: Sequence[str] = ()
    """Data files that are gone or damaged, and leave the table."""
    back_to: Snapshot | None = None
    """An older snapshot that is all there and holds more than what is left of the newest."""
    ends: Mapping[int, int] = field(default_factory=dict)
    """Partition to the offset behind its last row in the newest snapshot, readable or not."""

    @property
    def sound(self) -> bool:
        """Tell whether nothing is wrong."""
        return not self.found and not any(cut.changes for cut in self.cuts)

    @property
    def upto(self) -> dict[int, int]:
        """How far the table goes once it is mended."""
        return {cut.partition: cut.keep for cut in self.cuts if cut.keep or cut.said}


def names_of(topic: TopicName, generation: int) -> list[tuple[str, str]]:
    """Return every name that a topic's table can have, the likely ones first."""
    plain, hashed = table_of(topic), with_hash(topic)
    return [plain, hashed, with_generation(plain, generation), with_generation(hashed, generation)]


def is_of(properties: Mapping[str, str], topic: TopicName, generation: int) -> bool:
    """Tell whether a table says that it is this topic's."""
    return properties.get(TOPIC) == str(topic) and properties.get(GENERATION) == str(generation)


def find_table(catalog: Catalog, topic: TopicName, generation: int) -> Table | None:
    """Return a topic's table, None when there is none; LakeUnavailableError when one cannot be read."""
    for name in names_of(topic, generation):
        try:
            table = load_iceberg(catalog, name)
        except Exception as error:
            raise LakeUnavailableError(".".join(name), "read", _said(error)) from error
        if table is not None and is_of(table.properties, topic, generation):
            require_inside(table)
            return table
    return None


def fallback_of(catalog: Catalog, topic: TopicName, generation: int) -> Fallback | None:
    """Return the older metadata to go back to when a topic's table cannot be read, on a local disk and a SQL catalog."""
    if not isinstance(catalog, SqlCatalog):
        return None
    for name in names_of(topic, generation):
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
    """Point the catalog at the older metadata, unless it was pointed elsewhere meanwhile."""
    assert isinstance(catalog, SqlCatalog), "no other has a fallback"
    name = fallback.table.name()
    row = [*_row(catalog, name), IcebergTables.metadata_location == fallback.broken]
    chosen = {"metadata_location": fallback.table.metadata_location, "previous_metadata_location": None}
    with Session(catalog.engine) as session:
        changed = session.execute(update(IcebergTables).where(*row).values(chosen))
        session.commit()
    if cast("CursorResult[None]", changed).rowcount != 1:
        raise CommitConflictError(".".join(name), 1, "its metadata was replaced meanwhile")
    log.warning("table_fell_back", table=".".join(name), broken=fallback.broken, chosen=chosen["metadata_location"])


def cuts_of(held: Mapping[int, Offsets], said: Mapping[int, int] | None) -> list[Cut]:
    """Decide where to cut each partition; `said` is how far the table says it goes, None when that cannot be read.

    Rows behind what the table says are nobody's: the pipeline would append their offsets a second time.
    """
    cuts = []
    for partition in sorted({*held, *(said or {})}):
        offsets = held.get(partition, Offsets())
        told = offsets.whole_below if said is None else said.get(partition, 0)
        keep = min(offsets.whole_below, told)
        cuts.append(Cut(partition, told, keep, offsets.rows - keep))
    return cuts


def losses(cuts: Sequence[Cut], served: Mapping[int, Served], ends: Mapping[int, int]) -> Iterator[str]:
    """Name every offset that a repair would lose, because log and objects do not hold it.

    The pipeline must append [keep, …) again, so each of these offsets up to what the table says (`said`) and up to its last
    row (`ends`) must be in log or objects.
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
    """Read which offsets a table really holds, two columns of all its rows, and compare with what it says.

    LakeUnavailableError when a file cannot be reached: it is not taken for one that is gone.
    """
    name = ".".join(table.name())
    require_format(table)
    if wrong := differs(table.schema()):
        raise TableMovedError(name, wrong)
    found, said = "", None
    try:
        said = offsets_of(table.properties.get(UPTO, ""), name)
        LakeTable(table, topic, generation).check_surplus()
    except TableMovedError as error:
        found = error.found
    except CorruptMetadataError as error:
        found = str(error)
    held, ruined = _held(table, table.current_snapshot())
    cuts = cuts_of(held, said)
    ends = {partition: offsets.end for partition, offsets in held.items()}
    told = [found] if found else []
    told += [f"data file {path}: {reason}" for path, reason in list(ruined.items())[:SHOWN_MAX]]
    told += [f"{len(ruined) - SHOWN_MAX:,} more data files like these"] if len(ruined) > SHOWN_MAX else []
    for older in _ancestors(table, ruined, _kept(cuts)) if ruined else ():
        there, lost = _held(table, older)
        then = cuts_of(there, said)
        if not lost and not any(cut.rows for cut in then) and _kept(then) > _kept(cuts):
            told.append(f"an older snapshot is all there: it goes back to snapshot {older.snapshot_id}")
            return Diagnosis(table, then, "; ".join(told), back_to=older, ends=ends)
    return Diagnosis(table, cuts, "; ".join(told), tuple(ruined), ends=ends)


def mend(diagnosis: Diagnosis) -> None:
    """Cut, and tell how far the table goes, in one commit on top of the snapshot that was examined.

    CommitConflictError: another came first, look anew. CommitUnknownError: look whether it has landed.
    """
    table, name = diagnosis.table, ".".join(diagnosis.table.name())
    upto = offsets_text(diagnosis.upto)
    summary = {UPTO: upto, EPOCH: table.properties.get(EPOCH, "0")}
    try:
        if diagnosis.back_to is not None:
            staged = Stage(table, {}, grace_ms=GRACE_MS_MAX).write([], summary, {UPTO: upto}, onto=diagnosis.back_to)
            _commit(table, staged.requirements, staged.updates, _kept(diagnosis.cuts))
        elif diagnosis.ruined or any(cut.rows for cut in diagnosis.cuts):
            _overwrite(diagnosis, summary)
        else:
            staged = Stage(table, {}, grace_ms=GRACE_MS_MAX).write([], summary, {UPTO: upto})
            _commit(table, staged.requirements, staged.updates, _kept(diagnosis.cuts))
    except IsterError:
        raise
    except Exception as error:
        raise LakeUnavailableError(name, "write manifests of", _said(error)) from error
    log.info("table_mended", table=name, upto=upto, rows=sum(cut.rows for cut in diagnosis.cuts))


class _Once(Transaction):
    """The library's transaction, committed once: its own tries again, and deletes manifests after a refusal unasked."""

    def __init__(self, table: Table, rows: int) -> None:
        super().__init__(table)
        self._rows = rows

    def commit_transaction(self) -> Table:
        requirements = (*self._requirements, AssertTableUUID(uuid=self._table.metadata.table_uuid))
        _commit(self._table, requirements, self._updates, self._rows)
        return self._table


def _overwrite(diagnosis: Diagnosis, summary: dict[str, str]) -> None:
    """Commit the table without its ruined data files and without the rows behind the cuts."""
    table, snapshot = diagnosis.table, diagnosis.table.current_snapshot()
    assert snapshot is not None, "it has files"
    behind = [Behind(cut.partition, cut.keep) for cut in diagnosis.cuts if cut.rows]
    files = replacements(table, snapshot, diagnosis.ruined, behind)
    transaction = _Once(table, _kept(diagnosis.cuts))
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
    """Commit once what leaves so many rows; whatever is said to it, look whether it has landed."""
    name = ".".join(table.name())
    updates, made = _settled(table, updates, rows)
    assert made, "without a snapshot, the assertion of a commit under way would not see it"
    try:
        table.catalog.commit_table(table, requirements, updates)
    except Exception as error:
        try:
            fresh = table.catalog.load_table(table.name())
        except Exception:  # noqa: BLE001  # then nobody knows
            raise CommitUnknownError(name, _said(error)) from error
        if fresh.metadata.snapshot_by_id(made[-1].snapshot_id) is not None:
            return
        if is_superseded(made[0], fresh.metadata):
            delete_all(table, [path for snapshot in made for path in _written(table, snapshot)])
        elif not isinstance(error, CommitFailedException):
            raise CommitUnknownError(name, _said(error)) from error
        raise CommitConflictError(name, 1, _said(error)) from error


def _settled(
    table: Table, updates: tuple[TableUpdate, ...], rows: int
) -> tuple[tuple[TableUpdate, ...], list[Snapshot]]:
    """Have snapshots come behind what the table has, whatever the clock says, and count no row too many; returns them, too."""
    made: list[Snapshot] = []
    settled: list[TableUpdate] = []
    for change in updates:
        if isinstance(change, AddSnapshotUpdate):
            time_ms = stamp(table.metadata, change.snapshot.timestamp_ms)
            summary = _counted(change.snapshot.summary, rows)
            made.append(change.snapshot.model_copy(update={"timestamp_ms": time_ms, "summary": summary}))
            settled.append(AddSnapshotUpdate(snapshot=made[-1]))
        else:
            settled.append(change)
    return tuple(settled), made


def _counted(summary: Summary | None, rows: int) -> Summary | None:
    """Correct the number of rows: the library counts a file once that was in the table twice and is taken out."""
    if summary is None:
        return None
    totals = summary.additional_properties
    deletes = int(totals.get(TOTAL_POSITION_DELETES, 0)) + int(totals.get(TOTAL_EQUALITY_DELETES, 0))
    most = min(int(totals.get(TOTAL_RECORDS, 0)), rows + deletes)
    return Summary(operation=summary.operation, **{**totals, TOTAL_RECORDS: str(most)})


def _written(table: Table, snapshot: Snapshot) -> Iterator[str]:
    """Name the files that were written for a snapshot."""
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id == snapshot.snapshot_id:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id:
                    yield entry.data_file.file_path
            yield manifest.manifest_path
    yield snapshot.manifest_list


def _pointers(catalog: SqlCatalog, name: tuple[str, str]) -> tuple[str, str | None] | None:
    """Return where the metadata of a table is and was, None when there is no such table."""
    columns = IcebergTables.metadata_location, IcebergTables.previous_metadata_location
    with Session(catalog.engine) as session:
        found = session.execute(select(*columns).where(*_row(catalog, name))).first()
    return None if found is None or found[0] is None else (found[0], found[1])


def _row(catalog: SqlCatalog, name: tuple[str, ...]) -> list[ColumnElement[bool]]:
    return [
        IcebergTables.catalog_name == catalog.name,
        IcebergTables.table_namespace == ".".join(name[:-1]),
        IcebergTables.table_name == name[-1],
    ]


def _older(current: str, previous: str | None) -> Iterator[str]:
    """Give the metadata files before the current one: the one before it, then what else lies there, newest first."""
    if previous is not None:
        yield previous
    directory = Path(spelling(current)).parent
    for path in sorted(directory.glob("*.metadata.json"), key=lambda path: path.name, reverse=True):
        if spelling(current) != str(path):
            yield f"file://{path}"


def _read(catalog: Catalog, name: tuple[str, str], location: str) -> tuple[Table | None, str]:
    """Read a metadata file and the manifests that it leads to; returns the table, or what is wrong."""
    files = open_io(of_files(catalog.properties), location)
    try:
        metadata = FromInputFile.table_metadata(files.new_input(location))
        table = Table(name, metadata, location, files, catalog)
        snapshot = table.current_snapshot()
        for manifest in () if snapshot is None else snapshot.manifests(files):
            manifest.fetch_manifest_entry(files)
    except Exception as error:  # noqa: BLE001  # however it is broken, it cannot be used
        return None, _said(error)
    return table, ""


def _kept(cuts: Sequence[Cut]) -> int:
    return sum(cut.keep for cut in cuts)


def _ancestors(table: Table, ruined: Mapping[str, str], rows: int) -> Iterator[Snapshot]:
    """Give the older snapshots with more than so many rows, all in other files, newest first: from before a compaction."""
    ancestors = ancestors_of(table.current_snapshot(), table.metadata)
    for snapshot in islice(ancestors, 1, ANCESTORS_MAX):
        index = FileIndex()
        try:
            index.turn(snapshot, table.io)
        except Exception as error:  # noqa: BLE001  # its manifests may have been let go; others may do
            log.info(
                "snapshot_not_read", table=".".join(table.name()), snapshot=snapshot.snapshot_id, cause=_said(error)
            )
            continue
        if sum(part.rows for part in index.parts) > rows and not any(part.path in ruined for part in index.parts):
            yield snapshot


def _held(table: Table, snapshot: Snapshot | None) -> tuple[dict[int, Offsets], dict[str, str]]:
    """Read the offsets of each partition, a few MiB at a time; and which data files cannot be read, and why."""
    name, held, ruined = ".".join(table.name()), dict[int, Offsets](), dict[str, str]()
    index, unread = FileIndex(), list[Part]()
    try:
        index.turn(snapshot, table.io)
    except Exception as error:
        raise LakeUnavailableError(name, "list files of", _said(error)) from error
    for part in index.parts:
        found: dict[int, Offsets] = {}
        try:
            for rows in read_lane(table.io, part, None, deleted_of(part, index.deletes, table.io), OFFSETS):
                numbers, offsets = rows["partition"].to_numpy(), rows["topic_offset"].to_numpy()
                for number in np.unique(numbers):
                    found.setdefault(int(number), Offsets()).add(offsets[numbers == number])
        except (OSError, ValueError, pa.ArrowException) as error:
            is_gone = isinstance(error, FileNotFoundError)
            if not is_gone and isinstance(error, OSError) and (problem := unreachable(table.io, part.path)):
                raise LakeUnavailableError(name, f"read {part.path} of", problem) from error
            ruined[part.path] = "it is not there" if is_gone else f"it cannot be decoded ({error})"
            unread.append(part)
            continue
        for partition, seen in found.items():
            held.setdefault(partition, Offsets()).join(seen)
    for part in unread:
        first, last = part.partition_first, part.partition_last
        for number in {first, last, *(one for one in held if first <= one <= last)} - {OFFSET_MAX}:
            lost = held.setdefault(number, Offsets())
            lost.end = max(lost.end, part.last + 1 if part.last < OFFSET_MAX else 0)
    return held, ruined


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
