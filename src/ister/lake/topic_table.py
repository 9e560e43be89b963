"""Read a topic back from its table, whatever happens to the table's files meanwhile.

The offset is the cursor, not the snapshot: what comes next is planned on the newest snapshot, and planned again when a file
has vanished because someone compacted, sorted or expired. A file that the newest snapshot has and that is not there is
damage; one that cannot be reached is tried again by whoever reads.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np
import structlog

from ister.core.columns import messages_in, rebuild_frames
from ister.core.errors import LogClosedError
from ister.core.layout import NO_TABLE, Place, TableEnd
from ister.core.names import partition_of
from ister.lake.deletes import deleted_of
from ister.lake.errors import CorruptRowsError, LakeUnavailableError, MissingRowsError, TableMovedError
from ister.lake.files import sync_local, unreachable
from ister.lake.index import FileIndex, plan_scan
from ister.lake.lane import OFFSETS, Wish, read_lane
from ister.lake.scan import BATCHES, MESSAGES, FileTroubleError, Scan, Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from ister.core.layout import Changes, Part
    from ister.core.message import StreamMessage
    from ister.core.names import TopicName
    from ister.lake.commit import LakeTable
    from ister.lake.index import Delete
    from ister.lake.scan import Form, Rows

log = structlog.get_logger()

PROVE_ROWS = 1 << 24
"""How many offsets are looked at together; a byte each."""


@dataclass(slots=True)
class Seen:
    """What readers of tables have done so far."""

    snapshots: int = 0
    files: int = 0
    rows: int = 0
    skipped: int = 0
    replans: int = 0


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """How tables are read back."""

    poll_interval_s: float = 1.0
    max_concurrent_reads: int = 10
    prefetch_size: int = 5
    on_missing: Literal["fail", "skip"] = "fail"


class Finds(Protocol):
    """Where tables are found: a Lake, or one that is opened when it is needed."""

    def find(self, topic: TopicName, generation: int) -> LakeTable | None:
        """Return a topic's table if there is one."""
        ...

    def close(self) -> None:
        """Let go of the catalog."""
        ...


@dataclass(slots=True)
class TableReads:
    """What all readers of a process share: the lake, the threads, the counters. Close it at the end."""

    lake: Finds
    options: ReaderOptions = field(default_factory=ReaderOptions)
    seen: Seen = field(default_factory=Seen)
    files: ThreadPoolExecutor = field(init=False)
    streams: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self.files = ThreadPoolExecutor(self.options.max_concurrent_reads, "lake-file")
        self.streams = ThreadPoolExecutor(32, "lake-stream")

    def table(self, topic: TopicName, generation: int) -> LakeTopicTable:
        """Return the rows of a topic, or of a partition, in its table."""
        return LakeTopicTable(self, topic, generation)

    def close(self) -> None:
        """Let go of the threads, once what they do has ended, and of the lake."""
        self.streams.shutdown()
        self.files.shutdown()
        self.lake.close()


class Weight(NamedTuple):
    """A table's name, how many data files it has, and their bytes."""

    name: str
    files: int
    size: int


