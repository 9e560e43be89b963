"""Hold subscriptions for this broker: a key each, under one lease that the store ends when the broker dies.

core/hold.py decides what a key means. What is held is held only as long as the lease certainly holds: when it is lost,
`lost` is called at once, before the store could give a key to another broker.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from ister.core.errors import IsterError, MetadataUnknownError
from ister.core.hold import Claim, Holder, held_earlier, held_elsewhere, judge
from ister.storage.progress import key_part, progress_root

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.core.names import TopicName
    from ister.ports.metadata import Lease, Metadata

    Place = tuple[TopicName, str]

log = structlog.get_logger()

TRIES = 4
"""A key that goes and comes while we look is looked at again; nobody does that for ever."""


def holder_key(root: str, topic: TopicName, subscription: str) -> str:
    """Return the key that whoever serves a subscription holds."""
    return f"{root}/holders/{key_part(subscription)}/{topic.namespace}/{topic.topic}"


def owner_key(root_prefix: str) -> str:
    """Return where the broker that owns the topics says its address, for those that only read."""
    return f"{progress_root(root_prefix)}/owner"


async def announce_owner(metadata: Metadata, root_prefix: str, url: str) -> None:
    """Say which broker owns the topics; a reader tells it to producers."""
    await metadata.put(owner_key(root_prefix), Holder(url, 0).dump())


async def owner_of(metadata: Metadata, root_prefix: str) -> str | None:
    """Return the address that the owner of the topics has said last, None when it never did."""
    key = owner_key(root_prefix)
    entry = await metadata.get(key)
    return None if entry is None else Holder.load(key, entry.value).broker_url


class Holders:
    """The subscriptions that this broker holds; `lost` is told of all of them when the lease is lost."""

    def __init__(
        self,
        metadata: Metadata,
        root: str,
        *,
        url: Callable[[], str],
        lost: Callable[[list[Place]], None],
        ttl_s: float,
    ) -> None:
        self._metadata = metadata
        self._root = root
        self._url = url
        self._lost = lost
        self._ttl_s = ttl_s
        self._lease: Lease | None = None
        self._held: dict[Place, int] = {}
        self._owed: dict[Place, int] = {}
        self._watching: asyncio.Task[None] | None = None
        self._leasing = asyncio.Lock()

    def holds(self, topic: TopicName, subscription: str) -> bool:
        """Tell whether a subscription is certainly ours at this moment."""
        return (topic, subscription) in self._held and self._lease is not None and self._lease.remaining_s > 0

    async def take(self, topic: TopicName, subscription: str) -> None:
        """Hold a subscription; PreconditionError names the broker that does."""
        key = holder_key(self._root, topic, subscription)
        for _ in range(TRIES):
            lease = await self._leased()
            us = Holder(self._url(), lease.id)
            entry = await self._metadata.get(key)
            found = None if entry is None else Holder.load(key, entry.value)
            claim = judge(found, us)
            version: int | None = None
            if claim is Claim.FREE:
                with suppress(MetadataUnknownError):  # the next look tells
                    version = await self._metadata.cas(key, us.dump(), version=0, lease=lease)
            elif entry is not None and claim is Claim.OURS:
                version = entry.version
            elif found is not None and claim is Claim.OTHER:
                raise held_elsewhere(str(topic), subscription, found)
            else:
                break
            if version is not None and lease is self._lease and lease.remaining_s > 0:
                self._held[topic, subscription] = version
                self._owed.pop((topic, subscription), None)
                return
        raise held_earlier(str(topic), subscription, self._ttl_s)

    async def give_up(self, topic: TopicName, subscription: str) -> None:
        """Let another broker serve a subscription; what cannot be said now is owed."""
        version = self._held.pop((topic, subscription), None)
        if version is not None:
            self._owed[topic, subscription] = version
            await self.settle()

    async def settle(self) -> None:
        """Remove the keys of what was given up and could not be removed before."""
        for place, version in list(self._owed.items()):
            try:
                await self._metadata.delete(holder_key(self._root, *place), version=version)
            except IsterError as error:
                log.warning("hold_not_given_up", topic=str(place[0]), subscription=place[1], cause=str(error))
                return
            if self._owed.get(place) == version:
                del self._owed[place]

    async def close(self) -> None:
        """Give up everything."""
        self._held.clear()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        if self._lease is not None:
            lease, self._lease = self._lease, None
            try:
                await lease.revoke()
            except IsterError as error:
                log.warning("lease_not_revoked", cause=str(error))

    async def _leased(self) -> Lease:
        async with self._leasing:
            if self._lease is None or self._lease.remaining_s <= 0:
                self._lose()
                self._lease = await self._metadata.lease(self._ttl_s)
                if self._watching is not None:
                    self._watching.cancel()
                self._watching = asyncio.create_task(self._watch(self._lease))
            return self._lease

    async def _watch(self, lease: Lease) -> None:
        await lease.lost()
        if lease is self._lease:
            self._lose()

    def _lose(self) -> None:
        """Serve nothing any more of what was held."""
        self._lease = None
        self._owed.clear()
        held, self._held = list(self._held), {}
        if held:
            log.error("holds_lost", store=self._metadata.name, subscriptions=len(held))
            self._lost(held)
