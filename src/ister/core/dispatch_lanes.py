"""Decide what each consumer of a KeyShared subscription may have next, with one message of a key at a time.

A key's unfinished messages are its lane, in offset order. Only the head of a lane is ever handed out, and the lane moves
on when the head is finished, whoever owns the key by then: so no change of owners lets two of a key be in flight.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from ister.core.ring import Ring

if TYPE_CHECKING:
    from ister.core.dispatch_consumers import Consumer
    from ister.core.message import StreamMessage


FINISHED_EARLY_MIN = 64


def key_of(message: StreamMessage) -> str:
    """Return what a message is kept in order by."""
    return message.producer_name if message.routing_key is None else message.routing_key


class Lanes:
    """The lanes, and the heads that may be handed out, each in the queue of its owner.

    Queues may hold heads that were finished meanwhile, by a late acknowledgement: whoever takes from them must look.
    """

    def __init__(self) -> None:
        self.ring = Ring()
        self.ready: deque[Consumer] = deque()  # those with something in their queue and room for it
        self._lanes: dict[str, deque[int]] = {}
        self._unrouted: list[tuple[int, str]] = []
        self._stranded: list[tuple[int, str]] = []  # wanted only by consumers that are away
        self._finished_early = 0

    def __len__(self) -> int:
        return len(self._lanes)

    def add(self, offset: int, key: str) -> None:
        """Put a new message at the end of its lane."""
        lane = self._lanes.get(key)
        if lane is None:
            self._lanes[key] = deque((offset,))
            self._unrouted.append((offset, key))
        else:
            lane.append(offset)

    def offer(self, offset: int, key: str) -> None:
        """Let the head of a lane be handed out (again)."""
        self._unrouted.append((offset, key))

    def finish(self, offset: int, key: str) -> None:
        """Take a message out of its lane; the next one is the head then."""
        lane = self._lanes[key]
        if lane[0] != offset:
            lane.remove(offset)
            return
        lane.popleft()
        if lane:
            self._unrouted.append((lane[0], key))
        else:
            del self._lanes[key]

    def route(self, share: int) -> list[int]:
        """Put each head into the queue of its owner; return those that no registered consumer takes.

        What only consumers that are away would take waits for them: it is theirs until they leave.
        """
        unwanted = []
        for head in self._unrouted:
            owner = self.ring.owner(head[1])
            if owner is not None:
                heappush(owner.queue, head)
                self.may_have_more(owner, share)
            elif self.ring.anyone_takes(head[1]):
                self._stranded.append(head)
            else:
                unwanted.append(head[0])
        self._unrouted.clear()
        return unwanted

    def may_have_more(self, consumer: Consumer, share: int) -> None:
        """Count a consumer as ready if it has something in its queue and room for it."""
        if consumer.queue and not consumer.queued and consumer.holds < share:
            consumer.queued = True
            self.ready.append(consumer)

    def finish_early(self, offset: int, key: str) -> None:
        """Take a message out of its lane that is not in flight; if it was in a queue, it stays there for a while.

        How many such stay is bounded: when there are more of them than lanes, they are thrown out.
        """
        self.finish(offset, key)
        self._finished_early += 1
        if self._finished_early > len(self._lanes) + FINISHED_EARLY_MIN:
            self.reroute()

    def taken(self, consumer: Consumer, share: int) -> None:
        """Take the first of the first ready consumer's queue away; that consumer comes last then, if it may have more."""
        heappop(consumer.queue)
        self.ready.popleft()
        consumer.queued = False
        self.may_have_more(consumer, share)

    def reroute(self) -> None:
        """Ask for every head again who owns it: consumers came, went, or have other shares or filters."""
        self.ring.changed()
        self.ready.clear()
        heads = self._unrouted + self._stranded
        for consumer in self.ring.consumers:
            heads += consumer.queue
            consumer.queue.clear()
            consumer.queued = False
        lanes = self._lanes
        self._unrouted = [head for head in heads if head[1] in lanes and lanes[head[1]][0] == head[0]]
        self._stranded.clear()
        self._finished_early = 0

    def skip_to(self, offset: int) -> None:
        """Forget what is below; a lane whose head was below has another one then."""
        for key, lane in list(self._lanes.items()):
            if lane[0] >= offset:
                continue
            kept = deque(each for each in lane if each >= offset)
            if kept:
                self._lanes[key] = kept
                self._unrouted.append((kept[0], key))
            else:
                del self._lanes[key]
        self.reroute()
