"""Shared by the stages of bench/pipeline.py: a seeded broker, a session, a writer, process statistics."""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from broker import create_topic
from broker_process import BrokerProcess
from ister.client.storage import BrokerClient
from ister.config import load
from ister.config.catalog import catalog_properties
from ister.lake.catalog import LakeCatalog
from ister.lake.snapshot import wall_ms
from ister.pipeline.plan import Choice
from ister.pipeline.task import Reach
from ister.pipeline.topic_writer import TopicWriter, WriterSettings
from pipeline_seed import seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKEN = "bench"
CORES = 2
TARGET_FILE_BYTES = 64 << 20


@contextmanager
def seeded_broker(directory: Path, topics: dict[str, int], size: int) -> Iterator[BrokerProcess]:
    """Run a broker with seeded topics."""
    os.environ["ISTER_PIPELINE_TOKEN"] = TOKEN

    async def create(broker: BrokerProcess) -> None:
        for topic in topics:
            await create_topic(broker, topic)

    with BrokerProcess(directory) as broker:
        asyncio.run(create(broker))
    if any(topics.values()):
        asyncio.run(seed(directory / "data", topics, size))
    with BrokerProcess(directory) as broker:
        yield broker


def lake_in(directory: Path, now_ms: Callable[[], int] = wall_ms) -> LakeCatalog:
    """Open a separate lake."""
    directory.mkdir(parents=True, exist_ok=True)
    return LakeCatalog.open(*catalog_properties(load(None, directory).config), now_ms=now_ms)


@contextmanager
def writer_on(
    spark,
    broker: BrokerProcess,
    lake: LakeCatalog,
    *,
    only: tuple[str, ...] = (),
    kind: type[TopicWriter] = TopicWriter,
) -> Iterator[tuple[TopicWriter, BrokerClient]]:
    """Yield a registered writer."""
    client = BrokerClient(broker.target, TOKEN)
    settings = WriterSettings(
        Reach({}, "memory", "none", {}), choice=Choice(only), target_file_bytes=TARGET_FILE_BYTES, cores=CORES
    )
    writer = kind(spark, client, lake, settings)
    writer.start()
    try:
        yield writer, client
    finally:
        client.close()
        writer.close()


def verify(directory: Path, table: str, rows: int) -> None:
    """Check count = count distinct = rows, with an independent reader."""
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415  # not measured

    name, properties = catalog_properties(load(None, directory).config)
    found = load_catalog(name, **properties).load_table(table).scan(selected_fields=("topic_offset",)).to_arrow()
    counts = (found.num_rows, pc.count_distinct(found["topic_offset"]).as_py())
    assert counts == (rows, rows), f"{table} has {counts} rows and distinct offsets instead of {rows}"


# --- processes --------------------------------------------------------------------------------------------------------


def tree(pid: int) -> dict[int, str]:
    """Return a process and its descendants, with their command lines."""
    parents: dict[int, list[int]] = {}
    commands: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            commands[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (OSError, ValueError):
            continue
        parents.setdefault(parent, []).append(int(path.name))
    found, ahead = {}, [pid]
    while ahead:
        one = ahead.pop()
        found[one] = commands.get(one, "")
        ahead += parents.get(one, [])
    return found


def cpu_s(pids) -> float:
    """Return the CPU seconds of processes, with their ended children."""
    total = 0
    for pid in pids:
        with suppress(FileNotFoundError):  # it has ended; its parent reports it next time
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int, field: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), 0) * 1024 / 1e6


def worker_peak_mb() -> float:
    """Return the peak memory of our Python workers."""
    workers = [pid for pid, command in tree(os.getpid()).items() if "pyspark.daemon" in command]
    return max(memory_mb(pid, "VmHWM") for pid in workers)
