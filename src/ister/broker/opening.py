"""Open what is kept of a topic: its storage, brought to what its policies say, and how far its subscriptions are."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import structlog

from ister.broker.storage_policies import apply_storage_policies
from ister.core.errors import (
    BusyError,
    DrainingError,
    InvalidConfigError,
    IsterError,
    LockedError,
    UnknownOutcomeError,
)
from ister.core.retry import backoff_s, is_transient
from ister.storage.lake_storage import LakeStorage
from ister.storage.registry import TopicTakenError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ister.broker.broker import Broker
    from ister.broker.topic import Stored, Topic
    from ister.config.policies import CompletePolicies
    from ister.core.names import TopicName
    from ister.storage.factory import WalStorageFactory
    from ister.storage.lake_factory import LakeStorageFactory

log = structlog.get_logger()

RETRY_S = 1.0
RETRY_MAX_S = 60.0
"""The shortest and the longest pause between two attempts to open topics again."""
RETRY_AT_ONCE = 16

NO_CURSORS: Mapping[str, int] = MappingProxyType({})


class Opened(NamedTuple):
    """A reliable topic's storage, and what is wrong with it; `ghosts` are cursors of subscriptions that are not there."""

    storage: Stored | None = None
    problem: IsterError | None = None
    cursors: Mapping[str, int] = NO_CURSORS
    ghosts: Sequence[str] = ()


async def open_stored(
    factory: WalStorageFactory | LakeStorageFactory,
    name: TopicName,
    policies: CompletePolicies,
    subscriptions: Collection[str],
    *,
    alone: bool,
) -> Opened:
    """Open a reliable topic's storage; what keeps it from that is returned, for a broker has other topics, too.

    A ghost is what a crash left while a subscription was being made or removed. It would hold retention back for ever, so a
    broker that is alone forgets it here. Where there are several, it may be someone else's.
    """
    storage: Stored | None = None
    try:
        storage = await factory.for_topic(name)
        await apply_storage_policies(factory, name, storage, policies)
        if isinstance(storage, LakeStorage) or not (subscriptions or policies.retention_policy != "none"):
            return Opened(storage)
        cursors = await storage.cursors()
        ghosts = [found for found in cursors if found not in subscriptions]
        for ghost in ghosts if alone else ():
            await storage.forget_cursor(ghost)
    except IsterError as error:
        problem: IsterError = error
    except OSError as error:
        problem = BusyError(error.strerror or "the disk refused")
    else:
        return Opened(storage, None, cursors, ghosts)
    log.error("topic_has_problem", topic=str(name), cause=str(problem))
    return Opened(storage, problem)


def may_pass(problem: IsterError) -> bool:
    """Return True if a topic with this problem may be opened, or deleted, later without a restart.

    Opening looks before it acts, so an outcome that was unknown the last time is known the next time. A lock is released
    when its owner ends, and a permission may be granted while the broker runs.
    """
    return is_transient(problem) or isinstance(
        problem, UnknownOutcomeError | TopicTakenError | LockedError | InvalidConfigError
    )


class TopicRetries:
    """Opens topics again whose problem may pass, and finishes their deletion, with a back-off or when someone asks."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; `stop` it at the end."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Try nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def hurry(self) -> None:
        """Try soon: a second after the last attempt, however many ask."""
        self._hurry.set()

    def _waiting(self) -> list[Topic]:
        topics = self._broker.topics.values()
        return [topic for topic in topics if topic.problem is not None and may_pass(topic.problem)]

    async def _run(self) -> None:
        attempts = 1
        while True:
            await asyncio.sleep(RETRY_S)
            pause_s = backoff_s(attempts, RETRY_MAX_S, RETRY_S) - RETRY_S if self._waiting() else None
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._hurry.wait()
            self._hurry.clear()
            waiting = self._waiting()
            gate = asyncio.Semaphore(RETRY_AT_ONCE)
            await asyncio.gather(*(self._retry(topic, gate) for topic in waiting))
            attempts = attempts + 1 if len(self._waiting()) == len(waiting) else 1

    async def _retry(self, topic: Topic, gate: asyncio.Semaphore) -> None:
        async with gate:
            try:
                await self._broker.retry(topic)
            except DrainingError:
                return
            except IsterError as error:
                log.warning("topic_not_removed", topic=topic.text, cause=str(error))
            except Exception:  # the root of a task: the other topics, and the next attempts, have no part in it
                log.exception("topic_has_problem", topic=topic.text)
