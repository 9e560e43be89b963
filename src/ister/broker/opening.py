"""Open what is kept of a topic: its storage, brought to what its policies say, and how far its subscriptions are."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import structlog

from ister.broker.storage_policies import apply_storage_policies
from ister.core.errors import BusyError, IsterError
from ister.storage.lake_storage import LakeStorage

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ister.broker.topic import Stored
    from ister.config.policies import CompletePolicies
    from ister.core.names import TopicName
    from ister.storage.factory import WalStorageFactory
    from ister.storage.lake_factory import LakeStorageFactory

log = structlog.get_logger()

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
