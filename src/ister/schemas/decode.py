"""Decoding of payload columns: rows of a table's columns, and errors of those that could not be decoded; no row is lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from ister.schemas.avro import columns as of_avro
from ister.schemas.avro.schema import AvroSchema
from ister.schemas.columns.cells import CELLS_MAX, RowState, UndecodableError, fitter
from ister.schemas.columns.types import arrow_type, columns_in
from ister.schemas.document import shown
from ister.schemas.json import columns as of_json
from ister.schemas.json.schema import JsonSchema
from ister.schemas.protobuf import columns as of_protobuf
from ister.schemas.protobuf.schema import ProtobufSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ister.schemas.columns.cells import Path, Value
    from ister.schemas.columns.types import Struct
    from ister.schemas.schema import Schema

PAYLOAD_BYTES_MAX: Final = 16 << 20
"""Bytes of a payload that is decoded: decoded, it takes many times its size. A larger one stays as it is."""
ROWS_AT_ONCE: Final = 4_096
"""Rows that are built at once, at most; fewer where CELLS_MAX cells are reached before."""
UNKNOWN_MAX: Final = 64
"""How many missing schemas of a column are reported: those of the lowest ids, which a registry assigns first."""

Decode: TypeAlias = "Callable[[bytes], Value]"
Version: TypeAlias = tuple[int, int]
"""A schema's id, and the version of it."""
Named: TypeAlias = tuple[int, int | None]
"""A message's reference to its schema: the id, and optionally the version."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A row for every payload: its value, or null and why."""

    values: pa.StructArray
    errors: pa.StringArray
    unknown: list[Named]
    """Schemas that messages name and that were not given: the first of them."""
    misfits: list[Path]
    """Columns that could not take a value of theirs, and have no column beside them for it."""


def first_of(unknown: Iterable[Named]) -> list[Named]:
    """Return the first of some schemas."""
    return sorted(unknown, key=lambda one: (one[0], one[1] or 0))[:UNKNOWN_MAX]


def shape_of(schema: Schema) -> Struct | None:
    """Return the shape of a schema's values, None when they have none."""
    found = _columns_of(schema)
    return None if found is None else found[0]


def decoder(schema: Schema, table: Struct, state: RowState) -> Decode | None:
    """Return the decoder of payloads to rows, which raises UndecodableError; None when the schema has no columns."""
    found = _columns_of(schema)
    if found is None:
        return None
    wanted, read = found
    fit = fitter(wanted, table, state)

    def decode(payload: bytes) -> Value:
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise UndecodableError(f"has {len(payload)} bytes, and more than {PAYLOAD_BYTES_MAX} are not decoded")
        try:
            value = read(payload)
            return None if value is None else fit(value)
        except RecursionError:
            raise UndecodableError("is nested too deeply") from None

    return decode


class Decoders:
    """Decodes a topic's payloads, each by the schema that it was written with."""

    def __init__(self, schemas: Mapping[Version, Schema], table: Struct, latest: Version | None) -> None:
        """Take all known schemas; `latest` is for messages that name none."""
        self._schemas = schemas
        self._table = table
        self._type = arrow_type(table)
        self._latest = latest
        self._newest = dict(sorted(schemas))
        self._known: dict[Named, Decode | None] = {}
        self._unknown: set[Named] = set()
        self._state = RowState()
        self._width = columns_in(table)

    def decode_column(self, payloads: pa.Array, ids: pa.Array, versions: pa.Array) -> Iterator[Decoded]:
        """Decode a column of payloads piece by piece; a null has no value, and neither has what a schema without a shape wrote.

        Memory is bounded by what is built, not by what came in: a payload of 3 KB may be a list of thousands of structs
        of hundreds of columns. A piece ends where CELLS_MAX cells are reached, and the caller can write it out.
        """
        start = 0
        while start < len(payloads):
            piece = self._decode_piece(payloads[start:], ids[start:], versions[start:])
            yield piece
            start += len(piece.values)

    def _decode_piece(self, payloads: pa.Array, ids: pa.Array, versions: pa.Array) -> Decoded:
        """Decode as many of the first payloads as are built at once."""
        rows: list[Value] = []
        errors: list[str | None] = []
        cells = 0
        self._unknown.clear()
        self._state.misfits.clear()
        for payload, schema_id, version in zip(payloads[:ROWS_AT_ONCE], ids, versions, strict=False):
            self._state.begin()
            value, error = self._decode(payload.as_py(), schema_id.as_py(), version.as_py())
            rows.append(value)
            errors.append(error)
            cells += self._width + self._state.cells_filled()
            if cells >= CELLS_MAX:
                break
        values = _built(rows, errors, self._type)
        return Decoded(values, pa.array(errors, pa.string()), first_of(self._unknown), sorted(self._state.misfits))

    def _decode(self, payload: bytes | None, schema_id: int | None, version: int | None) -> tuple[Value, str | None]:
        if payload is None:
            return None, None
        key: Named | None = self._latest
        if schema_id is not None:
            key = schema_id, self._newest.get(schema_id) if version is None else version
        if key is None:
            return None, None
        try:
            decode = self._known[key] if key in self._known else self._compile(key)
            return None if decode is None else decode(payload), None
        except UndecodableError as error:
            return None, shown(str(error))

    def _compile(self, key: Named) -> Decode | None:
        schema_id, version = key
        schema = None if version is None else self._schemas.get((schema_id, version))
        if schema is None:
            self._unknown.add(key)
            raise UndecodableError(f"there is no schema {schema_id}{'' if version is None else f', version {version}'}")
        self._known[key] = decoder(schema, self._table, self._state)
        return self._known[key]


def _columns_of(schema: Schema) -> tuple[Struct, Decode] | None:
    match schema:
        case JsonSchema():
            return of_json.shape_of(schema), of_json.reader(schema)
        case AvroSchema():
            return of_avro.shape_of(schema), of_avro.reader(schema)
        case ProtobufSchema():
            return of_protobuf.shape_of(schema), of_protobuf.reader(schema)
        case _:
            return None


def _built(rows: list[Value], errors: list[str | None], kind: pa.DataType) -> pa.Array:
    """Build an Arrow array; rows that Arrow refuses (a lone surrogate) become null, with an error."""
    try:
        return pa.array(rows, kind)
    except _REFUSALS:
        pass
    for index, row in enumerate(rows):
        try:
            pa.array([row], kind)
        except _REFUSALS as error:
            rows[index] = None
            why = "half a character" if isinstance(error, UnicodeError) else type(error).__name__
            errors[index] = f"holds what no column can: {why}"
    return pa.array(rows, kind)


_REFUSALS: Final = (pa.ArrowException, ValueError, TypeError, OverflowError)
