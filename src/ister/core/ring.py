"""Decide which consumer a key belongs to: a consistent-hash ring, and the filters that say who wants which keys.

The hash and the labels are upstream's, so that a key stays where it was when a subscription moves from one broker to the
other.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ister.core.dispatch_consumers import Consumer

NODES_PER_CONSUMER = 100
OWNERS_KNOWN_MAX = 65_536

_FNV_BASIS = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK_64 = 0xFFFFFFFFFFFFFFFF
_MASK_32 = 0xFFFFFFFF


def ring_hash(text: str) -> int:
    """FNV-1a of 64 bits, folded to 32, with Murmur3's finaliser: 32 bits that are spread evenly."""
    value = _FNV_BASIS
    for byte in text.encode("utf-8", "surrogatepass"):
        value = ((value ^ byte) * _FNV_PRIME) & _MASK_64
    value = (value >> 32) ^ (value & _MASK_32)
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & _MASK_32
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & _MASK_32
    return value ^ (value >> 16)


def glob_matches(pattern: str, key: str) -> bool:
    """Whether the whole key has the form of the pattern: `*` is any run, `?` is one character.

    Only the last star is ever taken back, so a hostile pattern costs pattern times key steps; a regular expression with
    many stars would cost a power of that.
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
    """Whether a consumer with these filters takes the key; one without filters takes any."""
    return not filters or any(glob_matches(pattern, key) for pattern in filters)


class Ring:
    """Consumers on a circle of hashes: a key's owner is the first candidate clockwise from the key's hash.

    All registered consumers are on the circle. Those that are away are walked past, which finds the same owner as a
    circle without them, and lets a consumer come and go without building the circle anew.
    """

    def __init__(self) -> None:
        self._consumers: dict[int, Consumer] = {}
        self._nodes: list[tuple[int, int]] = []  # (hash, consumer's id), sorted
        self._owners: dict[str, Consumer | None] = {}

    @property
    def consumers(self) -> Collection[Consumer]:
        """Everyone on the ring."""
        return self._consumers.values()

    def add(self, consumer: Consumer) -> None:
        """Give a consumer its places."""
        self._consumers[consumer.id] = consumer
        self._nodes += [(ring_hash(f"{consumer.id}-{n}"), consumer.id) for n in range(NODES_PER_CONSUMER)]
        self._nodes.sort()
        self.changed()

    def remove(self, consumer: Consumer) -> None:
        """Take a consumer's places away."""
        del self._consumers[consumer.id]
        self._nodes = [node for node in self._nodes if node[1] != consumer.id]
        self.changed()

    def changed(self) -> None:
        """Forget who owned what: somebody came, went or has other filters."""
        self._owners.clear()

    def owner(self, key: str) -> Consumer | None:
        """Return the connected consumer that takes this key now."""
        try:
            return self._owners[key]
        except KeyError:
            pass
        if len(self._owners) >= OWNERS_KNOWN_MAX:
            self._owners.clear()
        owner = self._owners[key] = self._find(key)
        return owner

    def anyone_takes(self, key: str) -> bool:
        """Whether any registered consumer, connected or away, takes this key."""
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
