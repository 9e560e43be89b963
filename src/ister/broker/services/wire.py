"""Conversion of topics, subscriptions and failure policies to and from protobuf."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ister.broker.status import status_of
from ister.core.dispatch.dispatch import SubscriptionType
from ister.core.dispatch.failure import Backoff, FailurePolicy, Poison
from ister.core.errors import InvalidRequestError, NotFoundError, PoisonedError
from ister.core.names import TopicName, partition_of
from ister.rpc import danube_admin_pb2 as danube
from ister.rpc import ister_v1_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ister.broker.topics.broker import Broker
    from ister.broker.topics.consumer import Consumer
    from ister.broker.topics.records import SubscriptionRecord
    from ister.broker.topics.topic import Subscription, Topic
    from ister.core.errors import IsterError

MS_MAX = 30 * 24 * 3600 * 1000
"""A month; a longer delay is a mistake."""

BACKOFFS = {danube.Fixed: Backoff.FIXED, danube.Exponential: Backoff.EXPONENTIAL}
POISONS = {danube.DeadLetter: Poison.DEAD_LETTER, danube.Block: Poison.BLOCK, danube.Drop: Poison.DROP}
BACKOFFS_TO_WIRE = {backoff: number for number, backoff in BACKOFFS.items()}
POISONS_TO_WIRE = {poison: number for number, poison in POISONS.items()}


def topic_of(broker: Broker, topic: Topic) -> pb.Topic:
    """Return a topic for the pipeline."""
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
    """Return the details of a topic for an operator."""
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
        subscriptions=topic.subscription_names(),
        created_at_ms=topic.record.created_at_ms,
        trouble=problem_text(topic),
    )


def is_reliable(strategy: int) -> bool:
    """Return True for the dispatch strategy Reliable; raise InvalidRequestError for an unknown one."""
    if strategy not in danube.DispatchStrategy.values():
        raise InvalidRequestError(f"dispatch_strategy {strategy} is neither NonReliable (0) nor Reliable (1)")
    return strategy == danube.DispatchStrategy.Reliable


def dispatch_of(topic: Topic) -> pb.Dispatch:
    """Return the dispatch strategy of a topic."""
    return pb.DISPATCH_RELIABLE if topic.reliable else pb.DISPATCH_NON_RELIABLE


def level_of(topic: Topic) -> str:
    """Return the acknowledgement level of a topic; of a topic with a problem, the least that it promises."""
    if not topic.reliable:
        level = "MEMORY"
    elif topic.log is None:
        level = "WAL"
    else:
        level = "LAKE" if topic.policies.ack_level == "lake" else topic.log.level.name
    return f"ACK_LEVEL_{level}"


def problem_text(topic: Topic) -> str:
    """Return the error text of a topic that takes no messages, empty if it does."""
    problem: IsterError | None = topic.problem
    if problem is None and topic.log is not None and topic.log.wal.poison:
        problem = PoisonedError(topic.text, topic.log.wal.poison)
    return "" if problem is None else status_of(problem)[1]


def part_of(topic: Topic) -> pb.Partition | None:
    """Return the base and number of a partition."""
    found = partition_of(topic.name)
    return None if found is None else pb.Partition(base=str(found[0]), number=found[1])


def schema_of(broker: Broker, topic: Topic) -> pb.SchemaBinding | None:
    """Return the schema binding of a topic."""
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
    """Return the offsets of a topic's tiers; None without storage."""
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


def no_subscription(topic: Topic, name: str) -> NotFoundError:
    """Return the error of a subscription that does not exist."""
    return NotFoundError(f"subscription {name} of topic {topic.text} not found")


