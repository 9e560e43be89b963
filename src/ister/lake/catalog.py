"""PyIceberg's SQL catalog, without reading and copying what is known: a commit would do both, twice and once.

A metadata file never changes, and its name is never used again: who holds what was in it need not read it again. Where
the catalog points is asked each time. Metadata share their parts with those that follow from them, as nobody changes
a part in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from pyiceberg.catalog import TABLE_TYPE, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchPropertyException, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.sql import IcebergTables
    from pyiceberg.table import CommitTableResponse, StagedTable
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.typedef import Identifier


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open a catalog by its properties."""
    found = load_catalog(name, **properties)
    if type(found) is not SqlCatalog:
        return found
    found.close()
    return KnowingCatalog(found.name, **found.properties)


def load_iceberg(catalog: Catalog, name: Identifier | str) -> Table | None:
    """Return an Iceberg table; None when there is nothing of that name, or a view or another engine's table."""
    try:
        return catalog.load_table(name)
    except NoSuchTableError:  # also what Glue has of another type
        return None
    except NoSuchPropertyException as error:
        if TABLE_TYPE not in str(error):
            raise
        return None


class SharedMetadata(TableMetadataV2):
    """Metadata whose copies share its parts, also where the library would copy these too."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> SharedMetadata:  # noqa: ARG002  # the library's signature
        """Return a copy with some parts replaced."""
        return super().model_copy(update=update)


class KnowingCatalog(SqlCatalog):
    """A SQL catalog that knows the metadata that someone in this process holds."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._known: WeakValueDictionary[str, SharedMetadata] = WeakValueDictionary()

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Commit as the library does; what was written is known from now on."""
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
        """Make what comes next of a table; never stamped before what it follows, though the clock was set back.

        Java refuses a table whose metadata are not in order. A snapshot brings its own stamp; this is for what has none.
        """
        staged = super()._update_and_stage_table(current_table, table_identifier, requirements, updates)
        if current_table is not None and staged.metadata.last_updated_ms < current_table.metadata.last_updated_ms:
            last_ms = current_table.metadata.last_updated_ms
            staged.metadata = staged.metadata.model_copy(update={"last_updated_ms": last_ms})
        return staged

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        """Make a table of a catalog's row; the library has no other place between the row and its file."""
        location = orm_table.metadata_location or ""
        known = self._known.get(location)
        if known is not None:
            name = (*self.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name)
            return Table(name, known, location, self._load_file_io(known.properties, location), self)
        table = super()._convert_orm_to_iceberg(orm_table)
        if type(table.metadata) is TableMetadataV2:
            known = SharedMetadata.model_construct(table.metadata.model_fields_set, **dict(table.metadata))
            self._known[location] = table.metadata = known
        return table
