"""The Iceberg schema of a topic's table, and the Arrow schema of its data files.

The field ids are permanent: data files contain them, and readers resolve columns by them, not by names.

    1 topic_offset   2 partition      3 append_time    4 publish_time    5 publish_time_ms  6 producer_name
    7 producer_id    8 broker_addr    9 request_id    10 routing_key    11 attributes      12 schema_id
   13 schema_version 14 payload      15 frame_crc     16 attributes.key 17 attributes.value
 1000 append_time_day, the partition

Nested fields come last because catalogs assign the field ids of a new table in this order. Columns of a topic with a schema
(`value`, `decode_error`) get the next free ids when they are added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestamptzType,
)

from ister.core.frames.columns import SCHEMA as STORED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.types import IcebergType

DAY = "append_time_day"
DAY_FIELD_ID = 1000
SORTED_BY = ("partition", "topic_offset")
"""Set after the table is created: a table created with a sort order cannot be compacted with another."""

PUBLISH_TIME_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, where the engines' timestamps end."""

METRICS = {"write.metadata.metrics.column.payload": "counts"}
"""Bounds of payloads help no query."""


def _field(field_id: int, name: str, kind: IcebergType, *, required: bool = True) -> NestedField:
    return NestedField(field_id=field_id, name=name, field_type=kind, required=required)


SCHEMA = Schema(
    _field(1, "topic_offset", LongType()),
    _field(2, "partition", IntegerType()),
    _field(3, "append_time", TimestamptzType()),
    _field(4, "publish_time", TimestamptzType(), required=False),
    _field(5, "publish_time_ms", LongType()),
    _field(6, "producer_name", StringType()),
    _field(7, "producer_id", LongType()),
    _field(8, "broker_addr", StringType()),
    _field(9, "request_id", LongType()),
    _field(10, "routing_key", StringType(), required=False),
    _field(
        11,
        "attributes",
        MapType(key_id=16, key_type=StringType(), value_id=17, value_type=StringType(), value_required=True),
    ),
    _field(12, "schema_id", LongType(), required=False),
    _field(13, "schema_version", IntegerType(), required=False),
    _field(14, "payload", BinaryType()),
    _field(15, "frame_crc", IntegerType()),
)
"""The columns of every table. Unsigned numbers are stored as two's complement; `publish_time` is null when out of range."""

SPEC = PartitionSpec(PartitionField(source_id=3, field_id=DAY_FIELD_ID, transform=DayTransform(), name=DAY))


def arrow_of(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of a table's data files, with field ids."""
    return pa.schema([_narrow(field) for field in schema_to_pyarrow(schema)])


def differs(schema: Schema) -> str | None:
    """Return which of our columns a table lacks or has changed; None when it has them all."""
    for field in SCHEMA.fields:
        found = schema.find_field(field.field_id) if field.field_id in schema.field_ids else None
        if found is None or found.name != field.name or found.field_type != field.field_type:
            return f"field {field.field_id} should be {field.name} {field.field_type}, and is {found or 'not there'}"
    return None


def spec_of(specs: Iterable[PartitionSpec]) -> PartitionSpec | None:
    """Return the partition spec of our files among a table's specs; None when it was removed.

    A user may have set another spec, which applies to compaction; our files keep ours.
    """
    wanted = [(field.source_id, field.transform) for field in SPEC.fields]
    for spec in specs:
        if [(field.source_id, field.transform) for field in spec.fields] == wanted:
            return spec
    return None


def table_rows(batch: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    """Convert stored messages (`ister.core.frames.columns.SCHEMA`) to rows of ARROW."""
    column = batch.column
    published = column("publish_time")
    in_range = pc.less_equal(published, pa.scalar(PUBLISH_TIME_MS_MAX, pa.uint64()))
    published_ms = pc.if_else(in_range, published, pa.scalar(None, pa.uint64())).view(pa.int64())
    arrays = {
        "topic_offset": column("topic_offset"),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows),
        "append_time": column("append_time"),
        "publish_time": pc.multiply(published_ms, 1000).view(pa.timestamp("us", tz="UTC")),
        "publish_time_ms": published.view(pa.int64()),
        "producer_name": column("producer_name"),
        "producer_id": column("producer_id").view(pa.int64()),
        "broker_addr": column("broker_addr"),
        "request_id": column("request_id").view(pa.int64()),
        "routing_key": column("routing_key"),
        "attributes": column("attributes").cast(ARROW.field("attributes").type),
        "schema_id": column("schema_id").view(pa.int64()),
        "schema_version": column("schema_version").view(pa.int32()),
        "payload": column("payload"),
        "frame_crc": column("frame_crc").view(pa.int32()),
    }
    return pa.RecordBatch.from_arrays([arrays[name] for name in ARROW.names], schema=ARROW)


def stored_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Convert rows of a table, written by any engine, to stored messages; pa.ArrowInvalid when they are not valid."""
    column = rows.column
    arrays = {
        "topic_offset": column("topic_offset"),
        "append_time": column("append_time").cast(STORED.field("append_time").type),
        "publish_time": column("publish_time_ms").view(pa.uint64()),
        "producer_id": column("producer_id").view(pa.uint64()),
        "request_id": column("request_id").view(pa.uint64()),
        "schema_id": column("schema_id").view(pa.uint64()),
        "schema_version": column("schema_version").view(pa.uint32()),
        "producer_name": column("producer_name").cast(pa.string()),
        "broker_addr": column("broker_addr").cast(pa.string()),
        "routing_key": column("routing_key").cast(pa.string()),
        "attributes": column("attributes").cast(STORED.field("attributes").type),
        "payload": column("payload").cast(pa.binary()),
        "frame_crc": column("frame_crc").view(pa.uint32()),
    }
    for field in STORED:
        if not field.nullable and arrays[field.name].null_count:
            raise pa.ArrowInvalid(f"{field.name} is null in a row")
    return pa.RecordBatch.from_arrays([arrays[name] for name in STORED.names], schema=STORED)


def _narrow(field: pa.Field) -> pa.Field:
    """Replace types with 64-bit offsets by those with 32 bits: batches are small, and the log decodes to them."""
    return field.with_type(_narrow_type(field.type))


def _narrow_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind):
        return pa.list_(_narrow(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_narrow(kind.key_field), _narrow(kind.item_field))
    if pa.types.is_struct(kind):
        return pa.struct([_narrow(kind.field(position)) for position in range(kind.num_fields)])
    return kind


ARROW = arrow_of(SCHEMA)
"""The Arrow schema of the data files of a topic without a schema."""
