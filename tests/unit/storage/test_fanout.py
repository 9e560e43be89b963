"""Many subscribers of one topic: one reader for all who are at the head, and nobody blocks, loses or repeats."""

import asyncio
import random

import pytest

from ister.core.dispatch.shared_reader import Limits, SharedReaderState, Step
from ister.core.errors import LogClosedError, StoreUnavailableError
from ister.storage.iceberg.fanout import Fanout
from parts.cloud import until
from parts.fanout import Model, Topic, story

DOWN = StoreUnavailableError("lake", "read", "no route")
PATIENCE_S = 20.0
STORIES = 60


async def take(reader, count):
    """Read exactly so many messages; returns their offsets."""
    found = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found.append((await anext(reader)).offset)
    return found


def test_random_steps_against_an_oracle(count, tell):
    totals = {}
    stories, steps = count(200, 20_000), 250
    for seed in range(stories):
        model = Model(seed)
        model.run(steps)
        totals = {name: totals.get(name, 0) + n for name, n in model.counts.items()}
    assert min(totals.values()) > stories, "each kind of thing happened"
    tell("fan-out", f"{stories * steps:,} steps in {stories:,} stories, {totals}")


def test_who_is_at_the_head_waits_who_is_behind_reads_alone_and_who_is_far_ahead_leads():
    state = SharedReaderState(Limits(reach=5))
    first, behind, ahead, far = (state.join(at) for at in (10, 9, 15, 16))

    assert state.ask(first) is Step.LEAD
    assert [state.ask(behind), state.ask(ahead)] == [Step.READ, Step.WAIT]
    assert state.ask(far) is Step.LEAD
    assert (state.head, state.ask(first)) == (16, Step.READ)


def test_a_queue_takes_what_it_has_room_for_and_its_subscriber_goes_on_exactly_there():
    state = SharedReaderState(Limits(messages=3, size=100))
    slow, quick = state.join(0), state.join(0)
    state.ask(quick)

    given = state.deliver([0, 1], [1, 1], 2)
    assert [(share.subscriber, share.first, share.last) for share in given] == [(slow, 0, 2), (quick, 0, 2)]
    state.took(quick, 2, 2)
    state.ask(quick)
    given = state.deliver([2, 3, 4], [1, 1, 1], 5)

    assert [(share.subscriber, share.first, share.last, share.stop) for share in given] == [
        (slow, 0, 1, 3),
        (quick, 0, 3, 5),
    ]
    state.took(slow, 3, 3)
    assert state.ask(slow) is Step.READ
    state.has_read(slow, 5)
    assert state.ask(slow) is Step.WAIT, "it has caught up, and is with the others again"


def test_a_message_larger_than_a_queue_waits_in_it_alone():
    state = SharedReaderState(Limits(messages=10, size=100))
    number = state.join(0)
    state.ask(number)
    assert [share.last for share in state.deliver([0, 1], [500, 1], 2)] == [1]
    assert state.subscribers[number].at == 1


@story
async def test_subscribers_at_the_head_share_one_reader():
    topic = Topic()
    fanout = Fanout("t", topic.open_at)
    readers = [fanout.subscribe(0) for _ in range(5)]
    tasks = [asyncio.create_task(take(reader, 100)) for reader in readers]
    for _ in range(20):
        await topic.grow(5)
        await asyncio.sleep(0)

    assert await asyncio.gather(*tasks) == [list(range(100))] * 5
    assert topic.opened == [0]
    await fanout.close()
    assert topic.open_now == 0


@story
async def test_a_stalled_subscriber_stops_nobody_and_gets_everything_later():
    topic = Topic()
    fanout = Fanout("t", topic.open_at, Limits(messages=10))
    stalled, quick = fanout.subscribe(0), fanout.subscribe(0)
    await topic.grow(5)
    assert await take(quick, 5) == list(range(5))
    await topic.grow(1000)
    assert await take(quick, 1000) == list(range(5, 1005))
    assert stalled.waiting == 10

    assert await take(stalled, 12) == list(range(12))
    assert stalled._alone is not None
    assert await take(stalled, 993) == list(range(12, 1005))
    later = asyncio.gather(take(stalled, 3), take(quick, 3))
    await until(lambda: stalled._alone is None)
    await topic.grow(3)
    assert await later == [[1005, 1006, 1007]] * 2
    assert stalled._alone is None, "it is with the others again"
    await fanout.close()
    assert topic.open_now == 0


@story
async def test_whoever_joins_far_ahead_does_not_wait_for_those_behind():
    topic = Topic()
    topic.batch = 1
    await topic.grow(100_000)
    fanout = Fanout("t", topic.open_at, Limits(reach=10))
    old, new = fanout.subscribe(0), fanout.subscribe(99_990)
    assert await take(old, 3) == [0, 1, 2]
    assert await take(new, 10) == list(range(99_990, 100_000))
    assert await take(old, 3) == [3, 4, 5]
    assert topic.opened == [0, 99_990, 3]
    await fanout.close()


