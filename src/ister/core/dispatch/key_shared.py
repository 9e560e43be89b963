"""KeyShared subscriptions: key queues, one message of a key in flight at a time; a consistent-hash ring; key filters.

A key's unfinished messages are its queue, in offset order. Only the head of a queue is delivered, and the next one becomes
the head when it is finished, even if the key has another owner by then; so two of a key are never in flight.

Hash and labels of the ring are those of Danube's broker, so a key keeps its owner when a subscription moves between the
two.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from ister.core.hashing import fnv1a

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ister.core.dispatch.consumers import Consumer
    from ister.core.message import StreamMessage

NODES_PER_CONSUMER = 100
OWNERS_KNOWN_MAX = 65_536
FINISHED_EARLY_MIN = 64
_MASK_32 = 0xFFFFFFFF


def key_of(message: StreamMessage) -> str:
    """Return the key by which messages are ordered."""
    return message.producer_name if message.routing_key is None else message.routing_key


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


class KeyQueues:
    """The queues by key, and the deliverable heads in the `Consumer.queue` of their owners.

    A consumer's queue may hold heads that a late acknowledgement finished meanwhile, so callers check each.
    """

    def __init__(self) -> None:
        self.ring = Ring()
        self.ready: deque[Consumer] = deque()  # consumers with a head to deliver and room for it
        self._queues: dict[str, deque[int]] = {}
        self._unrouted: list[tuple[int, str]] = []
        self._stranded: list[tuple[int, str]] = []  # accepted only by disconnected consumers
        self._finished_early = 0

    def add(self, offset: int, key: str) -> None:
        """Append a new message to the queue of its key."""
        queue = self._queues.get(key)
        if queue is None:
            self._queues[key] = deque((offset,))
            self._unrouted.append((offset, key))
        else:
            queue.append(offset)

    def offer(self, offset: int, key: str) -> None:
        """Make the head of a queue deliverable (again)."""
        self._unrouted.append((offset, key))

    def finish(self, offset: int, key: str) -> None:
        """Remove a message from its queue; the next one becomes the head."""
        queue = self._queues[key]
        if queue[0] != offset:
            queue.remove(offset)
            return
        queue.popleft()
        if queue:
            self._unrouted.append((queue[0], key))
        else:
            del self._queues[key]

    def route(self, share: int) -> list[int]:
        """Move each head to its owner; return the offsets that no registered consumer accepts.

        What only disconnected consumers accept waits until they connect or leave.
        """
        unwanted = []
        for head in self._unrouted:
            owner = self.ring.owner(head[1])
            if owner is not None:
                heappush(owner.queue, head)
                self.mark_ready(owner, share)
            elif self.ring.anyone_takes(head[1]):
                self._stranded.append(head)
            else:
                unwanted.append(head[0])
        self._unrouted.clear()
        return unwanted

    def mark_ready(self, consumer: Consumer, share: int) -> None:
        """Mark a consumer as ready if it has a head to deliver and room for it."""
        if consumer.queue and not consumer.queued and consumer.holds < share:
            consumer.queued = True
            self.ready.append(consumer)

    def finish_early(self, offset: int, key: str) -> None:
        """Remove a message that is not in flight; as a head it stays in its consumer's queue for a while.

        The number of such heads is bounded: when there are more of them than keys, they are removed.
        """
        self.finish(offset, key)
        self._finished_early += 1
        if self._finished_early > len(self._queues) + FINISHED_EARLY_MIN:
            self.reroute()

    def taken(self, consumer: Consumer, share: int) -> None:
        """Remove the head just delivered to the first ready consumer, which becomes the last one if it has more."""
        heappop(consumer.queue)
        self.ready.popleft()
        consumer.queued = False
        self.mark_ready(consumer, share)

    def reroute(self) -> None:
        """Look up the owner of every head again, after a change of consumers, shares or filters."""
        self.ring.changed()
        self.ready.clear()
        heads = self._unrouted + self._stranded
        for consumer in self.ring.consumers:
            heads += consumer.queue
            consumer.queue.clear()
            consumer.queued = False
        queues = self._queues
        self._unrouted = [head for head in heads if head[1] in queues and queues[head[1]][0] == head[0]]
        self._stranded.clear()
        self._finished_early = 0

    def skip_to(self, offset: int) -> None:
        """Drop everything below `offset`."""
        for key, queue in list(self._queues.items()):
            if queue[0] >= offset:
                continue
            rest = deque(each for each in queue if each >= offset)
            if rest:
                self._queues[key] = rest
                self._unrouted.append((rest[0], key))
            else:
                del self._queues[key]
        self.reroute()
