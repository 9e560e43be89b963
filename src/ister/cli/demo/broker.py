"""The broker process of the demo: `ister serve` on free ports, which the demo kills and restarts."""

from __future__ import annotations

import json
import random
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from ister.cli.exit_codes import CheckFailedError
from ister.core.errors import error_of

READY_S = 120
"""How long a start or a stop may take before the demo fails."""
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST, _LAST = 10_000, 32_767
_SERVE = [sys.executable, "-c", "from ister.cli import main; main()", "serve", "--no-pipeline", "-o", "json"]
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
"""A new subscription starts at the first message, uploads are frequent enough for a short run, and what neither log nor
objects hold is read from the table."""


class DemoBroker:
    """A broker on a data directory, with the same address after a restart; its context manager ends the process."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.url = ""
        self.start_seconds = 0.0
        self._directory = directory
        self._ports = dict(zip(("broker", "admin"), free_ports(2), strict=True))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return once it is ready."""
        self._directory.mkdir(parents=True, exist_ok=True)
        config = self._directory / "ister.yml"
        config.write_text(_CONFIG.format(**self._ports))
        began = time.monotonic()
        with (self._directory / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  # our own program
                [*_SERVE, "--config", config, "--data-dir", self.data],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends this process
            )
        ready = self._first_line(self._process)
        self.start_seconds = time.monotonic() - began
        self.url = ready["broker_url"]
        self._ports = {name: urlsplit(ready[f"{name}_url"]).port or 0 for name in self._ports}

    def _first_line(self, process: subprocess.Popen[bytes]) -> dict[str, str]:
        assert process.stdout is not None, "it was started with a pipe"
        if not select.select([process.stdout], [], [], READY_S)[0]:
            raise CheckFailedError(f"the broker is not ready after {READY_S} seconds")
        line = process.stdout.readline()
        if not line:
            code = process.wait(READY_S)
            raise error_of(code, f"the broker ended by itself with exit code {code}; it said: {self._last_line()}")
        ready: dict[str, str] = json.loads(line)
        return ready

    def _last_line(self) -> str:
        lines = (self._directory / "broker.log").read_text(errors="replace").splitlines()
        return lines[-1] if lines else "nothing"

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> float:
        """End it with SIGTERM; return the seconds it took."""
        began = time.monotonic()
        code = self._end(signal.SIGTERM)
        if code != 0:
            raise error_of(code, f"the broker stopped with exit code {code}; it said: {self._last_line()}")
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


def steady_ports() -> range:
    """Return the ports outside the ephemeral range.

    An ephemeral port may be taken when its server restarts: by any connection, or by a client that tries to reach the
    server, gets this very port for its own side, and so is connected to itself.
    """
    with suppress(OSError, ValueError):  # not Linux, or not readable: the usual range
        first = int(_RANGE.read_text().split()[0])
        return range(_FIRST, first) if first > 2 * _FIRST else range(_FIRST, _LAST + 1)
    return range(_FIRST, _LAST + 1)


def free_ports(count: int, among: range | None = None) -> list[int]:
    """Return free ports of loopback; all are bound until the last is found, so that they differ."""
    among = steady_ports() if among is None else among
    with ExitStack() as held:
        found: list[int] = []
        for port in random.sample(among, len(among)):
            if len(found) == count:
                break
            with suppress(OSError):  # taken
                held.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
        return found
