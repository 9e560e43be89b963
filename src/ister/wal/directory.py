"""A log's directory: file names, locking, tail recovery.

File names and bytes are the source of truth. A name has the file's sequence and first offset; a file's messages end where
the next file's begin. What lies behind that point was superseded when the log was opened after a crash: the whole, unsynced
frames were copied to the next file and synced there, and the old bytes stay unchanged, as evidence.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

import structlog

from ister.core.errors import (
    CorruptError,
    CorruptLogError,
    InvalidConfigError,
    MissingFileError,
    ResourceExhaustedError,
    UnknownFormatError,
)
from ister.core.frames.checksummed_json import seal, unseal
from ister.core.frames.columns import scan_run, strip_markers
from ister.core.frames.frame import HEADER_BYTES, Marker, encode_marker
from ister.core.frames.recover import Recovery, Scanner, Verdict
from ister.core.retry import is_transient
from ister.ports.files.files import DRAFT, append_all, as_busy, close_file, create_draft, error_text, read_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ister.ports.files.files import File, Files, Lock

log = structlog.get_logger()

CHECKPOINT_NAME = "checkpoint.json"
"""Only a cache, so that opening need not read sealed files: missing, damaged or outdated entries are ignored."""
CHECKPOINT_VERSION = 1
_LOG_NAME = re.compile(r"(.+)-(\d{10})-(\d{20})\.([^.]+)", re.ASCII | re.DOTALL)
_DRAFTED = frozenset({CHECKPOINT_NAME, "cursors.json", "upload.json"})
"""Other files of the directory that are replaced atomically, through a draft."""

ASIDE = ".aside"
"""The suffix of a file that is no longer part of the log, because objects hold more."""

READ_BYTES = 1024 * 1024
"""The size of a read, and the distance between index entries."""


@dataclass(frozen=True, slots=True)
class SealedFile:
    """One sealed file: its offsets [first, stop), its last append time, and (offset, byte) pairs to seek by."""

    seq: int
    first: int
    stop: int
    append_time_us: int
    index: tuple[tuple[int, int], ...]


def dump_checkpoint(sealed: list[SealedFile]) -> bytes:
    """Return the checkpoint's bytes."""
    return seal(
        {"version": CHECKPOINT_VERSION, "sealed": [[f.seq, f.first, f.stop, f.append_time_us, f.index] for f in sealed]}
    )


def load_checkpoint(data: bytes) -> dict[int, SealedFile]:
    """Return the sealed files by sequence; empty when the bytes cannot be trusted."""
    try:
        content = unseal(data)
        if content["version"] != CHECKPOINT_VERSION:
            return {}
        return {
            seq: SealedFile(seq, first, stop, time, tuple((offset, at) for offset, at in index))
            for seq, first, stop, time, index in content["sealed"]
        }
    except (ValueError, KeyError, TypeError):
        return {}


@dataclass(slots=True)
class Segment:
    """One log file: its path, first offset, size once it is sealed, and an index of (offset, byte)."""

    seq: int
    first: int
    path: Path
    append_time_us: int = 0
    size: int = 0
    index: list[tuple[int, int]] = field(default_factory=list)

    def place(self, offset: int) -> tuple[int, int]:
        """Return the nearest known (offset, byte) at or before `offset`."""
        count = bisect_right(self.index, offset, key=itemgetter(0))
        return self.index[count - 1] if count else (self.first, 0)

    def note(self, offset: int, at: int) -> None:
        """Add an index entry, if it is far enough from the last one."""
        if not self.index or at >= self.index[-1][1] + READ_BYTES:
            self.index.append((offset, at))


