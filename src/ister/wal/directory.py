"""Open a log's directory: lock it, judge its files, bring its tail to safety; and the names of its files.

Names and bytes are the truth. A file's name says its sequence and first offset; a file's messages end where the next
file's begin. What lies behind that point in a file was superseded when the log was opened after a crash: the whole,
unsynced frames were copied to the next file and synced there, and the old bytes stay as they were, as evidence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import structlog

from ister.core.columns import scan_run, strip_markers
from ister.core.errors import (
    CorruptLogError,
    InvalidConfigError,
    MissingFileError,
    ResourceExhaustedError,
    UnknownFormatError,
)
from ister.core.frame import HEADER_BYTES, Marker, encode_marker
from ister.core.recover import Recovery, Scanner, Verdict
from ister.core.retry import is_transient
from ister.ports.files import DRAFT, append_all, as_busy, close_file, create_draft, said
from ister.wal.checkpoint import CHECKPOINT_NAME, SealedFile, load_checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ister.ports.files import File, Files, Lock

log = structlog.get_logger()

_LOG_NAME = re.compile(r"(.+)-(\d{10})-(\d{20})\.([^.]+)", re.ASCII | re.DOTALL)
_DRAFTED = frozenset({CHECKPOINT_NAME, "cursors.json", "upload.json"})
"""The files beside the log that are replaced whole, by way of a draft."""

ASIDE = ".aside"
"""What is added to the name of a file that is no longer part of the log, because objects hold more."""

READ_BYTES = 1024 * 1024
"""How much of a file is read at a time, and how far apart the places are that can be sought."""


@dataclass(slots=True)
class Segment:
    """One log file: where it is, where its messages start, its size once it is sealed, and places in it to seek by."""

    seq: int
    first: int
    path: Path
    append_time_us: int = 0
    size: int = 0
    index: list[tuple[int, int]] = field(default_factory=list)

    def place(self, offset: int) -> tuple[int, int]:
        """Return the nearest known (offset, byte) at or before `offset`."""
        low, high = 0, len(self.index)
        while low < high:
            middle = (low + high) // 2
            if self.index[middle][0] <= offset:
                low = middle + 1
            else:
                high = middle
        return self.index[low - 1] if low else (self.first, 0)

    def note(self, offset: int, at: int) -> None:
        """Remember a place, if it is far enough from the last one."""
        if not self.index or at >= self.index[-1][1] + READ_BYTES:
            self.index.append((offset, at))


@dataclass(frozen=True, slots=True)
class FileNames:
    """How this log's files are called: `wal.log` gives `wal-<sequence>-<first offset>.log`."""

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
        """Return how a log is called that has a file of this name; None if it is not the name of a log file."""
        match = _LOG_NAME.fullmatch(name)
        return cls(match[1], match[4]) if match else None

    def parse(self, directory: Path, names: Sequence[str]) -> list[Segment]:
        """Return the log files among these names, in order."""
        found = [match for name in names if (match := _LOG_NAME.fullmatch(name)) and self.from_log_file(name) == self]
        return sorted((Segment(int(m[2]), int(m[3]), directory / m[0]) for m in found), key=lambda s: s.seq)

    def refuse_others(self, directory: Path, names: Sequence[str]) -> None:
        """Raise InvalidConfigError if there are files of a log with another name, which would be out of sight."""
        for name in names:
            other = self.from_log_file(name)
            if other is not None and other != self:
                raise InvalidConfigError(
                    "file_name",
                    f"{self.stem}.{self.suffix} is not the name of the log in {directory}, which holds {name}; set "
                    f"file_name to {other.stem}.{other.suffix}, or move that log's files away if it is not wanted",
                )

    def is_draft(self, name: str) -> bool:
        """Return True if this is a file that was being written when a process died."""
        target = name.removesuffix(DRAFT)
        return target != name and (target in _DRAFTED or self.from_log_file(target) == self)


@dataclass(frozen=True, slots=True)
class Resume:
    """Where objects end, and the append time of their last message: a log that ends earlier starts anew there."""

    offset: int
    append_time_us: int


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """A log that is ready to be appended to: its files, the last of them open or at rest, and where it stands."""

    lock: Lock
    segments: list[Segment]
    active: File
    active_bytes: int
    nonce: int
    next_offset: int
    append_time_us: int
    resting: bool = False

    def abandon(self) -> None:
        """Let go of it without touching it."""
        if not self.resting:
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
    """Take ownership of a directory and make its log ready; changes nothing when it refuses.

    `within` is a lock that the caller holds on a directory above. Where open files are counted, the log's last file is
    closed again, and opened when something is appended.
    """
    try:
        files.make_directory(directory)
        lock = files.lock(directory, within)
        try:
            opened = _open_locked(files, directory, names, nonce, lock)
            if resume is not None and opened.next_offset < resume.offset:
                close_file(opened.active, opened.segments[-1].path.name)
                return _start_behind(files, directory, names, nonce, opened, resume)
            return opened if files.slots is None else _put_to_rest(opened)
        except BaseException:
            lock.release()
            raise
    except OSError as error:
        busy = as_busy(error, log_name, f"open the log in {directory}")
        if busy is None:
            raise
        raise busy from error


