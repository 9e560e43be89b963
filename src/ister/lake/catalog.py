"""The Iceberg catalog: finds or creates a topic's table, which its properties identify, not its name.

A SqlCatalog is replaced by one that caches metadata by location; PyIceberg's own reads the file twice and copies it once a
commit. A metadata file is immutable and its name is never reused, so a cached one is never stale: the catalog's pointer is
read each time. Copies of metadata share their parts, as nobody modifies a part in place.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

import structlog
from pyiceberg.catalog import TABLE_TYPE, WAREHOUSE_LOCATION, load_catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchPropertyException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.transforms import IdentityTransform
from sqlalchemy import update
from sqlalchemy.orm import Session

from ister.core.errors import IsterError
from ister.core.table.names import EPOCH, GENERATION, TOPIC, UPTO, base_of, is_of, table_names, table_of, with_number
from ister.lake.columns import METRICS, SCHEMA, SORTED_BY, SPEC, differs
from ister.lake.errors import LakeUnavailableError, OutsideWarehouseError, TableMovedError
from ister.lake.files import ROOT, SYNCED, is_empty, is_inside, is_local, of_files, open_io, require_inside, root_of
from ister.lake.snapshot import GRACE_MS, wall_ms
from ister.lake.table import LakeTable, require_format

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import CommitTableResponse, StagedTable
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.typedef import Identifier
    from sqlalchemy import ColumnElement, CursorResult

    from ister.core.names import TopicName

log = structlog.get_logger()

PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "8",
    **METRICS,
}
"""Properties of a new table. Never `commit.retry.num-retries`, with which no compaction would ever commit."""

TRIES = 8
"""Attempts to find or create a table while others take its name."""
LOCATIONS_MAX = 1000
"""Directories of one table name: of tables that were renamed, or dropped without their files."""


class LakeCatalog:
    """The tables of one catalog."""

    def __init__(self, catalog: Catalog, *, now_ms: Callable[[], int] = wall_ms, grace_ms: int = GRACE_MS) -> None:
        """`now_ms` is the clock of snapshots, `grace_ms` how long files outlive the snapshot that dropped them."""
        self.catalog = catalog
        self._now_ms = now_ms
        self._grace_ms = grace_ms
        if (root := root_of(catalog.properties)) is not None:
            catalog.properties[ROOT] = root
        if is_local(catalog.properties.get(WAREHOUSE_LOCATION, "s3://")):
            catalog.properties.setdefault(PY_IO_IMPL, SYNCED)

    @classmethod
    def open(
        cls, name: str, properties: Mapping[str, str], *, now_ms: Callable[[], int] = wall_ms, grace_ms: int = GRACE_MS
    ) -> LakeCatalog:
        """Open a catalog by its properties; a SQL catalog stores its name beside each table."""
        try:
            return cls(open_catalog(name, properties), now_ms=now_ms, grace_ms=grace_ms)
        except Exception as error:
            raise LakeUnavailableError("any", "open the catalog for", error) from error

    def table(self, topic: TopicName, generation: int) -> LakeTable:
        """Return a topic's table to append to; creates it if there is none, only once under concurrent calls."""
        base = base_of(topic)
        name = ".".join(table_of(base))
        try:
            refused: set[tuple[str, str]] = set()
            taken: set[tuple[str, str]] = set()
            for _ in range(TRIES):
                found = self._find(base, generation, taken)
                if not isinstance(found, tuple):
                    return self._checked(found, base, generation)
                try:
                    created = self._create(found, base, generation)
                except TableAlreadyExistsError:
                    # Once: another process has created it. Twice: it is no Iceberg table, but a view, for example.
                    (taken if found in refused else refused).add(found)
                    continue
                log.info("table_created", topic=str(base), table=".".join(found), generation=generation)
                return self._checked(created, base, generation)
        except (LakeUnavailableError, TableMovedError):
            raise
        except Exception as error:
            raise LakeUnavailableError(name, "find or make", error) from error
        raise LakeUnavailableError(name, "find or make", "its name is taken by others each time")

    def find(self, topic: TopicName, generation: int) -> LakeTable | None:
        """Return a topic's table to read, if there is one; creates and changes nothing."""
        base = base_of(topic)
        try:
            found = self._find(base, generation)
            return None if isinstance(found, tuple) else self._opened(found, base, generation)
        except IsterError:
            raise
        except Exception as error:
            raise LakeUnavailableError(".".join(table_of(base)), "find", error) from error

    def close(self) -> None:
        """Close the catalog."""
        self.catalog.close()

    def _find(
        self, topic: TopicName, generation: int, taken: Collection[tuple[str, str]] = ()
    ) -> Table | tuple[str, str]:
        """Return the topic's table, or the name to create it under, which is none that is taken."""
        names = plain, hashed, _, _ = table_names(topic, generation)
        owners: dict[tuple[str, str], str] = dict.fromkeys(taken, "")
        for name in names:
            table = load_iceberg(self.catalog, name)
            if table is None:
                continue
            owners[name] = table.properties.get(TOPIC, "")
            if is_of(table.properties, topic, generation):
                require_inside(table)
                return table
        if plain not in owners:
            return plain
        candidates = names[2:] if owners[plain] == str(topic) else (hashed, names[3])
        return next((name for name in candidates if name not in owners), candidates[-1])

    def _create(self, name: tuple[str, str], topic: TopicName, generation: int) -> Table:
        try:
            self.catalog.create_namespace_if_not_exists(name[0])
        except Exception:
            # Each catalog has another error for a namespace that was created concurrently.
            if not self.catalog.namespace_exists(name[0]):
                raise
        return self.catalog.create_table(
            name,
            SCHEMA,
            location=self._location(name),
            partition_spec=SPEC,
            properties={**PROPERTIES, TOPIC: str(topic), GENERATION: str(generation), EPOCH: "0", UPTO: "{}"},
        )

    def _location(self, name: tuple[str, str]) -> str | None:
        """Return `{warehouse}/{namespace}/{table}`; None with a REST catalog, which chooses the location.

        `{table}-2` and so on when the directory has the metadata of a table that was renamed, or dropped without its files.
        Two tables in one directory would delete each other's files as orphans.
        """
        warehouse = self.catalog.properties.get(WAREHOUSE_LOCATION)
        if warehouse is None or self.catalog.properties.get("type") == "rest":
            return None
        parent = f"{warehouse.rstrip('/')}/{name[0]}"
        plain = f"{parent}/{name[1]}"
        files = open_io(of_files(self.catalog.properties), plain)
        for place in (plain, *(f"{parent}/{with_number(name[1], number)}" for number in range(2, LOCATIONS_MAX))):
            if is_empty(files, f"{place}/metadata"):
                return place
        raise LakeUnavailableError(
            ".".join(name), "find a directory for", f"{plain} to {plain}-{LOCATIONS_MAX - 1} are taken"
        )

    def _checked(self, table: Table, topic: TopicName, generation: int) -> LakeTable:
        require_format(table)
        if wrong := differs(table.schema()):
            raise TableMovedError(".".join(table.name()), wrong)
        if table.sort_order().is_unsorted:
            with suppress(CommitFailedException), table.update_sort_order() as order:  # or another process has set it
                for column in SORTED_BY:
                    order.asc(column, IdentityTransform())
            table = self.catalog.load_table(table.name())
        found = self._opened(table, topic, generation)
        found.check_surplus()
        return found

    def _opened(self, table: Table, topic: TopicName, generation: int) -> LakeTable:
        return LakeTable(table, topic, generation, now_ms=self._now_ms, grace_ms=self._grace_ms)


