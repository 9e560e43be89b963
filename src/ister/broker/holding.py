"""Serve a subscription only while this broker holds it: begin where metadata says, and stop at once when it is lost.

A subscription that is not served here is known by its record alone (`Topic.settings_of`); its consumers are in `absent`,
so that one that comes back with its number finds its subscription again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from ister.broker import ids
from ister.broker.holders import Holders
from ister.broker.subscription import ReliableSubscription
from ister.core.errors import DrainingError, IsterError, NotFoundError, PreconditionError
from ister.core.hold import hold_lost, may_give_up
from ister.storage.progress import progress_root

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ister.broker.broker import Broker
    from ister.broker.records import SubscriptionRecord
    from ister.broker.topic import Stored, Subscription, Topic
    from ister.core.names import TopicName
    from ister.ports.metadata import Metadata

log = structlog.get_logger()

PAUSE_S = 0.2
"""How long a consumer waits to be told that its subscription is elsewhere: Python's client asks again at once, for ever."""


class Holding:
    """Which subscriptions of reliable topics this broker serves, among brokers that share metadata."""

    def __init__(self, broker: Broker, metadata: Metadata, ttl_s: float) -> None:
        self.absent: dict[int, tuple[Topic, str]] = {}
        self._broker = broker
        root = progress_root(broker.factory.config.root_prefix)
        self._holders = Holders(metadata, root, url=lambda: broker.url, lost=self._lost, ttl_s=ttl_s)
        self._touched: dict[tuple[TopicName, str], float] = {}
        self._loop = asyncio.get_running_loop()

    def know(self, topic: Topic, name: str, record: SubscriptionRecord) -> None:
        """Take note of a subscription that is not served here now."""
        topic.settings_of[name] = record
        if record.made:
            for consumer in record.consumers:
                self.absent[ids.consumer_id(topic.text, name, consumer)] = (topic, name)

    def forget(self, topic: Topic, names: Iterable[str]) -> None:
        """Forget what is not served here and is gone."""
        gone = set(names)
        for name in gone:
            topic.settings_of.pop(name, None)
        self.absent = {n: place for n, place in self.absent.items() if place[0] is not topic or place[1] not in gone}

    # --- beginning ----------------------------------------------------------------------------------------------------

    async def take_up(self, topic: Topic, name: str) -> Subscription | None:
        """Serve a subscription from where metadata says that it is; None when it is held now, but nobody has made it yet.

        The caller is alone in changing the topic. PreconditionError names the broker that serves it.
        """
        self._touched[topic.name, name] = self._loop.time()
        served = topic.subscriptions.get(name)
        if served is not None and self._holders.holds(topic.name, name):
            return served
        await self._holders.take(topic.name, name)
        try:
            return await self._begin(topic, name)
        except BaseException:
            await self._holders.give_up(topic.name, name)
            raise

    async def _begin(self, topic: Topic, name: str) -> Subscription | None:
        storage, records = topic.stored, self._broker.records
        record = await records.subscription(topic.name, name)
        cursor = await cursor_anew(storage, name)
        self.forget(topic, [name])
        if record is None:
            return None
        if not record.made:
            self.know(topic, name, record)
            return None
        if cursor is None:
            cursor = await storage.reset_cursor(name, storage.start_offset)
            log.warning("cursor_missing", topic=topic.text, subscription=name, cursor=cursor)
        self.check(topic, name)
        subscription = topic.open_subscription(name, record, cursor, storage.finished(name))
        for consumer in subscription.consumers.values():
            self._broker.consumers[consumer.id] = (topic, subscription, consumer)
        log.info("subscription_held", topic=topic.text, subscription=name, cursor=cursor)
        return subscription

    def check(self, topic: Topic, name: str) -> None:
        """Raise unless a subscription is certainly ours at this moment."""
        if not self._holders.holds(topic.name, name):
            raise hold_lost(topic.text, name)

    async def come_back(self, number: int) -> None:
        """Serve the subscription of a consumer that is known by its number, if it is free."""
        place = self.absent.get(number)
        if place is None:
            return
        topic, name = place
        try:
            async with self._broker.changing(topic.name):
                topic.check()
                if number not in self._broker.consumers and await self.take_up(topic, name) is None:
                    await self.give_up(topic, name)
                    raise NotFoundError(f"consumer {number} not found; subscribe first")
        except (PreconditionError, DrainingError):
            await asyncio.sleep(PAUSE_S)
            raise

    # --- ending -------------------------------------------------------------------------------------------------------

    async def put_down(self, topic: Topic, name: str) -> None:
        """Serve a subscription no more: its progress is saved, then others may have it. The caller is alone in that."""
        subscription = topic.subscriptions.get(name)
        if isinstance(subscription, ReliableSubscription):
            self._end(topic, subscription)
            try:
                await topic.stored.flush()
                await topic.stored.save_cursors({name: subscription.cursor}, {name: subscription.finished})
            except IsterError as error:
                log.warning("cursors_not_saved", topic=topic.text, cause=str(error))
            topic.release_cursor(name)
            log.info("subscription_given_up", topic=topic.text, subscription=name, cursor=subscription.cursor)
        await self.give_up(topic, name)

    async def give_up(self, topic: Topic, name: str) -> None:
        """Let others have a subscription that is not served here."""
        self._touched.pop((topic.name, name), None)
        await self._holders.give_up(topic.name, name)

    async def cursors_taken(self, topic: Topic) -> None:
        """Begin anew: someone else has saved progress of a subscription that we hold, perhaps a write that came late."""
        with suppress(DrainingError):
            async with self._broker.changing_hosted(topic) as hosted:
                for name in list(topic.subscriptions) if hosted else ():
                    await self.put_down(topic, name)

    async def sweep(self, topic: Topic, now: float) -> None:
        """Give up what nobody consumes any more."""
        for name in [name for name in topic.subscriptions if self._is_idle(topic, name, now)]:
            async with self._broker.changing_hosted(topic) as hosted:
                if hosted and self._is_idle(topic, name, self._loop.time()):
                    await self.put_down(topic, name)

    async def settle(self) -> None:
        """Tell metadata what was given up and could not be told before."""
        await self._holders.settle()

    async def close(self) -> None:
        """Give up everything; progress was saved before."""
        await self._holders.close()

    async def drop_ghosts(self, topic: Topic, ghosts: Iterable[str]) -> None:
        """Forget cursors of subscriptions that have no record, unless another broker is just making one."""
        for name in ghosts:
            try:
                await self._holders.take(topic.name, name)
                if await self._broker.records.subscription(topic.name, name) is None:
                    await cursor_anew(topic.stored, name)
                    await topic.stored.forget_cursor(name)
            except IsterError as error:
                log.warning("ghost_stays", topic=topic.text, subscription=name, cause=str(error))
            await self._holders.give_up(topic.name, name)

    def _is_idle(self, topic: Topic, name: str, now: float) -> bool:
        subscription = topic.subscriptions.get(name)
        if not isinstance(subscription, ReliableSubscription):
            return False
        idle_s = now - self._touched.get((topic.name, name), now)
        return may_give_up(
            live=len(subscription.live(now)), idle_s=idle_s, grace_s=self._broker.settings.consumer_grace_s
        )

    def _end(self, topic: Topic, subscription: ReliableSubscription) -> None:
        """Deliver nothing more; whoever listens is told to look again."""
        del topic.subscriptions[subscription.name]
        subscription.close(hold_lost(topic.text, subscription.name))
        for consumer in subscription.consumers.values():
            self._broker.consumers.pop(consumer.id, None)
        self.know(topic, subscription.name, subscription.record)

    def _lost(self, places: list[tuple[TopicName, str]]) -> None:
        """Stop at once, and save nothing any more: others may have them now."""
        for topic_name, name in places:
            try:
                self._lose(topic_name, name)
            except Exception:  # a bug of ours: the others must end all the same
                log.exception("subscription_not_ended", topic=str(topic_name), subscription=name)

    def _lose(self, topic_name: TopicName, name: str) -> None:
        topic = self._broker.topics.get(str(topic_name))
        subscription = None if topic is None else topic.subscriptions.get(name)
        if topic is not None and isinstance(subscription, ReliableSubscription):
            topic.release_cursor(name)
            self._end(topic, subscription)
            log.warning("subscription_lost", topic=topic.text, subscription=name, cursor=subscription.cursor)


async def cursor_anew(storage: Stored, name: str) -> int | None:
    """Return where a subscription is: what metadata says now, or what the only broker that serves it knows."""
    return await storage.refresh_cursor(name)
