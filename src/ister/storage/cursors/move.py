"""Migration of a topic's cursors between the log's directory and metadata: exactly one of them is authoritative.

A marker in metadata names it; without one, or with one of an earlier generation, it is the file. A move writes the target
completely, changes the marker by compare-and-swap, and deletes the source. A crash before the change leaves the source
authoritative, and the next attempt overwrites the target; a crash after it leaves the target authoritative, and the next
opening deletes the source. Cursors at the root that earlier releases used are copied to the file once.

A marker "file" exists only while metadata may hold cursors that are not authoritative: it is written before the first of
them, and deleted after the last. So a topic that never moved costs one read. A change of the marker whose answer was lost
and which lands later is harmless, too: it is conditional on that marker's version.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Literal

import structlog

from ister.core.errors import CorruptMetadataError, CursorTakenError, InvalidConfigError
from ister.storage.cursors.metadata import OLD_ROOT, VERSION, MetadataCursors, OwnedKey, load_content, topic_key
from ister.storage.cursors.saved import CursorFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ister.core.names import TopicName
    from ister.core.table.data_files import RowLocation
    from ister.ports.clock import Clock
    from ister.ports.files.files import Files
    from ister.ports.metadata import Metadata

log = structlog.get_logger()

Holder = Literal["file", "metadata"]


class Marker:
    """The marker of a topic; None stands for the file, with nothing in metadata to clear."""

    def __init__(self, metadata: Metadata, root: str, topic: TopicName, generation: int) -> None:
        self._key = OwnedKey(metadata, topic_key(root, topic))
        self._generation = generation

    async def read(self) -> Holder | None:
        """Read the marker; CursorTakenError if it is of a later generation."""
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
        """Make one authoritative; CursorTakenError if another owner has written the marker since it was read."""
        content = {"version": VERSION, "generation": self._generation, "holder": holder}
        await self._key.set(json.dumps(content, separators=(",", ":")).encode())

    async def remove(self) -> None:
        """Delete the marker, which means the file."""
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
    place: Callable[[int], RowLocation | None],
    clock: Clock | None = None,
    earlier: EarlierProgress | None = None,
) -> CursorFile | MetadataCursors:
    """Return a topic's cursors in the file or in metadata, moved there if necessary.

    `earlier` is given for a topic that this deployment had before. The caller has the directory's lock. An error leaves a
    state that a crash could leave, too; open again.
    """
    file = CursorFile(files, directory, log_name, limit)
    cursors = MetadataCursors(metadata, topic, generation, limit, root=root, place=place, clock=clock)
    marker = Marker(metadata, root, topic, generation)
    holder = await marker.read()
    if earlier is not None and holder != "metadata" and await earlier.exists() and not await file.exists():
        found = await earlier.read(topic, generation)
        if found is not None:
            # The file is authoritative now, also if a crash comes before a move back to metadata.
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
    """Move cursors from the authoritative file to metadata; `marker` was just read."""
    await file.load()
    await marker.set("file")
    await cursors.replace(file.durable(), file.all_finished())
    await marker.set("metadata")
    await file.remove()


async def move_to_file(cursors: MetadataCursors, file: CursorFile, marker: Marker) -> None:
    """Move cursors from authoritative metadata to the file; `marker` was just read."""
    await cursors.load()
    await file.replace(cursors.durable(), cursors.all_finished())
    await marker.set("file")
    await _clear(cursors, marker)


class EarlierProgress:
    """Cursors of earlier releases, at a root that all deployments on a metadata store shared.

    Read-only: another deployment may still use it, with an earlier release.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._exists: bool | None = None

    async def exists(self) -> bool:
        """Return True if any topic has such cursors; the answer is cached."""
        if self._exists is None:
            try:
                self._exists = bool(await self._metadata.list(f"{OLD_ROOT}/topics/", limit=1))
            except InvalidConfigError as error:  # this user may not read there, so neither could an earlier release
                log.info("earlier_progress_not_readable", cause=str(error))
                self._exists = False
        return self._exists

    async def read(self, topic: TopicName, generation: int) -> dict[str, int] | None:
        """Return the cursors of a topic, None if metadata was not authoritative for this generation."""
        try:
            if await Marker(self._metadata, OLD_ROOT, topic, generation).read() != "metadata":
                return None
            cursors = MetadataCursors(
                self._metadata, topic, generation, sys.maxsize, root=OLD_ROOT, place=lambda _: None
            )
            await cursors.load()
        except CursorTakenError:  # of a later generation
            return None
        return cursors.durable()


async def drop_cursors(metadata: Metadata, root: str, topic: TopicName, generation: int) -> None:
    """Delete a deleted topic's cursors from metadata, of this generation and of earlier ones."""
    marker = Marker(metadata, root, topic, generation)
    await marker.read()
    await _clear(MetadataCursors(metadata, topic, generation, sys.maxsize, root=root, place=lambda _: None), marker)


async def _clear(cursors: MetadataCursors, marker: Marker) -> None:
    await cursors.clear()
    await marker.remove()
