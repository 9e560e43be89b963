"""Cursors of a topic's subscriptions, saved by one write at a time: in memory, or in a checksummed file.

    cursors.json      a line with the CRC-32 of the second line, in hex, and that line: {"version":1,"cursors":{…}}

A second key of that object, "finished", has for each subscription the ranges [start, stop) beyond its cursor that were
acknowledged when it was last stopped. Earlier releases ignore it, and deliver those messages again.

The file is replaced whole: a new one is written under another name, synced, renamed, and the directory synced. It is
the truth about progress, not a cache, so damage is an error and never an empty result (I11).
"""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import structlog

from ister.aio.background import mark_retrieved
from ister.core.errors import CorruptCursorsError, CursorsNotSavedError
from ister.core.frames.checksummed_json import seal, unseal
from ister.core.retry import is_transient
from ister.ports.files.files import DRAFT, as_busy, error_text, read_file, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from ister.ports.files.files import Files

log = structlog.get_logger()

CURSORS_NAME = "cursors.json"
VERSION = 1
THREADS = 8
"""For the cursor files of all topics. A pool of its own, so that other work in threads cannot delay them."""

T = TypeVar("T")
Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges [start, stop) of offsets, in order, that neither overlap nor touch."""
NOTHING_FINISHED: Mapping[str, Ranges] = MappingProxyType({})


def check_ranges(found: object) -> Ranges:
    """Return the ranges that JSON holds; TypeError or ValueError if they are not valid."""
    if not isinstance(found, list):
        raise TypeError("finished ranges are not a list")
    ranges, last = [], -1
    for pair in found:
        if not (isinstance(pair, list) and [type(end) for end in pair] == [int, int] and last < pair[0] < pair[1]):
            raise ValueError(f"{pair!r} is no range of finished offsets behind {last}")
        last = pair[1]
        ranges.append((pair[0], last))
    return tuple(ranges)


def clip_ranges(ranges: Iterable[tuple[int, int]], start: int, stop: int) -> Ranges:
    """Return the parts of ranges that lie in [start, stop)."""
    return tuple((max(low, start), min(high, stop)) for low, high in ranges if low < stop and high > start)


def dump_cursors(cursors: Mapping[str, int], finished: Mapping[str, Ranges] = NOTHING_FINISHED) -> bytes:
    """Return the content of the file; deterministic."""
    content: dict[str, object] = {"version": VERSION, "cursors": dict(sorted(cursors.items()))}
    beyond = {name: finished[name] for name in sorted(finished) if finished[name] and name in cursors}
    return seal(content | ({"finished": beyond} if beyond else {}))


def load_progress(data: bytes, file: str) -> tuple[dict[str, int], dict[str, Ranges]]:
    """Return the cursors of a file, and the finished ranges beyond them; CorruptCursorsError if it is damaged."""
    try:
        content = unseal(data)
    except ValueError as error:
        raise CorruptCursorsError(file, str(error)) from None
    if content["version"] != VERSION:
        raise CorruptCursorsError(file, f"its version is {content['version']}, and this release reads {VERSION}")
    try:
        finished = {str(name): check_ranges(found) for name, found in dict(content.get("finished", {})).items()}
    except (TypeError, ValueError) as error:
        raise CorruptCursorsError(file, str(error)) from None
    return dict(content["cursors"]), finished


class SavedCursors(ABC):
    """Cursors that are read once, and saved by one write at a time; subclasses say where.

    Changes during a write go into the next one together, so that many subscriptions cost as many writes as one.
    """

    def __init__(self) -> None:
        self._loaded = False
        self._wanted: dict[str, int] = {}
        self._lowest: dict[str, int] = {}
        self._finished: dict[str, Ranges] = {}
        self._changes = 0
        self._changes_saved = 0
        self._loading: asyncio.Future[None] | None = None
        self._saving: asyncio.Future[None] | None = None

    @abstractmethod
    async def _read(self) -> dict[str, int]:
        """Return every saved cursor; those beyond the limit are cut back, durably."""

    @abstractmethod
    async def _write(self, cursors: dict[str, int]) -> None:
        """Save these cursors, and no others."""

    async def load(self) -> None:
        """Read the saved cursors, once; those beyond the limit are cut back, durably, before this returns."""
        while not self._loaded:
            if self._loading is None:
                self._loading = mark_retrieved(asyncio.create_task(self._load()))
            await asyncio.shield(self._loading)

    def has_reached(self, subscription: str, cursor: int) -> bool:
        """Return True if a subscription is at `cursor` or beyond, or will be once the current write ends."""
        return subscription in self._wanted and self._wanted[subscription] >= cursor

    def durable(self) -> dict[str, int]:
        """Return every subscription's cursor, the lowest that a crash at this moment could leave.

        A write that is in flight, or that failed and may have landed, counts as well as what is saved; so does a new
        subscription that is being saved. Retention deletes nothing above these.
        """
        return _lower(self._lowest, self._wanted)

    async def adopt(self, subscription: str) -> int | None:
        """Begin to write a subscription's cursor; returns it, read again where other brokers write it too."""
        await self.load()
        return self.durable().get(subscription)

    def release(self, subscription: str) -> None:  # noqa: B027  # no other broker writes a file
        """Stop writing a subscription's cursor, where another broker may write it next."""

    async def advance(self, subscription: str, cursor: int) -> int:
        """Move a subscription forward, never back; returns its cursor once that is saved."""
        if not self.has_reached(subscription, cursor):
            self._wanted[subscription] = cursor
            self._changes += 1
        await self._saved()
        return self._lowest.get(subscription, cursor)

    def finished(self, subscription: str) -> Ranges:
        """Return the finished ranges beyond a subscription's cursor, as of when it was last stopped."""
        return clip_ranges(self._finished.get(subscription, ()), self._wanted.get(subscription, 0), sys.maxsize)

    async def advance_known(
        self, wanted: Mapping[str, int], finished: Mapping[str, Ranges] = NOTHING_FINISHED
    ) -> dict[str, int]:
        """Move the known ones of many subscriptions forward, in one write; returns their cursors once that is saved.

        An unknown one was deleted meanwhile: saved again, it would block retention for ever. `finished` has the finished
        ranges beyond the cursors; for a subscription that it lacks, the saved ones stay.
        """
        for name, ranges in finished.items():
            if name in self._wanted and self._finished.get(name, ()) != ranges:
                self._finished[name] = ranges
                self._changes += 1
        changed = {name: cursor for name, cursor in wanted.items() if self._wanted.get(name, cursor) < cursor}
        if changed:
            self._wanted |= changed
            self._changes += 1
        await self._saved()
        return {name: self._lowest[name] for name in wanted if name in self._lowest}

    async def put(self, subscription: str, cursor: int) -> int:
        """Move a subscription forward or back, and drop its finished ranges; returns its cursor once that is saved."""
        finished = self._finished.pop(subscription, ())
        if self._wanted.get(subscription) != cursor or finished:
            self._wanted[subscription] = cursor
            self._changes += 1
        await self._saved()
        return self._lowest.get(subscription, cursor)

    async def forget(self, subscription: str) -> None:
        """Delete a subscription's cursor; returns once that is durable."""
        self._finished.pop(subscription, None)
        if self._wanted.pop(subscription, None) is not None:
            self._changes += 1
        await self._saved()

    async def replace(self, cursors: Mapping[str, int], finished: Mapping[str, Ranges] = NOTHING_FINISHED) -> None:
        """Save exactly these cursors in place of all others; for a move, before anything else uses this object."""
        self._wanted = dict(cursors)
        self._finished = dict(finished)
        self._changes += 1
        await self._saved()

    def all_finished(self) -> dict[str, Ranges]:
        """Return the finished ranges beyond the cursors, of every subscription."""
        return {name: self.finished(name) for name in self._finished}

    async def settle(self) -> None:
        """Return once no operation is in flight and every change is saved."""
        if self._loading is not None:
            await asyncio.wait({self._loading})
        await self._saved()

    async def _saved(self) -> None:
        """Return once every change made so far is saved."""
        upto = self._changes
        while self._changes_saved < upto:
            if self._saving is None:
                cursors = dict(self._wanted)
                self._lowest = _lower(self._lowest, cursors)
                self._saving = mark_retrieved(asyncio.create_task(self._save(cursors, self._changes)))
            # A cancelled caller does not stop the write: the next one must not begin before it has ended.
            await asyncio.shield(self._saving)

    async def _load(self) -> None:
        try:
            self._lowest = await self._read()
        finally:
            self._loading = None
        self._wanted = dict(self._lowest)
        self._loaded = True

    async def _save(self, cursors: dict[str, int], changes: int) -> None:
        try:
            await self._write(cursors)
        finally:
            self._saving = None
        self._lowest, self._changes_saved = cursors, changes


