"""Decide which of two places holds a topic's cursors, the log's directory or metadata, and move them: one is in charge.

A marker in metadata says which; without one, or with one of an earlier generation, it is the file. To move is to write
the target completely, to turn the marker by compare-and-swap, and to remove the source. A crash before the turn leaves
the source in charge, and the next try overwrites the target; a crash behind it leaves the target in charge, and the
next opening removes the source.

A marker that says "file" is there only while metadata may hold cursors that are not in charge: before the first of them
is written it is set, and once the last is removed it goes. So a topic that never moved costs one question. It also
makes the turn harmless whose answer was lost and which lands later: it is on that marker's version, which is gone then.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Literal

from ister.core.errors import CorruptMetadataError
from ister.storage.cursors import CursorFile
from ister.storage.owned_key import CursorTakenError, OwnedKey
from ister.storage.progress import VERSION, MetadataCursors, load_content, topic_key
from ister.storage.shared_cursors import SharedCursors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ister.core.layout import Place
    from ister.core.names import TopicName
    from ister.ports.clock import Clock
    from ister.ports.files import Files
    from ister.ports.metadata import Metadata

Holder = Literal["file", "metadata"]


class Marker:
    """What metadata says of where a topic's cursors are; None stands for the file, and nothing to clear."""

    def __init__(self, metadata: Metadata, topic: TopicName, generation: int) -> None:
        self._key = OwnedKey(metadata, topic_key(topic))
        self._generation = generation

    async def read(self) -> Holder | None:
        """Ask metadata; CursorTakenError when a later generation has left its mark."""
        await self._key.read()
        if self._key.value is None:
            return None
        key = self._key.key
        content = load_content(key, self._key.value)
        generation, holder = content.get("generation"), content.get("holder")
        if type(generation) is not int or holder not in {"file", "metadata"}:
            raise CorruptMetadataError(key, "what it says of a topic's cursors cannot be")
        if generation > self._generation:
            raise CursorTakenError(key)
        if generation < self._generation:
            return None
        return "file" if holder == "file" else "metadata"

    async def set(self, holder: Holder) -> None:
        """Put one in charge; CursorTakenError when someone else has written the marker since it was read."""
        content = {"version": VERSION, "generation": self._generation, "holder": holder}
        await self._key.set(json.dumps(content, separators=(",", ":")).encode())

    async def remove(self) -> None:
        """Say nothing any more, which means the file."""
        await self._key.set(None)


async def open_cursors(
    files: Files,
    directory: Path,
    log_name: str,
    limit: int,
    *,
    metadata: Metadata,
    topic: TopicName,
    generation: int,
    in_metadata: bool,
    place: Callable[[int], Place | None],
    clock: Clock | None = None,
) -> CursorFile | MetadataCursors:
    """Return a topic's cursors where they are wanted, moved there if they are elsewhere.

    The caller owns the directory. An error leaves everything as some crash could; open again.
    """
    file = CursorFile(files, directory, log_name, limit)
    cursors = SharedCursors(metadata, topic, generation, limit, place=place, clock=clock)
    marker = Marker(metadata, topic, generation)
    holder = await marker.read()
    if in_metadata:
        if holder == "metadata":
            await file.remove()
        else:
            await move_to_metadata(file, cursors, marker)
        return cursors
    if holder == "metadata":
        await move_to_file(cursors, file, marker)
    elif holder == "file":
        await _clear(cursors, marker)
    return file


async def move_to_metadata(file: CursorFile, cursors: MetadataCursors, marker: Marker) -> None:
    """Move cursors from the file, which is in charge, into metadata; `marker` was just read."""
    await file.load()
    await marker.set("file")
    await cursors.replace(file.kept())
    await marker.set("metadata")
    await file.remove()


async def move_to_file(cursors: MetadataCursors, file: CursorFile, marker: Marker) -> None:
    """Move cursors from metadata, which is in charge, into the file; `marker` was just read."""
    await cursors.load()
    await file.replace(cursors.kept())
    await marker.set("file")
    await _clear(cursors, marker)


async def drop_cursors(metadata: Metadata, topic: TopicName, generation: int) -> None:
    """Remove what metadata has of a deleted topic's cursors, of this generation and of earlier ones."""
    marker = Marker(metadata, topic, generation)
    await marker.read()
    await MetadataCursors(metadata, topic, generation, sys.maxsize, place=lambda _: None).clear()
    await marker.remove()


async def _clear(cursors: MetadataCursors, marker: Marker) -> None:
    await cursors.clear()
    await marker.remove()
