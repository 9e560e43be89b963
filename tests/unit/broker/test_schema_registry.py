"""The registry's handlers: what clients send, and what they get."""

import asyncio
from contextlib import suppress

import pytest
from danube.proto import SchemaRegistry_pb2 as pb

from ister.broker.registry.store import SchemaStore
from ister.broker.services.schema_registry import SchemaRegistry
from ister.core.errors import (
    ClientError,
    InvalidNameError,
    InvalidRequestError,
    NotFoundError,
    PreconditionError,
)
from ister.ports.metadata import MemoryMetadata
from ister.rpc.danube_schema_pb2 import ListSubjectsRequest
from ister.schemas import TopicSchema, ValidationPolicy

V1 = b'{ "type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"] }'
V2 = b'{"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}, "required": ["id"]}'
BREAKING = b'{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}'
TOPIC = "/default/users"


class Topics:
    """One topic, and what it is bound to."""

    def __init__(self) -> None:
        self.bound = {TOPIC: TopicSchema()}

    async def schema_of(self, topic):
        if str(topic) not in self.bound:
            raise NotFoundError(f"topic {topic} not found")
        return self.bound[str(topic)]

    async def change_schema(self, topic, change):
        self.bound[str(topic)] = change(await self.schema_of(topic))
        return self.bound[str(topic)]


def run(test):
    """Run an asynchronous test against handlers over a store in memory."""

    async def main():
        metadata = MemoryMetadata()
        store = SchemaStore(metadata, "/danube-data", now=lambda: 1_700_000_000.0)
        await store.load()
        topics = Topics()
        await test(SchemaRegistry(store, topics), topics)
        await metadata.close()

    asyncio.run(main())


def register(subject="users", definition=V1, kind="json_schema", **more):
    return pb.RegisterSchemaRequest(subject=subject, schema_type=kind, schema_definition=definition, **more)


def test_a_schema_that_was_registered_comes_back_as_it_was_sent():
    async def test(registry, _):
        made = await registry.register_schema(register(description="d", created_by="me", tags=["a", "b"]))
        assert (made.schema_id, made.version, made.is_new_version) == (1, 1, True)
        assert made.fingerprint.startswith("sha256:")
        for found in (
            await registry.get_latest_schema(pb.GetLatestSchemaRequest(subject="users")),
            await registry.get_schema(pb.GetSchemaRequest(schema_id=1)),
            await registry.get_schema(pb.GetSchemaRequest(schema_id=1, version=1)),
        ):
            assert found == pb.GetSchemaResponse(
                schema_id=1,
                version=1,
                subject="users",
                schema_type="json_schema",
                schema_definition=V1,
                description="d",
                created_at=1_700_000_000,
                created_by="me",
                tags=["a", "b"],
                fingerprint=made.fingerprint,
                compatibility_mode="backward",
            )

    run(test)


@pytest.mark.parametrize(
    ("kind", "definition", "name", "fingerprint"),
    [
        ("BYTES", b"", "bytes", "bytes"),
        ("string", b"anything", "string", "string"),
        ("Int64", b"", "number", "number"),
        ("int", b"", "number", "number"),
        ("float", b"", "number", "number"),
        ("double", b"", "number", "number"),
        ("Avro", b'"int"', "avro", "sha256:"),
        ("JSON", b"{}", "json_schema", "sha256:"),
        ("jsonschema", b"{}", "json_schema", "sha256:"),
        ("Proto", b'syntax = "proto3"; message M {}', "protobuf", "sha256:"),
    ],
)
def test_a_type_goes_by_many_names(kind, definition, name, fingerprint):
    async def test(registry, _):
        made = await registry.register_schema(register("s", definition, kind))
        assert made.fingerprint.startswith(fingerprint)
        found = await registry.get_latest_schema(pb.GetLatestSchemaRequest(subject="s"))
        assert found.schema_type == name
        assert found.schema_definition == definition

    run(test)


