"""One reader over a topic's tiers: table, objects and log.

Its state is an offset. The tier is selected again each time the current one ends or fails: retention may have moved the
start of the log or of the objects, or another tier may have the messages of a damaged file or object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from ister.cloud.proof import prove
from ister.core import defaults
from ister.core.errors import (
    CorruptLogError,
    CorruptObjectError,
    IsterError,
    LogClosedError,
    MissingFileError,
    MissingObjectError,
    MissingOffsetsError,
    OffsetOutOfRangeError,
)
from ister.core.frames.segment import parse_key
from ister.core.offsets import StartPosition
from ister.core.reader import Reader
from ister.core.table.data_files import NO_TABLE, RowLocation, TableEnd
from ister.core.tiers.selection import NOTHING, OffsetRange, Serve, Tier, serve

if TYPE_CHECKING:
    from ister.cloud import CloudReader, Uploader
    from ister.core.message import StreamMessage
    from ister.core.reader import MessageReader
    from ister.wal import Wal, WalReader
    from ister.wal.read_only import LogView, ViewReader

log = structlog.get_logger()

OBJECTS_FAIL = (MissingObjectError, MissingOffsetsError, CorruptObjectError)
"""Errors that mean that objects lack what their descriptors promise."""


class TopicTable(Protocol):
    """The rows of one topic, or of one partition of a topic, in its table (`ister.lake.topic_table`).

    Every call may raise LakeUnavailableError (nothing happened, try later) and TableMovedError (rolled back, replaced or
    dropped).
    """

    async def look(self) -> TableEnd:
        """Ask the catalog for the table's end; NO_TABLE if there is no table."""

    def open(self, start: int, stop: int) -> MessageReader:
        """Read the messages [start, stop), in order, each once, even if the table's files are replaced meanwhile.

        MissingRowsError if the newest snapshot does not hold them all.
        """

    async def prove(self, start: int, stop: int) -> None:
        """Check that the newest snapshot holds every offset of [start, stop); MissingRowsError if it does not."""

    def place(self, offset: int) -> RowLocation | None:
        """Return where an offset is in the last known snapshot, None if it is not there. No I/O."""

    async def close(self) -> None:
        """Close files and threads; readers end."""


@dataclass(slots=True)
class TableTier:
    """A topic's table, which holds it from offset 0 on; `end` is its known end, which only grows."""

    table: TopicTable
    end: TableEnd = NO_TABLE

    @property
    def span(self) -> OffsetRange:
        """The offsets that the table holds, as far as known."""
        return OffsetRange(0, self.end.upto)

    def reached(self, end: TableEnd) -> None:
        """Record the table's end; a lower one than known is late, and ignored."""
        if end.upto > self.end.upto:
            self.end = end


@dataclass(slots=True)
class ObjectTier:
    """A topic's objects; without an uploader they do not change after the topic was opened.

    `known` are the offsets described then; its start moves up when objects are deleted that the table holds. `timeout_s`
    is how long an append at level cloud waits. `damaged` is the last range whose damage was logged.
    """

    reader: CloudReader
    uploader: Uploader | None
    known: OffsetRange
    timeout_s: float = defaults.ACK_TIMEOUT_MS / 1000
    damaged: OffsetRange = NOTHING

    @property
    def span(self) -> OffsetRange:
        """The offsets that objects hold."""
        if self.uploader is None:
            return self.known
        return OffsetRange(self.known.start, max(self.known.stop, self.uploader.uploaded.value))

    def set_timeout(self, timeout_s: float) -> None:
        """Change how long an append at level cloud waits."""
        self.timeout_s = timeout_s

    def forget_below(self, offset: int) -> None:
        """Stop reading objects below an offset: they are about to be deleted."""
        if offset > self.known.start:
            self.known = OffsetRange(offset, max(offset, self.known.stop))

    def is_news(self, damage: OffsetRange) -> bool:
        """Record damage; returns True unless it adjoins the last one, so that an emptied store is logged once."""
        joins = self.damaged.start <= damage.start <= self.damaged.stop and self.damaged != NOTHING
        start = self.damaged.start if joins else damage.start
        self.damaged = OffsetRange(start, max(self.damaged.stop, damage.stop) if joins else damage.stop)
        return not joins


async def prove_held(objects: ObjectTier | None, table: TableTier | None, start: int, stop: int) -> None:
    """Check that objects and table together hold every offset of [start, stop) now; raises what is missing."""
    if start >= stop:
        return
    if objects is None:
        assert table is not None, "there is a later tier"
        await table.table.prove(start, stop)
        return
    # Offsets below the border were deleted by a policy; without a table nothing has to hold them.
    border = objects.span.start if table is not None else objects.reader.catalog.begin
    begins = max(start, min(border, stop))
    try:
        await prove(objects.reader.store, objects.reader.catalog, begins, stop)
    except OBJECTS_FAIL:
        if table is None or table.span.stop <= begins:
            raise
        # Offsets missing in the store may be in the table; objects must have those after its end.
        begins = min(stop, table.span.stop)
        await prove(objects.reader.store, objects.reader.catalog, begins, stop)
    if table is not None and start < begins:
        await table.table.prove(start, begins)
        await objects.reader.catalog.note_table(begins)