class LazyLakeCatalog:
    """A catalog that is opened on first use, so that a broker starts while the catalog is down."""

    def __init__(self, name: str, properties: Mapping[str, str]) -> None:
        self._open = partial(LakeCatalog.open, name, properties)
        self._lake: LakeCatalog | None = None
        self._lock = Lock()

    def find(self, topic: TopicName, generation: int) -> LakeTable | None:
        """Return a topic's table if there is one; LakeUnavailableError when the catalog cannot be opened."""
        with self._lock:
            self._lake = self._lake or self._open()
        return self._lake.find(topic, generation)

    def close(self) -> None:
        """Close the catalog."""
        with self._lock:
            if self._lake is not None:
                self._lake.close()
                self._lake = None


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open a catalog by its properties."""
    found = load_catalog(name, **properties)
    if type(found) is not SqlCatalog:
        return found
    found.close()
    return CachingSqlCatalog(found.name, **found.properties)


def load_iceberg(catalog: Catalog, name: Identifier | str) -> Table | None:
    """Return an Iceberg table; None when there is nothing of that name, or a view or another engine's table."""
    try:
        return catalog.load_table(name)
    except NoSuchTableError:  # also for entries of another type in Glue
        return None
    except NoSuchPropertyException as error:
        if TABLE_TYPE not in str(error):
            raise
        return None