def _put_to_rest(opened: OpenedLog) -> OpenedLog:
    """Close the last file, all of it durable; a new one stays open, for its opening marker is not written yet."""
    if not opened.active_bytes:
        return opened
    try:
        opened.active.sync()
    finally:
        close_file(opened.active, opened.segments[-1].path.name)
    return replace(opened, resting=True)


def _start_behind(
    files: Files, directory: Path, names: FileNames, nonce: int, opened: OpenedLog, resume: Resume
) -> OpenedLog:
    """Set a log aside that is behind what objects hold, and start a new file where they end.

    Oldest first: a crash in between leaves a log that starts later, or none, and objects hold all of it.
    """
    taken = set(files.names(directory))
    for segment in opened.segments:
        aside = segment.path.name + ASIDE
        while aside in taken:
            aside += ASIDE  # what an earlier loss has left stays, too
        files.rename(segment.path, segment.path.with_name(aside))
        files.sync_directory(directory)
    seq = opened.segments[-1].seq + 1
    segment = Segment(seq, resume.offset, directory / names.name(seq, resume.offset))
    file = files.create_durable(segment.path)
    log.warning("log_behind", directory=str(directory), log_stop=opened.next_offset, objects_stop=resume.offset)
    append_time_us = max(opened.append_time_us, resume.append_time_us)
    return OpenedLog(opened.lock, [segment], file, 0, nonce, resume.offset, append_time_us)


def judge_file(files: Files, segment: Segment, limit: int | None) -> Recovery:
    """Read one file from its first byte and judge it."""
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


def check_sequence(files: Files, segments: Sequence[Segment], names: FileNames) -> None:
    """Refuse a log with a file missing between two others, naming the offsets that are gone."""
    for before, after in pairwise(segments):
        if after.seq != before.seq + 1:
            gone = names.name(before.seq + 1, 0).replace("0" * 20, "*")
            start = judge_file(files, before, None).next_offset
            raise MissingFileError(str(before.path.with_name(gone)), start, after.first, "is missing")
        if after.first < before.first:
            raise CorruptLogError(str(after.path), 0, before.first, f"its name says it starts at offset {after.first}")


def unreadable(segment: Segment, stop: int | None, error: OSError) -> MissingFileError | ResourceExhaustedError:
    """Return the error for a file that could not be read: damage only if it would fail again."""
    if is_transient(error):
        return ResourceExhaustedError(f"read {segment.path}", said(error))
    return missing(segment, stop, error)


def missing(segment: Segment, stop: int | None, error: OSError) -> MissingFileError:
    """Name a file that is there and cannot be read, or is not there."""
    reason = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
    return MissingFileError(str(segment.path), segment.first, -1 if stop is None else stop, reason)


def read_checkpoint(files: Files, directory: Path) -> dict[int, SealedFile]:
    """Return what the checkpoint says of sealed files; empty when it cannot be had."""
    try:
        file = files.open_read(directory / CHECKPOINT_NAME)
        try:
            return load_checkpoint(file.read(0, file.size()))
        finally:
            file.close()
    except FileNotFoundError:
        return {}
    except OSError as error:
        log.warning("checkpoint_not_read", directory=str(directory), cause=error.strerror)
        return {}


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
    # A process that was killed between making a file and syncing its name leaves a name that power loss would take.
    files.sync_directory(directory)
    check_sequence(files, segments, names)
    _check_readable(files, segments)
    _use_checkpoint(files, directory, segments)
    last = segments[-1]
    found = judge_file(files, last, None)
    if found.verdict is Verdict.CORRUPT:
        if found.unknown_format:
            raise UnknownFormatError(str(last.path), found.end, *_kind_at(files, last, found.end))
        raise CorruptLogError(str(last.path), found.end, found.next_offset, found.reason)
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
    """Open a file to go on with: its unattested markers written again, and its end made durable.

    The markers may be pages that a failed sync has left clean and unwritten; in front of new messages they must be
    real. And a process that was killed after it had cut a refused message off may have died before that was synced.
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

    Always, not only after a failed sync: a process that died cannot say whether its last sync failed, and after a
    failed one the kernel calls pages clean that never reached the disk. Copying makes them dirty again.
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
    """Return how many bytes a file has that can be opened."""
    file = files.open_read(path)
    try:
        return file.size()
    finally:
        file.close()


def _use_checkpoint(files: Files, directory: Path, segments: Sequence[Segment]) -> None:
    known = read_checkpoint(files, directory)
    for segment, after in pairwise(segments):
        entry = known.get(segment.seq)
        if entry is not None and (entry.first, entry.stop) == (segment.first, after.first):
            segment.index = list(entry.index)
            segment.append_time_us = entry.append_time_us


def _last_append_time(files: Files, sealed: Sequence[Segment], stop: int) -> int:
    """Return the append time of the newest message in sealed files, so that time never goes back."""
    for segment in reversed(sealed):
        if segment.first < stop and not segment.append_time_us:
            segment.append_time_us = judge_file(files, segment, stop).append_time_us
        if segment.append_time_us:
            return segment.append_time_us
        stop = segment.first
    return 0


def _kind_at(files: Files, segment: Segment, at: int) -> tuple[int, int]:
    file = files.open_read(segment.path)
    try:
        body = file.read(at + HEADER_BYTES, 2)
    finally:
        file.close()
    return body[0], body[1] if len(body) > 1 else 0
