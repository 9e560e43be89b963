"""Measure the log against floors of the same run: 200-byte and 1 KiB payloads, alternating rounds, medians.

The result of every round is read back and verified. The last line is one JSON object with the figures for
200 bytes; docs/performance.md explains them and their bottlenecks.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import structlog

import floors
from ister.core.frames.columns import batch_of, decode_batch, scan_run
from ister.core.frames.frame import encode_message
from ister.core.frames.warm import warm
from ister.core.message import MsgID, StreamMessage
from ister.core.offsets import StartPosition
from ister.wal import AckLevel, Wal, WalConfig

ROUNDS = 3
TASKS = 64
BATCH = 10_000
NAME, ADDR = "producer-1", "http://127.0.0.1:6650"
NAMES = (NAME.encode(), ADDR.encode())
MIB = 1024 * 1024


def messages_of(payloads: list[bytes]) -> list[StreamMessage]:
    return [
        StreamMessage(p, MsgID(7, "/default/bench", ADDR), n, 1_700_000_000_000, NAME) for n, p in enumerate(payloads)
    ]


def arrow_of(payloads: list[bytes]) -> pa.RecordBatch:
    count = len(payloads)
    return pa.record_batch(
        {
            "payload": pa.array(payloads, pa.binary()),
            "producer_id": pa.array([7] * count, pa.uint64()),
            "request_id": pa.array(range(count), pa.uint64()),
            "publish_time": pa.array([1_700_000_000_000] * count, pa.uint64()),
            "producer_name": pa.array([NAME] * count),
            "broker_addr": pa.array([ADDR] * count),
        }
    )


class Bench:
    """One payload size: its data, its scratch directory, and the figures of each round."""

    def __init__(self, size: int, count: int, scratch: Path) -> None:
        self.size = size
        self.scratch = scratch
        self.payloads = [os.urandom(size) for _ in range(count)]
        self.messages = messages_of(self.payloads)
        self.batches = [self.messages[at : at + BATCH] for at in range(0, count, BATCH)]
        self.arrows = [arrow_of(self.payloads[at : at + BATCH]) for at in range(0, count, BATCH)]
        self.figures: dict[str, list[float]] = {}

    def note(self, name: str, value: float) -> None:
        self.figures.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        return statistics.median(self.figures[name])

    async def open(self, name: str, **settings) -> Wal:
        shutil.rmtree(self.scratch / name, ignore_errors=True)
        return await Wal.with_config(
            WalConfig(dir=self.scratch / name, topic="/default/bench", max_bytes=1 << 40, **settings)
        )

    async def verify(self, wal: Wal, expected: list[bytes]) -> None:
        reader = wal.create_reader(StartPosition.offset(0))
        at = 0
        while at < wal.next_offset:
            for message in await reader.read():
                assert message.payload == expected[at % len(expected)], f"offset {at} came back changed"
                assert message.offset == at
                at += 1
        assert at == len(expected), f"{at} of {len(expected)} messages came back"

    # --- one round ----------------------------------------------------------------------------------------------------

    def floor_write(self) -> None:
        path = str(self.scratch / "floor")
        spent = floors.write(path, self.payloads, NAMES)
        self.note("floor_write_msgs_s", len(self.payloads) / spent)
        data = Path(path).read_bytes()
        assert decode_batch(data)["payload"].to_pylist() == self.payloads, "the floor writes our bytes"
        spent, count = floors.scan(data)
        assert count == len(self.payloads)
        self.note("floor_scan_msgs_s", count / spent)
        Path(path).unlink()

    async def append(self) -> None:
        wal = await self.open("append")
        count = len(self.messages) // TASKS

        async def task(start: int) -> None:
            for message in self.messages[start : start + count]:
                await wal.append(message)

        began = time.perf_counter()
        await asyncio.gather(*(task(n * count) for n in range(TASKS)))
        self.note("append_msgs_s", count * TASKS / (time.perf_counter() - began))
        assert wal.next_offset == count * TASKS
        reader = wal.create_reader(StartPosition.offset(0))
        seen: list[bytes] = []
        while len(seen) < wal.next_offset:
            seen += [m.payload for m in await reader.read()]
        assert sorted(seen) == sorted(self.payloads[: count * TASKS])
        await wal.close()

    async def append_batch(self) -> None:
        wal = await self.open("batch")
        began = time.perf_counter()
        for batch in self.batches:
            await wal.append_batch(batch)
        self.note("append_batch_msgs_s", len(self.messages) / (time.perf_counter() - began))
        await self.verify(wal, self.payloads)
        await wal.close()

    async def append_arrow(self) -> None:
        wal = await self.open("arrow")
        began = time.perf_counter()
        for batch in self.arrows:
            await wal.append_arrow(batch)
        self.note("append_arrow_rows_s", len(self.messages) / (time.perf_counter() - began))
        await self.verify(wal, self.payloads)
        await wal.close()

    async def replay(self) -> None:
        wal = await Wal.with_config(WalConfig(dir=self.scratch / "arrow", topic="/default/bench"))
        reader = wal.create_reader(StartPosition.offset(0))
        count = 0
        began = time.perf_counter()
        async for _ in reader:
            count += 1
            if count == len(self.messages):
                break
        self.note("replay_msgs_s", count / (time.perf_counter() - began))
        data = wal.segments()[0].path.read_bytes()
        began = time.perf_counter()
        rows = at = 0
        while at < len(data):
            piece = data[at : at + MIB]
            scan = scan_run(piece, first_offset=rows)
            batch = batch_of(piece, scan)
            rows += batch.num_rows
            at += scan.end
        self.note("arrow_rows_s", rows / (time.perf_counter() - began))
        assert rows == len(self.messages)
        assert batch["payload"].to_pylist() == self.payloads[-batch.num_rows :]
        await wal.close()

    async def latency(self) -> None:
        wal = await self.open("latency")
        times = []
        for message in self.messages[:5000]:
            began = time.perf_counter()
            await wal.append(message)
            times.append(time.perf_counter() - began)
        times.sort()
        self.note("ack_p50_us", times[len(times) // 2] * 1e6)
        self.note("ack_p99_us", times[len(times) * 99 // 100] * 1e6)
        await self.verify(wal, self.payloads[:5000])
        await wal.close()

    async def fsync(self) -> None:
        frame = encode_message(self.messages[0], 0, 0)
        path = str(self.scratch / "floor-sync")
        alone, together = 400, 150 * TASKS
        self.note("floor_sync_msgs_s", alone / floors.sync(path, frame, alone))
        wal = await self.open("fsync", sync_mode="none", level=AckLevel.FSYNC)
        began = time.perf_counter()
        for message in self.messages[:alone]:
            await wal.append(message)
        self.note("fsync_one_msgs_s", alone / (time.perf_counter() - began))
        numbers = iter(range(together))

        async def task() -> None:
            for n in numbers:
                await wal.append(self.messages[n % len(self.messages)])

        began = time.perf_counter()
        await asyncio.gather(*(task() for _ in range(TASKS)))
        self.note("fsync_group_msgs_s", together / (time.perf_counter() - began))
        assert wal.synced_offset == alone + together
        await wal.close()

    async def round(self) -> None:
        for step in (self.append, self.append_batch, self.append_arrow, self.replay, self.latency, self.fsync):
            self.floor_write()
            gc.collect()
            await step()

    def report(self) -> dict[str, float]:
        figures = {name: self.median(name) for name in self.figures}
        write, scan = figures["floor_write_msgs_s"], figures["floor_scan_msgs_s"]
        return {
            **{name: round(value, 1 if name.startswith("ack") else None) for name, value in figures.items()},
            "append_ratio": round(figures["append_msgs_s"] / write, 3),
            "append_batch_ratio": round(figures["append_batch_msgs_s"] / write, 3),
            "append_arrow_ratio": round(figures["append_arrow_rows_s"] / write, 3),
            "arrow_ratio": round(figures["arrow_rows_s"] / scan, 3),
            "replay_ratio": round(figures["replay_msgs_s"] / scan, 3),
            "fsync_group_ratio": round(figures["fsync_group_msgs_s"] / figures["fsync_one_msgs_s"], 1),
            "fsync_one_ratio": round(figures["fsync_one_msgs_s"] / figures["floor_sync_msgs_s"], 3),
        }


async def big_file(scratch: Path) -> dict[str, float]:
    """Open a 512 MiB active file, and replay it while measuring memory."""
    config = WalConfig(dir=scratch / "big", topic="/default/bench", max_bytes=1 << 40)
    wal = await Wal.with_config(config)
    batch = arrow_of([os.urandom(200) for _ in range(BATCH)])
    while wal.active_bytes < 512 * MIB:
        await wal.append_arrow(batch)
    stop = wal.next_offset
    await wal.close()
    began = time.perf_counter()
    wal = await Wal.with_config(config)
    opened = time.perf_counter() - began
    assert wal.next_offset == stop
    reader = wal.create_reader(StartPosition.offset(0))
    seen = 0
    peaks = []
    while seen < stop:
        seen += len(await reader.read())
        if seen >= stop // 4 * (len(peaks) + 1):
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    await wal.close()
    return {"open_512mib_s": round(opened, 2), "replay_rss_growth_mib": round((peaks[-1] - peaks[0]) / 1024, 1)}


async def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    warm()
    scratch = Path(tempfile.mkdtemp(prefix="ister-bench-", dir=os.environ.get("ISTER_BENCH_DIR", "/var/tmp")))
    try:
        big = await big_file(scratch)
        results = {}
        for size, count in ((1024, 50_000), (200, 200_000)):
            bench = Bench(size, count, scratch)
            gc.freeze()  # a real log has no such list of messages for the GC to traverse
            for number in range(ROUNDS):
                print(f"{size} bytes, round {number + 1} of {ROUNDS}", file=sys.stderr, flush=True)
                await bench.round()
            results[size] = bench.report()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"{'':24}{'1 KiB':>14}{'200 bytes':>14}")
    for name, value in results[200].items():
        print(f"{name:24}{results[1024][name]:>14,}{value:>14,}")
    print(json.dumps({"bench": "wal", **results[200], **big}))


if __name__ == "__main__":
    asyncio.run(main())
