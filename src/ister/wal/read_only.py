"""Read-only view of a log that another process may be writing; takes no lock and repairs nothing.

A torn tail is normal beside a writer: whole frames count and the rest does not. A file that vanishes or seems damaged is
read again before that is reported: the writer may have pruned it, truncated it, or rotated.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from ister.core.errors import (
    CorruptError,
    CorruptLogError,
    MissingFileError,
    OffsetOutOfRangeError,
)
from ister.core.frames.columns import messages_of
from ister.core.frames.recover import Verdict
from ister.wal.config import WalConfig
from ister.wal.directory import (
    FileNames,
    Segment,
    check_sequence,
    damage,
    locate,
    scan_file,
    size_of,
    unreadable,
    use_checkpoint,
)
from ister.wal.reader import read_segment

if TYPE_CHECKING:
    from pathlib import Path

    from ister.core.message import StreamMessage
    from ister.core.offsets import StartPosition
    from ister.ports.files.files import Files

REFRESHES_MAX = 10
"""Bound on the retries for a log that changes while it is read."""


class Tail(NamedTuple):
    """The end of the last file: the attested offset, the newest append time, and the bytes of a torn frame."""

    synced_offset: int
    append_time_us: int
    torn_bytes: int


class LogView:
    """A log's files at one moment, as of `open` or the last `refresh`, both of which block.

    It has the members of a log that a reader over tiers uses.
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
        """Open a directory; FileNotFoundError if there is none, CorruptError if the log would not open."""
        view = cls(files, WalConfig(dir=directory, file_name=file_name, topic=topic))
        view.refresh()
        return view

    @property
    def start_offset(self) -> int:
        """The oldest offset that the files hold."""
        return self.segments[0].first if self.segments else self._next

    @property
    def next_offset(self) -> int:
        """The offset behind the last whole message."""
        return self._next

    @property
    def size(self) -> int:
        """The size of the files."""
        return sum(segment.size for segment in self.segments)

    def locate(self, offset: int) -> tuple[Segment, int] | None:
        """Return the file that holds an offset, and the offset at which its messages end."""
        return locate(self.segments, offset, self._next)

    def create_reader(self, position: StartPosition) -> ViewReader:
        """Return a reader from a position on, to the end of this view."""
        offset = self._next if position.at is None else position.at
        if not self.start_offset <= offset <= self._next:
            raise OffsetOutOfRangeError(offset, self.start_offset, self._next)
        return ViewReader(self, offset)

    def refresh(self) -> None:
        """Read the directory again; keep the previous view if that fails."""
        previous = ""
        for _ in range(REFRESHES_MAX):
            segments = self._list()
            try:
                self._load(segments)
            except (CorruptError, FileNotFoundError) as error:
                failure = error
                if str(error) == previous:
                    break
                previous = str(error)
            else:
                return
        if isinstance(failure, FileNotFoundError):
            raise MissingFileError(str(failure.filename), segments[0].first, -1, "is missing") from failure
        raise failure

    def _list(self) -> list[Segment]:
        """Return the files in order.

        Listing a directory is not atomic: it may show an old file and not a newer one, so it is repeated until two
        listings agree.
        """
        directory = self._directory
        listed = self.files.names(directory)
        for _ in range(REFRESHES_MAX):
            again = self.files.names(directory)
            if again == listed:
                break
            listed = again
        self._names.refuse_others(directory, listed)
        return self._names.parse(directory, listed)

    def _load(self, segments: list[Segment]) -> None:
        if not segments:
            self.segments, self._next, self.tail = [], 0, Tail(0, 0, 0)
            return
        check_sequence(self.files, segments, self._names)
        use_checkpoint(self.files, self._directory, segments)
        for segment in segments[:-1]:
            segment.size = size_of(self.files, segment.path)
        last = segments[-1]
        found = scan_file(self.files, last, None)
        if found.verdict is Verdict.CORRUPT:
            raise damage(self.files, last, found)
        last.index, last.append_time_us, last.size = list(found.index), found.append_time_us, found.size
        append_time_us = next((s.append_time_us for s in reversed(segments) if s.append_time_us), 0)
        self.segments, self._next = segments, found.next_offset
        self.tail = Tail(found.synced_offset, append_time_us, found.size - found.end)

    @property
    def _directory(self) -> Path:
        directory = self.config.dir
        assert directory is not None, "a view is of a directory"
        assert not isinstance(directory, str), "WalConfig makes it a path"
        return directory


class ViewReader:
    """An ordered stream of a view's messages; it ends there instead of waiting."""

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

        Raise OffsetOutOfRangeError if the writer has pruned them meanwhile.
        """
        view = self._view
        loop = asyncio.get_running_loop()
        refreshed = False
        while self._next < view.next_offset:
            found = view.locate(self._next)
            if found is None:
                raise OffsetOutOfRangeError(self._next, view.start_offset, view.next_offset)
            segment, stop = found
            seq, offset, at = self._place
            if refreshed:
                offset, at = segment.first, 0  # an index entry is only a cache
            elif seq != segment.seq or offset > self._next:
                offset, at = segment.place(self._next)
            try:
                chunk, scan, at = await loop.run_in_executor(
                    None, read_segment, view.files, segment, offset, at, stop, self._next
                )
            except (CorruptLogError, OSError) as error:
                if refreshed:
                    raise unreadable(segment, stop, error) if isinstance(error, OSError) else error from error
                refreshed = True
                await self._refresh(segment, stop)
                continue
            self._place = (segment.seq, scan.next_offset, at)
            self._next = scan.next_offset
            return messages_of(chunk.frames, scan, view.config.topic, str(segment.path))
        return []

    async def _refresh(self, segment: Segment, stop: int) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._view.refresh)
        except OSError as error:  # the directory itself is missing
            raise unreadable(segment, stop, error) from error
