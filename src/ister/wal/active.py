"""The files of an open log: the active one, how far it is written and attested, and how it is exchanged for the next.

Writes and cuts happen on the event loop; whatever waits for the disk is a method that the log calls from a thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from ister.core.errors import BusyError, DiskFullError, ResourceExhaustedError
from ister.core.frame import Marker, encode_marker
from ister.ports.files import as_busy, close_file, replace_file, said
from ister.wal.checkpoint import CHECKPOINT_NAME, SealedFile, dump_checkpoint
from ister.wal.directory import FileNames, OpenedLog, Segment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ister.core.columns import Chunk, Frames
    from ister.ports.files import File, Files

log = structlog.get_logger()

NOT_STORED = (DiskFullError, ResourceExhaustedError)
"""Errors of a write that leave the file as it was."""


class BrokenFileError(Exception):
    """The disk failed in a way that leaves the active file's end unknown; the log must be poisoned."""


class NotRotatedError(Exception):
    """The old file is synced and goes on; the new one was not made."""

    def __init__(self, refusal: DiskFullError | ResourceExhaustedError) -> None:
        self.refusal = refusal
        super().__init__(str(refusal))


class NotOpenedError(BusyError):
    """A log's file that was at rest cannot be opened now."""

    def __init__(self, log_name: str, file: str, cause: str) -> None:
        self.log = log_name
        self.file = file
        self.cause = cause
        super().__init__(f"log {log_name} cannot open its file {file}: {cause}; nothing was stored, try again")


