"""Leases: the client's renewal and expiry, and the table of leases of a store in this process."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from ister.core.errors import (
    InvalidConfigError,
    IsterError,
    LeaseLostError,
    MetadataUnavailableError,
    MetadataUnknownError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ister.ports.metadata.store import Lease

    Monotonic = Callable[[], float]

RENEWALS_PER_TTL = 3
RETRIES_PER_TTL = 12
WAIT_MIN_S = 0.001

log = structlog.get_logger(__name__)


def check_ttl(ttl_s: float) -> None:
    """Raise unless a lease can last this long."""
    if not 0 < ttl_s < 2**31:
        raise InvalidConfigError("ttl_s", f"{ttl_s} is no time a lease can last")


class RenewedLease:
    """A lease that is renewed after a third of its time.

    It counts from the moment before a renewal was sent, the store from a moment after it arrived: it ends here first.
    An answer that comes after the end does not bring it back.
    """

    def __init__(
        self,
        store: str,
        lease_id: int,
        *,
        ttl_s: float,
        sent: float,
        renew: Callable[[int, float], Awaitable[float]],
        revoke: Callable[[int], Awaitable[None]],
        monotonic: Monotonic,
    ) -> None:
        self._store = store
        self._id = lease_id
        self._ttl_s = ttl_s
        self._ends = sent + ttl_s
        self._renew = renew
        self._revoke = revoke
        self._monotonic = monotonic
        self._lost = asyncio.Event()
        self._task = asyncio.create_task(self._keep(), name=f"lease {lease_id}")

    def __repr__(self) -> str:
        return f"<lease {self._id:x} in {self._store}, {self.remaining_s:.1f} s left>"

    @property
    def id(self) -> int:
        """The store's id of it."""
        return self._id

    @property
    def remaining_s(self) -> float:
        """The time for which it certainly holds; 0 once it is lost, and then for ever."""
        if self._lost.is_set():
            return 0.0
        left = self._ends - self._monotonic()
        if left <= 0:
            self.lose()
            return 0.0
        return left

    async def lost(self) -> None:
        """Return once it does not certainly hold."""
        while (left := self.remaining_s) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(left, WAIT_MIN_S)):
                    await self._lost.wait()

    async def revoke(self) -> None:
        """Revoke it, and delete its keys."""
        self.lose()
        await self.stop()
        await self._revoke(self._id)

    def lose(self) -> None:
        """Mark it as lost: the store has reported so."""
        if not self._lost.is_set():
            self._lost.set()
            log.info("lease_ended", store=self._store, lease=self._id)

    async def stop(self) -> None:
        """Stop renewing it; it expires."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _keep(self) -> None:
        pause = self._ttl_s / RENEWALS_PER_TTL
        while (left := self.remaining_s) > 0:
            await asyncio.sleep(max(min(pause, left), WAIT_MIN_S))
            if self.remaining_s <= 0:
                return
            sent = self._monotonic()
            try:
                ttl_s = await self._renew(self._id, self._ttl_s / RENEWALS_PER_TTL)
            except LeaseLostError:
                self.lose()
                return
            except Exception as error:
                if not isinstance(error, IsterError):  # a defect of ours: without this, the task would end unnoticed
                    log.exception("lease_not_renewed", store=self._store, lease=self._id)
                pause = self._ttl_s / RETRIES_PER_TTL  # only a successful renewal prolongs it
                continue
            if self.remaining_s > 0:
                self._ttl_s = ttl_s
                self._ends = sent + ttl_s
                pause = ttl_s / RENEWALS_PER_TTL


class LeaseTable:
    """The leases of a store in this process; ends those that were not renewed."""

    def __init__(
        self,
        store: str,
        *,
        monotonic: Monotonic,
        check: Callable[[str], None],
        remove: Callable[[int], Awaitable[None]],
    ) -> None:
        self._store = store
        self._monotonic = monotonic
        self._check = check
        self._remove = remove
        self._last_id = 0
        self._leases: dict[int, RenewedLease] = {}
        self._ends: dict[int, tuple[float, float]] = {}
        self._timers: dict[int, asyncio.Task[None]] = {}

    def grant(self, ttl_s: float) -> RenewedLease:
        """Grant a new lease for `ttl_s`."""
        check_ttl(ttl_s)
        self._check("grant a lease")
        sent = self._monotonic()
        self._last_id += 1
        lease_id = self._last_id
        self._ends[lease_id] = (ttl_s, sent + ttl_s)
        self._timers[lease_id] = asyncio.create_task(self._end(lease_id), name=f"end of lease {lease_id}")
        self._leases[lease_id] = RenewedLease(
            self._store,
            lease_id,
            ttl_s=ttl_s,
            sent=sent,
            renew=self._renew,
            revoke=self._revoke,
            monotonic=self._monotonic,
        )
        return self._leases[lease_id]

    def number(self, lease: Lease | None) -> int | None:
        """Return the id of a lease; raise LeaseLostError if it has ended, or is another store's."""
        if lease is None:
            return None
        ours: Lease | None = self._leases.get(lease.id)
        _, ends = self._ends.get(lease.id, (0.0, 0.0))
        if ours is not lease or lease.remaining_s <= 0 or self._monotonic() >= ends:
            raise LeaseLostError(self._store)
        return lease.id

    async def _renew(self, lease_id: int, _timeout_s: float) -> float:
        self._check("renew a lease")
        ttl_s, ends = self._ends.get(lease_id, (0.0, 0.0))
        now = self._monotonic()
        if now >= ends:
            raise LeaseLostError(self._store)
        self._ends[lease_id] = (ttl_s, now + ttl_s)
        return ttl_s

    async def _revoke(self, lease_id: int) -> None:
        self._check("revoke a lease")
        timer = self._timers.get(lease_id)
        if self._ends.pop(lease_id, None) is not None and timer is not None:
            timer.cancel()
            await asyncio.wait({timer})
            del self._timers[lease_id], self._leases[lease_id]
            await self._remove(lease_id)
        elif timer is not None:  # it has expired, and its keys are being deleted
            await asyncio.wait({timer})

    async def close(self) -> None:
        """Stop renewing and expiring leases."""
        for lease in list(self._leases.values()):
            await lease.stop()
        while self._timers:
            timer = self._timers.popitem()[1]
            timer.cancel()
            await asyncio.wait({timer})

    async def _end(self, lease_id: int) -> None:
        while (left := self._ends[lease_id][1] - self._monotonic()) > 0:  # noqa: ASYNC110  # a renewal moves the end
            await asyncio.sleep(max(left, WAIT_MIN_S))
        ttl_s, _ = self._ends.pop(lease_id)
        await self._leases.pop(lease_id).stop()
        while True:  # a full disk only delays the deletion of keys
            try:
                await self._remove(lease_id)
                break
            except (MetadataUnavailableError, MetadataUnknownError):
                await asyncio.sleep(ttl_s)
        self._timers.pop(lease_id, None)
