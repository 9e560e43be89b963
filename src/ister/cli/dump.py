"""Show a log file frame by frame, and say honestly what stands where the frames end.

A file can end in five ways: whole; in the middle of a frame, because a writer is at work or a crash cut it short
(torn); with bytes that a later file has superseded; in damage that a marker proves to be loss (corrupt); or it was
never a log file. Reads a MiB at a time, locks nothing, writes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ister.cli.display import many, notice, say
from ister.cli.exits import InputError
from ister.cli.log_files import damage_in, follower_of, judge, limit_of, list_log, names_of, nothing_to_show, reading
from ister.core.errors import CorruptError
from ister.core.frame import Frame, FrameDecoder, Marker
from ister.core.recover import Verdict
from ister.wal.directory import READ_BYTES, Segment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ister.cli.frame_lines import FrameLines
    from ister.ports.files import File


def dump_file(path: Path, shown: FrameLines, start: int, limit: int | None) -> None:
    """Write the frames of a file from an offset on, at most `limit` of them, then what is wrong behind them."""
    with reading(path) as file:
        segment, follower = _place(path)
        if file.size() == 0:
            _say_empty(path, segment)
            return
        walk = _Walk(path, file, segment, limit_of(segment, follower) if segment else None)
        wanted = (frame for frame in walk.frames() if frame.offset >= start)
        count = 0
        try:
            for count, frame in enumerate(wanted, 1):
                if count == 1:
                    _write(shown.heading)
                _write(shown.lines(frame))
                if count == limit:
                    return
        except CorruptError as error:
            _explain_damage(path, segment, walk, error)
        else:
            _explain_end(path, segment, follower, walk)
        if not count:
            notice(f"{path.name} has no frame at or behind offset {start}; its messages end before {walk.next_offset}.")


class _Walk:
    """The frames that belong to a file: up to the limit that the next file sets, or to its size at the beginning."""

    def __init__(self, path: Path, file: File, segment: Segment | None, limit: int | None) -> None:
        self._file = file
        self._decoder = FrameDecoder(str(path), first_offset=segment.first if segment else None)
        self.limit = limit
        self.next_offset = segment.first if segment else -1
        self.size = file.size()
        self.seen = 0

    @property
    def end(self) -> int:
        """Where the frames that belong to the file end."""
        return self._decoder.at

    @property
    def at_limit(self) -> bool:
        """Whether every message that the next file leaves to this one was seen."""
        return self.limit is not None and self.next_offset >= self.limit

    def frames(self) -> Iterator[Frame]:
        at = 0
        try:
            while data := self._file.read(at, READ_BYTES):
                at += len(data)
                for frame in self._decoder.feed(data):
                    message = not isinstance(frame.content, Marker)
                    # A file that grows while we read is not followed, or a busy log would never be done.
                    if frame.at >= self.size or (message and self.at_limit):
                        return
                    self.next_offset = frame.offset + message
                    self.seen += 1
                    yield frame
        except CorruptError:
            if not self.at_limit:
                raise


def _place(path: Path) -> tuple[Segment | None, Segment | None]:
    """Return which file of a log this is, and the one that follows it."""
    names = names_of(path)
    if names is None:
        return None, None
    (segment,) = names.parse(path.parent, [path.name])
    return segment, follower_of(segment, list_log(path.parent, names))


def _write(lines: Iterator[str] | tuple[str, ...]) -> None:
    for line in lines:
        say(line)


def _say_empty(path: Path, segment: Segment | None) -> None:
    if segment is None:
        raise InputError(str(path), "is empty and is not named like a log file; check the path")
    notice(f"{path.name} has no frames yet: it is empty.")


def _explain_end(path: Path, segment: Segment | None, follower: Segment | None, walk: _Walk) -> None:
    rest = walk.size - walk.end
    if not walk.at_limit:
        if rest > 0 or walk.limit is not None:
            _explain_damage(path, segment, walk, None)
    elif rest > 0 and follower is not None:
        notice(
            f"{many(rest, 'byte')} behind byte {walk.end} were superseded by {follower.path.name}: after a crash the "
            "log was opened again, and the whole messages among them were copied there."
        )


def _explain_damage(path: Path, segment: Segment | None, walk: _Walk, error: CorruptError | None) -> None:
    """Say that it is a torn tail, which is normal after a crash, or raise what it is; no error: it ends too early."""
    if not walk.seen and segment is None:
        raise InputError(str(path), "is not a log file: no frame starts at its first byte; check the path") from error
    # The log may have gone on meanwhile: judge what is there now, with the limit that holds now.
    here, follower = _place(path)
    judged = here or Segment(0, -1, path)
    found, _ = judge(judged, limit_of(judged, follower), nothing_to_show)
    if found.verdict is Verdict.TORN and follower is None:
        notice(
            f"{path.name} has a torn tail: {many(found.size - found.end, 'byte')} from byte {found.end} on, where "
            f"offset {found.next_offset} should be, are no whole frame ({found.reason}). This is normal after a crash "
            "and while the log is in use; the next open keeps every message before it."
        )
    elif found.verdict is Verdict.CLEAN and error is None:
        notice(f"{path.name} was written to while it was read; run it again to see the rest.")
    elif error is not None and found.verdict is Verdict.CLEAN:
        raise error
    else:
        raise damage_in(judged, found)
