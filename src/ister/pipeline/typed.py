"""Typed values: the driver gives a table the columns of its topic's schemas, a task fills them.

A payload that does not decode keeps its row, with null for its value and the reason beside it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import structlog
from pyiceberg.schema import Schema as TableSchema

from ister.core.errors import IsterError
from ister.core.schemas import SchemaType
from ister.core.schemas.schema import parse
from ister.core.typed.decode import Decoders, first_of, shape_of
from ister.core.typed.evolve import has_beside
from ister.lake.evolve import DECODE_ERROR, VALUE, evolve, own_columns, value_shape
from ister.lake.schema import arrow_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from ister.core.schemas.schema import Schema
    from ister.core.typed.decode import Named, Version
    from ister.core.typed.fit import Path
    from ister.lake.table import LakeTable
    from ister.pipeline.client import BrokerClient
    from ister.rpc import ister_v1_pb2 as pb

log = structlog.get_logger()

VERSIONS_MAX = 256
"""How many versions of its topic's schema a task is given, the newest; older ones are met when messages name them."""
DEFINITION_BYTES_MAX = 16 << 20
"""Bytes of definitions that a task is given of its topic's schema, and as many of those that messages name."""
MET_MAX = 256
"""How many schemas that its topic does not follow one table may meet, in the life of a process: all travel to every task."""


class Typed(NamedTuple):
    """What a task needs to fill a table's columns; travels to executors."""

    columns: str
    """The table's columns, as Iceberg writes them in JSON."""
    definitions: tuple[tuple[int, int, str, bytes], ...]
    """Every schema that may be met: id, version, type, definition."""
    latest: tuple[int, int]
    """For messages that name none."""


class Schemas:
    """The schemas of all topics, as far as the broker was asked for them; none ever changes."""

    def __init__(self, broker: BrokerClient) -> None:
        self._broker = broker
        self._known: dict[Version, tuple[str, bytes] | None] = {}
        self._met: dict[tuple[str, ...], set[Version]] = {}
        self._typed: dict[tuple[str, ...], tuple[tuple[Version, int, int], Typed | None]] = {}

    def is_typed(self, latest: Version, table: LakeTable) -> bool:
        """Tell whether `typed` has its answer already."""
        found = self._typed.get(table.identifier)
        return found is not None and found[0] == self._key(latest, table)

    def typed(self, latest: Version, table: LakeTable) -> Typed | None:
        """Give a table the columns that its topic's schemas ask for, up to the latest; None when there is nothing to type."""
        if not self.is_typed(latest, table):
            found = self._make(latest, table)
            self._typed[table.identifier] = (self._key(latest, table), found)
        return self._typed[table.identifier][1]

    def meet(self, table: LakeTable, named: Iterable[Named]) -> int:
        """Ask for schemas that messages name and that their topic does not follow now; returns how many there are.

        Another partition of the table may have met them in the same tick: they count for both, as no task had them.
        One that is not there may be registered later, so that is not remembered.
        """
        met = self._met.setdefault(table.identifier, set())
        there = 0
        for schema_id, version in named:
            if len(met) < MET_MAX and schema_id > 0 and (version is None or version > 0):
                found = self._find(schema_id, version or 0)
                if found is not None and found in self._within_limit([*(met - {found}), found]):
                    met.add(found)
                    there += 1
        return there

    def forget(self, table: LakeTable) -> None:
        """Forget what is known of a table whose topic is gone."""
        self._met.pop(table.identifier, None)
        self._typed.pop(table.identifier, None)

    def add_beside(self, table: LakeTable, misfits: Collection[Path]) -> bool:
        """Give a table the columns that its rows lacked for values that do not fit; return True if it has some of them now."""
        shape = evolve(table, (), sorted(misfits))
        return shape is not None and any(has_beside(shape, path) for path in misfits)

    def _key(self, latest: Version, table: LakeTable) -> tuple[Version, int, int]:
        return (latest, table.schema.schema_id, len(self._met.get(table.identifier, ())))

    def _make(self, latest: Version, table: LakeTable) -> Typed | None:
        oldest = max(1, latest[1] - VERSIONS_MAX + 1)
        versions = self._within_limit((latest[0], version) for version in range(latest[1], oldest - 1, -1))
        versions |= self._met.get(table.identifier, set())
        definitions = tuple((*version, *found) for version in sorted(versions) if (found := self._definition(version)))
        shapes = [shape for one in definitions if (shape := shape_of(_parsed(one[2], one[3]))) is not None]
        if not shapes or evolve(table, shapes) is None:
            return None
        return Typed(table.schema.model_dump_json(), definitions, latest)

    def _within_limit(self, versions: Iterable[Version]) -> set[Version]:
        """Return the first of some versions, as many as their definitions may be large together."""
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
        """Return a schema; None for a version that was deleted, or that this release cannot read: for ever, both of them."""
        if version not in self._known and self._find(*version) is None:
            self._known[version] = None
        return self._known[version]

    def _find(self, schema_id: int, version: int) -> Version | None:
        """Ask for a version, or the latest one when that is 0, and know it from now on; None when it is not there.

        Whoever cannot answer now, or has an error of its own, is asked again at the next tick.
        """
        from ister.pipeline.client import BrokerRefusedError  # noqa: PLC0415  # gRPC is the driver's alone

        try:
            found = self._broker.schema(schema_id, version)
        except BrokerRefusedError as error:
            if error.code.name != "NOT_FOUND":
                raise
            return None
        place = (found.schema_id, found.version)
        if place not in self._known:
            self._known[place] = _readable(found)
        return place