def test_the_same_schema_makes_no_new_version():
    async def test(registry, _):
        one = await registry.register_schema(register())
        await registry.register_schema(register(definition=V2))
        again = await registry.register_schema(register(definition=V1.replace(b" ", b"")))
        assert (again.version, again.is_new_version, again.fingerprint) == (1, False, one.fingerprint)
        versions = (await registry.list_versions(pb.ListVersionsRequest(subject="users"))).versions
        assert [(one.version, one.schema_id) for one in versions] == [(1, 1), (2, 1)]

    run(test)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (register(kind="xml"), InvalidRequestError),
        (register(kind=""), InvalidRequestError),
        (register(subject=""), InvalidRequestError),
        (register(subject="x" * 300), InvalidRequestError),
        (register(definition=b"not json"), InvalidRequestError),
        (register(definition=b"", kind="avro"), InvalidRequestError),
        (register(definition=b"message", kind="protobuf"), InvalidRequestError),
        (register(description="x" * 5000), InvalidRequestError),
        (register(tags=["x"] * 100), InvalidRequestError),
        (register(definition=BREAKING), PreconditionError),
        (register(definition=b'"int"', kind="avro"), PreconditionError),
    ],
)
def test_what_cannot_be_registered_is_refused(request_, error):
    async def test(registry, _):
        await registry.register_schema(register())
        with pytest.raises(error):
            await registry.register_schema(request_)
        versions = (await registry.list_versions(pb.ListVersionsRequest(subject="users"))).versions
        assert len(versions) == 1

    run(test)


