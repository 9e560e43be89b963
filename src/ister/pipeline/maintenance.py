"""Table maintenance by Iceberg's procedures: compact, rewrite manifests, expire snapshots, remove orphans.

Each is a commit that may conflict with those of the writer: it then fails, and the next round tries again. On a local warehouse
what Java wrote is synced after each procedure, however it ended, before another relies on it.
"""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import ManifestContent

from ister.core.errors import BusyError, InvalidConfigError, IsterError, NotFoundError, UnknownOutcomeError
from ister.core.table.maintenance import (
    FILES_MIN,
    GROUP_TARGETS_MIN,
    LARGE,
    ORPHANS_EVERY_MS,
    SMALL,
    LiveFile,
    Procedure,
    TableState,
    due,
    expirable,
    overlap,
    spelling,
    to_compact,
)
from ister.core.table.names import TOPIC
from ister.lake.catalog import load_iceberg
from ister.lake.errors import OutsideWarehouseError, error_text
from ister.lake.files import PATH_PROPERTIES, is_inside, is_local, require_inside, root_of, sync_path
from ister.lake.snapshot import lineage_of
from ister.pipeline.java import cause_line
from ister.pipeline.session import MAINTENANCE, in_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.typedef import Identifier
    from pyspark.sql import Row, SparkSession

    from ister.config.lake_models import Maintenance

log = structlog.get_logger()

GRACE_S = 3.0
"""How long the end of the process waits for a procedure whose jobs were cancelled."""

# A table may be rewritten into a different order by its owner; the reader needs none (docs/adr), pruning likes this one.
ORDER = "`partition` ASC NULLS FIRST, topic_offset ASC NULLS FIRST"
GROUP_BYTES_MAX = 1 << 30
ORPHAN_HOURS_MIN = 24
ORPHANS_AFTER_START_MS = 3_600_000
CLOCKS_S = 5.0
"""How far the clock of the disk may be behind that of the process."""
_CONFLICT = re.compile(r"CommitFailedException|ValidationException|Cannot commit|Stale table metadata")
_UNKNOWN = re.compile(r"CommitStateUnknownException")


class _ProcedureError(Exception):
    """What the errors of a procedure say; not a family of its own."""

    TEXT = ""

    def __init__(self, table: str, procedure: Procedure, cause: str) -> None:
        self.table, self.procedure, self.cause = table, procedure, cause
        super().__init__(f"{procedure.value} of table {table}{self.TEXT.format(cause=cause)}")


class MaintenanceConflictError(_ProcedureError, BusyError):
    """Another commit came first; the table is as that one left it."""

    TEXT = ": others changed it meanwhile ({cause}); it is as they left it, the next round tries again"


class MaintenanceFailedError(_ProcedureError, BusyError):
    """A procedure failed; the table is as it was."""

    TEXT = " failed: {cause}; the table is as it was, try again later"


class MaintenanceUnknownError(_ProcedureError, UnknownOutcomeError):
    """The catalog did not say whether it took the commit."""

    TEXT = " may or may not have been committed ({cause}); look at it"


class NothingRewrittenError(BusyError):
    """Compaction rewrote nothing although files need it, which it does when its commits fail silently."""

    def __init__(self, table: str, files: int) -> None:
        self.table, self.files = table, files
        super().__init__(
            f"compaction of table {table} rewrote none of {files:,} files that need it; see that the table does not set "
            "commit.retry.num-retries, and try again"
        )


@dataclass(frozen=True, slots=True)
class Result:
    """What a procedure did to a table, or would do: `removed` and `added` are files, `size` the bytes of the removed.

    Expire counts `snapshots`; `removed` are their data and metadata files, whose size is not known.
    """

    table: str
    procedure: Procedure
    dry_run: bool
    removed: int = 0
    added: int = 0
    size: int = 0
    snapshots: int = 0
    spared: int = 0
    """Files that were listed as orphans and are live under another spelling; never removed."""


