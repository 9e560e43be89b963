"""Every command and program of README.md, run in its order on one broker with its pipeline."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from services.ports import free_ports

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ISTER = [sys.executable, "-c", "from ister.cli import main; main()"]
DEADLINE_S = 180.0


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands():
    return [shlex.split(line) for block in blocks("console") for line in re.findall(r"^\$ (.+)$", block, re.MULTILINE)]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A directory with a broker that runs `ister serve` there, on free ports."""
    home = tmp_path_factory.mktemp("readme")
    port, admin_port, prom_port = free_ports(3)
    config = {"broker_port": port, "admin_port": admin_port, "prom_port": prom_port}
    (home / "ister.yml").write_text(yaml.safe_dump(config))
    with (home / "out").open("wb") as out, (home / "log").open("wb") as log:
        process = subprocess.Popen([*ISTER, "serve", "--config", "ister.yml"], cwd=home, stdout=out, stderr=log)
    try:
        wait_until(lambda: "metrics" in (home / "out").read_text(), home)
        yield home
    finally:
        process.terminate()
        process.wait(60)


def config_of(home):
    return yaml.safe_load((home / "ister.yml").read_text())


def wait_until(holds, home):
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, (home / "log").read_text()[-4000:]
        time.sleep(0.2)  # between two looks at another process


def run(home, command):
    ports = config_of(home)
    env = os.environ | {
        "ISTER_BROKER": f"http://127.0.0.1:{ports['broker_port']}",
        "ISTER_ADMIN": f"http://127.0.0.1:{ports['admin_port']}",
    }
    done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ister(home, *words):
    return run(home, [*ISTER, *words])


def program(home, text):
    source = home / "program.py"
    source.write_text(text.replace(":6650", f":{config_of(home)['broker_port']}"))
    return run(home, [sys.executable, source])


def rows_in_table(home):
    topics = json.loads(ister(home, "pipeline", "status", "-o", "json"))["topics"]
    return sum(topic["committed"] or 0 for topic in topics if topic["topic"] == "/default/orders")


def test_every_command_and_program_of_the_readme_runs(home):
    serve, produce, consume, *rest, status, sql = commands()
    assert serve == ["ister", "serve"], "the fixture runs it, on other ports"
    assert [words[:2] for words in rest] == [["ister", "topics"], ["ister", "subscriptions"]]
    ready = (home / "out").read_text()
    assert re.sub(r"\d", "", ready.split("\n\n")[1]) == re.sub(
        r"\d", "", blocks("console")[0].split("\n\n")[1].rstrip()
    )
    ister(home, *produce[1:])
    out = ister(home, *consume[1:])
    assert "one order" in out
    assert "another" in out
    for words in rest:
        assert ister(home, *words[1:])
    client, reader = blocks("python")
    assert program(home, client) == "2 b'one more order'\n"
    wait_until(lambda: rows_in_table(home) == 3, home)
    assert "default.orders" in ister(home, *status[1:])
    assert re.search(r"\b3\b.*\b2\b", ister(home, *sql[1:]))
    assert re.search(r"topic_offset: \[\[1\D+2\]\]", program(home, reader))


def test_the_targets_of_the_two_commands_run_the_demonstration_and_the_tests():
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^run:.*\n\t@\$\(BIN\)/ister demo$", makefile, re.MULTILINE)  # run by tests/crash/test_demo.py
    assert re.search(r"^test:.*\n\t@\$\(BIN\)/python tests/run\.py$", makefile, re.MULTILINE)
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("make test")


def test_readme_and_architecture_are_short():
    assert len(README.splitlines()) <= 150
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 150
