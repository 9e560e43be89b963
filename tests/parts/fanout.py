"""What the tests of the fan-out share: a topic that grows, readers of it that can fail and stall, and an oracle."""

import asyncio
import functools
import random

from ister.core.dispatch.shared_reader import Limits, SharedReaderState, State, Step
from ister.core.message import MsgID, StreamMessage
from parts.cloud import run


def story(main):
    """Make a coroutine function a test that leaves no task behind."""

    @functools.wraps(main)
    def test(*args, **kwargs):
        return run(main(*args, **kwargs))

    return test


def message(offset, size=0):
    return StreamMessage(b"." * size, MsgID(topic_offset=offset))


class Topic:
    """A topic in memory; each reader takes a few messages at a time and waits at the end."""

    def __init__(self, seed=0, gaps=()):
        self.rng = random.Random(seed)
        self.end = 0
        self.gaps = set(gaps)
        self.opened = []
        self.open_now = 0
        self.failures = []
        self.stalled = set()
        self.batch = None
        self._news = asyncio.Condition()

    async def grow(self, count=1):
        async with self._news:
            self.end += count
            self._news.notify_all()

    async def open_at(self, offset):
        if self.failures:
            raise self.failures.pop()
        self.opened.append(offset)
        return TopicReader(self, offset)

    def of(self, start, stop):
        return [message(offset) for offset in range(start, stop) if offset not in self.gaps]


class TopicReader:
    def __init__(self, topic, offset):
        self._topic = topic
        self.next_offset = offset
        self.closed = self.cut = False
        topic.open_now += 1

    async def read(self):
        assert not self.closed
        assert not self.cut, "where a reader is whose read was cut off or failed, nobody knows"
        self.cut = True
        found = await self._read()
        self.cut = False
        return found

    async def _read(self):
        topic = self._topic
        while True:
            async with topic._news:
                await topic._news.wait_for(lambda: self.next_offset < topic.end)
            start = self.next_offset
            stop = min(topic.end, start + (topic.batch or topic.rng.randint(1, 9)))
            self.next_offset = topic.rng.choice([start, stop])  # while it reads, either is true
            for _ in range(topic.rng.randint(0, 2)):
                await asyncio.sleep(0)
            if topic.failures:
                raise topic.failures.pop()
            self.next_offset = stop
            if found := topic.of(start, stop):
                return found

    async def close(self):
        if not self.closed:
            self.closed = True
            self._topic.open_now -= 1


