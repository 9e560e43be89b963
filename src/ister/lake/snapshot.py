"""A new snapshot that appends files: its manifests, with small ones merged, and the updates of its commit.

Built from PyIceberg's public parts, because its own transaction retries, copies the metadata a dozen times and
merges all manifests of a table at once.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from pyiceberg.manifest import (
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import (
    TOTAL_EQUALITY_DELETES,
    TOTAL_POSITION_DELETES,
    TOTAL_RECORDS,
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
)

from ister.core.table.commit import to_merge
from ister.core.table.maintenance import Lineage, expirable
from ister.core.table.names import UPTO
from ister.lake.columns import SPEC, spec_of
from ister.lake.errors import TableMovedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

SNAPSHOTS_MAX = 96
SNAPSHOTS_KEPT = 90
"""Above the maximum, the oldest snapshots expire until this many are left.

A table has a hundred at most: maintenance procedures add a few between two commits of ours.
"""
GRACE_MS = 3_600_000
"""The default grace period: how long rewritten files stay reachable, for running queries."""

_CODEC: Final = "deflate"


def wall_ms() -> int:
    """Return the wall clock in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Staged(NamedTuple):
    """A written snapshot that is not committed yet."""

    snapshot: Snapshot
    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...]
    manifests: tuple[ManifestFile, ...]
    """As its manifest list has them."""
    expired: list[Snapshot]


