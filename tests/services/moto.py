"""An S3 server for the tests: moto in a process of its own, on a free port of this machine."""

from __future__ import annotations

import atexit
import http.client
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ister.ports.objects import StoreSettings
from services.ports import free_ports

START_S_MAX = 60
LIST_PAGE = 100  # small, so that a test of paging need not put thousands
_numbers = itertools.count()


@dataclass(frozen=True)
class Moto:
    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def make_bucket(self) -> str:
        """Make a new bucket and return its name."""
        bucket = f"bucket-{next(_numbers)}"
        self._ask("PUT", f"/{bucket}")
        return bucket

    def settings(self, root: str, **options: str) -> StoreSettings:
        """Settings of a store in `root` (bucket, or bucket and prefix); options replace the usual ones."""
        usual = {"endpoint": self.endpoint, "region": "us-east-1", "access_key": "testkey", "secret_key": "testsecret"}
        return StoreSettings("s3", f"s3://{root}", usual | options)

    def cloud(self, root: str) -> dict[str, str]:
        """The same, as a configuration's `wal_cloud.cloud`."""
        settings = self.settings(root)
        return {"backend": settings.backend, "root": settings.root, **settings.options}

    def _ask(self, method: str, path: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == http.client.OK, answer.status
        finally:
            connection.close()

    def answers(self) -> bool:
        try:
            self._ask("GET", "/moto-api/")
        except OSError:
            return False
        return True


@contextmanager
def serve_moto() -> Iterator[Moto]:
    """Start a server with nothing in it, and stop it at the end."""
    (port,) = free_ports(1)
    command = [str(Path(sys.executable).parent / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    environment = os.environ | {"MOTO_S3_DEFAULT_MAX_KEYS": str(LIST_PAGE)}
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, env=environment) as process:
        try:
            moto = Moto(port)
            deadline = time.monotonic() + START_S_MAX
            while not moto.answers():
                assert process.poll() is None, f"{command} ended with {process.returncode}"
                assert time.monotonic() < deadline, f"{command} does not answer"
                time.sleep(0.05)
            yield moto
        finally:
            process.kill()


@cache
def shared_moto() -> Moto:
    """Return the one server of this process of tests; it ends with the process."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(serve_moto())