def test_what_is_not_there_is_said_to_be_not_found():
    async def test(registry, _):
        await registry.register_schema(register())
        calls = [
            registry.get_schema(pb.GetSchemaRequest(schema_id=99)),
            registry.get_schema(pb.GetSchemaRequest(schema_id=1, version=7)),
            registry.get_schema(pb.GetSchemaRequest(schema_id=1, version=0)),
            registry.get_latest_schema(pb.GetLatestSchemaRequest(subject="absent")),
            registry.get_latest_schema(pb.GetLatestSchemaRequest()),
            registry.list_versions(pb.ListVersionsRequest(subject="absent")),
            registry.check_compatibility(pb.CheckCompatibilityRequest(subject="absent", new_schema_definition=V1, schema_type="json")),
            registry.delete_schema_version(pb.DeleteSchemaVersionRequest(subject="absent", version=1)),
            registry.delete_schema_version(pb.DeleteSchemaVersionRequest(subject="users", version=2)),
            registry.set_compatibility_mode(pb.SetCompatibilityModeRequest(subject="absent", compatibility_mode="full")),
            registry.configure_topic_schema(pb.ConfigureTopicSchemaRequest(topic_name=TOPIC, schema_subject="absent", validation_policy="warn")),
            registry.configure_topic_schema(pb.ConfigureTopicSchemaRequest(topic_name="/default/absent", schema_subject="users", validation_policy="warn")),
            registry.update_topic_validation_policy(pb.UpdateTopicValidationPolicyRequest(topic_name="/default/absent", validation_policy="warn")),
            registry.get_topic_schema_config(pb.GetTopicSchemaConfigRequest(topic_name="/default/absent")),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(NotFoundError, match="not found"):
                await call

    run(test)


def test_compatibility_is_checked_with_the_subjects_mode_or_another():
    async def test(registry, _):
        await registry.register_schema(register())

        async def check(definition, **more):
            return await registry.check_compatibility(
                pb.CheckCompatibilityRequest(
                    subject="users", new_schema_definition=definition, **{"schema_type": "json_schema", **more}
                )
            )

        assert (await check(V2)).is_compatible
        answer = await check(BREAKING)
        assert not answer.is_compatible
        assert any("'id'" in reason for reason in answer.errors)
        assert (await check(BREAKING, compatibility_mode="NONE")).is_compatible
        assert not (await check(b'"int"', schema_type="avro")).is_compatible
        with pytest.raises(InvalidRequestError):
            await check(V2, compatibility_mode="sideways")
        with pytest.raises(InvalidRequestError):
            await check(b"{")

    run(test)


def test_modes_can_be_set_and_versions_deleted():
    async def test(registry, _):
        await registry.register_schema(register())
        answer = await registry.set_compatibility_mode(
            pb.SetCompatibilityModeRequest(subject="users", compatibility_mode="None")
        )
        assert answer.success
        await registry.register_schema(register(definition=BREAKING))
        answer = await registry.delete_schema_version(pb.DeleteSchemaVersionRequest(subject="users", version=2))
        assert answer.success
        assert "version 2" in answer.message
        found = await registry.get_latest_schema(pb.GetLatestSchemaRequest(subject="users"))
        assert (found.version, found.compatibility_mode) == (1, "none")
        with pytest.raises(InvalidRequestError):
            await registry.set_compatibility_mode(
                pb.SetCompatibilityModeRequest(subject="users", compatibility_mode="odd")
            )

    run(test)


def test_subjects_are_listed_by_name():
    async def test(registry, _):
        assert list((await registry.list_subjects(ListSubjectsRequest())).subjects) == []
        await registry.register_schema(register("b"))
        await registry.register_schema(register("b", V2, tags=["new"]))
        await registry.register_schema(register("a", b"", "string"))
        found = (await registry.list_subjects(ListSubjectsRequest())).subjects
        assert [
            (one.subject, one.schema_type, one.latest_version, one.compatibility_mode, one.schema_id, list(one.tags))
            for one in found
        ] == [("a", "string", 1, "backward", 2, []), ("b", "json_schema", 2, "backward", 1, ["new"])]

    run(test)


def test_a_topic_is_bound_and_says_so_with_the_real_id():
    async def test(registry, topics):
        await registry.register_schema(register("other"))
        await registry.register_schema(register())
        answer = await registry.configure_topic_schema(
            pb.ConfigureTopicSchemaRequest(
                topic_name=TOPIC, schema_subject="users", validation_policy="Enforce", enable_payload_validation=True
            )
        )
        assert answer.success
        assert topics.bound[TOPIC] == TopicSchema("users", ValidationPolicy.ENFORCE, payload_validation=True)
        found = await registry.get_topic_schema_config(pb.GetTopicSchemaConfigRequest(topic_name=TOPIC))
        assert found == pb.GetTopicSchemaConfigResponse(
            schema_subject="users", validation_policy="enforce", enable_payload_validation=True, schema_id=2
        )
        await registry.update_topic_validation_policy(
            pb.UpdateTopicValidationPolicyRequest(topic_name=TOPIC, validation_policy="warn")
        )
        assert topics.bound[TOPIC] == TopicSchema("users")

    run(test)


def test_a_topic_without_a_subject_warns_and_has_no_policy_to_change():
    async def test(registry, topics):
        found = await registry.get_topic_schema_config(pb.GetTopicSchemaConfigRequest(topic_name=TOPIC))
        assert found == pb.GetTopicSchemaConfigResponse(validation_policy="warn")
        with pytest.raises(PreconditionError, match="no schema subject"):
            await registry.update_topic_validation_policy(
                pb.UpdateTopicValidationPolicyRequest(topic_name=TOPIC, validation_policy="none")
            )
        assert topics.bound[TOPIC] == TopicSchema()

    run(test)


@pytest.mark.parametrize("policy", ["", "strict", "warn "])
def test_a_policy_that_does_not_exist_is_refused(policy):
    async def test(registry, topics):
        await registry.register_schema(register())
        with pytest.raises(InvalidRequestError, match="validation_policy"):
            await registry.configure_topic_schema(
                pb.ConfigureTopicSchemaRequest(topic_name=TOPIC, schema_subject="users", validation_policy=policy)
            )
        assert topics.bound[TOPIC] == TopicSchema()

    run(test)


def test_a_topic_name_that_is_none_is_refused():
    async def test(registry, _):
        with pytest.raises(InvalidNameError):
            await registry.get_topic_schema_config(pb.GetTopicSchemaConfigRequest(topic_name="users"))

    run(test)


def test_every_method_of_the_service_is_bound_to_its_messages():
    async def test(registry, _):
        service = registry.service()
        assert service.name == "danube_schema.SchemaRegistry"
        declared = pb.DESCRIPTOR.services_by_name["SchemaRegistry"].methods
        bound = {one.name: one for one in service.methods}
        assert set(bound) == {one.name for one in declared} | {"ListSubjects"}
        for one in declared:
            assert bound[one.name].request.DESCRIPTOR.full_name == one.input_type.full_name
            assert bound[one.name].response.DESCRIPTOR.full_name == one.output_type.full_name

    run(test)


def test_an_empty_request_gets_an_answer_or_a_reason():
    async def test(registry, _):
        for one in registry.service().methods:
            with suppress(ClientError):
                assert isinstance(await one.handler(one.request()), one.response)

    run(test)
