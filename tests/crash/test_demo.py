"""`ister demo` with real processes and a real kill: it tells the truth, and it can fail."""

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
import structlog
from typer.testing import CliRunner

from ister.cli import demo, demo_tiers
from ister.cli.app import app
from ister.cli.demo_messages import ACKNOWLEDGED, check_messages, demo_message
from ister.cli.demo_reading import read_span
from ister.cli.demo_topic import log_directory, object_files, open_topic
from ister.cli.exits import CheckFailedError
from ister.cli.verify import verify_directory
from ister.core.message import StreamMessage
from ister.core.offsets import StartPosition
from ister.ports.files import OsFiles
from ister.wal.directory import FileNames

LIMIT_S = 120
ISTER = [sys.executable, "-c", "from ister.cli import main; main()"]
WRITER = [sys.executable, "-m", "ister.cli.demo_writer"]


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    yield
    structlog.reset_defaults()


def ister(*args):
    plain = {name: value for name, value in os.environ.items() if name not in {"FORCE_COLOR", "TTY_COMPATIBLE"}}
    return subprocess.run(
        [*ISTER, *map(str, args)], capture_output=True, text=True, timeout=LIMIT_S, env=plain, check=False
    )


def in_process(directory, messages=2000):
    return CliRunner().invoke(app, ["demo", "--messages", str(messages), "--dir", str(directory)])


def number(pattern, text):
    return int(re.search(pattern, text)[1].replace(",", ""))