def subscription_to_wire(
    topic: Topic, name: str, record: SubscriptionRecord, window: int, durable: Mapping[str, int]
) -> pb.Subscription:
    """Return the state of a subscription, the stored one if it is not served here.

    `window` is the broker's, `durable` are the stored cursors.
    """
    found = pb.Subscription(name=name, type=f"SUBSCRIPTION_TYPE_{record.kind.name}", dispatch=dispatch_of(topic))
    served = topic.subscriptions.get(name)
    reliable = None if served is None else served.reliable
    if served is None or reliable is not None:
        found.durable_cursor = durable.get(name, 0)
        found.cursor = found.durable_cursor if reliable is None else reliable.cursor
        found.lag = max(0, topic.next_offset - found.cursor)
        found.window = record.window or window
        found.failure_policy.CopyFrom(policy_to_v1(record.failure_policy or FailurePolicy()))
    else:
        found.waiting = sum(len(c.stream.outbox) for c in served.consumers.values() if c.stream is not None)
    if reliable is not None:
        found.unacked = reliable.dispatch.unacked
        found.waiting = reliable.dispatch.waiting
        found.redelivered = reliable.dispatch.redelivered
        found.blocked = reliable.dispatch.blocked
    if served is not None:
        found.consumers.extend(_consumer(served, consumer) for _, consumer in sorted(served.consumers.items()))
    return found


def _consumer(subscription: Subscription, consumer: Consumer) -> pb.Consumer:
    connected = consumer.stream is not None
    found = pb.Consumer(
        name=consumer.name,
        consumer_id=consumer.id,
        connected=connected,
        active=connected,
        key_filters=consumer.filters,
    )
    reliable = subscription.reliable
    if reliable is not None:
        found.unacked = reliable.dispatch.held_by(consumer.id)
        if subscription.record.kind is SubscriptionType.FAILOVER:
            found.active = reliable.dispatch.active == consumer.id
    return found


def policy_from_wire(wire: danube.SubscriptionFailurePolicy) -> FailurePolicy:
    """Return a failure policy; raise InvalidRequestError naming a wrong field."""
    for field in ("ack_timeout_ms", "base_redelivery_delay_ms", "max_redelivery_delay_ms"):
        if getattr(wire, field) > MS_MAX:
            raise InvalidRequestError(f"{field} {getattr(wire, field)} is more than {MS_MAX} (30 days)")
    backoff, poison = BACKOFFS.get(wire.backoff_strategy), POISONS.get(wire.poison_policy)
    if backoff is None:
        raise InvalidRequestError(f"backoff_strategy {wire.backoff_strategy} is neither Fixed (0) nor Exponential (1)")
    if poison is None:
        raise InvalidRequestError(f"poison_policy {wire.poison_policy} is none of DeadLetter (0), Block (1), Drop (2)")
    target = wire.dead_letter_topic or None
    if target is not None:
        TopicName.parse(target)
    elif poison is Poison.DEAD_LETTER:
        raise InvalidRequestError("dead_letter_topic is missing, and poison_policy DeadLetter needs it")
    return FailurePolicy(
        max_redelivery_count=wire.max_redelivery_count,
        ack_timeout_ms=wire.ack_timeout_ms,
        base_redelivery_delay_ms=wire.base_redelivery_delay_ms,
        max_redelivery_delay_ms=wire.max_redelivery_delay_ms,
        backoff=backoff,
        poison=poison,
        dead_letter_topic=target,
    )


def policy_to_wire(policy: FailurePolicy) -> danube.SubscriptionFailurePolicy:
    """Return a failure policy as Danube's message."""
    return danube.SubscriptionFailurePolicy(
        max_redelivery_count=policy.max_redelivery_count,
        ack_timeout_ms=policy.ack_timeout_ms,
        base_redelivery_delay_ms=policy.base_redelivery_delay_ms,
        max_redelivery_delay_ms=policy.max_redelivery_delay_ms,
        backoff_strategy=BACKOFFS_TO_WIRE[policy.backoff],
        poison_policy=POISONS_TO_WIRE[policy.poison],
        dead_letter_topic=policy.dead_letter_topic,
    )


def policy_to_v1(policy: FailurePolicy) -> pb.FailurePolicy:
    """Return a failure policy as our message."""
    return pb.FailurePolicy(
        max_redelivery_count=policy.max_redelivery_count,
        ack_timeout_ms=policy.ack_timeout_ms,
        base_redelivery_delay_ms=policy.base_redelivery_delay_ms,
        max_redelivery_delay_ms=policy.max_redelivery_delay_ms,
        backoff=f"BACKOFF_{policy.backoff.name}",
        poison=f"POISON_{policy.poison.name}",
        dead_letter_topic=policy.dead_letter_topic,
    )
