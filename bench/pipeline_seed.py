"""Seed topics for bench/pipeline.py directly through the storage: gRPC would take an hour."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ister.config import load
from ister.runtime.compose import open_metadata, open_store, topics_config
from ister.storage.factory import WalStorageFactory

if TYPE_CHECKING:
    from pathlib import Path

BATCH = 50_000


def payloads(start: int, count: int, size: int) -> pa.Array:
    """Return payloads that hardly compress and contain their index."""
    rng = np.random.default_rng(start)
    data = rng.integers(32, 127, size=(count, size), dtype=np.uint8)
    numbers = np.arange(start, start + count)
    for place in range(10):
        data[:, 9 - place] = 48 + numbers // 10**place % 10
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def batch(start: int, count: int, size: int) -> pa.RecordBatch:
    """Return messages as a producer would have sent them."""
    return pa.RecordBatch.from_pydict(
        {
            "payload": payloads(start, count, size),
            "publish_time": pa.array(np.arange(count) + 1_760_000_000_000, pa.uint64()),
            "producer_id": pa.array(np.full(count, 7), pa.uint64()),
            "request_id": pa.array(np.arange(start, start + count), pa.uint64()),
            "producer_name": pa.array(["producer"] * count),
            "broker_addr": pa.array(["http://127.0.0.1:6650"] * count),
        }
    )


async def seed(data_dir: Path, topics: dict[str, int], size: int) -> None:
    """Append the given number of messages to each topic; the topics must exist, and no broker may run."""
    config = load(None, data_dir).config
    metadata, store = await open_metadata(config, read_only=False), open_store(config)
    factory = WalStorageFactory(topics_config(config), store=store, metadata=metadata)
    try:
        for topic, count in topics.items():
            storage = await factory.for_topic(topic)
            start = storage.next_offset
            for at in range(start, start + count, BATCH):
                await storage.wal.append_arrow(batch(at, min(BATCH, start + count - at), size))
    finally:
        await factory.shutdown(60.0)
        await metadata.close()
        await store.close()
