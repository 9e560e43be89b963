"""Supervisor of the pipeline as a child process of the broker: started when the broker listens, restarted when it exits.

The child authenticates with a random token in its environment; only with it the broker serves file paths. The tables are
its checkpoint, so it may be killed at any moment. It exits at the end of its stdin, so that it never outlives its broker.

A child that was fenced, because another pipeline is the owner, is restarted once there is no owner.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from ister.config.environment import PARENT_VARIABLE, TOKEN_VARIABLE
from ister.core.errors import FencedError
from ister.core.retry import backoff_s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

log = structlog.get_logger()

BACKOFF_S = (1.0, 60.0)
STABLE_S = 60.0
"""The backoff starts again after a child that ran this long."""
GRACE_S = 5.0
OWNERLESS_S = 30.0
"""A fenced child is restarted after this time without an owner; an owner that only restarts is back by then."""
POLL_S = 1.0


def child_arguments(
    file: Path | None, data_dir: Path | None, log_format: str, *, prom_port: int | None, quiet: bool
) -> list[str]:
    """Return the child's arguments from those of its broker; its metrics port follows the broker's."""
    found = ["--log-format", log_format]
    if prom_port:
        found += ["--metrics-port", str(prom_port + 1)]
    if file is not None:
        found += ["--config", str(file)]
    if data_dir is not None:
        found += ["--data-dir", str(data_dir)]
    return [*found, "--quiet"] if quiet else found


class PipelineChild:
    """A supervised `ister pipeline run`; call `begin` and `end` once each."""

    def __init__(self, arguments: Sequence[str], *, grace_s: float = GRACE_S) -> None:
        """Take the arguments of `ister pipeline run`, without the broker's address.

        It has `grace_s` to exit after SIGTERM; the broker drains in the same time.
        """
        self.token = secrets.token_urlsafe(32)
        self._arguments = arguments
        self._grace_s = grace_s
        self._terminated_at: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._ending = False

    def begin(self, broker_url: str, has_owner: Callable[[], bool]) -> None:
        """Start it, and restart it whenever it exits; `has_owner` returns True while a pipeline is the owner."""
        self._task = asyncio.create_task(self._supervise(broker_url, has_owner))

    def terminate(self) -> None:
        """Send it SIGTERM, and start no other."""
        self._ending = True
        if self._terminated_at is None:
            self._terminated_at = asyncio.get_running_loop().time()
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    async def end(self) -> None:
        """Wait for its exit within its grace period, then kill it, which loses nothing."""
        self.terminate()
        assert self._terminated_at is not None, "terminate sets it"
        if self._task is None:
            return
        if self._process is not None and self._process.returncode is None:
            try:
                left_s = self._terminated_at + self._grace_s - asyncio.get_running_loop().time()
                async with asyncio.timeout(max(0.0, left_s)):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _supervise(self, broker_url: str, has_owner: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        attempts = 0
        while not self._ending:
            began = loop.time()
            try:
                code = await self._run_once(broker_url)
            except Exception:  # the root of a task; most likely out of memory or processes
                attempts += 1
                wait_s = backoff_s(attempts, BACKOFF_S[1], BACKOFF_S[0])
                log.exception("pipeline_not_started", again_in_s=wait_s)
                await asyncio.sleep(wait_s)
                continue
            if self._is_ending():
                return
            if code == FencedError.exit_code:
                log.warning(
                    "pipeline_fenced", cause="another pipeline is the owner; this one waits until there is none"
                )
                await _wait_for_no_owner(has_owner)
                log.info("pipeline_returns", alone_s=OWNERLESS_S)
                attempts = 0
                continue
            attempts = 1 if loop.time() - began > STABLE_S else attempts + 1
            wait_s = backoff_s(attempts, BACKOFF_S[1], BACKOFF_S[0])
            log.error("pipeline_ended", code=code, again_in_s=wait_s)
            await asyncio.sleep(wait_s)

    def _is_ending(self) -> bool:
        return self._ending  # a call, so that mypy does not narrow what changes meanwhile

    async def _run_once(self, broker_url: str) -> int:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from ister.cli import main; main()",
            "pipeline",
            "run",
            "--broker",
            broker_url,
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=sys.stderr,
            env=os.environ | {TOKEN_VARIABLE: self.token, PARENT_VARIABLE: "1"},
        )
        log.info("pipeline_started", pid=self._process.pid)
        return await self._process.wait()


async def _wait_for_no_owner(has_owner: Callable[[], bool]) -> None:
    """Return once there has been no owner for OWNERLESS_S."""
    loop = asyncio.get_running_loop()
    since = loop.time()
    while loop.time() - since < OWNERLESS_S:
        await asyncio.sleep(POLL_S)
        if has_owner():
            since = loop.time()
