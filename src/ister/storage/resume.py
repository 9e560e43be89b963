"""Recovery of a topic's next offset at opening: the largest over log, objects and table.

A log that is behind restarts at the end of the furthest tier, if objects and table are proven to hold everything that it
lacks. If a tier does not answer, the topic opens only if its log is sufficient.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import structlog

from ister.cloud.proof import prove
from ister.core.errors import MissingOffsetsError, StoreRefusedError, StoreUnavailableError
from ister.core.table.data_files import NO_TABLE, TableEnd
from ister.core.tiers.selection import OffsetRange, without
from ister.lake.errors import CorruptRowsError, LakeUnavailableError, MissingRowsError, TableMovedError
from ister.storage.tiered_reader import OBJECTS_FAIL
from ister.wal.directory import Resume

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from ister.cloud import ObjectCatalog, Uploader
    from ister.core.frames.segment import Descriptor
    from ister.ports.objects import CloudStore
    from ister.storage.tiered_reader import TopicTable
    from ister.wal import Wal

log = structlog.get_logger()

REMOTE_TIMEOUT_S = 10.0
"""Timeout for the table, and for the object store if the log has messages or other topics are opened at the same time."""


# --- decisions --------------------------------------------------------------------------------------------------------


def needs_table(log_stop: int, objects_stop: int, known_upto: int) -> bool:
    """Return True if a topic cannot be opened without its table's answer: its log is empty, or behind what is known.

    `known_upto` is the reported end of the table.
    """
    return log_stop == 0 or log_stop < max(objects_stop, known_upto)


def next_offset(log_stop: int, objects_stop: int, upto: int, known_upto: int) -> int:
    """Return a topic's next offset: the largest over its tiers.

    MissingOffsetsError if the table was reported to hold more: those offsets were assigned already.
    """
    furthest = max(log_stop, objects_stop, upto)
    if furthest < known_upto:
        raise MissingOffsetsError(furthest, known_upto, "the table held them, and does not any more")
    return furthest


# --- opening ----------------------------------------------------------------------------------------------------------


class RemoteWait:
    """A shared timeout of topics that are opened together and call the same remote service.

    Once one of them got no answer, the others stop waiting: one timeout in total instead of one each. A timeout while the
    service answers others does not count.
    """

    def __init__(self) -> None:
        self._away = False
        self._answers = 0
        self._waiting: set[asyncio.Timeout] = set()

    @asynccontextmanager
    async def limit(self, timeout_s: float | None) -> AsyncIterator[None]:
        """Raise TimeoutError after `timeout_s`, or when the service counts as unavailable."""
        if self._away:
            raise TimeoutError
        answers = self._answers
        timeout = asyncio.timeout(timeout_s)
        try:
            async with timeout:
                self._waiting.add(timeout)
                yield
        except (TimeoutError, StoreUnavailableError, LakeUnavailableError):
            if self._answers == answers and not self._away:
                self._away = True
                for other in self._waiting - {timeout}:
                    if not other.expired():
                        other.reschedule(asyncio.get_running_loop().time())
            raise
        else:
            self._answers += 1
        finally:
            self._waiting.discard(timeout)


class Waits(NamedTuple):
    """The timeouts for the object store and for tables; `together` if the openings of a start share them."""

    store: RemoteWait
    table: RemoteWait
    together: bool = False


class Joined(NamedTuple):
    """A topic's recovered tiers: its log, the offsets that objects hold, and the table's end."""

    wal: Wal
    objects: OffsetRange
    end: TableEnd


@dataclass(frozen=True, slots=True)
class Opening:
    """The opening of one topic; `join` recovers its next offset."""

    wal: Wal
    store: CloudStore
    catalog: ObjectCatalog
    uploader: Uploader | None
    reopen: Callable[..., Awaitable[Wal]]
    """Opens the log again, to restart it at the end that `resume` names."""
    waits: Waits

    @property
    def _topic(self) -> str:
        return str(self.catalog.topic)

    async def join(self, table: TopicTable | None, known_upto: int) -> Joined:
        """Find where objects and the table end, and restart the log there if it is behind."""
        wal, catalog = self.wal, self.catalog
        await catalog.load_border()
        if table is not None:
            known_upto = max(known_upto, catalog.table_upto)
        last = await self._last_object()
        stop = last.stop if last else 0
        end = NO_TABLE
        if table is not None:
            end = await self._ask(table, known_upto, needed=needs_table(wal.next_offset, stop, known_upto))
            goal = next_offset(wal.next_offset, stop, end.upto, known_upto)
        else:
            goal = max(wal.next_offset, stop)
        newest_us = max(last.append_time_us if last else 0, end.append_time_us)
        wal.not_before(newest_us)
        held = await self._described(last)
        if goal > wal.next_offset:
            held = await self._prove_skipped(table, held, min(wal.start_offset, wal.next_offset), goal, end)
            await wal.close()
            wal = await self.reopen(resume=Resume(goal, newest_us))
            if self.uploader is not None:
                self.uploader.continue_with(wal)
        elif table is not None and self.uploader is not None and stop < wal.start_offset <= end.upto:
            held = await self._restart_objects(table, OffsetRange(stop, wal.start_offset), held)
        if self.uploader is not None:
            self.uploader.uploaded.reach(max(self.uploader.uploaded.value, catalog.begin))
        return Joined(wal, held, end)

    async def _last_object(self) -> Descriptor | None:
        """Return the last object's descriptor, after adopting objects that a crash left undescribed."""
        wal, uploader = self.wal, self.uploader
        last = await self.catalog.last()
        if uploader is None:
            return last
        log_is_enough = wal.next_offset > 0 and (last is None or wal.next_offset >= last.stop)
        try:
            async with self.waits.store.limit(REMOTE_TIMEOUT_S if log_is_enough or self.waits.together else None):
                return await uploader.recover_behind(last, log_is_open=False)
        except TimeoutError:
            failure: StoreUnavailableError | StoreRefusedError = StoreUnavailableError(
                self.store.name, "list objects", "no answer in time"
            )
        except (StoreUnavailableError, StoreRefusedError) as error:
            failure = error
        if not log_is_enough:
            raise failure
        log.warning("objects_not_asked", topic=self._topic, cause=str(failure))
        return last

    async def _described(self, last: Descriptor | None) -> OffsetRange:
        """Return the valid offsets that objects hold; an empty range at their next start if there are none."""
        if last is None or last.start == last.stop:
            at = max(self.catalog.begin, self.uploader.uploaded.value if self.uploader else 0)
            return OffsetRange(at, at)
        first = last if last.start == 0 else await self.catalog.first()
        assert first is not None, "there is a last one"
        return OffsetRange(max(first.start, self.catalog.begin), last.stop)

    async def _ask(self, table: TopicTable, known_upto: int, *, needed: bool) -> TableEnd:
        """Return the table's end; the reported one if it does not answer and is not needed."""
        try:
            async with self.waits.table.limit(REMOTE_TIMEOUT_S):
                return await table.look()
        except TimeoutError:
            failure: LakeUnavailableError | TableMovedError = LakeUnavailableError(
                self._topic, "look at", f"no answer in {REMOTE_TIMEOUT_S:g} s"
            )
        except (LakeUnavailableError, TableMovedError) as error:
            failure = error
        if needed:
            raise failure
        log.warning("table_not_asked", topic=self._topic, known_upto=known_upto, cause=str(failure))
        return TableEnd(known_upto)

    async def _prove_skipped(
        self, table: TopicTable | None, objects: OffsetRange, start: int, goal: int, end: TableEnd
    ) -> OffsetRange:
        """Prove that every offset of [start, goal) is in objects or in the table; returns what objects hold."""
        if table is None:
            await prove(self.store, self.catalog, start, goal)
            return objects
        moved = False
        try:
            await prove(self.store, self.catalog, max(start, objects.start), objects.stop)
        except OBJECTS_FAIL as error:
            # Offsets missing in the store may be in the table; objects must have those after its end.
            border = min(end.upto, goal)
            if border <= max(start, objects.start):
                raise
            await prove(self.store, self.catalog, border, objects.stop)
            log.error("objects_gone", topic=self._topic, start=objects.start, stop=border, cause=str(error))  # noqa: TRY400  # the cause is logged
            # The table has to prove everything that objects do not hold.
            start, objects, moved = min(start, objects.start), OffsetRange(border, max(border, objects.stop)), True
        behind = end.upto > objects.stop or objects == (goal, goal)
        for part in without(OffsetRange(start, goal), objects):
            await table.prove(*part)
        if moved:
            await self.catalog.begin_at(objects.start)
        if behind:
            log.error(
                "log_behind_table",
                topic=self._topic,
                log_stop=self.wal.next_offset,
                objects_stop=objects.stop,
                upto=end.upto,
            )
            # Before the log exists: the next object will not be contiguous with the last one.
            await self.catalog.begin_at(goal)
            return OffsetRange(goal, goal)
        return objects

    async def _restart_objects(self, table: TopicTable, gap: OffsetRange, objects: OffsetRange) -> OffsetRange:
        """Continue objects at the log's start, after a gap that the table fills: it was pruned while uploads were off.

        Without a proof nothing is changed, and the uploader reports the gap.
        """
        try:
            await table.prove(*gap)
        except (LakeUnavailableError, TableMovedError, MissingRowsError, CorruptRowsError) as error:
            log.warning("table_not_asked", topic=self._topic, known_upto=gap.stop, cause=str(error))
            return objects
        log.warning("objects_begin_anew", topic=self._topic, objects_stop=gap.start, log_start=gap.stop)
        await self.catalog.begin_at(gap.stop)
        return OffsetRange(gap.stop, gap.stop)
