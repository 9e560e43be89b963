"""Runs one test and insists that it leaves nothing behind: no task that runs on, and none that failed unseen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

SETTLE_S = 10.0
"""How long what a test has cancelled or closed may take to end."""


async def run_clean(test: Awaitable[None], limit_s: float, settle_s: float = SETTLE_S) -> None:
    """Run a test within its time. What it leaves is a failure, unless it has failed already."""
    before = asyncio.all_tasks()
    unseen: list[dict] = []
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: unseen.append(context))
    try:
        async with asyncio.timeout(limit_s):
            await test
        await _insist_on_an_end(asyncio.all_tasks() - before, settle_s)
    finally:
        await _cancel(asyncio.all_tasks() - before)
        loop.set_exception_handler(handler)
    failed = [context for context in unseen if "future" in context or "task" in context]
    if failed:
        raise AssertionError(f"nobody saw this fail: {failed}") from failed[0].get("exception")


async def _insist_on_an_end(left: set[asyncio.Task], settle_s: float) -> None:
    """Wait for what the test has told to end; raise what it failed of."""
    if not left:
        return
    done, running = await asyncio.wait(left, timeout=settle_s)
    assert not running, f"the test left these running: {running}"
    for task in done:
        if not task.cancelled():
            task.result()


async def _cancel(tasks: set[asyncio.Task]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