class Upkeep:
    """The maintenance of one catalog's tables, by the rules of the configuration."""

    def __init__(self, spark: SparkSession, catalog: Catalog, rules: Maintenance, now_ms: Callable[[], int]) -> None:
        self._spark = spark
        self._catalog = catalog
        self._rules = rules
        self._now_ms = now_ms
        self._done_ms: dict[str, dict[Procedure, int]] = {}
        self._synced: set[str] = set()
        # A start is busy enough; listing whole tables comes later.
        self._at_start = {Procedure.ORPHANS: now_ms() - ORPHANS_EVERY_MS + ORPHANS_AFTER_START_MS}

    def round(self, names: Iterable[str]) -> Iterator[Result | IsterError]:
        """Run the procedures that tables need now; yield their results, or the error that ended a table's."""
        for name in names:
            try:
                for procedure in self.due(name):
                    yield self.run(name, procedure)
            except (BusyError, NotFoundError, UnknownOutcomeError, OutsideWarehouseError) as error:
                yield error

    def due(self, name: str) -> list[Procedure]:
        """Return the procedures that a table like `default.orders` needs now."""
        rules = self._rules
        return due(
            state_of(self._load(name)),
            target_bytes=rules.target_file_bytes,
            keep=rules.keep_snapshots,
            grace_ms=rules.file_grace_minutes * 60_000,
            now_ms=self._now_ms(),
            done_ms=self._at_start | self._done_ms.get(name, {}),
        )

    def run(self, name: str, procedure: Procedure, *, dry_run: bool = False) -> Result:
        """Run one procedure; a dry run returns what it would do."""
        run = {
            Procedure.COMPACT: self._compact,
            Procedure.MANIFESTS: self._manifests,
            Procedure.EXPIRE: self._expire,
            Procedure.ORPHANS: self._orphans,
        }[procedure]
        location = self._load(name).location()
        start_s = time.time()
        try:
            with in_pool(self._spark, MAINTENANCE):
                result = run(Result(name, procedure, dry_run))
        finally:
            if not dry_run:
                self._sync(name, procedure, location, start_s)  # a failed procedure may have been committed
        if not dry_run:
            self._done_ms.setdefault(name, {})[procedure] = self._now_ms()
            counts = {"removed": result.removed, "added": result.added, "bytes": result.size}
            log.info("table_maintained", table=name, procedure=procedure.value, **counts)
        return result

    def _sync(self, name: str, procedure: Procedure, location: str, start_s: float) -> None:
        """Sync files since `start_s`; the first time all files, because another process may have ended before it did."""
        since_s = start_s - CLOCKS_S if name in self._synced else 0.0
        self._synced.discard(name)
        try:
            sync_written(location, since_s)
        except OSError as error:
            raise MaintenanceUnknownError(name, procedure, f"what it wrote could not be synced: {error}") from error
        self._synced.add(name)

    def _compact(self, result: Result) -> Result:
        target_bytes = self._rules.target_file_bytes
        before = to_compact(state_of(self._load(result.table)).files, target_bytes)
        if result.dry_run or not before.files:
            return replace(result, removed=before.files, size=before.size)
        options = {
            "target-file-size-bytes": target_bytes,
            "min-file-size-bytes": int(SMALL * target_bytes),
            "max-file-size-bytes": int(LARGE * target_bytes),
            "min-input-files": FILES_MIN,
            "max-file-group-size-bytes": max(GROUP_BYTES_MAX, GROUP_TARGETS_MIN * target_bytes),
            "max-concurrent-file-group-rewrites": 1,
            "partial-progress.enabled": "false",  # with it a failed commit is not an error
        }
        pairs = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
        [row] = self._call(
            result, "rewrite_data_files", f"strategy => 'sort', sort_order => '{ORDER}', options => map({pairs})"
        )
        if not row.rewritten_data_files_count:
            raise NothingRewrittenError(result.table, before.files)
        removed, added = row.rewritten_data_files_count, row.added_data_files_count
        return replace(result, removed=removed, added=added, size=row.rewritten_bytes_count)

    def _manifests(self, result: Result) -> Result:
        before = state_of(self._load(result.table)).manifests
        if result.dry_run or before < 2:
            return replace(result, removed=before if before > 1 else 0)
        [row] = self._call(result, "rewrite_manifests", "use_caching => false")
        return replace(result, removed=row.rewritten_manifests_count, added=row.added_manifests_count)

    def _expire(self, result: Result) -> Result:
        table = self._load(result.table)
        rules, state = self._rules, state_of(table)
        ids = expirable(
            state.lineage,
            named=state.named,
            current=state.current,
            keep=rules.keep_snapshots,
            grace_ms=rules.file_grace_minutes * 60_000,
            now_ms=self._now_ms(),
        )
        result = replace(result, snapshots=len(ids))
        if result.dry_run or not ids:
            return result
        _require_files_inside(table, ids)
        # By number alone: the age of a snapshot does not tell when its files left the table.
        [row] = self._call(
            result,
            "expire_snapshots",
            "older_than => TIMESTAMP '1970-01-01 00:00:00', retain_last => 1, stream_results => true, "
            f"snapshot_ids => array({', '.join(f'{number}L' for number in ids)})",
        )
        return replace(result, removed=sum(count or 0 for count in row.asDict().values()))

    def _orphans(self, result: Result) -> Result:
        hours = self._rules.orphan_hours
        if hours < ORPHAN_HOURS_MIN:
            raise InvalidConfigError(
                "orphan_hours", f"must be at least {ORPHAN_HOURS_MIN}; a commit under way has files too"
            )
        older_than = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self._now_ms() / 1000 - hours * 3600))
        # Of a store it is the catalog's own files that list: Hadoop knows no s3, gs or abfss without jars of its own.
        by_prefix = "false" if is_local(self._load(result.table).location()) else "true"
        rows = self._call(
            result,
            "remove_orphan_files",
            f"older_than => TIMESTAMP '{older_than}', dry_run => true, "
            # Files that differ from a live one by scheme or host alone are ignored.
            f"prefix_mismatch_mode => 'IGNORE', equal_schemes => map('s3a,s3n', 's3'), prefix_listing => {by_prefix}",
        )
        # Loaded after the listing, so that a file which has been committed meanwhile counts as live.
        table = self._load(result.table)
        live = {spelling(location) for location in reachable(table)}
        listed = [row.orphan_file_location for row in rows]
        orphans = [location for location in listed if spelling(location) not in live]
        if orphans:
            for other in self._neighbours(table):
                live |= {spelling(location) for location in reachable(other)}
            orphans = [location for location in orphans if spelling(location) not in live]
        size = 0
        for location in orphans:
            with suppress(FileNotFoundError):  # deleted by a concurrent commit
                size += len(table.io.new_input(location))
                if not result.dry_run:
                    table.io.delete(location)
                    if (path := Path(spelling(location))).is_absolute():  # Hadoop writes a checksum beside a local file
                        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        return replace(result, removed=len(orphans), size=size, spared=len(listed) - len(orphans))

    def _neighbours(self, table: Table) -> Iterator[Table]:
        """Yield the other tables whose directories overlap with this one's, which happens when tables are renamed.

        Raise if one cannot be read: its files are not known.
        """
        for name in names_of(self._catalog):
            if name == table.name():
                continue
            try:
                other = load_iceberg(self._catalog, name)
            except Exception as error:
                cause = f"table {'.'.join(name)} cannot be read ({error_text(error)}), and may have files there"
                raise MaintenanceFailedError(".".join(table.name()), Procedure.ORPHANS, cause) from error
            if other is not None and any(overlap(one, place) for one in places_of(table) for place in places_of(other)):
                yield other

    def _load(self, name: str) -> Table:
        try:
            table = self._catalog.load_table(name)
        except NoSuchTableError:
            raise NotFoundError(f"there is no table {name}; `ister pipeline status` lists what there is") from None
        require_inside(table)
        return table

    def _call(self, result: Result, procedure: str, arguments: str) -> list[Row]:
        """Call one of Iceberg's procedures; map Spark's exceptions to the errors of maintenance."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415
        from pyspark.errors import PySparkException  # noqa: PLC0415  # Spark is loaded by now

        call = f"{self._catalog.name}.system.{procedure}(table => {_quoted(result.table)}, {arguments})"
        try:
            return self._spark.sql(f"CALL {call}").collect()
        except (PySparkException, Py4JJavaError) as error:
            text = str(error)
        about = result.table, result.procedure, cause_line(text)
        if _UNKNOWN.search(text):
            raise MaintenanceUnknownError(*about)
        raise MaintenanceConflictError(*about) if _CONFLICT.search(text) else MaintenanceFailedError(*about)


def tables_of(catalog: Catalog) -> Iterator[str]:
    """Return the names of the tables of topics; other tables of the catalog are not maintained."""
    for namespace in sorted(catalog.list_namespaces()):
        for name in sorted(catalog.list_tables(namespace)):
            try:
                table = load_iceberg(catalog, name)
            except Exception as error:  # noqa: BLE001  # a table that cannot be read stops no other
                log.warning("table_not_read", table=".".join(name), cause=error_text(error))
                continue
            if table is not None and TOPIC in table.properties:
                yield ".".join(name)


def names_of(catalog: Catalog, below: Identifier = ()) -> Iterator[Identifier]:
    """Return the names of all tables, in namespaces of any depth."""
    for namespace in catalog.list_namespaces(below) if below else catalog.list_namespaces():
        if namespace[: len(below)] == below != namespace:
            yield from catalog.list_tables(namespace)
            yield from names_of(catalog, namespace)


def places_of(table: Table) -> set[str]:
    """Return the directories of a table's files, in canonical spelling."""
    properties = table.properties
    named = [properties[key] for key in PATH_PROPERTIES if key in properties]
    return {
        spelling(place).rstrip("/") for place in (table.location(), table.metadata_location.rpartition("/")[0], *named)
    }


