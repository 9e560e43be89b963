"""The files of an open log: writes to the active one, its markers, rotation and deletion.

Writes and truncations happen on the event loop; methods that wait for the disk are called from a thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from ister.core.errors import BusyError, DiskFullError, ResourceExhaustedError
from ister.core.frames.frame import Marker, encode_marker
from ister.ports.files.files import as_busy, close_file, error_text, replace_file
from ister.wal.directory import CHECKPOINT_NAME, FileNames, OpenedLog, SealedFile, Segment, dump_checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ister.core.frames.columns import Chunk, Frames
    from ister.ports.files.files import File, Files

log = structlog.get_logger()

NOT_STORED = (DiskFullError, ResourceExhaustedError)
"""Errors of a write that leave the file as it was."""


class BrokenFileError(Exception):
    """The end of the active file is unknown after a disk error; the log must be poisoned."""


class NotRotatedError(Exception):
    """The old file is synced and stays active; the new one was not created."""

    def __init__(self, refusal: DiskFullError | ResourceExhaustedError) -> None:
        self.refusal = refusal
        super().__init__(str(refusal))


class NotOpenedError(BusyError):
    """A log's idle file cannot be reopened now."""

    def __init__(self, log_name: str, file: str, cause: str) -> None:
        self.log = log_name
        self.file = file
        self.cause = cause
        super().__init__(f"log {log_name} cannot open its file {file}: {cause}; nothing was stored, try again")


