"""Schemas of topics on the driver: which versions tasks decode with, and the columns that tables get for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from ister.client.storage import BrokerRefusedError
from ister.core.errors import IsterError
from ister.lake.evolve import evolve
from ister.pipeline.typed_values import Typed, parsed
from ister.schemas.columns.evolve import has_beside
from ister.schemas.decode import shape_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ister.client.storage import BrokerClient
    from ister.lake.table import LakeTable
    from ister.rpc import ister_v1_pb2 as pb
    from ister.schemas.columns.cells import Path
    from ister.schemas.decode import Named, Version

log = structlog.get_logger()

VERSIONS_MAX = 256
"""Versions of its topic's schema that a task gets, the newest; older ones are added when messages name them."""
DEFINITION_BYTES_MAX = 16 << 20
"""Bytes of definitions of its topic's schema that a task gets, and as many of those that messages name."""
MET_MAX = 256
"""Schemas that messages of one table may name beside their topic's, in the life of a process: all are sent to every task."""


class Schemas:
    """A cache of the schemas of all topics; a version never changes."""

    def __init__(self, broker: BrokerClient) -> None:
        self._broker = broker
        self._known: dict[Version, tuple[str, bytes] | None] = {}
        self._met: dict[tuple[str, ...], set[Version]] = {}
        self._typed: dict[tuple[str, ...], tuple[tuple[Version, int, int], Typed | None]] = {}

    def is_typed(self, latest: Version, table: LakeTable) -> bool:
        """Return True if `typed` has a cached result."""
        found = self._typed.get(table.identifier)
        return found is not None and found[0] == self._key(latest, table)

    def typed(self, latest: Version, table: LakeTable) -> Typed | None:
        """Add the columns of a topic's schemas to its table, up to the latest; return None if there are no typed values."""
        if not self.is_typed(latest, table):
            found = self._make(latest, table)
            self._typed[table.identifier] = (self._key(latest, table), found)
        return self._typed[table.identifier][1]

    def meet(self, table: LakeTable, named: Iterable[Named]) -> int:
        """Fetch schemas that messages name and that their topic does not follow; return how many exist.

        Another partition of the table may have fetched them in the same micro-batch: they count for both, as no task had
        them. That one does not exist is not cached, because it may be registered later.
        """
        met = self._met.setdefault(table.identifier, set())
        existing = 0
        for schema_id, version in named:
            if len(met) < MET_MAX and schema_id > 0 and (version is None or version > 0):
                found = self._find(schema_id, version or 0)
                if found is not None and found in self._within_limit([*(met - {found}), found]):
                    met.add(found)
                    existing += 1
        return existing

    def forget(self, table: LakeTable) -> None:
        """Drop the cache of a table whose topic was deleted."""
        self._met.pop(table.identifier, None)
        self._typed.pop(table.identifier, None)

    def add_beside(self, table: LakeTable, misfits: Collection[Path]) -> bool:
        """Add the columns that a table lacked for values that do not fit; return True if it has some of them now."""
        shape = evolve(table, (), sorted(misfits))
        return shape is not None and any(has_beside(shape, path) for path in misfits)

    def _key(self, latest: Version, table: LakeTable) -> tuple[Version, int, int]:
        return (latest, table.schema.schema_id, len(self._met.get(table.identifier, ())))

    def _make(self, latest: Version, table: LakeTable) -> Typed | None:
        oldest = max(1, latest[1] - VERSIONS_MAX + 1)
        versions = self._within_limit((latest[0], version) for version in range(latest[1], oldest - 1, -1))
        versions |= self._met.get(table.identifier, set())
        definitions = tuple((*version, *found) for version in sorted(versions) if (found := self._definition(version)))
        shapes = [shape for one in definitions if (shape := shape_of(parsed(one[2], one[3]))) is not None]
        if not shapes or evolve(table, shapes) is None:
            return None
        return Typed(table.schema.model_dump_json(), definitions, latest)

    def _within_limit(self, versions: Iterable[Version]) -> set[Version]:
        """Return the first of some versions, as many as DEFINITION_BYTES_MAX allows."""
        found: set[Version] = set()
        size = 0
        for version in versions:
            definition = self._definition(version)
            size += 0 if definition is None else len(definition[1])
            if size > DEFINITION_BYTES_MAX:
                break
            if definition is not None:
                found.add(version)
        return found

    def _definition(self, version: Version) -> tuple[str, bytes] | None:
        """Return a schema; None for a version that was deleted or that this release cannot read, both of which is final."""
        if version not in self._known and self._find(*version) is None:
            self._known[version] = None
        return self._known[version]

    def _find(self, schema_id: int, version: int) -> Version | None:
        """Fetch and cache a version, or the latest one for 0; return None if it does not exist.

        Any other failure is raised, and the next micro-batch tries again.
        """
        try:
            found = self._broker.schema(schema_id, version)
        except BrokerRefusedError as error:
            if not error.is_not_found:
                raise
            return None
        place = (found.schema_id, found.version)
        if place not in self._known:
            self._known[place] = _readable(found)
        return place


def _readable(found: pb.GetSchemaResponse) -> tuple[str, bytes] | None:
    try:
        parsed(found.schema_type, found.definition)
    except IsterError as error:
        log.warning("schema_not_read", schema_id=found.schema_id, version=found.version, cause=str(error))
        return None
    return found.schema_type, found.definition