def state_of(table: Table) -> TableState:
    """Return the state that the maintenance rules need, from the table's metadata and manifests."""
    snapshot = table.current_snapshot()
    manifests = [] if snapshot is None else snapshot.manifests(table.io)
    files = [
        LiveFile(repr(entry.data_file.partition), entry.data_file.file_size_in_bytes)
        for manifest in manifests
        if manifest.content == ManifestContent.DATA
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    ]
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    current = table.metadata.current_snapshot_id
    return TableState(files, len(manifests), lineage_of(table.metadata.snapshots), named, current)


def reachable(table: Table) -> Iterator[str]:
    """Return every file that the table's metadata references, as it is spelt there."""
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (one.statistics_path for one in (*metadata.statistics, *metadata.partition_statistics))
    yield from (snapshot.manifest_list for snapshot in metadata.snapshots)
    yield from _listed(table, metadata.snapshots)


def _listed(table: Table, snapshots: Iterable[Snapshot]) -> Iterator[str]:
    """Yield the manifests of snapshots, each once, and the files that they list."""
    manifests = {one.manifest_path: one for snapshot in snapshots for one in snapshot.manifests(table.io)}
    for path, manifest in manifests.items():
        yield path
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield entry.data_file.file_path


def _require_files_inside(table: Table, snapshot_ids: Iterable[int]) -> None:
    """Raise OutsideWarehouseError when expiring snapshots would delete a file outside of the local warehouse."""
    root = root_of(table.catalog.properties)
    if root is None:
        return
    snapshots = [snapshot for one in snapshot_ids if (snapshot := table.snapshot_by_id(one)) is not None]
    for directory in {file.rpartition("/")[0] for file in _listed(table, snapshots)}:
        if not is_inside(directory, root):
            raise OutsideWarehouseError(".".join(table.name()), directory, root)