class Model:
    """Drives the pure part by random steps, and knows what each subscriber must have seen."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.limits = Limits(self.rng.randint(1, 12), self.rng.choice([1, 30, 10_000]), self.rng.choice([0, 3, 40]))
        self.state = SharedReaderState(self.limits)
        share = self.rng.choice([0, 0.1])
        self.gaps = {offset for offset in range(2000) if self.rng.random() < share}
        self.end = 0
        self.queues, self.reading, self.seen, self.starts, self.expects = {}, {}, {}, {}, {}
        self.dead = set()
        self.counts = dict.fromkeys(("shared", "alone", "fell", "led", "told"), 0)

    def size(self, offset):
        return 1 + offset % 7

    def run(self, steps):
        moves = [
            self.grow,
            self.join,
            self.leave,
            self.want,
            self.want,
            self.want,
            self.end_read,
            self.share,
            self.fail,
        ]
        weights = [4, 1, 0.4, 4, 4, 4, 4, 8, 1]
        for _ in range(steps):
            self.rng.choices(moves, weights)[0]()
            self.check()
        self.finish()

    def gave(self, number, offsets):
        """Insist on what comes next for a subscriber: each once, in order, from its start on."""
        for offset in offsets:
            while self.expects[number] in self.gaps:
                self.expects[number] += 1
            assert offset == self.expects[number]
            self.expects[number] += 1

    def check(self):
        state = self.state
        for number, subscriber in state.subscribers.items():
            queue = self.queues[number]
            assert subscriber.messages == len(queue) <= self.limits.messages
            size = sum(map(self.size, queue))
            assert subscriber.size == size
            assert size <= self.limits.size or len(queue) == 1
            if subscriber.state is State.WAITS:
                assert state.head is not None
                assert state.head <= subscriber.at <= state.head + self.limits.reach, (
                    "nobody waits behind the head, or far ahead"
                )
                assert not queue

    def grow(self):
        self.end += self.rng.randint(1, 20)

    def join(self):
        if len(self.queues) < 6:
            at = self.rng.randint(0, self.end)
            number = self.state.join(at)
            self.queues[number], self.seen[number] = [], []
            self.starts[number] = self.expects[number] = at
            if self.rng.random() < 0.1:
                self.dead.add(number)  # it never asks

    def leave(self):
        if self.queues:
            self.forget(self.rng.choice(list(self.queues)))

    def forget(self, number):
        self.state.leave(number)
        for part in (self.queues, self.seen, self.starts, self.expects, self.reading):
            part.pop(number, None)
        self.settle()

    def settle(self):
        if self.state.head is not None and not self.state.followed:
            self.state.stop()

    def want(self, number=None):
        able = [n for n in self.queues if n not in self.dead and n not in self.reading]
        if number is None and able:
            number = self.rng.choice(able)
        if number is None:
            return None
        step = self.state.ask(number)
        match step:
            case Step.TAKE:
                count = self.rng.randint(1, len(self.queues[number]))
                taken = self.queues[number][:count]
                del self.queues[number][:count]
                self.seen[number] += taken
                self.state.took(number, count, sum(map(self.size, taken)))
            case Step.READ:
                self.reading[number] = self.state.subscribers[number].at
                self.counts["alone"] += 1
            case Step.LEAD:
                self.counts["led"] += 1
            case Step.WAIT:
                if self.rng.random() < 0.1:
                    self.state.rest(number)
        return step

    def end_read(self):
        if self.reading:
            number = self.rng.choice(list(self.reading))
            start = self.reading.pop(number)
            stop = min(self.end, start + self.rng.randint(1, 15)) if self.rng.random() < 0.9 else start
            found = [offset for offset in range(start, stop) if offset not in self.gaps]
            self.gave(number, found)
            self.seen[number] += found
            self.state.has_read(number, max(stop, self.state.subscribers[number].at))

    def share(self):
        head = self.state.head
        if not self.state.wanted or head is None or head >= self.end:
            return
        stop = min(self.end, head + self.rng.randint(1, 15))
        offsets = [offset for offset in range(head, stop) if offset not in self.gaps]
        waited = {
            n
            for n, subscriber in self.state.subscribers.items()
            if subscriber.state is State.WAITS and subscriber.at < stop
        }
        there = {
            n
            for n, subscriber in self.state.subscribers.items()
            if subscriber.state is not State.READS and head <= subscriber.at < stop
        }
        for share in self.state.deliver(offsets, [self.size(offset) for offset in offsets], stop):
            self.gave(share.subscriber, offsets[share.first : share.last])
            self.queues[share.subscriber] += offsets[share.first : share.last]
            assert share.size == sum(map(self.size, offsets[share.first : share.last]))
            assert share.stop == self.state.subscribers[share.subscriber].at
            self.counts["shared"] += 1
        assert self.state.head == stop
        for number in waited:
            subscriber = self.state.subscribers[number]
            assert self.queues[number] or subscriber.at == stop, (
                "who waited got something, if there was anything for it"
            )
        self.counts["fell"] += sum(self.state.subscribers[n].at < stop for n in there)
        self.settle()

    def fail(self):
        if self.state.wanted:
            there = [
                n for n, s in self.state.subscribers.items()
                if (s.state is not State.READS and s.at == self.state.head) or s.state is State.WAITS
            ]  # fmt: skip
            assert self.state.fail() == there
            assert self.state.head is None
            self.counts["told"] += len(there)

    def finish(self):
        """Without more messages, everyone who asks gets everything, whoever stalls."""
        for _ in range(100_000):
            behind = [n for n in self.queues if n not in self.dead and self.at(n) < self.end]
            if not behind:
                break
            for number in behind:
                if number not in self.reading:
                    self.want(number)
            while self.reading:
                self.end_read()
            self.share()
            self.check()
        else:
            raise AssertionError("somebody is held up")
        for number in [n for n in self.queues if n not in self.dead]:
            want = [offset for offset in range(self.starts[number], self.end) if offset not in self.gaps]
            assert self.seen[number] == want

    def at(self, number):
        subscriber = self.state.subscribers[number]
        return self.end - 1 if self.queues[number] else subscriber.at
