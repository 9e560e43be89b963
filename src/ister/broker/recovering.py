"""Find every topic again when a broker starts, with its subscriptions; finish what a crash left half done."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from ister.broker.records import TopicRecord
from ister.broker.settings import NAMESPACES
from ister.core.errors import IsterError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ister.broker.broker import Broker
    from ister.broker.records import SubscriptionRecord
    from ister.core.names import TopicName

log = structlog.get_logger()

HOST_AT_ONCE = 16
"""How many topics are hosted at a time: each may have to read its cursors."""


async def recover(broker: Broker) -> None:
    """Open every topic that records or logs know of."""
    for namespace in (*NAMESPACES, *broker.settings.bootstrap_namespaces):
        await broker.ensure_namespace(namespace)
    known = await broker.records.topics()
    subscriptions = await broker.records.subscriptions()
    stored = {*await broker.factory.start(), *broker.factory.problems}
    there: dict[TopicName, TopicRecord] = {}
    for name in sorted({*known, *stored}):
        record = known.get(name)
        if record is None:
            # A log that another tool made, or whose record a crash kept from being written.
            record = TopicRecord(reliable=True)
            await broker.ensure_namespace(name.namespace)
            await broker.records.save_topic(name, record)
        if record.deleting:
            try:
                await broker.remove_stored(name, reliable=record.reliable, in_background=True)
            except IsterError as error:
                log.warning("topic_not_removed", topic=str(name), cause=str(error))
                (await broker.host(name, record, {}, error)).close()  # or it could be made again with its messages
        else:
            there[name] = record
    await _host_all(broker, there, subscriptions)


async def _host_all(
    broker: Broker,
    records: Mapping[TopicName, TopicRecord],
    subscriptions: Mapping[TopicName, Mapping[str, SubscriptionRecord]],
) -> None:
    gate = asyncio.Semaphore(HOST_AT_ONCE)

    async def host(name: TopicName, record: TopicRecord) -> None:
        async with gate:
            await broker.host(name, record, subscriptions.get(name, {}), broker.factory.problems.get(name))

    try:
        async with asyncio.TaskGroup() as group:
            for name, record in records.items():
                group.create_task(host(name, record))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
