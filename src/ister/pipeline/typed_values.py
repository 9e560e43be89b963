"""Typed values on executors: fills a table's columns `value` and `decode_error`.

A payload that does not decode keeps its row, with null for its value and the reason in `decode_error`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyiceberg.schema import Schema as TableSchema

from ister.lake.columns import arrow_of
from ister.lake.evolve import DECODE_ERROR, VALUE, own_columns, value_shape
from ister.schemas import SchemaType
from ister.schemas.decode import Decoders, first_of
from ister.schemas.schema import parse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ister.schemas.columns.cells import Path
    from ister.schemas.decode import Named, Version
    from ister.schemas.schema import Schema


class Typed(NamedTuple):
    """What a task needs to fill a table's columns."""

    columns: str
    """The table's schema in Iceberg's JSON."""
    definitions: tuple[tuple[int, int, str, bytes], ...]
    """Every schema that messages may name: id, version, type, definition."""
    latest: tuple[int, int]
    """For messages that name none."""


class Values:
    """Adds the columns `value` and `decode_error` to rows."""

    def __init__(self, typed: Typed) -> None:
        self._columns, self._decoders = _prepared(typed)
        self.unknown: list[Named] = []
        """Schemas that rows name and that the task does not have: the first of them."""
        self.misfits: set[Path] = set()
        """Columns that lack a sibling for values that do not fit."""

    def add_to(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Decode the payloads of rows; yield them in slices where their values are large."""
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
    """Parse once for a worker, which lives for many micro-batches."""
    table = TableSchema.model_validate_json(typed.columns)
    shape = value_shape(table)
    assert shape is not None, "the driver gave the table its columns"
    schemas: dict[Version, Schema] = {
        (schema_id, version): parsed(kind, definition) for schema_id, version, kind, definition in typed.definitions
    }
    return arrow_of(own_columns(table)), Decoders(schemas, shape, typed.latest)


@lru_cache(maxsize=1024)
def parsed(kind: str, definition: bytes) -> Schema:
    """Parse a schema's definition, once for a process."""
    return parse(SchemaType(kind), definition)
