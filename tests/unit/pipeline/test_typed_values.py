"""Which columns of a table are ours to write: those that its user added are left alone, whatever they are."""

from types import SimpleNamespace

import pytest
from grpc import StatusCode
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    FixedType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimeType,
    UUIDType,
)

from ister.client.storage import BrokerRefusedError, BrokerUnavailableError
from ister.lake.columns import SCHEMA, arrow_of
from ister.lake.evolve import own_columns, value_shape
from ister.pipeline import topic_schemas
from ister.pipeline.topic_schemas import MET_MAX, VERSIONS_MAX, Schemas
from ister.rpc import ister_v1_pb2 as pb
from ister.schemas.columns.types import Decimal, Field, List, Map, Opaque, Primitive, Struct, arrow_type
from ister.schemas.decode import UNKNOWN_MAX


def optional(number, name, kind, **more):
    return NestedField(number, name, kind, required=False, **more)


def table(*fields, beside=()):
    value = optional(100, "value", StructType(*fields))
    return Schema(*SCHEMA.fields, value, optional(101, "decode_error", StringType()), *beside)


OURS = optional(200, "id", LongType())
OPAQUE = {
    "time": TimeType(),
    "uuid": UUIDType(),
    "fixed": FixedType(4),
    "nanoseconds": TimestampNanoType(),
    "list": ListType(300, TimeType(), element_required=False),
    "list of required": ListType(300, LongType(), element_required=True),
    "map of required": MapType(300, StringType(), 301, LongType(), value_required=True),
    "map by number": MapType(300, IntegerType(), 301, LongType(), value_required=False),
    "map of unknown": MapType(300, StringType(), 301, UUIDType(), value_required=False),
    "struct of nothing known": StructType(optional(300, "a", TimeType())),
    "struct with a required field": StructType(optional(300, "a", LongType()), NestedField(301, "b", LongType(), required=True)),
}  # fmt: skip


@pytest.mark.parametrize("kind", OPAQUE.values(), ids=OPAQUE)
def test_a_column_of_a_type_that_no_schema_asks_for_is_left_alone(kind):
    found = table(OURS, optional(201, "theirs", kind))
    assert value_shape(found) == Struct((Field("id", Primitive.LONG), Field("theirs", Opaque())))
    written = arrow_of(own_columns(found)).field("value").type
    assert [written.field(place).name for place in range(written.num_fields)] == ["id"]
    assert arrow_type(value_shape(found)).num_fields == 1


def test_a_known_column_keeps_its_id_and_its_place_whatever_is_beside_it():
    inner = StructType(optional(303, "a", LongType()), optional(304, "b", TimeType()))
    found = table(
        optional(201, "seen", TimeType()),
        OURS,
        optional(202, "price", DecimalType(9, 2)),
        optional(203, "any", StringType(), doc="JSON"),
        optional(204, "number", IntegerType(), doc="JSON"),
        optional(205, "many", ListType(302, inner, element_required=False)),
        optional(206, "named", MapType(305, StringType(), 306, inner, value_required=False)),
        beside=(optional(400, "note", StringType()), optional(401, "at", TimeType())),
    )
    parts = Struct((Field("a", Primitive.LONG), Field("b", Opaque())))
    assert value_shape(found) == Struct(
        (
            Field("seen", Opaque()),
            Field("id", Primitive.LONG),
            Field("price", Decimal(9, 2)),
            Field("any", Primitive.JSON),
            Field("number", Primitive.INT),
            Field("many", List(parts)),
            Field("named", Map(parts)),
        )
    )
    own = own_columns(found)
    assert [field.name for field in own.fields] == [*(field.name for field in SCHEMA.fields), "value", "decode_error"]
    assert set(own.field_ids) == set(found.field_ids) - {201, 304, 400, 401}
    assert own.find_field(303).name == "a"
    assert own.find_field("value.named.value.a").field_id == 303


# --- schemas that messages name ---------------------------------------------------------------------------------------


class Registry:
    """A broker that knows some schemas by id and version, and says so or fails as told."""

    def __init__(self, *known, error=None):
        self.known = set(known)
        self.error = error
        self.asked = []

    def schema(self, schema_id, version):
        self.asked.append((schema_id, version))
        if self.error is not None:
            raise self.error
        version = version or max((other for found, other in self.known if found == schema_id), default=0)
        if (schema_id, version) not in self.known:
            raise BrokerRefusedError("not found", StatusCode.NOT_FOUND)
        return pb.GetSchemaResponse(schema_id=schema_id, version=version, schema_type="string")


