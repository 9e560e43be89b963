"""Subscription leases: several brokers share metadata, and each serves only the subscriptions whose lease it holds.

A lease is a key in metadata, bound to one lease of the broker that the store ends when the broker dies;
core/ownership/subscriptions.py decides what a key means. A subscription resumes at its stored cursor when its lease is
taken, and stops as soon as the lease is lost, before the store could give its key to another broker.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from ister.broker.topics import ids
from ister.broker.topics.ownership import SubscriptionOwnership
from ister.core.errors import DrainingError, IsterError, MetadataUnknownError, NotFoundError, PreconditionError
from ister.core.ownership.subscriptions import (
    Claim,
    LeaseHolder,
    claim_of,
    lease_lost,
    leased_earlier,
    leased_elsewhere,
    may_release,
)
from ister.storage.cursors.metadata import key_part, progress_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ister.broker.topics.broker import Broker
    from ister.broker.topics.records import SubscriptionRecord
    from ister.broker.topics.topic import Stored, Subscription, Topic
    from ister.core.names import TopicName
    from ister.ports.metadata import Lease, Metadata

    SubscriptionKey = tuple[TopicName, str]

log = structlog.get_logger()

TRIES = 4
"""How often a key is read again that others create and delete at the same time."""
PAUSE_S = 0.2
"""How long the answer is delayed that a subscription is served elsewhere: Python's client retries at once, for ever."""


def lease_key(root: str, topic: TopicName, subscription: str) -> str:
    """Return the metadata key of a subscription's lease."""
    return f"{root}/holders/{key_part(subscription)}/{topic.namespace}/{topic.topic}"


def owner_key(root_prefix: str) -> str:
    """Return the key of the address of the broker that owns the topics, for read-only brokers."""
    return f"{progress_root(root_prefix)}/owner"


async def announce_owner(metadata: Metadata, root_prefix: str, url: str) -> None:
    """Write down which broker owns the topics; a read-only broker names it to producers."""
    await metadata.put(owner_key(root_prefix), LeaseHolder(url, 0).dump())


async def owner_of(metadata: Metadata, root_prefix: str) -> str | None:
    """Return the address of the broker that owns the topics, None if there was none yet."""
    key = owner_key(root_prefix)
    entry = await metadata.get(key)
    return None if entry is None else LeaseHolder.load(key, entry.value).broker_url


class SubscriptionLeases:
    """The subscription leases that this broker holds; `lost` is called with all of them when its lease is lost."""

    def __init__(
        self,
        metadata: Metadata,
        root: str,
        *,
        url: Callable[[], str],
        lost: Callable[[list[SubscriptionKey]], None],
        ttl_s: float,
    ) -> None:
        self._metadata = metadata
        self._root = root
        self._url = url
        self._lost = lost
        self._ttl_s = ttl_s
        self._lease: Lease | None = None
        self._held: dict[SubscriptionKey, int] = {}
        self._unreleased: dict[SubscriptionKey, int] = {}
        self._watching: asyncio.Task[None] | None = None
        self._leasing = asyncio.Lock()

    def holds(self, topic: TopicName, subscription: str) -> bool:
        """Return True if this broker certainly holds a subscription's lease at this moment."""
        return (topic, subscription) in self._held and self._lease is not None and self._lease.remaining_s > 0

    async def take(self, topic: TopicName, subscription: str) -> None:
        """Take a subscription's lease; PreconditionError names the broker that holds it."""
        key = lease_key(self._root, topic, subscription)
        for _ in range(TRIES):
            lease = await self._leased()
            us = LeaseHolder(self._url(), lease.id)
            entry = await self._metadata.get(key)
            found = None if entry is None else LeaseHolder.load(key, entry.value)
            claim = claim_of(found, us)
            version: int | None = None
            if claim is Claim.FREE:
                with suppress(MetadataUnknownError):  # the next iteration reads the outcome
                    version = await self._metadata.cas(key, us.dump(), version=0, lease=lease)
            elif entry is not None and claim is Claim.OURS:
                version = entry.version
            elif found is not None and claim is Claim.OTHER:
                raise leased_elsewhere(str(topic), subscription, found)
            else:
                break
            if version is not None and lease is self._lease and lease.remaining_s > 0:
                self._held[topic, subscription] = version
                self._unreleased.pop((topic, subscription), None)
                return
        raise leased_earlier(str(topic), subscription, self._ttl_s)

    async def release(self, topic: TopicName, subscription: str) -> None:
        """Release a lease; a failure is left to `retry_releases`."""
        version = self._held.pop((topic, subscription), None)
        if version is not None:
            self._unreleased[topic, subscription] = version
            await self.retry_releases()

    async def retry_releases(self) -> None:
        """Delete the keys of released leases that could not be deleted before."""
        for key, version in list(self._unreleased.items()):
            try:
                await self._metadata.delete(lease_key(self._root, *key), version=version)
            except IsterError as error:
                log.warning("subscription_lease_not_released", topic=str(key[0]), subscription=key[1], cause=str(error))
                return
            if self._unreleased.get(key) == version:
                del self._unreleased[key]

    async def close(self) -> None:
        """Release all leases."""
        self._held.clear()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        if self._lease is not None:
            lease, self._lease = self._lease, None
            try:
                await lease.revoke()
            except IsterError as error:
                log.warning("lease_not_revoked", cause=str(error))

    async def _leased(self) -> Lease:
        async with self._leasing:
            if self._lease is None or self._lease.remaining_s <= 0:
                self._lose()
                self._lease = await self._metadata.lease(self._ttl_s)
                if self._watching is not None:
                    self._watching.cancel()
                self._watching = asyncio.create_task(self._watch(self._lease))
            return self._lease

    async def _watch(self, lease: Lease) -> None:
        await lease.lost()
        if lease is self._lease:
            self._lose()

    def _lose(self) -> None:
        self._lease = None
        self._unreleased.clear()
        held, self._held = list(self._held), {}
        if held:
            log.error("subscription_leases_lost", store=self._metadata.name, subscriptions=len(held))
            self._lost(held)


