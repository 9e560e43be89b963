"""Decide what is kept of a subscription's progress: it goes on, or back when told to; whole and checked on disk.

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
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import structlog

from ister.core.envelope import seal, unseal
from ister.core.errors import CorruptCursorsError, CursorsNotSavedError
from ister.core.retry import is_transient
from ister.ports.files import DRAFT, append_all, as_busy, create_draft, said

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from ister.core.errors import IsterError
    from ister.ports.files import Files

log = structlog.get_logger()

CURSORS_NAME = "cursors.json"
VERSION = 1
THREADS = 8
"""Of all topics' cursors, and of nothing else: what others do in threads must not keep progress from being saved."""

T = TypeVar("T")
Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges [start, stop) of offsets, in order, that neither overlap nor touch."""
NOTHING_FINISHED: Mapping[str, Ranges] = MappingProxyType({})


def check_ranges(found: object) -> Ranges:
    """Return ranges as JSON has them; TypeError or ValueError when they are none."""
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
    """Return what of ranges lies in [start, stop)."""
    return tuple((max(low, start), min(high, stop)) for low, high in ranges if low < stop and high > start)


def dump_cursors(cursors: Mapping[str, int], finished: Mapping[str, Ranges] = NOTHING_FINISHED) -> bytes:
    """Return the file's bytes; the same progress gives the same bytes."""
    content: dict[str, object] = {"version": VERSION, "cursors": dict(sorted(cursors.items()))}
    beyond = {name: finished[name] for name in sorted(finished) if finished[name] and name in cursors}
    return seal(content | ({"finished": beyond} if beyond else {}))


def load_cursors(data: bytes, file: str) -> dict[str, int]:
    """Return the cursors of a file; CorruptCursorsError names it when it cannot be trusted."""
    return load_progress(data, file)[0]


def load_progress(data: bytes, file: str) -> tuple[dict[str, int], dict[str, Ranges]]:
    """Return the cursors of a file, and what is finished beyond them; CorruptCursorsError as above."""
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


class MemoryCursors:
    """Progress that lives as long as the process."""

    def __init__(self) -> None:
        self._cursors: dict[str, int] = {}

    async def load(self) -> None:
        """Do nothing: there is nothing to load."""

    def has_reached(self, subscription: str, cursor: int) -> bool:
        """Tell whether a subscription is at `cursor` or beyond."""
        return subscription in self._cursors and self._cursors[subscription] >= cursor

    def kept(self) -> dict[str, int]:
        """Return every subscription's cursor."""
        return dict(self._cursors)

    async def advance(self, subscription: str, cursor: int) -> int:
        """Move a subscription on, never back; returns its cursor."""
        self._cursors[subscription] = max(cursor, self._cursors.get(subscription, cursor))
        return self._cursors[subscription]

    async def advance_known(
        self, wanted: Mapping[str, int], finished: Mapping[str, Ranges] = NOTHING_FINISHED
    ) -> dict[str, int]:
        """Move those subscriptions on that are known; returns their cursors."""
        del finished  # needed by the next process only, and there is none for this
        return {name: await self.advance(name, cursor) for name, cursor in wanted.items() if name in self._cursors}

    def finished(self, subscription: str) -> Ranges:
        """Return nothing: there was no process before this one."""
        del subscription
        return ()

    async def put(self, subscription: str, cursor: int) -> int:
        """Move a subscription to a place, back too; returns its cursor."""
        self._cursors[subscription] = cursor
        return cursor

    async def forget(self, subscription: str) -> None:
        """Take a subscription away."""
        self._cursors.pop(subscription, None)

    async def settle(self) -> None:
        """Do nothing: nothing is under way."""


