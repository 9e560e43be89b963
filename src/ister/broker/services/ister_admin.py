"""ister.v1.Admin: administration beyond Danube's own protocol."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import structlog

from ister.broker.methods import Handlers
from ister.broker.services.wire import detail_of, no_subscription, subscription_to_wire
from ister.config.policies import Policies
from ister.core.errors import InvalidRequestError, OffsetOutOfRangeError, PreconditionError
from ister.core.names import TopicName, check_name
from ister.rpc import ister_v1_pb2 as pb

if TYPE_CHECKING:
    from ister.broker.topics.topic import Stored, Topic

log = structlog.get_logger()

TIME_MS_MAX = 253_402_300_799_999
"""The end of the year 9999: refuses times in another unit than milliseconds."""


class IsterAdmin(Handlers):
    """The handlers of ister.v1.Admin."""

    descriptors = (pb.DESCRIPTOR.services_by_name["Admin"],)

    # --- cursors ------------------------------------------------------------------------------------------------------

    async def reset_cursor(self, request: pb.ResetCursorRequest) -> pb.ResetCursorResponse:
        """Move the cursor of a subscription; unacknowledged deliveries are dropped, its consumers stay."""
        name = TopicName.parse(request.topic)
        _check_target(request)
        async with self._broker.topics.changing(name):
            topic = self._broker.topics.find(request.topic)
            check_name("subscription", request.subscription)
            topic.check()
            found = await self._broker.subscriptions.acquire(topic, request.subscription)
            if found is None:
                raise no_subscription(topic, request.subscription)
            subscription = found.reliable
            if subscription is None:
                raise PreconditionError(f"topic {topic.text} is not reliable: its subscriptions have no place")
            storage = topic.stored
            cursor = await _cursor_of(storage, request)
            if not storage.start_offset <= cursor <= storage.next_offset:
                raise OffsetOutOfRangeError(cursor, storage.start_offset, storage.next_offset)
            previous = subscription.cursor
            # In memory first, so that a concurrent save of cursors does not overwrite this one.
            subscription.reset_cursor(cursor)
            await storage.reset_cursor(subscription.name, cursor)
        log.info("cursor_reset", topic=topic.text, subscription=subscription.name, cursor=cursor, previous=previous)
        return pb.ResetCursorResponse(cursor=cursor, previous=previous)

    # --- policies -----------------------------------------------------------------------------------------------------

    async def set_topic_policies(self, request: pb.SetTopicPoliciesRequest) -> pb.SetTopicPoliciesResponse:
        """Replace a topic's own policies."""
        name = TopicName.parse(request.topic)
        await self._broker.set_topic_policies(name, Policies.parse(request.policies))
        return pb.SetTopicPoliciesResponse(effective=self._broker.topics.find(request.topic).policies.to_json())

    async def get_topic_policies(self, request: pb.GetTopicPoliciesRequest) -> pb.GetTopicPoliciesResponse:
        """Return a topic's own and effective policies."""
        topic = self._broker.topics.find(request.topic)
        return pb.GetTopicPoliciesResponse(policies=topic.record.policies.to_json(), effective=topic.policies.to_json())

    async def set_namespace_policies(self, request: pb.SetNamespacePoliciesRequest) -> pb.SetNamespacePoliciesResponse:
        """Replace a namespace's own policies."""
        await self._broker.set_namespace_policies(request.namespace, Policies.parse(request.policies))
        effective = self._broker.namespaces.policies(request.namespace)
        return pb.SetNamespacePoliciesResponse(effective=effective.to_json())

    async def get_namespace_policies(self, request: pb.GetNamespacePoliciesRequest) -> pb.GetNamespacePoliciesResponse:
        """Return a namespace's own and effective policies."""
        own = self._broker.namespaces.find(request.namespace).policies
        effective = self._broker.namespaces.policies(request.namespace)
        return pb.GetNamespacePoliciesResponse(policies=own.to_json(), effective=effective.to_json())

    # --- inspection ---------------------------------------------------------------------------------------------------

    async def describe_subscription(self, request: pb.DescribeSubscriptionRequest) -> pb.DescribeSubscriptionResponse:
        """Return the state of a subscription."""
        topic = self._broker.topics.find(request.topic)
        check_name("subscription", request.subscription)
        topic.check()
        found = {one.name: one for one in await self._subscriptions(topic)}.get(request.subscription)
        if found is None:
            raise no_subscription(topic, request.subscription)
        return pb.DescribeSubscriptionResponse(subscription=found)

    async def describe_subscriptions(
        self, request: pb.DescribeSubscriptionsRequest
    ) -> pb.DescribeSubscriptionsResponse:
        """Return the state of all subscriptions of a topic, sorted by name."""
        topic = self._broker.topics.find(request.topic)
        topic.check()
        return pb.DescribeSubscriptionsResponse(subscriptions=await self._subscriptions(topic))

    async def describe_topic(self, request: pb.DescribeTopicRequest) -> pb.DescribeTopicResponse:
        """Return the details of a topic, with the size of its objects, which are listed for it."""
        topic = self._broker.topics.find(request.topic)
        cloud_bytes = await _cloud_bytes(topic)
        return pb.DescribeTopicResponse(topic=detail_of(self._broker, topic, cloud_bytes=cloud_bytes))

    async def list_topics(self, request: pb.ListTopicDetailsRequest) -> pb.ListTopicDetailsResponse:
        """Return the details of all topics, or of a namespace's, sorted by name, without the size of objects."""
        broker = self._broker
        topics = broker.namespaces.topics(request.namespace) if request.namespace else broker.topics.sorted()
        return pb.ListTopicDetailsResponse(topics=[detail_of(broker, topic) for topic in topics])

    async def _subscriptions(self, topic: Topic) -> list[pb.Subscription]:
        """Return a topic's subscriptions, sorted by name, including those that are not served here."""
        durable = await topic.stored.cursors() if topic.reliable else {}
        window = self._broker.settings.max_unacked_messages
        records = {**topic.dormant, **{name: served.record for name, served in topic.subscriptions.items()}}
        return [
            subscription_to_wire(topic, name, records[name], window, durable) for name in topic.subscription_names()
        ]


def _check_target(request: pb.ResetCursorRequest) -> None:
    match request.WhichOneof("to"):
        case None:
            raise InvalidRequestError("one of offset, time_ms, earliest and latest must be given")
        case "earliest" | "latest" as word if not getattr(request, word):
            raise InvalidRequestError(f"{word} can only be true")
        case "time_ms" if request.time_ms > TIME_MS_MAX:
            raise InvalidRequestError(f"time_ms {request.time_ms} is behind the year 9999; is it in milliseconds?")


async def _cursor_of(storage: Stored, request: pb.ResetCursorRequest) -> int:
    match request.WhichOneof("to"):
        case "offset":
            return request.offset
        case "time_ms":
            return await storage.offset_at(request.time_ms * 1000)
        case "earliest":
            return storage.start_offset
        case _:
            return storage.next_offset


async def _cloud_bytes(topic: Topic) -> int:
    storage = topic.log
    if storage is None or storage.objects is None:
        return 0
    async with aclosing(storage.objects.reader.catalog.all()) as described:
        return sum([descriptor.size async for descriptor in described])
