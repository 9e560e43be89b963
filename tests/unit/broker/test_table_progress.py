"""Who waits for the table, and who is told of it."""

import asyncio
from contextlib import aclosing

from ister.broker.topics.table_progress import Wakeups
from parts.cloud import run

A, B = ("/default/a", 1), ("/default/b", 1)


async def quiet(asking):
    """Give everything that could still happen the chance to."""
    for _ in range(10):
        await asyncio.sleep(0)
    return not asking.done()


def test_whoever_watches_is_told_what_is_wanted_and_what_comes_to_be_wanted():
    async def story():
        wakeups = Wakeups()
        wakeups.wake(*A, 5)
        async with aclosing(wakeups.watch()) as watch:
            assert await anext(watch) == (*A, 5)
            asking = asyncio.ensure_future(anext(watch))
            assert await quiet(asking)
            wakeups.wake(*B, 7)
            assert await asking == (*B, 7)

    run(story())


def test_many_waiters_of_a_topic_are_one_wakeup_with_the_highest_end():
    async def story():
        wakeups = Wakeups()
        async with aclosing(wakeups.watch()) as watch:
            asking = asyncio.ensure_future(anext(watch))
            await quiet(asking)
            for upto in (3, 9, 6):
                wakeups.wake(*A, upto)
            assert await asking == (*A, 9)
            asking = asyncio.ensure_future(anext(watch))
            assert await quiet(asking), "9 was told"
            wakeups.wake(*A, 9)
            assert await quiet(asking), "and is not told again"
            wakeups.wake(*A, 10)
            assert await asking == (*A, 10)

    run(story())


def test_what_was_reached_wakes_nobody():
    async def story():
        wakeups = Wakeups()
        wakeups.wake(*A, 5)
        wakeups.wake(*B, 5)
        wakeups.reached(*A, 5)
        wakeups.reached(*B, 4)
        async with aclosing(wakeups.watch()) as watch:
            assert await anext(watch) == (*B, 5)
            wakeups.forget("/default/b")
            wakeups.wake("/default/b", 2, 1)
            assert await anext(watch) == ("/default/b", 2, 1)

    run(story())


def test_every_watch_that_there_is_ends_and_a_later_one_begins_anew():
    async def story():
        wakeups = Wakeups()

        async def collect():
            return [wanted async for wanted in wakeups.watch()]

        watches = [asyncio.create_task(collect()) for _ in range(2)]
        await quiet(watches[0])
        wakeups.wake(*A, 5)
        await quiet(watches[0])
        wakeups.end()
        assert await asyncio.gather(*watches) == [[(*A, 5)]] * 2
        async with aclosing(wakeups.watch()) as watch:
            assert await anext(watch) == (*A, 5)

    run(story())
