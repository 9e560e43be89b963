"""Every method that a broker offers, found by reflection, and things that nobody should send to it."""

from __future__ import annotations

import random
from dataclasses import dataclass

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

TEXTS = [
    "", "/", "/default/x", "/default/../../etc/passwd", "\x00", "\n", "a" * 300, "x" * 100_000, "ünïcödé", "%s%n{0}",
    "default", "system", "none", "enforce", "avro", "-1", "/default/hostile", "sub", "{}", "[1", '{"ack_level": 7}',
    "\u202e", "'; DROP TABLE topics; --", "hostile",
]  # fmt: skip
EXTREMES = {
    FieldDescriptor.CPPTYPE_INT32: [0, 1, -1, (1 << 31) - 1, -(1 << 31)],
    FieldDescriptor.CPPTYPE_INT64: [0, 1, -1, (1 << 63) - 1, -(1 << 63)],
    FieldDescriptor.CPPTYPE_UINT32: [0, 1, 7, (1 << 32) - 1],
    FieldDescriptor.CPPTYPE_UINT64: [0, 1, 7, 1 << 53, 1 << 63, (1 << 64) - 1],
    FieldDescriptor.CPPTYPE_DOUBLE: [0.0, -1.5, float("inf"), float("nan")],
    FieldDescriptor.CPPTYPE_FLOAT: [0.0, float("inf"), float("nan")],
    FieldDescriptor.CPPTYPE_BOOL: [True, False],
    FieldDescriptor.CPPTYPE_ENUM: [0, 1, 2, 3, 99, -1, (1 << 31) - 1],
}


@dataclass(frozen=True)
class Method:
    """One method, and where it is."""

    plane: str
    path: str
    request: type
    streams_in: bool
    streams_out: bool


def methods_of(plane: str, target: str) -> list[Method]:
    """Ask a broker what it offers, gRPC's own health and reflection included."""
    with grpc.insecure_channel(target) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = descriptor_pool.DescriptorPool(database)
        found = []
        for name in database.get_services():
            service = pool.FindServiceByName(name)
            found += [_method(plane, name, method) for method in service.methods]
    return found


def _method(plane: str, service: str, method: MethodDescriptor) -> Method:
    proto = descriptor_pb2.MethodDescriptorProto()
    method.CopyToProto(proto)
    request = message_factory.GetMessageClass(method.input_type)
    return Method(plane, f"/{service}/{method.name}", request, proto.client_streaming, proto.server_streaming)


def random_message(kind: type, rng: random.Random, depth: int = 0):
    """Fill a message with extremes, some of its fields at a time."""
    message = kind()
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.3:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            entries = getattr(message, field.name)
            for _ in range(rng.choice([0, 1, 50])):
                entries[_text(rng)] = _text(rng)
        elif field.message_type is not None:
            if depth > 3:
                continue
            inner = [
                random_message(message_factory.GetMessageClass(field.message_type), rng, depth + 1)
                for _ in range(rng.choice([0, 1, 3]) if field.is_repeated else 1)
            ]
            if field.is_repeated:
                getattr(message, field.name).extend(inner)
            else:
                getattr(message, field.name).CopyFrom(inner[0])
        elif field.is_repeated:
            getattr(message, field.name).extend(_value(field, rng) for _ in range(rng.choice([0, 1, 300])))
        else:
            setattr(message, field.name, _value(field, rng))
    return message


def _text(rng: random.Random) -> str:
    return rng.choice(TEXTS)


def _value(field: FieldDescriptor, rng: random.Random):
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.choice([b"", b"\xff", rng.randbytes(rng.randrange(2000)), b"{" * 500, b'{"type": "object"}'])
        return _text(rng)
    return rng.choice(EXTREMES[field.cpp_type])


def random_bytes(kind: type, rng: random.Random) -> bytes:
    """Return bytes that are no message, or almost one."""
    match rng.randrange(5):
        case 0:
            return rng.randbytes(rng.randrange(200))
        case 1:
            data = random_message(kind, rng).SerializeToString()
            return data[: rng.randrange(len(data) + 1)]
        case 2:
            data = bytearray(random_message(kind, rng).SerializeToString() or b"\x00")
            for _ in range(rng.randrange(1, 8)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            return bytes(data)
        case 3:
            return b"\x0a\xff\xff\xff\xff\x0f" + rng.randbytes(rng.randrange(20))  # four GiB are announced
        case _:
            return b"\x0b" * rng.randrange(1, 5000)  # groups within groups
