"""Background work takes turns computing, and waits for the disk together."""

import asyncio
import threading

from ister.aio.background import in_background, waiting_for_disk

WAIT_S = 10


def together(*works):
    async def gather():
        return await asyncio.gather(*map(in_background, works), return_exceptions=True)

    return asyncio.run(gather())


def test_two_never_compute_at_the_same_time():
    computing = threading.Semaphore(1)

    def compute():
        alone = computing.acquire(blocking=False)
        threading.Event().wait(0.001)  # lets the other thread run, if it may
        if alone:
            computing.release()
        return alone

    assert all(together(*[compute] * 50))


def test_while_one_waits_for_the_disk_the_other_computes():
    other_is_done = threading.Event()

    def wait():
        with waiting_for_disk():
            return other_is_done.wait(WAIT_S)

    waited, _ = together(wait, other_is_done.set)
    assert waited


def test_a_failure_lets_the_next_one_compute():
    def fail():
        with waiting_for_disk():
            raise OSError

    results = together(fail, lambda: 7)
    assert isinstance(results[0], OSError)
    assert results[1] == 7
    assert together(lambda: 8) == [8]
