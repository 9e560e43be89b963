"""Decide what a definition means: parse it by its type, compare two versions, check a payload."""

from __future__ import annotations

from typing import TypeAlias

from ister.core.schemas import avro_compare, json_compare, protobuf_compare
from ister.core.schemas.avro import AvroSchema
from ister.core.schemas.json_schema import JsonSchema
from ister.core.schemas.kinds import Compatibility, SchemaType
from ister.core.schemas.plain import PlainSchema
from ister.core.schemas.protobuf import ProtobufSchema

Schema: TypeAlias = PlainSchema | AvroSchema | JsonSchema | ProtobufSchema


def parse(kind: SchemaType, definition: bytes) -> Schema:
    """Read a definition, or raise InvalidRequestError; takes seconds for the largest ones."""
    match kind:
        case SchemaType.AVRO:
            return AvroSchema.parse(definition)
        case SchemaType.JSON_SCHEMA:
            return JsonSchema.parse(definition)
        case SchemaType.PROTOBUF:
            return ProtobufSchema.parse(definition)
        case SchemaType.BYTES | SchemaType.STRING | SchemaType.NUMBER:
            return PlainSchema.parse(kind, definition)


def incompatibilities(new: Schema, latest: Schema, mode: Compatibility) -> list[str]:
    """Return why a new version may not follow the latest one; empty when it may. Takes seconds for the largest ones."""
    if mode is Compatibility.NONE:
        return []
    if new.type is not latest.type:
        return [f"the type of the schema changes from {latest.type} to {new.type}"]
    reasons = []
    if mode in {Compatibility.BACKWARD, Compatibility.FULL}:
        reasons += [f"backward: {reason}" for reason in unreadable(new, latest)]
    if mode in {Compatibility.FORWARD, Compatibility.FULL}:
        reasons += [f"forward: {reason}" for reason in unreadable(latest, new)]
    if isinstance(new, ProtobufSchema) and isinstance(latest, ProtobufSchema):
        reasons += protobuf_compare.reused(new, latest)
    return reasons


def unreadable(reader: Schema, writer: Schema) -> list[str]:
    """Return why a reader with one schema cannot read all that a writer with another may write."""
    match reader, writer:
        case AvroSchema(), AvroSchema():
            return avro_compare.unreadable(reader, writer)
        case JsonSchema(), JsonSchema():
            return json_compare.unreadable(reader, writer)
        case ProtobufSchema(), ProtobufSchema():
            return protobuf_compare.unreadable(reader, writer)
        case PlainSchema(), PlainSchema() if reader.type is writer.type:
            return []
        case _:
            return [f"{writer.type} cannot be read as {reader.type}"]
