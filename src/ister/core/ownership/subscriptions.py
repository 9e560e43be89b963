"""Subscription leases: which broker may serve a subscription. Pure.

A lease holder is a broker's address and the id of its lease, which is unique to one run of a broker.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, auto

from ister.core.errors import CorruptMetadataError, DrainingError, PreconditionError

VERSION = 1


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The broker that holds a subscription's lease."""

    broker_url: str
    lease: int

    def dump(self) -> bytes:
        """Return the stored value."""
        content = {"version": VERSION, "broker_url": self.broker_url, "id": self.lease}
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def load(cls, key: str, value: bytes) -> LeaseHolder:
        """Parse a stored value; raise CorruptMetadataError if it is malformed."""
        try:
            content = json.loads(value)
            version, holder = content["version"], cls(content["broker_url"], content["id"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptMetadataError(key, f"it is not a holder's record ({type(error).__name__})") from None
        if version != VERSION:
            raise CorruptMetadataError(key, f"its version is {version!r}, this release knows {VERSION}")
        if not isinstance(holder.broker_url, str) or type(holder.lease) is not int:
            raise CorruptMetadataError(key, "what it says of a holder cannot be")
        return holder


class Claim(Enum):
    """The state of a lease, as seen by a broker that wants it."""

    FREE = auto()
    """No broker holds it."""
    OURS = auto()
    """This broker holds it already, perhaps by a write whose response was lost."""
    EARLIER = auto()
    """An earlier run or lease of this broker holds it, and expires soon."""
    OTHER = auto()
    """Another broker holds it."""


def claim_of(found: LeaseHolder | None, us: LeaseHolder) -> Claim:
    """Return the state of a lease.

    The same address with another lease id is not ours: only the end of that lease proves that the earlier run is dead.
    """
    if found is None:
        return Claim.FREE
    if found == us:
        return Claim.OURS
    return Claim.EARLIER if found.broker_url == us.broker_url else Claim.OTHER


def may_release(*, live: int, idle_s: float, grace_s: float) -> bool:
    """Return True if a lease may be released: no live consumer, and none came within the grace period."""
    return live == 0 and idle_s > grace_s


def leased_elsewhere(topic: str, subscription: str, holder: LeaseHolder) -> PreconditionError:
    """Return the error that names the broker that serves a subscription."""
    return PreconditionError(
        f"subscription {subscription} of topic {topic} is served by the broker {holder.broker_url}; subscribe there, "
        "or here once it has no consumers any more"
    )


def leased_earlier(topic: str, subscription: str, ttl_s: float) -> DrainingError:
    """Return the error of a lease that an earlier run of this broker still holds: clients retry."""
    return DrainingError(
        f"subscription {subscription} of topic {topic} is held by an earlier run of this broker; "
        f"that ends within {ttl_s:g} s, try again"
    )


def read_only_error(owner: str | None = None) -> PreconditionError:
    """Return the error of a call that only the owner of the topics answers; `owner` is its address, if known."""
    where = "" if owner is None else f", {owner},"
    return PreconditionError(
        f"this broker only reads (ister serve --read-only); produce to the broker that owns the topic{where} "
        "and change topics there"
    )


def lease_lost(topic: str, subscription: str) -> DrainingError:
    """Return the error of a subscription that is not served here now: clients look the topic up again."""
    return DrainingError(
        f"subscription {subscription} of topic {topic} is not served by this broker now; look the topic up again"
    )
