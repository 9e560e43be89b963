"""Read a topic's messages from whichever tier has them, beside a broker that may be moving them at that moment.

What is pruned from the log while we read is in objects by then: look again, and go on at the same offset.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING

from ister.cli.display import bars, many, notice, say
from ister.cli.exits import InputError
from ister.cli.topics_look import look, looking
from ister.cloud import CloudReader
from ister.core.errors import (
    IsterError,
    MissingFileError,
    MissingObjectError,
    MissingSpanError,
    OffsetOutOfRangeError,
)
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from ister.ports.files import OsFiles
from ister.storage.tiers import ObjectTier, TieredReader
from ister.wal import WalConfig
from ister.wal.view import LogView

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from ister.cli.read_lines import MessageLines
    from ister.cli.topics_look import Seen, Sources
    from ister.config import Config
    from ister.core.message import StreamMessage

TRIES_WITHOUT_PROGRESS = 10


def read_topic(config: Config, topic: str, start: int | None, stop: int | None, shown: MessageLines) -> None:
    """Write the messages [start, stop); from the oldest and to the log's current end, unless told otherwise."""
    if start is not None and stop is not None and start > stop:
        raise InputError(f"--from {start}", f"lies behind --to {stop}; give a lower one")
    asyncio.run(_read(config, TopicName.parse(topic), start, stop, shown))


async def _read(config: Config, topic: TopicName, start: int | None, stop: int | None, shown: MessageLines) -> None:
    async with looking(config) as sources:
        seen = await look(sources, topic)
        if seen.problem is not None:
            raise seen.problem
        first = seen.start if start is None else start
        if not seen.start <= first <= seen.stop:
            raise OffsetOutOfRangeError(first, seen.start, seen.stop)
        last = seen.stop if stop is None else min(stop, seen.stop)
        for line in shown.heading:
            say(line)
        out = sys.stdout  # a bar puts itself in its place while it is shown
        with _bar(f"reading {topic}", last - first) as advance:
            async with aclosing(messages_between(sources, seen, first, last)) as batches:
                async for batch in batches:
                    out.writelines(f"{line}\n" for message in batch for line in shown.lines(message))
                    advance(len(batch))
        if stop is not None and stop > last:
            notice(f"The log ends at offset {last}: {many(max(0, last - first), 'message')} read.")


async def messages_between(sources: Sources, seen: Seen, start: int, stop: int) -> AsyncGenerator[list[StreamMessage]]:
    """Give the messages [start, stop) in order, each once."""
    at, tries = start, 0
    while at < stop:
        reader = _reader(sources, seen, at)
        try:
            while at < stop:
                batch = [message for message in await reader.read() if message.offset < stop]
                if not batch:
                    return
                at, tries = batch[-1].offset + 1, 0
                yield batch
        except (MissingSpanError, MissingFileError, MissingObjectError, OffsetOutOfRangeError) as error:
            tries += 1
            seen = await _look_again(sources, seen, tries, error)
        finally:
            await reader.close()


async def _look_again(sources: Sources, seen: Seen, tries: int, error: IsterError) -> Seen:
    """Return how the tiers are now; the error stands when they are as they were."""
    again = await look(sources, seen.topic)
    if again.problem is not None:
        raise again.problem
    if _places(again) == _places(seen) or tries > TRIES_WITHOUT_PROGRESS:
        raise error
    return again


def _places(seen: Seen) -> tuple[int, ...]:
    log_start = -1 if seen.log is None else seen.log.start_offset
    return (seen.generation, seen.objects.start, seen.objects.stop, log_start, seen.upto)


def _reader(sources: Sources, seen: Seen, start: int) -> TieredReader:
    log = seen.log
    if log is None:
        # As the next owner would: everything is in objects and the table, and the log goes on where they end.
        log = LogView(OsFiles(), WalConfig(topic=str(seen.topic)), seen.stop)
    if start < log.start_offset and start >= seen.upto:
        sources.check_store()
    tier = ObjectTier(CloudReader(sources.store, seen.catalog), None, seen.objects)
    return TieredReader(log, tier, StartPosition.offset(start), seen.table)


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how far reading is, unless the messages themselves go to the screen."""
    progress = bars()
    progress.disable = progress.disable or sys.stdout.isatty()
    with progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