class MemoryCursors(SavedCursors):
    """Cursors that live as long as the process."""

    async def _read(self) -> dict[str, int]:
        return dict(self._wanted)

    async def _write(self, cursors: dict[str, int]) -> None:
        """Do nothing."""


class CursorFile(SavedCursors):
    """Cursors in a file of the log's directory, whose lock the caller has; written in a thread.

    `limit` is where the log ended when it was opened: a cursor beyond it points to messages that a power loss took, and
    would skip those that get their offsets.
    """

    def __init__(self, files: Files, directory: Path, log_name: str, limit: int) -> None:
        super().__init__()
        self._files = files
        self._directory = directory
        self._log_name = log_name
        self._limit = limit
        self._one_at_a_time = Lock()  # the thread of a cancelled task goes on

    async def replace(self, cursors: Mapping[str, int], finished: Mapping[str, Ranges] = NOTHING_FINISHED) -> None:
        """Save exactly these cursors in place of the file, even a damaged one."""
        self._loaded = True
        await super().replace(cursors, finished)

    async def exists(self) -> bool:
        """Return True if there is a file."""
        return await self._on_thread(lambda: CURSORS_NAME in self._files.names(self._directory))

    async def remove(self) -> None:
        """Delete the file, durably, if there is one. Do not use this object afterwards."""
        await self.settle()
        await self._on_thread(partial(_remove_file, self._files, self._directory))

    async def _read(self) -> dict[str, int]:
        cursors, self._finished = await self._on_thread(partial(_open_file, self._files, self._directory, self._limit))
        return cursors

    async def _write(self, cursors: dict[str, int]) -> None:
        data = dump_cursors(cursors, self.all_finished())
        await self._on_thread(partial(replace_file, self._files, self._directory / CURSORS_NAME, data, durable=True))

    async def _on_thread(self, work: Callable[[], T]) -> T:
        def job() -> T:
            with self._one_at_a_time:
                return work()

        try:
            return await asyncio.get_running_loop().run_in_executor(_threads(), job)
        except OSError as error:
            file = str(self._directory / CURSORS_NAME)
            busy = as_busy(error, self._log_name, f"use {file}")
            raise busy or CursorsNotSavedError(file, error_text(error)) from error


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "ister-cursors")


