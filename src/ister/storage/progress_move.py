"""Decide which of two places holds a topic's cursors, the log's directory or metadata, and move them: one is in charge.

A marker in metadata says which; without one, or with one of an earlier generation, it is the file. To move is to write
the target completely, to turn the marker by compare-and-swap, and to remove the source. A crash before the turn leaves
the source in charge, and the next try overwrites the target; a crash behind it leaves the target in charge, and the
next opening removes the source. Cursors at the place that earlier releases used are copied to the file once.

A marker that says "file" is there only while metadata may hold cursors that are not in charge: before the first of them
is written it is set, and once the last is removed it goes. So a topic that never moved costs one question. It also
makes the turn harmless whose answer was lost and which lands later: it is on that marker's version, which is gone then.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Literal

import structlog

from ister.core.errors import CorruptMetadataError, InvalidConfigError
from ister.storage.cursors import CursorFile
from ister.storage.owned_key import CursorTakenError, OwnedKey
from ister.storage.progress import OLD_ROOT, VERSION, MetadataCursors, load_content, topic_key
from ister.storage.shared_cursors import SharedCursors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ister.core.layout import Place
    from ister.core.names import TopicName
    from ister.ports.clock import Clock
    from ister.ports.files import Files
    from ister.ports.metadata import Metadata

log = structlog.get_logger()

Holder = Literal["file", "metadata"]


class Marker:
    """What metadata says of where a topic's cursors are; None stands for the file, and nothing to clear."""

    def __init__(self, metadata: Metadata, root: str, topic: TopicName, generation: int) -> None:
        self._key = OwnedKey(metadata, topic_key(root, topic))
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
    root: str,
    topic: TopicName,
    generation: int,
    in_metadata: bool,
    place: Callable[[int], Place | None],
    clock: Clock | None = None,
    earlier: EarlierProgress | None = None,
) -> CursorFile | MetadataCursors:
    """Return a topic's cursors where they are wanted, moved there if they are elsewhere.

    `earlier` is given for a topic that this deployment had before. The caller owns the directory. An error leaves
    everything as some crash could; open again.
    """
    file = CursorFile(files, directory, log_name, limit)
    cursors = SharedCursors(metadata, topic, generation, limit, root=root, place=place, clock=clock)
    marker = Marker(metadata, root, topic, generation)
    holder = await marker.read()
    if earlier is not None and holder != "metadata" and await earlier.exists() and not await file.exists():
        found = await earlier.read(topic, generation)
        if found is not None:
            # The file is in charge now, also if a crash comes before a move back to metadata.
            await file.replace({name: min(cursor, limit) for name, cursor in found.items()})
            log.info("cursors_copied", topic=str(topic), source=OLD_ROOT, subscriptions=len(found))
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
    await cursors.replace(file.kept(), file.all_finished())
    await marker.set("metadata")
    await file.remove()


async def move_to_file(cursors: MetadataCursors, file: CursorFile, marker: Marker) -> None:
    """Move cursors from metadata, which is in charge, into the file; `marker` was just read."""
    await cursors.load()
    await file.replace(cursors.kept(), cursors.all_finished())
    await marker.set("file")
    await _clear(cursors, marker)


class EarlierProgress:
    """Cursors in metadata as earlier releases kept them, at a place that all deployments on a metadata store shared.

    Nothing is changed there: another deployment may use it still, with an earlier release.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._exists: bool | None = None

    async def exists(self) -> bool:
        """Return True if there are such cursors of any topic; asks once."""
        if self._exists is None:
            try:
                self._exists = bool(await self._metadata.list(f"{OLD_ROOT}/topics/", limit=1))
            except InvalidConfigError as error:  # this user may not read there, so an earlier release could not either
                log.info("earlier_progress_not_readable", cause=str(error))
                self._exists = False
        return self._exists

    async def read(self, topic: TopicName, generation: int) -> dict[str, int] | None:
        """Return the cursors of a topic, None if metadata was not in charge of this generation's."""
        try:
            if await Marker(self._metadata, OLD_ROOT, topic, generation).read() != "metadata":
                return None
            cursors = MetadataCursors(
                self._metadata, topic, generation, sys.maxsize, root=OLD_ROOT, place=lambda _: None
            )
            await cursors.load()
        except CursorTakenError:  # of a later generation: not ours
            return None
        return cursors.kept()


async def drop_cursors(metadata: Metadata, root: str, topic: TopicName, generation: int) -> None:
    """Remove what metadata has of a deleted topic's cursors, of this generation and of earlier ones."""
    marker = Marker(metadata, root, topic, generation)
    await marker.read()
    await MetadataCursors(metadata, topic, generation, sys.maxsize, root=root, place=lambda _: None).clear()
    await marker.remove()


async def _clear(cursors: MetadataCursors, marker: Marker) -> None:
    await cursors.clear()
    await marker.remove()
