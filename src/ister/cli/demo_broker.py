"""The broker that the demo starts, kills and starts again: `ister serve` in a process of its own, on free ports."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from ister.cli.exits import CheckFailedError, error_of
from ister.cli.ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path

READY_S = 120
"""How long a start or a stop may take before the demo says that it hangs."""
_SERVE = "from ister.cli import main; main()"
_CONFIG = """\
broker_port: {broker}
admin_port: {admin}
prom_port: none
dispatch:
  max_unacked_messages: 100
policies:
  start_position: earliest
storage:
  type: iceberg
wal_cloud:
  uploader:
    interval_seconds: 1
"""
"""A new subscription gets everything from the first message on, uploads are so frequent that a short run sees some, and what
neither log nor objects have is read from the table."""


class DemoBroker:
    """A broker on a data directory; it has the same address after a restart. Used as a context, nothing outlives it."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.url = ""
        self.start_seconds = 0.0
        self._directory = directory
        self._ports = dict(zip(("broker", "admin"), free_ports(2), strict=True))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return once it says that it can be used."""
        self._directory.mkdir(parents=True, exist_ok=True)
        config = self._directory / "ister.yml"
        config.write_text(_CONFIG.format(**self._ports))
        began = time.monotonic()
        with (self._directory / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  # our own program
                [
                    sys.executable,
                    "-c",
                    _SERVE,
                    "serve",
                    "--no-pipeline",
                    "-o",
                    "json",
                    "--config",
                    config,
                    "--data-dir",
                    self.data,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends this process
            )
        told = self._first_line(self._process)
        self.start_seconds = time.monotonic() - began
        self.url = told["broker_url"]
        self._ports = {name: urlsplit(told[f"{name}_url"]).port or 0 for name in self._ports}

    def _first_line(self, process: subprocess.Popen[bytes]) -> dict[str, str]:
        assert process.stdout is not None, "it was started with a pipe"
        if not select.select([process.stdout], [], [], READY_S)[0]:
            raise CheckFailedError(f"the broker is not ready after {READY_S} seconds")
        line = process.stdout.readline()
        if not line:
            code = process.wait(READY_S)
            raise error_of(code, f"the broker ended by itself with exit code {code}; it said: {self._last_words()}")
        told: dict[str, str] = json.loads(line)
        return told

    def _last_words(self) -> str:
        lines = (self._directory / "broker.log").read_text(errors="replace").splitlines()
        return lines[-1] if lines else "nothing"

    def kill(self) -> None:
        """End it with kill -9, which it cannot notice."""
        self._end(signal.SIGKILL)

    def stop(self) -> float:
        """End it as an operator does; returns how many seconds it took."""
        began = time.monotonic()
        code = self._end(signal.SIGTERM)
        if code != 0:
            raise error_of(code, f"the broker stopped with exit code {code}; it said: {self._last_words()}")
        return time.monotonic() - began

    def _end(self, number: int) -> int:
        process = self._process
        assert process is not None, "it was started"
        process.send_signal(number)
        try:
            code = process.wait(READY_S)
        except subprocess.TimeoutExpired:
            raise CheckFailedError(f"the broker does not stop within {READY_S} seconds") from None
        assert process.stdout is not None, "it was started with a pipe"
        process.stdout.close()
        self._process = None
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._end(signal.SIGKILL)
