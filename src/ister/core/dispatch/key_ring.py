"""Consistent-hash ring of a KeyShared subscription, and the key filters of its consumers.

Hash and labels are those of Danube's broker, so a key keeps its owner when a subscription moves between the two.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from ister.core.hashing import fnv1a

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ister.core.dispatch.consumers import Consumer

NODES_PER_CONSUMER = 100
OWNERS_KNOWN_MAX = 65_536

_MASK_32 = 0xFFFFFFFF


def ring_hash(text: str) -> int:
    """Return FNV-1a of 64 bits, folded to 32, with Murmur3's finaliser for an even spread."""
    value = fnv1a(text.encode("utf-8", "surrogatepass"))
    value = (value >> 32) ^ (value & _MASK_32)
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & _MASK_32
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & _MASK_32
    return value ^ (value >> 16)


def glob_matches(pattern: str, key: str) -> bool:
    """Return True if the whole key matches the glob: `*` is any run of characters, `?` is one character.

    Only the last star backtracks, so a hostile pattern costs pattern times key steps; a regular expression with many
    stars would cost a power of that.
    """
    at = spot = 0
    star = resume = -1
    while at < len(key):
        if spot < len(pattern) and pattern[spot] == "*":
            star, resume = spot, at
            spot += 1
        elif spot < len(pattern) and (pattern[spot] == "?" or pattern[spot] == key[at]):
            spot += 1
            at += 1
        elif star >= 0:
            resume += 1
            spot, at = star + 1, resume
        else:
            return False
    return not pattern[spot:].strip("*")


def wants(filters: Sequence[str], key: str) -> bool:
    """Return True if a consumer with these filters accepts the key; without filters it accepts any."""
    return not filters or any(glob_matches(pattern, key) for pattern in filters)


class Ring:
    """Consumers on a circle of hashes: a key's owner is the first candidate clockwise from the key's hash.

    All registered consumers are on the ring; disconnected ones are skipped, which finds the same owner as a ring without
    them, so that the ring is not rebuilt when a consumer disconnects.
    """

    def __init__(self) -> None:
        self._consumers: dict[int, Consumer] = {}
        self._nodes: list[tuple[int, int]] = []  # (hash, consumer's id), sorted
        self._owners: dict[str, Consumer | None] = {}

    @property
    def consumers(self) -> Collection[Consumer]:
        """The consumers on the ring."""
        return self._consumers.values()

    def add(self, consumer: Consumer) -> None:
        """Add a consumer's nodes."""
        self._consumers[consumer.id] = consumer
        self._nodes += [(ring_hash(f"{consumer.id}-{n}"), consumer.id) for n in range(NODES_PER_CONSUMER)]
        self._nodes.sort()
        self.changed()

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer's nodes."""
        del self._consumers[consumer.id]
        self._nodes = [node for node in self._nodes if node[1] != consumer.id]
        self.changed()

    def changed(self) -> None:
        """Clear the cache of owners after a change of consumers or filters."""
        self._owners.clear()

    def owner(self, key: str) -> Consumer | None:
        """Return the connected consumer that owns this key now."""
        try:
            return self._owners[key]
        except KeyError:
            pass
        if len(self._owners) >= OWNERS_KNOWN_MAX:
            self._owners.clear()
        owner = self._owners[key] = self._find(key)
        return owner

    def anyone_takes(self, key: str) -> bool:
        """Return True if any registered consumer, connected or not, accepts this key."""
        return any(wants(consumer.filters, key) for consumer in self._consumers.values())

    def _find(self, key: str) -> Consumer | None:
        candidates = {
            number: consumer
            for number, consumer in self._consumers.items()
            if consumer.connected and wants(consumer.filters, key)
        }
        if len(candidates) <= 1:
            return next(iter(candidates.values()), None)
        nodes = self._nodes
        start = bisect_left(nodes, (ring_hash(key), 0))
        for at in range(start, start + len(nodes)):
            consumer = candidates.get(nodes[at % len(nodes)][1])
            if consumer is not None:
                return consumer
        raise AssertionError("a candidate has no place on the ring")
