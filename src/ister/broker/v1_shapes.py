"""How topics and subscriptions are told over ister.v1: plain numbers that the broker keeps anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ister.broker.failure_wire import policy_to_v1
from ister.broker.status import status_of
from ister.broker.subscription import ReliableSubscription
from ister.core.dispatch import SubscriptionType
from ister.core.errors import PoisonedError
from ister.core.failure import FailurePolicy
from ister.core.names import partition_of
from ister.rpc import ister_v1_pb2 as pb
from ister.wal.config import AckLevel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ister.broker.broker import Broker
    from ister.broker.records import SubscriptionRecord
    from ister.broker.stream import Consumer
    from ister.broker.topic import Subscription, Topic
    from ister.core.errors import IsterError

LEVELS = {
    AckLevel.WAL: pb.ACK_LEVEL_WAL,
    AckLevel.FSYNC: pb.ACK_LEVEL_FSYNC,
    AckLevel.CLOUD: pb.ACK_LEVEL_CLOUD,
}


def topic_of(broker: Broker, topic: Topic) -> pb.Topic:
    """Tell the pipeline of a topic."""
    return pb.Topic(
        name=topic.text,
        generation=topic.generation,
        dispatch=dispatch_of(topic),
        level=level_of(topic),
        policies=topic.policies.to_json(),
        schema=schema_of(broker, topic),
        partition=part_of(topic),
        offsets=offsets_of(broker, topic),
        created_at_ms=topic.record.created_at_ms,
    )


def detail_of(broker: Broker, topic: Topic, *, cloud_bytes: int = 0) -> pb.TopicDetail:
    """Tell an operator of a topic."""
    storage = topic.log
    log_bytes = 0
    if storage is not None:
        log_bytes = storage.active_bytes + sum(segment.size for segment in storage.sealed_segments())
    return pb.TopicDetail(
        name=topic.text,
        generation=topic.generation,
        dispatch=dispatch_of(topic),
        level=level_of(topic),
        policies=topic.record.policies.to_json(),
        schema=schema_of(broker, topic),
        partition=part_of(topic),
        offsets=offsets_of(broker, topic),
        log_bytes=log_bytes,
        cloud_bytes=cloud_bytes,
        producers=len(topic.producers),
        consumers=sum(subscription.connected() for subscription in topic.subscriptions.values()),
        subscriptions=subscription_names(topic),
        created_at_ms=topic.record.created_at_ms,
        trouble=trouble_of(topic),
    )


def subscription_names(topic: Topic) -> list[str]:
    """Return a topic's subscriptions, sorted; those too that a topic in trouble cannot serve."""
    return sorted({*topic.subscriptions, *(name for name, record in topic.settings_of.items() if record.made)})


def dispatch_of(topic: Topic) -> pb.Dispatch:
    """Return how a topic dispatches."""
    return pb.DISPATCH_RELIABLE if topic.reliable else pb.DISPATCH_NON_RELIABLE


def level_of(topic: Topic) -> pb.AckLevel:
    """Return what a producer's answer waits for; of a topic in trouble, the least that it promises."""
    if not topic.reliable:
        return pb.ACK_LEVEL_MEMORY
    if topic.log is None:
        return pb.ACK_LEVEL_WAL
    if topic.policies.ack_level == "lake":
        return pb.ACK_LEVEL_LAKE
    return LEVELS[topic.log.level]


def trouble_of(topic: Topic) -> str:
    """Return why a topic takes nothing, in words that clients may read; empty while it is well."""
    problem: IsterError | None = topic.problem
    if problem is None and topic.log is not None and topic.log.wal.poison:
        problem = PoisonedError(topic.text, topic.log.wal.poison)
    return "" if problem is None else status_of(problem)[1]


def part_of(topic: Topic) -> pb.Partition | None:
    """Return which partition of which base a topic is."""
    found = partition_of(topic.name)
    return None if found is None else pb.Partition(base=str(found[0]), number=found[1])