class LakeTopicTable:
    """One topic's rows; a `ister.storage.table_tier.TopicTable`."""

    def __init__(self, reads: TableReads, topic: TopicName, generation: int) -> None:
        part = partition_of(topic)
        self.topic = topic
        self.partition = 0 if part is None else part[1]
        self.reads = reads
        self._generation = generation
        self._table: LakeTable | None = None
        self._moved = False
        self._index = FileIndex()
        self._lock = threading.Lock()
        self._end = NO_TABLE
        self._synced: set[str] = set()
        self._closed = False

    # --- the catalog --------------------------------------------------------------------------------------------------

    async def look(self) -> TableEnd:
        """Ask the catalog how far the table goes now; NO_TABLE when there is none."""
        return await asyncio.get_running_loop().run_in_executor(self.reads.streams, self.refresh)

    def refresh(self) -> TableEnd:
        """Do what `look` does, in this thread."""
        with self._lock:
            if self._closed:
                raise LogClosedError(str(self.topic))
            found = None
            if self._table is None or self._moved:
                found = self.reads.lake.find(self.topic, self._generation)
            if found is not None:
                self._table = found
            elif self._table is None:
                return NO_TABLE
            else:
                self._moved = True  # unless this succeeds: it may have been dropped and made again, so it is looked for
                self._table.refresh()
            self._moved = False
            snapshot = self._table.snapshot
            before = self._index.snapshot_id
            try:
                self._index.turn(snapshot, self._table.files)
            except Exception as error:
                raise LakeUnavailableError(self.name, "list files of", f"{type(error).__name__}: {error}") from error
            if self._index.snapshot_id != before:
                self.reads.seen.snapshots += 1
            newest = max((part.append_time_us for part in self._index.parts), default=0)
            self._end = TableEnd(self._table.upto(self.partition), newest, self._index.snapshot_id)
            return self._end

    def plan_scan(self, before: int | None, after: int) -> Changes:
        """Return which data files lie between two snapshots; without the first, all of the second.

        TableMovedError when one of them is not known any more.
        """
        if self._table is None:
            self.refresh()
        table = self._table
        if table is None:
            raise LakeUnavailableError(self.name, "find", "there is none")
        snapshots = [None if number is None else table.snapshot_of(number) for number in (before, after)]
        if snapshots[1] is None or (before is not None and snapshots[0] is None):
            raise TableMovedError(self.name, f"snapshot {before if snapshots[1] else after} has expired")
        return plan_scan(snapshots[0], snapshots[1], table.files)

    @property
    def name(self) -> str:
        """The table's name, or the topic's while there is none."""
        return str(self.topic) if self._table is None else ".".join(self._table.identifier)

    @property
    def end(self) -> TableEnd:
        """How far the table went when it was last looked at."""
        return self._end

    def weight(self) -> Weight:
        """Return the data files of the snapshot that was last looked at, of all partitions. Asks nobody."""
        parts = self._index.parts
        return Weight(self.name, len(parts), sum(part.size for part in parts))

    def place(self, offset: int) -> Place | None:
        """Return where an offset is in the snapshot that was last looked at; None when it is not there. Asks nobody."""
        snapshot_id = self._index.snapshot_id
        found = self._index.plan(offset, offset + 1, self.partition)
        return Place(snapshot_id, found[0].path) if found and snapshot_id is not None else None

    # --- rows ---------------------------------------------------------------------------------------------------------

    def open(self, start: int, stop: int) -> LakeStream:
        """Read the messages [start, stop), in order, each once."""
        return LakeStream(self, start, stop)

    def rows(self, start: int, stop: int, form: Form = MESSAGES) -> Iterator[Rows]:
        """Give the rows [start, stop), dense and in order; for a thread, which waits for files."""
        at = start
        while at < stop:
            if self._end.upto < stop:
                self.refresh()
            if self._end.upto < stop:
                raise MissingRowsError(self.name, max(at, self._end.upto), stop, self.partition)
            scan = self._scan(at, stop, form)
            try:
                for rows in scan:
                    at = rows.chunk.stop
                    self.reads.seen.rows += rows.batch.num_rows
                    yield rows
                at = scan.next_offset
            except FileTroubleError as trouble:
                at = scan.next_offset
                self._judge(trouble)

    async def prove(self, start: int, stop: int) -> None:
        """Return once the newest snapshot was seen to hold every offset of [start, stop); MissingRowsError when not.

        On a local warehouse all of it is on disk then: what maintenance has rewritten nobody may have synced yet.
        """
        await asyncio.get_running_loop().run_in_executor(self.reads.streams, self._prove, start, stop)

    async def close(self) -> None:
        """Read no more; streams end with LogClosedError."""
        self._closed = True

    # --- inside -------------------------------------------------------------------------------------------------------

    def _planned(self, start: int, stop: int) -> tuple[list[Part], tuple[Delete, ...]]:
        """Return the data files that may hold offsets [start, stop), each once, and the delete files.

        CorruptRowsError when the snapshot lists a data file twice: then each of its rows is in the table twice.
        """
        with self._lock:
            parts, deletes = self._index.plan(start, stop, self.partition), self._index.deletes
        seen: set[str] = set()
        for part in parts:
            if part.path in seen:
                raise CorruptRowsError(
                    self.name,
                    part.path,
                    "the snapshot lists it twice, and with it each of its rows; run `ister lake repair`",
                )
            seen.add(part.path)
        return parts, deletes

    def _scan(self, start: int, stop: int, form: Form) -> Scan:
        parts, deletes = self._planned(start, stop)
        assert self._table is not None, "whoever knows how far it goes has found it"
        options = self.reads.options
        source = Source(
            self.name, self._table.files, deletes, self.reads.files,
            min(options.prefetch_size, options.max_concurrent_reads), self._missing, self._opened,
        )  # fmt: skip
        return Scan(source, parts, Wish(start, stop, self.partition), form)

    def _opened(self) -> None:
        if self._closed:
            raise LogClosedError(str(self.topic))
        self.reads.seen.files += 1

    def _missing(self, start: int, stop: int) -> None:
        """Tell of rows that are not there, or skip and count them."""
        if self.reads.options.on_missing == "fail":
            raise MissingRowsError(self.name, start, stop, self.partition)
        self.reads.seen.skipped += stop - start
        log.error("rows_skipped", table=self.name, partition=self.partition, start=start, stop=stop)

    def _judge(self, trouble: FileTroubleError) -> None:
        """Return when the newest snapshot does not have the file any more: plan again. Else it is damage, or out of reach."""
        part, cause = trouble.part, trouble.cause
        self.refresh()
        if part.path not in {now.path for now in self._index.parts}:
            self.reads.seen.replans += 1
            log.info("table_planned_again", table=self.name, file=part.path, snapshot=self._index.snapshot_id)
            return
        if isinstance(cause, FileNotFoundError):
            raise CorruptRowsError(
                self.name, part.path, "it is not there, though the newest snapshot has it"
            ) from cause
        assert self._table is not None, "one of its files was read"
        if isinstance(cause, OSError) and (problem := unreachable(self._table.files, part.path)):
            raise LakeUnavailableError(self.name, f"read {part.path} of", problem) from cause
        raise CorruptRowsError(self.name, part.path, f"it cannot be decoded ({cause})") from cause

    def _prove(self, start: int, stop: int) -> None:
        at = start
        while at < stop:
            end = min(stop, at + PROVE_ROWS)
            if self.refresh().upto < end:
                raise MissingRowsError(self.name, max(at, self._end.upto), stop, self.partition)
            wish = Wish(at, end, self.partition)
            try:
                held = self._held(wish)
            except FileTroubleError as trouble:
                self._judge(trouble)
                continue
            if not held.all():
                first = at + int(np.argmin(held))
                raise MissingRowsError(self.name, first, first + 1, self.partition)
            self._sync(wish)
            at = end

    def _sync(self, wish: Wish) -> None:
        """Have what holds some offsets, and what leads there, be on disk; once each, since no file changes."""
        assert self._table is not None, "it was looked at"
        with self._lock:
            index = self._index
            leads = {*self._table.metadata_files, *index.manifests, *(one.file.file_path for one in index.deletes)}
            needed = leads | {part.path for part in index.plan(*wish)}
            self._synced &= leads | {part.path for part in index.parts}
            home = self._table.location
        try:
            sync_local(sorted(needed - self._synced), home)
        except OSError as error:
            raise LakeUnavailableError(self.name, "sync files of", f"{type(error).__name__}: {error}") from error
        self._synced |= needed

    def _held(self, wish: Wish) -> np.ndarray:
        """Return which offsets are there, by the column that says so."""
        assert self._table is not None, "it was looked at"
        held = np.zeros(wish.stop - wish.start, np.bool_)
        parts, deletes = self._planned(wish.start, wish.stop)
        for part in parts:
            self._opened()
            try:
                deleted = deleted_of(part, deletes, self._table.files)
                for rows in read_lane(self._table.files, part, wish, deleted, OFFSETS):
                    found = rows.column("topic_offset").to_numpy() - wish.start
                    if held[found].any() or len(np.unique(found)) < len(found):
                        raise CorruptRowsError(
                            self.name, part.path, "one of its offsets is in the table twice; run `ister lake repair`"
                        )
                    held[found] = True
            except (OSError, ValueError) as error:
                raise FileTroubleError(part, error) from error
        return held


