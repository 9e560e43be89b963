"""The hosted topics by name, by partition and by producer id, and one lock for changes of each topic."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from ister.broker.topics import ids
from ister.core.errors import DrainingError, NotFoundError
from ister.core.names import TopicName, partition_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ister.broker.topics.topic import Topic


class TopicIndex(dict[str, "Topic"]):
    """The topics of a broker; those that are just being created are in `creating` only."""

    def __init__(self) -> None:
        super().__init__()
        self.draining = False
        self.creating: set[TopicName] = set()
        self._partitions: dict[TopicName, dict[int, str]] = {}
        self._by_producer_prefix: dict[int, set[str]] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._loop = asyncio.get_running_loop()

    def add(self, topic: Topic) -> None:
        """Add a topic."""
        self[topic.text] = topic
        self._by_producer_prefix.setdefault(ids.topic_part(topic.text), set()).add(topic.text)
        partition = partition_of(topic.name)
        if partition is not None:
            self._partitions.setdefault(partition[0], {})[partition[1]] = topic.text

    def remove(self, topic: Topic) -> None:
        """Remove a topic."""
        self.pop(topic.text, None)
        partition = partition_of(topic.name)
        if partition is not None:
            del self._partitions[partition[0]][partition[1]]
            if not self._partitions[partition[0]]:
                del self._partitions[partition[0]]
        prefix = ids.topic_part(topic.text)
        self._by_producer_prefix[prefix].discard(topic.text)
        if not self._by_producer_prefix[prefix]:
            del self._by_producer_prefix[prefix]

    # --- lookup -------------------------------------------------------------------------------------------------------

    def find(self, text: str) -> Topic:
        """Return a topic; raise NotFoundError, or InvalidNameError if the name is malformed."""
        found = self.get(text)
        if found is None:
            raise NotFoundError(f"topic {TopicName.parse(text)} not found")
        return found

    def sorted(self, namespace: str | None = None) -> list[Topic]:
        """Return all topics, or those of a namespace, sorted by name."""
        return [topic for _, topic in sorted(self.items()) if namespace in {None, topic.name.namespace}]

    def names_in(self, namespace: str) -> list[TopicName]:
        """Return the names of a namespace's topics, including those being created, sorted."""
        names = {topic.name for topic in self.values()} | self.creating
        return sorted(name for name in names if name.namespace == namespace)

    def is_partitioned(self, base: TopicName) -> bool:
        """Return True if a topic has partitions."""
        return base in self._partitions

    def partitions(self, name: TopicName) -> list[str]:
        """Return the topic itself, or its partitions in order, or nothing."""
        if str(name) in self:
            return [str(name)]
        return [text for _, text in sorted(self._partitions.get(name, {}).items())]

    def refresh_producer(self, number: int) -> bool:
        """Return True if a producer's id belongs to a topic here, and postpone the producer's expiry."""
        texts = self._by_producer_prefix.get(ids.topic_part_of(number), ())
        for text in texts:
            producer = self[text].producers.get(number)
            if producer is not None:
                producer.seen = self._loop.time()
        return bool(texts)

    # --- changes ------------------------------------------------------------------------------------------------------

    def begin_drain(self) -> None:
        """Refuse changes from now on."""
        self.draining = True

    @asynccontextmanager
    async def changing(self, name: TopicName) -> AsyncIterator[None]:
        """Hold the lock for changes of a topic and its partitions; raise DrainingError while the broker stops."""
        async with self._locks.setdefault(_change_key(name), asyncio.Lock()):
            if self.draining:
                raise DrainingError("the broker is stopping; look the topic up again")
            yield

    def is_changing(self, name: TopicName) -> bool:
        """Return True while the lock for changes of a topic is held."""
        lock = self._locks.get(_change_key(name))
        return lock is not None and lock.locked()

    @asynccontextmanager
    async def changing_hosted(self, topic: Topic) -> AsyncIterator[bool]:
        """Hold the lock for changes of a topic found before; yield False if it was deleted or created again since.

        Anything written for such a topic would belong to the next topic of its name.
        """
        async with self.changing(topic.name):
            yield self.get(topic.text) is topic and not topic.closing


def _change_key(name: TopicName) -> str:
    part = partition_of(name)
    return str(name if part is None else part[0])
