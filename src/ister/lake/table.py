"""A topic's table: claimed by its owner's epoch, and appended to exactly once.

A commit is one transaction: the files and the committed offsets. It asserts the snapshot that the decision was based on and
is never retried by the library; after a conflict or a lost answer the table is refreshed and the commit rule applied again.
Data files of an attempted commit are never deleted here: after a lost answer they may be in the table.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Literal

import structlog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import ancestors_of

from ister.core.table.commit import (
    COMMIT,
    LANDED,
    Append,
    Decision,
    FileRows,
    Refused,
    TableProgress,
    check_files,
    check_owner,
    check_summary,
    check_surplus,
    decide,
    upto_after,
)
from ister.core.table.names import EPOCH, FROM, GENERATION, TOPIC, UPTO, base_of, offsets_of, offsets_text
from ister.lake.errors import (
    FORMAT_VERSION_MAX,
    CommitConflictError,
    CommitMisplacedError,
    CommitUnknownError,
    LakeUnavailableError,
    TableMovedError,
    UnsupportedFormatError,
    error_text,
    refusal,
)
from ister.lake.files import of_files, require_inside
from ister.lake.parquet import data_file
from ister.lake.snapshot import GRACE_MS, Stage, delete_all, is_superseded, row_totals, wall_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.schema import Schema
    from pyiceberg.table.snapshots import Snapshot

    from ister.core.names import TopicName
    from ister.core.table.commit import Verdict
    from ister.lake.evolve import ColumnChange
    from ister.lake.parquet import Written
    from ister.lake.snapshot import Staged

log = structlog.get_logger()

TRIES = 8
"""Attempts of a commit that loses to others; compactions are rare."""


class LakeTable:
    """One topic's table, as of the last refresh."""

    def __init__(
        self,
        table: Table,
        topic: TopicName,
        generation: int,
        *,
        now: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = wall_ms,
        grace_ms: int = GRACE_MS,
    ) -> None:
        """`now` is a monotonic clock, `now_ms` the wall clock of snapshots.

        `grace_ms` is how long the metadata of expired snapshots stays, for running queries.
        """
        self._table = table
        self._topic = str(base_of(topic))
        self._generation = generation
        self._epoch: int | None = None
        self._now = now
        self._now_ms = now_ms
        self._grace_ms = grace_ms
        self._manifests: dict[int, frozenset[str]] = {}
        self._newest: dict[int, tuple[ManifestFile, ...]] = {}
        self._deletions: deque[tuple[float, str]] = deque()
        self.conflicts = self.unknowns = 0
        """Commits that lost to another one, and commits with an unknown outcome."""
        self.check()

    @property
    def identifier(self) -> tuple[str, ...]:
        """Namespace and name in the catalog."""
        return self._table.name()

    @property
    def location(self) -> str:
        """Its location."""
        return self._table.location()

    @property
    def schema(self) -> Schema:
        """Its columns."""
        return self._table.schema()

    @property
    def files(self) -> FileIO:
        """Its FileIO."""
        return self._table.io

    @property
    def snapshot(self) -> Snapshot | None:
        """The current snapshot, as of the last refresh."""
        return self._table.current_snapshot()

    @property
    def metadata_files(self) -> tuple[str, ...]:
        """The current metadata file, and the manifest list of its snapshot."""
        snapshot = self.snapshot
        return (self._table.metadata_location, *(() if snapshot is None else (snapshot.manifest_list,)))

    def snapshot_of(self, snapshot_id: int) -> Snapshot | None:
        """Return an older snapshot, unless it has expired."""
        return self._table.snapshot_by_id(snapshot_id)

    @property
    def io_properties(self) -> dict[str, str]:
        """The FileIO's properties, without those of the catalog."""
        return of_files(self._table.io.properties)

    @property
    def held(self) -> TableProgress:
        """Its own record of topic, owner and committed offsets."""
        properties = self._table.properties
        return TableProgress(
            topic=properties.get(TOPIC, ""),
            generation=_number(properties.get(GENERATION)),
            epoch=_number(properties.get(EPOCH)),
            upto=offsets_of(properties.get(UPTO, "{}"), self._name),
        )

    def upto(self, partition: int) -> int:
        """Return the committed offset of a partition: every message below it is in the table."""
        return self.held.upto.get(partition, 0)

    def refresh(self) -> None:
        """Reload it from the catalog; TableMovedError when it was dropped, replaced or rolled back."""
        try:
            fresh = self._table.catalog.load_table(self.identifier)
        except NoSuchTableError:
            raise TableMovedError(self._name, "it is not in the catalog any more") from None
        except Exception as error:
            raise LakeUnavailableError(self._name, "read", error) from error
        if fresh.metadata.table_uuid != self._table.metadata.table_uuid:
            raise TableMovedError(self._name, "it was dropped, and another one has its name")
        self._table = fresh
        self.check()

    def check(self) -> None:
        """Raise TableMovedError if its properties contradict its snapshots, or it lies outside of the warehouse."""
        require_inside(self._table)
        current = self._table.current_snapshot()
        newest = None
        for snapshot in ancestors_of(current, self._table.metadata):
            if snapshot.summary is not None and (text := snapshot.summary.additional_properties.get(UPTO)) is not None:
                newest = offsets_of(text, self._name)
                break
        records, deletes = self._rows()
        if wrong := check_summary(self.held.upto, newest, records=records, deletes=deletes):
            raise TableMovedError(self._name, wrong)

    def check_surplus(self) -> None:
        """Raise TableMovedError if it has more rows than messages: someone else has appended to it."""
        records, deletes = self._rows()
        if wrong := check_surplus(self.held.upto, records=records, deletes=deletes):
            raise TableMovedError(self._name, wrong)

    def _rows(self) -> tuple[int, int]:
        """Return the rows of its data files, and the most that its delete files may remove."""
        return row_totals(None if self.snapshot is None else self.snapshot.summary)

    def claim(self, epoch: int) -> None:
        """Become the owner: commits of earlier epochs fail from now on, also those in flight.

        It commits an empty snapshot, because commits assert the snapshot, not properties.
        """

        def rule(held: TableProgress) -> Verdict:
            refused = check_owner(held, self._topic, self._generation, epoch)
            return refused or (LANDED if held.epoch == epoch else COMMIT)

        def stage(held: TableProgress, stage: Stage) -> Staged:
            summary = {UPTO: offsets_text(held.upto), EPOCH: str(epoch)}
            return stage.write([], summary, {EPOCH: str(epoch)})

        if self._commit(rule, stage) is not LANDED:
            log.info("table_claimed", table=self._name, epoch=epoch)
        self._epoch = epoch

    def commit_add_files(
        self, files: list[Written], spans: dict[int, tuple[int, int]]
    ) -> int | Literal[Decision.LANDED]:
        """Append files that hold exactly these offsets of each partition; return the snapshot, or LANDED if it has them.

        CommitRefusedError: another owner has it, stop. TableMovedError: this topic stops. CommitMisplacedError: plan again.
        CommitUnknownError: commit the same again.
        """
        if self._epoch is None:
            raise CommitMisplacedError(self._name, "it was not claimed")
        rows = [FileRows(one.partition, one.first_offset, one.last_offset, one.rows) for one in files]
        if refused := check_files(spans, rows):
            raise refusal(self._name, refused)
        append = Append(self._topic, self._generation, self._epoch, spans)

        def stage(held: TableProgress, stage: Stage) -> Staged:
            upto = offsets_text(upto_after(held, append))
            summary = {
                FROM: offsets_text({partition: start for partition, (start, _) in spans.items()}),
                UPTO: upto,
                EPOCH: str(append.epoch),
            }
            entries = [data_file(written, stage.spec.spec_id) for written in files]
            return stage.write(entries, summary, {UPTO: upto})

        return self._commit(lambda held: decide(held, append), stage)

    def change_columns(self, changes: Sequence[ColumnChange]) -> None:
        """Add or widen columns, in a commit of its own; CommitFailedException after a concurrent change."""
        update = self._table.update_schema()
        for path, field, is_new in changes:
            if is_new:
                update.add_column(path, field.field_type, doc=field.doc)
            else:
                update.update_column(path, field_type=field.field_type)
        update.commit()

    # --- one transaction ----------------------------------------------------------------------------------------------

    def _commit(
        self, rule: Callable[[TableProgress], Verdict], write: Callable[[TableProgress, Stage], Staged]
    ) -> int | Literal[Decision.LANDED]:
        """Refresh, apply the rule, commit once; repeat all three after a conflict or an unknown outcome."""
        attempted: tuple[Stage, Staged] | None = None
        refused: Exception | None = None
        unknown: Exception | None = None
        for tried in range(TRIES + 1):
            try:
                self.refresh()
            except LakeUnavailableError as error:
                if (failure := unknown or refused) is not None:
                    raise CommitUnknownError(self._name, failure) from error
                raise
            if attempted is not None and is_superseded(attempted[1].snapshot, self._table.metadata):
                attempted[0].discard()
            require_format(self._table)
            self.check_surplus()
            verdict = rule(self.held)
            if isinstance(verdict, Refused):
                raise refusal(self._name, verdict)
            if verdict is LANDED:
                return LANDED
            if tried == TRIES:
                break
            attempted = _, staged = self._stage(write)
            try:
                response = self._table.catalog.commit_table(self._table, staged.requirements, staged.updates)
            except CommitFailedException as error:
                # Not proof of failure: a retried HTTP request gets this answer after its first attempt has landed (F30).
                refused = error
                self.conflicts += 1
                continue
            except Exception as error:  # noqa: BLE001  # whatever it was, the commit may have landed: refresh
                unknown = error
                self.unknowns += 1
                continue
            before = self._table
            self._table = Table(
                before.name(), response.metadata, response.metadata_location, before.io, before.catalog, before.config
            )
            self._delete_old_metadata(before, staged)
            return staged.snapshot.snapshot_id
        if unknown is not None:
            raise CommitUnknownError(self._name, unknown) from unknown
        assert refused is not None, "otherwise it was committed"
        raise CommitConflictError(self._name, TRIES, refused)

    def _stage(self, write: Callable[[TableProgress, Stage], Staged]) -> tuple[Stage, Staged]:
        stage = Stage(self._table, self._newest, now_ms=self._now_ms, grace_ms=self._grace_ms)
        try:
            return stage, write(self.held, stage)
        except Exception as error:
            stage.discard()
            raise LakeUnavailableError(self._name, "write manifests of", error) from error

    # --- old metadata -------------------------------------------------------------------------------------------------

    def _delete_old_metadata(self, before: Table, staged: Staged) -> None:
        """Delete unreferenced metadata: metadata files at once, manifests of expired snapshots after the grace period.

        The queue is lost with the process; orphan removal finds the rest.
        """
        logged = {entry.metadata_file for entry in self._table.metadata.metadata_log}
        delete_all(before, {entry.metadata_file for entry in before.metadata.metadata_log} - logged)
        self._manifests[staged.snapshot.snapshot_id] = frozenset(one.manifest_path for one in staged.manifests)
        self._newest = {staged.snapshot.snapshot_id: staged.manifests}
        if staged.expired:
            self._enqueue_expired(before, staged)
        while self._deletions and self._deletions[0][0] <= self._now():
            delete_all(before, [self._deletions.popleft()[1]])

    def _enqueue_expired(self, before: Table, staged: Staged) -> None:
        due = self._now() + self._grace_ms / 1000
        try:
            for snapshot in (*staged.expired, *self._table.metadata.snapshots):
                if snapshot.snapshot_id not in self._manifests:
                    manifests = snapshot.manifests(before.io)
                    self._manifests[snapshot.snapshot_id] = frozenset(one.manifest_path for one in manifests)
        except Exception as error:  # noqa: BLE001  # the commit has landed; undeleted manifests are orphans
            log.warning("manifests_left_behind", table=self._name, cause=error_text(error))
            return
        live = {snapshot.snapshot_id for snapshot in self._table.metadata.snapshots}
        referenced = frozenset[str]().union(*(self._manifests[snapshot_id] for snapshot_id in live))
        expired = frozenset[str]().union(*(self._manifests[old.snapshot_id] for old in staged.expired))
        lists = [old.manifest_list for old in staged.expired]
        self._deletions.extend((due, path) for path in (*sorted(expired - referenced), *lists))
        self._manifests = {key: paths for key, paths in self._manifests.items() if key in live}

    @property
    def _name(self) -> str:
        return ".".join(self.identifier)


def require_format(table: Table) -> None:
    """Raise UnsupportedFormatError if PyIceberg cannot write a table's format version."""
    if table.metadata.format_version > FORMAT_VERSION_MAX:
        raise UnsupportedFormatError(".".join(table.name()), table.metadata.format_version)


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else -1
