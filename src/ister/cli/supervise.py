"""Keep the pipeline running as a child of the broker: started when the broker listens, started anew when it ends.

The child proves itself by a random token in its environment; only it is told of files. It holds nothing that matters: the
tables are its checkpoint, so it may end at any moment.
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
from ister.core.tokens import TOKEN_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ister.cli.logs import LogFormat

log = structlog.get_logger()

BACKOFF_S = (1.0, 60.0)
LIVED_S = 60.0
"""A child that lived so long was well; its end is no reason to wait longer before the next one."""
GRACE_S = 5.0
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

    def __init__(self, arguments: Sequence[str]) -> None:
        """Take what stands behind `ister pipeline run` on the command line, without the broker's address."""
        self.token = secrets.token_urlsafe(32)
        self._arguments = arguments
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._ending = False

    def begin(self, broker_url: str) -> None:
        """Start it, and start it again whenever it ends."""
        self._task = asyncio.create_task(self._keep(broker_url))

    def tell_end(self) -> None:
        """Ask it to end after what it is doing; nothing is started any more."""
        self._ending = True
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    async def end(self) -> None:
        """Wait a little for its end, then kill it: that loses nothing."""
        self.tell_end()
        if self._task is None:
            return
        if self._process is not None and self._process.returncode is None:
            try:
                await asyncio.wait_for(self._process.wait(), GRACE_S)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _keep(self, broker_url: str) -> None:
        loop = asyncio.get_running_loop()
        wait_s = BACKOFF_S[0]
        while not self._ending:
            began = loop.time()
            code = await self._run_once(broker_url)
            if self._is_ending():
                return
            if code in FENCED:
                log.warning("pipeline_fenced", cause="another pipeline reads this broker; this one stays away")
                return
            wait_s = BACKOFF_S[0] if loop.time() - began > LIVED_S else wait_s
            log.error("pipeline_ended", code=code, again_in_s=wait_s)
            await asyncio.sleep(wait_s)
            wait_s = min(BACKOFF_S[1], wait_s * 2)

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
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stderr,
            env=os.environ | {TOKEN_VARIABLE: self.token},
        )
        log.info("pipeline_started", pid=self._process.pid)
        return await self._process.wait()
