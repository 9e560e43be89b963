"""The subscriptions that a broker serves: creating, opening, closing, deleting and expiring them; their consumers by id."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from ister.broker.topics.records import SubscriptionRecord
from ister.core.errors import DeniedError, DrainingError, IsterError, NotFoundError
from ister.core.ownership.subscriptions import lease_lost

if TYPE_CHECKING:
    from ister.broker.topics.broker import Broker
    from ister.broker.topics.consumer import Consumer
    from ister.broker.topics.ownership import SubscriptionOwnership
    from ister.broker.topics.records import Records
    from ister.broker.topics.topic import Subscription, Topic
    from ister.core.dispatch.dispatch import SubscriptionType
    from ister.storage.cursors.saved import Ranges

log = structlog.get_logger()

SWEEP_S = 1.0


class Subscriptions:
    """The subscriptions of all topics; every change is written to metadata first."""

    def __init__(self, records: Records, ownership: SubscriptionOwnership, consumer_expiry_s: float) -> None:
        self.consumers: dict[int, tuple[Topic, Subscription, Consumer]] = {}
        """The consumers by id, with their topic and subscription."""
        self._records = records
        self._ownership = ownership
        self._consumer_expiry_s = consumer_expiry_s
        self._loop = asyncio.get_running_loop()

    def refresh_consumer(self, number: int) -> bool:
        """Return True if a consumer is known here, and postpone its expiry."""
        found = self.consumers.get(number)
        if found is not None:
            found[2].seen = self._loop.time()
        return found is not None

    # --- opening and closing ------------------------------------------------------------------------------------------

    def open(
        self, topic: Topic, name: str, record: SubscriptionRecord, cursor: int = 0, finished: Ranges = ()
    ) -> Subscription:
        """Serve a subscription and its stored consumers."""
        topic.dormant.pop(name, None)
        subscription = topic.open_subscription(name, record, cursor, finished)
        for consumer in subscription.consumers.values():
            self.consumers[consumer.id] = (topic, subscription, consumer)
        return subscription

    def close(self, topic: Topic, subscription: Subscription, failure: IsterError) -> None:
        """Serve a subscription no more; its streams end with a failure."""
        del topic.subscriptions[subscription.name]
        subscription.close(failure)
        self._forget_consumers(subscription)

    def forget_topic(self, topic: Topic) -> None:
        """Forget the consumers of a topic that is closed."""
        for subscription in topic.subscriptions.values():
            self._forget_consumers(subscription)

    def _forget_consumers(self, subscription: Subscription) -> None:
        for consumer in subscription.consumers.values():
            self.consumers.pop(consumer.id, None)

    def check_served(self, topic: Topic, subscription: Subscription) -> None:
        """Raise DrainingError if a subscription was lost during a write: another broker may serve it now."""
        if topic.subscriptions.get(subscription.name) is not subscription:
            raise lease_lost(topic.text, subscription.name)

    # --- changes: the caller is inside `TopicIndex.changing` ----------------------------------------------------------

    async def acquire(self, topic: Topic, name: str) -> Subscription | None:
        """Return a subscription to be changed, served here from now on; None if there is none."""
        found = await self._ownership.acquire(topic, name)
        if found is None:
            await self._ownership.release(topic, name)
        return found

    async def acquire_or_create(self, topic: Topic, name: str, kind: SubscriptionType) -> Subscription:
        """Return a subscription, served here from now on."""
        found = await self._ownership.acquire(topic, name)
        if found is not None:
            return found
        try:
            return await self._create(topic, name, kind)
        except BaseException:
            await self._ownership.release(topic, name)
            raise

    async def _create(self, topic: Topic, name: str, kind: SubscriptionType) -> Subscription:
        """Create a subscription: its cursor before its record, so that none is ever without a position."""
        limit = topic.policies.max_subscriptions_per_topic
        if limit and len(topic.subscription_names()) >= limit:
            raise DeniedError(f"topic {topic.text} has {limit} subscriptions, as many as it may have")
        settings = topic.dormant.get(name, SubscriptionRecord())
        record = settings.model_copy(update={"kind": kind, "made": True})
        cursor = 0
        if topic.reliable:
            storage = topic.stored
            earliest = topic.policies.start_position == "earliest"
            cursor = storage.start_offset if earliest else storage.next_offset
            await storage.reset_cursor(name, cursor)
        await self._records.save_subscription(topic.name, name, record)
        topic.dormant.pop(name, None)
        self._ownership.check(topic, name)
        log.info("subscription_created", topic=topic.text, subscription=name, type=kind.name, cursor=cursor)
        return self.open(topic, name, record, cursor)

    async def delete(self, topic: Topic, name: str) -> None:
        """Delete a subscription with its cursor."""
        subscription = topic.subscriptions[name]
        await self._records.forget_subscription(topic.name, name)
        self.check_served(topic, subscription)
        self.close(topic, subscription, NotFoundError(f"subscription {name} of topic {topic.text} was removed"))
        if topic.reliable:
            await topic.stored.forget_cursor(name)
            await self._ownership.release(topic, name)
        log.info("subscription_removed", topic=topic.text, subscription=name)

    async def expire_consumers(self, topic: Topic, subscription: Subscription, expired: list[Consumer]) -> None:
        """Forget some consumers, durably; one that comes back during the write stays."""
        while True:
            names = {consumer.name for consumer in expired}
            others = {name: filters for name, filters in subscription.record.consumers.items() if name not in names}
            record = subscription.record.model_copy(update={"consumers": others})
            await self._records.save_subscription(topic.name, subscription.name, record)
            now = self._loop.time()
            still = [consumer for consumer in expired if consumer.is_expired(now, self._consumer_expiry_s)]
            if len(still) == len(expired):
                break
            expired = still
        subscription.configure(record)
        for consumer in expired:
            self.consumers.pop(consumer.id, None)
            if consumer.name in subscription.consumers:
                subscription.leave(consumer)
            log.info("consumer_expired", topic=topic.text, subscription=subscription.name, consumer=consumer.name)


async def sweep(broker: Broker) -> None:
    """Expire producers, consumers and subscriptions of all topics once a second, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(SWEEP_S)
        try:
            await broker.ownership.retry_releases()
        except Exception:  # the root of a task: later sweeps must go on
            log.exception("sweep_failed")
        now = loop.time()
        for topic in list(broker.topics.values()):
            try:
                topic.expire_producers(now)
                # A change may take minutes; the other topics do not wait for it.
                if topic.subscriptions and topic.problem is None and not broker.topics.is_changing(topic.name):
                    await _sweep_topic(broker, topic, now)
            except DrainingError:
                if broker.topics.draining:
                    return  # otherwise only this topic is being deleted
            except IsterError as error:
                log.warning("sweep_failed", topic=topic.text, cause=str(error))
            except Exception:  # the root of a task: other topics and later sweeps must go on
                log.exception("sweep_failed", topic=topic.text)


async def _sweep_topic(broker: Broker, topic: Topic, now: float) -> None:
    settings = broker.settings
    await broker.ownership.expire(topic, now)
    for name, subscription in list(topic.subscriptions.items()):
        idle_s = settings.volatile_subscription_expiry_s
        if subscription.is_expired(now, idle_s):
            async with broker.topics.changing_hosted(topic) as hosted:
                # A consumer may have come while we waited for the lock.
                same = hosted and topic.subscriptions.get(name) is subscription
                if same and subscription.is_expired(now, idle_s):
                    await broker.subscriptions.delete(topic, name)
            continue
        if subscription.consumers.expired(now, settings.consumer_expiry_s):
            async with broker.topics.changing_hosted(topic) as hosted:
                still = subscription.consumers.expired(now, settings.consumer_expiry_s)
                if hosted and topic.subscriptions.get(name) is subscription and still:
                    await broker.subscriptions.expire_consumers(topic, subscription, still)
