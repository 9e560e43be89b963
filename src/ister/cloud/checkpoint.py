"""Upload checkpoint: where in the log's files the next upload begins. Only a cache, which saves a search."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import structlog

from ister.core.frames.checksummed_json import seal, unseal
from ister.core.frames.segment import LogPosition
from ister.ports.files.files import replace_file

if TYPE_CHECKING:
    from pathlib import Path

    from ister.ports.files.files import Files

log = structlog.get_logger()

UPLOAD_NAME = "upload.json"
VERSION = 1


class UploadedTo(NamedTuple):
    """Everything below `offset` is in objects; its frame begins at `place`, or behind markers there."""

    offset: int
    place: LogPosition


class UploadCheckpoint:
    """The file `upload.json` of one log; deleting it costs time alone."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._path = directory / UPLOAD_NAME

    async def load(self) -> UploadedTo | None:
        """Return the last saved place; None if it cannot be read."""
        return await asyncio.get_running_loop().run_in_executor(None, self._load)

    async def save(self, offset: int, place: LogPosition) -> None:
        """Save a place; a failed write is logged and costs time at the next start."""
        data = seal({"version": VERSION, "offset": offset, "file_seq": place.seq, "byte_pos": place.byte})
        try:
            await asyncio.get_running_loop().run_in_executor(None, replace_file, self._files, self._path, data)
        except OSError as error:
            log.warning("upload_checkpoint_not_written", file=str(self._path), cause=error.strerror)

    def _load(self) -> UploadedTo | None:
        try:
            file = self._files.open_read(self._path)
            try:
                content = unseal(file.read(0, file.size()))
            finally:
                file.close()
            numbers = (content["offset"], content["file_seq"], content["byte_pos"])
            if content["version"] != VERSION or not all(type(n) is int and 0 <= n < 1 << 63 for n in numbers):
                return None
            return UploadedTo(numbers[0], LogPosition(*numbers[1:]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("upload_checkpoint_not_read", file=str(self._path), cause=str(error))
            return None
