"""Build the official Go, Rust and Java clients' drivers and run them against `ister serve`; README.md beside it.

run.py [go|rust|java …] [SCENARIO…]: without names, everything. A driver prints `ok NAME`, `FAIL NAME: why`, and
`restart now kill|term`, which is answered with a line once the broker is back.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from interop.broker import Broker

HERE = Path(__file__).parent
JAVA_SOURCE = "https://github.com/danube-messaging/danube-java"
JAVA_COMMIT = "50f45ac2f7b1fe3bb593c3637ddfd8336792c5aa"  # its pom.xml says 0.2.0
DRIVER_MAX_S = 1200
SIGNALS = {"restart now kill": signal.SIGKILL, "restart now term": signal.SIGTERM}
OFFLINE = re.compile(
    r"dial tcp|no such host|[Cc]ould ?n[o']t resolve host|Unknown host|UnknownHostException|Temporary failure in name|"
    r"[Nn]etwork is unreachable|[Cc]onnection refused|[Cc]onnection reset|[Tt]imed out|i/o timeout|TLS handshake timeout|"
    r"GOPROXY=off|download of config.json failed|spurious network error",
)


class SkippedError(Exception):
    """A client cannot be had here, for a reason that is not ours."""


class BuildError(Exception):
    """A driver should have been built and was not."""


@dataclass
class Count:
    """What became of one client's scenarios."""

    ok: int = 0
    failures: list[str] = field(default_factory=list)
    skipped: str = ""

    def __str__(self) -> str:
        if self.skipped:
            return "SKIPPED"
        return f"{self.ok} ok" + (f" {len(self.failures)} FAILED" if self.failures else "")