class Stage:
    """Writes one snapshot; `discard` deletes what was written so far."""

    def __init__(
        self,
        table: Table,
        newest: Mapping[int, Sequence[ManifestFile]],
        *,
        now_ms: Callable[[], int] = wall_ms,
        grace_ms: int = GRACE_MS,
    ) -> None:
        """`newest` are the manifests of snapshots that we wrote, whose lists need not be read."""
        self._table = table
        self._newest = newest
        self._now_ms = now_ms
        self._grace_ms = grace_ms
        self._metadata = table.metadata
        found = spec_of(table.specs().values())
        if found is None:
            raise TableMovedError(".".join(table.name()), f"it has no partition spec like {SPEC} any more")
        self.spec = found
        self._uuid = uuid.uuid4()
        self._locations = table.location_provider()
        self._snapshot_id = table.metadata.new_snapshot_id()
        self._written: list[str] = []

    def write(
        self,
        files: list[DataFile],
        summary: dict[str, str],
        properties: dict[str, str],
        *,
        onto: Snapshot | None = None,
    ) -> Staged:
        """Write the manifests and their list; the parent is `onto`, or the current snapshot, which it replaces either way."""
        current = self._table.current_snapshot()
        parent = current if onto is None else onto
        parent_id = parent.snapshot_id if parent else None
        now_ms = self._now_ms()
        manifests = self._manifests(files, parent)
        path = self._path(f"snap-{self._snapshot_id}-0-{self._uuid}.avro")
        sequence_number = self._metadata.next_sequence_number()
        with write_manifest_list(
            format_version=self._metadata.format_version,
            output_file=self._table.io.new_output(path),
            snapshot_id=self._snapshot_id,
            parent_snapshot_id=parent_id,
            sequence_number=sequence_number,
            avro_compression=_CODEC,
        ) as writer:
            listed = tuple(writer.prepare_manifest(manifest) for manifest in manifests)
            writer.add_manifests(list(listed))
        collector, schema = SnapshotSummaryCollector(), self._metadata.schema()
        for file in files:
            collector.add_file(file, schema, self.spec)
        counted = Summary(operation=Operation.APPEND, **collector.build(), **summary)
        snapshot = Snapshot.model_validate(
            {
                "snapshot-id": self._snapshot_id,
                "parent-snapshot-id": parent_id,
                "manifest-list": path,
                "sequence-number": sequence_number,
                "timestamp-ms": stamp(self._metadata, now_ms),
                "summary": update_snapshot_summaries(counted, previous_summary=parent.summary if parent else None),
                "schema-id": self._metadata.current_schema_id,
            }
        )
        # A new snapshot would reset the user's settings of the branch.
        ref = self._metadata.refs.get(MAIN_BRANCH)
        settings = {} if ref is None else ref.model_dump(by_alias=True, exclude_none=True)
        main = {"ref-name": MAIN_BRANCH, "type": SnapshotRefType.BRANCH, "snapshot-id": self._snapshot_id}
        updates: tuple[TableUpdate, ...] = (
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate.model_validate(settings | main),
            SetPropertiesUpdate(updates=properties),
        )
        expired = self._expired(now_ms)
        if expired:
            ids = [old.snapshot_id for old in expired]
            updates += (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": ids}),)
        requirements = (
            AssertRefSnapshotId.model_validate(
                {"ref": MAIN_BRANCH, "snapshot-id": current.snapshot_id if current else None}
            ),
            AssertTableUUID(uuid=self._metadata.table_uuid),
        )
        return Staged(snapshot, updates, requirements, listed, expired)

    def discard(self) -> None:
        """Delete the written files: no commit was attempted, or the snapshot is superseded."""
        delete_all(self._table, self._written)

    def _manifests(self, files: list[DataFile], parent: Snapshot | None) -> list[ManifestFile]:
        listed: Sequence[ManifestFile] = ()
        if parent is not None:
            known = self._newest.get(parent.snapshot_id)
            listed = parent.manifests(self._table.io) if known is None else known
        others = [old for old in listed if not self._is_ours(old)]
        ours = [old for old in listed if self._is_ours(old) and _live(old)]
        added = [added_entry(file, self._snapshot_id) for file in files]
        # The new files come last, so that the positions of the others do not change.
        merge = to_merge([*map(_live, ours), len(added)]) if added else []
        merged = [ours[position] for position in merge if position < len(ours)]
        rest = [old for position, old in enumerate(ours) if position not in merge]
        if added and len(ours) not in merge:
            rest = [self._manifest(added, []), *rest]
            added = []
        if added or merged:
            rest = [self._manifest(added, merged), *rest]
        return [*rest, *others]

    def _manifest(self, added: list[ManifestEntry], merged: list[ManifestFile]) -> ManifestFile:
        path = self._path(f"{self._uuid}-m{len(self._written)}.avro")
        with write_manifest(
            format_version=self._metadata.format_version,
            spec=self.spec,
            schema=self._metadata.schema(),
            output_file=self._table.io.new_output(path),
            snapshot_id=self._snapshot_id,
            avro_compression=_CODEC,
        ) as writer:
            for entry in added:
                writer.add(entry)
            for manifest in merged:
                for entry in manifest.fetch_manifest_entry(self._table.io, discard_deleted=True):
                    writer.existing(entry)
        return writer.to_manifest_file()

    def _is_ours(self, manifest: ManifestFile) -> bool:
        return manifest.content == ManifestContent.DATA and manifest.partition_spec_id == self.spec.spec_id

    def _path(self, name: str) -> str:
        path = self._locations.new_metadata_location(name)
        self._written.append(path)
        return path

    def _expired(self, now_ms: int) -> list[Snapshot]:
        """Return the snapshots to expire, oldest first; none that is still needed."""
        snapshots = {snapshot.snapshot_id: snapshot for snapshot in self._metadata.snapshots}
        if len(snapshots) < SNAPSHOTS_MAX:
            return []
        lineage = lineage_of(self._metadata.snapshots)
        named = {ref.snapshot_id for ref in self._metadata.refs.values()}
        current = self._metadata.current_snapshot_id
        free = expirable(lineage, named=named, current=current, keep=1, grace_ms=self._grace_ms, now_ms=now_ms)
        return [snapshots[snapshot_id] for snapshot_id in free[: len(snapshots) + 1 - SNAPSHOTS_KEPT]]


def stamp(metadata: TableMetadata, now_ms: int) -> int:
    """Return the timestamp of a new snapshot: now, or later than every timestamp of the table.

    A clock may be set back, and Java refuses a table whose logs are not in order. Later, not equal: PyIceberg would take
    metadata with an unchanged timestamp for unset, and use the wall clock.
    """
    stamps = [metadata.last_updated_ms]
    stamps += [entry.timestamp_ms for entry in metadata.snapshot_log[-1:]]
    stamps += [entry.timestamp_ms for entry in metadata.metadata_log[-1:]]
    return max(now_ms, 1 + max(stamps))


def is_superseded(snapshot: Snapshot, metadata: TableMetadata) -> bool:
    """Return True if a snapshot is in no version of a table and never will be: another has its sequence number.

    Its absence alone proves nothing: of a request that was sent twice, one may be refused while the other is in flight, and
    a snapshot that landed may have expired while its successors share its manifests.
    """
    return any(
        one.sequence_number == snapshot.sequence_number and one.snapshot_id != snapshot.snapshot_id
        for one in metadata.snapshots
    )


def row_totals(summary: Summary | None) -> tuple[int, int]:
    """Return the rows of a snapshot's data files, and the most that its delete files may remove."""
    totals = {} if summary is None else summary.additional_properties
    deletes = int(totals.get(TOTAL_POSITION_DELETES, 0)) + int(totals.get(TOTAL_EQUALITY_DELETES, 0))
    return int(totals.get(TOTAL_RECORDS, 0)), deletes


def lineage_of(snapshots: Iterable[Snapshot]) -> list[Lineage]:
    """Return the parent, time and operation of each snapshot."""
    return [
        Lineage(
            one.snapshot_id,
            one.parent_snapshot_id,
            one.timestamp_ms,
            "" if one.summary is None else one.summary.operation.value,
            one.summary is not None and UPTO in one.summary.additional_properties,
        )
        for one in snapshots
    ]


def added_entry(file: DataFile, snapshot_id: int) -> ManifestEntry:
    """Return the manifest entry of a new file; the commit assigns its sequence numbers."""
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED,
        snapshot_id=snapshot_id,
        sequence_number=None,
        file_sequence_number=None,
        data_file=file,
    )


def delete_all(table: Table, paths: Iterable[str]) -> None:
    """Delete unreferenced files; one that cannot be deleted is left to orphan removal."""
    for path in paths:
        with suppress(Exception):
            table.io.delete(path)


def _live(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
