"""A server in a process of its own, on a free loopback port, that can be stopped, killed and started again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from http.client import HTTPException
from pathlib import Path
from typing import Self
from urllib.error import HTTPError
from urllib.request import urlopen

from services.ports import free_ports

READY_S = 90  # Azurite takes fifteen seconds on a machine with nothing else to do


class Server:
    """What it holds outlives a restart, and goes with the context. A service says its `command` and where to look."""

    health = "/"
    health_statuses = frozenset({200})

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"{type(self).__name__.lower()}-"))
        (self.port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {}

    def start(self) -> Self:
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory,
                env=os.environ | self.environment(),
            )  # fmt: skip
        deadline = time.monotonic() + READY_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = (self.directory / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{type(self).__name__} did not start: {said}")
            time.sleep(0.05)  # between two looks
        return self

    def _answers(self) -> bool:
        try:
            with urlopen(self.endpoint + self.health, timeout=5) as answer:
                return answer.status in self.health_statuses
        except HTTPError as error:
            with error:
                return error.code in self.health_statuses
        except (OSError, HTTPException):
            return False

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(READY_S)
            self._process = None

    def restart(self, number: int = signal.SIGTERM) -> Self:
        self.stop(number)
        return self.start()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)
