"""Decide what is told of all topics at a glance: from names and descriptions alone, so that it is quick."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ister.cli.display import many, megabytes, printable, say, tables
from ister.cli.topics_look import described, looking, topics_on_disk
from ister.ports.files import OsFiles
from ister.wal.directory import FileNames

if TYPE_CHECKING:
    from pathlib import Path

    from ister.cli.topics_look import Sources
    from ister.config import Config
    from ister.core.names import TopicName


@dataclass(frozen=True, slots=True)
class TopicLine:
    """One topic: its oldest offset, how far its objects reach, and its log's files."""

    topic: TopicName
    generation: int
    in_metadata: bool
    start: int
    uploaded: int
    log_files: int
    log_bytes: int


def list_topics(config: Config) -> list[TopicLine]:
    """Return every topic of metadata or disk, by name."""
    return asyncio.run(_list_topics(config))


async def _list_topics(config: Config) -> list[TopicLine]:
    async with looking(config) as sources:
        known = await sources.registry.all()
        on_disk = await asyncio.to_thread(topics_on_disk, sources.wal_root)
        lines = []
        for topic in sorted({*known, *on_disk}):
            record, newest = known.get(topic), on_disk.get(topic, 0)
            if record is not None and record.deleted and newest <= record.generation:
                continue
            generation = newest if record is None else max(newest, record.generation)
            lines.append(await _line(sources, topic, generation, in_metadata=record is not None))
        return lines


async def _line(sources: Sources, topic: TopicName, generation: int, *, in_metadata: bool) -> TopicLine:
    objects = await described(sources.catalog(topic, generation))
    directory, name = sources.directory(topic, generation), sources.topics.wal.file_name
    first, files, size = await asyncio.to_thread(_weigh, directory, FileNames.of(name))
    start = objects.start if objects.start < objects.stop else first
    return TopicLine(topic, generation, in_metadata, start, objects.stop, files, size)


def _weigh(directory: Path, names: FileNames) -> tuple[int, int, int]:
    """Return a log's first offset, and how many files and bytes it has; what is pruned meanwhile does not count."""
    try:
        segments = names.parse(directory, OsFiles().names(directory))
    except FileNotFoundError:
        return 0, 0, 0
    sizes = []
    for segment in segments:
        try:
            sizes.append(segment.path.stat().st_size)
        except FileNotFoundError:
            continue
    return segments[0].first if segments else 0, len(sizes), sum(sizes)


def show_table(lines: list[TopicLine]) -> None:
    """Write a row for each topic."""
    if not lines:
        say("There are no topics yet.")
        return
    console = tables()
    table = Table(box=SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    table.add_column("Topic", overflow="fold")
    for heading in ("Generation", "From offset", "Uploaded below", "Log files", "Log size"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for line in lines:
        table.add_row(
            Text(printable(str(line.topic))),
            f"{line.generation}",
            f"{line.start}",
            f"{line.uploaded}",
            f"{line.log_files:,}",
            megabytes(line.log_bytes),
            "" if line.in_metadata else Text("not in metadata", "yellow"),
        )
    console.print(table)
    say(f"{many(len(lines), 'topic')}. Next: ister tiers {lines[0].topic}")


def show_json(lines: list[TopicLine]) -> None:
    """Write one JSON object."""
    content = {
        "topics": [
            {
                "topic": str(line.topic),
                "generation": line.generation,
                "in_metadata": line.in_metadata,
                "start": line.start,
                "uploaded": line.uploaded,
                "log_files": line.log_files,
                "log_bytes": line.log_bytes,
            }
            for line in lines
        ]
    }
    say(json.dumps(content, separators=(",", ":")))
