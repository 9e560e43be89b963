"""Namespaces: their records, and the policies that hold for their topics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from ister.broker.settings import NAMESPACES
from ister.broker.topics.records import NamespaceRecord
from ister.config.policies import Policies, merge
from ister.core.errors import AlreadyExistsError, InvalidRequestError, NotFoundError, PreconditionError
from ister.core.names import TopicName

if TYPE_CHECKING:
    from ister.broker.topics.index import TopicIndex
    from ister.broker.topics.records import Records, TopicRecord
    from ister.broker.topics.topic import Topic
    from ister.config.policies import CompletePolicies

log = structlog.get_logger()

NAMESPACE_CHARS_MAX = 200


class Namespaces(dict[str, NamespaceRecord]):
    """The namespaces by name; `defaults` are the broker's own policies."""

    def __init__(self, records: Records, defaults: CompletePolicies, topics: TopicIndex) -> None:
        super().__init__()
        self.changing = asyncio.Lock()
        """Held while a namespace, or the policies of a namespace or topic, are checked and written."""
        self._records = records
        self._defaults = defaults
        self._topics = topics

    async def load(self) -> None:
        """Read every namespace from metadata."""
        found = await self._records.namespaces()
        self.clear()
        self.update(found)

    def find(self, namespace: str) -> NamespaceRecord:
        """Return a namespace; raise NotFoundError if there is none."""
        found = self.get(namespace)
        if found is None:
            check_namespace(namespace)
            raise NotFoundError(f"namespace {namespace} not found")
        return found

    async def create(self, namespace: str) -> None:
        """Create a namespace."""
        check_namespace(namespace)
        async with self.changing:
            if namespace in self:
                raise AlreadyExistsError(f"namespace {namespace} exists already")
            await self.ensure(namespace)
        log.info("namespace_created", namespace=namespace)

    async def ensure(self, namespace: str) -> None:
        """Create a namespace unless it exists."""
        check_namespace(namespace)
        if namespace not in self:
            await self.save(namespace, NamespaceRecord())

    async def save(self, namespace: str, record: NamespaceRecord) -> None:
        """Write a namespace's record."""
        await self._records.save_namespace(namespace, record)
        self[namespace] = record

    async def delete(self, namespace: str) -> None:
        """Delete a namespace that has no topics."""
        async with self.changing:
            self.find(namespace)
            if namespace in NAMESPACES:
                raise PreconditionError(f"namespace {namespace} always exists")
            if self._topics.names_in(namespace):
                raise PreconditionError(f"namespace {namespace} has topics; delete them first")
            record = self.pop(namespace)  # first, so that no topic is created in it meanwhile
            try:
                await self._records.forget_namespace(namespace)
            except BaseException:
                self[namespace] = record
                raise
        log.info("namespace_removed", namespace=namespace)

    def topics(self, namespace: str) -> list[Topic]:
        """Return the topics of a namespace, sorted by name."""
        self.find(namespace)
        return self._topics.sorted(namespace)

    def policies(self, namespace: str) -> CompletePolicies:
        """Return the policies that hold for a namespace's topics unless they have their own."""
        return self.merged(self.find(namespace).policies)

    def effective(self, topic: TopicName, record: TopicRecord) -> CompletePolicies:
        """Return the policies that hold for a topic."""
        return self.merged(self.get(topic.namespace, NamespaceRecord()).policies, record.policies)

    def merged(self, of_namespace: Policies, of_topic: Policies | None = None) -> CompletePolicies:
        """Return the policies that would hold for a topic."""
        return merge(of_namespace, of_topic or Policies(), self._defaults)


def check_namespace(namespace: str) -> None:
    """Raise InvalidRequestError unless this can be the name of a namespace."""
    TopicName.parse(f"/{namespace}/x")  # the same error text as for a topic, of which it is a part
    if len(namespace) > NAMESPACE_CHARS_MAX:
        raise InvalidRequestError(f"namespace has {len(namespace)} characters, more than {NAMESPACE_CHARS_MAX}")