def _readable(found: pb.GetSchemaResponse) -> tuple[str, bytes] | None:
    try:
        _parsed(found.schema_type, found.definition)
    except IsterError as error:
        log.warning("schema_not_read", schema_id=found.schema_id, version=found.version, cause=str(error))
        return None
    return found.schema_type, found.definition


class Values:
    """Gives a table's rows their columns `value` and `decode_error`."""

    def __init__(self, typed: Typed) -> None:
        self._columns, self._decoders = _prepared(typed)
        self.unknown: list[Named] = []
        """Schemas that rows name and that we were not given: the first of them."""
        self.misfits: set[Path] = set()
        """Columns that lack one beside them for values that do not fit."""

    def add_to(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Decode the payloads of some rows; gives them in pieces, where their values are large."""
        columns, start = self._columns, 0
        for decoded in self._decoders.decode_column(
            rows.column("payload"), rows.column("schema_id"), rows.column("schema_version")
        ):
            self.unknown = first_of({*self.unknown, *decoded.unknown})
            self.misfits.update(decoded.misfits)
            piece = rows.slice(start, len(decoded.values))
            start += len(decoded.values)
            found = dict(zip(piece.schema.names, piece.columns, strict=True))
            found[VALUE] = decoded.values.cast(columns.field(VALUE).type)
            found[DECODE_ERROR] = decoded.errors
            yield pa.RecordBatch.from_arrays([found[name] for name in columns.names], schema=columns)


@lru_cache(maxsize=256)
def _prepared(typed: Typed) -> tuple[pa.Schema, Decoders]:
    """Parse once for a worker, which lives for many ticks."""
    table = TableSchema.model_validate_json(typed.columns)
    shape = value_shape(table)
    assert shape is not None, "the driver gave the table its columns"
    schemas: dict[Version, Schema] = {
        (schema_id, version): _parsed(kind, definition) for schema_id, version, kind, definition in typed.definitions
    }
    return arrow_of(own_columns(table)), Decoders(schemas, shape, typed.latest)


@lru_cache(maxsize=1024)
def _parsed(kind: str, definition: bytes) -> Schema:
    return parse(SchemaType(kind), definition)