class LakeStream:
    """An ordered stream from a table, read ahead by a few batches; close it when you stop early."""

    def __init__(self, table: LakeTopicTable, start: int, stop: int) -> None:
        self._table = table
        self._next = start
        self._stop = stop
        self.skipped_upto = 0
        """The offset behind the last one that is missing and was skipped, 0 when none was."""
        self._queue: asyncio.Queue[Rows | BaseException] = asyncio.Queue(table.reads.options.prefetch_size)
        self._pump: asyncio.Task[None] | None = None

    @property
    def next_offset(self) -> int:
        """The offset that will be read next."""
        return self._next

    async def read(self) -> list[StreamMessage]:
        """Return the next messages, about a MiB at most; none at the end."""
        rows = await self._take(MESSAGES)
        if rows is None:
            return []
        chunk = rows.chunk if rows.chunk.frames else rebuild_frames(rows.batch)[0]  # read ahead for who wanted Arrow
        return messages_in(chunk, str(self._table.topic))

    async def read_batch(self) -> pa.RecordBatch | None:
        """Return the next messages as Arrow (`ister.core.columns.SCHEMA`), about 4 MiB at most; None at the end."""
        rows = await self._take(BATCHES)
        return None if rows is None else rows.batch

    async def close(self) -> None:
        """Stop reading ahead."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait({self._pump})
            while not self._queue.empty():
                self._queue.get_nowait()
            self._queue.put_nowait(LogClosedError(str(self._table.topic)))  # for whoever reads on, or is just waiting

    async def _take(self, form: Form) -> Rows | None:
        while self._next < self._stop:
            if self._pump is None:
                rows = self._table.rows(self._next, self._stop, form)
                self._pump = asyncio.create_task(self._read_ahead(rows))
            item = await self._queue.get()
            if isinstance(item, StopAsyncIteration):
                self._next = self.skipped_upto = self._stop  # the rest was missing, and skipping it was asked for
                break
            if isinstance(item, BaseException):
                self._queue.put_nowait(item)  # whoever asks again is told again
                raise item
            if item.chunk.start > self._next:
                self.skipped_upto = item.chunk.start  # otherwise the scan would have raised
            self._next = item.chunk.stop
            return item
        return None

    async def _read_ahead(self, rows: Iterator[Rows]) -> None:
        loop = asyncio.get_running_loop()
        try:
            while (found := await loop.run_in_executor(self._table.reads.streams, next, rows, None)) is not None:
                await self._queue.put(found)
            await self._queue.put(StopAsyncIteration())
        except Exception as error:  # noqa: BLE001  # whatever it is, it belongs to whoever reads
            await self._queue.put(error)