class TieredReader(Reader):
    """A reader over all tiers; it waits at the end of a Wal, and ends at the end of a read-only log."""

    def __init__(
        self, wal: Wal | LogView, objects: ObjectTier | None, position: StartPosition, table: TableTier | None = None
    ) -> None:
        if wal.closed:
            raise LogClosedError(wal.config.name)
        super().__init__()
        self._wal = wal
        self._objects = objects
        self._table = table
        self._next: int = wal.next_offset if position.at is None else position.at
        self._from_log: WalReader | ViewReader | None = None
        self._from_later: MessageReader | None = None
        self._unreadable = NOTHING
        self._lost = NOTHING
        self._decide()  # raises for an offset that no tier holds

    @property
    def next_offset(self) -> int:
        """The offset that will be read next; earlier messages may still be in the buffer."""
        return self._next

    async def close(self) -> None:
        """Stop reading ahead."""
        if self._from_later is not None:
            await self._from_later.close()
            self._from_later = None

    async def _read(self) -> list[StreamMessage]:
        while True:
            if self._from_later is None and self._from_log is None:
                self._open_tier(self._decide())
            if self._from_later is not None:
                messages = await self._read_later(self._from_later)
                if not messages:
                    await self.close()
            else:
                messages = await self._read_log()
            if messages or self._from_log is not None:
                return messages

    async def _read_later(self, stream: MessageReader) -> list[StreamMessage]:
        """Read from objects or the table; the table may have what objects lack."""
        failure: IsterError | None = None
        messages: list[StreamMessage] = []
        try:
            messages = await stream.read()
        except IsterError as error:
            failure = error
        if self._wal.closed:
            # Missing objects of a deleted topic are no damage.
            raise LogClosedError(self._wal.config.name) from failure
        if failure is not None:
            await self.close()  # the next call selects again
            if isinstance(failure, OBJECTS_FAIL) and self._next in self._table_span:
                self._fall_back_to_table(failure)
                return []
            raise failure
        self._next = stream.next_offset
        self.skipped_upto = max(self.skipped_upto, stream.skipped_upto)
        return messages

    async def _read_log(self) -> list[StreamMessage]:
        reader = self._from_log
        assert reader is not None, "the tier was selected"
        try:
            messages = await reader.read()
        except OffsetOutOfRangeError:
            # Retention has deleted it from the log, because a later tier has it.
            self._from_log = None
            self._decide()
            return []
        except (CorruptLogError, MissingFileError) as error:
            self._from_log = None
            self._fall_back_from_log(error)
            return []
        self._next = reader.next_offset
        return messages

    # --- tier selection -----------------------------------------------------------------------------------------------

    @property
    def _object_span(self) -> OffsetRange:
        return NOTHING if self._objects is None else self._objects.span

    @property
    def _table_span(self) -> OffsetRange:
        return NOTHING if self._table is None else self._table.span

    def _decide(self) -> Serve:
        wal = self._wal
        return serve(
            self._next,
            OffsetRange(wal.start_offset, wal.next_offset),
            self._object_span,
            self._table_span,
            unreadable=self._unreadable,
            lost=self._lost,
        )

    def _open_tier(self, to: Serve) -> None:
        if to.tier is Tier.LOG:
            self._from_log = self._wal.create_reader(StartPosition.offset(self._next))
            return
        if self._wal.closed:
            raise LogClosedError(self._wal.config.name)
        if to.tier is Tier.OBJECTS:
            assert self._objects is not None, "only existing tiers are selected"
            self._from_later = self._objects.reader.open(self._next, to.stop)
        else:
            assert self._table is not None, "only existing tiers are selected"
            self._from_later = self._table.table.open(self._next, to.stop)

    def _fall_back_from_log(self, error: IsterError) -> None:
        """Read the rest of a damaged file from objects or the table if they have it; else raise the damage."""
        found = self._wal.locate(self._next)
        held = [span.stop for span in (self._object_span, self._table_span) if self._next in span]
        if found is None or not held:
            raise error
        _, stop = found
        self._unreadable = OffsetRange(self._next, min(stop, max(held)))
        log.error("log_damaged", log=self._wal.config.name, start=self._next, stop=stop, cause=str(error))

    def _fall_back_to_table(self, error: IsterError) -> None:
        """Read the rest of a missing or damaged object from the table, which has the next offset.

        An object that retention has deleted meanwhile is no damage, and not logged.
        """
        stop = self._next + 1
        if isinstance(error, MissingOffsetsError):
            stop = max(stop, error.stop)
        elif isinstance(error, CorruptObjectError | MissingObjectError) and (name := parse_key(error.key)) is not None:
            stop = max(stop, name.stop)
        # Where the table ends, the object is read again, which raises its damage.
        self._lost = OffsetRange(self._next, min(stop, self._table_span.stop))
        if self._objects is not None and self._next in self._objects.span and self._objects.is_news(self._lost):
            log.error(
                "objects_damaged", log=self._wal.config.name, start=self._next, stop=self._lost.stop, cause=str(error)
            )
