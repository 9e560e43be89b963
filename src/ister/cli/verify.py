"""Decide whether a log's directory is sound: every byte of every file, and that no file is missing.

Nothing is locked and nothing is written, so the log may be in use meanwhile. Files that are pruned while we read are
gone, not lost; a file that looks damaged is read a second time before that is said; files that appear after the first
listing are not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING

from ister.cli.display import bars
from ister.cli.exits import InputError
from ister.cli.log_files import damage_in, follower_of, judge, limit_of, list_log, names_of, nothing_to_show
from ister.core.errors import CorruptError, CorruptLogError, MissingFileError
from ister.core.recover import Verdict
from ister.core.retry import is_transient
from ister.wal.config import WalConfig
from ister.wal.directory import FileNames, Segment, missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class FileVerdict(Enum):
    """What one file is worth."""

    CLEAN = "clean"
    TORN = "torn"
    CORRUPT = "corrupt"
    MISSING = "missing"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file: its messages [first, stop) fill the bytes [0, end); what follows them is torn, rotten or superseded.

    `synced` is the offset below which messages are known to be on disk. `problem` is what opening the log would say.
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
        """How many messages are whole."""
        return self.stop - self.first

    @property
    def bad_bytes(self) -> int:
        """How many bytes at the end are no whole frame."""
        return self.size - self.end - self.superseded_bytes


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in one directory, in the order of its files."""

    directory: str
    files: tuple[FileReport, ...]

    @property
    def problems(self) -> list[CorruptError]:
        """Everything that makes the log refuse to open or to be read; empty when it is sound."""
        return [file.problem for file in self.files if file.problem is not None]

    @property
    def present(self) -> list[FileReport]:
        """The files that could be read."""
        return [file for file in self.files if file.verdict not in {FileVerdict.GONE, FileVerdict.MISSING}]

    @property
    def verdict(self) -> Verdict:
        """Corrupt when anything is damaged or missing, torn when only the end is, else clean."""
        if self.problems:
            return Verdict.CORRUPT
        return Verdict.TORN if any(file.verdict is FileVerdict.TORN for file in self.files) else Verdict.CLEAN


def verify_with_bar(directory: Path, file_name: str) -> Report:
    """Check a directory, with a progress bar where stderr is a terminal."""
    names = FileNames.of(WalConfig(file_name=file_name).file_name)
    with bars() as progress:
        task = progress.add_task(f"verifying {directory.name}", total=None)

        def show(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        return verify_directory(directory, names, show)


def verify_directory(directory: Path, names: FileNames, show: Callable[[int, int], None]) -> Report:
    """Check every file of a directory; tells `show` how many bytes are done, of how many."""
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
        found, own_end = judge(segment, limit, advance)
        if found.verdict is not Verdict.CLEAN:
            # A writer may have cut a frame back or gone on to the next file while we read. What is really damaged
            # looks the same a second time.
            limit = limit_of(segment, follower_of(segment, list_log(directory, names)))
            found, own_end = judge(segment, limit, nothing_to_show)
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
        # A file that another one follows was synced before that one was made, whatever its markers say.
        synced=found.next_offset if limit is not None else min(found.synced_offset, found.next_offset),
        size=found.size,
        end=own_end,
        superseded_bytes=superseded,
        reason=found.reason,
        problem=damage_in(segment, found) if found.verdict is Verdict.CORRUPT else None,
    )


def _vanished(
    directory: Path, names: FileNames, segment: Segment, limit: int | None, error: FileNotFoundError
) -> FileReport:
    """Pruning takes the oldest files first: a file that vanished with older ones still there was not pruned."""
    left = list_log(directory, names)
    if not left or left[0].seq < segment.seq:
        return _unreadable(segment, limit, error)
    stop = segment.first if limit is None else limit
    return FileReport(segment.path.name, FileVerdict.GONE, segment.first, stop, stop)


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
    """Yield the reports with what is wrong between two files: one missing, or names that contradict each other."""
    yield checked[0]
    for (before, earlier), (after, later) in pairwise(zip(segments, checked, strict=True)):
        wrong_name = ""
        if after.seq == before.seq:
            wrong_name = f"{before.path.name} has the same sequence"
        elif after.seq == before.seq + 1 and after.first < before.first:
            wrong_name = f"its name says it starts at offset {after.first}"
        elif after.seq != before.seq + 1 and earlier.verdict is not FileVerdict.GONE:
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
    others = (names_of(path) for path in directory.iterdir())
    other = next((found for found in others if found is not None), None)
    if other is not None:
        return f"has log files of another name; add --file-name {other.stem}.{other.suffix}"
    return (
        f"has no log files ({names.stem}-<sequence>-<first offset>.{names.suffix}); give the directory of one log, "
        "like <data-dir>/wal/<namespace>/<topic>/<generation>"
    )
