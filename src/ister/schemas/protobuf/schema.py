"""Protobuf schemas: .proto text, or descriptors made by protoc, checked by protobuf's own library.

A payload is one message of the **first top-level message** of the file; of a FileDescriptorSet, of its last file, which is
the one that protoc was called with. Well-known imports (google/protobuf/…) are built in. Others are not resolved, and
neither are their types, so send a FileDescriptorSet made with --include_imports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from ister.schemas.document import check_size, fingerprint_of, refused
from ister.schemas.kinds import SchemaType
from ister.schemas.protobuf.columns import checker
from ister.schemas.protobuf.parse import TextError, parse_text
from ister.schemas.protobuf.types import Enum, Field, Message, Reserved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    from google.protobuf.descriptor import Descriptor, EnumDescriptor

    from ister.core.errors import InvalidRequestError

_KINDS: Final[dict[int, str]] = {
    number: name.removeprefix("TYPE_").lower() for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
}
_KNOWN: Final = {
    module.DESCRIPTOR.name: FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    for module in (
        *(any_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2, source_context_pb2, struct_pb2),
        *(timestamp_pb2, type_pb2, wrappers_pb2, api_pb2),
    )
}
_FILE_NAME: Final = "schema.proto"
_RESERVED_BY_PROTOBUF: Final = range(19_000, 20_000)
_BINARY: Final = frozenset(range(32)) - frozenset(b"\t\n\v\f\r")


@dataclass(frozen=True, slots=True)
class ProtobufSchema:
    """A Protobuf schema: its first message, and all that this leads to."""

    root: str
    messages: dict[str, Message]
    enums: dict[str, Enum]
    fingerprint: str
    check: Callable[[bytes], None]
    """Raises InvalidMessageError unless a payload is one message of this schema."""
    type: SchemaType = SchemaType.PROTOBUF

    @classmethod
    def parse(cls, definition: bytes) -> Self:
        """Read a definition, or raise InvalidRequestError."""
        check_size(SchemaType.PROTOBUF, definition)
        files = _from_bytes(definition) if _BINARY.intersection(definition) else [_from_text(definition)]
        pool = _build(files)
        last = files[-1]
        if not last.message_type:
            raise _wrong("it has no message")
        root = f"{last.package}.{last.message_type[0].name}".lstrip(".")
        graph = _Graph()
        graph.collect(pool.FindMessageTypeByName(root))
        check = checker(root, graph.messages, graph.enums).check
        return cls(root, graph.messages, graph.enums, fingerprint_of(definition), check)


def _from_text(definition: bytes) -> FileDescriptorProto:
    try:
        file = parse_text(definition.decode(), _FILE_NAME)
    except UnicodeDecodeError:
        raise _wrong("it is neither UTF-8 text nor a FileDescriptorSet") from None
    except TextError as error:
        raise _wrong(str(error)) from None
    known = [name for name in dict.fromkeys(file.dependency) if name in _KNOWN]
    del file.dependency[:]
    file.dependency.extend(known)
    return file


def _from_bytes(definition: bytes) -> list[FileDescriptorProto]:
    """Read a FileDescriptorSet, or one FileDescriptorProto; each can be read as the other, and then makes no sense."""
    try:
        files = list(FileDescriptorSet.FromString(definition).file)
        if files and all(_has_names(file) for file in files) and files[-1].message_type:
            return files
    except DecodeError:
        pass
    try:
        file = FileDescriptorProto.FromString(definition)
        if _has_names(file):
            return [file]
    except DecodeError:
        pass
    raise _wrong("it is neither text, nor a FileDescriptorSet, nor a FileDescriptorProto")


def _has_names(file: FileDescriptorProto) -> bool:
    """Return True if a file has a name; bytes that are no text come as bytes, whatever the types say."""
    return isinstance(file.name, str) and isinstance(file.package, str) and bool(file.name)


def _build(files: list[FileDescriptorProto]) -> DescriptorPool:
    pool = DescriptorPool()
    given = {file.name for file in files}
    known: dict[str, FileDescriptorProto] = {}

    def need(names: Iterable[str]) -> None:
        for name in names:
            if name in _KNOWN and name not in known and name not in given:
                need(_KNOWN[name].dependency)
                known[name] = _KNOWN[name]

    for file in files:
        need(file.dependency)
    try:
        for file in (*known.values(), *files):
            pool.Add(file)
    except (TypeError, ValueError) as error:
        raise _wrong(str(error).removeprefix("Couldn't build proto file into descriptor pool: ")) from None
    return pool


class _Graph:
    """The messages and enums that one message leads to."""

    def __init__(self) -> None:
        self.messages: dict[str, Message] = {}
        self.enums: dict[str, Enum] = {}

    def collect(self, root: Descriptor) -> None:
        work = [root]
        while work:
            descriptor = work.pop()
            if descriptor.full_name not in self.messages:
                self.messages[descriptor.full_name] = self._message(descriptor)
                work += [field.message_type for field in descriptor.fields if field.message_type is not None]

    def _message(self, descriptor: Descriptor) -> Message:
        proto = DescriptorProto()
        descriptor.CopyToProto(proto)
        oneofs = {
            field.number: proto.oneof_decl[field.oneof_index].name
            for field in proto.field
            if field.HasField("oneof_index") and not field.proto3_optional
        }
        reserved = Reserved(
            tuple((span.start, span.end) for span in proto.reserved_range), frozenset(proto.reserved_name)
        )
        fields = {}
        for field in descriptor.fields:
            target = field.message_type or field.enum_type
            if field.enum_type is not None:
                self._enum(field.enum_type)
            fields[field.number] = Field(
                number=field.number,
                name=field.name,
                kind=_KINDS[field.type],
                repeated=field.is_repeated,
                required=field.is_required,
                target=None if target is None else target.full_name,
                oneof=oneofs.get(field.number),
                implicit=not field.has_presence and not field.is_repeated,
            )
            if reserved.holds(field.number, field.name) or field.number in _RESERVED_BY_PROTOBUF:
                raise _wrong(f"{descriptor.full_name} has a field {field.name} = {field.number}, which is reserved")
        return Message(descriptor.full_name, fields, reserved)

    def _enum(self, descriptor: EnumDescriptor) -> None:
        if descriptor.full_name in self.enums:
            return
        proto = EnumDescriptorProto()
        descriptor.CopyToProto(proto)
        reserved = Reserved(
            tuple((span.start, span.end + 1) for span in proto.reserved_range), frozenset(proto.reserved_name)
        )
        values = {value.name: value.number for value in proto.value}
        for name, number in values.items():
            if reserved.holds(number, name):
                raise _wrong(f"{descriptor.full_name} has a value {name} = {number}, which is reserved")
        self.enums[descriptor.full_name] = Enum(descriptor.full_name, values, descriptor.is_closed, reserved)


def _wrong(reason: str) -> InvalidRequestError:
    return refused(SchemaType.PROTOBUF, reason)
