"""What the tests of typed columns share: schemas by their definitions, payloads by other people's libraries."""

import json

import pyarrow as pa
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from ister.schemas.columns.evolve import merge
from ister.schemas.columns.types import Struct
from ister.schemas.decode import Decoded, Decoders, first_of, shape_of
from ister.schemas.kinds import SchemaType
from ister.schemas.protobuf.parse import parse_text
from ister.schemas.protobuf.schema import _KNOWN
from ister.schemas.schema import parse


def json_schema(document):
    return parse(SchemaType.JSON_SCHEMA, json.dumps(document).encode())


def avro(document):
    return parse(SchemaType.AVRO, json.dumps(document).encode())


def record(**fields):
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def protobuf(text):
    return parse(SchemaType.PROTOBUF, text.encode())


def message_class(text, name):
    """Return the class that protobuf's own library makes of a .proto file."""
    pool = DescriptorPool()
    file = parse_text(text, "made.proto")
    for known in _KNOWN.values():
        if known.name in file.dependency:
            pool.Add(known)
    pool.Add(descriptor_pb2.FileDescriptorProto.FromString(file.SerializeToString()))
    return GetMessageClass(pool.FindMessageTypeByName(name))


def table_of(*schemas):
    """Return a table's shape after these schemas, one after the other."""
    table = Struct()
    for schema in schemas:
        table, _ = merge(table, shape_of(schema))
    return table


def decode_column(decoders, payloads, ids=None, versions=None):
    """Return all pieces of a column as one."""
    rows = len(payloads)
    pieces = list(
        decoders.decode_column(
            pa.array(payloads, pa.binary()),
            pa.array(ids or [None] * rows, pa.int64()),
            pa.array(versions or [None] * rows, pa.int32()),
        )
    )
    if not pieces:
        return Decoded(pa.array([], decoders._type), pa.array([], pa.string()), [], [])
    return Decoded(
        pa.concat_arrays([one.values for one in pieces]),
        pa.concat_arrays([one.errors for one in pieces]),
        first_of({named for one in pieces for named in one.unknown}),
        sorted({path for one in pieces for path in one.misfits}),
    )


def decoded(schema, *payloads, table=None):
    """Return each payload's value, or the error as a text that says so."""
    decoders = Decoders({(1, 1): schema}, table or table_of(schema), (1, 1))
    rows = len(payloads)
    found = decode_column(decoders, payloads)
    found.values.validate(full=True)
    assert len(found.values) == len(found.errors) == rows
    return [
        value if error is None else f"error: {error}"
        for value, error in zip(found.values.to_pylist(maps_as_pydicts="strict"), found.errors.to_pylist(), strict=True)
    ]
