"""Look at a log that another process may be writing: its files as they are now, read only, nothing locked.

Names and bytes are the truth, as when a log is opened, but nothing is mended: a torn tail is normal beside a writer, so
whole frames count and the rest does not. What vanishes or looks damaged is looked at again before that is believed: the
writer may have pruned it, cut it back, or gone on to the next file.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ister.core.columns import messages_of
from ister.core.errors import (
    CorruptError,
    CorruptLogError,
    MissingFileError,
    OffsetOutOfRangeError,
    UnknownFormatError,
)
from ister.core.frame import HEADER_BYTES
from ister.core.recover import Verdict
from ister.wal.config import WalConfig
from ister.wal.directory import FileNames, Segment, check_sequence, judge_file, read_checkpoint, size_of, unreadable
from ister.wal.reader import read_segment

if TYPE_CHECKING:
    from pathlib import Path

    from ister.core.message import StreamMessage
    from ister.core.offsets import StartPosition
    from ister.core.recover import Recovery
    from ister.ports.files import Files

LOOKS = 10
"""How often a log that changes while it is looked at is looked at anew."""


class Tail(NamedTuple):
    """How the last file ends: what a marker attests, the newest message's time, and bytes that are no whole frame."""

    synced_offset: int
    append_time_us: int
    torn_bytes: int


class LogView:
    """A log's files at one moment; `LogView.open` looks, `refresh` looks again. Both block.

    It has what a reader over tiers asks of a log, and stands in its place there.
    """

    def __init__(self, files: Files, config: WalConfig, start_offset: int = 0) -> None:
        self.config = config
        self.closed = False
        self.files = files
        self.segments: list[Segment] = []
        self.tail = Tail(start_offset, 0, 0)
        self._names = FileNames.of(config.file_name)
        self._next = start_offset

    @classmethod
    def open(cls, files: Files, directory: Path, file_name: str = "wal.log", *, topic: str = "") -> LogView:
        """Look at a directory; FileNotFoundError when there is none, CorruptError when the log would not open."""
        view = cls(files, WalConfig(dir=directory, file_name=file_name, topic=topic))
        view.refresh()
        return view

    @property
    def start_offset(self) -> int:
        """The oldest offset that the files hold."""
        return self.segments[0].first if self.segments else self._next

    @property
    def next_offset(self) -> int:
        """The offset behind the last whole message that was seen."""
        return self._next

    @property
    def size(self) -> int:
        """How many bytes the files had."""
        return sum(segment.size for segment in self.segments)

    def locate(self, offset: int) -> tuple[Segment, int] | None:
        """Return the file that holds an offset, and the offset at which its messages end."""
        stop = self._next
        for segment in reversed(self.segments):
            if segment.first <= offset:
                return segment, stop
            stop = segment.first
        return None

    def create_reader(self, position: StartPosition) -> ViewReader:
        """Read from a position on, to the end that was seen."""
        offset = self._next if position.at is None else position.at
        if not self.start_offset <= offset <= self._next:
            raise OffsetOutOfRangeError(offset, self.start_offset, self._next)
        return ViewReader(self, offset)

    def refresh(self) -> None:
        """Look again; what was seen before stays when that fails."""
        told = ""
        for _ in range(LOOKS):
            segments = self._list()
            try:
                self._look(segments)
            except (CorruptError, FileNotFoundError) as error:
                failure = error
                if str(error) == told:
                    break
                told = str(error)
            else:
                return
        if isinstance(failure, FileNotFoundError):
            gone = MissingFileError(str(failure.filename), segments[0].first, -1, "is missing")
            raise gone from failure
        raise failure

    def _list(self) -> list[Segment]:
        """Return the files in order.

        A directory is not listed at one moment. While files come and go, a listing may show an old one and not a newer
        one, so it is listed until two listings agree.
        """
        directory = self._directory
        listed = self.files.names(directory)
        for _ in range(LOOKS):
            again = self.files.names(directory)
            if again == listed:
                break
            listed = again
        self._names.refuse_others(directory, listed)
        return self._names.parse(directory, listed)

    def _look(self, segments: list[Segment]) -> None:
        if not segments:
            self.segments, self._next, self.tail = [], 0, Tail(0, 0, 0)
            return
        check_sequence(self.files, segments, self._names)
        known = read_checkpoint(self.files, self._directory)
        for segment, after in pairwise(segments):
            segment.size = size_of(self.files, segment.path)
            entry = known.get(segment.seq)
            if entry is not None and (entry.first, entry.stop) == (segment.first, after.first):
                segment.index, segment.append_time_us = list(entry.index), entry.append_time_us
        last = segments[-1]
        found = judge_file(self.files, last, None)
        if found.verdict is Verdict.CORRUPT:
            raise self._damage(last, found)
        last.index, last.append_time_us, last.size = list(found.index), found.append_time_us, found.size
        append_time_us = next((s.append_time_us for s in reversed(segments) if s.append_time_us), 0)
        self.segments, self._next = segments, found.next_offset
        self.tail = Tail(found.synced_offset, append_time_us, found.size - found.end)

    def _damage(self, segment: Segment, found: Recovery) -> CorruptError:
        if not found.unknown_format:
            return CorruptLogError(str(segment.path), found.end, found.next_offset, found.reason)
        file = self.files.open_read(segment.path)
        try:
            kind, version = file.read(found.end + HEADER_BYTES, 2).ljust(2, b"\0")
        finally:
            file.close()
        return UnknownFormatError(str(segment.path), found.end, kind, version)

    @property
    def _directory(self) -> Path:
        directory = self.config.dir
        assert directory is not None, "a view is of a directory"
        assert not isinstance(directory, str), "WalConfig makes it a path"
        return directory


class ViewReader:
    """An ordered stream of the messages that a view has seen; it ends there instead of waiting."""

    def __init__(self, view: LogView, offset: int) -> None:
        self._view = view
        self._next = offset
        self._place: tuple[int, int, int] = (-1, 0, 0)

    @property
    def next_offset(self) -> int:
        """The offset that will be read next."""
        return self._next

    async def read(self) -> list[StreamMessage]:
        """Return the next messages, about a MiB at most; none at the end.

        OffsetOutOfRangeError when the writer has pruned them meanwhile.
        """
        view = self._view
        loop = asyncio.get_running_loop()
        looked_again = False
        while self._next < view.next_offset:
            found = view.locate(self._next)
            if found is None:
                raise OffsetOutOfRangeError(self._next, view.start_offset, view.next_offset)
            segment, stop = found
            seq, offset, at = self._place
            if looked_again:
                offset, at = segment.first, 0  # a place to seek by is a cache
            elif seq != segment.seq or offset > self._next:
                offset, at = segment.place(self._next)
            try:
                chunk, scan, at = await loop.run_in_executor(
                    None, read_segment, view.files, segment, offset, at, stop, self._next
                )
            except (CorruptLogError, OSError) as error:
                if looked_again:
                    raise unreadable(segment, stop, error) if isinstance(error, OSError) else error from error
                looked_again = True
                await self._look_again(segment, stop)
                continue
            self._place = (segment.seq, scan.next_offset, at)
            self._next = scan.next_offset
            return messages_of(chunk.frames, scan, view.config.topic, str(segment.path))
        return []

    async def _look_again(self, segment: Segment, stop: int) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._view.refresh)
        except OSError as error:  # the directory itself is gone
            raise unreadable(segment, stop, error) from error