@dataclass(frozen=True, slots=True)
class FileNames:
    """The names of a log's files: `wal.log` gives `wal-<sequence>-<first offset>.log`."""

    stem: str
    suffix: str

    @classmethod
    def of(cls, file_name: str) -> FileNames:
        """Split a configured file name."""
        stem, _, suffix = file_name.rpartition(".")
        return cls(stem, suffix)

    def name(self, seq: int, first: int) -> str:
        """Return the name of a file."""
        return f"{self.stem}-{seq:010}-{first:020}.{self.suffix}"

    @classmethod
    def from_log_file(cls, name: str) -> FileNames | None:
        """Return the names of the log that this file belongs to; None if it is not a log file."""
        match = _LOG_NAME.fullmatch(name)
        return cls(match[1], match[4]) if match else None

    def parse(self, directory: Path, names: Sequence[str]) -> list[Segment]:
        """Return the log files among these names, in order."""
        found = [match for name in names if (match := _LOG_NAME.fullmatch(name)) and self.from_log_file(name) == self]
        return sorted((Segment(int(m[2]), int(m[3]), directory / m[0]) for m in found), key=lambda s: s.seq)

    def refuse_others(self, directory: Path, names: Sequence[str]) -> None:
        """Raise InvalidConfigError if there are files of a log with another name, which would be ignored."""
        for name in names:
            other = self.from_log_file(name)
            if other is not None and other != self:
                raise InvalidConfigError(
                    "file_name",
                    f"{self.stem}.{self.suffix} is not the name of the log in {directory}, which holds {name}; set "
                    f"file_name to {other.stem}.{other.suffix}, or move that log's files away if it is not wanted",
                )

    def is_draft(self, name: str) -> bool:
        """Return True if this is a draft that a dead process has left."""
        target = name.removesuffix(DRAFT)
        return target != name and (target in _DRAFTED or self.from_log_file(target) == self)


@dataclass(frozen=True, slots=True)
class Resume:
    """The end of the objects, and the append time of their last message: a log that ends earlier restarts there."""

    offset: int
    append_time_us: int


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """A log that is ready for appends: its files, the last of them open or closed, and its next offset."""

    lock: Lock
    segments: list[Segment]
    active: File
    active_bytes: int
    nonce: int
    next_offset: int
    append_time_us: int
    active_closed: bool = False

    def abandon(self) -> None:
        """Close it without writing."""
        if not self.active_closed:
            close_file(self.active, self.segments[-1].path.name)
        self.lock.release()


def open_directory(
    files: Files,
    directory: Path,
    names: FileNames,
    nonce: int,
    log_name: str,
    resume: Resume | None = None,
    within: Lock | None = None,
) -> OpenedLog:
    """Lock a directory and recover its log; change nothing when that is refused.

    `within` is a lock that the caller holds on a parent directory. Where open files are bounded, the log's last file is
    closed again; the first append opens it.
    """
    try:
        files.make_directory(directory)
        lock = files.lock(directory, within)
        try:
            opened = _open_locked(files, directory, names, nonce, lock)
            if resume is not None and opened.next_offset < resume.offset:
                close_file(opened.active, opened.segments[-1].path.name)
                return _start_behind(files, directory, names, nonce, opened, resume)
            return opened if files.open_files is None else _close_active(opened)
        except BaseException:
            lock.release()
            raise
    except OSError as error:
        busy = as_busy(error, log_name, f"open the log in {directory}")
        if busy is None:
            raise
        raise busy from error


def _close_active(opened: OpenedLog) -> OpenedLog:
    """Close the last file, all of it durable; a new one stays open, because its opening marker is not written yet."""
    if not opened.active_bytes:
        return opened
    try:
        opened.active.sync()
    finally:
        close_file(opened.active, opened.segments[-1].path.name)
    return replace(opened, active_closed=True)


def _start_behind(
    files: Files, directory: Path, names: FileNames, nonce: int, opened: OpenedLog, resume: Resume
) -> OpenedLog:
    """Set a log aside that ends before its objects, and start a new file where they end.

    Oldest first: a crash in between leaves a log that starts later, or none, and objects hold all of it.
    """
    taken = set(files.names(directory))
    for segment in opened.segments:
        aside = segment.path.name + ASIDE
        while aside in taken:
            aside += ASIDE  # files of an earlier loss stay, too
        files.rename(segment.path, segment.path.with_name(aside))
        files.sync_directory(directory)
    seq = opened.segments[-1].seq + 1
    segment = Segment(seq, resume.offset, directory / names.name(seq, resume.offset))
    file = files.create_durable(segment.path)
    log.warning("log_behind", directory=str(directory), log_stop=opened.next_offset, objects_stop=resume.offset)
    append_time_us = max(opened.append_time_us, resume.append_time_us)
    return OpenedLog(opened.lock, [segment], file, 0, nonce, resume.offset, append_time_us)


