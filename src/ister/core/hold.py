"""Decide which broker serves a subscription: the one whose lease holds its key, as long as that lease certainly holds.

A holder is a broker's address and the number of its lease, which no other run of any broker has. What a broker does
with a subscription follows from the key alone, and from who listens.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, auto

from ister.core.errors import CorruptMetadataError, DrainingError, PreconditionError

VERSION = 1


@dataclass(frozen=True, slots=True)
class Holder:
    """Who serves a subscription."""

    broker_url: str
    lease: int

    def dump(self) -> bytes:
        """Return the value that is stored."""
        content = {"version": VERSION, "broker_url": self.broker_url, "id": self.lease}
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def load(cls, key: str, value: bytes) -> Holder:
        """Return what a value says; CorruptMetadataError when it is not one of ours."""
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
    """What a broker finds that wants to serve a subscription."""

    FREE = auto()
    """Nobody serves it: take it."""
    OURS = auto()
    """It is ours already, perhaps by a write whose answer was lost."""
    EARLIER = auto()
    """An earlier run of this broker, or an earlier lease of this one, held it: that ends by itself, soon."""
    OTHER = auto()
    """Another broker serves it."""


def judge(found: Holder | None, us: Holder) -> Claim:
    """Tell whether we may serve a subscription.

    The same address with another lease is not ours: whether the run that took it is dead, only the lease can tell.
    """
    if found is None:
        return Claim.FREE
    if found == us:
        return Claim.OURS
    return Claim.EARLIER if found.broker_url == us.broker_url else Claim.OTHER


def may_give_up(*, live: int, idle_s: float, grace_s: float) -> bool:
    """Tell whether a subscription may go: no consumer has a place there, and nobody came for as long as one keeps it."""
    return live == 0 and idle_s > grace_s


def held_elsewhere(topic: str, subscription: str, holder: Holder) -> PreconditionError:
    """Say which broker serves a subscription."""
    return PreconditionError(
        f"subscription {subscription} of topic {topic} is served by the broker {holder.broker_url}; subscribe there, "
        "or here once it has no consumers any more"
    )


def held_earlier(topic: str, subscription: str, ttl_s: float) -> DrainingError:
    """Say that an earlier run of this broker still holds a subscription: clients try again."""
    return DrainingError(
        f"subscription {subscription} of topic {topic} is held by an earlier run of this broker; "
        f"that ends within {ttl_s:g} s, try again"
    )


def hold_lost(topic: str, subscription: str) -> DrainingError:
    """Say that a subscription is not served here any more, or not yet again: clients look it up again."""
    return DrainingError(
        f"subscription {subscription} of topic {topic} is not served by this broker now; look the topic up again"
    )
