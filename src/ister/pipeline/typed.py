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
from ister.core.typed.decode import Decoders, shape_of
from ister.lake.evolve import DECODE_ERROR, VALUE, evolve, value_shape
from ister.lake.schema import arrow_of

if TYPE_CHECKING:
    from ister.core.schemas.schema import Schema
    from ister.core.typed.decode import Version
    from ister.lake.table import LakeTable
    from ister.pipeline.client import BrokerClient

log = structlog.get_logger()


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
        self._known: dict[tuple[int, int], tuple[str, bytes] | None] = {}
        self._typed: dict[tuple[tuple[int, int], tuple[str, ...], int], Typed | None] = {}

    def typed(self, latest: tuple[int, int], table: LakeTable) -> Typed | None:
        """Give a table the columns that its topic's schemas ask for, up to the latest; None when there is nothing to type."""
        key = (latest, table.identifier, table.schema.schema_id)
        if key not in self._typed:
            found = self._make(latest, table)
            key = (latest, table.identifier, table.schema.schema_id)
            self._typed = {other: typed for other, typed in self._typed.items() if other[1] != table.identifier}
            self._typed[key] = found
        return self._typed[key]

    def _make(self, latest: tuple[int, int], table: LakeTable) -> Typed | None:
        versions = [(latest[0], version) for version in range(1, latest[1] + 1)]
        definitions = tuple((*version, *found) for version in versions if (found := self._definition(version)))
        shapes = [shape for one in definitions if (shape := shape_of(_parsed(one[2], one[3]))) is not None]
        if not shapes:
            return None
        evolve(table, shapes)
        return Typed(table.schema.model_dump_json(), definitions, latest)

    def _definition(self, version: tuple[int, int]) -> tuple[str, bytes] | None:
        """Return a schema; None for a version that was deleted, or that this release cannot read."""
        if version not in self._known:
            self._known[version] = self._ask(version)
        return self._known[version]

    def _ask(self, version: tuple[int, int]) -> tuple[str, bytes] | None:
        from ister.pipeline.client import BrokerRefusedError  # noqa: PLC0415  # gRPC is the driver's alone

        try:
            found = self._broker.schema(*version)
            _parsed(found.schema_type, found.definition)
        except BrokerRefusedError:
            return None
        except IsterError as error:
            log.warning("schema_not_read", schema_id=version[0], version=version[1], cause=str(error))
            return None
        return found.schema_type, found.definition


def with_values(rows: pa.RecordBatch, typed: Typed) -> pa.RecordBatch:
    """Add the columns `value` and `decode_error` to a table's rows."""
    columns, decoders = _prepared(typed)
    decoded = decoders.decode_column(rows.column("payload"), rows.column("schema_id"), rows.column("schema_version"))
    found = dict(zip(rows.schema.names, rows.columns, strict=True))
    found[VALUE] = decoded.values.cast(columns.field(VALUE).type)
    found[DECODE_ERROR] = decoded.errors
    return pa.RecordBatch.from_arrays([found[name] for name in columns.names], schema=columns)


@lru_cache(maxsize=256)
def _prepared(typed: Typed) -> tuple[pa.Schema, Decoders]:
    """Parse once for a worker, which lives for many ticks."""
    table = TableSchema.model_validate_json(typed.columns)
    shape = value_shape(table)
    assert shape is not None, "the driver gave the table its columns"
    schemas: dict[Version, Schema] = {
        (schema_id, version): _parsed(kind, definition) for schema_id, version, kind, definition in typed.definitions
    }
    return arrow_of(table), Decoders(schemas, shape, typed.latest)


@lru_cache(maxsize=1024)
def _parsed(kind: str, definition: bytes) -> Schema:
    return parse(SchemaType(kind), definition)
