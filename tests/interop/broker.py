"""`ister serve` in a process of its own, on ports of its own, that can be stopped, killed and started again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Self
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import yaml
from danube import DanubeClientBuilder

from interop.raw import Raw
from services.ports import free_ports

READY_S = 120.0
STOP_S = 60.0
ISTER = [sys.executable, "-c", "from ister.cli import main; main()"]
QUICK = {
    "consumer_grace_ms": 500,
    "producer_expiry_ms": 2000,
    "volatile_subscription_expiry_ms": 1000,
    "keepalive_interval_ms": 2000,
    "keepalive_timeout_ms": 1000,
}
"""Graces so short that a test need not wait for them."""


class Broker:
    """What it holds outlives a restart, and goes with the context. `with Broker() as broker: broker.url`."""

    def __init__(self, config: dict | None = None, *, descriptors: int | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="broker-"))
        self.port, self.admin_port, self.prom_port = free_ports(3)
        given = config or {}
        self.config = given | {"broker": QUICK | given.get("broker", {})}
        self.descriptors = descriptors
        self.process: subprocess.Popen[bytes] | None = None
        self.started_s = self.started_cpu_s = self.recovered_s = 0.0

    # --- where it is --------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def admin_target(self) -> str:
        return f"127.0.0.1:{self.admin_port}"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log_path(self) -> Path:
        return self.directory / "log"

    @property
    def ready_path(self) -> Path:
        return self.directory / "ready"

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    # --- its life -----------------------------------------------------------------------------------------------------

    def command(self) -> list[str]:
        path = self.directory / "ister.yml"
        addresses = {
            "cluster_name": "tests",  # and no broker_host: where it listens by default is what S16 is about
            "broker_port": self.port,
            "admin_port": self.admin_port,
            "prom_port": self.prom_port,
        }
        path.write_text(yaml.safe_dump(addresses | self.config))
        return [*ISTER, "serve", "--no-pipeline", "--config", str(path), "-o", "json", "--data-dir", str(self.data)]

    def launch(self) -> Self:
        """Start the process and do not wait for it."""
        command = self.command()
        if self.descriptors is not None:
            # By a shell, because a function between fork and exec would run beside the threads of gRPC. The hard limit,
            # too: a broker raises the soft one to it.
            command = ["sh", "-c", f'ulimit -n {self.descriptors}; exec "$@"', "sh", *command]
        with self.log_path.open("ab") as log, self.ready_path.open("wb") as ready:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=ready, stderr=log, cwd=self.directory
            )
        return self

    def start(self) -> Self:
        """Start it and wait until it says where it listens; it listens there again after a restart."""
        began = time.monotonic()
        self.launch()
        while not (said := self.ready_path.read_text()).endswith("\n"):
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() - began > READY_S:
                raise RuntimeError(f"the broker did not become ready; it said:\n{said}{self.log[-4000:]}")
            time.sleep(0.01)  # between two looks
        self.started_s, self.started_cpu_s = time.monotonic() - began, self.cpu_s()
        told = json.loads(said)
        self.recovered_s = told["seconds"]
        self.port, self.admin_port, self.prom_port = (
            urlsplit(told[name]).port for name in ("broker_url", "admin_url", "metrics_url")
        )
        return self

    def is_ready(self) -> bool:
        return self.asks("/readyz") == 200

    def asks(self, path: str) -> int:
        """Return the status of a page on the port for metrics; 0 when nobody answers."""
        try:
            with urlopen(f"http://127.0.0.1:{self.prom_port}{path}", timeout=5) as answer:
                return answer.status
        except HTTPError as error:
            with error:
                return error.code
        except (OSError, HTTPException):
            return 0

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        assert self.process is not None, "it was started"
        self.process.send_signal(number)
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        code = self.process.wait(STOP_S)
        self.process = None
        return code

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def terminate(self) -> tuple[int, float]:
        """End it as an operator does; returns exit code and seconds."""
        began = time.monotonic()
        return self.stop(), time.monotonic() - began

    def restart(self, number: int = signal.SIGKILL) -> Self:
        self.stop(number)
        return self.start()

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    # --- what can be seen from outside --------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def open_descriptors(self) -> int:
        return len([*Path(f"/proc/{self.pid}/fd").iterdir()])

    def rss_mib(self) -> float:
        return self._status("VmRSS")

    def rss_peak_mib(self) -> float:
        return self._status("VmHWM")

    def _status(self, field: str) -> float:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024

    def cpu_s(self) -> float:
        """Return the seconds of processor that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def metrics(self) -> dict[str, float]:
        """Return every sample, by its name with its labels as they are printed."""
        samples = (line.rpartition(" ") for line in self.scrape().splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def scrape(self) -> str:
        """Return the page of metrics as Prometheus gets it."""
        with urlopen(f"http://127.0.0.1:{self.prom_port}/metrics", timeout=60) as answer:
            return answer.read().decode()

    # --- clients ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def client(self):
        """Give an official client; at the end its channels are closed, which it cannot do itself."""
        client = await DanubeClientBuilder().service_url(self.url).build()
        try:
            yield client
        finally:
            for connection in client.connection_manager._connections.values():
                await connection.channel.close()

    @asynccontextmanager
    async def raw(self):
        """Give a client that does exactly what it is told."""
        raw = Raw(self.target, self.admin_target)
        try:
            yield raw
        finally:
            await raw.close()