TABLE = SimpleNamespace(identifier=("default", "t"), schema=SimpleNamespace(schema_id=0, model_dump_json=lambda: "{}"))


def test_schemas_that_messages_name_are_met_by_each_partition_that_has_such_messages():
    schemas = Schemas(Registry((7, 1), (7, 2), (8, 3)))
    assert schemas.meet(TABLE, [(7, 1), (8, None), (9, 1)]) == 2
    assert schemas.meet(TABLE, [(7, 1), (8, None), (9, 1)]) == 2, "another partition's, of the same tick"
    assert schemas.meet(TABLE, [(7, None)]) == 1
    assert schemas._met[TABLE.identifier] == {(7, 1), (7, 2), (8, 3)}


def test_a_schema_that_is_not_there_may_be_there_later():
    registry = Registry()
    schemas = Schemas(registry)
    assert schemas.meet(TABLE, [(7, 1)]) == 0
    registry.known.add((7, 1))
    assert schemas.meet(TABLE, [(7, 1)]) == 1


def test_a_task_is_given_a_bounded_number_of_versions_the_newest_and_those_that_messages_name(monkeypatch):
    """K3: all definitions travel to every task."""
    registry = Registry(*((7, version) for version in range(1, 1001)))
    schemas = Schemas(registry)
    monkeypatch.setattr(topic_schemas, "evolve", lambda *_: Struct())
    monkeypatch.setattr(topic_schemas, "shape_of", lambda _: Struct())
    found = schemas.typed((7, 1000), TABLE)
    assert [version for _, version, _, _ in found.definitions] == list(range(1000 - VERSIONS_MAX + 1, 1001))
    assert len(registry.asked) == VERSIONS_MAX
    assert schemas.meet(TABLE, [(7, 3)]) == 1
    found = schemas.typed((7, 1000), TABLE)
    assert found.definitions[0][1] == 3


def test_a_task_is_given_definitions_of_a_bounded_size(monkeypatch):
    """K3."""
    registry = Registry(*((7, version) for version in range(1, 11)), (8, 1), (9, 1))
    schemas = Schemas(registry)
    monkeypatch.setattr(topic_schemas, "DEFINITION_BYTES_MAX", 3_500)
    monkeypatch.setattr(topic_schemas, "evolve", lambda *_: Struct())
    monkeypatch.setattr(topic_schemas, "shape_of", lambda _: Struct())
    monkeypatch.setattr(
        topic_schemas, "_readable", lambda found: ("string", bytes(2_000 if found.schema_id > 7 else 1_000))
    )
    monkeypatch.setattr(topic_schemas, "parsed", lambda *_: None)
    found = schemas.typed((7, 10), TABLE)
    assert [version for _, version, _, _ in found.definitions] == [8, 9, 10]
    assert schemas.meet(TABLE, [(8, 1), (9, 1), (8, 1)]) == 2, "one of them is too much"
    assert schemas._met[TABLE.identifier] == {(8, 1)}


@pytest.mark.parametrize("named", [(0, 1), (-5, 1), (7, 0), (7, -1)])
def test_what_no_registry_gives_is_not_asked_for(named):
    registry = Registry((7, 1))
    assert Schemas(registry).meet(TABLE, [named]) == 0
    assert registry.asked == []


def test_no_table_meets_more_schemas_than_its_tasks_can_carry():
    schemas = Schemas(Registry(*((number, 1) for number in range(1, 1000))))
    for start in range(1, 1000, UNKNOWN_MAX):
        schemas.meet(TABLE, [(number, 1) for number in range(start, start + UNKNOWN_MAX)])
    assert len(schemas._met[TABLE.identifier]) == MET_MAX


@pytest.mark.parametrize(
    "error",
    [BrokerUnavailableError("away"), BrokerRefusedError("a bug", StatusCode.INTERNAL)],
    ids=["away", "internal"],
)
def test_a_registry_that_does_not_say_is_asked_again(error):
    registry = Registry((7, 1), error=error)
    schemas = Schemas(registry)
    for _ in range(2):
        with pytest.raises(type(error)):
            schemas.typed((7, 1), TABLE)
    registry.error = None
    assert schemas.typed((7, 1), TABLE) is None, "a text has no shape"
    assert schemas.is_typed((7, 1), TABLE)
    assert registry.asked == [(7, 1)] * 3
