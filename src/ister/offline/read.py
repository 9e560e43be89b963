"""Reader of a topic's messages from all tiers, beside a broker that may be moving them meanwhile.

What is pruned from the log during the read is in objects by then: the reader refreshes its view and goes on at the same offset.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from ister.cloud import CloudReader
from ister.core.errors import (
    InputError,
    IsterError,
    MissingFileError,
    MissingObjectError,
    MissingOffsetsError,
    OffsetOutOfRangeError,
)
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from ister.core.tiers.selection import OffsetRange
from ister.offline.topic import open_sources, view_topic
from ister.ports.files.files import OsFiles
from ister.storage.tiered_reader import ObjectTier, TieredReader
from ister.wal import WalConfig
from ister.wal.read_only import LogView

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractContextManager

    from ister.config import Config
    from ister.core.message import StreamMessage
    from ister.offline.topic import Sources, TopicView

    Writing = Callable[[int], AbstractContextManager[Callable[[list[StreamMessage]], None]]]

REFRESHES_WITHOUT_PROGRESS_MAX = 10


def read_topic(config: Config, topic: str, start: int | None, stop: int | None, writing: Writing) -> OffsetRange:
    """Read the messages [start, stop), by default from the oldest to the log's current end; return the range read.

    `writing` is called with the number of messages once it is known; its context yields what takes each batch.
    """
    if start is not None and stop is not None and start > stop:
        raise InputError(f"--from {start}", f"lies behind --to {stop}; give a lower one")
    return asyncio.run(_read(config, TopicName.parse(topic), start, stop, writing))


async def _read(config: Config, topic: TopicName, start: int | None, stop: int | None, writing: Writing) -> OffsetRange:
    async with open_sources(config) as sources:
        view = await view_topic(sources, topic)
        if view.problem is not None:
            raise view.problem
        first = view.start if start is None else start
        if not view.start <= first <= view.stop:
            raise OffsetOutOfRangeError(first, view.start, view.stop)
        last = view.stop if stop is None else min(stop, view.stop)
        with writing(last - first) as write:
            async with aclosing(messages_between(sources, view, first, last)) as batches:
                async for batch in batches:
                    write(batch)
        return OffsetRange(first, last)


async def messages_between(
    sources: Sources, view: TopicView, start: int, stop: int
) -> AsyncGenerator[list[StreamMessage]]:
    """Yield the messages [start, stop) in order, each once."""
    at, tries = start, 0
    while at < stop:
        reader = _reader(sources, view, at)
        try:
            while at < stop:
                batch = [message for message in await reader.read() if message.offset < stop]
                if not batch:
                    return
                at, tries = batch[-1].offset + 1, 0
                yield batch
        except (MissingOffsetsError, MissingFileError, MissingObjectError, OffsetOutOfRangeError) as error:
            tries += 1
            view = await _refresh(sources, view, tries, error)
        finally:
            await reader.close()


async def _refresh(sources: Sources, view: TopicView, tries: int, error: IsterError) -> TopicView:
    """Return the current view of the tiers; raise the error if it has not changed."""
    again = await view_topic(sources, view.topic)
    if again.problem is not None:
        raise again.problem
    if _extent(again) == _extent(view) or tries > REFRESHES_WITHOUT_PROGRESS_MAX:
        raise error
    return again


def _extent(view: TopicView) -> tuple[int, ...]:
    log_start = -1 if view.log is None else view.log.start_offset
    return (view.generation, view.objects.start, view.objects.stop, log_start, view.upto)


def _reader(sources: Sources, view: TopicView, start: int) -> TieredReader:
    log = view.log
    if log is None:
        # As for the next owner: everything is in objects and the table, and the log starts where they end.
        log = LogView(OsFiles(), WalConfig(topic=str(view.topic)), view.stop)
    if start < log.start_offset and start >= view.upto:
        sources.check_store()
    tier = ObjectTier(CloudReader(sources.store, view.catalog), None, view.objects)
    return TieredReader(log, tier, StartPosition.offset(start), view.table)