class SavedCursors(ABC):
    """Progress that is read once, and saved by one write at a time; what is written to is a subclass's matter.

    What changes during a write goes into the next one together, so that many subscriptions cost as many writes as one.
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
    def _begin_load(self) -> asyncio.Future[dict[str, int]]:
        """Begin to read every cursor; those beyond the limit are cut back, durably."""

    @abstractmethod
    def _begin_save(self, cursors: dict[str, int]) -> asyncio.Future[None]:
        """Begin to save these cursors, and no others."""

    async def load(self) -> None:
        """Read what is saved, once; anything beyond the limit is cut back, durably, before anyone sees it."""
        while not self._loaded:
            if self._loading is None:
                self._loading = self._start_load()
            await asyncio.shield(self._loading)

    def has_reached(self, subscription: str, cursor: int) -> bool:
        """Tell whether a subscription is at `cursor` or beyond, or soon will be."""
        return subscription in self._wanted and self._wanted[subscription] >= cursor

    def kept(self) -> dict[str, int]:
        """Return every subscription's cursor, the lowest that a crash at this moment could leave.

        So a write that is under way, or that failed and may have landed, counts as well as what is saved; and a
        subscription that is just being made known counts already. Retention deletes nothing above these.
        """
        return _lower(self._lowest, self._wanted)

    async def advance(self, subscription: str, cursor: int) -> int:
        """Move a subscription on, never back; returns its cursor once that is saved."""
        if not self.has_reached(subscription, cursor):
            self._wanted[subscription] = cursor
            self._changes += 1
        await self._saved()
        return self._lowest.get(subscription, cursor)

    def finished(self, subscription: str) -> Ranges:
        """Return what is finished beyond a subscription's cursor, as of when it was last stopped."""
        return clip_ranges(self._finished.get(subscription, ()), self._wanted.get(subscription, 0), sys.maxsize)

    async def advance_known(
        self, wanted: Mapping[str, int], finished: Mapping[str, Ranges] = NOTHING_FINISHED
    ) -> dict[str, int]:
        """Move those subscriptions on that are known, in one write; returns their cursors once that is saved.

        One that is not known was forgotten meanwhile: saved again, it would hold everything back for ever. `finished` is
        what is finished beyond the cursors; where it is not given, what was saved before stays.
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
        """Move a subscription to a place, back too; returns its cursor once that is saved.

        What was finished beyond its cursor counts no more.
        """
        finished = self._finished.pop(subscription, ())
        if self._wanted.get(subscription) != cursor or finished:
            self._wanted[subscription] = cursor
            self._changes += 1
        await self._saved()
        return self._lowest.get(subscription, cursor)

    async def forget(self, subscription: str) -> None:
        """Take a subscription away; returns once it is gone for good."""
        self._finished.pop(subscription, None)
        if self._wanted.pop(subscription, None) is not None:
            self._changes += 1
        await self._saved()

    async def replace(self, cursors: Mapping[str, int], finished: Mapping[str, Ranges] = NOTHING_FINISHED) -> None:
        """Save exactly this progress, whatever was there; for a move, before anyone else uses this."""
        self._wanted = dict(cursors)
        self._finished = dict(finished)
        self._changes += 1
        await self._saved()

    def all_finished(self) -> dict[str, Ranges]:
        """Return what is finished beyond the cursors, of every subscription."""
        return {name: self.finished(name) for name in self._finished}

    async def settle(self) -> None:
        """Return once nothing is under way and every change is saved; what is written to can be let go of then."""
        if self._loading is not None:
            await asyncio.wait({self._loading})
        await self._saved()

    async def _saved(self) -> None:
        """Return once every change made so far is saved."""
        upto = self._changes
        while self._changes_saved < upto:
            if self._saving is None:
                self._saving = self._start_save()
            # A caller that gives up does not stop the write: the next one must not begin before it has ended.
            await asyncio.shield(self._saving)

    def _start_load(self) -> asyncio.Future[None]:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._begin_load().add_done_callback(partial(self._load_ended, answer))
        return answer

    def _load_ended(self, answer: asyncio.Future[None], job: asyncio.Future[dict[str, int]]) -> None:
        self._loading = None
        if _succeeded(job):
            self._lowest = job.result()
            self._wanted = dict(self._lowest)
            self._loaded = True
        _pass_on(job, answer)

    def _start_save(self) -> asyncio.Future[None]:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        snapshot = dict(self._wanted)
        self._lowest = _lower(self._lowest, snapshot)
        self._begin_save(snapshot).add_done_callback(partial(self._save_ended, snapshot, self._changes, answer))
        return answer

    def _save_ended(
        self, snapshot: dict[str, int], changes: int, answer: asyncio.Future[None], job: asyncio.Future[None]
    ) -> None:
        self._saving = None
        if _succeeded(job):
            self._lowest = snapshot
            self._changes_saved = changes
        _pass_on(job, answer)


class CursorFile(SavedCursors):
    """Progress in a file of the log's directory, which must be owned for as long as this is used.

    Written off the loop. `limit` is where the log ended when it was opened: a cursor beyond it points to messages that
    are gone, and would skip those that take their place.
    """

    def __init__(self, files: Files, directory: Path, log_name: str, limit: int) -> None:
        super().__init__()
        self._files = files
        self._directory = directory
        self._log_name = log_name
        self._limit = limit

    async def replace(self, cursors: Mapping[str, int], finished: Mapping[str, Ranges] = NOTHING_FINISHED) -> None:
        """Save exactly this progress, whatever was there, damage too; for a move, before anyone else uses this."""
        self._loaded = True
        await super().replace(cursors, finished)

    async def exists(self) -> bool:
        """Return True if there is a file."""
        return await self._on_thread(lambda: CURSORS_NAME in self._files.names(self._directory))

    async def remove(self) -> None:
        """Take the file away, durably; nothing happens when there is none. Nobody may use this afterwards."""
        await self.settle()
        await self._on_thread(partial(_remove_file, self._files, self._directory))

    def _begin_load(self) -> asyncio.Future[dict[str, int]]:
        def open_file() -> dict[str, int]:
            cursors, self._finished = _open_file(self._files, self._directory, self._limit)
            return cursors

        return self._on_thread(open_file)

    def _begin_save(self, cursors: dict[str, int]) -> asyncio.Future[None]:
        data = dump_cursors(cursors, self.all_finished())
        return self._on_thread(partial(_replace_file, self._files, self._directory, data))

    def _on_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        def job() -> T:
            try:
                return work()
            except OSError as error:
                raise self._not_saved(error) from error

        return asyncio.get_running_loop().run_in_executor(_threads(), job)

    def _not_saved(self, error: OSError) -> IsterError:
        file = str(self._directory / CURSORS_NAME)
        return as_busy(error, self._log_name, f"use {file}") or CursorsNotSavedError(file, said(error))


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "ister-cursors")


def _succeeded(job: asyncio.Future[T]) -> bool:
    return not job.cancelled() and job.exception() is None


def _pass_on(job: asyncio.Future[T], answer: asyncio.Future[None]) -> None:
    """Answer for a job once its effect is recorded.

    Nobody waits for the job itself: it is done a moment before its effect is recorded, and a loop that waits for the
    effect would spin in that moment without ever letting it come.
    """
    if answer.done():
        return
    if job.cancelled():
        answer.cancel()
    elif (error := job.exception()) is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)
        answer.exception()  # everyone who waited may have given up, which is no reason for a warning


def _lower(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return the cursors of both, the lower one where both have one."""
    return {**one, **{name: min(cursor, one.get(name, cursor)) for name, cursor in other.items()}}


