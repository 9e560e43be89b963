"""Processes for bench/broker.py: `ister serve` and the servers of the floors."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import broker_floor
import broker_relay

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

READY_S = 60.0
DESCRIPTORS = 1024
"""Soft and hard limit of open files: the broker raises its soft limit to the hard one when it starts."""


def floor_server(window: int, payload_bytes: int) -> AbstractContextManager[str]:
    """Run the floor's server; yield its address."""
    return _server(broker_floor.__file__, str(window), str(payload_bytes))


def relay_server() -> AbstractContextManager[str]:
    """Run the relay; yield its address."""
    return _server(broker_relay.__file__)


@contextmanager
def _server(*command: str) -> Iterator[str]:
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], READY_S)[0], "the server does not start"
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


class BrokerProcess:
    """`ister serve` on a data directory. `with BrokerProcess(directory) as broker: broker.target`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.started_s = 0.0
        self.target = self.admin_target = ""

    def __enter__(self) -> Self:
        self._directory.mkdir(exist_ok=True)
        config = self._directory / "ister.yml"
        config.write_text("broker_port: 0\nadmin_port: 0\nprom_port: 0\n")
        serve = [
            sys.executable, "-c", "from ister.cli import main; main()",
            "serve", "--no-pipeline", "--config", str(config), "--data-dir", str(self._directory / "data"), "-o", "json",
        ]  # fmt: skip
        limited = ["sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "sh", *serve]
        began = time.monotonic()
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(limited, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None
        told = self._process.stdout.readline() if select.select([self._process.stdout], [], [], READY_S)[0] else b""
        if not told:
            self._process.kill()
            raise RuntimeError(f"the broker did not start: {(self._directory / 'log').read_text()[-2000:]}")
        self.started_s = time.monotonic() - began
        addresses = json.loads(told)
        self.target, self.admin_target = (urlsplit(addresses[name]).netloc for name in ("broker_url", "admin_url"))
        limits = resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE)
        assert limits == (DESCRIPTORS, DESCRIPTORS), f"the broker may open {limits} files"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(60) == 0, "the broker did not stop in order"

    def rss_mb(self) -> float:
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024 / 1e6

    def descriptors(self) -> int:
        """Return the number of open files and connections."""
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
