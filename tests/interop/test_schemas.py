"""The schema registry with the official client: register, evolve, refuse, bind to a topic, validate payloads."""

import io
import json

import fastavro
import grpc
import pytest
from danube import CompatibilityMode, SchemaType
from danube.proto import SchemaRegistry_pb2 as schema

from interop.official import Official, payloads
from interop.raw import api, refused

ORDER = {"type": "object", "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}, "required": ["id"]}
NOTE_REQUIRED = ORDER | {"required": ["id", "note"]}
ONE_MORE = ORDER | {"properties": ORDER["properties"] | {"paid": {"type": "boolean"}}}
AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
AVRO_DEFAULT = AVRO | {"fields": [*AVRO["fields"], {"name": "note", "type": "string", "default": ""}]}
AVRO_REQUIRED = AVRO | {"fields": [*AVRO["fields"], {"name": "note", "type": "string"}]}
PROTO = b'syntax = "proto3"; message Order { int64 id = 1; }'


def encoded(definition) -> bytes:
    return definition if isinstance(definition, bytes) else json.dumps(definition).encode()


async def register(client, subject: str, definition, kind: SchemaType = SchemaType.JSON_SCHEMA) -> int:
    return await client.schemas.register_schema(subject).with_type(kind).with_schema_data(encoded(definition)).execute()


@pytest.fixture
def subject(topic):
    """A subject that no other test has."""
    return topic.removeprefix("/default/") + "-value"


@pytest.mark.parametrize(
    ("kind", "definition"),
    [
        (SchemaType.JSON_SCHEMA, ORDER),
        (SchemaType.AVRO, AVRO),
        (SchemaType.PROTOBUF, PROTO),
        (SchemaType.STRING, b"string"),
        (SchemaType.NUMBER, b"number"),
        (SchemaType.BYTES, b"bytes"),
    ],
    ids=lambda value: value.value if isinstance(value, SchemaType) else "",
)
async def test_a_schema_is_registered_once_and_comes_back_as_it_was(broker, subject, kind, definition):
    async with Official(broker) as client:
        number = await register(client, subject, definition, kind)
        assert number > 0
        assert await register(client, subject, definition, kind) == number
        assert await client.schemas.list_versions(subject) == [1]
        for found in (
            await client.schemas.get_latest_schema(subject),
            await client.schemas.get_schema_by_id(number),
            await client.schemas.get_schema_version(number, 1),
        ):
            assert (found.schema_id, found.version, found.subject) == (number, 1, subject)
            assert found.schema_definition == encoded(definition)
            assert SchemaType.parse(found.schema_type) is kind


async def test_a_schema_evolves_under_one_id_and_every_version_stays(broker, subject):
    async with Official(broker) as client:
        number = await register(client, subject, ORDER)
        assert await register(client, subject, ONE_MORE) == number
        assert await client.schemas.list_versions(subject) == [1, 2]
        assert json.loads((await client.schemas.get_latest_schema(subject)).schema_definition) == ONE_MORE
        assert json.loads((await client.schemas.get_schema_version(number, 1)).schema_definition) == ORDER
        await register(client, subject, ORDER)
        assert await client.schemas.list_versions(subject) == [1, 2], "the same schema is not a new version"


@pytest.mark.parametrize(
    ("kind", "old", "new", "mode", "compatible"),
    [
        (SchemaType.JSON_SCHEMA, ORDER, ONE_MORE, "backward", True),
        (SchemaType.JSON_SCHEMA, ORDER, NOTE_REQUIRED, "backward", False),
        (SchemaType.JSON_SCHEMA, NOTE_REQUIRED, ORDER, "full", False),
        (SchemaType.JSON_SCHEMA, ORDER, NOTE_REQUIRED, "none", True),
        (SchemaType.AVRO, AVRO, AVRO_DEFAULT, "backward", True),
        (SchemaType.AVRO, AVRO, AVRO_DEFAULT, "full", True),
        (SchemaType.AVRO, AVRO, AVRO_REQUIRED, "backward", False),
        (SchemaType.AVRO, AVRO, AVRO_REQUIRED, "forward", True),
        (SchemaType.AVRO, AVRO_REQUIRED, AVRO, "forward", False),
    ],
)
async def test_compatibility_is_really_checked(broker, subject, kind, old, new, mode, compatible):
    async with Official(broker) as client:
        await register(client, subject, old, kind)
        assert (await client.schemas.set_compatibility_mode(subject, CompatibilityMode.parse(mode)))[0]
        found, errors = await client.schemas.check_compatibility(subject, encoded(new), kind)
        assert (found, bool(errors)) == (compatible, not compatible)
        if compatible:
            await register(client, subject, new, kind)
            assert await client.schemas.list_versions(subject) == [1, 2]
        else:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await register(client, subject, new, kind)
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert await client.schemas.list_versions(subject) == [1]


async def test_a_type_never_changes(broker, subject):
    async with Official(broker) as client:
        await register(client, subject, ORDER)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await register(client, subject, AVRO, SchemaType.AVRO)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_what_cannot_be_a_schema_is_refused(broker, subject):
    async with broker.raw() as raw:
        for kind, definition in (
            ("json_schema", b"{"),
            ("json_schema", b'{"type": "no such type"}'),
            ("avro", b'{"type": "record"}'),
            ("avro", b"\xff"),
            ("protobuf", b""),
            ("cuneiform", b"x"),
            ("", b"x"),
        ):
            request = schema.RegisterSchemaRequest(subject=subject, schema_type=kind, schema_definition=definition)
            await refused(grpc.StatusCode.INVALID_ARGUMENT, raw.schemas.RegisterSchema(request, timeout=30))
        request = schema.RegisterSchemaRequest(subject="", schema_type="string", schema_definition=b"string")
        await refused(grpc.StatusCode.INVALID_ARGUMENT, raw.schemas.RegisterSchema(request, timeout=30))


async def test_what_is_unknown_is_not_found(broker, subject):
    async with broker.raw() as raw:
        calls = (
            raw.schemas.GetLatestSchema(schema.GetLatestSchemaRequest(subject=subject)),
            raw.schemas.GetSchema(schema.GetSchemaRequest(schema_id=1 << 40)),
            raw.schemas.ListVersions(schema.ListVersionsRequest(subject=subject)),
        )
        for call in calls:
            await refused(grpc.StatusCode.NOT_FOUND, call, saying="not found")


async def test_a_producer_with_a_schema_binds_the_topic_and_stamps_its_messages(broker, topic, subject):
    async with Official(broker) as client:
        number = await register(client, subject, ORDER)
        producer = await client.producer(topic, prepare=lambda builder: builder.with_schema_subject(subject))
        consumer = await client.consumer(topic, "sub")
        await producer.send(b'{"id": 1}')
        (got,) = await consumer.take(1)
        assert (got.schema_id, got.schema_version) == (number, 1)
        config = await client.schemas.get_topic_schema_config(topic)
        assert (config.schema_subject, config.schema_id) == (subject, number)
        await register(client, subject, ONE_MORE)
        pinned = await client.producer(topic, "pinned", prepare=lambda builder: builder.with_schema_version(subject, 1))
        newest = await client.producer(
            topic, "newest", prepare=lambda builder: builder.with_schema_min_version(subject, 2)
        )
        await pinned.send(b'{"id": 2}')
        await newest.send(b'{"id": 3}')
        assert [m.schema_version for m in await consumer.take(2)] == [1, 2]


async def test_another_subject_on_a_bound_topic_and_an_unknown_one_are_refused(broker, topics, subject):
    bound, fresh = topics(2)
    async with Official(broker) as client, broker.raw() as raw:
        await register(client, subject, ORDER)
        await register(client, f"{subject}-2", ORDER)
        await client.producer(bound, prepare=lambda builder: builder.with_schema_subject(subject))
        other = api.SchemaReference(subject=f"{subject}-2", use_latest=True)
        unknown = api.SchemaReference(subject=f"{subject}-3", use_latest=True)
        await refused(grpc.StatusCode.FAILED_PRECONDITION, raw.create_producer(bound, schema_ref=other), saying=subject)
        await refused(
            grpc.StatusCode.FAILED_PRECONDITION, raw.create_producer(fresh, schema_ref=unknown), saying="not found"
        )


@pytest.mark.parametrize(
    ("kind", "definition", "good", "bad"),
    [
        (SchemaType.JSON_SCHEMA, ORDER, [b'{"id": 1}'], [b'{"id": "one"}', b"{}", b"not json"]),
        (SchemaType.STRING, b"string", ["Δ".encode(), b""], [b"\xff\xfe"]),
        (SchemaType.NUMBER, b"number", [bytes(4), bytes(8)], [bytes(3), b""]),
    ],
    ids=["json", "string", "number"],
)
async def test_payloads_are_validated_where_the_topic_asks_for_it(broker, topic, subject, kind, definition, good, bad):
    async with Official(broker) as client:
        await register(client, subject, definition, kind)
        producer = await client.producer(topic, prepare=lambda builder: builder.with_schema_subject(subject))
        consumer = await client.consumer(topic, "sub")
        for payload in bad:
            await producer.send(payload)  # the default is to warn
        await consumer.take(len(bad))
        done, _ = await client.schemas.configure_topic_schema(topic, subject, "enforce", enable_payload_validation=True)
        assert done
        for payload in bad:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await producer.send(payload)
            assert caught.value.code() in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION}
        for payload in good:
            await producer.send(payload)
        assert payloads(await consumer.take(len(good))) == good
        await consumer.nothing()


