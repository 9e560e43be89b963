"""Verification of a log directory: every byte of every file, and that no file is missing.

Nothing is locked and nothing is written, so the log may be in use meanwhile. A file that is pruned while it is read is no
loss; damage is reported if a second read finds it, too; files that appear after the first listing are
not read.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING

from ister.core.errors import CorruptError, CorruptLogError, InputError, MissingFileError, UnknownFormatError
from ister.core.frames.frame import HEADER_BYTES, FrameDecoder, Marker
from ister.core.frames.recover import Recovery, Scanner, Verdict
from ister.core.retry import is_transient
from ister.ports.files.files import OsFiles
from ister.wal.config import WalConfig
from ister.wal.directory import READ_BYTES, FileNames, Segment, missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ister.ports.files.files import File


class FileVerdict(Enum):
    """The state of one file; PRUNED: during the check."""

    CLEAN = "clean"
    TORN = "torn"
    CORRUPT = "corrupt"
    MISSING = "missing"
    PRUNED = "gone"


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file: its messages [first, stop) fill the bytes [0, end); what follows them is torn, corrupt or superseded.

    Messages below `synced` are known to be on disk. `problem` is the error that opening the log would raise.
    """

    name: str
    verdict: FileVerdict
    first: int
    stop: int
    synced: int
    size: int = 0
    end: int = 0
    superseded_bytes: int = 0
    reason: str = ""
    problem: CorruptError | None = None

    @property
    def messages(self) -> int:
        """The number of valid messages."""
        return self.stop - self.first

    @property
    def bad_bytes(self) -> int:
        """The number of bytes at the end that are no valid frame."""
        return self.size - self.end - self.superseded_bytes


@dataclass(frozen=True, slots=True)
class Report:
    """The files of one directory, in order."""

    directory: str
    files: tuple[FileReport, ...]

    @property
    def problems(self) -> list[CorruptError]:
        """All errors that opening or reading the log would raise; empty when it is sound."""
        return [file.problem for file in self.files if file.problem is not None]

    @property
    def present(self) -> list[FileReport]:
        """The files that could be read."""
        return [file for file in self.files if file.verdict not in {FileVerdict.PRUNED, FileVerdict.MISSING}]

    @property
    def verdict(self) -> Verdict:
        """Corrupt when anything is damaged or missing, torn when only the end is, else clean."""
        if self.problems:
            return Verdict.CORRUPT
        return Verdict.TORN if any(file.verdict is FileVerdict.TORN for file in self.files) else Verdict.CLEAN


def verify_log(directory: Path, file_name: str, show: Callable[[int, int], None]) -> Report:
    """Check every file of a log with this configured file name."""
    return verify_directory(directory, FileNames.of(WalConfig(file_name=file_name).file_name), show)


def verify_directory(directory: Path, names: FileNames, show: Callable[[int, int], None]) -> Report:
    """Check every file of a directory; `show` is called with the bytes read and their total."""
    segments = list_log(directory, names)
    if not segments:
        raise InputError(str(directory), _why_nothing(directory, names))
    total = sum(_size_of(segment) for segment in segments)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done = min(done + count, total)
        show(done, total)

    followers = [*segments[1:], None]
    checked = [
        _check_file(directory, names, segment, follower, advance)
        for segment, follower in zip(segments, followers, strict=True)
    ]
    return Report(str(directory), tuple(_with_gaps(names, segments, checked)))


def _size_of(segment: Segment) -> int:
    try:
        return segment.path.stat().st_size
    except FileNotFoundError:
        return 0  # pruned since it was listed


def _check_file(
    directory: Path, names: FileNames, segment: Segment, follower: Segment | None, advance: Callable[[int], None]
) -> FileReport:
    limit = limit_of(segment, follower)
    try:
        found, own_end = scan_file(segment, limit, advance)
        if found.verdict is not Verdict.CLEAN:
            # A writer may have truncated a frame or rotated to the next file meanwhile. Real damage
            # is found a second time.
            limit = limit_of(segment, follower_of(segment, list_log(directory, names)))
            found, own_end = scan_file(segment, limit, no_progress)
    except FileNotFoundError as error:
        return _vanished(directory, names, segment, limit, error)
    except PermissionError:
        raise
    except (OSError, InputError) as error:
        if is_transient(error):
            raise
        return _unreadable(segment, limit, error)
    superseded = found.size - own_end if limit == found.next_offset else 0
    return FileReport(
        name=segment.path.name,
        verdict=FileVerdict(found.verdict.value),
        first=segment.first,
        stop=found.next_offset,
        # A file is synced before the next one is created, whatever its markers record.
        synced=found.next_offset if limit is not None else min(found.synced_offset, found.next_offset),
        size=found.size,
        end=own_end,
        superseded_bytes=superseded,
        reason=found.reason,
        problem=corruption_of(segment, found) if found.verdict is Verdict.CORRUPT else None,
    )


def _vanished(
    directory: Path, names: FileNames, segment: Segment, limit: int | None, error: FileNotFoundError
) -> FileReport:
    """Report a deleted file: pruned if it was the oldest, else missing, because pruning deletes the oldest files first."""
    left = list_log(directory, names)
    if not left or left[0].seq < segment.seq:
        return _unreadable(segment, limit, error)
    stop = segment.first if limit is None else limit
    return FileReport(segment.path.name, FileVerdict.PRUNED, segment.first, stop, stop)


