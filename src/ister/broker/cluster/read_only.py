"""A read-only broker: topics in sync with metadata, and services that refuse what only the owner can do."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, cast

import structlog

from ister.broker.cluster.subscription_leases import Leased
from ister.broker.methods import METHODS, ReadOnly
from ister.core.errors import IsterError, NotFoundError
from ister.core.ownership.subscriptions import read_only_error
from ister.transport.service import Prompt, ServerStream, Service, Unary, wants_call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from google.protobuf.message import Message

    from ister.broker.topics.broker import Broker
    from ister.broker.topics.records import SubscriptionRecord, TopicRecord
    from ister.broker.topics.topic import Topic
    from ister.storage.lake_factory import LakeStorageFactory
    from ister.transport.service import Call, Method

log = structlog.get_logger()

INTERVAL_S = 5.0

Owner: TypeAlias = "Callable[[], Awaitable[str | None]]"
"""Returns the address of the broker that owns the topics, if known."""


class TopicSync:
    """Opens and closes the topics of a read-only broker; `start` it before the broker, `stop` it before its drain."""

    def __init__(self, broker: Broker, factory: LakeStorageFactory) -> None:
        assert isinstance(broker.ownership, Leased), "a read-only broker shares the subscriptions with its owner"
        self._broker = broker
        self._factory = factory
        self._leased = broker.ownership
        self._lock = asyncio.Lock()
        self._begun = self._complete = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open every topic, then keep in sync."""
        await self.refresh()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop syncing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self.refresh()
            except IsterError as error:
                log.warning("topic_sync_failed", cause=str(error))
            except Exception:  # the root of a task
                log.exception("topic_sync_failed")

    async def refresh(self) -> None:
        """Return after a sync that began after this call; concurrent callers share one."""
        seen = self._begun
        async with self._lock:
            if self._complete > seen:
                return
            self._begun = number = self._begun + 1
            await self._sync()
            self._complete = number

    async def _sync(self) -> None:
        broker = self._broker
        await broker.namespaces.load()
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
                await self._close(topic)
        for name, record in sorted(there.items()):
            found = broker.topics.get(str(name))
            if found is None:
                await broker.host(name, record, subscriptions.get(name, {}))
            else:
                self._update(found, record, subscriptions.get(name, {}))

    def _update(self, topic: Topic, record: TopicRecord, subscriptions: Mapping[str, SubscriptionRecord]) -> None:
        policies = self._broker.namespaces.effective(topic.name, record)
        topic.update(record, policies if policies != topic.policies else None)
        dormant = {name: sub for name, sub in subscriptions.items() if name not in topic.subscriptions}
        self._leased.replace_dormant(topic, dormant)

    async def _close(self, topic: Topic) -> None:
        """Close a topic; nothing of it is written."""
        async with self._broker.topics.changing(topic.name):
            topic.close(NotFoundError(f"topic {topic.text} was deleted"))
            self._broker.forget(topic)
            await self._leased.release_topic(topic)
            await self._factory.close_topic(topic.name)
        log.info("topic_closed", topic=topic.text, generation=topic.generation)


def for_readers(service: Service, refresh: Callable[[], Awaitable[None]], owner: Owner) -> Service:
    """Return the service of a read-only broker: METHODS lists what it does with each method, by default refuse.

    `refresh` updates its topics from metadata.
    """
    return replace(service, methods=tuple(_method(service.name, method, refresh, owner) for method in service.methods))


def _method(service: str, method: Method, refresh: Callable[[], Awaitable[None]], owner: Owner) -> Method:
    rule = METHODS[f"{service}/{method.name}"].read_only
    if rule is ReadOnly.CACHED:
        return method
    assert not isinstance(method, Prompt), "a prompt method cannot refresh or look up the owner: that waits"

    async def refuse_call(request: Message) -> Message:
        del request
        raise read_only_error(await owner())

    async def refuse_stream(request: Message, call: Call) -> AsyncIterator[Message]:
        del call
        yield await refuse_call(request)

    if isinstance(method, ServerStream):
        return replace(method, handler=refuse_stream)
    assert isinstance(method, Unary), "the broker has no bidirectional streams of its own"
    if rule is ReadOnly.REFUSED:
        return replace(method, handler=refuse_call, finishes=False)
    assert not wants_call(method.handler), "none of these takes the call"
    handler = cast("Callable[[Message], Awaitable[Message]]", method.handler)

    async def refreshed(request: Message) -> Message:
        await refresh()
        return await handler(request)

    return replace(method, handler=refreshed)