class Leased(SubscriptionOwnership):
    """The subscription ownership of one broker among several that share metadata.

    A subscription that is not served here is known by its record alone (`Topic.dormant`); its consumers are in `_dormant`,
    so that a consumer that reconnects with its id finds its subscription.
    """

    def __init__(self, broker: Broker, metadata: Metadata) -> None:
        super().__init__(broker)
        self._dormant: dict[int, tuple[Topic, str]] = {}
        root = progress_root(broker.factory.config.root_prefix)
        self._leases = SubscriptionLeases(
            metadata, root, url=lambda: broker.url, lost=self._lost, ttl_s=broker.settings.hold_ttl_s
        )
        self._used_at: dict[SubscriptionKey, float] = {}
        self._loop = asyncio.get_running_loop()

    # --- dormant subscriptions ----------------------------------------------------------------------------------------

    def restore(self, topic: Topic, name: str, record: SubscriptionRecord, cursor: int | None = None) -> None:
        """Remember a subscription, which is served once it is requested."""
        del cursor  # read again when the lease is taken
        topic.dormant[name] = record
        if record.made:
            for consumer in record.consumers:
                self._dormant[ids.consumer_id(topic.text, name, consumer)] = (topic, name)

    def replace_dormant(self, topic: Topic, records: Mapping[str, SubscriptionRecord]) -> None:
        """Remember these subscriptions of a topic, and no others, as not served here."""
        if records != topic.dormant:
            self._forget(topic, list(topic.dormant))
            for name, record in records.items():
                self.restore(topic, name, record)

    def _forget(self, topic: Topic, names: Iterable[str]) -> None:
        deleted = set(names)
        for name in deleted:
            topic.dormant.pop(name, None)
        self._dormant = {
            number: (hosted, name)
            for number, (hosted, name) in self._dormant.items()
            if hosted is not topic or name not in deleted
        }

    # --- acquiring ----------------------------------------------------------------------------------------------------

    async def acquire(self, topic: Topic, name: str) -> Subscription | None:
        """Take a subscription's lease and serve it from its stored cursor; None if nobody has created it yet.

        The caller is inside `TopicIndex.changing`. PreconditionError names the broker that serves it.
        """
        served = topic.subscriptions.get(name)
        if not topic.reliable:
            return served
        self._used_at[topic.name, name] = self._loop.time()
        if served is not None and self._leases.holds(topic.name, name):
            return served
        await self._leases.take(topic.name, name)
        try:
            return await self._open(topic, name)
        except BaseException:
            await self._leases.release(topic.name, name)
            raise

    async def _open(self, topic: Topic, name: str) -> Subscription | None:
        storage = topic.stored
        record = await self._broker.records.subscription(topic.name, name)
        cursor = await storage.refresh_cursor(name)
        self._forget(topic, [name])
        if record is None:
            return None
        if not record.made:
            self.restore(topic, name, record)
            return None
        if cursor is None:
            cursor = await storage.reset_cursor(name, storage.start_offset)
            log.warning("cursor_missing", topic=topic.text, subscription=name, cursor=cursor)
        self.check(topic, name)
        subscription = self._broker.subscriptions.open(topic, name, record, cursor, storage.finished(name))
        log.info("subscription_acquired", topic=topic.text, subscription=name, cursor=cursor)
        return subscription

    def check(self, topic: Topic, name: str) -> None:
        """Raise DrainingError unless this broker certainly holds a subscription's lease at this moment."""
        if topic.reliable and not self._leases.holds(topic.name, name):
            raise lease_lost(topic.text, name)

    async def resume_consumer(self, number: int) -> None:
        """Serve the subscription of a consumer that reconnects with its id, if its lease is free."""
        found = self._dormant.get(number)
        if found is None:
            return
        topic, name = found
        try:
            async with self._broker.topics.changing(topic.name):
                topic.check()
                if number not in self._broker.subscriptions.consumers and await self.acquire(topic, name) is None:
                    await self.release(topic, name)
                    raise NotFoundError(f"consumer {number} not found; subscribe first")
        except (PreconditionError, DrainingError):
            await asyncio.sleep(PAUSE_S)
            raise

    # --- releasing ----------------------------------------------------------------------------------------------------

    async def stop_serving(self, topic: Topic, name: str) -> None:
        """Save the progress of a subscription, then release its lease. The caller is inside `TopicIndex.changing`."""
        subscription = topic.reliable_subscriptions().get(name)
        if subscription is not None:
            self._close(topic, subscription)
            try:
                await topic.stored.flush()
                await topic.stored.save_cursors({name: subscription.cursor}, {name: subscription.finished})
            except IsterError as error:
                log.warning("cursors_not_saved", topic=topic.text, cause=str(error))
            topic.release_cursor(name)
            log.info("subscription_released", topic=topic.text, subscription=name, cursor=subscription.cursor)
        await self.release(topic, name)

    async def release(self, topic: Topic, name: str) -> None:
        """Release the lease of a subscription that is not served here."""
        self._used_at.pop((topic.name, name), None)
        await self._leases.release(topic.name, name)

    async def release_topic(self, topic: Topic) -> None:
        """Release the leases of a topic that is closed, and forget its dormant subscriptions."""
        for name in list(topic.subscriptions):
            await self.release(topic, name)
        self._forget(topic, list(topic.dormant))

    async def cursors_taken(self, topic: Topic) -> bool:
        """Stop serving a topic: another broker saved a cursor whose lease we hold, perhaps by a delayed write."""
        with suppress(DrainingError):
            async with self._broker.topics.changing_hosted(topic) as hosted:
                for name in list(topic.subscriptions) if hosted else ():
                    await self.stop_serving(topic, name)
        return True

    async def expire(self, topic: Topic, now: float) -> None:
        """Release subscriptions that nobody consumes."""
        for name in [name for name in topic.subscriptions if self._is_idle(topic, name, now)]:
            async with self._broker.topics.changing_hosted(topic) as hosted:
                if hosted and self._is_idle(topic, name, self._loop.time()):
                    await self.stop_serving(topic, name)

    async def retry_releases(self) -> None:
        """Release in metadata what could not be released before."""
        await self._leases.retry_releases()

    async def close(self) -> None:
        """Release all leases; progress was saved before."""
        await self._leases.close()

    async def delete_orphans(self, topic: TopicName, storage: Stored, names: Iterable[str]) -> None:
        """Delete cursors of subscriptions that have no record, unless another broker is just creating one."""
        for name in names:
            try:
                await self._leases.take(topic, name)
                if await self._broker.records.subscription(topic, name) is None:
                    await storage.refresh_cursor(name)
                    await storage.forget_cursor(name)
            except IsterError as error:
                log.warning("orphan_cursor_not_deleted", topic=str(topic), subscription=name, cause=str(error))
            await self._leases.release(topic, name)

    def _is_idle(self, topic: Topic, name: str, now: float) -> bool:
        subscription = topic.subscriptions.get(name)
        if subscription is None or not topic.reliable:
            return False
        idle_s = now - self._used_at.get((topic.name, name), now)
        return may_release(
            live=len(subscription.consumers.live(now)), idle_s=idle_s, grace_s=self._broker.settings.consumer_grace_s
        )

    def _close(self, topic: Topic, subscription: Subscription) -> None:
        """End all streams of a subscription with an error that makes clients look the topic up again."""
        self._broker.subscriptions.close(topic, subscription, lease_lost(topic.text, subscription.name))
        self.restore(topic, subscription.name, subscription.record)

    def _lost(self, keys: list[SubscriptionKey]) -> None:
        """Stop serving at once, and save nothing more: other brokers may hold these leases now."""
        for topic_name, name in keys:
            topic = self._broker.topics.get(str(topic_name))
            subscription = None if topic is None else topic.reliable_subscriptions().get(name)
            if topic is None or subscription is None:
                continue
            try:
                topic.release_cursor(name)
                self._close(topic, subscription)
                log.warning("subscription_lost", topic=topic.text, subscription=name, cursor=subscription.cursor)
            except Exception:  # a bug of ours: the other subscriptions must end all the same
                log.exception("subscription_not_ended", topic=topic.text, subscription=name)
