"""ister.v1.Admin: what administration needs beyond Danube's own protocol."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import structlog

from ister.broker.service import Service, Unary
from ister.broker.subscription import ReliableSubscription
from ister.broker.texts import check_name
from ister.broker.v1_shapes import detail_of, shape_absent, shape_subscription
from ister.config.policies import Policies
from ister.core.errors import InvalidRequestError, NotFoundError, OffsetOutOfRangeError, PreconditionError
from ister.core.names import TopicName
from ister.rpc import ister_v1_pb2 as pb

if TYPE_CHECKING:
    from ister.broker.broker import Broker
    from ister.broker.topic import Stored, Topic

log = structlog.get_logger()

TIME_MS_MAX = 253_402_300_799_999
"""The end of the year 9999: a time in another unit than milliseconds is refused, not taken for the future."""


class V1Admin:
    """The handlers of ister.v1.Admin."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def services(self) -> tuple[Service, ...]:
        """Describe the service."""
        return (
            Service(
                "ister.v1.Admin",
                (
                    Unary(
                        "ResetCursor", self.reset_cursor, pb.ResetCursorRequest, pb.ResetCursorResponse, finishes=True
                    ),
                    Unary(
                        "SetTopicPolicies",
                        self.set_topic_policies,
                        pb.SetTopicPoliciesRequest,
                        pb.SetTopicPoliciesResponse,
                        finishes=True,
                    ),
                    Unary(
                        "GetTopicPolicies",
                        self.get_topic_policies,
                        pb.GetTopicPoliciesRequest,
                        pb.GetTopicPoliciesResponse,
                    ),
                    Unary(
                        "SetNamespacePolicies",
                        self.set_namespace_policies,
                        pb.SetNamespacePoliciesRequest,
                        pb.SetNamespacePoliciesResponse,
                        finishes=True,
                    ),
                    Unary(
                        "GetNamespacePolicies",
                        self.get_namespace_policies,
                        pb.GetNamespacePoliciesRequest,
                        pb.GetNamespacePoliciesResponse,
                    ),
                    Unary(
                        "DescribeSubscription",
                        self.describe_subscription,
                        pb.DescribeSubscriptionRequest,
                        pb.DescribeSubscriptionResponse,
                    ),
                    Unary(
                        "DescribeSubscriptions",
                        self.describe_subscriptions,
                        pb.DescribeSubscriptionsRequest,
                        pb.DescribeSubscriptionsResponse,
                    ),
                    Unary("DescribeTopic", self.describe_topic, pb.DescribeTopicRequest, pb.DescribeTopicResponse),
                    Unary("ListTopics", self.list_topics, pb.ListTopicDetailsRequest, pb.ListTopicDetailsResponse),
                ),
            ),
        )

    # --- cursors ------------------------------------------------------------------------------------------------------

    async def reset_cursor(self, request: pb.ResetCursorRequest) -> pb.ResetCursorResponse:
        """Move a subscription; what it had unacknowledged is forgotten, its consumers stay."""
        name = TopicName.parse(request.topic)
        _check_target(request)
        async with self._broker.changing(name):
            topic = self._broker.topic(request.topic)
            check_name("subscription", request.subscription)
            topic.check()
            subscription = await self._broker.subscription(topic, request.subscription)
            if subscription is None:
                raise _unknown(topic, request.subscription)
            if not isinstance(subscription, ReliableSubscription):
                raise PreconditionError(f"topic {topic.text} is not reliable: its subscriptions have no place")
            storage = topic.stored
            cursor = await _cursor_of(storage, request)
            if not storage.start_offset <= cursor <= storage.next_offset:
                raise OffsetOutOfRangeError(cursor, storage.start_offset, storage.next_offset)
            previous = subscription.cursor
            # In memory first: progress that is just being saved is then never written over what is written here.
            subscription.start_anew(cursor)
            await storage.reset_cursor(subscription.name, cursor)
        log.info("cursor_reset", topic=topic.text, subscription=subscription.name, cursor=cursor, previous=previous)
        return pb.ResetCursorResponse(cursor=cursor, previous=previous)

    # --- policies -----------------------------------------------------------------------------------------------------

    async def set_topic_policies(self, request: pb.SetTopicPoliciesRequest) -> pb.SetTopicPoliciesResponse:
        """Replace a topic's own policies, at once and for ever."""
        name = TopicName.parse(request.topic)
        await self._broker.set_topic_policies(name, Policies.parse(request.policies))
        return pb.SetTopicPoliciesResponse(effective=self._broker.topic(request.topic).policies.to_json())

    async def get_topic_policies(self, request: pb.GetTopicPoliciesRequest) -> pb.GetTopicPoliciesResponse:
        """Return a topic's own policies, and those that hold."""
        topic = self._broker.topic(request.topic)
        return pb.GetTopicPoliciesResponse(policies=topic.record.policies.to_json(), effective=topic.policies.to_json())

    async def set_namespace_policies(self, request: pb.SetNamespacePoliciesRequest) -> pb.SetNamespacePoliciesResponse:
        """Replace a namespace's own policies; they reach its topics at once."""
        await self._broker.set_namespace_policies(request.namespace, Policies.parse(request.policies))
        effective = self._broker.namespace_policies(request.namespace)
        return pb.SetNamespacePoliciesResponse(effective=effective.to_json())

    async def get_namespace_policies(self, request: pb.GetNamespacePoliciesRequest) -> pb.GetNamespacePoliciesResponse:
        """Return a namespace's own policies, and those that hold for its topics."""
        own = self._broker.namespace(request.namespace).policies
        effective = self._broker.namespace_policies(request.namespace)
        return pb.GetNamespacePoliciesResponse(policies=own.to_json(), effective=effective.to_json())

    # --- looking ------------------------------------------------------------------------------------------------------

    async def describe_subscription(self, request: pb.DescribeSubscriptionRequest) -> pb.DescribeSubscriptionResponse:
        """Tell where a subscription stands."""
        topic = self._broker.topic(request.topic)
        check_name("subscription", request.subscription)
        topic.check()
        told = {one.name: one for one in await self._told(topic)}.get(request.subscription)
        if told is None:
            raise _unknown(topic, request.subscription)
        return pb.DescribeSubscriptionResponse(subscription=told)

    async def describe_subscriptions(
        self, request: pb.DescribeSubscriptionsRequest
    ) -> pb.DescribeSubscriptionsResponse:
        """Tell where all subscriptions of a topic stand, sorted by name."""
        topic = self._broker.topic(request.topic)
        topic.check()
        return pb.DescribeSubscriptionsResponse(subscriptions=await self._told(topic))

    async def describe_topic(self, request: pb.DescribeTopicRequest) -> pb.DescribeTopicResponse:
        """Tell what there is to know of a topic, with the size of its objects, which are counted for this."""
        topic = self._broker.topic(request.topic)
        cloud_bytes = await _cloud_bytes(topic)
        return pb.DescribeTopicResponse(topic=detail_of(self._broker, topic, cloud_bytes=cloud_bytes))

    async def list_topics(self, request: pb.ListTopicDetailsRequest) -> pb.ListTopicDetailsResponse:
        """Tell of all topics, or those of one namespace, sorted by name; the size of objects is left out."""
        broker = self._broker
        topics = broker.topics_of(request.namespace) if request.namespace else broker.all_topics()
        return pb.ListTopicDetailsResponse(topics=[detail_of(broker, topic) for topic in topics])

    async def _told(self, topic: Topic) -> list[pb.Subscription]:
        """Tell of a topic's subscriptions, sorted by name, those too that another broker may be serving."""
        kept = await topic.stored.cursors() if topic.reliable else {}
        window = self._broker.settings.max_unacked_messages
        served = {
            name: shape_subscription(topic, subscription, window, kept)
            for name, subscription in topic.subscriptions.items()
        }
        absent = {
            name: shape_absent(topic, name, record, window, kept)
            for name, record in topic.settings_of.items()
            if record.made
        }
        return [told for _, told in sorted((absent | served).items())]


def _unknown(topic: Topic, name: str) -> NotFoundError:
    return NotFoundError(f"subscription {name} of topic {topic.text} not found")


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
