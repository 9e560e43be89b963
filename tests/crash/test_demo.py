"""`ister demo` with a real broker and a real kill: it tells the truth, and it can fail."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner

from ister.cli.app import app
from ister.cli.demo import story as demo
from ister.cli.demo.broker import DemoBroker
from ister.cli.demo.history import SHOPS, History, Received, Subscription, check_replay, key_of, order
from ister.cli.exit_codes import CheckFailedError

LIMIT_S = 600
ISTER = [sys.executable, "-c", "from ister.cli import main; main()"]


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    yield
    structlog.reset_defaults()


def ister(*args, **env):
    plain = {name: value for name, value in os.environ.items() if name not in {"FORCE_COLOR", "TTY_COMPATIBLE"}}
    return subprocess.run(
        [*ISTER, *map(str, args)], capture_output=True, text=True, timeout=LIMIT_S, env=plain | env, check=False
    )


def in_process(directory, messages=200):
    return CliRunner().invoke(app, ["demo", "--messages", str(messages), "--dir", str(directory)])


def processes_below(directory: Path) -> list[str]:
    """Return the command lines of processes that name this directory."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(directory) in line and str(os.getpid()) != each.parent.name:
            found.append(line)
    return found


def test_the_demo_keeps_its_promise_and_what_it_suggests_works(tmp_path):
    data = tmp_path / "demo data"
    result = ister("demo", "--messages", 400, "--dir", data)
    assert (result.returncode, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    stored = int(re.search(r"messages at offsets \[0, (\d+)\)", result.stdout)[1])
    assert 400 <= stored <= 400 + len(SHOPS)
    for name, kind in (("billing", "Exclusive"), ("packing", "Shared"), ("loyalty", "KeyShared")):
        assert re.search(rf"{name} +{kind} +\d +{stored} +\d+ +0\b", result.stdout), name
    for line in (
        "Serve",
        "Produce",
        "Kill",
        "Restart",
        "Go on",
        "Check",
        "Stop",
        "Lose",
        "Replay",
        "Spark",
        "Commit",
        "SQL",
    ):
        assert re.search(rf"^{line} ", result.stdout, re.MULTILINE), line
    assert f"{stored:,} and {stored:,}, as many as have an answer" in result.stdout
    assert "none lost, none changed, none twice" in result.stdout
    suggested = [line.split("ister ", 1)[1] for line in result.stdout.splitlines() if re.match(r"  \S*ister ", line)]
    assert [line.split()[0] for line in suggested] == ["tiers", "read", "sql", "serve"]
    for line in suggested[:-1]:
        done = ister(*shlex.split(line))
        assert done.returncode == 0, line
        assert done.stderr == "" or line.startswith("sql"), "Spark says what it likes while it starts"
    assert processes_below(data) == []


def test_without_a_directory_nothing_is_left_behind(tmp_path):
    result = ister("demo", "--messages", 100, TMPDIR=str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "demo --dir" in result.stdout
    assert list(tmp_path.iterdir()) == []
    assert processes_below(tmp_path) == []


def test_a_directory_that_is_in_use_for_something_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").touch()
    result = in_process(tmp_path)
    assert result.exit_code == 2
    assert "is not empty" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_directory_that_cannot_be_made_is_said_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    result = ister("demo", "--messages", 200, "--dir", tmp_path / "file" / "log")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_broker_that_cannot_start_is_told_with_its_last_words(tmp_path):
    (tmp_path / "data").write_text("a file where a directory is needed")
    with DemoBroker(tmp_path) as broker, pytest.raises(Exception, match="the broker ended by itself with exit code"):
        broker.start()
    assert processes_below(tmp_path) == []


def test_the_demo_fails_when_an_object_is_damaged_once_the_log_is_gone(tmp_path, monkeypatch):
    remove = demo.shutil.rmtree

    def remove_and_harm(directory):
        remove(directory)
        path = min((tmp_path / "data" / "data" / "objects").rglob("*.dnb"))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    monkeypatch.setattr(demo.shutil, "rmtree", remove_and_harm)
    monkeypatch.setattr("ister.cli.demo.clients.SILENCE_S", 3)
    result = in_process(tmp_path / "data")
    assert result.exit_code != 0
    assert "none lost" not in result.stdout


# --- the checks alone -------------------------------------------------------------------------------------------------


def story(count=10, kind="Exclusive"):
    """A history in which all went well."""
    history = History(kills=1, subscriptions=[Subscription("sub", kind, 1)])
    sent = [(shop, number) for number in range(count) for shop in SHOPS]
    for offset, (shop, number) in enumerate(sent):
        history.acknowledged[shop] += 1
        history.subscriptions[0].received.append(Received(offset, order(shop, number), key_of(number)))
    return history


def test_a_good_history_passes():
    history = story()
    assert history.is_complete()
    assert len(history.check()) == 40


def moved(received, old, new):
    received.insert(new, received.pop(old))


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (lambda got: got.pop(), "did not survive"),
        (lambda got: got.pop(7), "have a hole"),
        (lambda got: got.append(Received(3, b"other", "")), "two different messages"),
        (lambda got: got.append(Received(40, b"invented", "")), "nobody had sent"),
        (lambda got: got.append(Received(40, order("Vienna", 3)[:-1] + b"!", "")), "nobody had sent"),
        (lambda got: moved(got, 3, 9), "out of order"),
        (lambda got: got.extend(Received(40 + n, order("Vienna", n), "") for n in range(2)), "stored twice"),
    ],
    ids=["lost", "hole", "changed", "invented", "one byte", "moved", "twice"],
)
def test_a_history_that_is_not_good_is_told(harm, what):
    history = story()
    harm(history.subscriptions[0].received)
    with pytest.raises(CheckFailedError, match=what):
        history.check()


def test_order_is_asked_only_where_it_is_promised():
    for kind, moves in (("Shared", (3, 9)), ("KeyShared", (3, 4))):
        history = story(kind=kind)
        moved(history.subscriptions[0].received, *moves)
        history.check()
    history = story(kind="KeyShared")
    moved(history.subscriptions[0].received, 0, 3)
    with pytest.raises(CheckFailedError, match="of customer-0 out of order"):
        history.check()


def test_two_subscriptions_must_agree():
    history = story()
    history.subscriptions.append(Subscription("other", "Shared", 1, history.subscriptions[0].received[:-1]))
    history.acknowledged[SHOPS[-1]] -= 1
    with pytest.raises(CheckFailedError, match="different messages"):
        history.check()


def test_a_repeated_delivery_is_counted_and_is_no_failure():
    history = story()
    history.subscriptions[0].received.append(history.subscriptions[0].received[5])
    history.check()
    assert history.subscriptions[0].repeated == 1


def test_a_replay_must_be_the_same():
    history = story()
    stored = history.check()
    replay = Subscription("replay", "Exclusive", 1, list(history.subscriptions[0].received))
    check_replay(stored, replay)
    for harm in (lambda got: got.pop(), lambda got: got.append(Received(40, b"more", ""))):
        changed = Subscription("replay", "Exclusive", 1, list(history.subscriptions[0].received))
        harm(changed.received)
        with pytest.raises(CheckFailedError, match="differs from what was stored"):
            check_replay(stored, changed)
