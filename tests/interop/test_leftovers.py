"""The tests' own harness sees what a test leaves behind."""

import asyncio

import pytest

from interop.leftovers import run_clean
from interop.official import Crowd


async def wait_for_ever():
    await asyncio.Event().wait()


async def fail():
    raise ValueError("in the background")


async def clean(test):
    await run_clean(test, 30.0, settle_s=0.05)


async def test_a_task_that_runs_on_fails_the_test_and_is_ended():
    left = []

    async def leaves():
        left.append(asyncio.create_task(wait_for_ever()))

    with pytest.raises(AssertionError, match="left these running"):
        await clean(leaves())
    assert left[0].cancelled()


async def test_a_task_that_was_told_to_end_is_waited_for():
    ended = []

    async def ends_slowly():
        try:
            await wait_for_ever()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    async def leaves():
        task = asyncio.create_task(ends_slowly())
        await asyncio.sleep(0)
        task.cancel()

    await clean(leaves())
    assert ended == [True]


@pytest.mark.parametrize("turns", [0, 5], ids=["after the test", "during the test"])
async def test_a_task_that_failed_unseen_fails_the_test(turns):
    async def leaves():
        asyncio.create_task(fail())  # noqa: RUF006  # nobody keeps it, which is the point
        for _ in range(turns):
            await asyncio.sleep(0)

    with pytest.raises((ValueError, AssertionError), match="in the background"):
        await clean(leaves())


async def test_a_test_that_failed_is_told_and_not_what_it_left():
    async def fails():
        left.append(asyncio.create_task(wait_for_ever()))
        raise KeyError("the reason")

    left = []
    with pytest.raises(KeyError, match="the reason"):
        await clean(fails())
    assert left[0].cancelled()


class Refused:
    """A receiver whose broker takes no acknowledgement."""

    name = "refused"

    def __init__(self):
        self.queue = asyncio.Queue()

    async def ack_if_possible(self, message):
        raise ValueError(f"no ack of {message}")


async def test_a_consumer_of_a_crowd_that_fails_ends_the_wait_and_is_raised():
    receiver = Refused()
    receiver.queue.put_nowait("this")
    with pytest.raises(ExceptionGroup) as raised:
        async with Crowd([receiver]) as crowd:
            await crowd.until_total(1)
    assert [str(error) for error in raised.value.exceptions] == ["no ack of this"]
