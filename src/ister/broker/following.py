"""Follow the topics that other brokers own: host what there is in metadata, let go of what is gone or another one now."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from ister.core.errors import NotFoundError

if TYPE_CHECKING:
    from ister.broker.broker import Broker
    from ister.broker.holding import Holding
    from ister.broker.records import SubscriptionRecord, TopicRecord
    from ister.broker.topic import Topic
    from ister.storage.lake_factory import LakeStorageFactory

log = structlog.get_logger()


class Following:
    """What keeps a broker that only reads up to date."""

    def __init__(self, broker: Broker, factory: LakeStorageFactory, holding: Holding) -> None:
        self._broker = broker
        self._factory = factory
        self._holding = holding
        self._lock = asyncio.Lock()
        self._begun = self._complete = 0

    async def refresh(self) -> None:
        """Return once metadata was looked at after this was called; many callers share one look."""
        seen = self._begun
        async with self._lock:
            if self._complete > seen:
                return
            self._begun = number = self._begun + 1
            await self._look()
            self._complete = number

    async def _look(self) -> None:
        broker = self._broker
        broker.namespaces = await broker.records.namespaces()
        known = await broker.records.topics()
        subscriptions = await broker.records.subscriptions()
        generations = await self._factory.generations()
        there = {
            name: record
            for name, record in known.items()
            if name in generations and record.reliable and not record.deleting
        }
        for topic in list(broker.topics.values()):
            if topic.name not in there or topic.generation != generations[topic.name]:
                await self._let_go(topic)
        for name, record in sorted(there.items()):
            found = broker.topics.get(str(name))
            if found is None:
                await broker.host(name, record, subscriptions.get(name, {}))
            else:
                self._update(found, record, subscriptions.get(name, {}))

    def _update(self, topic: Topic, record: TopicRecord, subscriptions: dict[str, SubscriptionRecord]) -> None:
        policies = self._broker.effective(topic.name, record)
        topic.record = record
        if policies != topic.policies:
            topic.set_policies(policies)
        absent = {name: sub for name, sub in subscriptions.items() if name not in topic.subscriptions}
        if absent != topic.settings_of:
            self._holding.forget(topic, list(topic.settings_of))
            for name, sub in absent.items():
                self._holding.know(topic, name, sub)

    async def _let_go(self, topic: Topic) -> None:
        """End what is hosted here of a topic; nothing of it is written."""
        async with self._broker.changing(topic.name):
            topic.close(NotFoundError(f"topic {topic.text} was deleted"))
            self._broker.forget(topic)
            for name in list(topic.subscriptions):
                await self._holding.give_up(topic, name)
            self._holding.forget(topic, list(topic.settings_of))
            await self._factory.close_topic(topic.name)
        log.info("topic_let_go", topic=topic.text, generation=topic.generation)