def _unreadable(segment: Segment, limit: int | None, error: OSError | InputError) -> FileReport:
    problem = (
        missing(segment, limit, error)
        if isinstance(error, OSError)
        else MissingFileError(str(segment.path), segment.first, -1 if limit is None else limit, error.reason)
    )
    return FileReport(
        segment.path.name, FileVerdict.MISSING, segment.first, segment.first, segment.first,
        reason=problem.reason, problem=problem,
    )  # fmt: skip


def _with_gaps(names: FileNames, segments: list[Segment], checked: list[FileReport]) -> Iterator[FileReport]:
    """Yield the reports, with problems between two files: one missing, or names that contradict each other."""
    yield checked[0]
    for (before, earlier), (after, later) in pairwise(zip(segments, checked, strict=True)):
        wrong_name = ""
        if after.seq == before.seq:
            wrong_name = f"{before.path.name} has the same sequence"
        elif after.seq == before.seq + 1 and after.first < before.first:
            wrong_name = f"its name says it starts at offset {after.first}"
        elif after.seq != before.seq + 1 and earlier.verdict is not FileVerdict.PRUNED:
            yield _missing(names, before, after, earlier.stop)
        if wrong_name:
            problem = CorruptLogError(str(after.path), 0, earlier.stop, wrong_name)
            yield replace(later, verdict=FileVerdict.CORRUPT, reason=wrong_name, problem=problem)
        else:
            yield later


def _missing(names: FileNames, before: Segment, after: Segment, start: int) -> FileReport:
    name = f"{names.stem}-{before.seq + 1:010}-*.{names.suffix}"
    start = min(start, after.first)
    problem = MissingFileError(str(before.path.with_name(name)), start, after.first, "is missing")
    return FileReport(name, FileVerdict.MISSING, start, start, start, reason=problem.reason, problem=problem)


def _why_nothing(directory: Path, names: FileNames) -> str:
    others = (FileNames.from_log_file(path.name) for path in directory.iterdir())
    other = next((found for found in others if found is not None), None)
    if other is not None:
        return f"has log files of another name; add --file-name {other.stem}.{other.suffix}"
    return (
        f"has no log files ({names.stem}-<sequence>-<first offset>.{names.suffix}); give the directory of one log, "
        "like <data-dir>/wal/<namespace>/<topic>/<generation>"
    )


# --- log files --------------------------------------------------------------------------------------------------------


def list_log(directory: Path, names: FileNames) -> list[Segment]:
    """Return the log files of a directory, in order.

    A listing is not atomic. While files are created and deleted, it may have an old one and not a newer one, which would
    look like a missing file; so it is repeated until two listings agree, a few times at most.
    """
    files = OsFiles()
    listed = files.names(directory)
    for _ in range(10):
        again = files.names(directory)
        if again == listed:
            break
        listed = again
    return names.parse(directory, listed)


def follower_of(segment: Segment, segments: list[Segment]) -> Segment | None:
    """Return the next file of the log, whether or not one is missing between them."""
    return next((other for other in segments if other.seq > segment.seq), None)


def limit_of(segment: Segment, follower: Segment | None) -> int | None:
    """Return the offset at which a file's messages end, if the next file is there."""
    if follower is None or follower.seq != segment.seq + 1 or follower.first < segment.first:
        return None
    return follower.first


@contextmanager
def reading(path: Path) -> Iterator[File]:
    """Open a regular file for reading; refuse anything else, because a pipe could block for ever."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise InputError(str(path), "is not a regular file; give the path of a log file")
    file = OsFiles().open_read(path)
    try:
        yield file
    finally:
        file.close()


def scan_file(segment: Segment, limit: int | None, advance: Callable[[int], None]) -> tuple[Recovery, int]:
    """Scan one file from its first byte; return the recovery's result, and the end of the file's own bytes.

    Markers at the limit still belong to the file. Only what follows them was superseded.
    """
    scanner = Scanner(segment.first, limit=limit)
    with reading(segment.path) as file:
        at = 0
        while data := file.read(at, READ_BYTES):
            scanner.feed(data)
            at += len(data)
            advance(len(data))
        found = scanner.finish()
        own_end = found.end
        if limit == found.next_offset:
            own_end = _behind_markers(file, segment, found)
    return found, own_end


def corruption_of(segment: Segment, found: Recovery) -> CorruptError:
    """Return the error that opening the log would raise."""
    if found.unknown_format:
        with reading(segment.path) as file:
            kind, version = file.read(found.end + HEADER_BYTES, 2).ljust(2, b"\0")
        return UnknownFormatError(str(segment.path), found.end, kind, version)
    return CorruptLogError(str(segment.path), found.end, found.next_offset, found.reason)


def no_progress(_: int) -> None:
    """Ignore a progress report."""


def _behind_markers(file: File, segment: Segment, found: Recovery) -> int:
    decoder = FrameDecoder(str(segment.path), first_offset=found.next_offset, at=found.end)
    try:
        for frame in decoder.feed(file.read(found.end, READ_BYTES)):
            if not isinstance(frame.content, Marker):
                return frame.at
    except CorruptError:
        return decoder.at  # what follows was superseded and is never read
    return decoder.at
