"""Bring a topic's storage to what its policies say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ister.core.errors import PreconditionError
from ister.core.retain import RetentionPolicy
from ister.storage.lake_factory import LakeStorageFactory
from ister.storage.lake_storage import LakeStorage
from ister.storage.retention import ReliableOptions
from ister.wal.config import AckLevel

if TYPE_CHECKING:
    from ister.broker.topic import Stored
    from ister.config.policies import CompletePolicies
    from ister.core.names import TopicName
    from ister.storage.factory import TopicsConfig, WalStorageFactory

MINUTES_DEFAULT = 2880
# What is in a table was in the synced log before; the topic itself waits for the table.
LEVELS = {"wal": AckLevel.WAL, "fsync": AckLevel.FSYNC, "cloud": AckLevel.CLOUD, "lake": AckLevel.FSYNC}


def require_table(policies: CompletePolicies, whose: str) -> None:
    """Refuse what would let producers wait for a table that nobody writes; who said which of both does not matter."""
    if policies.ack_level == "lake" and not policies.lake:
        raise PreconditionError(f"{whose}: ack_level lake needs a table; lake=false says that there is none")


async def apply_storage_policies(
    factory: WalStorageFactory | LakeStorageFactory, name: TopicName, storage: Stored, policies: CompletePolicies
) -> None:
    """Bring a topic's storage to what its policies say; one that is only read is its owner's business."""
    if isinstance(factory, LakeStorageFactory) or isinstance(storage, LakeStorage):
        return
    implied = factory.config.wal.ack_level
    level = implied if policies.ack_level is None else max(implied, LEVELS[policies.ack_level])
    storage.set_cloud_timeout(policies.ack_timeout_ms / 1000)
    await storage.set_level(level)
    factory.set_retention(name, retention_of(policies, factory.config))


def retention_of(policies: CompletePolicies, config: TopicsConfig) -> ReliableOptions | None:
    """Return what a topic's log keeps; None leaves it to the broker's own retention."""
    if policies.retention_policy == "none":
        return None
    period_s = policies.retention_period_s or (config.retention.time_minutes or MINUTES_DEFAULT) * 60
    segment_mb = max(1, config.wal.max_bytes >> 20)
    return ReliableOptions(segment_mb, RetentionPolicy(policies.retention_policy), period_s)
