"""danube.StorageService: the completed objects of a topic."""

from __future__ import annotations

from contextlib import aclosing

from ister.broker.methods import Handlers
from ister.core.names import TopicName
from ister.rpc import danube_storage_pb2 as pb

SEGMENTS_MAX = 8192
"""As many as fit into the 4 MiB that every client accepts; the next page starts behind the last one."""


class StorageService(Handlers):
    """The handlers of danube.StorageService."""

    descriptors = (pb.DESCRIPTOR.services_by_name["StorageService"],)

    async def list_segment_descriptors(
        self, request: pb.ListSegmentDescriptorsRequest
    ) -> pb.ListSegmentDescriptorsResponse:
        """Return the objects that end behind an offset, in order; of a topic that stores nothing, none.

        A segment's id is its object's key, and it was created when its last message was appended.
        """
        name = TopicName.parse(request.topic if request.topic.startswith("/") else f"/{request.topic}")
        answer = pb.ListSegmentDescriptorsResponse()
        topic = self._broker.topics.get(str(name))
        if topic is None or not topic.reliable:
            return answer
        objects = topic.storage.objects
        if objects is None:
            return answer
        catalog = objects.reader.catalog
        # 0 asks for all: a first object that holds offset 0 alone does not end behind 0.
        start = request.after_offset + 1 if request.after_offset else 0
        holder = await catalog.find(start)
        async with aclosing(catalog.all(start if holder is None else holder.start)) as described:
            async for found in described:
                answer.segments.append(
                    pb.SegmentDescriptorProto(
                        segment_id=catalog.object_key(found),
                        start_offset=found.start,
                        end_offset=found.stop - 1,
                        size=found.size,
                        etag=found.etag,
                        created_at=found.append_time_us // 1_000_000,
                    )
                )
                if len(answer.segments) == SEGMENTS_MAX:
                    break
        return answer
