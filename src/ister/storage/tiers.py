"""One ordered stream over a topic's tiers: table, objects, log, from old to new, decided again when needed.

A reader is an offset. Where that offset is, is asked each time the tier at hand ends or cannot serve it: retention may
have moved the start of the log or of the objects meanwhile, or a file or an object may be damaged while another tier has
the same messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from ister.cloud.proof import prove
from ister.core.batches import Batches
from ister.core.errors import (
    CorruptLogError,
    CorruptObjectError,
    IsterError,
    LogClosedError,
    MissingFileError,
    MissingObjectError,
    MissingSpanError,
    OffsetOutOfRangeError,
)
from ister.core.handoff import NOTHING, Serve, Span, Tier, serve
from ister.core.offsets import StartPosition
from ister.core.segment import parse_key
from ister.storage.persistent import SkipsMissing

if TYPE_CHECKING:
    from ister.cloud import CloudReader, Uploader
    from ister.core.message import StreamMessage
    from ister.storage.table_tier import TableTier
    from ister.wal.config import WalConfig
    from ister.wal.directory import Segment

log = structlog.get_logger()

CLOUD_TIMEOUT_S = 30.0

OBJECTS_FAIL = (MissingObjectError, MissingSpanError, CorruptObjectError)
"""What says that objects do not have what they are said to have."""


@dataclass(slots=True)
class ObjectTier:
    """A topic's objects; without an uploader they are what they were when the topic was opened.

    `known` is what was described then; its start moves up when objects are deleted behind the table. `timeout_s` is how
    long an append at level cloud waits. `damaged` is what an alarm was given for.
    """

    reader: CloudReader
    uploader: Uploader | None
    known: Span
    timeout_s: float = CLOUD_TIMEOUT_S
    damaged: Span = NOTHING

    @property
    def span(self) -> Span:
        """The offsets that objects hold."""
        if self.uploader is None:
            return self.known
        return Span(self.known.start, max(self.known.stop, self.uploader.uploaded.value))

    def forget_below(self, offset: int) -> None:
        """Read nothing below an offset from objects any more: they are about to be deleted."""
        if offset > self.known.start:
            self.known = Span(offset, max(offset, self.known.stop))

    def is_news(self, damage: Span) -> bool:
        """Note damage; tells whether it is apart from what was told already. Of a store that was emptied, all is one."""
        joins = self.damaged.start <= damage.start <= self.damaged.stop and self.damaged != NOTHING
        start = self.damaged.start if joins else damage.start
        self.damaged = Span(start, max(self.damaged.stop, damage.stop) if joins else damage.stop)
        return not joins


async def prove_held(objects: ObjectTier | None, table: TableTier | None, start: int, stop: int) -> None:
    """Return if objects and table together hold every offset of [start, stop), each asked now; else say what is missing."""
    if start >= stop:
        return
    if objects is None:
        assert table is not None, "there is a later tier"
        await table.table.prove(start, stop)
        return
    # What lies below the border was given up by a policy; without a table nothing has to hold it.
    border = objects.span.start if table is not None else objects.reader.catalog.begin
    begins = max(start, min(border, stop))
    try:
        await prove(objects.reader.store, objects.reader.catalog, begins, stop)
    except OBJECTS_FAIL:
        if table is None or table.span.stop <= begins:
            raise
        # What is gone from the store may be in the table; behind its end, objects must have the rest.
        begins = min(stop, table.span.stop)
        await prove(objects.reader.store, objects.reader.catalog, begins, stop)
    if table is not None and start < begins:
        await table.table.prove(start, begins)
        await objects.reader.catalog.note_table(begins)


class LaterReader(Protocol):
    """Reads messages of objects or of a table in order, up to where it was told to."""

    @property
    def next_offset(self) -> int:
        """The offset that will be read next."""
        ...

    async def read(self) -> list[StreamMessage]:
        """Return the next messages; none at the end."""
        ...

    async def close(self) -> None:
        """Stop reading ahead."""
        ...


class LogReader(Protocol):
    """Reads a log's messages in order."""

    @property
    def next_offset(self) -> int:
        """The offset that will be read from the log next."""
        ...

    async def read(self) -> list[StreamMessage]:
        """Return the next messages; none only where a log that was looked at ends."""
        ...


class TierLog(Protocol):
    """What is asked of the log in front of objects; a Wal, which goes on, or a LogView, which ends."""

    @property
    def config(self) -> WalConfig:
        """Its settings; errors name it by them."""
        ...

    @property
    def start_offset(self) -> int:
        """The oldest offset that it holds."""
        ...

    @property
    def next_offset(self) -> int:
        """The offset behind its last message."""
        ...

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        ...

    def locate(self, offset: int) -> tuple[Segment, int] | None:
        """Return the file that holds an offset, and the offset at which its messages end."""
        ...

    def create_reader(self, position: StartPosition) -> LogReader:
        """Read from a position on."""
        ...


