"""Decide what a path is: which log file, what follows it, and whether it is safe to read at all."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ister.cli.exits import InputError
from ister.core.errors import CorruptError, CorruptLogError, UnknownFormatError
from ister.core.frame import HEADER_BYTES, FrameDecoder, Marker
from ister.core.recover import Recovery, Scanner
from ister.ports.files import OsFiles
from ister.wal.directory import READ_BYTES, FileNames, Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ister.ports.files import File


def names_of(path: Path) -> FileNames | None:
    """Return how the files beside this one are called, if its name is that of a log file."""
    return FileNames.from_log_file(path.name)


def list_log(directory: Path, names: FileNames) -> list[Segment]:
    """Return the log files of a directory, in order.

    A directory is not listed at one moment. While files come and go, a listing may show an old one and not a newer
    one, which would look like a missing file; so it is listed until two listings agree, a few times at most.
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
    """Return the offset at which a file's messages end, if the next file says so."""
    if follower is None or follower.seq != segment.seq + 1 or follower.first < segment.first:
        return None
    return follower.first


@contextmanager
def reading(path: Path) -> Iterator[File]:
    """Open a regular file to read; anything else is refused, because a pipe could block for ever."""
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


def judge(segment: Segment, limit: int | None, advance: Callable[[int], None]) -> tuple[Recovery, int]:
    """Read one file from its first byte; returns what it is worth, and where its own bytes end.

    Markers that stand at the limit are still the file's own. Only what follows them was superseded.
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


def damage_in(segment: Segment, found: Recovery) -> CorruptError:
    """Name the damage that was found, as opening the log would."""
    if found.unknown_format:
        with reading(segment.path) as file:
            kind, version = file.read(found.end + HEADER_BYTES, 2).ljust(2, b"\0")
        return UnknownFormatError(str(segment.path), found.end, kind, version)
    return CorruptLogError(str(segment.path), found.end, found.next_offset, found.reason)


def nothing_to_show(_: int) -> None:
    """Take a progress report and show none."""


def _behind_markers(file: File, segment: Segment, found: Recovery) -> int:
    decoder = FrameDecoder(str(segment.path), first_offset=found.next_offset, at=found.end)
    try:
        for frame in decoder.feed(file.read(found.end, READ_BYTES)):
            if not isinstance(frame.content, Marker):
                return frame.at
    except CorruptError:
        return decoder.at  # what follows was superseded: nobody relies on it, so it is not judged
    return decoder.at