def scan_file(files: Files, segment: Segment, limit: int | None) -> Recovery:
    """Scan one file from its first byte."""
    scanner = Scanner(segment.first, limit=limit)
    try:
        file = files.open_read(segment.path)
    except OSError as error:
        raise unreadable(segment, limit, error) from error
    try:
        at = 0
        while data := file.read(at, READ_BYTES):
            scanner.feed(data)
            at += len(data)
    except OSError as error:
        raise unreadable(segment, limit, error) from error
    finally:
        file.close()
    return scanner.finish()


def locate(segments: Sequence[Segment], offset: int, stop: int) -> tuple[Segment, int] | None:
    """Return the file that holds an offset, and the offset at which its messages end; those of the last end at `stop`."""
    for segment in reversed(segments):
        if segment.first <= offset:
            return segment, stop
        stop = segment.first
    return None


def check_sequence(files: Files, segments: Sequence[Segment], names: FileNames) -> None:
    """Raise MissingFileError with the lost offsets if a file is missing between two others."""
    for before, after in pairwise(segments):
        if after.seq != before.seq + 1:
            lost = names.name(before.seq + 1, 0).replace("0" * 20, "*")
            start = scan_file(files, before, None).next_offset
            raise MissingFileError(str(before.path.with_name(lost)), start, after.first, "is missing")
        if after.first < before.first:
            raise CorruptLogError(str(after.path), 0, before.first, f"its name says it starts at offset {after.first}")


def unreadable(segment: Segment, stop: int | None, error: OSError) -> MissingFileError | ResourceExhaustedError:
    """Return the error for a file that could not be read: damage only if a retry would fail, too."""
    if is_transient(error):
        return ResourceExhaustedError(f"read {segment.path}", error_text(error))
    return missing(segment, stop, error)


def missing(segment: Segment, stop: int | None, error: OSError) -> MissingFileError:
    """Return the error for a file that is missing or unreadable."""
    reason = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
    return MissingFileError(str(segment.path), segment.first, -1 if stop is None else stop, reason)


def _open_locked(files: Files, directory: Path, names: FileNames, nonce: int, lock: Lock) -> OpenedLog:
    listed = files.names(directory)
    names.refuse_others(directory, listed)
    for name in listed:
        if names.is_draft(name):
            files.remove(directory / name)
    segments = names.parse(directory, listed)
    if not segments:
        segment = Segment(1, 0, directory / names.name(1, 0))
        return OpenedLog(lock, [segment], files.create_durable(segment.path), 0, nonce, 0, 0)
    # A process killed between creating a file and syncing its name leaves a name that power loss would undo.
    files.sync_directory(directory)
    check_sequence(files, segments, names)
    _check_readable(files, segments)
    use_checkpoint(files, directory, segments)
    last = segments[-1]
    found = scan_file(files, last, None)
    if found.verdict is Verdict.CORRUPT:
        raise damage(files, last, found)
    last.index = list(found.index)
    last.append_time_us = found.append_time_us
    append_time_us = found.append_time_us or _last_append_time(files, segments[:-1], last.first)
    if found.verdict is Verdict.CLEAN and found.next_offset == found.synced_offset:
        active_nonce = nonce if found.nonce is None else found.nonce
        return OpenedLog(
            lock,
            segments,
            _continue_file(files, last, found),
            found.size,
            active_nonce,
            found.next_offset,
            append_time_us,
        )
    segment, file, size = _rescue(files, directory, names, last, found, nonce)
    log.info("log_rescued", directory=str(directory), verdict=found.verdict.value, file=last.path.name, byte=found.end,
             reason=found.reason, start=segment.first, stop=found.next_offset)  # fmt: skip
    last.index = [place for place in last.index if place[0] < segment.first or place[1] == 0]
    last.size = found.size
    return OpenedLog(lock, [*segments, segment], file, size, nonce, found.next_offset, append_time_us)


