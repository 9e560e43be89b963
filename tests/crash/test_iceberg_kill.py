"""kill -9 of a process with IcebergStorage: what was stored is there, and two subscriptions go on exactly where they were."""

import asyncio
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.compute as pc
import pytest
from iceberg_writer import ACKED, BEGUN, FIRST, REPORT, STORED, SUBSCRIPTIONS, TOPIC, message_of, open_storage

from ister.core.names import TopicName

HERE = Path(__file__).parent
PATIENCE_S = 120.0
ALL = {(STORED, 0), (ACKED, 0), (ACKED, 1)}


def one_life(directory, rng):
    """Let a process live until all three of its tasks have done something, and a little longer; returns its reports."""
    writer = subprocess.Popen(
        [sys.executable, "-W", "error::RuntimeWarning", HERE / "iceberg_writer.py", directory],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(HERE.parent)},
    )
    data = b""
    began, until = time.monotonic(), None
    try:
        while until is None or time.monotonic() < until:
            left = max(0.0, (until or began + PATIENCE_S) - time.monotonic())
            ready, _, _ = select.select([writer.stdout], [], [], left)
            if ready:
                more = os.read(writer.stdout.fileno(), 1 << 16)
                assert more, f"the writer ended with {writer.wait()}"
                data += more
            elif until is None:
                raise AssertionError(f"the writer did too little in {PATIENCE_S:g} s")
            if until is None and {(what, number) for what, number, _ in whole(data)} >= ALL:
                until = time.monotonic() + rng.random() * 2
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    while more := os.read(writer.stdout.fileno(), 1 << 16):
        data += more
    writer.stdout.close()
    return whole(data)


def whole(data):
    return list(REPORT.iter_unpack(data[: len(data) // REPORT.size * REPORT.size]))


def last(reports, what, number):
    return max((offset for kind, who, offset in reports if (kind, who) == (what, number)), default=0)


async def check_all(directory, stored, acked, begun):
    storage, _, lake = open_storage(directory)
    try:
        stop = await storage.get_write_position(TOPIC)
        assert stop >= stored, "what was stored is there"
        for number, subscription in enumerate(SUBSCRIPTIONS):
            stream = await storage.create_subscription_stream("default", TOPIC, subscription)
            assert acked[number] <= stream.cursor <= begun[number], "acknowledged is not delivered again, the rest is"
            async with asyncio.timeout(PATIENCE_S):
                for expected in range(stream.cursor, stop):
                    message = await anext(stream)
                    assert (message.offset, message.payload) == (expected, message_of(expected).payload)
            await stream.close()
        await storage.shutdown()
        table = lake.find(TopicName("default", TOPIC), 1)
        rows = lake.catalog.load_table(table.identifier).scan().to_arrow()["topic_offset"]
        assert (len(rows), pc.count_distinct(rows).as_py(), table.upto(0)) == (stop, stop, stop)
    finally:
        lake.close()


@pytest.mark.slow
def test_two_subscriptions_resume_exactly_after_kill_9(tmp_path, count, tell):
    lives, rng = count(2, 30), random.Random(7)
    acked, begun = [0, 0], [0, 0]
    stored = 0
    for _ in range(lives):
        reports = one_life(tmp_path, rng)
        for number in range(2):
            first = next(offset for kind, who, offset in reports if (kind, who) == (FIRST, number))
            assert acked[number] <= first <= begun[number], "acknowledged is not delivered again, the rest is"
            acked[number] = max(acked[number], last(reports, ACKED, number))
            begun[number] = max(begun[number], last(reports, BEGUN, number))
        stored = max(stored, last(reports, STORED, 0))
    asyncio.run(check_all(tmp_path, stored, acked, begun))
    tell("F6", f"IcebergStorage killed {lives} times, {stored:,} messages stored, acknowledged below {acked}")