def sync_written(location: str, since_s: float) -> int:
    """Sync the files of a local table since `since_s`, and its directories; return how many files."""
    if not spelling(location).startswith("/"):
        return 0
    synced = 0
    for directory, _, names in os.walk(spelling(location)):
        for name in names:
            path = Path(directory) / name
            try:
                if path.stat().st_mtime < since_s:
                    continue
                sync_path(path)
            except FileNotFoundError:  # deleted by a concurrent commit
                continue
            synced += 1
        sync_path(Path(directory))
    return synced


def _quoted(name: str) -> str:
    parts = ".".join(f"`{part.replace('`', '``')}`" for part in name.split("."))
    escaped = parts.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


class Schedule:
    """Rounds of maintenance in a thread, one each interval, the first after one: a start is busy enough.

    Micro-batches never wait for it. A failure with a table is logged and retried by the next round; none ends the pipeline.
    """

    def __init__(self, spark: SparkSession, catalog: Catalog, upkeep: Upkeep, interval_s: float) -> None:
        self._spark = spark
        self._catalog = catalog
        self._upkeep = upkeep
        self._interval_s = interval_s
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ister-maintenance", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and cancel its procedure, which then has not changed its table."""
        self._ending.set()
        if self._thread.is_alive():
            self._spark.sparkContext.cancelAllJobs()  # micro-batches have ended, so these are the procedure's
            self._thread.join(GRACE_S)

    def round(self) -> None:
        """Run the procedures that tables need now; a table that cannot be maintained stops no other."""
        try:
            names = list(tables_of(self._catalog))
        except Exception as error:  # noqa: BLE001  # the root of a thread: the next round tries again
            log.warning("maintenance_waits", cause=error_text(error))
            return
        done = failed = 0
        for name in names:
            try:
                for outcome in self._upkeep.round([name]):
                    if self._ending.is_set():
                        return
                    if isinstance(outcome, IsterError):
                        failed += 1
                        log.warning("maintenance_failed", table=name, cause=str(outcome))
                    else:
                        done += 1
            except Exception as error:  # noqa: BLE001  # the root of a thread: the next round tries again
                if self._ending.is_set():
                    return
                failed += 1
                log.error("maintenance_failed", table=name, cause=error_text(error))  # noqa: TRY400  # an event, no traceback
        if done or failed:
            log.info("maintenance_round", tables=len(names), procedures=done, failed=failed)

    def _run(self) -> None:
        while not self._ending.wait(self._interval_s):
            self.round()