class ActiveFiles:
    """A log's files, the last of them open for appending, or at rest."""

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
        self.resting = opened.resting
        self._nonce = opened.nonce
        self._write_bytes_max = write_bytes_max
        self.worker = files.worker()

    @property
    def active(self) -> Segment:
        """The file that is being written."""
        return self.segments[-1]

    # --- on the event loop --------------------------------------------------------------------------------------------

    def write(self, chunks: Sequence[Chunk], append_time_us: int, log_name: str) -> None:
        """Append chunks whole, or leave the file as it was and raise one of NOT_STORED; BrokenFileError when that is unknown."""
        at = self.pos
        self._append([chunk.frames for chunk in chunks], log_name)
        for chunk in chunks:
            self.active.note(chunk.start, at)
            at += len(chunk.frames)
        self.active.append_time_us = append_time_us

    def mark(self, next_offset: int, synced_offset: int, synced_pos: int, log_name: str) -> None:
        """Attest what was synced; when there is no room for it, the next sync attests more."""
        marker = encode_marker(Marker(self._nonce, self.pos, synced_offset, synced_pos), next_offset)
        try:
            self._append([marker], log_name)
        except NOT_STORED:
            log.warning("marker_not_written", log=log_name, offset=synced_offset)
        else:
            self.attested = synced_offset

    def begin(self, next_offset: int, log_name: str) -> None:
        """Give a new file its opening marker, which carries the nonce of all its markers."""
        if self.pos == 0:
            self.mark(next_offset, next_offset, 0, log_name)

    def following(self, next_offset: int) -> Segment:
        """Return the file that comes after the active one."""
        seq = self.active.seq + 1
        return Segment(seq, next_offset, self._directory / self._names.name(seq, next_offset))

    def switch(self, segment: Segment, file: File, nonce: int) -> None:
        """Go on with the next file; the old one was synced."""
        close_file(self._file, self.active.path.name)
        self.active.size = self.pos
        self._file, self.pos, self._nonce = file, 0, nonce
        self.segments.append(segment)

    def _append(self, parts: Sequence[Frames], log_name: str) -> None:
        size = sum(len(part) for part in parts)
        try:
            taken = self._append_in_turns(parts)
        except OSError as error:
            self._cut_back()
            refusal = as_busy(error, log_name, f"write {self.active.path.name}")
            raise refusal or BrokenFileError(f"writing {self.active.path.name} failed: {said(error)}") from error
        if taken < size:
            # A short write means that the next one would fail; the frame it cut must not stay.
            self._cut_back()
            raise DiskFullError(log_name)
        self.pos += size

    def _append_in_turns(self, parts: Sequence[Frames]) -> int:
        """Write at most max_batch_bytes a call; stops at a short write."""
        taken = at = 0
        while at < len(parts):
            turn, size = [parts[at]], len(parts[at])
            at += 1
            while at < len(parts) and size + len(parts[at]) <= self._write_bytes_max:
                turn.append(parts[at])
                size += len(parts[at])
                at += 1
            wrote = self._file.append(turn)
            taken += wrote
            if wrote < size:
                break
        return taken

    def _cut_back(self) -> None:
        try:
            self._file.truncate(self.pos)
        except OSError as error:
            name = self.active.path.name
            raise BrokenFileError(f"cutting {name} back to its last whole frame failed: {error.strerror}") from error

    def sync_here(self) -> tuple[float, OSError | None]:
        """Sync without a thread; returns what a thread would have answered."""
        try:
            return self.sync(), None
        except OSError as error:
            return 0.0, error

    # --- in a thread --------------------------------------------------------------------------------------------------

    def sync(self) -> float:
        """Return once the active file's bytes are on disk; returns the seconds that this took."""
        return self._file.sync()

    def rest(self, next_offset: int, log_name: str) -> None:
        """Close the active file, all of it durable, and attested: nothing of it may depend on an error that comes later.

        Once nobody has a file open, Linux may forget that writing it has failed.
        """
        self._file.sync()
        if self.attested < next_offset:
            self.mark(next_offset, next_offset, self.pos, log_name)
            self._file.sync()
        self.resting = True
        close_file(self._file, self.active.path.name)

    def wake(self) -> None:
        """Open the active file again, which must be as it was left."""
        file = self.files.open(self.active.path)
        size = -1
        try:
            size = file.size()
        finally:
            if size != self.pos:
                close_file(file, self.active.path.name)
        if size != self.pos:
            raise BrokenFileError(f"{self.active.path.name} has {size} bytes, {self.pos} were written")
        self._file, self.resting = file, False

    def make_next(self, path: Path, sealed: list[SealedFile], log_name: str) -> File:
        """Sync the old file, make the new one and its name durable; the order is the point (F11)."""
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
        """Delete files, oldest first; returns how many are gone when the disk refuses to go on."""
        for gone, segment in enumerate(doomed):
            try:
                self.files.remove(segment.path)
            except OSError as error:
                log.warning("file_not_removed", file=segment.path.name, cause=error.strerror)
                return gone
            try:
                self.files.sync_directory(self._directory)
            except OSError as error:
                # The file is gone for us. If power loss brings its name back, it is an older file again, in its place.
                log.warning("removal_not_synced", file=segment.path.name, cause=error.strerror)
        return len(doomed)

    def close(self) -> None:
        """Make the closing marker durable too, so that rot is told from a torn tail from now on, and let go."""
        try:
            if not self.resting:
                self._file.sync()
            self._write_checkpoint(sealed_files(self.segments[:-1], self.active.first))
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the directory without touching it."""
        if not self.resting:
            close_file(self._file, self.active.path.name)
        self._lock.release()

    def _write_checkpoint(self, sealed: list[SealedFile]) -> None:
        try:
            replace_file(self.files, self._directory / CHECKPOINT_NAME, dump_checkpoint(sealed))
        except OSError as error:
            log.warning("checkpoint_not_written", directory=str(self._directory), cause=error.strerror)  # only a cache


def sealed_files(segments: Sequence[Segment], stop: int) -> list[SealedFile]:
    """Return what the checkpoint remembers of these files, the last of which ends before `stop`."""
    ends = [*(segment.first for segment in segments), stop]
    return [
        SealedFile(segment.seq, segment.first, end, segment.append_time_us, tuple(segment.index))
        for segment, end in zip(segments, ends[1:], strict=True)
    ]
