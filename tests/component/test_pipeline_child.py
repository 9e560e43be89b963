"""The pipeline as a child: when it is started anew, and when it makes room for another one."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
from itertools import pairwise

import pytest

from ister.cli.exit_codes import exit_code
from ister.core.errors import BusyError, FencedError
from ister.runtime.pipeline_child import BACKOFF_S, OWNERLESS_S, STABLE_S, PipelineChild
from sim.machine import run

FENCED, BUSY = exit_code(FencedError("")), exit_code(BusyError(""))


class Child(PipelineChild):
    """A child that is only said to run: so long, and then it ends with a code; after the last one it stays."""

    def __init__(self, *lives):
        super().__init__([])
        self.lives = list(lives)
        self.starts = []

    async def _run_once(self, broker_url):
        self.starts.append(asyncio.get_running_loop().time())
        if not self.lives:
            await asyncio.Event().wait()
        seconds, code = self.lives.pop(0)
        await asyncio.sleep(seconds)
        return code


def starts_of(child, *, owner=lambda _: False, for_s=1000.0):
    """Return when a child was started, in a world where there is another owner when `owner` says so."""

    async def story():
        loop = asyncio.get_running_loop()
        child.begin("http://broker", lambda: owner(loop.time()))
        await asyncio.sleep(for_s)
        await child.end()
        return child.starts

    return run(story())


def test_a_child_that_was_fenced_comes_back_when_no_pipeline_has_been_at_work_for_a_while():
    found = starts_of(Child((10.0, FENCED)), owner=lambda now: now < 100.0)
    assert found == [0.0, pytest.approx(100.0 + OWNERLESS_S, abs=2)]


def test_an_owner_that_is_only_started_anew_is_left_alone():
    """It is away for less than a while, again and again."""
    found = starts_of(Child((10.0, FENCED)), owner=lambda now: now % 40.0 < 20.0)
    assert found == [0.0]


def test_a_child_that_nobody_fenced_any_more_is_started_after_a_while_all_the_same():
    """One that registered and died before it was at work."""
    assert starts_of(Child((10.0, FENCED))) == [0.0, pytest.approx(10.0 + OWNERLESS_S, abs=2)]


def test_a_child_that_is_fenced_again_makes_room_again():
    child = Child((10.0, FENCED), (10.0, FENCED))
    assert len(starts_of(child)) == 3


def test_a_child_that_ends_otherwise_is_started_anew_later_each_time_and_soon_if_it_was_well():
    child = Child((0.0, BUSY), (0.0, -9), (0.0, 1), (STABLE_S + 1, BUSY))
    found = starts_of(child, owner=lambda _: True)
    gaps = [later - sooner for sooner, later in pairwise(found)]
    assert gaps == pytest.approx([BACKOFF_S[0], 2 * BACKOFF_S[0], 4 * BACKOFF_S[0], STABLE_S + 1 + BACKOFF_S[0]])


def test_a_child_that_cannot_be_started_is_tried_again_later_each_time():
    """C12."""

    class Refused(Child):
        async def _run_once(self, broker_url):
            if len(self.starts) < 3:
                self.starts.append(asyncio.get_running_loop().time())
                raise OSError(errno.EAGAIN, "no process is left")
            return await super()._run_once(broker_url)

    gaps = [later - sooner for sooner, later in pairwise(starts_of(Refused()))]
    assert gaps == pytest.approx([BACKOFF_S[0], 2 * BACKOFF_S[0], 4 * BACKOFF_S[0]])


def test_a_child_that_waits_for_its_turn_ends_with_its_broker():
    child = Child((10.0, FENCED))
    assert starts_of(child, owner=lambda _: True, for_s=60.0) == [0.0]


ORPHAN = """
import threading, time
from ister.runtime import pipeline
threading.Thread(target=pipeline.end_with_parent, daemon=True).start()
print("ready", flush=True)
time.sleep(60)
"""


def test_a_child_ends_when_its_parent_is_gone_however_that_went():
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(60) == -signal.SIGTERM
