"""The catalog: which table is a topic's, found by what it says of itself, or made."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING

import structlog
from pyiceberg.catalog import WAREHOUSE_LOCATION
from pyiceberg.exceptions import (
    CommitFailedException,
    TableAlreadyExistsError,
)
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.transforms import IdentityTransform

from ister.core.errors import IsterError
from ister.core.tables import EPOCH, GENERATION, TOPIC, UPTO, base_of, table_of, with_generation, with_hash, with_number
from ister.lake.catalog import load_iceberg, open_catalog
from ister.lake.commit import LakeTable, require_format
from ister.lake.errors import LakeUnavailableError, TableMovedError
from ister.lake.files import ROOT, SYNCED, is_empty, is_local, of_files, open_io, require_inside, root_of
from ister.lake.schema import METRICS, SCHEMA, SORTED_BY, SPEC, differs
from ister.lake.snapshot import GRACE_MS, wall_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from ister.core.names import TopicName

__all__ = ["Lake", "LakeTable", "LazyLake"]

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
"""What a new table is told. Never here: `commit.retry.num-retries`, with which no compaction would ever commit."""

TRIES = 8
"""How often a table is looked for anew because someone else made one of that name first."""
PLACES_MAX = 1000
"""How many tables of one name may have been renamed, or dropped and kept."""


class Lake:
    """The tables of one catalog."""

    def __init__(self, catalog: Catalog, *, now_ms: Callable[[], int] = wall_ms, grace_ms: int = GRACE_MS) -> None:
        """`now_ms` is what its tables' snapshots are stamped with, `grace_ms` how long what they let go stays."""
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
    ) -> Lake:
        """Open a catalog by its properties; its name is part of what a SQL catalog stores."""
        try:
            return cls(open_catalog(name, properties), now_ms=now_ms, grace_ms=grace_ms)
        except Exception as error:
            raise LakeUnavailableError("any", "open the catalog for", f"{type(error).__name__}: {error}") from error

    def table(self, topic: TopicName, generation: int) -> LakeTable:
        """Find a topic's table to append to it, or make it; however many do so at once, there is one."""
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
                    made = self._create(found, base, generation)
                except TableAlreadyExistsError:
                    # Once: another has made it meanwhile. Twice: it is no table of Iceberg's, but a view, for example.
                    (taken if found in refused else refused).add(found)
                    continue
                log.info("table_created", topic=str(base), table=".".join(found), generation=generation)
                return self._checked(made, base, generation)
        except (LakeUnavailableError, TableMovedError):
            raise
        except Exception as error:
            raise LakeUnavailableError(name, "find or make", f"{type(error).__name__}: {error}") from error
        raise LakeUnavailableError(name, "find or make", "its name is taken by others each time")

    def find(self, topic: TopicName, generation: int) -> LakeTable | None:
        """Return a topic's table to read it, if there is one; makes and changes nothing."""
        base = base_of(topic)
        name = ".".join(table_of(base))
        try:
            found = self._find(base, generation)
            return None if isinstance(found, tuple) else self._opened(found, base, generation)
        except IsterError:
            raise
        except Exception as error:
            raise LakeUnavailableError(name, "find", f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Let go of the catalog."""
        self.catalog.close()

    def _find(
        self, topic: TopicName, generation: int, taken: Collection[tuple[str, str]] = ()
    ) -> Table | tuple[str, str]:
        """Return the topic's table, or the name under which to make it; none of those that something else has."""
        plain, hashed = table_of(topic), with_hash(topic)
        names = [plain, hashed, with_generation(plain, generation), with_generation(hashed, generation)]
        holders: dict[tuple[str, str], str] = dict.fromkeys(taken, "")
        for name in names:
            table = load_iceberg(self.catalog, name)
            if table is None:
                continue
            holders[name] = table.properties.get(TOPIC, "")
            if holders[name] == str(topic) and table.properties.get(GENERATION) == str(generation):
                require_inside(table)
                return table
        if plain not in holders:
            return plain
        wanted = names[2:] if holders[plain] == str(topic) else [hashed, names[3]]
        return next((name for name in wanted if name not in holders), wanted[-1])

    def _create(self, name: tuple[str, str], topic: TopicName, generation: int) -> Table:
        self._make_namespace(name[0])
        return self.catalog.create_table(
            name,
            SCHEMA,
            location=self._location(name),
            partition_spec=SPEC,
            properties={**PROPERTIES, TOPIC: str(topic), GENERATION: str(generation), EPOCH: "0", UPTO: "{}"},
        )

    def _make_namespace(self, namespace: str) -> None:
        try:
            self.catalog.create_namespace_if_not_exists(namespace)
        except Exception:
            # Who comes second is told so in a different way by each catalog.
            if not self.catalog.namespace_exists(namespace):
                raise

    def _location(self, name: tuple[str, str]) -> str | None:
        """Lay a table out as `{warehouse}/{namespace}/{table}`; a REST catalog decides for itself.

        Beside that, as `{table}-2` and so on, when a table's metadata is there: of one that was renamed, or dropped and
        kept. Two in one directory would take each other's files for orphans.
        """
        warehouse = self.catalog.properties.get(WAREHOUSE_LOCATION)
        if warehouse is None or self.catalog.properties.get("type") == "rest":
            return None
        home = f"{warehouse.rstrip('/')}/{name[0]}"
        plain = f"{home}/{name[1]}"
        files = open_io(of_files(self.catalog.properties), plain)
        for place in (plain, *(f"{home}/{with_number(name[1], number)}" for number in range(2, PLACES_MAX))):
            if is_empty(files, f"{place}/metadata"):
                return place
        raise LakeUnavailableError(
            ".".join(name), "find a directory for", f"{plain} to {plain}-{PLACES_MAX - 1} are taken"
        )

    def _checked(self, table: Table, topic: TopicName, generation: int) -> LakeTable:
        require_format(table)
        if wrong := differs(table.schema()):
            raise TableMovedError(".".join(table.name()), wrong)
        if table.sort_order().is_unsorted:
            table = self._sorted(table)
        found = self._opened(table, topic, generation)
        found.check_surplus()
        return found

    def _opened(self, table: Table, topic: TopicName, generation: int) -> LakeTable:
        return LakeTable(table, topic, generation, now_ms=self._now_ms, grace_ms=self._grace_ms)

    def _sorted(self, table: Table) -> Table:
        with suppress(CommitFailedException), table.update_sort_order() as order:  # or someone else has set it
            for column in SORTED_BY:
                order.asc(column, IdentityTransform())
        return self.catalog.load_table(table.name())


class LazyLake:
    """A lake whose catalog is opened when a table is first asked for: one that is away does not keep a broker from starting."""

    def __init__(self, name: str, properties: Mapping[str, str]) -> None:
        self._name = name
        self._properties = properties
        self._lake: Lake | None = None
        self._lock = Lock()

    def find(self, topic: TopicName, generation: int) -> LakeTable | None:
        """Return a topic's table if there is one; LakeUnavailableError when the catalog cannot be opened."""
        with self._lock:
            if self._lake is None:
                self._lake = Lake.open(self._name, self._properties)
        return self._lake.find(topic, generation)

    def close(self) -> None:
        """Let go of the catalog."""
        with self._lock:
            if self._lake is not None:
                self._lake.close()
                self._lake = None