def schema_of(broker: Broker, topic: Topic) -> pb.SchemaBinding | None:
    """Return the schema that a topic's messages follow."""
    bound = topic.record.topic_schema
    if bound.subject is None:
        return None
    binding = pb.SchemaBinding(
        subject=bound.subject,
        validation_policy=bound.validation,
        validates_payload=bound.payload_validation,
    )
    latest = broker.schemas.latest(bound.subject)
    if latest is not None:
        binding.schema_id = latest.schema_id
        binding.latest_version = latest.version
        binding.schema_type = latest.schema_type
    return binding


def offsets_of(broker: Broker, topic: Topic) -> pb.Offsets | None:
    """Return how far a topic's tiers reach; None when there is none."""
    storage = topic.log
    if storage is None and topic.reliable and topic.problem is None:  # read from the table alone
        upto = topic.next_offset
        return pb.Offsets(start=0, next=upto, synced=upto, log_start=upto, lake_upto=upto)
    if storage is None:
        return None
    offsets = pb.Offsets(
        start=storage.start_offset,
        next=storage.next_offset,
        synced=storage.wal.synced_offset,
        log_start=storage.log_start,
        lake_upto=broker.pipelines.upto(topic.name, topic.generation),
    )
    if storage.objects is not None and storage.objects.span.start < storage.objects.span.stop:
        offsets.cloud_start, offsets.cloud_stop = storage.objects.span
    return offsets


# --- subscriptions ----------------------------------------------------------------------------------------------------


def shape_subscription(
    topic: Topic, subscription: Subscription, window: int, kept: Mapping[str, int]
) -> pb.Subscription:
    """Tell an operator of a subscription; `window` is what holds without a setting, `kept` are the durable cursors."""
    record = subscription.record
    told = pb.Subscription(
        name=subscription.name,
        type=f"SUBSCRIPTION_TYPE_{record.kind.name}",
        dispatch=dispatch_of(topic),
    )
    if isinstance(subscription, ReliableSubscription):
        dispatch = subscription.dispatch
        told.cursor = subscription.cursor
        told.durable_cursor = kept.get(subscription.name, 0)
        told.lag = max(0, topic.next_offset - subscription.cursor)
        told.unacked = dispatch.unacked
        told.waiting = dispatch.waiting
        told.redelivered = dispatch.redelivered
        told.window = record.window or window
        told.blocked = dispatch.blocked
        told.failure_policy.CopyFrom(policy_to_v1(record.failure_policy or FailurePolicy()))
    else:
        told.waiting = sum(len(c.stream.outbox) for c in subscription.consumers.values() if c.stream is not None)
    told.consumers.extend(_consumer(subscription, consumer) for _, consumer in sorted(subscription.consumers.items()))
    return told


def shape_absent(
    topic: Topic, name: str, record: SubscriptionRecord, window: int, kept: Mapping[str, int]
) -> pb.Subscription:
    """Tell an operator of a subscription that this broker does not serve now: what is durable of it."""
    cursor = kept.get(name, 0)
    return pb.Subscription(
        name=name,
        type=f"SUBSCRIPTION_TYPE_{record.kind.name}",
        dispatch=dispatch_of(topic),
        cursor=cursor,
        durable_cursor=cursor,
        lag=max(0, topic.next_offset - cursor),
        window=record.window or window,
        failure_policy=policy_to_v1(record.failure_policy or FailurePolicy()),
    )


def _consumer(subscription: Subscription, consumer: Consumer) -> pb.Consumer:
    connected = consumer.stream is not None
    told = pb.Consumer(
        name=consumer.name,
        consumer_id=consumer.id,
        connected=connected,
        active=connected,
        key_filters=consumer.filters,
    )
    if isinstance(subscription, ReliableSubscription):
        told.unacked = subscription.dispatch.held_by(consumer.id)
        if subscription.record.kind is SubscriptionType.FAILOVER:
            told.active = subscription.dispatch.active == consumer.id
    return told
