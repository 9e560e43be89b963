"""A log that another process is writing: killed, opened again, and looked into meanwhile."""

import asyncio
import json
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner

from crash.topic_writer import ACKNOWLEDGED, REFUSED, log_directory, object_files, open_topic
from ister.cli.app import app
from ister.offline.verify_log import verify_directory
from ister.ports.files.files import OsFiles
from ister.wal.directory import FileNames

LIMIT_S = 120
WRITER = [sys.executable, str(Path(__file__).parent / "topic_writer.py")]


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    yield
    structlog.reset_defaults()


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
            async with open_topic(log) as storage:
                return storage.next_offset

        assert asyncio.run(look()) >= answers[-1][1]


def test_a_log_that_has_an_owner_is_refused_to_another_process(tmp_path):
    OsFiles().make_directory(log_directory(tmp_path))
    lock = OsFiles().lock(log_directory(tmp_path))
    try:
        done = subprocess.run([*WRITER, str(tmp_path)], capture_output=True, timeout=LIMIT_S, check=False)
    finally:
        lock.release()
    assert done.returncode == REFUSED
    assert done.stderr.startswith(b"directory ")


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
