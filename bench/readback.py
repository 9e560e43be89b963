"""Measure reading a topic back from its table against floors of the same run: a million messages, alternating rounds.

The result of every round is read again and verified. The last line is one JSON object; docs/performance.md
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
from urllib.parse import urlparse

import structlog

import readback_floor
import readback_memory
from figures import Figures, show
from ister.core.frames.warm import warm
from ister.core.offsets import StartPosition
from ister.lake.topic_reader import TopicReader
from ister.storage.wal_storage import WalStorage
from ister.wal import Wal
from readback_setup import (
    fill_log,
    fill_table,
    log_config,
    read_batches,
    table_in,
    verify_batch,
    verify_messages,
)

MESSAGES = 1_000_000
FILES = 10
ROUNDS = 3
SEEKS = 200
SEEK_ROWS = 1000
SEEK_FILES = (100, 1000)
HISTORIES = (250_000, 500_000, MESSAGES)
"""The first has fewer files than are prefetched, and takes less memory for that alone."""


# --- reading ----------------------------------------------------------------------------------------------------------


async def read_all(reader, count: int) -> float:
    """Read `count` messages; return seconds."""
    seen = 0
    began = time.perf_counter()
    while seen < count:
        seen += len(await reader.read())
    spent = time.perf_counter() - began
    assert seen == count, f"{seen} of {count} messages came"
    return spent


async def verify(reader, count: int) -> None:
    at = 0
    while at < count:
        at = verify_messages(await reader.read(), at)
    assert at == count


async def log_round(log: Path, figures: Figures) -> None:
    """Replay a newly opened log, entirely from its files."""
    storage = WalStorage.from_wal(await Wal.with_config(log_config(log)))
    gc.collect()
    spent = await read_all(await storage.create_reader(StartPosition.offset(0)), MESSAGES)
    figures.note("log_replay_msgs_s", MESSAGES / spent)
    await verify(await storage.create_reader(StartPosition.offset(0)), MESSAGES)
    await storage.close()


async def arrow_round(directory: Path, figures: Figures) -> None:
    table = table_in(directory)
    await table.look()
    files = [urlparse(part.path).path for part in table.plan_scan(None, table.end.snapshot_id).added]
    gc.collect()
    spent, rows = readback_floor.scan(files)
    assert rows == MESSAGES
    figures.note("floor_scan_rows_s", rows / spent)
    gc.collect()
    began = time.perf_counter()
    seen = 0
    async for batch in read_batches(table, MESSAGES):
        seen += batch.num_rows
    figures.note("lake_arrow_rows_s", seen / (time.perf_counter() - began))
    at = 0
    async for batch in read_batches(table, MESSAGES):
        at = verify_batch(batch, at)
    assert at == seen == MESSAGES
    table.reads.close()


async def replay_round(directory: Path, figures: Figures) -> None:
    table = table_in(directory)
    gc.collect()
    reader = TopicReader(table)
    figures.note("lake_replay_msgs_s", MESSAGES / await read_all(reader, MESSAGES))
    await reader.close()
    reader = TopicReader(table)
    await verify(reader, MESSAGES)
    await reader.close()
    table.reads.close()


# --- seeking ----------------------------------------------------------------------------------------------------------


async def seek(directory: Path, files: int, figures: Figures) -> None:
    """Read the first message at random offsets; the table is open, and refreshed each time."""
    table = table_in(directory)
    await table.look()
    places = random.Random(files)
    gc.collect()
    for _ in range(SEEKS):
        offset = places.randrange(files * SEEK_ROWS)
        began = time.perf_counter()
        reader = TopicReader(table, offset)
        messages = await reader.read()
        figures.note(f"seek_ms_{files}", (time.perf_counter() - began) * 1e3)
        await reader.close()
        verify_messages(messages[:1], offset)
    table.reads.close()


# --- memory -----------------------------------------------------------------------------------------------------------


async def memory(directory: Path, count: int, figures: Figures) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, readback_memory.__file__, str(directory), str(count), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await child.communicate()
    assert child.returncode == 0, "measuring memory failed"
    figures.note(f"peak_mb_{count // 1000}k", float(out.split()[-1]))


# --- all of it --------------------------------------------------------------------------------------------------------


async def measure(scratch: Path) -> Figures:
    figures = Figures()
    log, whole = scratch / "log", scratch / "whole"
    show(f"making a log and a table of {MESSAGES:,} messages")
    await fill_log(log, MESSAGES)
    await fill_table(whole, log, files=FILES, rows_each=MESSAGES // FILES)
    gc.collect()
    gc.freeze()
    for number in range(ROUNDS):
        show(f"reading, round {number + 1} of {ROUNDS}")
        await arrow_round(whole, figures)
        await log_round(log, figures)
        await replay_round(whole, figures)
    for files in SEEK_FILES:
        show(f"making a table of {files} files")
        await fill_table(scratch / str(files), log, files=files, rows_each=SEEK_ROWS, files_a_commit=5)
    for _ in range(ROUNDS):
        for files in SEEK_FILES:
            await seek(scratch / str(files), files, figures)
    show("measuring memory")
    for count in HISTORIES:
        await memory(whole, count, figures)
    return figures


def report(figures: Figures) -> dict[str, float]:
    """Print every figure, and return the JSON figures."""
    few, many = (figures.median(f"seek_ms_{files}") for files in SEEK_FILES)
    _, short, long = (figures.median(f"peak_mb_{count // 1000}k") for count in HISTORIES)
    ratios = {
        "arrow_ratio": figures.median("lake_arrow_rows_s") / figures.median("floor_scan_rows_s"),
        "replay_ratio": figures.median("lake_replay_msgs_s") / figures.median("log_replay_msgs_s"),
        "seek_ratio": many / few,
        "peak_ratio": long / short,
    }
    print(f"{'':28}{'median':>14}{'least':>14}{'most':>14}")
    for name, (least, median, most) in figures.spread().items():
        digits = 0 if name.endswith("_s") else 2
        print(f"{name:28}{median:>14,.{digits}f}{least:>14,.{digits}f}{most:>14,.{digits}f}")
    for name, value in ratios.items():
        print(f"{name:28}{value:>14.2f}")
    medians = {
        name: round(median, None if name.endswith("_s") else 2) for name, (_, median, _) in figures.spread().items()
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
    print(json.dumps({"bench": "readback", **report(figures)}))


if __name__ == "__main__":
    asyncio.run(main())
