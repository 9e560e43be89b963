"""Messages as the log decodes them, made without a log."""

from __future__ import annotations

import time

import pyarrow as pa

from ister.core.columns import SCHEMA


def messages(start: int, stop: int) -> pa.RecordBatch:
    """Return messages [start, stop), appended now."""
    count = stop - start
    now = time.time_ns() // 1000
    return pa.RecordBatch.from_pydict(
        {
            "topic_offset": range(start, stop),
            "append_time": [now] * count,
            "publish_time": [now // 1000] * count,
            "producer_id": [7] * count,
            "request_id": range(start, stop),
            "schema_id": [None] * count,
            "schema_version": [None] * count,
            "producer_name": ["producer"] * count,
            "broker_addr": ["http://127.0.0.1:6650"] * count,
            "routing_key": [None] * count,
            "attributes": [[]] * count,
            "payload": [bytes(200)] * count,
            "frame_crc": [0] * count,
        },
        schema=SCHEMA,
    )
