import asyncio

import pytest

from ister.aio.periodic import Periodic
from ister.core.errors import BusyError
from parts.cloud import named, told
from sim.machine import run as run_in_virtual_time

INTERVAL_S = 60.0


def test_the_first_run_is_within_an_interval_and_the_others_an_interval_apart():
    async def story():
        loop = asyncio.get_running_loop()
        began, times = loop.time(), []

        async def work():
            times.append(loop.time() - began)

        tasks = [asyncio.create_task(Periodic(topic, work, "failed").run(INTERVAL_S)) for topic in ("/d/a", "/d/b")]
        await asyncio.sleep(3 * INTERVAL_S)
        for task in tasks:
            task.cancel()
        first, second = times[:2]
        assert 0 <= first < second < INTERVAL_S
        assert times == pytest.approx([time + n * INTERVAL_S for n in range(3) for time in (first, second)])

    run_in_virtual_time(story())


def test_it_survives_every_exception_and_reports_the_last_run():
    async def story():
        errors = [BusyError("full"), ZeroDivisionError("a defect"), None]
        problems = []

        async def work():
            problems.append(None if periodic.problem is None else str(periodic.problem))
            error = errors[min(len(problems), len(errors)) - 1]
            if error is not None:
                raise error

        periodic = Periodic("/d/t", work, "work_failed")
        with told() as events:
            task = asyncio.create_task(periodic.run(INTERVAL_S))
            await asyncio.sleep(5 * INTERVAL_S)
        assert problems == [None, "full", "unexpected ZeroDivisionError: a defect", None, None]
        assert [event["cause"] for event in named(events, "work_failed")] == problems[1:3]
        assert [event["topic"] for event in named(events, "task_failed")] == ["/d/t"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_in_virtual_time(story())
