"""Opening a topic's storage: its policies, and retries of topics that could not be opened."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from ister.core.defaults import RETENTION_MINUTES
from ister.core.errors import (
    DrainingError,
    InvalidConfigError,
    IsterError,
    LockedError,
    PreconditionError,
    TopicTakenError,
    UnknownOutcomeError,
)
from ister.core.retry import backoff_s, is_transient
from ister.core.tiers.retention import RetentionPolicy
from ister.storage.retention import ReliableOptions
from ister.wal.config import AckLevel

if TYPE_CHECKING:
    from ister.broker.topics.broker import Broker
    from ister.broker.topics.topic import Stored, Topic
    from ister.config.policies import CompletePolicies
    from ister.core.names import TopicName
    from ister.storage.factory import TopicsConfig, WalStorageFactory
    from ister.storage.lake_factory import LakeStorageFactory

log = structlog.get_logger()

RETRY_S = 1.0
RETRY_MAX_S = 60.0
"""Bounds of the back-off between two attempts to open topics again."""
RETRY_AT_ONCE = 16


def require_table(policies: CompletePolicies, whose: str) -> None:
    """Raise PreconditionError if producers would wait for a table that is not written."""
    if policies.ack_level == "lake" and not policies.lake:
        raise PreconditionError(f"{whose}: ack_level lake needs a table; lake=false says that there is none")


async def apply_storage_policies(
    factory: WalStorageFactory | LakeStorageFactory, topic: TopicName, storage: Stored, policies: CompletePolicies
) -> None:
    """Apply the policies to a topic's storage; for a read-only one its owner does."""
    if factory.read_only or storage.read_only:
        return
    implied = factory.config.wal.ack_level
    # The log is synced before the table is written; the topic itself waits for the table.
    name = "fsync" if policies.ack_level == "lake" else policies.ack_level
    level = implied if name is None else max(implied, AckLevel[name.upper()])
    storage.set_cloud_timeout(policies.ack_timeout_ms / 1000)
    await storage.set_level(level)
    factory.set_retention(topic, retention_of(policies, factory.config))


def retention_of(policies: CompletePolicies, config: TopicsConfig) -> ReliableOptions | None:
    """Return the retention of a topic's log; None is the broker's own."""
    if policies.retention_policy == "none":
        return None
    period_s = policies.retention_period_s or (config.retention.time_minutes or RETENTION_MINUTES) * 60
    segment_mb = max(1, config.wal.max_bytes >> 20)
    return ReliableOptions(segment_mb, RetentionPolicy(policies.retention_policy), period_s)


def may_pass(problem: IsterError) -> bool:
    """Return True if a topic with this problem may be opened, or deleted, later without a restart.

    Opening reads before it writes, so an unknown outcome is known the next time. A lock is released when its owner ends,
    and a permission may be granted while the broker runs.
    """
    return is_transient(problem) or isinstance(
        problem, UnknownOutcomeError | TopicTakenError | LockedError | InvalidConfigError
    )


class TopicRetries:
    """Retries to open, or to delete, topics with a transient problem, with back-off or on request."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._requested = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task; `stop` it at the end."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop the task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def retry_soon(self) -> None:
        """Retry soon: a second after the last attempt, however often this is called."""
        self._requested.set()

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
                    await self._requested.wait()
            self._requested.clear()
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
            except Exception:  # the root of a task: other topics and later attempts must go on
                log.exception("topic_has_problem", topic=topic.text)
