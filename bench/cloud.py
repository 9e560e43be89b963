"""Measure the object tier against floors of the same run: 1 GiB of 200-byte messages, alternating rounds, medians.

The result of every round is read back and verified. The last line is one JSON object; docs/performance.md
explains the figures and their bottlenecks.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import structlog

import cloud_memory
import floors
import pacer
from cloud_setup import (
    BATCH,
    FILE_BYTES,
    MIB,
    PAYLOADS,
    Objects,
    fill,
    log_config,
    message_of,
    objects_of,
    verify_messages,
)
from figures import Figures, show
from ister.core.frames.warm import warm
from ister.core.offsets import StartPosition
from ister.core.tiers.selection import OffsetRange
from ister.storage.tiered_reader import ObjectTier
from ister.storage.wal_storage import WalStorage
from ister.wal import Wal

ROUNDS = 3
SEEKS = 300
QUIET_S = 4.0
WARM_UP = 200
BACKLOG_BYTES = 1024 * MIB
ROUND_BYTES = 256 * MIB


# --- uploading --------------------------------------------------------------------------------------------------------


async def upload_round(wal: Wal, scratch: Path, figures: Figures) -> None:
    async with objects_of(wal, scratch / "upload") as objects:
        await objects.uploader.recover(log_is_open=True)
        began = time.perf_counter()
        await objects.uploader.drain()
        spent = time.perf_counter() - began
        assert objects.uploader.uploaded.value == wal.next_offset
        figures.note("upload_mb_s", objects.size() / spent / 1e6)
        objects.verify_bytes()
        floor_put(objects, scratch / "floor", figures)


def floor_put(objects: Objects, root: Path, figures: Figures) -> None:
    """Put the same bytes as objects of the same sizes."""
    root.mkdir()
    spent = floors.put(str(root), ((f"bench/{path.name}", path.read_bytes()) for path in objects.paths()))
    figures.note("floor_put_mb_s", objects.size() / spent / 1e6)
    for path in objects.paths():
        assert (root / "bench" / path.name).read_bytes() == path.read_bytes()
    shutil.rmtree(root)


# --- producing meanwhile ----------------------------------------------------------------------------------------------


class Producer:
    """Appends a message for each timestamp from the pacer process, a thousand a second.

    Latency is measured from the timestamp, so a blocked event loop is included.
    """

    def __init__(self, wal: Wal) -> None:
        self._wal = wal
        self._next = wal.next_offset
        self._tasks: set[asyncio.Task[None]] = set()
        self.started = asyncio.Event()
        self.times_ms: list[float] = []
        self.offsets: list[int] = []

    async def run(self) -> None:
        """Produce until cancelled."""
        clock = await asyncio.create_subprocess_exec(
            sys.executable, str(Path(pacer.__file__)), stdout=asyncio.subprocess.PIPE
        )
        try:
            while True:
                asked = await clock.stdout.readexactly(pacer.STAMP.size)
                task = asyncio.create_task(self._append(self._next, *pacer.STAMP.unpack(asked)))
                self._next += 1
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            clock.kill()
            await clock.wait()
            await asyncio.gather(*self._tasks)

    async def _append(self, number: int, asked_ns: int) -> None:
        offset = await self._wal.append(message_of(number))
        self.times_ms.append((time.monotonic_ns() - asked_ns) / 1e6)
        self.offsets.append(offset)
        if len(self.offsets) == WARM_UP:
            self.started.set()

    async def verify(self) -> None:
        """Check that every message is stored at its offset."""
        assert self.offsets == list(range(self.offsets[0], self.offsets[0] + len(self.offsets)))
        reader = self._wal.create_reader(StartPosition.offset(self.offsets[0]))
        await verify_messages(reader, range(self.offsets[0], self.offsets[-1] + 1))


async def produce_round(wal: Wal, scratch: Path, figures: Figures) -> None:
    for name in ("alone", "uploading"):
        async with objects_of(wal, scratch / "produce") as objects:
            await objects.uploader.recover(log_is_open=True)
            gc.collect()
            producer = Producer(wal)
            producing = asyncio.create_task(producer.run())
            await producer.started.wait()
            producer.times_ms.clear()
            if name == "alone":
                await asyncio.sleep(QUIET_S)
            else:
                await objects.uploader.drain()
            producing.cancel()
            await asyncio.wait([producing])
            assert producing.cancelled(), f"producing ended by itself: {producing.exception()!r}"
            times = sorted(producer.times_ms)
            figures.note(f"produce_{name}_p50_ms", times[len(times) // 2])
            figures.note(f"produce_{name}_p99_ms", times[len(times) * 99 // 100])
            figures.note(f"produce_{name}_max_ms", times[-1])
            await producer.verify()
            objects.verify_bytes()


# --- reading ----------------------------------------------------------------------------------------------------------


def floor_scan(objects: Objects, figures: Figures) -> None:
    data = b"".join(path.read_bytes() for path in objects.paths()[:4])
    spent, count = floors.scan(data)
    figures.note("floor_scan_msgs_s", count / spent)


async def read_all(reader, count: int) -> float:
    """Read `count` messages, one at a time; return seconds."""
    began = time.perf_counter()
    seen = 0
    async for _ in reader:
        seen += 1
        if seen == count:
            break
    spent = time.perf_counter() - began
    assert seen == count, f"{seen} of {count} messages came"
    return spent


async def read_rounds(wal: Wal, scratch: Path, figures: Figures) -> None:
    """Read everything from objects; then half from objects and half from the log."""
    stop = wal.next_offset
    async with objects_of(wal, scratch / "read") as objects:
        await objects.uploader.drain()
        storage = WalStorage.from_wal(wal, ObjectTier(objects.reader, objects.uploader, OffsetRange(0, 0)))
        start = await storage.prune(stop // 2)
        assert 0 < start < stop, "the log has one half, objects have both"
        for number in range(ROUNDS):
            show(f"reading, round {number + 1} of {ROUNDS}")
            floor_scan(objects, figures)
            gc.collect()
            stream = objects.reader.open(0, stop)
            figures.note("cloud_read_msgs_s", stop / await read_all(stream, stop))
            await stream.close()
            await verify_messages(objects.reader.open(0, stop), range(stop))
            floor_scan(objects, figures)
            gc.collect()
            reader = await storage.create_reader(StartPosition.offset(0))
            figures.note("handoff_msgs_s", stop / await read_all(reader, stop))
            await reader.close()
            await verify_messages(await storage.create_reader(StartPosition.offset(0)), range(stop))
        await storage.close()


async def seek(objects: Objects, stop: int, figures: Figures) -> None:
    """Read one message at a time, each at a random offset."""
    places = random.Random(1)
    times_ms = []
    for _ in range(SEEKS):
        offset = places.randrange(stop)
        began = time.perf_counter()
        stream = objects.reader.open(offset, stop)
        message = await anext(stream)
        times_ms.append((time.perf_counter() - began) * 1e3)
        await stream.close()
        assert (message.offset, message.payload) == (offset, PAYLOADS[offset % BATCH])
    times_ms.sort()
    figures.note("seek_ms_p50", times_ms[SEEKS // 2])
    figures.note("seek_ms_p99", times_ms[SEEKS * 99 // 100])


async def memory(what: str, name: str, scratch: Path, figures: Figures) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, cloud_memory.__file__, what, str(scratch), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await child.communicate()
    assert child.returncode == 0, f"measuring the memory of {what} failed"
    found = json.loads(out.splitlines()[-1])
    figures.note(f"{name}_idle_mb", found["idle"])
    figures.note(f"{name}_quarter_mb", found["early"])
    figures.note(f"{name}_mb", found["peak"])


# --- all of it --------------------------------------------------------------------------------------------------------


async def measure(scratch: Path) -> Figures:
    figures = Figures()
    wal = await Wal.with_config(log_config(scratch / "small-log", FILE_BYTES // 8))
    await fill(wal, ROUND_BYTES)
    for number in range(ROUNDS):
        show(f"uploading, round {number + 1} of {ROUNDS}")
        await upload_round(wal, scratch, figures)
    # As the broker does after its start: a full collection of everything imported takes 60 to 100 ms.
    gc.collect()
    gc.freeze()
    await read_rounds(wal, scratch, figures)
    shutil.rmtree(scratch / "small-log")
    show("making a log of 1 GiB")
    wal = await Wal.with_config(log_config(scratch / "log", FILE_BYTES))
    await fill(wal, BACKLOG_BYTES)
    for number in range(ROUNDS):
        show(f"producing meanwhile, round {number + 1} of {ROUNDS}")
        await produce_round(wal, scratch, figures)
    show("seeking, and measuring memory")
    async with objects_of(wal, scratch / "seek") as objects:
        await objects.uploader.drain()
        await seek(objects, wal.next_offset, figures)
        await memory("read", "reader", scratch, figures)
    await wal.close()
    await memory("upload", "uploader", scratch, figures)
    return figures


def report(figures: Figures) -> dict[str, float]:
    """Print every figure, and return the JSON figures."""
    ratios = {
        "upload_ratio": figures.median("upload_mb_s") / figures.median("floor_put_mb_s"),
        "cloud_read_ratio": figures.median("cloud_read_msgs_s") / figures.median("floor_scan_msgs_s"),
        "produce_p99_ratio": figures.median("produce_uploading_p99_ms") / figures.median("produce_alone_p99_ms"),
    }
    print(f"{'':28}{'median':>14}{'least':>14}{'most':>14}")
    for name, (least, median, most) in figures.spread().items():
        digits = 0 if name.endswith("msgs_s") else 1 if name.endswith(("mb_s", "mb")) else 2
        print(f"{name:28}{median:>14,.{digits}f}{least:>14,.{digits}f}{most:>14,.{digits}f}")
    for name, value in ratios.items():
        print(f"{name:28}{value:>14.2f}")
    medians = {
        name: round(median, None if name.endswith("msgs_s") else 2) for name, (_, median, _) in figures.spread().items()
    }
    return {**medians, **{name: round(value, 3) for name, value in ratios.items()}}


async def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    warm()
    scratch = Path(tempfile.mkdtemp(prefix="ister-bench-", dir=os.environ.get("ISTER_BENCH_DIR", "/var/tmp")))
    try:
        figures = await measure(scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps({"bench": "cloud", **report(figures)}))


if __name__ == "__main__":
    asyncio.run(main())
