"""The examples run as a user runs them: in a process of their own, and one of them on a real broker."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from interop.broker import Broker

EXAMPLES = Path(__file__).parents[2] / "examples"


def command(example, *words):
    return [sys.executable, "-W", "error", EXAMPLES / example, *words]


def lines_of(example, *words):
    done = subprocess.run(
        command(example, *words),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_the_specifications_wiring_runs_from_python():
    assert lines_of("wal_wiring.py") == [
        "stored before anyone reads: offsets [0, 1, 2]",
        "stored while a reader waits at the end: offsets [3]",
        "the waiting reader got: ['four']",
        "replayed from offset 1: [(1, 'two'), (2, 'three'), (3, 'four')]",
        "billing acknowledged offset 2 and goes on at 3",
        "opened again: billing goes on at 3, with 'four'",
    ]


def test_a_topic_with_objects_runs_from_python_and_outlives_its_log():
    assert lines_of("topics_with_objects.py") == [
        "stored, and in an object: offsets [0, 1, 2]",
        "pruned: the log starts at 3, the topic at 0",
        "stored, and in an object: offsets [3]",
        "one reader over both tiers: ['one', 'two', 'three', 'four']",
        "the log is lost: the topic goes on at 4, and has ['one', 'two', 'three', 'four']",
    ]


@pytest.fixture(scope="module")
def broker():
    with Broker() as found:
        yield found


@pytest.mark.slow
def test_the_official_client_produces_consumes_and_acknowledges(broker):
    for start in (0, 5):  # the second time, on the topic and the subscription of the first
        *lines, last = lines_of("produce_consume.py", "--broker", broker.url, "--orders", "5", "--pause-ms", "0")
        found = [re.fullmatch(r"order \d+-(\d) is at offset (\d+), acknowledged", line).groups() for line in lines]
        assert found == [(str(number), str(start + number)) for number in range(5)]
        assert last == "all 5 orders were consumed and acknowledged"


@pytest.mark.slow
def test_the_official_client_goes_on_through_kill_nine_and_restart_of_its_broker(broker):
    words = ("--broker", broker.url, "--orders", "300", "--pause-ms", "20")
    pipe = subprocess.PIPE
    with subprocess.Popen(command("produce_consume.py", *words), stdout=pipe, stderr=pipe, text=True) as program:
        try:
            said = [program.stdout.readline() for _ in range(20)]
            broker.kill()
            assert program.poll() is None, "it has work left, and no broker"
            broker.start()
            rest, complaints = program.communicate(timeout=120)
        finally:
            program.kill()
    assert (program.returncode, complaints) == (0, "")
    lines = [*said, *rest.splitlines(keepends=True)]
    acknowledged = re.findall(r"^order \d+-(\d+) is at offset \d+, acknowledged$", "".join(lines), re.MULTILINE)
    assert sorted(map(int, acknowledged)) == list(range(300)), "each of them, once"
    assert lines[-1] == "all 300 orders were consumed and acknowledged\n"
