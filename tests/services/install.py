"""Install the real services of `make test-services`, once, outside the clone: pinned versions, whole or not at all.

Each is built in a directory of its own that gets its final name when all is there, so an interrupted build leaves
nothing that could be mistaken for a finished one.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STILL_S = 30  # how often a long build says that it lives
OFFLINE = re.compile(
    r"dial tcp|no such host|network is unreachable|connection refused|connection reset|i/o timeout|TLS handshake|"
    r"Client\.Timeout|proxyconnect|module lookup disabled by GOPROXY=off|"
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|ENOTCACHED|ERR_SOCKET",
)
ETCD_MAIN = """package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
"""


ICEBERG_REST = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>ister</groupId><artifactId>iceberg-rest</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.iceberg</groupId><artifactId>iceberg-open-api</artifactId><version>1.10.1</version>
      <classifier>test-fixtures</classifier></dependency>
    <dependency><groupId>org.apache.iceberg</groupId><artifactId>iceberg-core</artifactId><version>1.10.1</version></dependency>
    <dependency><groupId>org.apache.iceberg</groupId><artifactId>iceberg-core</artifactId><version>1.10.1</version>
      <classifier>tests</classifier></dependency>
    <dependency><groupId>org.apache.iceberg</groupId><artifactId>iceberg-aws</artifactId><version>1.10.1</version></dependency>
    <dependency><groupId>org.apache.iceberg</groupId><artifactId>iceberg-aws-bundle</artifactId><version>1.10.1</version></dependency>
    <dependency><groupId>org.eclipse.jetty</groupId><artifactId>jetty-servlet</artifactId><version>11.0.26</version></dependency>
    <dependency><groupId>org.apache.hadoop</groupId><artifactId>hadoop-client-api</artifactId><version>3.4.1</version></dependency>
    <dependency><groupId>org.apache.hadoop</groupId><artifactId>hadoop-client-runtime</artifactId><version>3.4.1</version></dependency>
    <dependency><groupId>org.xerial</groupId><artifactId>sqlite-jdbc</artifactId><version>3.50.3.0</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>2.0.17</version></dependency>
  </dependencies>
</project>
"""


class NotInstalledError(Exception):
    """A service cannot be had here, for a reason that is not ours: its tests are skipped, and the reason is said."""


class BuildError(Exception):
    """A service should have been built and was not: make test-services fails."""


@dataclass(frozen=True)
class Recipe:
    """How to get one service; `steps` run in an empty directory which then holds `program`."""

    name: str
    version: str
    tools: tuple[str, ...]
    steps: tuple[tuple[str, ...], ...]
    program: str
    size: str
    environment: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()

    @property
    def home(self) -> Path:
        """Where it is once it is installed."""
        return cache() / f"{self.name}-{self.version}"

    @property
    def binary(self) -> Path:
        """What to run."""
        return self.home / self.program.format(version=self.version)


GO = ("go", "install", "-trimpath", "-ldflags=-s -w")
STATIC = (("CGO_ENABLED", "0"),)
RECIPES = {
    recipe.name: recipe
    for recipe in (
        # Release tags of MinIO do not resolve as versions of a module; this is one of its commits.
        Recipe(
            "minio", "v0.0.0-20260212201848-7aac2a2c5b7c", ("go",),
            ((*GO, "github.com/minio/minio@{version}"),),
            "minio", "the largest: 4 to 15 minutes, 110 MB", (*STATIC, ("GOBIN", "{here}")),
        ),
        Recipe(
            "fake-gcs-server", "v1.56.1", ("go",),
            ((*GO, "github.com/fsouza/fake-gcs-server@{version}"),),
            "fake-gcs-server", "1 to 5 minutes, 35 MB", (*STATIC, ("GOBIN", "{here}")),
        ),
        # etcd's own main cannot be installed by version (its go.mod replaces modules); a main of ours calls it.
        Recipe(
            "etcd", "v3.6.8", ("go",),
            (
                ("go", "mod", "init", "etcd.test"),
                ("go", "get", "go.etcd.io/etcd/server/v3/etcdmain@{version}"),
                ("go", "build", "-trimpath", "-ldflags=-s -w", "-o", "etcd", "."),
            ),
            "etcd", "1 to 4 minutes, 25 MB", STATIC, (("main.go", ETCD_MAIN),),
        ),
        # The last one that runs on the Node of current distributions; later ones want 21 and 22.
        Recipe(
            "azurite", "3.35.0", ("npm", "node"),
            (("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", ".", "azurite@{version}"),),
            "node_modules/azurite/dist/src/blob/main.js", "1 to 3 minutes, 190 MB",
        ),
        # The runtime of Iceberg's reference catalog is not published; its tests' fixtures are.
        Recipe(
            "iceberg-rest", "1.10.1", ("mvn", "java"),
            (("mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"),),
            "lib/iceberg-open-api-{version}-test-fixtures.jar", "1 to 3 minutes, 700 MB", (), (("pom.xml", ICEBERG_REST),),
        ),
    )
}  # fmt: skip


