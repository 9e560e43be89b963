"""ister.v1.Storage: what the pipeline asks of the broker."""

from __future__ import annotations

from contextlib import aclosing
from hmac import compare_digest
from typing import TYPE_CHECKING

from ister.broker.service import ServerStream, Service, Unary
from ister.broker.texts import check_name
from ister.broker.v1_shapes import topic_of
from ister.core.errors import DeniedError, InvalidRequestError, NotFoundError, OffsetOutOfRangeError, PreconditionError
from ister.core.splits import SPLIT_BYTES, SPLIT_BYTES_MIN, SPLITS_MAX
from ister.core.tokens import TOKEN_KEY
from ister.rpc import ister_v1_pb2 as pb
from ister.storage.spans import LogPart, ObjectPart, plan_parts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ister.broker.broker import Broker
    from ister.broker.service import Call
    from ister.broker.topic import Topic
    from ister.storage.tiers import ObjectTier


class V1Storage:
    """The handlers of ister.v1.Storage; without a token nobody is told of files."""

    def __init__(self, broker: Broker, *, token: str | None = None) -> None:
        self._broker = broker
        self._token = token

    def services(self) -> tuple[Service, ...]:
        """Describe the service."""
        return (
            Service(
                "ister.v1.Storage",
                (
                    Unary("ListTopics", self.list_topics, pb.ListTopicsRequest, pb.ListTopicsResponse),
                    Unary("GetSchema", self.get_schema, pb.GetSchemaRequest, pb.GetSchemaResponse),
                    Unary("ListSpans", self.list_spans, pb.ListSpansRequest, pb.ListSpansResponse),
                    Unary("RequestSync", self.request_sync, pb.RequestSyncRequest, pb.RequestSyncResponse),
                    Unary("RequestUpload", self.request_upload, pb.RequestUploadRequest, pb.RequestUploadResponse),
                    ServerStream("WatchWakeups", self.watch_wakeups, pb.WatchWakeupsRequest, pb.Wakeup),
                    Unary("WakePipeline", self.wake_pipeline, pb.WakePipelineRequest, pb.WakePipelineResponse),
                    Unary(
                        "RegisterPipeline",
                        self.register_pipeline,
                        pb.RegisterPipelineRequest,
                        pb.RegisterPipelineResponse,
                        finishes=True,
                    ),
                    Unary("ReportUpto", self.report_upto, pb.ReportUptoRequest, pb.ReportUptoResponse, finishes=True),
                ),
            ),
        )

    # --- what there is ------------------------------------------------------------------------------------------------

    async def list_topics(self, request: pb.ListTopicsRequest) -> pb.ListTopicsResponse:
        """Tell of all topics, or those of one namespace, sorted by name; one in trouble has no offsets."""
        broker = self._broker
        topics = broker.topics_of(request.namespace) if request.namespace else broker.all_topics()
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
        """Tell where a topic's messages lie, up to the synced offset; exactly those from `from_offset` on."""
        with_log = self._is_child(call)
        topic, objects = self._stored(request.topic, request.generation)
        storage = topic.storage
        synced = storage.wal.synced_offset
        start = storage.frames_start  # what is older is in the table only, where the pipeline has put it
        at = request.from_offset
        if not start <= at <= storage.next_offset:
            raise OffsetOutOfRangeError(at, start, storage.next_offset)
        parts = await plan_parts(
            storage,
            at,
            synced if with_log else min(synced, objects.span.stop),
            with_log=with_log,
            split_bytes=max(SPLIT_BYTES_MIN, request.split_bytes or SPLIT_BYTES),
            parts_max=min(SPLITS_MAX, request.splits_max or SPLITS_MAX),
        )
        return pb.ListSpansResponse(
            generation=topic.generation,
            splits=[_split(part) for part in parts],
            stop_offset=parts[-1].share.stop.offset if parts else at,
            synced_offset=synced,
            start_offset=start,
        )

    # --- what is to be done -------------------------------------------------------------------------------------------

    async def request_sync(self, request: pb.RequestSyncRequest) -> pb.RequestSyncResponse:
        """Answer once everything that is in the log now is synced."""
        topic, _ = self._stored(request.topic, request.generation)
        storage = topic.storage
        await storage.flush()
        return pb.RequestSyncResponse(synced_offset=storage.wal.synced_offset)

    async def request_upload(self, request: pb.RequestUploadRequest) -> pb.RequestUploadResponse:
        """Answer once everything that is synced now is in objects."""
        topic, objects = self._stored(request.topic, request.generation)
        if objects.uploader is None:
            raise PreconditionError("this broker uploads nothing; enable wal_cloud.uploader in its configuration")
        await objects.uploader.wait_uploaded(topic.storage.wal.synced_offset, objects.timeout_s)
        return pb.RequestUploadResponse(cloud_stop=objects.span.stop)

    # --- pipelines ----------------------------------------------------------------------------------------------------

    async def watch_wakeups(self, request: pb.WatchWakeupsRequest) -> AsyncIterator[pb.Wakeup]:
        """Tell the owner what producers wait for, until another pipeline registers."""
        pipelines = self._broker.pipelines
        pipelines.check(request.epoch)
        async with aclosing(pipelines.wakeups.watch()) as wakeups:
            async for topic, generation, upto in wakeups:
                yield pb.Wakeup(topic=topic, generation=generation, upto=upto)

    async def wake_pipeline(self, request: pb.WakePipelineRequest) -> pb.WakePipelineResponse:
        """Wake the owner as a producer does that waits for what the table is said to hold already: it looks again."""
        topic, _ = self._stored(request.topic, request.generation)
        pipelines = self._broker.pipelines
        pipelines.wakeups.wake(str(topic.name), topic.generation, pipelines.upto(topic.name, topic.generation) or 0)
        return pb.WakePipelineResponse()

    async def register_pipeline(self, request: pb.RegisterPipelineRequest) -> pb.RegisterPipelineResponse:
        """Make a pipeline the owner, or let the owner go on with a higher epoch."""
        check_name("name", request.name)
        epoch = await self._broker.pipelines.register(
            request.name, owner_epoch=request.owner_epoch, least_epoch=request.least_epoch
        )
        return pb.RegisterPipelineResponse(epoch=epoch)

    async def report_upto(self, request: pb.ReportUptoRequest) -> pb.ReportUptoResponse:
        """Keep how far a topic's table is; only what is synced can be in it."""
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
        """Return a reliable topic of the generation that is meant, and its objects."""
        topic = self._broker.topic(text)
        objects = topic.storage.objects
        assert objects is not None, "every topic of a factory has objects, if only none yet"
        if generation not in {0, topic.generation}:
            raise PreconditionError(
                f"topic {text} has generation {topic.generation}, not {generation}: it was deleted and made again"
            )
        return topic, objects

    def _is_child(self, call: Call) -> bool:
        """Tell whether the broker's own child asks; one who only pretends is refused."""
        given = call.header(TOKEN_KEY)
        if given is None:
            return False
        if self._token is None or not compare_digest(given.encode(), self._token.encode()):
            raise DeniedError(f"{TOKEN_KEY} is not the one that this broker gave to its pipeline; start that anew")
        return True


def _split(part: LogPart | ObjectPart) -> pb.Split:
    start, stop = part.share
    split = pb.Split(start_offset=start.offset, stop_offset=stop.offset, start_byte=start.byte, stop_byte=stop.byte)
    if isinstance(part, LogPart):
        split.log.path = part.path
    else:
        split.object.CopyFrom(pb.Object(key=part.key, etag=part.etag, size=part.size))
    return split