def test_the_demo_keeps_its_promise_and_leaves_a_data_directory_that_stands_up_to_verify_and_dump(tmp_path):
    data = tmp_path / "demo data"
    result = ister("demo", "--messages", 5000, "--dir", data)
    assert (result.returncode, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    acknowledged = number(r"an answer for ([\d,]+) of them", result.stdout)
    recovered = number(r"has ([\d,]+) messages", result.stdout)
    start, stop = map(int, re.search(r"offsets \[(\d+), (\d+)\) without a hole", result.stdout).groups())
    assert 2500 <= acknowledged <= recovered < start < stop
    assert stop >= 5000
    assert (
        f"One reader got all {stop:,} in order: {start:,} from objects, {stop - start - 1:,} from the log, 1 live."
        in result.stdout
    )
    assert "none lost, none repeated, none changed" in result.stdout
    suggested = [line.split("ister ", 1)[1] for line in result.stdout.splitlines() if re.match(r"  \S*ister ", line)]
    assert [re.match(r"[a-z ]+", line)[0].strip() for line in suggested] == [
        "tiers",
        "objects verify",
        "wal verify",
        "wal dump",
    ]
    for line in suggested:
        done = ister(*shlex.split(line))
        assert (done.returncode, done.stderr) == (0, ""), line
    assert sorted(path.name for path in data.iterdir()) == ["metadata.db", "metadata.db.lock", "objects", "wal"]
    verified = ister("wal", "verify", log_directory(data))
    assert (verified.returncode, verified.stderr) == (0, "")
    assert f"offsets [{start}, {stop})" in verified.stdout
    dumped = ister(*shlex.split(suggested[-1]), "-o", "json")
    assert dumped.returncode == 0
    assert json.loads(dumped.stdout.splitlines()[1])["offset"] == start  # behind the marker that begins a file
    assert asyncio.run(read_everything(data)) == (start, stop)


async def read_everything(data):
    """Open what the demo has left, and check every message from the first on."""
    async with open_topic(data) as topic:
        stop = topic.storage.next_offset
        assert topic.uploader.uploaded.value == stop  # what was left was uploaded at the end
        reader = await topic.storage.create_reader(StartPosition.offset(0))
        await read_span(reader, range(stop), check_messages, lambda _: None)
        return topic.storage.log_start, stop


def test_without_a_directory_nothing_is_left_behind(tmp_path):
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [*ISTER, "demo", "--messages", "200"]
    done = subprocess.run(command, env=env, timeout=LIMIT_S, capture_output=True, check=False)
    assert done.returncode == 0
    assert b"ister demo --dir" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_in_use_for_something_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").touch()
    result = in_process(tmp_path)
    assert result.exit_code == 2
    assert "is not empty" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_directory_that_cannot_be_made_is_said_once_by_the_writer_and_once_by_us(tmp_path):
    (tmp_path / "file").touch()
    result = ister("demo", "--messages", 200, "--dir", tmp_path / "file" / "log")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "the writer ended by itself with exit code 2" in result.stderr


def test_the_demo_fails_when_an_acknowledged_message_is_gone(tmp_path, monkeypatch):
    produce = demo._produce_and_kill

    def claim_more(*args):
        produced = produce(*args)
        return replace(produced, acknowledged=produced.acknowledged + 100_000)

    monkeypatch.setattr(demo, "_produce_and_kill", claim_more)
    result = in_process(tmp_path / "log")
    assert result.exit_code == 1
    assert re.search(r"the check failed: [\d,]+ acknowledged messages did not survive", result.stderr)
    assert "none lost" not in result.stdout


def add_to_log(message):
    async def add(directory):
        async with open_topic(directory) as topic:
            await topic.storage.append_message(message(topic.storage.next_offset))

    return add


@pytest.mark.parametrize(
    "message",
    [
        lambda _: StreamMessage(b"somebody else's"),
        lambda n: demo_message(n - 1),
        lambda n: demo_message(n)._replace(request_id=0),
    ],
    ids=["foreign", "repeated", "one field changed"],
)
def test_the_demo_fails_when_a_message_is_not_the_one_that_was_stored(tmp_path, monkeypatch, message):
    produce = demo._produce_and_kill

    def spoil(directory, *args):
        produced = produce(directory, *args)
        asyncio.run(add_to_log(message)(directory))
        return produced

    monkeypatch.setattr(demo, "_produce_and_kill", spoil)
    result = in_process(tmp_path / "log")
    assert result.exit_code == 1
    assert "is not the one that was stored there" in result.stderr


def test_the_demo_fails_when_a_reader_gets_something_else_than_was_written(tmp_path, monkeypatch):
    add = demo.PayloadSum.add

    def change_one(self, messages, start):
        changed = [m._replace(payload=b"changed") if m.offset == 1500 else m for m in messages]
        add(self, changed, start)

    monkeypatch.setattr(demo.PayloadSum, "add", change_one)
    result = in_process(tmp_path / "log")
    assert result.exit_code == 1
    assert "read other payloads than those that were stored" in result.stderr


def test_the_demo_fails_when_its_files_are_damaged_afterwards(tmp_path, monkeypatch):
    check = demo.verify_with_bar

    def damage(directory, file_name):
        path = max(directory.glob("wal-*.log"))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        return check(directory, file_name)

    monkeypatch.setattr(demo, "verify_with_bar", damage)
    result = in_process(tmp_path / "log")
    assert result.exit_code == 1
    assert "is corrupt at byte" in result.stderr


def damage_object(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [damage_object, lambda path: path.unlink()], ids=["damaged", "missing"])
def test_the_demo_fails_when_an_object_is_harmed_once_the_log_is_pruned(tmp_path, monkeypatch, harm):
    prune = demo_tiers._prune

    async def prune_and_harm(topic):
        await prune(topic)
        harm(object_files(tmp_path / "data")[0])

    monkeypatch.setattr(demo_tiers, "_prune", prune_and_harm)
    result = in_process(tmp_path / "data")
    assert result.exit_code == 1
    assert "data-00000000000000000000-" in result.stderr
    assert "none lost" not in result.stdout


def test_the_demo_fails_when_the_reader_across_tiers_gets_another_message(tmp_path, monkeypatch):
    def change_one(messages, start):
        check_messages([m._replace(schema_version=9) if m.offset == 1500 else m for m in messages], start)

    monkeypatch.setattr(demo_tiers, "check_messages", change_one)
    result = in_process(tmp_path / "data")
    assert result.exit_code == 1
    assert "the message at offset 1500 is not the one that was stored there" in result.stderr


def test_a_hole_and_a_repetition_are_seen_by_every_check():
    good = [demo_message(number) for number in range(40)]
    check_messages(good, 0)
    for bad in (good[:7] + good[8:], good[:7] + good[6:], good[::-1]):
        with pytest.raises(CheckFailedError, match=r"offset \d+ was expected, and offset \d+ was read"):
            check_messages(bad, 0)
        with pytest.raises(CheckFailedError):
            demo.PayloadSum().add(bad, 0)


def test_a_killed_writer_has_told_nothing_but_the_truth_and_leaves_a_log_that_opens(tmp_path):
    for round_number in range(2):
        log = tmp_path / str(round_number)
        with subprocess.Popen([*WRITER, str(log)], stdout=subprocess.PIPE) as writer:
            first = writer.stdout.read(ACKNOWLEDGED.size * (1 + 40 * round_number))
            writer.kill()
            rest = writer.stdout.read()
        assert writer.returncode == -signal.SIGKILL
        said = first + rest
        answers = list(ACKNOWLEDGED.iter_unpack(said[: len(said) - len(said) % ACKNOWLEDGED.size]))
        assert [start for start, _ in answers] == [0, *(stop for _, stop in answers[:-1])]

        async def look(log=log):
            async with open_topic(log) as topic:
                return topic.storage.next_offset

        assert asyncio.run(look()) >= answers[-1][1]


def test_the_writer_ends_when_nobody_reads_its_reports(tmp_path):
    with subprocess.Popen([*WRITER, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        assert writer.stdout.read(ACKNOWLEDGED.size)
        writer.stdout.close()
        assert writer.stderr.read() == b""
        assert writer.wait(LIMIT_S) == 0


def test_the_writer_refuses_a_log_that_has_an_owner_with_the_owners_code(tmp_path):
    OsFiles().make_directory(log_directory(tmp_path))
    lock = OsFiles().lock(log_directory(tmp_path))
    try:
        done = subprocess.run([*WRITER, str(tmp_path)], capture_output=True, timeout=LIMIT_S, check=False)
    finally:
        lock.release()
    assert done.returncode == 4
    assert done.stderr.startswith(b"ister: directory ")
    assert b"Traceback" not in done.stderr


def first_of(log_file):
    return int(log_file.stem.split("-")[2])


def stop_of(object_file):
    return int(object_file.stem.split("-")[2])


def test_a_log_can_be_verified_and_dumped_while_a_writer_fills_rotates_and_prunes_it(tmp_path):
    names, log = FileNames.of("wal.log"), log_directory(tmp_path)
    stops = []
    with subprocess.Popen([*WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        try:
            for _ in range(6):
                assert writer.stdout.read(ACKNOWLEDGED.size * 400), "the writer is at work"
                report = verify_directory(log, names, lambda _done, _total: None)
                assert report.problems == []
                stops.append(report.present[-1].stop)
                last = log / report.present[-1].name
                dumped = CliRunner().invoke(app, ["wal", "dump", str(last), "-o", "json", "--from", str(stops[-1] - 3)])
                assert dumped.exit_code == 0
                offsets = [json.loads(line)["offset"] for line in dumped.stdout.splitlines()]
                start = max(report.present[-1].first, stops[-1] - 3)
                assert offsets[:1] in ([], [start])  # a file that has just been made may still be empty
                uploaded = max((stop_of(path) for path in object_files(tmp_path)), default=0)
                for sealed, following in pairwise(sorted(log.glob("wal-*.log"))[:-1]):
                    if first_of(following) <= uploaded:
                        sealed.unlink()
        finally:
            writer.kill()
    assert stops == sorted(set(stops))
    assert verify_directory(log, names, lambda _done, _total: None).problems == []
