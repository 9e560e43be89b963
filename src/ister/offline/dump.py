"""The frames of one log file, and what follows them.

A file can end in five ways: whole; in the middle of a frame, because a writer is at work or a crash cut it short
(torn); with bytes that a later file has superseded; in damage that a marker proves to be loss (corrupt); or it was
never a log file. Reads a MiB at a time, locks nothing, writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ister.core.errors import CorruptError, InputError
from ister.core.frames.frame import Frame, FrameDecoder, Marker
from ister.core.frames.recover import Verdict
from ister.offline.verify_log import corruption_of, follower_of, limit_of, list_log, no_progress, reading, scan_file
from ister.wal.directory import READ_BYTES, FileNames, Segment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ister.ports.files.files import File


@dataclass(frozen=True, slots=True)
class EmptyFile:
    """A log file that has no byte yet."""


@dataclass(frozen=True, slots=True)
class NoFrames:
    """The file has no frame at or behind the requested offset; its messages end before `next_offset`."""

    next_offset: int


@dataclass(frozen=True, slots=True)
class Superseded:
    """The last `size` bytes, from byte `at` on, were superseded by the next file."""

    at: int
    size: int
    follower: str


@dataclass(frozen=True, slots=True)
class TornTail:
    """The last `size` bytes, from byte `at` on, where `offset` should be, are no whole frame."""

    at: int
    size: int
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class FileGrew:
    """The file was written to while it was read."""


Ending = EmptyFile | NoFrames | Superseded | TornTail | FileGrew


def dump_file(path: Path, start: int, limit: int | None) -> Iterator[Frame | Ending]:
    """Yield the frames of a file from an offset on, at most `limit`, then what follows them; raise CorruptError for damage."""
    with reading(path) as file:
        segment, follower = _locate(path)
        if file.size() == 0:
            if segment is None:
                raise InputError(str(path), "is empty and is not named like a log file; check the path")
            yield EmptyFile()
            return
        scan = _Scan(path, file, segment, limit_of(segment, follower) if segment else None)
        count = 0
        try:
            for count, frame in enumerate((frame for frame in scan.frames() if frame.offset >= start), 1):
                yield frame
                if count == limit:
                    return
        except CorruptError as error:
            yield _damage(path, segment, scan, error)
        else:
            yield from _end(path, segment, follower, scan)
        if not count:
            yield NoFrames(scan.next_offset)


class _Scan:
    """The frames that belong to a file: up to the limit that the next file sets, or to its size at the beginning."""

    def __init__(self, path: Path, file: File, segment: Segment | None, limit: int | None) -> None:
        self._file = file
        self._decoder = FrameDecoder(str(path), first_offset=segment.first if segment else None)
        self.limit = limit
        self.next_offset = segment.first if segment else -1
        self.size = file.size()
        self.frame_count = 0

    @property
    def end(self) -> int:
        """Where the frames that belong to the file end."""
        return self._decoder.at

    @property
    def at_limit(self) -> bool:
        """Whether every message that belongs to this file and not to the next was read."""
        return self.limit is not None and self.next_offset >= self.limit

    def frames(self) -> Iterator[Frame]:
        at = 0
        try:
            while data := self._file.read(at, READ_BYTES):
                at += len(data)
                for frame in self._decoder.feed(data):
                    message = not isinstance(frame.content, Marker)
                    # A file that grows meanwhile is not followed, or the dump of a busy log would never end.
                    if frame.at >= self.size or (message and self.at_limit):
                        return
                    self.next_offset = frame.offset + message
                    self.frame_count += 1
                    yield frame
        except CorruptError:
            if not self.at_limit:
                raise


def _locate(path: Path) -> tuple[Segment | None, Segment | None]:
    """Return the segment of a log that a file is, and the one that follows it."""
    names = FileNames.from_log_file(path.name)
    if names is None:
        return None, None
    (segment,) = names.parse(path.parent, [path.name])
    return segment, follower_of(segment, list_log(path.parent, names))


def _end(path: Path, segment: Segment | None, follower: Segment | None, scan: _Scan) -> Iterator[Ending]:
    rest = scan.size - scan.end
    if not scan.at_limit:
        if rest > 0 or scan.limit is not None:
            yield _damage(path, segment, scan, None)
    elif rest > 0 and follower is not None:
        yield Superseded(scan.end, rest, follower.path.name)


def _damage(path: Path, segment: Segment | None, scan: _Scan, error: CorruptError | None) -> Ending:
    """Return a torn tail, which is normal after a crash, or raise the damage; without an error the file ends too early."""
    if not scan.frame_count and segment is None:
        raise InputError(str(path), "is not a log file: no frame starts at its first byte; check the path") from error
    # The log may have been written to meanwhile: scan the file as it is now, with the limit that holds now.
    here, follower = _locate(path)
    scanned = here or Segment(0, -1, path)
    found, _ = scan_file(scanned, limit_of(scanned, follower), no_progress)
    if found.verdict is Verdict.TORN and follower is None:
        return TornTail(found.end, found.size - found.end, found.next_offset, found.reason)
    if found.verdict is Verdict.CLEAN:
        if error is None:
            return FileGrew()
        raise error
    raise corruption_of(scanned, found)
