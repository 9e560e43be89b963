"""Subscription ownership: which broker serves a subscription of a reliable topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ister.broker.topics.broker import Broker
    from ister.broker.topics.records import SubscriptionRecord
    from ister.broker.topics.topic import Stored, Subscription, Topic
    from ister.core.names import TopicName

log = structlog.get_logger()


class SubscriptionOwnership:
    """The ownership of a single broker, which serves every subscription from the start on.

    `Leased` is that of one broker among several that share metadata.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def restore(self, topic: Topic, name: str, record: SubscriptionRecord, cursor: int | None) -> None:
        """Open a stored subscription of a topic that was just opened, if it is served without being requested."""
        storage = topic.stored
        if cursor is None:
            cursor = storage.start_offset
            log.warning("cursor_missing", topic=topic.text, subscription=name, cursor=cursor)
        self._broker.subscriptions.open(topic, name, record, cursor, storage.finished(name))

    async def delete_orphans(self, topic: TopicName, storage: Stored, names: Iterable[str]) -> None:
        """Delete cursors without a subscription, which a crash left; they would hold retention back."""
        del topic
        for name in names:
            await storage.forget_cursor(name)

    async def acquire(self, topic: Topic, name: str) -> Subscription | None:
        """Return a subscription that this broker serves from now on, None if it was never created.

        The caller is inside `TopicIndex.changing`. PreconditionError names the broker that serves it.
        """
        return topic.subscriptions.get(name)

    async def release(self, topic: Topic, name: str) -> None:
        """Allow other brokers to serve a subscription that is not served here."""

    async def release_topic(self, topic: Topic) -> None:
        """Release all subscriptions of a topic that is closed and not hosted any more."""

    def check(self, topic: Topic, name: str) -> None:
        """Raise DrainingError unless this broker certainly may serve a subscription at this moment."""

    async def resume_consumer(self, number: int) -> None:
        """Serve the subscription of a consumer that reconnects with its id, if no other broker does."""

    async def cursors_taken(self, topic: Topic) -> bool:
        """Resume from cursors that another broker has saved; False if there can be no other broker."""
        del topic
        return False

    async def expire(self, topic: Topic, now: float) -> None:
        """Release the subscriptions of a topic that nobody consumes."""

    async def retry_releases(self) -> None:
        """Release in metadata what could not be released before."""

    async def close(self) -> None:
        """Release everything; progress was saved before."""
