"""History of a demo run: acknowledged sends and deliveries, and the check that they agree."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from ister.cli.exit_codes import CheckFailedError
from ister.cli.output import many

if TYPE_CHECKING:
    from collections.abc import Sequence

SHOPS = ("Vienna", "Budapest", "Belgrade", "Galati")
"""The producers, each with its own messages."""
_KEYS = 7


class Received(NamedTuple):
    """One delivery."""

    offset: int
    payload: bytes
    key: str


def order(shop: str, number: int) -> bytes:
    """Return the n-th message of a shop; every byte of it can be checked."""
    text = f"order {number} from {shop}"
    return f"{text} {blake2b(text.encode(), digest_size=32).hexdigest()}".encode()


def key_of(number: int) -> str:
    """Return the key of a shop's n-th message."""
    return f"customer-{number % _KEYS}"


@dataclass
class Subscription:
    """The deliveries of one subscription, in order."""

    name: str
    kind: str
    consumers: int
    received: list[Received] = field(default_factory=list)

    @property
    def repeated(self) -> int:
        """The number of redeliveries, of messages whose acknowledgement a crash lost."""
        return len(self.received) - len({one.offset for one in self.received})

    def stored(self) -> dict[int, bytes]:
        """Return the payloads by offset; raise CheckFailedError for an offset with two payloads."""
        found: dict[int, bytes] = {}
        for one in self.received:
            if found.setdefault(one.offset, one.payload) != one.payload:
                raise CheckFailedError(f"{self.name} got two different messages at offset {one.offset}")
        return found


@dataclass
class History:
    """The acknowledged sends of each shop, and the deliveries of each subscription."""

    acknowledged: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SHOPS, 0))
    subscriptions: list[Subscription] = field(default_factory=list)
    kills: int = 0

    @property
    def answers(self) -> int:
        """The number of acknowledged messages."""
        return sum(self.acknowledged.values())

    def is_complete(self) -> bool:
        """Return True if every subscription has every acknowledged message."""
        wanted = {order(shop, number) for shop, count in self.acknowledged.items() for number in range(count)}
        return all(wanted <= {one.payload for one in each.received} for each in self.subscriptions)

    def check(self) -> list[bytes]:
        """Check that every subscription got everything, in order; return the stored payloads by offset."""
        stored = [self._check_stored(each.stored()) for each in self.subscriptions]
        if any(each != stored[0] for each in stored):
            raise CheckFailedError("two subscriptions got different messages")
        for each in self.subscriptions:
            _check_order(each)
        return stored[0]

    def _check_stored(self, found: dict[int, bytes]) -> list[bytes]:
        """Check that nothing acknowledged is missing, nothing is invented, and only a send without answer is duplicated."""
        if sorted(found) != list(range(len(found))):
            raise CheckFailedError(f"the offsets of {many(len(found), 'message')} have a hole")
        stored = [found[offset] for offset in range(len(found))]
        numbers: dict[str, list[int]] = defaultdict(list)
        for payload in stored:
            shop, number = _parse(payload)
            numbers[shop].append(number)
        for shop, count in self.acknowledged.items():
            first_seen = list(dict.fromkeys(numbers[shop]))
            if len(first_seen) < count:
                raise CheckFailedError(
                    f"{many(count - len(first_seen), 'acknowledged message')} from {shop} did not survive"
                )
            if first_seen != list(range(len(first_seen))):
                raise CheckFailedError(f"the messages from {shop} are out of order")
            if len(numbers[shop]) - len(first_seen) > self.kills:
                raise CheckFailedError(f"messages from {shop} are stored twice that had an answer")
        return stored


def _parse(payload: bytes) -> tuple[str, int]:
    words = payload.decode(errors="replace").split()
    if len(words) == 5 and words[1].isdecimal() and order(words[3], int(words[1])) == payload:
        return words[3], int(words[1])
    raise CheckFailedError(f"a message came that nobody had sent: {payload[:60]!r}")


def _check_order(subscription: Subscription) -> None:
    """Check the order of first deliveries that the subscription type guarantees."""
    by_key: dict[str, list[int]] = defaultdict(list)
    seen: set[int] = set()
    for one in subscription.received:
        if one.offset not in seen:
            seen.add(one.offset)
            by_key[one.key if subscription.kind == "KeyShared" else ""].append(one.offset)
    if subscription.kind == "Shared":
        return
    for key, offsets in by_key.items():
        if offsets != sorted(offsets):
            raise CheckFailedError(f"{subscription.name} got messages{f' of {key}' if key else ''} out of order")


def check_replay(stored: Sequence[bytes], replayed: Subscription) -> None:
    """Check that a second read returned the same bytes at the same offsets."""
    found = replayed.stored()
    if [found.get(offset) for offset in range(len(stored))] != list(stored) or len(found) != len(stored):
        raise CheckFailedError("what was read again differs from what was stored")
