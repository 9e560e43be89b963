"""The installer of services: whole or not at all, and a reason in words."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from services.install import RECIPES, BuildError, NotInstalledError, install

INSTALLER = Path(__file__).parent.parent / "services" / "install.py"
GOOD = 'echo program > "$GOBIN/minio"'


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Return an empty cache, in a world whose only go is the one that a test writes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")
    (tmp_path / "bin").mkdir()
    return tmp_path


def write_go(home, text):
    go = home / "bin" / "go"
    go.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{text}\n")
    go.chmod(0o755)


def left(home):
    return sorted(path.name for path in (home / "cache").glob("ister/services/*") if path.suffix != ".lock")


def test_a_program_is_installed_once(home):
    write_go(home, GOOD)
    assert install("minio").read_text() == "program\n"
    write_go(home, "exit 1")
    assert install("minio") == RECIPES["minio"].binary
    assert left(home) == [RECIPES["minio"].home.name]


@pytest.mark.parametrize("name", RECIPES)
def test_a_missing_toolchain_is_named(home, name):
    with pytest.raises(NotInstalledError, match=f"{RECIPES[name].tools[0]} is not installed"):
        install(name)
    assert left(home) == []


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("echo 'dial tcp: lookup example: no such host' >&2; exit 1", NotInstalledError, "the network"),
        ("echo 'undefined: x' >&2; exit 2", BuildError, "ended with 2:\n *undefined: x"),
        ("exit 0", BuildError, "there is no minio"),
        (f"{GOOD}; exit 1", BuildError, "ended with 1"),
    ],
)
def test_a_build_that_fails_says_why_and_leaves_nothing(home, text, kind, says):
    write_go(home, text)
    with pytest.raises(kind, match=says):
        install("minio")
    assert left(home) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_an_ended_build_leaves_nothing_that_looks_whole(home, number):
    write_go(home, f"{GOOD}; echo $$ > {home / 'pid'}; exec sleep 60")
    with subprocess.Popen([sys.executable, str(INSTALLER), "minio"], stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 30
        while not (home / "pid").exists() or not (home / "pid").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
    if number == signal.SIGKILL:
        os.kill(int((home / "pid").read_text()), signal.SIGKILL)
    assert RECIPES["minio"].home.name not in left(home)
    write_go(home, GOOD)
    install("minio")
    assert left(home) == [RECIPES["minio"].home.name]
