"""The handlers of the schema registry, the same on both planes.

`schema_id` is a subject's, whatever the version. A definition comes back as the bytes that were registered.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import structlog
from danube.proto import SchemaRegistry_pb2 as pb

from ister.broker.methods import build_service
from ister.broker.registry.store import NewSchema, unknown_subject
from ister.core.errors import NotFoundError, PreconditionError
from ister.core.names import TopicName
from ister.rpc.danube_schema_pb2 import ListSubjectsRequest, ListSubjectsResponse, SubjectSummary
from ister.schemas import Compatibility, SchemaType, TopicSchema, ValidationPolicy

if TYPE_CHECKING:
    from ister.broker.registry.records import SchemaVersion
    from ister.broker.registry.store import SchemaStore
    from ister.broker.topics.broker import Broker
    from ister.transport.service import Service

log = structlog.get_logger()


class SchemaRegistry:
    """Answers `danube_schema.SchemaRegistry`."""

    def __init__(self, store: SchemaStore, broker: Broker) -> None:
        self._store = store
        self._broker = broker

    def service(self) -> Service:
        """Return the service."""
        extra = {"ListSubjects": (ListSubjectsRequest, ListSubjectsResponse)}
        return build_service(pb.DESCRIPTOR.services_by_name["SchemaRegistry"], self, extra)

    # --- versions -----------------------------------------------------------------------------------------------------

    async def register_schema(self, request: pb.RegisterSchemaRequest) -> pb.RegisterSchemaResponse:
        """Create a version, unless an equal one exists."""
        made, is_new = await self._store.register(
            NewSchema(
                subject=request.subject,
                schema_type=SchemaType.parse(request.schema_type),
                definition=request.schema_definition,
                description=request.description,
                created_by=request.created_by,
                tags=tuple(request.tags),
            )
        )
        if is_new:
            log.info("schema_registered", subject=made.subject, version=made.version, schema_id=made.schema_id)
        return pb.RegisterSchemaResponse(
            schema_id=made.schema_id, version=made.version, is_new_version=is_new, fingerprint=made.fingerprint
        )

    async def get_schema(self, request: pb.GetSchemaRequest) -> pb.GetSchemaResponse:
        """Return a version by its subject's id, by default the latest."""
        version = request.version if request.HasField("version") else None
        found = self._store.find(request.schema_id, version)
        if found is None:
            of = "" if version is None else f"version {version} of "
            raise NotFoundError(f"{of}schema id {request.schema_id} not found")
        return _schema(found)

    async def get_latest_schema(self, request: pb.GetLatestSchemaRequest) -> pb.GetSchemaResponse:
        """Return a subject's latest version."""
        return _schema(self._latest(request.subject))

    async def list_versions(self, request: pb.ListVersionsRequest) -> pb.ListVersionsResponse:
        """Return a subject's versions, in order."""
        self._latest(request.subject)
        return pb.ListVersionsResponse(
            versions=[
                pb.SchemaVersionInfo(
                    version=one.version,
                    created_at=one.created_at,
                    created_by=one.created_by,
                    description=one.description,
                    fingerprint=one.fingerprint,
                    schema_id=one.schema_id,
                )
                for one in self._store.versions(request.subject)
            ]
        )

    async def check_compatibility(self, request: pb.CheckCompatibilityRequest) -> pb.CheckCompatibilityResponse:
        """Return whether a definition is compatible with the latest version."""
        mode = Compatibility.parse(request.compatibility_mode) if request.HasField("compatibility_mode") else None
        kind = SchemaType.parse(request.schema_type)
        reasons = await self._store.check(request.subject, kind, request.new_schema_definition, mode)
        return pb.CheckCompatibilityResponse(is_compatible=not reasons, errors=reasons)

    async def delete_schema_version(self, request: pb.DeleteSchemaVersionRequest) -> pb.DeleteSchemaVersionResponse:
        """Delete a version; its number is not used again."""
        await self._store.delete(request.subject, request.version)
        log.info("schema_version_deleted", subject=request.subject, version=request.version)
        message = f"Deleted version {request.version} of subject {request.subject}"
        return pb.DeleteSchemaVersionResponse(success=True, message=message)

    async def set_compatibility_mode(self, request: pb.SetCompatibilityModeRequest) -> pb.SetCompatibilityModeResponse:
        """Change the compatibility mode of a subject."""
        mode = Compatibility.parse(request.compatibility_mode)
        await self._store.set_mode(request.subject, mode)
        log.info("schema_mode_set", subject=request.subject, mode=mode.value)
        message = f"Compatibility mode of subject {request.subject} set to {mode}"
        return pb.SetCompatibilityModeResponse(success=True, message=message)

    async def list_subjects(self, request: ListSubjectsRequest) -> ListSubjectsResponse:  # noqa: ARG002  # it is empty
        """Return every subject that has a version, by name."""
        return ListSubjectsResponse(
            subjects=[
                SubjectSummary(
                    subject=one.subject,
                    schema_type=one.schema_type,
                    latest_version=one.version,
                    compatibility_mode=one.compatibility,
                    schema_id=one.schema_id,
                    tags=one.tags,
                )
                for one in self._store.subjects()
            ]
        )

    # --- topics -------------------------------------------------------------------------------------------------------

    async def configure_topic_schema(self, request: pb.ConfigureTopicSchemaRequest) -> pb.ConfigureTopicSchemaResponse:
        """Bind a topic to a subject, replacing an earlier binding."""
        topic = TopicName.parse(request.topic_name)
        policy = ValidationPolicy.parse(request.validation_policy)
        self._latest(request.schema_subject)
        schema = TopicSchema(request.schema_subject, policy, request.enable_payload_validation)
        await self._broker.change_schema(topic, lambda _: schema)
        _log_schema(topic, schema)
        message = f"Topic {topic} is bound to subject {schema.subject}, validation {policy}"
        return pb.ConfigureTopicSchemaResponse(success=True, message=message)

    async def update_topic_validation_policy(
        self, request: pb.UpdateTopicValidationPolicyRequest
    ) -> pb.UpdateTopicValidationPolicyResponse:
        """Change the validation of a topic's messages."""
        topic = TopicName.parse(request.topic_name)
        policy = ValidationPolicy.parse(request.validation_policy)

        def change(present: TopicSchema) -> TopicSchema:
            if present.subject is None:
                raise PreconditionError(f"topic {topic} has no schema subject; configure one first")
            return replace(present, validation=policy, payload_validation=request.enable_payload_validation)

        schema = await self._broker.change_schema(topic, change)
        _log_schema(topic, schema)
        message = f"Validation of topic {topic} is {policy}"
        return pb.UpdateTopicValidationPolicyResponse(success=True, message=message)

    async def get_topic_schema_config(self, request: pb.GetTopicSchemaConfigRequest) -> pb.GetTopicSchemaConfigResponse:
        """Return a topic's schema binding and validation."""
        schema = await self._broker.schema_of(TopicName.parse(request.topic_name))
        latest = None if schema.subject is None else self._store.latest(schema.subject)
        return pb.GetTopicSchemaConfigResponse(
            schema_subject=schema.subject or "",
            validation_policy=schema.validation,
            enable_payload_validation=schema.payload_validation,
            schema_id=0 if latest is None else latest.schema_id,
        )

    def _latest(self, subject: str) -> SchemaVersion:
        found = self._store.latest(subject)
        if found is None:
            raise unknown_subject(subject)
        return found


def _schema(version: SchemaVersion) -> pb.GetSchemaResponse:
    return pb.GetSchemaResponse(
        schema_id=version.schema_id,
        version=version.version,
        subject=version.subject,
        schema_type=version.schema_type,
        schema_definition=version.definition,
        description=version.description,
        created_at=version.created_at,
        created_by=version.created_by,
        tags=version.tags,
        fingerprint=version.fingerprint,
        compatibility_mode=version.compatibility,
    )


def _log_schema(topic: TopicName, schema: TopicSchema) -> None:
    log.info("topic_schema_set", topic=str(topic), subject=schema.subject, validation=schema.validation.value,
             payloads=schema.payload_validation)  # fmt: skip