def home() -> Path:
    """Where builds are kept, outside the clone."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("ISTER_CLIENTS_DIR") or base / "ister" / "clients")


def say(text: str) -> None:
    print(f"clients: {text}", flush=True)


def require(program: str, arguments: list[str], pattern: str, least: tuple[int, int]) -> None:
    """Skip the client unless a tool is there and new enough."""
    if shutil.which(program) is None:
        raise SkippedError(f"{program} is not installed")
    told = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    found = re.search(pattern, told.stdout + told.stderr)
    wanted = ".".join(str(part) for part in least)
    if found is None:
        raise SkippedError(f"{program} {wanted} or newer is needed, and {program} does not say what it is")
    if (int(found[1]), int(found[2] or 0)) < least:
        raise SkippedError(f"{program} {wanted} or newer is needed, and this is {found[0].strip()}")


def run(command: list[str], where: Path, **environment: str) -> None:
    """Run one step of a build; its output is shown when it fails."""
    say(" ".join(command))
    done = subprocess.run(
        command,
        cwd=where,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return
    told = (done.stdout + done.stderr).splitlines()
    tail = "\n".join(f"    {line}" for line in told[-15:])
    if any(OFFLINE.search(line) for line in told):
        raise SkippedError(f"the network did not give it to us: {command[0]} said\n{tail}")
    raise BuildError(f"{' '.join(command)} ended with {done.returncode}:\n{tail}")


def build_go() -> list[str]:
    require("go", ["version"], r"go(\d+)\.(\d+)", (1, 24))
    driver = home() / "go" / "driver"
    run(["go", "build", "-trimpath", "-mod=readonly", "-o", str(driver), "."], HERE / "go")
    return [str(driver)]


def build_rust() -> list[str]:
    require("cargo", ["--version"], r"cargo (\d+)\.(\d+)", (1, 88))
    target = Path(os.environ.get("CARGO_TARGET_DIR") or home() / "rust")
    home().mkdir(parents=True, exist_ok=True)
    # Upstream's build script asks for a protoc; ours comes with grpcio-tools, as a module.
    protoc = home() / "protoc"
    protoc.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m grpc_tools.protoc "$@"\n')
    protoc.chmod(0o755)
    run(
        ["cargo", "build", "--locked", "--quiet"],
        HERE / "rust",
        CARGO_TARGET_DIR=str(target),
        PROTOC=os.environ.get("PROTOC", str(protoc)),
    )
    return [str(target / "debug" / "ister-clients")]


def build_java() -> list[str]:
    tools = Path(os.environ["JAVA_HOME"]) / "bin" if "JAVA_HOME" in os.environ else Path()
    java, javac = (str(tools / name) for name in ("java", "javac"))
    require(javac, ["-version"], r"javac (\d+)(?:\.(\d+))?", (21, 0))
    require("mvn", ["-version"], r"Maven (\d+)\.(\d+)", (3, 6))
    require("git", ["--version"], r"git version (\d+)\.(\d+)", (2, 0))
    client = home() / "java" / JAVA_COMMIT
    if not client.exists():
        build_java_client(client)
    with tempfile.TemporaryDirectory(dir=client.parent) as classes:
        path = f"{client}/*"
        run(
            [javac, "-cp", path, "-d", classes, *sorted(str(source) for source in (HERE / "java").glob("*.java"))], HERE
        )
        shutil.copytree(classes, client.parent / "driver", dirs_exist_ok=True)
    return [java, "-Xmx512m", "-cp", f"{client.parent / 'driver'}:{path}", "Driver"]


def build_java_client(client: Path) -> None:
    """Fill a directory with the jars of the client, built from its commit, and of what it needs."""
    client.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=client.parent) as name:
        source, jars = Path(name) / "source", Path(name) / "jars"
        run(["git", "init", "--quiet", str(source)], HERE)
        run(["git", "fetch", "--quiet", "--depth=1", JAVA_SOURCE, JAVA_COMMIT], source)
        run(["git", "checkout", "--quiet", JAVA_COMMIT], source)
        copy = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
        only = ["-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        run(["mvn", "-q", "-B", "-Dmaven.test.skip=true", "package", copy, *only], source)
        for jar in source.glob("danube-client/target/danube-client-*.jar"):
            shutil.copy(jar, jars)
        jars.rename(client)


BUILDS: dict[str, Callable[[], list[str]]] = {"go": build_go, "rust": build_rust, "java": build_java}


def drive(name: str, command: list[str], scenarios: list[str]) -> Count:
    """Run one driver to its end, against a broker of its own."""
    count, broker = Count(), Broker()
    broker.config = {}  # an operator's defaults, not the short graces of tests/interop
    with broker, tempfile.TemporaryFile("w+", errors="replace") as errors:
        driver = subprocess.Popen(
            [*command, broker.url, *scenarios], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert driver.stdin is not None
        assert driver.stdout is not None
        watch = threading.Timer(DRIVER_MAX_S, driver.kill)
        watch.start()
        try:
            for line in map(str.rstrip, driver.stdout):
                if number := SIGNALS.get(line):
                    began = time.monotonic()
                    broker.restart(number)
                    print(
                        f"  {name} the broker is back {time.monotonic() - began:.1f} s after {number.name}", flush=True
                    )
                    with suppress(BrokenPipeError):  # its exit code tells
                        driver.stdin.write("\n")
                        driver.stdin.flush()
                    continue
                print(f"  {name} {line.strip()}", flush=True)
                count.ok += line.startswith("ok ")
                if line.startswith("FAIL "):
                    count.failures.append(line)
            code = driver.wait()
        finally:
            watch.cancel()
            driver.kill()
            driver.wait()
        if code and not count.failures:
            errors.seek(0)
            count.failures.append(f"the driver ended with {code}:\n{errors.read()[-3000:]}")
        if not (count.ok or count.failures or scenarios):
            count.failures.append("the driver ran no scenario")
        count.failures += [f"the broker says {line}" for line in broker.log.splitlines() if is_trouble(line)]
        ended, took = broker.terminate()
        if ended != 0 or took > 30:
            count.failures.append(f"the broker ended with {ended}, {took:.1f} s after SIGTERM")
    return count


def is_trouble(line: str) -> bool:
    return line.startswith("Traceback") or '"level": "error"' in line or '"level": "critical"' in line


def main(arguments: list[str]) -> int:
    began = time.monotonic()
    names = [name for name in BUILDS if name in arguments] or list(BUILDS)
    scenarios = [argument for argument in arguments if argument not in BUILDS]
    counts = {}
    for name in names:
        try:
            counts[name] = drive(name, BUILDS[name](), scenarios)
        except SkippedError as reason:
            counts[name] = Count(skipped=str(reason))
        except BuildError as reason:
            counts[name] = Count(failures=[str(reason)])
    for name, count in counts.items():
        if count.skipped:
            say(f"SKIPPED every scenario of {name}: {count.skipped}")
        for failure in count.failures:
            say(f"FAILED {name}: {failure}")
    say(f"{time.monotonic() - began:.0f} s in all")
    say(", ".join(f"{name} {count}" for name, count in counts.items()))
    if scenarios and not any(count.ok or count.failures or count.skipped for count in counts.values()):
        say(f"no client has a scenario {' or '.join(scenarios)}")
        return 1
    return 1 if any(count.failures for count in counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
