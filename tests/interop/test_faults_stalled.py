"""A consumer stalls far behind: memory stays bounded, nobody else notices, and it catches up when it wakes (F34)."""

import asyncio
import time

from interop.raw import DEAD_LETTER, EXCLUSIVE, SHARED, api
from interop.waiting import eventually, limited_to, within
from parts.counts import LONG

GROWTH_MIB_MAX = 64
WORKERS = 9
SENDERS = 16
PAYLOAD = bytes(1000)
ACKS_AT_ONCE = 64
SLOWEST_MSGS_S = 100
"""A tenth of what two busy cores do."""
STALLED_WINDOW = 10_000
"""So many messages of a kilobyte are more than a connection takes that nobody reads from."""


LARGE_BYTES = 2_000_000


class Peak:
    """The most memory that the broker has had, looked at again and again."""

    def __init__(self, broker) -> None:
        self._broker = broker
        self.mib = 0.0

    async def watch(self) -> None:
        while True:
            self.mib = max(self.mib, self._broker.rss_mib())
            await asyncio.sleep(0.05)


class Work:
    """A shared subscription whose consumers acknowledge whatever comes."""

    def __init__(self, broker, topic: str) -> None:
        self.broker = broker
        self.topic = topic
        self.seen: set[int] = set()
        self.repeated = 0
        self.each = [0] * WORKERS

    async def consume(self, number: int) -> None:
        async with self.broker.raw() as raw:
            stream = await raw.consume(self.topic, "work", f"worker-{number}", SHARED)
            while True:
                message = await stream.next(60)
                offset = message.msg_id.topic_offset
                self.repeated += offset in self.seen
                self.seen.add(offset)
                self.each[number] += 1
                await raw.ack(message, "work")

    async def produce(self, raw, producer: int, count: int) -> float:
        """Send so many, wait until the workers have them all; returns messages a second.

        If anybody waited for a stalled consumer, so many would take far longer than the deadline on any machine.
        """
        began = time.monotonic()
        target = len(self.seen) + count
        numbers = iter(range(count))

        async def send() -> None:
            for _ in numbers:
                await raw.producing.SendMessage(
                    api.StreamMessage(
                        msg_id=api.MsgID(producer_id=producer, topic_name=self.topic),
                        payload=PAYLOAD,
                        producer_name="raw",
                    ),
                    timeout=30,
                )

        async with within(60 + count / SLOWEST_MSGS_S, f"sending {count} messages"), asyncio.TaskGroup() as senders:
            for _ in range(SENDERS):
                senders.create_task(send())
        await eventually(lambda: len(self.seen) == target, "the workers have everything", 120)
        return count / (time.monotonic() - began)


async def acknowledge(raw, stream, done: list[int]) -> None:
    """Finish whatever comes, and note it."""
    while True:
        message = await stream.next(30)
        await raw.ack(message, "sub")
        done.append(message.msg_id.topic_offset)


@limited_to(3600 if LONG else 600)
async def test_f34_a_stalled_consumer_costs_no_memory_and_slows_nobody(own_broker, topic, count, tell):
    behind = count(8000, 1_000_000)
    broker = own_broker()
    async with asyncio.TaskGroup() as group, broker.raw() as raw, broker.raw() as lazy:
        producer = await raw.create_producer(topic)
        work = Work(broker, topic)
        await raw.subscribe(topic, "work", "worker-0", SHARED)
        await raw.set_window(topic, "work", 200)
        workers = [group.create_task(work.consume(number)) for number in range(WORKERS)]
        peak = Peak(broker)
        watching = group.create_task(peak.watch())
        alone = await work.produce(raw, producer, max(2000, behind // 20))
        before = peak.mib  # the same load takes so much, uploads included: the rest is the stalled one's

        first = len(work.seen)
        await raw.set_window(topic, "stalled", STALLED_WINDOW)
        stalled = await lazy.consume(topic, "stalled", "stalled", EXCLUSIVE)  # open, and nobody reads
        beside = await work.produce(raw, producer, behind)
        growth = peak.mib - before
        for worker in workers:
            worker.cancel()  # nothing more comes for them

        assert work.repeated == 0
        assert min(work.each) > 0.5 * max(work.each), "every worker works"
        assert growth <= GROWTH_MIB_MAX, f"{growth:.1f} MiB more with {behind} messages behind"

        began = time.monotonic()
        for start in range(first, first + behind, ACKS_AT_ONCE):
            messages = [await stalled.next(30) for _ in range(min(ACKS_AT_ONCE, first + behind - start))]
            assert [message.msg_id.topic_offset for message in messages] == list(range(start, start + len(messages)))
            await asyncio.gather(*(lazy.ack(message, "stalled") for message in messages))
        caught_up = behind / (time.monotonic() - began)
        growth = peak.mib - before
        assert growth <= GROWTH_MIB_MAX, f"{growth:.1f} MiB more once it had caught up"
        stalled.cancel()
        watching.cancel()
    tell(
        "F34",
        f"1 of {WORKERS + 1} consumers stalled {behind:,} messages behind: {growth:.1f} MiB more; {alone:.0f} messages a second "
        f"alone, {beside:.0f} beside it; it caught up at {caught_up:.0f} a second",
    )


async def test_f34_a_consumer_that_stops_reading_holds_no_more_than_its_share_of_a_shared_subscription(broker, topic):
    async with broker.raw() as raw, broker.raw() as lazy:
        producer = await raw.create_producer(topic)
        await raw.subscribe(topic, "sub", "lazy", SHARED)
        await raw.set_window(topic, "sub", 30)
        await lazy.consume(topic, "sub", "lazy", SHARED)
        streams = [await raw.consume(topic, "sub", f"busy-{n}", SHARED) for n in range(2)]
        done = []
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(acknowledge(raw, stream, done)) for stream in streams]
            await raw.send_all(topic, producer, [b"x"] * 300)
            await eventually(lambda: len(done) >= 300 - 10, "the others do all but its share")
            for task in tasks:
                task.cancel()
        assert len(set(done)) == len(done)


async def test_f34_what_a_connection_does_not_take_goes_to_others_and_is_no_failure(broker, topic):
    """Messages so large that a connection which nobody reads from has room for few of them."""
    async with broker.raw() as raw, broker.raw() as lazy:
        producer = await raw.create_producer(topic)
        await raw.create_topic(f"{topic}-dead")
        letters = await raw.consume(f"{topic}-dead", "sub", kind=EXCLUSIVE)
        await raw.subscribe(topic, "sub", "lazy", SHARED)
        await raw.set_window(topic, "sub", 20)
        await raw.set_policy(topic, "sub", ack_timeout_ms=500, max_redelivery_count=0,
                             poison_policy=DEAD_LETTER, dead_letter_topic=f"{topic}-dead")  # fmt: skip
        stalled = await lazy.consume(topic, "sub", "lazy", SHARED)
        busy = await raw.consume(topic, "sub", "busy", SHARED)
        done, failed = [], set()

        async def collect() -> None:
            while True:
                letter = await letters.next(30)
                failed.add(int(letter.attributes["x-original-topic-offset"]))

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(acknowledge(raw, busy, done)), group.create_task(collect())]
            await raw.send_all(topic, producer, [bytes(LARGE_BYTES)] * 40)
            await eventually(lambda: len(failed.union(done)) == 40, "each is done, or was sent and not answered")
            for task in tasks:
                task.cancel()
        assert len(failed) < 5, "only what was sent to the one that stalls"
        assert not failed & set(done)
        assert failed <= {(await stalled.next(30)).msg_id.topic_offset for _ in failed}, "it was sent, indeed"
