"""Forget producers, consumers and volatile subscriptions that nobody has come back for."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING

import structlog

from ister.broker.volatile import VolatileSubscription
from ister.core.errors import DrainingError, IsterError

if TYPE_CHECKING:
    from ister.broker.broker import Broker
    from ister.broker.stream import Consumer
    from ister.broker.topic import Subscription, Topic

log = structlog.get_logger()

SWEEP_S = 1.0
FOLLOW_SWEEPS = 5
"""How many sweeps lie between two looks for topics that others have deleted."""


async def sweep(broker: Broker) -> None:
    """Look through all topics once a second, until cancelled."""
    loop = asyncio.get_running_loop()
    for number in count(1):
        await asyncio.sleep(SWEEP_S)
        await _follow(broker, look=number % FOLLOW_SWEEPS == 0)
        now = loop.time()
        for topic in list(broker.topics.values()):
            try:
                topic.forget_silent_producers(now)
                # A change may take minutes, and its topic has its turn a second later: the others do not wait for it.
                if topic.subscriptions and topic.problem is None and not broker.is_changing(topic.name):
                    await _sweep_topic(broker, topic, now)
            except DrainingError:
                if broker.draining:
                    return  # otherwise this topic is just being deleted
            except IsterError as error:
                log.warning("sweep_failed", topic=topic.text, cause=str(error))
            except Exception:  # the root of a task: the other topics, and the next sweeps, have no part in it
                log.exception("sweep_failed", topic=topic.text)


async def _follow(broker: Broker, *, look: bool) -> None:
    try:
        if broker.holding is not None:
            await broker.holding.settle()
        if broker.following is not None and look:
            await broker.following.refresh()
    except IsterError as error:
        log.warning("following_waits", cause=str(error))
    except Exception:  # the root of a task, as above
        log.exception("following_waits")


async def _sweep_topic(broker: Broker, topic: Topic, now: float) -> None:
    settings = broker.settings
    if broker.holding is not None:
        await broker.holding.sweep(topic, now)
    for name, subscription in list(topic.subscriptions.items()):
        idle_s = settings.volatile_subscription_expiry_s
        if isinstance(subscription, VolatileSubscription) and subscription.is_forgotten(now, idle_s):
            async with broker.changing_hosted(topic) as hosted:
                # Someone may have come while we waited for our turn.
                same = hosted and topic.subscriptions.get(name) is subscription
                if same and subscription.is_forgotten(now, idle_s):
                    await broker.remove_subscription(topic, name)
            continue
        if _forgotten(subscription, now, settings.consumer_expiry_s):
            async with broker.changing_hosted(topic) as hosted:
                still = _forgotten(subscription, now, settings.consumer_expiry_s)
                if hosted and topic.subscriptions.get(name) is subscription and still:
                    await broker.forget_consumers(topic, subscription, still)


def _forgotten(subscription: Subscription, now: float, expiry_s: float) -> list[Consumer]:
    return [consumer for consumer in subscription.consumers.values() if consumer.is_forgotten(now, expiry_s)]