def _continue_file(files: Files, last: Segment, found: Recovery) -> File:
    """Reopen a file for appends: write its unattested markers again, and make its end durable.

    The markers may be pages that a failed sync has left clean and unwritten; in front of new messages they must be on
    disk. And a process killed after it had truncated a refused message may have died before that was synced.
    """
    file = files.open(last.path)
    try:
        markers = file.read(found.synced_pos, found.size - found.synced_pos)
        if markers:
            file.truncate(found.synced_pos)
            append_all(file, [markers])
        file.sync()
    except BaseException:
        file.close()
        raise
    return file


def _rescue(
    files: Files, directory: Path, names: FileNames, last: Segment, found: Recovery, nonce: int
) -> tuple[Segment, File, int]:
    """Copy the whole frames that no marker attests to a new file, and sync that.

    Always, not only after a failed sync: it is unknown whether the last sync of a dead process failed, and after a
    failed one the kernel marks pages clean that never reached the disk. Copying makes them dirty again.
    """
    segment = Segment(last.seq + 1, found.synced_offset, directory / names.name(last.seq + 1, found.synced_offset))
    segment.append_time_us = found.append_time_us
    draft, file = create_draft(files, segment.path)
    try:
        source = files.open_read(last.path)
        try:
            append_all(file, [encode_marker(Marker(nonce, 0, segment.first, 0), segment.first)])
            _copy_frames(source, last, file, found.synced_pos, found.end, segment)
        finally:
            source.close()
        file.sync()
        files.rename(draft, segment.path)
        files.sync_directory(directory)
        size = file.size()
        marker = encode_marker(Marker(nonce, size, found.next_offset, size), found.next_offset)
        append_all(file, [marker])
    except BaseException:
        file.close()
        raise
    return segment, file, size + len(marker)


def _copy_frames(source: File, last: Segment, target: File, at: int, stop: int, segment: Segment) -> None:
    offset = segment.first
    want = READ_BYTES
    while at < stop:
        data = source.read(at, min(want, stop - at))
        scan = scan_run(data, first_offset=offset)
        if not scan.end:
            if len(data) < want:
                raise CorruptLogError(str(last.path), at, offset, "the last marker names another place for this offset")
            want *= 2
            continue
        segment.note(offset, target.size())
        append_all(target, [strip_markers(memoryview(data)[: scan.end])])
        at += scan.end
        offset = scan.next_offset
        want = READ_BYTES


def _check_readable(files: Files, segments: Sequence[Segment]) -> None:
    for segment, after in pairwise(segments):
        try:
            segment.size = size_of(files, segment.path)
        except OSError as error:
            raise unreadable(segment, after.first, error) from error
        if not segment.size and after.first > segment.first:
            raise MissingFileError(str(segment.path), segment.first, after.first, "is empty")


def size_of(files: Files, path: Path) -> int:
    """Return the size of a file that can be opened."""
    file = files.open_read(path)
    try:
        return file.size()
    finally:
        file.close()


def use_checkpoint(files: Files, directory: Path, segments: Sequence[Segment]) -> None:
    """Set the index and the append time of sealed files from the checkpoint, where it fits them."""
    try:
        known = load_checkpoint(read_file(files, directory / CHECKPOINT_NAME))
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("checkpoint_not_read", directory=str(directory), cause=error.strerror)
        return
    for segment, after in pairwise(segments):
        entry = known.get(segment.seq)
        if entry is not None and (entry.first, entry.stop) == (segment.first, after.first):
            segment.index = list(entry.index)
            segment.append_time_us = entry.append_time_us


def _last_append_time(files: Files, sealed: Sequence[Segment], stop: int) -> int:
    """Return the append time of the newest message in sealed files, so that time never goes back."""
    for segment in reversed(sealed):
        if segment.first < stop and not segment.append_time_us:
            segment.append_time_us = scan_file(files, segment, stop).append_time_us
        if segment.append_time_us:
            return segment.append_time_us
        stop = segment.first
    return 0


def damage(files: Files, segment: Segment, found: Recovery) -> CorruptError:
    """Return the error for a corrupt file."""
    if not found.unknown_format:
        return CorruptLogError(str(segment.path), found.end, found.next_offset, found.reason)
    file = files.open_read(segment.path)
    try:
        kind, version = file.read(found.end + HEADER_BYTES, 2).ljust(2, b"\0")
    finally:
        file.close()
    return UnknownFormatError(str(segment.path), found.end, kind, version)