def replace_pointer(catalog: SqlCatalog, name: Identifier, current: str, new: str, previous: str | None) -> bool:
    """Point a SQL catalog at another metadata file of a table; return False if it does not point at `current` any more."""
    row = [*table_row(catalog, name), IcebergTables.metadata_location == current]
    chosen = {"metadata_location": new, "previous_metadata_location": previous}
    with Session(catalog.engine) as session:
        changed = session.execute(update(IcebergTables).where(*row).values(chosen))
        session.commit()
    return cast("CursorResult[None]", changed).rowcount == 1


def table_row(catalog: SqlCatalog, name: Identifier) -> list[ColumnElement[bool]]:
    """Return the condition that selects a table's row in a SQL catalog."""
    return [
        IcebergTables.catalog_name == catalog.name,
        IcebergTables.table_namespace == ".".join(name[:-1]),
        IcebergTables.table_name == name[-1],
    ]


class SharedMetadata(TableMetadataV2):
    """Metadata whose copies share its parts, also where PyIceberg requests a deep copy."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> SharedMetadata:  # noqa: ARG002  # the library's signature
        """Return a copy with some parts replaced."""
        return super().model_copy(update=update)


class CachingSqlCatalog(SqlCatalog):
    """A SqlCatalog that caches the metadata that this process still refers to, by location."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._known: WeakValueDictionary[str, SharedMetadata] = WeakValueDictionary()

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Commit as PyIceberg does, and cache the new metadata."""
        response = super().commit_table(table, requirements, updates)
        if isinstance(response.metadata, SharedMetadata):
            self._known[response.metadata_location] = response.metadata
        return response

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        """Stage the next metadata, never with an earlier timestamp than the current one, though the clock was set back.

        Java refuses a table whose metadata log is not in order. A snapshot has its own timestamp; this is for updates
        without one.
        """
        staged = super()._update_and_stage_table(current_table, table_identifier, requirements, updates)
        if current_table is not None and staged.metadata.last_updated_ms < current_table.metadata.last_updated_ms:
            last_ms = current_table.metadata.last_updated_ms
            staged.metadata = staged.metadata.model_copy(update={"last_updated_ms": last_ms})
        return staged

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        """Return the table of a catalog row; PyIceberg has no other hook between the row and its metadata file."""
        location = orm_table.metadata_location or ""
        name = (*self.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name)
        known = self._known.get(location)
        if known is not None:
            return Table(name, known, location, self._load_file_io(known.properties, location), self)
        try:
            table = super()._convert_orm_to_iceberg(orm_table)
        except FileNotFoundError:
            root = root_of(self.properties)
            if root is None or is_inside(location, root):
                raise
            raise OutsideWarehouseError(".".join(name), location.rpartition("/")[0], root) from None
        if type(table.metadata) is TableMetadataV2:
            known = SharedMetadata.model_construct(table.metadata.model_fields_set, **dict(table.metadata))
            self._known[location] = table.metadata = known
        return table
