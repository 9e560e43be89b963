"""Memory over idle while a table's first messages are read, in a process of its own; prints MiB.

Run by bench/readback.py. Idle means: everything is imported and compiled, and a few thousand messages were read.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import structlog

from cloud_memory import forget_peak, memory_mib
from ister.core.frames.warm import warm
from ister.lake.topic_reader import TopicReader
from readback_setup import table_in


async def grown(directory: Path, count: int) -> float:
    """Read `count` messages; return the growth of memory."""
    table = table_in(directory)
    first = TopicReader(table)
    await first.read()
    await first.close()
    forget_peak()
    idle = memory_mib("VmRSS")
    reader = TopicReader(table)
    while reader.next_offset < count:
        await reader.read()
    peak = memory_mib("VmHWM")
    await reader.close()
    table.reads.close()
    return peak - idle


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    warm()
    print(asyncio.run(grown(Path(sys.argv[1]), int(sys.argv[2]))))
