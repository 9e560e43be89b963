"""Schemas of every type: parsing by type, and compatibility of two versions."""

from __future__ import annotations

from typing import TypeAlias

from ister.schemas.avro import compare as avro_compare
from ister.schemas.avro.schema import AvroSchema
from ister.schemas.json import compare as json_compare
from ister.schemas.json.schema import JsonSchema
from ister.schemas.kinds import Compatibility, SchemaType
from ister.schemas.primitive import PlainSchema
from ister.schemas.protobuf import compare as protobuf_compare
from ister.schemas.protobuf.schema import ProtobufSchema

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