def _open_file(files: Files, directory: Path, limit: int) -> tuple[dict[str, int], dict[str, Ranges]]:
    cursors, finished = _read_file(files, directory / CURSORS_NAME)
    if cursors:
        # Who was killed after the rename has not synced it: we would count on cursors that a power loss takes back.
        files.sync_directory(directory)
    beyond = are_beyond(cursors, finished, limit)
    if beyond:
        # On disk too, and now: once the log has grown past such a cursor, no later open could tell that it is wrong.
        cursors = {name: min(cursor, limit) for name, cursor in cursors.items()}
        finished = {name: clip_ranges(ranges, 0, limit) for name, ranges in finished.items()}
        _replace_file(files, directory, dump_cursors(cursors, finished))
        log.warning("cursors_cut_back", directory=str(directory), subscriptions=sorted(beyond), cursor=limit)
    return cursors, finished


def are_beyond(cursors: Mapping[str, int], finished: Mapping[str, Ranges], limit: int) -> set[str]:
    """Return the subscriptions whose progress goes beyond the end of the log."""
    ends = {name: ranges[-1][1] for name, ranges in finished.items() if ranges}
    return {name for known in (cursors, ends) for name, end in known.items() if end > limit}


def _read_file(files: Files, path: Path) -> tuple[dict[str, int], dict[str, Ranges]]:
    try:
        file = files.open_read(path)
        try:
            return load_progress(file.read(0, file.size()), str(path))
        finally:
            file.close()
    except FileNotFoundError:
        return {}, {}  # no progress was ever saved: the name is synced before the first save is answered
    except OSError as error:
        if is_transient(error):
            raise
        raise CorruptCursorsError(str(path), f"it cannot be read ({error.strerror})") from error


def _replace_file(files: Files, directory: Path, data: bytes) -> None:
    """Write, sync, rename, sync the directory: after a crash the file is the old one or the new one, whole."""
    path = directory / CURSORS_NAME
    draft, file = create_draft(files, path)
    try:
        append_all(file, [data])
        file.sync()
    finally:
        file.close()
    files.rename(draft, path)
    files.sync_directory(directory)


def _remove_file(files: Files, directory: Path) -> None:
    """Take the file and its draft away, then sync: a file that came back would only be removed again."""
    path = directory / CURSORS_NAME
    found = False
    for name in (path.with_name(path.name + DRAFT), path):
        with suppress(FileNotFoundError):
            files.remove(name)
            found = True
    if found:
        files.sync_directory(directory)
