"""Mend a table that is not as it was left: keep what it holds without a hole, cut off the rest, and let it say so.

One commit cuts and tells how far the table goes now; the pipeline appends what is missing at its next tick, from the log or
the objects. Nothing is cut that they could not give back.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import structlog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from ister.core.errors import CorruptError, CorruptMetadataError, IsterError
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
from ister.core.upkeep import spelling
from ister.lake.commit import LakeTable
from ister.lake.errors import CommitConflictError, CommitUnknownError, LakeUnavailableError, TableMovedError
from ister.lake.files import is_local, of_files, open_io
from ister.lake.schema import differs
from ister.lake.snapshot import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    from pyiceberg.catalog import Catalog
    from sqlalchemy import ColumnElement, CursorResult

    from ister.core.names import TopicName

log = structlog.get_logger()

NO_RETRIES = {"commit.retry.num-retries": "0"}
"""The library would commit again without looking; set on the loaded handle alone, never in the table."""


class RepairRefusedError(CorruptError):
    """What would have to be appended again is nowhere any more."""

    def __init__(self, table: str, losses: Sequence[str]) -> None:
        self.table = table
        self.losses = tuple(losses)
        super().__init__(
            f"table {table} cannot be repaired: {'; '.join(losses)}; nothing was changed. Restore the objects, or keep the "
            "table as it is and turn it off for this topic (lake=false)"
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


class Fallback(NamedTuple):
    """A table whose newest metadata file cannot be read, and the newest one before it that can."""

    table: Table
    """As that older file has it."""
    broken: str
    reason: str


class Served(NamedTuple):
    """What log and objects have of a partition: offsets [start, next)."""

    start: int
    next: int


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with a table as of one snapshot; `found` is what its own account of itself has wrong."""

    table: Table
    cuts: Sequence[Cut]
    found: str

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
            table = catalog.load_table(name)
        except NoSuchTableError:
            continue
        except Exception as error:
            raise LakeUnavailableError(".".join(name), "read", _said(error)) from error
        if is_of(table.properties, topic, generation):
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
        _, reason = _read(catalog, name, pointers[0])
        if reason:
            for location in _older(*pointers):
                table, _ = _read(catalog, name, location)
                if table is not None and is_of(table.properties, topic, generation):
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


def whole_below(offsets: npt.NDArray[np.int64]) -> int:
    """Return below which offset each is there once: the first hole or the first that is there twice."""
    ordered = np.sort(offsets)
    wrong = np.flatnonzero(ordered != np.arange(len(ordered)))
    return max(0, min(int(ordered[wrong[0]]), int(wrong[0]))) if len(wrong) else len(ordered)


def cuts_of(held: Mapping[int, npt.NDArray[np.int64]], said: Mapping[int, int] | None) -> list[Cut]:
    """Decide where to cut each partition; `said` is how far the table says it goes, None when that cannot be read.

    Rows behind what the table says are nobody's: the pipeline would append their offsets a second time.
    """
    cuts = []
    for partition in sorted({*held, *(said or {})}):
        offsets = held.get(partition, np.empty(0, np.int64))
        whole = whole_below(offsets)
        told = whole if said is None else said.get(partition, 0)
        keep = min(whole, told)
        cuts.append(Cut(partition, told, keep, len(offsets) - keep))
    return cuts


def losses(cuts: Sequence[Cut], served: Mapping[int, Served]) -> Iterator[str]:
    """Name every offset that a cut would lose, because log and objects do not have it."""
    for cut in cuts:
        if not cut.changes:
            continue
        has = served.get(cut.partition)
        if has is None:
            if cut.said > cut.keep:
                yield (
                    f"partition {cut.partition} lacks offsets [{cut.keep}, {cut.said}), and the broker has no such partition"
                )
        elif cut.keep < has.start:
            yield (
                f"partition {cut.partition} is whole below offset {cut.keep} only, and log and objects begin at {has.start}: "
                f"offsets [{cut.keep}, {has.start}) are lost"
            )
        elif cut.keep > has.next:
            yield (
                f"partition {cut.partition} holds offsets up to {cut.keep}, and its log ends at {has.next}: this is not the "
                "log that the table was made from"
            )


def examine(table: Table, topic: TopicName, generation: int) -> Diagnosis:
    """Read which offsets a table really holds, two columns of all its rows, and compare with what it says."""
    name = ".".join(table.name())
    if wrong := differs(table.schema()):
        raise TableMovedError(name, wrong)
    found, said = "", None
    try:
        said = offsets_of(table.properties.get(UPTO, ""), name)
        LakeTable(table, topic, generation)
    except TableMovedError as error:
        found = error.found
    except CorruptMetadataError as error:
        found = str(error)
    return Diagnosis(table, cuts_of(_held(table), said), found)


def mend(diagnosis: Diagnosis) -> None:
    """Cut, and tell how far the table goes, in one commit on top of the snapshot that was examined."""
    table, name = diagnosis.table, ".".join(diagnosis.table.name())
    upto = offsets_text(diagnosis.upto)
    summary = {UPTO: upto, EPOCH: table.properties.get(EPOCH, "0")}
    try:
        if any(cut.rows for cut in diagnosis.cuts):
            # On this handle only: other handles of the table share what its metadata is made of.
            table.metadata = table.metadata.model_copy(update={"properties": table.properties | NO_RETRIES})
            with table.transaction() as transaction:
                transaction.delete(_behind(diagnosis.cuts), snapshot_properties=summary)
                transaction.set_properties({UPTO: upto})
        else:
            stage = Stage(table, {})
            staged = stage.write([], summary, {UPTO: upto})
            table.catalog.commit_table(table, staged.requirements, staged.updates)
    except CommitFailedException as error:
        raise CommitConflictError(name, 1, _said(error)) from error
    except IsterError:
        raise
    except Exception as error:
        raise CommitUnknownError(name, _said(error)) from error
    log.info("table_mended", table=name, upto=upto, rows=sum(cut.rows for cut in diagnosis.cuts))


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


def _held(table: Table) -> dict[int, npt.NDArray[np.int64]]:
    """Read the offsets of each partition, as they come."""
    parts: dict[int, list[npt.NDArray[np.int64]]] = {}
    try:
        for batch in table.scan(selected_fields=("partition", "topic_offset")).to_arrow_batch_reader():
            partitions, offsets = batch["partition"].to_numpy(), batch["topic_offset"].to_numpy()
            for partition in np.unique(partitions):
                parts.setdefault(int(partition), []).append(offsets[partitions == partition])
    except Exception as error:
        raise LakeUnavailableError(".".join(table.name()), "read the offsets of", _said(error)) from error
    return {partition: np.concatenate(found) for partition, found in parts.items()}


def _behind(cuts: Sequence[Cut]) -> str:
    """Return which rows to delete; with nothing to keep all of a partition, even what has no offset of ours."""
    return " or ".join(
        f"(partition = {cut.partition}" + (f" and topic_offset >= {cut.keep})" if cut.keep else ")")
        for cut in cuts
        if cut.rows
    )


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
