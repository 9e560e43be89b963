"""Test data of bench/readback.py: deterministic messages, a log, and its tables."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from ister.core.frames.columns import SCHEMA, batch_of
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from ister.lake.catalog import LakeCatalog
from ister.lake.columns import table_rows
from ister.lake.parquet import write_files
from ister.lake.topic_reader import TopicReader
from ister.lake.topic_table import TableReads
from ister.wal import AckLevel, Wal, WalConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from ister.lake.topic_table import LakeTopicTable

BATCH = 10_000
TOPIC = TopicName("default", "history")
WHOLE_BYTES = 1 << 30
_CHANCE = random.Random(1)
PAYLOADS = [_CHANCE.randbytes(200) for _ in range(BATCH)]
NAMES = [f"producer-{number * 8 // BATCH}" for number in range(BATCH)]
KEYS = [f"customer-{_CHANCE.randrange(1000)}" if _CHANCE.random() < 0.1 else None for _ in range(BATCH)]
ATTRIBUTES = [[("region", _CHANCE.choice("abc"))] if _CHANCE.random() < 0.1 else [] for _ in range(BATCH)]
ROWS = pa.record_batch(
    {
        "payload": pa.array(PAYLOADS, pa.binary()),
        "producer_id": pa.array(np.full(BATCH, 7, np.uint64)),
        "publish_time": pa.array(np.full(BATCH, 1_700_000_000_000, np.uint64)),
        "producer_name": pa.array(NAMES),
        "broker_addr": pa.array(["http://127.0.0.1:6650"] * BATCH),
        "routing_key": pa.array(KEYS, pa.string()),
        "attributes": pa.array(ATTRIBUTES, SCHEMA.field("attributes").type),
    }
)


def log_config(directory: Path) -> WalConfig:
    return WalConfig(dir=directory, topic=str(TOPIC), level=AckLevel.WAL)


async def fill_log(directory: Path, count: int) -> None:
    """Write a log of `count` messages, and close it, so that the next reader has no cache."""
    wal = await Wal.with_config(log_config(directory))
    while wal.next_offset < count:
        start = wal.next_offset
        ids = pa.array(np.arange(start, start + BATCH, dtype=np.uint64))
        await wal.append_arrow(ROWS.append_column("request_id", ids))
    await wal.close()


async def batches_of(directory: Path, count: int, rows_each: int) -> AsyncIterator[pa.RecordBatch]:
    """Yield the first messages of a log in the given number of batches."""
    wal = await Wal.with_config(log_config(directory))
    reader = wal.create_reader(StartPosition.offset(0))
    held: list[pa.RecordBatch] = []
    given = 0
    while given < count:
        held.append(batch_of(*await reader.read_frames()))
        while given < count and sum(batch.num_rows for batch in held) >= rows_each:
            (whole,) = pa.Table.from_batches(held).combine_chunks().to_batches()
            yield whole.slice(0, rows_each)
            held = [whole.slice(rows_each)]
            given += 1
    await wal.close()


def lake_in(directory: Path) -> LakeCatalog:
    directory.mkdir(parents=True, exist_ok=True)
    return LakeCatalog(
        SqlCatalog("ister", uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}/warehouse")
    )


async def fill_table(directory: Path, log: Path, *, files: int, rows_each: int, files_a_commit: int = 1) -> None:
    """Write the log's first messages to a table with the given number of data files, as the pipeline does."""
    lake = lake_in(directory)
    table = lake.table(TOPIC, 1)
    table.claim(1)
    written = []
    done = 0
    async for batch in batches_of(log, files, rows_each):
        written += write_files(
            table.io_properties, table.location, [table_rows(batch, 0)], partition=0, name=f"{done:08}",
            target_bytes=WHOLE_BYTES,
        )  # fmt: skip
        done += 1
        if done % files_a_commit == 0 or done == files:
            table.commit_add_files(written, {0: (table.upto(0), done * rows_each)})
            written = []
    assert table.upto(0) == files * rows_each, f"the table ends at {table.upto(0)}"
    lake.close()


def table_in(directory: Path) -> LakeTopicTable:
    return TableReads(lake_in(directory)).table(TOPIC, 1)


async def read_batches(table: LakeTopicTable, count: int) -> AsyncIterator[pa.RecordBatch]:
    """Read `count` messages of a table as Arrow batches."""
    reader = TopicReader(table)
    while reader.next_offset < count:
        yield await reader.read_batch()
    await reader.close()


def verify_batch(batch: pa.RecordBatch, start: int) -> int:
    """Check that a batch holds the messages from an offset on; return the offset after it."""
    stop = start + batch.num_rows
    numbers = np.arange(start, stop)
    expected = ROWS.take(pa.array(numbers % BATCH))
    assert (batch["topic_offset"].to_numpy() == numbers).all(), f"other offsets than {start} to {stop}"
    assert (batch["request_id"].to_numpy() == numbers).all(), f"other requests than {start} to {stop}"
    for name in ("payload", "producer_name", "routing_key", "attributes"):
        assert batch[name].equals(expected[name]), f"another {name} in {start} to {stop}"
    return stop


def verify_messages(messages, start: int) -> int:
    """Check that messages are those from an offset on; return the offset after them."""
    for number, message in enumerate(messages, start):
        at = number % BATCH
        assert message.offset == message.request_id == number, f"offset {message.offset} came where {number} was due"
        assert (message.payload, message.producer_name, message.routing_key) == (PAYLOADS[at], NAMES[at], KEYS[at])
        assert list(message.attributes.items()) == ATTRIBUTES[at], f"offset {number} came back changed"
    return start + len(messages)