async def test_avro_payloads_are_decoded_to_be_validated(broker, topic, subject):
    def encode(order: dict) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), order)
        return out.getvalue()

    async with Official(broker) as client:
        await register(client, subject, AVRO, SchemaType.AVRO)
        producer = await client.producer(topic, prepare=lambda builder: builder.with_schema_subject(subject))
        await client.schemas.configure_topic_schema(topic, subject, "enforce", enable_payload_validation=True)
        consumer = await client.consumer(topic, "sub")
        await producer.send(encode({"id": 42}))
        with pytest.raises(grpc.aio.AioRpcError):
            await producer.send(b"")
        assert payloads(await consumer.take(1)) == [encode({"id": 42})]


async def test_enforce_wants_the_schema_on_every_message(broker, topics, subject):
    topic, bare = topics(2)
    async with Official(broker) as client, broker.raw() as raw:
        number = await register(client, subject, ORDER)
        other = await register(client, f"{subject}-2", ORDER)
        await client.producer(topic, prepare=lambda builder: builder.with_schema_subject(subject))
        await client.schemas.configure_topic_schema(topic, subject, "enforce")
        producer = await raw.create_producer(topic)
        await raw.send(topic, producer, b"anything", schema_id=number, schema_version=1)
        for fields in ({}, {"schema_id": other}, {"schema_id": 1 << 40}):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await raw.send(topic, producer, b"anything", **fields)
            assert caught.value.code() in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION}
        await raw.create_topic(bare)
        request = schema.UpdateTopicValidationPolicyRequest(topic_name=bare, validation_policy="enforce")
        await refused(grpc.StatusCode.FAILED_PRECONDITION, raw.schemas.UpdateTopicValidationPolicy(request))
        request = schema.UpdateTopicValidationPolicyRequest(topic_name=topic, validation_policy="sternly")
        await refused(grpc.StatusCode.INVALID_ARGUMENT, raw.schemas.UpdateTopicValidationPolicy(request))
        request = schema.GetTopicSchemaConfigRequest(topic_name="/default/nowhere")
        await refused(grpc.StatusCode.NOT_FOUND, raw.schemas.GetTopicSchemaConfig(request))