def cache() -> Path:
    """Return the directory of installed services."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ister" / "services"


def install(name: str) -> Path:
    """Return the program of a service, installed if it was not; NotInstalledError and BuildError say why not."""
    recipe = RECIPES[name]
    if recipe.binary.exists():
        return recipe.binary
    for tool in recipe.tools:
        if shutil.which(tool) is None:
            raise NotInstalledError(f"{tool} is not installed")
    with _alone(recipe):
        if not recipe.binary.exists():
            _build(recipe)
    return recipe.binary


@contextmanager
def _alone(recipe: Recipe) -> Iterator[None]:
    """Let one process build, and remove what builds left that were killed."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f"{recipe.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(recipe, "waiting for another build of it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for left in cache().glob(f".building-{recipe.name}-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _build(recipe: Recipe) -> None:
    began = time.monotonic()
    here = Path(tempfile.mkdtemp(prefix=f".building-{recipe.name}-", dir=cache()))
    try:
        for name, text in recipe.files:
            (here / name).write_text(text)
        for step in recipe.steps:
            _run(recipe, here, [word.format(version=recipe.version) for word in step], began)
        program = recipe.binary.relative_to(recipe.home)
        if not (here / program).exists():
            raise BuildError(f"{recipe.name}: the build ended well, but there is no {program}")
        shutil.rmtree(recipe.home, ignore_errors=True)
        here.rename(recipe.home)
    finally:
        shutil.rmtree(here, ignore_errors=True)
    _say(recipe, f"installed after {time.monotonic() - began:.0f} s")


def _run(recipe: Recipe, here: Path, command: list[str], began: float) -> None:
    _say(recipe, f"{' '.join(command)} (in all {recipe.size}; this once)")
    environment = os.environ | {name: value.format(here=here) for name, value in recipe.environment}
    polite = ["nice", "-n", "19"] if shutil.which("nice") else []  # whoever waits may want to work meanwhile
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        with subprocess.Popen(
            [*polite, *command], cwd=here, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        ) as process:
            while True:
                try:
                    process.wait(STILL_S)
                    break
                except subprocess.TimeoutExpired:
                    _say(recipe, f"still at it, {time.monotonic() - began:.0f} s")
                except BaseException:
                    process.terminate()
                    raise
        if process.returncode == 0:
            return
        output.seek(0)
        told = [line for line in output.read().splitlines() if not line.startswith("go: downloading")]
    tail = "\n".join(f"    {line}" for line in told[-12:])
    if any(OFFLINE.search(line) for line in told):
        raise NotInstalledError(f"the network did not give it to us: {command[0]} said\n{tail}")
    raise BuildError(f"{recipe.name}: {' '.join(command)} ended with {process.returncode}:\n{tail}")


def _say(recipe: Recipe, text: str) -> None:
    print(f"services: {recipe.name} {recipe.version}: {text}", flush=True)


if __name__ == "__main__":
    for wanted in sys.argv[1:] or RECIPES:
        try:
            _say(RECIPES[wanted], f"is in {install(wanted)}")
        except (NotInstalledError, BuildError) as failure:
            _say(RECIPES[wanted], f"NOT INSTALLED: {failure}")
