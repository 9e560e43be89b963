"""Keep the pipeline running as a child of the broker: started when the broker listens, started anew when it ends.

The child proves itself by a random token in its environment; only it is told of files. It holds nothing that matters: the
tables are its checkpoint, so it may end at any moment. It ends when its stdin does, so that it never outlives its broker.

A child that ends because another pipeline is the owner makes room for that one, and comes back when nobody is.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from ister.cli.exits import FAMILIES
from ister.core.errors import FencedError
from ister.core.retry import backoff_s
from ister.core.tokens import PARENT_VARIABLE, TOKEN_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ister.cli.logs import LogFormat

log = structlog.get_logger()

BACKOFF_S = (1.0, 60.0)
LIVED_S = 60.0
"""A child that lived so long was well; its end is no reason to wait longer before the next one."""
GRACE_S = 5.0
ALONE_S = 30.0
"""After so long without an owner a child that was fenced comes back: one that is only started anew is there by then."""
LOOK_S = 1.0
FENCED = {code for code, (family, _) in FAMILIES.items() if family is FencedError}


def child_arguments(
    file: Path | None, data_dir: Path | None, log_format: LogFormat, *, prom_port: int | None, quiet: bool
) -> list[str]:
    """Return what the child is told of what its broker was told; it tells metrics on the port behind the broker's."""
    found = ["--log-format", log_format.value]
    if prom_port:
        found += ["--metrics-port", str(prom_port + 1)]
    if file is not None:
        found += ["--config", str(file)]
    if data_dir is not None:
        found += ["--data-dir", str(data_dir)]
    return [*found, "--quiet"] if quiet else found


class PipelineChild:
    """A supervised `ister pipeline run`; `begin` it once, `end` it once."""

    def __init__(self, arguments: Sequence[str], *, grace_s: float = GRACE_S) -> None:
        """Take what stands behind `ister pipeline run` on the command line, without the broker's address.

        It has `grace_s` to end from when it is told to; the broker drains in the same time.
        """
        self.token = secrets.token_urlsafe(32)
        self._arguments = arguments
        self._grace_s = grace_s
        self._told_at: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._ending = False

    def begin(self, broker_url: str, has_owner: Callable[[], bool]) -> None:
        """Start it, and start it again whenever it ends; `has_owner` tells whether a pipeline is at work."""
        self._task = asyncio.create_task(self._keep(broker_url, has_owner))

    def tell_end(self) -> None:
        """Ask it to end after what it is doing; nothing is started any more."""
        self._ending = True
        if self._told_at is None:
            self._told_at = asyncio.get_running_loop().time()
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    async def end(self) -> None:
        """Wait for its end, as long as its grace lasts, then kill it: that loses nothing."""
        self.tell_end()
        assert self._told_at is not None, "it was told just now, or before"
        if self._task is None:
            return
        if self._process is not None and self._process.returncode is None:
            try:
                left_s = self._told_at + self._grace_s - asyncio.get_running_loop().time()
                async with asyncio.timeout(max(0.0, left_s)):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _keep(self, broker_url: str, has_owner: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        attempts = 0
        while not self._ending:
            began = loop.time()
            try:
                code = await self._run_once(broker_url)
            except Exception:  # the root of a task; no memory or no process is left, most likely
                attempts += 1
                wait_s = backoff_s(attempts, BACKOFF_S[1], BACKOFF_S[0])
                log.exception("pipeline_not_started", again_in_s=wait_s)
                await asyncio.sleep(wait_s)
                continue
            if self._is_ending():
                return
            if code in FENCED:
                log.warning(
                    "pipeline_fenced", cause="another pipeline is the owner; this one waits until there is none"
                )
                await _alone(has_owner)
                log.info("pipeline_returns", alone_s=ALONE_S)
                attempts = 0
                continue
            attempts = 1 if loop.time() - began > LIVED_S else attempts + 1
            wait_s = backoff_s(attempts, BACKOFF_S[1], BACKOFF_S[0])
            log.error("pipeline_ended", code=code, again_in_s=wait_s)
            await asyncio.sleep(wait_s)

    def _is_ending(self) -> bool:
        return self._ending  # it changes while we wait

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


async def _alone(has_owner: Callable[[], bool]) -> None:
    """Return once there has been no owner for a while."""
    loop = asyncio.get_running_loop()
    since = loop.time()
    while loop.time() - since < ALONE_S:
        await asyncio.sleep(LOOK_S)
        if has_owner():
            since = loop.time()