async def test_subjects_are_listed_and_the_registry_is_on_the_admin_port_too(broker, subject):
    async with Official(broker) as client, broker.raw() as raw:
        number = await register(client, subject, ORDER)
        found = {each.subject: each for each in (await raw.ask("ListSubjects")).subjects}[subject]
        assert (found.schema_id, found.latest_version, found.schema_type) == (number, 1, "json_schema")
        assert found.compatibility_mode == "backward"
        method = raw.admin_channel.unary_unary(
            "/danube_schema.SchemaRegistry/GetLatestSchema",
            request_serializer=schema.GetLatestSchemaRequest.SerializeToString,
            response_deserializer=schema.GetSchemaResponse.FromString,
        )
        assert (await method(schema.GetLatestSchemaRequest(subject=subject), timeout=30)).schema_id == number


async def test_a_version_is_deleted_and_the_others_stay(broker, subject):
    async with Official(broker) as client:
        number = await register(client, subject, ORDER)
        await register(client, subject, ONE_MORE)
        assert (await client.schemas.delete_schema_version(subject, 1))[0]
        assert await client.schemas.list_versions(subject) == [2]
        assert (await client.schemas.get_latest_schema(subject)).schema_id == number
        assert await register(client, f"{subject}-2", ORDER) > number, "an id is never given twice"
