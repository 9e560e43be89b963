"""ister.v1.Storage: the contract between broker and pipeline."""

from __future__ import annotations

from contextlib import aclosing
from hmac import compare_digest
from typing import TYPE_CHECKING

from ister.broker.methods import Handlers
from ister.broker.services.wire import topic_of
from ister.config.environment import TOKEN_KEY
from ister.core.errors import DeniedError, InvalidRequestError, NotFoundError, OffsetOutOfRangeError, PreconditionError
from ister.core.names import check_name
from ister.core.tiers.splits import SPLIT_BYTES, SPLIT_BYTES_MIN, SPLITS_MAX
from ister.rpc import ister_v1_pb2 as pb
from ister.storage.plan_splits import plan_splits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ister.broker.topics.broker import Broker
    from ister.broker.topics.topic import Topic
    from ister.core.tiers.splits import Split
    from ister.storage.tiered_reader import ObjectTier
    from ister.transport.service import Call


class IsterStorage(Handlers):
    """The handlers of ister.v1.Storage; log files are named only to the holder of `token`."""

    descriptors = (pb.DESCRIPTOR.services_by_name["Storage"],)

    def __init__(self, broker: Broker, *, token: str | None = None) -> None:
        super().__init__(broker)
        self._token = token

    # --- topics and splits ---------------------------------------------------------------------------------------------

    async def list_topics(self, request: pb.ListTopicsRequest) -> pb.ListTopicsResponse:
        """Return all topics, or those of a namespace, sorted by name; one with a problem has no offsets."""
        broker = self._broker
        topics = broker.namespaces.topics(request.namespace) if request.namespace else broker.topics.sorted()
        return pb.ListTopicsResponse(topics=[topic_of(broker, topic) for topic in topics])

    async def get_schema(self, request: pb.GetSchemaRequest) -> pb.GetSchemaResponse:
        """Return one version of a schema, as it was registered."""
        found = self._broker.schemas.find(request.schema_id, request.version or None)
        if found is None:
            version = f"version {request.version}" if request.version else "any version"
            raise NotFoundError(f"schema {request.schema_id} not found in {version}")
        return pb.GetSchemaResponse(
            schema_id=found.schema_id,
            version=found.version,
            subject=found.subject,
            schema_type=found.schema_type,
            definition=found.definition,
            fingerprint=found.fingerprint,
        )

    async def list_spans(self, request: pb.ListSpansRequest, call: Call) -> pb.ListSpansResponse:
        """Return the splits that cover a topic exactly from `from_offset` to the synced offset."""
        with_log = self._is_child(call)
        topic, objects = self._stored(request.topic, request.generation)
        storage = topic.storage
        synced = storage.wal.synced_offset
        start = storage.frames_start  # older messages are in the table only
        at = request.from_offset
        if not start <= at <= storage.next_offset:
            raise OffsetOutOfRangeError(at, start, storage.next_offset)
        splits = await plan_splits(
            storage,
            at,
            synced if with_log else min(synced, objects.span.stop),
            with_log=with_log,
            split_bytes=max(SPLIT_BYTES_MIN, request.split_bytes or SPLIT_BYTES),
            splits_max=min(SPLITS_MAX, request.splits_max or SPLITS_MAX),
        )
        return pb.ListSpansResponse(
            generation=topic.generation,
            splits=map(_to_wire, splits),
            stop_offset=splits[-1].stop if splits else at,
            synced_offset=synced,
            start_offset=start,
        )

    # --- sync and upload ----------------------------------------------------------------------------------------------

    async def request_sync(self, request: pb.RequestSyncRequest) -> pb.RequestSyncResponse:
        """Return once everything that is in the log now is synced."""
        topic, _ = self._stored(request.topic, request.generation)
        storage = topic.storage
        await storage.flush()
        return pb.RequestSyncResponse(synced_offset=storage.wal.synced_offset)

    async def request_upload(self, request: pb.RequestUploadRequest) -> pb.RequestUploadResponse:
        """Return once everything that is synced now is in objects."""
        topic, objects = self._stored(request.topic, request.generation)
        if objects.uploader is None:
            raise PreconditionError("this broker uploads nothing; enable wal_cloud.uploader in its configuration")
        await objects.uploader.wait_uploaded(topic.storage.wal.synced_offset, objects.timeout_s)
        return pb.RequestUploadResponse(cloud_stop=objects.span.stop)

    # --- pipelines ----------------------------------------------------------------------------------------------------

    async def watch_wakeups(self, request: pb.WatchWakeupsRequest) -> AsyncIterator[pb.Wakeup]:
        """Stream what producers wait for to the owner, until another pipeline registers."""
        pipelines = self._broker.pipelines
        pipelines.check(request.epoch)
        async with aclosing(pipelines.wakeups.watch()) as wakeups:
            async for topic, generation, upto in wakeups:
                yield pb.Wakeup(topic=topic, generation=generation, upto=upto)

    async def wake_pipeline(self, request: pb.WakePipelineRequest) -> pb.WakePipelineResponse:
        """Wake the owner for what the table is reported to hold already, so that it checks the table."""
        topic, _ = self._stored(request.topic, request.generation)
        pipelines = self._broker.pipelines
        pipelines.wakeups.wake(str(topic.name), topic.generation, pipelines.upto(topic.name, topic.generation) or 0)
        return pb.WakePipelineResponse()

    async def register_pipeline(self, request: pb.RegisterPipelineRequest) -> pb.RegisterPipelineResponse:
        """Make a pipeline the owner, or give the owner a higher epoch."""
        check_name("name", request.name)
        epoch = await self._broker.pipelines.register(
            request.name, owner_epoch=request.owner_epoch, least_epoch=request.least_epoch
        )
        return pb.RegisterPipelineResponse(epoch=epoch)

    async def report_upto(self, request: pb.ReportUptoRequest) -> pb.ReportUptoResponse:
        """Record the committed offset of a topic's table, which is at most the synced offset."""
        pipelines = self._broker.pipelines
        if not request.generation:
            raise InvalidRequestError("generation is missing: a table is of one generation")
        pipelines.check(request.epoch)
        topic, _ = self._stored(request.topic, request.generation)
        synced = topic.storage.wal.synced_offset
        if request.upto > synced:
            raise OffsetOutOfRangeError(request.upto, 0, synced)
        upto = await pipelines.report(topic.name, topic.generation, request.epoch, request.upto)
        topic.storage.table_reached(upto)
        return pb.ReportUptoResponse(upto=upto)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _stored(self, text: str, generation: int) -> tuple[Topic, ObjectTier]:
        """Return a reliable topic of this generation, and its objects."""
        topic = self._broker.topics.find(text)
        objects = topic.storage.objects
        assert objects is not None, "every topic of a factory has objects, if only none yet"
        if generation not in {0, topic.generation}:
            raise PreconditionError(
                f"topic {text} has generation {topic.generation}, not {generation}: it was deleted and made again"
            )
        return topic, objects

    def _is_child(self, call: Call) -> bool:
        """Return True if the caller is the broker's own child; raise DeniedError for a wrong token."""
        given = call.header(TOKEN_KEY)
        if given is None:
            return False
        if self._token is None or not compare_digest(given.encode(), self._token.encode()):
            raise DeniedError(f"{TOKEN_KEY} is not the one that this broker gave to its pipeline; start that anew")
        return True


def _to_wire(split: Split) -> pb.Split:
    return pb.Split(
        start_offset=split.start,
        stop_offset=split.stop,
        start_byte=split.start_byte,
        stop_byte=split.stop_byte,
        log=pb.LogFile(path=split.path) if split.path else None,
        object=None if split.path else pb.Object(key=split.key, etag=split.etag, size=split.object_bytes),
    )