class ActiveFiles:
    """A log's files, the last of them open for appends, or closed while idle."""

    def __init__(
        self, files: Files, directory: Path, names: FileNames, opened: OpenedLog, *, write_bytes_max: int
    ) -> None:
        self.files = files
        self.segments = opened.segments
        self.pos = opened.active_bytes
        self.attested = opened.next_offset
        self._directory = directory
        self._names = names
        self._lock = opened.lock
        self._file: File = opened.active
        self.active_closed = opened.active_closed
        self._nonce = opened.nonce
        self._write_bytes_max = write_bytes_max
        self.worker = files.worker()

    @property
    def active(self) -> Segment:
        """The file that is being written."""
        return self.segments[-1]

    # --- on the event loop --------------------------------------------------------------------------------------------

    def write(self, chunks: Sequence[Chunk], append_time_us: int, log_name: str) -> None:
        """Append chunks whole, or leave the file as it was and raise one of NOT_STORED; BrokenFileError if that is unknown."""
        at = self.pos
        self._append([chunk.frames for chunk in chunks], log_name)
        for chunk in chunks:
            self.active.note(chunk.start, at)
            at += len(chunk.frames)
        self.active.append_time_us = append_time_us

    def mark(self, next_offset: int, synced_offset: int, synced_pos: int, log_name: str) -> None:
        """Attest a sync; if the disk is full, the next sync attests more."""
        marker = encode_marker(Marker(self._nonce, self.pos, synced_offset, synced_pos), next_offset)
        try:
            self._append([marker], log_name)
        except NOT_STORED:
            log.warning("marker_not_written", log=log_name, offset=synced_offset)
        else:
            self.attested = synced_offset

    def begin(self, next_offset: int, log_name: str) -> None:
        """Write the opening marker of a new file, which has the nonce of all its markers."""
        if self.pos == 0:
            self.mark(next_offset, next_offset, 0, log_name)

    def following(self, next_offset: int) -> Segment:
        """Return the segment after the active one."""
        seq = self.active.seq + 1
        return Segment(seq, next_offset, self._directory / self._names.name(seq, next_offset))

    def switch(self, segment: Segment, file: File, nonce: int) -> None:
        """Make the next file the active one; the old one was synced."""
        close_file(self._file, self.active.path.name)
        self.active.size = self.pos
        self._file, self.pos, self._nonce = file, 0, nonce
        self.segments.append(segment)

    def _append(self, parts: Sequence[Frames], log_name: str) -> None:
        size = sum(len(part) for part in parts)
        try:
            taken = self._append_limited(parts)
        except OSError as error:
            self._truncate_back()
            refusal = as_busy(error, log_name, f"write {self.active.path.name}")
            raise refusal or BrokenFileError(f"writing {self.active.path.name} failed: {error_text(error)}") from error
        if taken < size:
            # A short write means that the next one would fail; remove the partial frame.
            self._truncate_back()
            raise DiskFullError(log_name)
        self.pos += size

    def _append_limited(self, parts: Sequence[Frames]) -> int:
        """Write at most max_batch_bytes per call; stop at a short write."""
        taken = at = 0
        while at < len(parts):
            group, size = [parts[at]], len(parts[at])
            at += 1
            while at < len(parts) and size + len(parts[at]) <= self._write_bytes_max:
                group.append(parts[at])
                size += len(parts[at])
                at += 1
            wrote = self._file.append(group)
            taken += wrote
            if wrote < size:
                break
        return taken

    def _truncate_back(self) -> None:
        try:
            self._file.truncate(self.pos)
        except OSError as error:
            name = self.active.path.name
            raise BrokenFileError(f"cutting {name} back to its last whole frame failed: {error.strerror}") from error

    def sync_blocking(self) -> tuple[float, OSError | None]:
        """Sync on the event loop; return the result as a worker thread would."""
        try:
            return self.sync(), None
        except OSError as error:
            return 0.0, error

    # --- in a thread --------------------------------------------------------------------------------------------------

    def sync(self) -> float:
        """Sync the active file; return the seconds that this took."""
        return self._file.sync()

    def close_active(self, next_offset: int, log_name: str) -> None:
        """Close the active file, all of it durable and attested: no later error may concern it.

        Once a file is open nowhere, Linux may forget a write-back error.
        """
        self._file.sync()
        if self.attested < next_offset:
            self.mark(next_offset, next_offset, self.pos, log_name)
            self._file.sync()
        self.active_closed = True
        close_file(self._file, self.active.path.name)

    def reopen_active(self) -> None:
        """Reopen the active file, which must have the same size."""
        file = self.files.open(self.active.path)
        size = -1
        try:
            size = file.size()
        finally:
            if size != self.pos:
                close_file(file, self.active.path.name)
        if size != self.pos:
            raise BrokenFileError(f"{self.active.path.name} has {size} bytes, {self.pos} were written")
        self._file, self.active_closed = file, False

    def make_next(self, path: Path, sealed: list[SealedFile], log_name: str) -> File:
        """Sync the old file, then create the new one and make its name durable, in this order (F11)."""
        self._file.sync()
        try:
            file = self.files.create_durable(path)
        except OSError as error:
            refusal = as_busy(error, log_name, f"create {path.name}")
            if refusal is None:
                raise
            raise NotRotatedError(refusal) from error
        self._write_checkpoint(sealed)
        return file

    def remove(self, doomed: list[Segment]) -> int:
        """Delete files, oldest first; return how many were deleted before the disk refused."""
        for removed, segment in enumerate(doomed):
            try:
                self.files.remove(segment.path)
            except OSError as error:
                log.warning("file_not_removed", file=segment.path.name, cause=error.strerror)
                return removed
            try:
                self.files.sync_directory(self._directory)
            except OSError as error:
                # The unlink is not synced. If a power loss undoes it, the file is the oldest segment again: harmless.
                log.warning("removal_not_synced", file=segment.path.name, cause=error.strerror)
        return len(doomed)

    def close(self) -> None:
        """Make the closing marker durable, which distinguishes damage from a torn tail, and release the directory."""
        try:
            if not self.active_closed:
                self._file.sync()
            self._write_checkpoint(sealed_files(self.segments[:-1], self.active.first))
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Release the directory without writing."""
        if not self.active_closed:
            close_file(self._file, self.active.path.name)
        self._lock.release()

    def _write_checkpoint(self, sealed: list[SealedFile]) -> None:
        try:
            replace_file(self.files, self._directory / CHECKPOINT_NAME, dump_checkpoint(sealed))
        except OSError as error:
            log.warning("checkpoint_not_written", directory=str(self._directory), cause=error.strerror)  # only a cache


def sealed_files(segments: Sequence[Segment], stop: int) -> list[SealedFile]:
    """Return the checkpoint entries of these files, the last of which ends before `stop`."""
    ends = [*(segment.first for segment in segments), stop]
    return [
        SealedFile(segment.seq, segment.first, end, segment.append_time_us, tuple(segment.index))
        for segment, end in zip(segments, ends[1:], strict=True)
    ]
