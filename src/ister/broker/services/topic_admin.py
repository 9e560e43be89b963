"""danube_admin.TopicAdmin: topics and their subscriptions."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING

import structlog

from ister.broker.methods import Handlers
from ister.broker.services.broker_admin import ALONE, broker_id
from ister.broker.services.wire import is_reliable, no_subscription, policy_from_wire, policy_to_wire
from ister.broker.topics.records import SubscriptionRecord
from ister.core.errors import InvalidRequestError, LimitError, NotFoundError, PreconditionError, UnsupportedError
from ister.core.names import TopicName, check_name, partition_of
from ister.rpc import danube_admin_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ister.broker.topics.topic import Topic
    from ister.core.dispatch.failure import FailurePolicy

log = structlog.get_logger()

PARTITIONS_MAX = 1024
WINDOW_MAX = 10_000
SETTINGS_MAX = 1000
"""How many subscriptions of a topic may have settings without being created."""


class TopicAdmin(Handlers):
    """The handlers of danube_admin.TopicAdmin."""

    descriptors = (pb.DESCRIPTOR.services_by_name["TopicAdmin"],)

    # --- topics -------------------------------------------------------------------------------------------------------

    async def create_topic(self, request: pb.NewTopicRequest) -> pb.TopicResponse:
        """Create a topic."""
        name = TopicName.parse(request.name)
        reliable = is_reliable(request.dispatch_strategy)
        await self._broker.create_topic(name, reliable=reliable, subject=self._subject(request.schema_subject))
        return pb.TopicResponse(success=True)

    async def create_partitioned_topic(self, request: pb.PartitionedTopicRequest) -> pb.TopicResponse:
        """Create all partitions of a topic, or none."""
        base = TopicName.parse(request.base_name)
        count = request.partitions
        if not 1 <= count <= PARTITIONS_MAX:
            raise InvalidRequestError(f"partitions {count} must be from 1 to {PARTITIONS_MAX}")
        if partition_of(base) is not None:
            raise InvalidRequestError(f"base_name {base} is itself the name of a partition")
        TopicName(base.namespace, f"{base.topic}-part-{count - 1}")  # validates the longest name first
        reliable = is_reliable(request.dispatch_strategy)
        subject = self._subject(request.schema_subject)
        await self._broker.create_partitioned(base, count, reliable=reliable, subject=subject)
        return pb.TopicResponse(success=True)

    async def delete_topic(self, request: pb.TopicRequest) -> pb.TopicResponse:
        """Delete a topic with all its messages, or all partitions of one."""
        await self._broker.delete_topic(TopicName.parse(request.name))
        return pb.TopicResponse(success=True)

    async def unload_topic(self, request: pb.TopicRequest) -> pb.TopicResponse:
        """Raise UnsupportedError: topics do not move between brokers."""
        self._broker.topics.find(request.name)
        raise UnsupportedError(ALONE)

    async def describe_topic(self, request: pb.DescribeTopicRequest) -> pb.DescribeTopicResponse:
        """Return the details of a topic."""
        topic = self._broker.topics.find(request.name)
        answer = pb.DescribeTopicResponse(
            name=topic.text,
            subscriptions=topic.subscription_names(),
            broker_id=broker_id(self._broker),
            delivery=_delivery(topic),
        )
        subject = topic.record.topic_schema.subject
        if subject is not None:
            answer.schema_subject = subject
            latest = self._broker.schemas.latest(subject)
            if latest is not None:
                answer.schema_id = latest.schema_id
                answer.schema_version = latest.version
                answer.schema_type = latest.schema_type
                answer.compatibility_mode = latest.compatibility
        return answer

    async def list_namespace_topics(self, request: pb.NamespaceRequest) -> pb.TopicInfoListResponse:
        """Return a namespace's topics, sorted."""
        return self._infos(self._broker.namespaces.topics(request.name))

    async def list_broker_topics(self, request: pb.BrokerRequest) -> pb.TopicInfoListResponse:
        """Return the topics of this broker, sorted."""
        if request.broker_id != broker_id(self._broker):
            raise NotFoundError(f"broker {request.broker_id[:80]!r} not found; this one is {broker_id(self._broker)}")
        return self._infos(self._broker.topics.sorted())

    def _infos(self, topics: Iterable[Topic]) -> pb.TopicInfoListResponse:
        this = broker_id(self._broker)
        infos = [pb.TopicInfo(name=topic.text, broker_id=this, delivery=_delivery(topic)) for topic in topics]
        return pb.TopicInfoListResponse(topics=infos)

    def _subject(self, subject: str) -> str | None:
        """Return a registered schema subject, None if none was given."""
        if subject and not self._broker.schemas.exists(subject):
            raise PreconditionError(f"schema subject {subject[:80]!r} not found; register it first")
        return subject or None

    # --- subscriptions ------------------------------------------------------------------------------------------------

    async def list_subscriptions(self, request: pb.TopicRequest) -> pb.SubscriptionListResponse:
        """Return a topic's subscriptions, sorted."""
        topic = self._broker.topics.find(request.name)
        return pb.SubscriptionListResponse(subscriptions=topic.subscription_names())

    async def unsubscribe(self, request: pb.SubscriptionRequest) -> pb.SubscriptionResponse:
        """Delete a subscription without connected consumers, with its cursor and settings."""
        name = TopicName.parse(request.topic)
        check_name("subscription", request.subscription)
        broker = self._broker
        async with broker.topics.changing(name):
            topic = broker.topics.find(request.topic)
            topic.check()
            subscription = await broker.subscriptions.acquire(topic, request.subscription)
            if subscription is None:
                if request.subscription not in topic.dormant:
                    raise no_subscription(topic, request.subscription)
                await broker.records.forget_subscription(topic.name, request.subscription)
                topic.dormant.pop(request.subscription, None)
            elif subscription.connected():
                names = sorted(c.name for c in subscription.consumers.values() if c.stream is not None)
                # The protocol has no better status for it.
                raise NotFoundError(
                    f"subscription {subscription.name} of topic {topic.text} has active consumers "
                    f"({', '.join(names[:5])}); stop them first"
                )
            else:
                await broker.subscriptions.delete(topic, subscription.name)
        return pb.SubscriptionResponse(success=True)

    async def set_subscription_failure_policy(
        self, request: pb.SetSubscriptionFailurePolicyRequest
    ) -> pb.SubscriptionResponse:
        """Set the failure policy of a subscription, which need not be created yet."""
        if not request.HasField("failure_policy"):
            raise InvalidRequestError("failure_policy is missing")
        policy = policy_from_wire(request.failure_policy)
        self._check_dead_letters(request.topic, policy)
        await self._configure(request.topic, request.subscription, {"failure_policy": policy})
        fields = {name: value.value if isinstance(value, Enum) else value for name, value in asdict(policy).items()}
        log.info("failure_policy_set", topic=request.topic, subscription=request.subscription, **fields)
        return pb.SubscriptionResponse(success=True)

    async def get_subscription_failure_policy(
        self, request: pb.GetSubscriptionFailurePolicyRequest
    ) -> pb.GetSubscriptionFailurePolicyResponse:
        """Return the failure policy that was set, none for the default."""
        record = self._settings(request.topic, request.subscription)
        policy = None if record.failure_policy is None else policy_to_wire(record.failure_policy)
        return pb.GetSubscriptionFailurePolicyResponse(failure_policy=policy, subscription_type=record.kind)

    async def set_subscription_dispatch_config(
        self, request: pb.SetSubscriptionDispatchConfigRequest
    ) -> pb.SubscriptionResponse:
        """Set the window of a subscription, which need not be created yet."""
        if not request.HasField("dispatch_config"):
            raise InvalidRequestError("dispatch_config is missing")
        window = request.dispatch_config.max_unacked_messages
        if not 1 <= window <= WINDOW_MAX:
            raise InvalidRequestError(f"max_unacked_messages {window} must be from 1 to {WINDOW_MAX}")
        await self._configure(request.topic, request.subscription, {"window": window})
        log.info("window_set", topic=request.topic, subscription=request.subscription, window=window)
        return pb.SubscriptionResponse(success=True)

    async def get_subscription_dispatch_config(
        self, request: pb.GetSubscriptionDispatchConfigRequest
    ) -> pb.GetSubscriptionDispatchConfigResponse:
        """Return the window that was set, none for the broker's."""
        window = self._settings(request.topic, request.subscription).window
        config = None if window is None else pb.SubscriptionDispatchConfig(max_unacked_messages=window)
        return pb.GetSubscriptionDispatchConfigResponse(dispatch_config=config)

    def _check_dead_letters(self, topic: str, policy: FailurePolicy) -> None:
        """Raise if a topic cannot be the dead-letter topic."""
        target = policy.dead_letter_topic
        if target is None:
            return
        if target == topic:
            raise InvalidRequestError("dead_letter_topic is the topic itself: what is poisoned would come again")
        self._broker.check_dead_letter_topic(TopicName.parse(target))

    async def _configure(self, text: str, name: str, change: dict[str, FailurePolicy | int]) -> None:
        """Change the record of a subscription, which need not be created yet."""
        check_name("subscription", name)
        broker = self._broker
        async with broker.topics.changing(TopicName.parse(text)):
            topic = self._reliable_topic(text)
            subscription = await broker.subscriptions.acquire(topic, name)
            if subscription is None:
                unused = sum(not record.made for record in topic.dormant.values())
                if name not in topic.dormant and unused >= SETTINGS_MAX:
                    raise LimitError(f"topic {text} has settings for {SETTINGS_MAX} subscriptions that nobody uses")
                record = topic.dormant.get(name, SubscriptionRecord(made=False)).model_copy(update=change)
                await broker.records.save_subscription(topic.name, name, record)
                topic.dormant[name] = record
            else:
                record = subscription.record.model_copy(update=change)
                await broker.records.save_subscription(topic.name, name, record)
                subscription.configure(record)

    def _settings(self, text: str, name: str) -> SubscriptionRecord:
        check_name("subscription", name)
        topic = self._reliable_topic(text)
        subscription = topic.subscriptions.get(name)
        record = topic.dormant.get(name) if subscription is None else subscription.record
        if record is None:
            raise no_subscription(topic, name)
        return record

    def _reliable_topic(self, text: str) -> Topic:
        topic = self._broker.topics.find(text)
        topic.check()
        if not topic.reliable:
            raise PreconditionError(f"topic {text} is not reliable: its messages are delivered once or not at all")
        return topic


def _delivery(topic: Topic) -> str:
    return "Reliable" if topic.reliable else "NonReliable"
