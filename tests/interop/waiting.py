"""How a test waits: for a condition, with a deadline, and it says what it waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

PATIENCE_S = 60.0
"""How long anything may take that should happen at once; only a failure takes so long."""
LOOK_S = 0.01


@asynccontextmanager
async def within(seconds: float, what: str):
    """Fail with a sentence when the block takes longer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise AssertionError(f"{what} did not happen within {seconds} s") from None


async def eventually(look: Callable[[], object], what: str | Callable[[], str], seconds: float = PATIENCE_S) -> object:
    """Look again and again until there is something; returns it. `look` may be a coroutine function."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"{what() if callable(what) else what}: not within {seconds} s"
        await asyncio.sleep(LOOK_S)


def wait_until(look: Callable[[], object], what: str, seconds: float = PATIENCE_S) -> object:
    """Do the same where there is no event loop."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(LOOK_S)
    return found


def limited_to(seconds: float):
    """Give a test another limit than the usual one."""

    def mark(test):
        test.limit_s = seconds
        return test

    return mark
