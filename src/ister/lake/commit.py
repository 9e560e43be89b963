"""A topic's table: found or made, claimed by its owner, and appended to exactly once.

A commit is one transaction: the files, and how far the table holds the topic. It asserts the snapshot on which it was
decided and is never repeated by the library; after a conflict or a lost answer the table is read and asked again.
Data files that were once offered are deleted by nobody here: an answer may be lost, and they may be in the table.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Literal

import structlog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import TOTAL_EQUALITY_DELETES, TOTAL_POSITION_DELETES, TOTAL_RECORDS, ancestors_of

from ister.core.publish import (
    COMMIT,
    LANDED,
    Decision,
    Held,
    Offer,
    Refused,
    after,
    check_summary,
    check_surplus,
    decide,
    disowned,
    misfit,
)
from ister.core.tables import EPOCH, FROM, GENERATION, TOPIC, UPTO, base_of, offsets_of, offsets_text
from ister.lake.errors import (
    FORMAT_VERSION_MAX,
    CommitConflictError,
    CommitMisplacedError,
    CommitUnknownError,
    LakeUnavailableError,
    TableMovedError,
    UnsupportedFormatError,
    refusal,
)
from ister.lake.files import of_files, require_inside
from ister.lake.parquet import data_file
from ister.lake.snapshot import GRACE_MS, Stage, delete_all, is_superseded, wall_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.schema import Schema
    from pyiceberg.table.snapshots import Snapshot

    from ister.core.names import TopicName
    from ister.core.publish import Verdict
    from ister.lake.evolve import ColumnChange
    from ister.lake.parquet import Written
    from ister.lake.snapshot import Staged

log = structlog.get_logger()

TRIES = 8
"""How often a commit is tried when others come first: a compaction does so now and then, not all the time."""


class LakeTable:
    """One topic's table, as it was when it was last read."""

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
        """`now` tells how long files have lingered, `now_ms` stamps snapshots and tells their age.

        `grace_ms` is how long what the table has let go stays, for queries that are under way.
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
        self._leaving: deque[tuple[float, str]] = deque()
        self.conflicts = self.unknowns = 0
        """How often another commit came first, and how often the catalog did not say whether it took ours."""
        self.check()

    @property
    def identifier(self) -> tuple[str, ...]:
        """Namespace and name in the catalog."""
        return self._table.name()

    @property
    def location(self) -> str:
        """Where its files are."""
        return self._table.location()

    @property
    def schema(self) -> Schema:
        """Its columns."""
        return self._table.schema()

    @property
    def files(self) -> FileIO:
        """Its files."""
        return self._table.io

    @property
    def snapshot(self) -> Snapshot | None:
        """What it held when it was last read."""
        return self._table.current_snapshot()

    @property
    def metadata_files(self) -> tuple[str, ...]:
        """What leads to its manifests: the metadata file that was read last, and the list in the snapshot that it names."""
        snapshot = self.snapshot
        return (self._table.metadata_location, *(() if snapshot is None else (snapshot.manifest_list,)))

    def snapshot_of(self, snapshot_id: int) -> Snapshot | None:
        """Return an older state of it, if that is still known."""
        return self._table.snapshot_by_id(snapshot_id)

    @property
    def io_properties(self) -> dict[str, str]:
        """What its files need to be opened, and nothing that opens the catalog."""
        return of_files(self._table.io.properties)

    @property
    def held(self) -> Held:
        """What it says of itself."""
        properties = self._table.properties
        return Held(
            topic=properties.get(TOPIC, ""),
            generation=_number(properties.get(GENERATION)),
            epoch=_number(properties.get(EPOCH)),
            upto=offsets_of(properties.get(UPTO, "{}"), self._name),
        )

    def upto(self, partition: int) -> int:
        """Return the offset below which it holds every message of a partition."""
        return self.held.upto.get(partition, 0)

    def refresh(self) -> None:
        """Read it anew; TableMovedError when it is not as it was left."""
        try:
            fresh = self._table.catalog.load_table(self.identifier)
        except NoSuchTableError:
            raise TableMovedError(self._name, "it is not in the catalog any more") from None
        except Exception as error:
            raise LakeUnavailableError(self._name, "read", _said(error)) from error
        if fresh.metadata.table_uuid != self._table.metadata.table_uuid:
            raise TableMovedError(self._name, "it was dropped, and another one has its name")
        self._table = fresh
        self.check()

    def check(self) -> None:
        """Compare what it says of itself with its snapshots, and where it lies with the warehouse; TableMovedError."""
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
        """Compare how far it goes with how many rows it has; TableMovedError when someone else has appended to it."""
        records, deletes = self._rows()
        if wrong := check_surplus(self.held.upto, records=records, deletes=deletes):
            raise TableMovedError(self._name, wrong)

    def _rows(self) -> tuple[int, int]:
        """Return the rows of its data files, and how many of them its delete files may take away."""
        snapshot = self.snapshot
        totals = {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties
        deletes = int(totals.get(TOTAL_POSITION_DELETES, 0)) + int(totals.get(TOTAL_EQUALITY_DELETES, 0))
        return int(totals.get(TOTAL_RECORDS, 0)), deletes

    def claim(self, epoch: int) -> None:
        """Become the owner: whoever was it before cannot commit any more, not even what is under way.

        It is an empty snapshot, because the assertion of a commit sees snapshots, and no mere property.
        """

        def judge(held: Held) -> Verdict:
            refused = disowned(held, self._topic, self._generation, epoch)
            return refused or (LANDED if held.epoch == epoch else COMMIT)

        def stage(held: Held, stage: Stage) -> Staged:
            summary = {UPTO: offsets_text(held.upto), EPOCH: str(epoch)}
            return stage.write([], summary, {EPOCH: str(epoch)})

        if self._push(judge, stage) is not LANDED:
            log.info("table_claimed", table=self._name, epoch=epoch)
        self._epoch = epoch

    def commit_add_files(
        self, files: list[Written], spans: dict[int, tuple[int, int]]
    ) -> int | Literal[Decision.LANDED]:
        """Append files that hold exactly these offsets of each partition; returns the snapshot, or that it was there.

        CommitRefusedError: stop, another owner has it. TableMovedError: this topic stops. CommitMisplacedError: plan again.
        CommitUnknownError: offer the same again.
        """
        if self._epoch is None:
            raise CommitMisplacedError(self._name, "it was not claimed")
        if refused := misfit(spans, [written.run() for written in files]):
            raise refusal(self._name, refused)
        offer = Offer(self._topic, self._generation, self._epoch, spans)

        def stage(held: Held, stage: Stage) -> Staged:
            upto = offsets_text(after(held, offer))
            summary = {
                FROM: offsets_text({partition: start for partition, (start, _) in spans.items()}),
                UPTO: upto,
                EPOCH: str(offer.epoch),
            }
            entries = [data_file(written, stage.spec.spec_id) for written in files]
            return stage.write(entries, summary, {UPTO: upto})

        return self._push(lambda held: decide(held, offer), stage)

    def change_columns(self, changes: Sequence[ColumnChange]) -> None:
        """Add or widen columns, in a commit of its own; CommitFailedException when another change came first."""
        update = self._table.update_schema()
        for path, field, is_new in changes:
            if is_new:
                update.add_column(path, field.field_type, doc=field.doc)
            else:
                update.update_column(path, field_type=field.field_type)
        update.commit()

    # --- one transaction ----------------------------------------------------------------------------------------------

    def _push(
        self, judge: Callable[[Held], Verdict], write: Callable[[Held, Stage], Staged]
    ) -> int | Literal[Decision.LANDED]:
        """Read the table, judge, commit once; as often as others come first, and never without judging again."""
        offered: tuple[Stage, Staged] | None = None
        refused: Exception | None = None
        unknown: Exception | None = None
        for tried in range(TRIES + 1):
            try:
                self.refresh()
            except LakeUnavailableError as error:
                if (said := unknown or refused) is not None:
                    raise CommitUnknownError(self._name, _said(said)) from error
                raise
            if offered is not None and is_superseded(offered[1].snapshot, self._table.metadata):
                offered[0].discard()
            require_format(self._table)
            self.check_surplus()
            verdict = judge(self.held)
            if isinstance(verdict, Refused):
                raise refusal(self._name, verdict)
            if verdict is LANDED:
                return LANDED
            if tried == TRIES:
                break
            offered = _, staged = self._stage(write)
            try:
                response = self._table.catalog.commit_table(self._table, staged.requirements, staged.updates)
            except CommitFailedException as error:
                # Not certain: it is also what a client is told who sent it twice, after the first has landed (F30).
                refused = error
                self.conflicts += 1
                continue
            except Exception as error:  # noqa: BLE001  # whatever it was, the commit may have landed: look
                unknown = error
                self.unknowns += 1
                continue
            before = self._table
            self._table = Table(
                before.name(), response.metadata, response.metadata_location, before.io, before.catalog, before.config
            )
            self._tidy(before, staged)
            return staged.snapshot_id
        if unknown is not None:
            raise CommitUnknownError(self._name, _said(unknown)) from unknown
        assert refused is not None, "else it was committed"
        raise CommitConflictError(self._name, TRIES, _said(refused))

    def _stage(self, write: Callable[[Held, Stage], Staged]) -> tuple[Stage, Staged]:
        stage = Stage(self._table, self._newest, now_ms=self._now_ms, grace_ms=self._grace_ms)
        try:
            return stage, write(self.held, stage)
        except Exception as error:
            stage.discard()
            raise LakeUnavailableError(self._name, "write manifests of", _said(error)) from error

    # --- what the table has let go ------------------------------------------------------------------------------------

    def _tidy(self, before: Table, staged: Staged) -> None:
        """Delete metadata that nothing refers to: of old versions at once, of expired snapshots after a while.

        What is remembered is lost with the process; removing orphans finds the rest.
        """
        logged = {entry.metadata_file for entry in self._table.metadata.metadata_log}
        delete_all(before, {entry.metadata_file for entry in before.metadata.metadata_log} - logged)
        self._manifests[staged.snapshot_id] = frozenset(one.manifest_path for one in staged.manifests)
        self._newest = {staged.snapshot_id: staged.manifests}
        if staged.expired:
            self._let_go(before, staged)
        while self._leaving and self._leaving[0][0] <= self._now():
            delete_all(before, [self._leaving.popleft()[1]])

    def _let_go(self, before: Table, staged: Staged) -> None:
        due = self._now() + self._grace_ms / 1000
        try:
            for snapshot in (*staged.expired, *self._table.metadata.snapshots):
                if snapshot.snapshot_id not in self._manifests:
                    manifests = snapshot.manifests(before.io)
                    self._manifests[snapshot.snapshot_id] = frozenset(one.manifest_path for one in manifests)
        except Exception as error:  # noqa: BLE001  # the commit has landed; what is not tidied now is an orphan
            log.warning("manifests_left_behind", table=self._name, cause=_said(error))
            return
        live = {snapshot.snapshot_id for snapshot in self._table.metadata.snapshots}
        kept = frozenset[str]().union(*(self._manifests[snapshot_id] for snapshot_id in live))
        gone = frozenset[str]().union(*(self._manifests[old.snapshot_id] for old in staged.expired)) - kept
        lists = [old.manifest_list for old in staged.expired]
        self._leaving.extend((due, path) for path in (*sorted(gone), *lists))
        self._manifests = {key: paths for key, paths in self._manifests.items() if key in live}

    @property
    def _name(self) -> str:
        return ".".join(self.identifier)


def require_format(table: Table) -> None:
    """Raise UnsupportedFormatError when a table has a format version that cannot be written."""
    if table.metadata.format_version > FORMAT_VERSION_MAX:
        raise UnsupportedFormatError(".".join(table.name()), table.metadata.format_version)


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else -1


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
