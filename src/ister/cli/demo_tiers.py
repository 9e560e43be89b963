"""Show that old messages live on in objects: upload, prune the log behind, and read across from offset 0 to now."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ister.cli.demo_messages import append_all, append_batch, check_messages
from ister.cli.demo_reading import SILENCE_S, bar, rate, read_span
from ister.cli.demo_topic import object_files
from ister.cli.display import many, megabytes, say
from ister.cli.exits import CheckFailedError
from ister.core.offsets import StartPosition

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ister.cli.demo_topic import DemoTopic
    from ister.storage.tiers import TieredReader
    from ister.wal import WalReader


@dataclass(frozen=True, slots=True)
class ReadAcross:
    """How many messages one reader got, and from where."""

    from_objects: int
    from_log: int
    live: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.from_objects + self.from_log + self.live


async def carry_and_read_across(topic: DemoTopic, directory: Path, newer: int) -> ReadAcross:
    """Leave the messages so far to objects alone, append newer ones to the log, and read all of them as one stream."""
    await _upload(topic, directory)
    await _prune(topic)
    await append_all(topic.storage, newer, _nothing_to_show)
    return await _read_across(topic)


async def _upload(topic: DemoTopic, directory: Path) -> None:
    storage, uploaded = topic.storage, topic.uploader.uploaded
    await storage.seal(0)
    stop = storage.next_offset

    async def follow(advance: Callable[[int], None]) -> None:
        shown = 0
        while shown < stop:
            await uploaded.wait(shown + 1)
            advance(uploaded.value - shown)
            shown = uploaded.value

    with bar("uploading", stop) as advance:
        following = asyncio.create_task(follow(advance))
        try:
            await topic.uploader.drain()
        finally:
            following.cancel()
    if uploaded.value != stop:
        raise CheckFailedError(f"objects hold [0, {uploaded.value}), and [0, {stop}) was uploaded")
    files = object_files(directory)
    say(
        f"Upload   {many(len(files), 'object')}, {megabytes(sum(file.stat().st_size for file in files))}, "
        f"hold the offsets [0, {stop}); each is synced and described before it counts."
    )


async def _prune(topic: DemoTopic) -> None:
    storage = topic.storage
    before, stop = storage.sealed_segments(), storage.next_offset
    start = await topic.deleter.tick()
    if start != stop:
        raise CheckFailedError(f"the log starts at offset {start}; with everything in objects it should at {stop}")
    say(
        f"Prune    the log deleted {many(len(before), 'file')}, {megabytes(sum(file.size for file in before))}; "
        "what was in them is now in objects alone."
    )


async def _read_across(topic: DemoTopic) -> ReadAcross:
    storage = topic.storage
    log_start, stop = storage.log_start, storage.next_offset
    reader = await storage.create_reader(StartPosition.offset(0))
    began = time.monotonic()
    with bar("reading across", stop) as advance:
        await read_span(reader, range(stop), check_messages, advance)
    seconds = time.monotonic() - began
    delay_ms = await _live(topic, reader) * 1000
    # The log has no message below its start any more, so those came from objects.
    found = ReadAcross(log_start, stop - log_start, 1)
    say(
        f"Read     a reader from offset 0 got {found.from_objects:,} messages from objects, then {found.from_log:,} from "
        f"the log ({rate(stop, seconds)}), then waited"
    )
    say(
        f"         and got one more, live, {delay_ms:.1f} ms after it was given to the log. Each of the {found.total:,} was "
        "compared with what had been stored."
    )
    return found


async def _live(topic: DemoTopic, reader: WalReader | TieredReader) -> float:
    """Produce a message while the reader waits at the end; returns how many seconds it took to arrive."""
    offset = topic.storage.next_offset
    waiting = asyncio.create_task(reader.read())
    try:
        await asyncio.sleep(0.01)
        if waiting.done():
            raise CheckFailedError(f"a message came at offset {offset}, where nobody had stored one")
        began = time.monotonic()
        await append_batch(topic.storage, 1)
        async with asyncio.timeout(SILENCE_S):
            messages = await waiting
    except TimeoutError:
        raise CheckFailedError(f"the reader that waits at the end did not get offset {offset}") from None
    finally:
        waiting.cancel()
    seconds = time.monotonic() - began
    check_messages(messages, offset)
    return seconds


def _nothing_to_show(_count: int) -> None:
    """Take no notice."""
