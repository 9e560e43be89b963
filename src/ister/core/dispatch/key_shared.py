"""Key queues of a KeyShared subscription: one message of a key in flight at a time.

A key's unfinished messages are its queue, in offset order. Only the head of a queue is delivered, and the next one becomes
the head when it is finished, even if the key has another owner by then; so two of a key are never in flight.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from ister.core.dispatch.key_ring import Ring

if TYPE_CHECKING:
    from ister.core.dispatch.consumers import Consumer
    from ister.core.message import StreamMessage


FINISHED_EARLY_MIN = 64


def key_of(message: StreamMessage) -> str:
    """Return the key by which messages are ordered."""
    return message.producer_name if message.routing_key is None else message.routing_key


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

    def __len__(self) -> int:
        return len(self._queues)

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
