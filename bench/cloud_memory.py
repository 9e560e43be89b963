"""Memory over idle while a whole backlog is uploaded or read, in a process of its own.

Run by bench/cloud.py. Idle means: everything is imported, compiled and opened, a hundred messages were uploaded and read, and
the unused heap was trimmed, so that it hides nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import shutil
import sys
from pathlib import Path

import structlog

from cloud_setup import FILE_BYTES, TOPIC, log_config, message_of, objects_of, verify_messages
from ister.cloud import CloudReader, ObjectCatalog
from ister.ports.metadata import SqliteMetadata
from ister.ports.objects import FsStore
from ister.wal import Wal


def memory_mib(field: str) -> float:
    """Return VmRSS (now) or VmHWM (the maximum since `forget_peak`) of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def forget_peak() -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


async def upload(scratch: Path) -> tuple[float, float, float]:
    """Upload the log; return memory at idle, its peak in the first quarter, and its peak."""
    wal = await Wal.with_config(log_config(scratch / "log", FILE_BYTES))
    async with objects_of(wal, scratch / "upload-memory") as objects:
        await objects.uploader.recover(log_is_open=True)
        forget_peak()
        idle = memory_mib("VmRSS")
        uploading = asyncio.create_task(objects.uploader.drain())
        await objects.uploader.uploaded.wait(wal.next_offset // 4)
        early = memory_mib("VmHWM")
        await uploading
        peak = memory_mib("VmHWM")
        assert objects.uploader.uploaded.value == wal.next_offset
        objects.verify_bytes()
    await wal.close()
    return idle, early, peak


async def read(scratch: Path) -> tuple[float, float, float]:
    """Read the uploaded objects; return the same three figures."""
    metadata = await SqliteMetadata.open(scratch / "seek" / "metadata.db", read_only=True)
    catalog = ObjectCatalog(metadata, "/danube-data", TOPIC, 1)
    last = await catalog.last()
    forget_peak()
    idle = memory_mib("VmRSS")
    early, seen = 0.0, 0
    stream = CloudReader(FsStore(scratch / "seek" / "objects"), catalog).open(0, last.stop)
    while messages := await stream.read():
        assert messages[0].offset == seen
        seen += len(messages)
        if not early and seen >= last.stop // 4:
            early = memory_mib("VmHWM")
    peak = memory_mib("VmHWM")
    assert seen == last.stop, f"{seen} of {last.stop} messages came"
    await metadata.close()
    return idle, early, peak


async def main(what: str, scratch: Path) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    small = await Wal.with_config(log_config(scratch / "warm-log", FILE_BYTES))
    await small.append_batch([message_of(number) for number in range(100)])
    async with objects_of(small, scratch / "warm") as objects:
        await objects.uploader.drain()
        await verify_messages(objects.reader.open(0, small.next_offset), range(small.next_offset))
    await small.close()
    shutil.rmtree(scratch / "warm-log")
    idle, early, peak = await (upload if what == "upload" else read)(scratch)
    print(json.dumps({"idle": idle, "early": early - idle, "peak": peak - idle}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
