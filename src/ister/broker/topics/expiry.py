"""Expiry of producers, consumers and subscriptions of non-reliable topics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from ister.core.errors import DrainingError, IsterError

if TYPE_CHECKING:
    from ister.broker.topics.broker import Broker
    from ister.broker.topics.topic import Topic

log = structlog.get_logger()

SWEEP_S = 1.0


async def sweep(broker: Broker) -> None:
    """Check all topics once a second, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(SWEEP_S)
        await _retry_releases(broker)
        now = loop.time()
        for topic in list(broker.topics.values()):
            try:
                topic.expire_producers(now)
                # A change may take minutes; the other topics do not wait for it.
                if topic.subscriptions and topic.problem is None and not broker.topics.is_changing(topic.name):
                    await _sweep_topic(broker, topic, now)
            except DrainingError:
                if broker.draining:
                    return  # otherwise only this topic is being deleted
            except IsterError as error:
                log.warning("sweep_failed", topic=topic.text, cause=str(error))
            except Exception:  # the root of a task: other topics and later sweeps must go on
                log.exception("sweep_failed", topic=topic.text)


async def _retry_releases(broker: Broker) -> None:
    try:
        await broker.ownership.retry_releases()
    except Exception:  # the root of a task, as above
        log.exception("sweep_failed")


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