def _lower(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return the cursors of both, the minimum where both have one."""
    return {**one, **{name: min(cursor, one.get(name, cursor)) for name, cursor in other.items()}}


def _open_file(files: Files, directory: Path, limit: int) -> tuple[dict[str, int], dict[str, Ranges]]:
    cursors, finished = _read_file(files, directory / CURSORS_NAME)
    if cursors:
        # A process that was killed after the rename has not synced it: a power loss could still undo these cursors.
        files.sync_directory(directory)
    cursors, finished, beyond = cut_back(cursors, finished, limit)
    if beyond:
        # On disk too, and now: once the log has grown past such a cursor, no later open could detect it.
        replace_file(files, directory / CURSORS_NAME, dump_cursors(cursors, finished), durable=True)
        log.warning("cursors_cut_back", directory=str(directory), subscriptions=sorted(beyond), cursor=limit)
    return cursors, finished


def cut_back(
    cursors: Mapping[str, int], finished: Mapping[str, Ranges], limit: int
) -> tuple[dict[str, int], dict[str, Ranges], set[str]]:
    """Return cursors and finished ranges cut back to the end of the log, and the subscriptions that were beyond it."""
    ends = {name: ranges[-1][1] for name, ranges in finished.items() if ranges}
    return (
        {name: min(cursor, limit) for name, cursor in cursors.items()},
        {name: clip_ranges(ranges, 0, limit) for name, ranges in finished.items()},
        {name for known in (cursors, ends) for name, end in known.items() if end > limit},
    )


def _read_file(files: Files, path: Path) -> tuple[dict[str, int], dict[str, Ranges]]:
    try:
        return load_progress(read_file(files, path), str(path))
    except FileNotFoundError:
        return {}, {}  # no cursor was ever saved: the name is synced before the first save returns
    except OSError as error:
        if is_transient(error):
            raise
        raise CorruptCursorsError(str(path), f"it cannot be read ({error.strerror})") from error


def _remove_file(files: Files, directory: Path) -> None:
    """Delete the file and its draft, then sync; a file that a power loss brings back is deleted again."""
    path = directory / CURSORS_NAME
    found = False
    for name in (path.with_name(path.name + DRAFT), path):
        with suppress(FileNotFoundError):
            files.remove(name)
            found = True
    if found:
        files.sync_directory(directory)