@story
async def test_an_error_of_the_shared_reader_reaches_everyone_at_the_head_and_the_next_read_tries_again():
    topic = Topic()
    fanout = Fanout("t", topic.open_at)
    waits, rests = fanout.subscribe(0), fanout.subscribe(0)
    topic.failures.append(DOWN)
    await topic.grow(3)
    with pytest.raises(StoreUnavailableError):
        await take(waits, 1)
    with pytest.raises(StoreUnavailableError):
        await take(rests, 1)
    assert await take(waits, 3) == await take(rests, 3) == [0, 1, 2]

    topic.failures.append(DOWN)
    again = asyncio.gather(take(waits, 1), take(rests, 1), return_exceptions=True)
    await topic.grow(1)
    assert await again == [DOWN, DOWN]
    assert await take(waits, 1) == await take(rests, 1) == [3]
    await fanout.close()
    assert topic.open_now == 0


@story
async def test_an_error_comes_behind_what_was_read_before_it():
    topic = Topic()
    fanout = Fanout("t", topic.open_at)
    slow, quick = fanout.subscribe(0), fanout.subscribe(0)
    await topic.grow(4)
    assert await take(quick, 4) == [0, 1, 2, 3]
    topic.failures.append(DOWN)
    await topic.grow(1)
    with pytest.raises(StoreUnavailableError):
        await take(quick, 1)
    assert await take(slow, 4) == [0, 1, 2, 3]
    with pytest.raises(StoreUnavailableError):
        await take(slow, 1)
    assert await take(slow, 1) == [4]
    await fanout.close()


@story
async def test_an_error_of_one_that_reads_alone_is_its_own():
    topic = Topic()
    await topic.grow(100)
    fanout = Fanout("t", topic.open_at, Limits(reach=0))
    head, alone = fanout.subscribe(90), fanout.subscribe(0)
    assert await take(head, 10) == list(range(90, 100))
    topic.failures.append(DOWN)
    with pytest.raises(StoreUnavailableError):
        await take(alone, 1)
    assert await take(alone, 100) == list(range(100))
    waiting = asyncio.create_task(take(head, 1))
    await topic.grow(1)
    assert await waiting == [100]
    await fanout.close()


@story
async def test_the_shared_reader_goes_when_nobody_is_at_the_head_and_a_cut_read_loses_nothing():
    topic = Topic()
    fanout = Fanout("t", topic.open_at)
    reader = fanout.subscribe(0)
    waiting = asyncio.create_task(take(reader, 1))
    await until(lambda: topic.open_now == 1)
    waiting.cancel()
    await asyncio.wait({waiting})
    await topic.grow(3)
    assert await take(reader, 3) == [0, 1, 2]

    blocked = asyncio.create_task(take(reader, 1))
    await asyncio.sleep(0)
    await reader.close()
    assert (topic.open_now, fanout.head) == (0, None)
    with pytest.raises(LogClosedError):
        await blocked
    assert await take(fanout.subscribe(1), 2) == [1, 2]
    await fanout.close()
    assert topic.open_now == 0
    with pytest.raises(LogClosedError):
        fanout.subscribe(0)


@story
async def test_a_shared_reader_that_everyone_has_fallen_behind_is_let_go():
    topic = Topic()
    topic.batch = 10
    await topic.grow(30)
    fanout = Fanout("t", topic.open_at, Limits(messages=2))
    reader = fanout.subscribe(0)
    assert [message.offset for message in await reader.read()] == [0, 1]
    await until(lambda: topic.open_now == 0)
    assert fanout.head is None
    assert await take(reader, 28) == list(range(2, 30))
    await fanout.close()


async def _subscriber(fanout, topic, rng, seen, total):
    """Read at its own speed, with cuts, until it has everything."""
    start = rng.randint(0, topic.end)
    reader = fanout.subscribe(start)
    pace = rng.choice([0, 0, 1, 5, 30])
    while reader.next_offset < total:
        for _ in range(rng.randint(0, pace)):
            await asyncio.sleep(0)
        reading = asyncio.create_task(reader.read())
        if rng.random() < 0.2:
            for _ in range(rng.randint(0, 4)):
                await asyncio.sleep(0)
            reading.cancel()
        try:
            seen.setdefault(start, []).append([message.offset for message in await reading])
        except (asyncio.CancelledError, StoreUnavailableError):
            assert reader.waiting <= fanout.state.limits.messages
            continue
    await reader.close()
    return start, [offset for batch in seen[start] for offset in batch]


@story
async def test_subscribers_of_all_speeds_with_cuts_and_failures_see_everything_once():
    for seed in range(STORIES):
        rng = random.Random(seed)
        topic = Topic(seed)
        total = 300
        await topic.grow(rng.randint(1, 100))
        fanout = Fanout("t", topic.open_at, Limits(messages=rng.choice([1, 5, 50]), reach=rng.choice([0, 7, 100])))
        tasks = [
            asyncio.create_task(_subscriber(fanout, topic, random.Random(f"{seed}/{n}"), {}, total)) for n in range(5)
        ]
        while topic.end < total:
            await topic.grow(min(total - topic.end, rng.randint(1, 20)))
            if rng.random() < 0.1:
                topic.failures.append(DOWN)
            for _ in range(rng.randint(0, 10)):
                await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            for start, seen in await asyncio.gather(*tasks):
                assert seen == list(range(start, total)), seed
        await fanout.close()
        assert topic.open_now == 0, "every reader was closed"
