"""The specification's usage of IcebergStorage, with the real child on Spark; then its table, read by another engine."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyiceberg.catalog import load_catalog

from ister import IcebergStorage
from ister.config import load
from ister.config.catalog import catalog_properties
from ister.core.message import StreamMessage
from parts.counts import LONG

PATIENCE_S = 150.0
STORED = 1000


def children():
    """Return this process's pipelines."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"pipeline\0run" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except (OSError, ValueError):
            continue
    return found


def payload(offset):
    return b"message %d" % offset


async def use(data_dir):
    storage = IcebergStorage(data_dir=data_dir, drain_timeout_s=PATIENCE_S)
    messages = [StreamMessage(payload(n), request_id=n, attributes={"n": str(n)}) for n in range(STORED)]
    await storage.store("my-topic", messages[:600])
    await storage.initialize_topic("my-topic")
    stats = await storage.get_topic_stats("my-topic")
    assert (stats.message_count, stats.log.stop) == (600, 600)
    assert stats.bytes_stored > 0

    stream = await storage.create_subscription_stream("default", "my-topic", "billing")
    await storage.store("my-topic", messages[600:])
    seen = []
    async with asyncio.timeout(PATIENCE_S):
        while len(seen) < STORED:
            seen += [message.payload for message in await stream.read()]
    assert seen == [payload(n) for n in range(STORED)]
    await stream.ack(299)
    (child,) = children()
    os.kill(child, signal.SIGKILL)  # it holds nothing that matters: the next one goes on
    await storage.shutdown()
    assert children() == []


async def use_again(data_dir):
    """After a restart everything is known: positions, the table's end, the subscription's place, and tiers."""
    storage = IcebergStorage(data_dir=data_dir, drain_timeout_s=PATIENCE_S)
    try:
        assert await storage.list_topics() == ["/default/my-topic"]
        assert await storage.get_write_position("my-topic") == STORED
        assert await storage.get_committed_position("my-topic") == STORED
        stats = await storage.get_topic_stats("my-topic")
        files = list((data_dir / "warehouse").rglob("*.parquet"))
        assert (stats.table.stop, stats.table.size) == (STORED, sum(path.stat().st_size for path in files))
        async with asyncio.timeout(PATIENCE_S):
            stream = await storage.create_subscription_stream("default", "my-topic", "billing")
            assert [(await anext(stream)).offset for _ in range(700)] == list(range(300, 1000))
            # Of a topic that is only in its table, another subscription gets everything, too.
            fresh = await storage.create_subscription_stream("default", "my-topic", "audit")
            assert [(await anext(fresh)).payload for _ in range(STORED)] == [payload(n) for n in range(STORED)]
    finally:
        await storage.shutdown()


def test_the_specifications_usage_fills_a_table_exactly_once(tmp_path):
    asyncio.run(use(tmp_path))
    name, properties = catalog_properties(load(None, tmp_path, {}).config)
    catalog = load_catalog(name, **properties)
    table = catalog.load_table("default.my_topic")
    rows = table.scan().to_arrow().sort_by("topic_offset")
    offsets = rows["topic_offset"]
    assert (len(offsets), pc.count_distinct(offsets).as_py(), offsets[-1].as_py()) == (STORED, STORED, STORED - 1)
    assert rows["payload"].to_pylist() == [payload(n) for n in range(STORED)]
    catalog.close()

    for path in [*(tmp_path / "wal").rglob("wal-*.log"), *(tmp_path / "objects").rglob("*.dnb")]:
        path.unlink()
    asyncio.run(use_again(tmp_path))


@pytest.mark.skipif(not LONG, reason="the test above does the same and more; make test-long runs the example, too")
def test_the_example_runs(tmp_path):
    example = Path(__file__).parents[2] / "examples" / "iceberg_storage.py"
    done = subprocess.run(
        [sys.executable, example, tmp_path / "data"], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "stored at [0, 1, 2, 3, 4]"
    assert lines[-2:] == ["in the table below offset 5", "billing goes on with order 3"]