class TieredReader(Batches):
    """An ordered stream of messages; `async for message in reader`, or `await reader.read()` for a batch.

    It waits at the end of a log that goes on, and ends where one that was only looked at ends.
    """

    def __init__(
        self, wal: TierLog, objects: ObjectTier | None, position: StartPosition, table: TableTier | None = None
    ) -> None:
        if wal.closed:
            raise LogClosedError(wal.config.name)
        super().__init__()
        self._wal = wal
        self._objects = objects
        self._table = table
        self._next: int = wal.next_offset if position.at is None else position.at
        self._from_log: LogReader | None = None
        self._from_later: LaterReader | None = None
        self.skipped_upto = 0
        """The offset behind the last one that the table should have and has not, and that was skipped; 0 when none was."""
        self._unreadable = NOTHING
        self._lost = NOTHING
        self._decide()  # an offset that nobody holds is told now

    @property
    def next_offset(self) -> int:
        """The offset that will be read next; what was read already may still be in the buffer."""
        return self._next

    async def close(self) -> None:
        """Stop reading ahead."""
        if self._from_later is not None:
            await self._from_later.close()
            self._from_later = None

    async def _read(self) -> list[StreamMessage]:
        while True:
            if self._from_later is None and self._from_log is None:
                self._turn(self._decide())
            if self._from_later is not None:
                messages = await self._read_later(self._from_later)
                if not messages:
                    await self.close()
            else:
                messages = await self._read_log()
            if messages or self._from_log is not None:
                return messages

    async def _read_later(self, stream: LaterReader) -> list[StreamMessage]:
        """Read from objects or the table; what objects do not have, the table may."""
        failure: IsterError | None = None
        messages: list[StreamMessage] = []
        try:
            messages = await stream.read()
        except IsterError as error:
            failure = error
        if self._wal.closed:
            # Of a topic that was deleted meanwhile, missing objects are no damage.
            raise LogClosedError(self._wal.config.name) from failure
        if failure is not None:
            await self.close()  # so that the next call asks again, once the store is back
            if isinstance(failure, OBJECTS_FAIL) and self._next in self._table_span:
                self._pass_by(failure)
                return []
            raise failure
        self._next = stream.next_offset
        if isinstance(stream, SkipsMissing):
            self.skipped_upto = max(self.skipped_upto, stream.skipped_upto)
        return messages

    async def _read_log(self) -> list[StreamMessage]:
        reader = self._from_log
        assert reader is not None, "the tier was decided"
        try:
            messages = await reader.read()
        except OffsetOutOfRangeError:
            # Retention has taken it from the log; it did so only because a later tier has it.
            self._from_log = None
            self._decide()
            return []
        except (CorruptLogError, MissingFileError) as error:
            self._from_log = None
            self._avoid(error)
            return []
        self._next = reader.next_offset
        return messages

    # --- where to read ------------------------------------------------------------------------------------------------

    @property
    def _object_span(self) -> Span:
        return NOTHING if self._objects is None else self._objects.span

    @property
    def _table_span(self) -> Span:
        return NOTHING if self._table is None else self._table.span

    def _decide(self) -> Serve:
        wal = self._wal
        return serve(
            self._next,
            Span(wal.start_offset, wal.next_offset),
            self._object_span,
            self._table_span,
            unreadable=self._unreadable,
            lost=self._lost,
        )

    def _turn(self, to: Serve) -> None:
        if to.tier is Tier.LOG:
            self._from_log = self._wal.create_reader(StartPosition.offset(self._next))
            return
        if self._wal.closed:
            raise LogClosedError(self._wal.config.name)
        if to.tier is Tier.OBJECTS:
            assert self._objects is not None, "only what is there was decided for"
            self._from_later = self._objects.reader.open(self._next, to.stop)
        else:
            assert self._table is not None, "only what is there was decided for"
            self._from_later = self._table.table.open(self._next, to.stop)

    def _avoid(self, error: IsterError) -> None:
        """Read the rest of a damaged file from objects or the table, if they have it; else the damage is told."""
        found = self._wal.locate(self._next)
        held = [span.stop for span in (self._object_span, self._table_span) if self._next in span]
        if found is None or not held:
            raise error
        _, stop = found
        self._unreadable = Span(self._next, min(stop, max(held)))
        log.error("log_damaged", log=self._wal.config.name, start=self._next, stop=stop, cause=str(error))

    def _pass_by(self, error: IsterError) -> None:
        """Read what is left of an object that is gone or damaged from the table, which has the next offset.

        An object that retention has deleted meanwhile is no damage: objects begin behind it now.
        """
        stop = self._next + 1
        if isinstance(error, MissingSpanError):
            stop = max(stop, error.stop)
        elif isinstance(error, CorruptObjectError | MissingObjectError) and (name := parse_key(error.key)) is not None:
            stop = max(stop, name.stop)
        # Where the table ends, the object is asked again: then its damage is told.
        self._lost = Span(self._next, min(stop, self._table_span.stop))
        if self._objects is not None and self._next in self._objects.span and self._objects.is_news(self._lost):
            log.error(
                "objects_damaged", log=self._wal.config.name, start=self._next, stop=self._lost.stop, cause=str(error)
            )
