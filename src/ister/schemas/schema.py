"""Schemas of every type: parsing by type, and compatibility of two versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ister.core.errors import InvalidMessageError
from ister.schemas.avro import compare as avro_compare
from ister.schemas.avro.schema import AvroSchema
from ister.schemas.document import check_size
from ister.schemas.json import compare as json_compare
from ister.schemas.json.schema import JsonSchema
from ister.schemas.kinds import Compatibility, SchemaType
from ister.schemas.protobuf import compare as protobuf_compare
from ister.schemas.protobuf.schema import ProtobufSchema

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, slots=True)
class PlainSchema:
    """A schema of bytes, a string or a number; its definition is ignored."""

    type: SchemaType

    @classmethod
    def parse(cls, kind: SchemaType, definition: bytes) -> Self:
        """Accept any definition that is not too large to be stored."""
        check_size(kind, definition)
        return cls(kind)

    @property
    def fingerprint(self) -> str:
        """The type's name: two definitions of one type mean the same."""
        return self.type.value

    def check(self, payload: bytes) -> None:
        """Raise InvalidMessageError unless a payload is of this type."""
        if self.type is SchemaType.STRING:
            try:
                payload.decode()
            except UnicodeDecodeError as error:
                raise InvalidMessageError("payload", f"is not UTF-8: byte {error.start} cannot be read") from None
        elif self.type is SchemaType.NUMBER and len(payload) not in {4, 8}:
            raise InvalidMessageError("payload", f"has {len(payload)} bytes; a number has 4 or 8")


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
