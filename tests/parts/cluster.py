"""A real Spark cluster of a master and two workers from the pyspark package, each with a directory of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import pyspark

READY_S = 120.0
HOME = Path(pyspark.__file__).parent


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def daemon(directory: Path, words: list[str], variables: dict[str, str]):
    """Run one of Spark's daemons; its whole group is ended with it."""
    directory.mkdir()
    environment = os.environ | {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1"} | variables
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), *words],
            cwd=directory,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)


@contextmanager
def cluster(directory: Path, variables: dict[str, str]):
    """Give the address of a master that has two workers; `variables` are the workers' environment."""
    port, page = free_port(), free_port()
    with ExitStack() as stack:
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"]
        stack.enter_context(
            daemon(directory / "master", [*master, "--port", str(port), "--webui-port", str(page)], variables)
        )
        for number in range(2):
            worker = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g"]
            own = directory / f"worker-{number}"
            words = [*worker, "--work-dir", str(own / "work"), "--webui-port", "0", f"spark://127.0.0.1:{port}"]
            stack.enter_context(daemon(own, words, variables | {"PYSPARK_PYTHON": sys.executable}))
        deadline = time.monotonic() + READY_S
        while alive(page) != 2:
            assert time.monotonic() < deadline, "the cluster does not start"
            time.sleep(0.2)  # between two looks
        yield f"spark://127.0.0.1:{port}"


def alive(page: int) -> int:
    """Return how many workers the master has."""
    try:
        with urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
            return json.load(answer)["aliveworkers"]
    except OSError:
        return 0
