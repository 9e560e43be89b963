"""Reads of a topic from its table, under concurrent compaction and expiry.

The offset is the cursor, not the snapshot: a scan is planned on the newest snapshot, and planned again when a data file was
deleted by maintenance. A file of the newest snapshot that does not exist is corruption; one that cannot be reached is
an error that the reader retries.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import structlog

from ister.core.errors import LogClosedError
from ister.core.frames.columns import messages_in, rebuild_frames
from ister.core.names import partition_of
from ister.core.table.data_files import NO_TABLE, RowLocation, TableEnd, changes, select
from ister.lake.data_file_rows import OFFSETS, RowRange, deleted_of, read_rows
from ister.lake.errors import CorruptRowsError, LakeUnavailableError, MissingRowsError, TableMovedError
from ister.lake.files import sync_local, unreachable
from ister.lake.manifests import SnapshotFiles
from ister.lake.scan import BATCHES, MESSAGES, FileReadError, Scan, ScanSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from ister.core.message import StreamMessage
    from ister.core.names import TopicName
    from ister.core.table.data_files import Changes, DataFileEntry
    from ister.lake.catalog import LakeCatalog, LazyLakeCatalog
    from ister.lake.manifests import DeleteFile
    from ister.lake.scan import Rows, ScanMode
    from ister.lake.table import LakeTable

log = structlog.get_logger()

PROVE_ROWS = 1 << 24
"""Offsets that are verified at a time; a byte each."""


@dataclass(slots=True)
class ReadCounters:
    """Counters of all readers of a process."""

    snapshots: int = 0
    files: int = 0
    rows: int = 0
    skipped: int = 0
    replans: int = 0


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """Options of table reads."""

    poll_interval_s: float = 1.0
    max_concurrent_reads: int = 10
    prefetch_size: int = 5
    on_missing: Literal["fail", "skip"] = "fail"


@dataclass(slots=True)
class TableReads:
    """The catalog, threads and counters that all readers of a process share. Close it at the end."""

    lake: LakeCatalog | LazyLakeCatalog
    options: ReaderOptions = field(default_factory=ReaderOptions)
    seen: ReadCounters = field(default_factory=ReadCounters)
    files: ThreadPoolExecutor = field(init=False)
    streams: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self.files = ThreadPoolExecutor(self.options.max_concurrent_reads, "lake-file")
        self.streams = ThreadPoolExecutor(32, "lake-stream")

    def table(self, topic: TopicName, generation: int) -> LakeTopicTable:
        """Return the rows of a topic, or of a partition, in its table."""
        return LakeTopicTable(self, topic, generation)

    def close(self) -> None:
        """Wait for the threads and close the catalog."""
        self.streams.shutdown()
        self.files.shutdown()
        self.lake.close()


class Weight(NamedTuple):
    """A table's name, its number of data files and their bytes."""

    name: str
    files: int
    size: int


class LakeTopicTable:
    """One topic's rows; a `ister.storage.tiered_reader.TopicTable`."""

    def __init__(self, reads: TableReads, topic: TopicName, generation: int) -> None:
        self.topic = topic
        self.partition = (partition_of(topic) or (topic, 0))[1]
        self.reads = reads
        self._generation = generation
        self._table: LakeTable | None = None
        self._moved = False
        self._listed = SnapshotFiles()
        self._lock = threading.Lock()
        self.end = NO_TABLE
        """The end of the table at the last refresh."""
        self._synced: set[str] = set()
        self._closed = False

    async def look(self) -> TableEnd:
        """Refresh the table from the catalog and return its end; NO_TABLE when there is none."""
        return await asyncio.get_running_loop().run_in_executor(self.reads.streams, self.refresh)

    def refresh(self) -> TableEnd:
        """Refresh as `look` does, in this thread."""
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
                self._moved = True  # until this succeeds: it may have been dropped and re-created, so the next refresh searches for it
                self._table.refresh()
            self._moved = False
            before = self._listed.snapshot_id
            try:
                self._listed.load(self._table.snapshot, self._table.files)
            except Exception as error:
                raise LakeUnavailableError(self.name, "list files of", error) from error
            if self._listed.snapshot_id != before:
                self.reads.seen.snapshots += 1
            newest = max((entry.append_time_us for entry in self._listed.entries), default=0)
            self.end = TableEnd(self._table.upto(self.partition), newest, self._listed.snapshot_id)
            return self.end

    def plan_scan(self, before: int | None, after: int) -> Changes:
        """Return the data files that differ between two snapshots; without the first, all of the second.

        TableMovedError when one of them has expired.
        """
        if self._table is None:
            self.refresh()
        table = self._table
        if table is None:
            raise LakeUnavailableError(self.name, "find", "there is none")
        entries = []
        for number in (before, after):
            snapshot = None if number is None else table.snapshot_of(number)
            if snapshot is None and number is not None:
                raise TableMovedError(self.name, f"snapshot {number} has expired")
            entries.append(SnapshotFiles(snapshot, table.files).entries)
        return changes(*entries)

    @property
    def name(self) -> str:
        """The table's name, or the topic's while there is none."""
        return str(self.topic) if self._table is None else ".".join(self._table.identifier)

    def weight(self) -> Weight:
        """Return the size of the last refreshed snapshot, of all partitions. No I/O."""
        entries = self._listed.entries
        return Weight(self.name, len(entries), sum(entry.size for entry in entries))

    def place(self, offset: int) -> RowLocation | None:
        """Return the data file of an offset in the last refreshed snapshot; None when it has none. No I/O."""
        snapshot_id = self._listed.snapshot_id
        found = select(self._listed.entries, offset, offset + 1, self.partition)
        return RowLocation(snapshot_id, found[0].path) if found and snapshot_id is not None else None

    # --- rows ---------------------------------------------------------------------------------------------------------

    def open(self, start: int, stop: int) -> LakeStream:
        """Open a stream of the messages [start, stop), in order, each once."""
        return LakeStream(self, start, stop)

    def rows(self, start: int, stop: int, mode: ScanMode = MESSAGES) -> Iterator[Rows]:
        """Yield the rows [start, stop), dense and in order; blocks on files, so call it in a thread."""
        at = start
        while at < stop:
            if self.end.upto < stop:
                self.refresh()
            if self.end.upto < stop:
                raise MissingRowsError(self.name, max(at, self.end.upto), stop, self.partition)
            scan = self._scan(at, stop, mode)
            try:
                for rows in scan:
                    at = rows.chunk.stop
                    self.reads.seen.rows += rows.batch.num_rows
                    yield rows
                at = scan.next_offset
            except FileReadError as error:
                at = scan.next_offset
                self._check_replaced(error)

    async def prove(self, start: int, stop: int) -> None:
        """Verify that the newest snapshot holds every offset of [start, stop); MissingRowsError when it does not.

        On a local warehouse its files are then fsynced: files that maintenance rewrote may not be yet.
        """
        await asyncio.get_running_loop().run_in_executor(self.reads.streams, self._prove, start, stop)

    async def close(self) -> None:
        """Stop all reads; streams end with LogClosedError."""
        self._closed = True

    # --- inside -------------------------------------------------------------------------------------------------------

    def _planned(self, start: int, stop: int) -> tuple[list[DataFileEntry], tuple[DeleteFile, ...]]:
        """Return the data files that may hold offsets [start, stop), each once, and the delete files.

        CorruptRowsError when the snapshot lists a data file twice: then each of its rows is in the table twice.
        """
        with self._lock:
            entries, deletes = select(self._listed.entries, start, stop, self.partition), self._listed.deletes
        for path, count in Counter(entry.path for entry in entries).items():
            if count > 1:
                cause = "the snapshot lists it twice, and with it each of its rows; run `ister lake repair`"
                raise CorruptRowsError(self.name, path, cause)
        return entries, deletes

    def _scan(self, start: int, stop: int, mode: ScanMode) -> Scan:
        entries, deletes = self._planned(start, stop)
        assert self._table is not None, "its end is known, so it was found"
        options = self.reads.options
        source = ScanSource(
            self.name, self._table.files, deletes, self.reads.files,
            min(options.prefetch_size, options.max_concurrent_reads), self._missing, self._opened,
        )  # fmt: skip
        return Scan(source, entries, RowRange(start, stop, self.partition), mode)

    def _opened(self) -> None:
        if self._closed:
            raise LogClosedError(str(self.topic))
        self.reads.seen.files += 1

    def _missing(self, start: int, stop: int) -> None:
        """Raise MissingRowsError, or count and log the skipped rows."""
        if self.reads.options.on_missing == "fail":
            raise MissingRowsError(self.name, start, stop, self.partition)
        self.reads.seen.skipped += stop - start
        log.error("rows_skipped", table=self.name, partition=self.partition, start=start, stop=stop)

    def _check_replaced(self, error: FileReadError) -> None:
        """Return if the newest snapshot no longer has the file: plan again. Else raise: it is corrupt, or unreachable."""
        path, cause = error.entry.path, error.cause
        self.refresh()
        if path not in {entry.path for entry in self._listed.entries}:
            self.reads.seen.replans += 1
            log.info("table_planned_again", table=self.name, file=path, snapshot=self._listed.snapshot_id)
            return
        if isinstance(cause, FileNotFoundError):
            raise CorruptRowsError(self.name, path, "it is not there, though the newest snapshot has it") from cause
        assert self._table is not None, "one of its files was read"
        if isinstance(cause, OSError) and (problem := unreachable(self._table.files, path)):
            raise LakeUnavailableError(self.name, f"read {path} of", problem) from cause
        raise CorruptRowsError(self.name, path, f"it cannot be decoded ({cause})") from cause

    def _prove(self, start: int, stop: int) -> None:
        at = start
        while at < stop:
            end = min(stop, at + PROVE_ROWS)
            if self.refresh().upto < end:
                raise MissingRowsError(self.name, max(at, self.end.upto), stop, self.partition)
            row_range = RowRange(at, end, self.partition)
            try:
                held = self._held(row_range)
            except FileReadError as error:
                self._check_replaced(error)
                continue
            if not held.all():
                first = at + int(np.argmin(held))
                raise MissingRowsError(self.name, first, first + 1, self.partition)
            self._sync(row_range)
            at = end

    def _sync(self, row_range: RowRange) -> None:
        """Fsync the data files of a row range and the metadata that leads to them; once each, as files are immutable."""
        assert self._table is not None, "it was refreshed"
        with self._lock:
            listed = self._listed
            metadata = {*self._table.metadata_files, *listed.manifests, *(one.file.file_path for one in listed.deletes)}
            needed = metadata | {entry.path for entry in select(listed.entries, *row_range)}
            self._synced &= metadata | {entry.path for entry in listed.entries}
            location = self._table.location
        try:
            sync_local(sorted(needed - self._synced), location)
        except OSError as error:
            raise LakeUnavailableError(self.name, "sync files of", error) from error
        self._synced |= needed

    def _held(self, row_range: RowRange) -> np.ndarray:
        """Return a mask of the offsets that the table holds."""
        assert self._table is not None, "it was refreshed"
        held = np.zeros(row_range.stop - row_range.start, np.bool_)
        entries, deletes = self._planned(row_range.start, row_range.stop)
        for entry in entries:
            self._opened()
            try:
                deleted = deleted_of(entry, deletes, self._table.files)
                for rows in read_rows(self._table.files, entry, row_range, deleted, OFFSETS):
                    found = rows.column("topic_offset").to_numpy() - row_range.start
                    if held[found].any() or len(np.unique(found)) < len(found):
                        raise CorruptRowsError(
                            self.name, entry.path, "one of its offsets is in the table twice; run `ister lake repair`"
                        )
                    held[found] = True
            except (OSError, ValueError) as error:
                raise FileReadError(entry, error) from error
        return held


class LakeStream:
    """An ordered stream from a table with a prefetch of a few batches; close it when you stop early."""

    def __init__(self, table: LakeTopicTable, start: int, stop: int) -> None:
        self._table = table
        self.next_offset = start
        """The offset that will be read next."""
        self._stop = stop
        self.skipped_upto = 0
        """The offset after the last missing one that was skipped, 0 when none was."""
        self._queue: asyncio.Queue[Rows | BaseException] = asyncio.Queue(table.reads.options.prefetch_size)
        self._pump: asyncio.Task[None] | None = None

    async def read(self) -> list[StreamMessage]:
        """Return the next messages, about a MiB at most; none at the end."""
        rows = await self._take(MESSAGES)
        if rows is None:
            return []
        chunk = rows.chunk if rows.chunk.frames else rebuild_frames(rows.batch)[0]  # prefetched for read_batch()
        return messages_in(chunk, str(self._table.topic))

    async def read_batch(self) -> pa.RecordBatch | None:
        """Return the next messages as Arrow (`ister.core.frames.columns.SCHEMA`), about 4 MiB at most; None at the end."""
        rows = await self._take(BATCHES)
        return None if rows is None else rows.batch

    async def close(self) -> None:
        """Stop reading ahead."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait({self._pump})
            while not self._queue.empty():
                self._queue.get_nowait()
            self._queue.put_nowait(LogClosedError(str(self._table.topic)))  # for later and pending reads

    async def _take(self, mode: ScanMode) -> Rows | None:
        while self.next_offset < self._stop:
            if self._pump is None:
                rows = self._table.rows(self.next_offset, self._stop, mode)
                self._pump = asyncio.create_task(self._read_ahead(rows))
            item = await self._queue.get()
            if isinstance(item, StopAsyncIteration):
                self.next_offset = self.skipped_upto = self._stop  # the rest was missing, and on_missing is skip
                break
            if isinstance(item, BaseException):
                self._queue.put_nowait(item)  # the next read raises it again
                raise item
            if item.chunk.start > self.next_offset:
                self.skipped_upto = item.chunk.start  # otherwise the scan would have raised
            self.next_offset = item.chunk.stop
            return item
        return None

    async def _read_ahead(self, rows: Iterator[Rows]) -> None:
        loop = asyncio.get_running_loop()
        try:
            while (found := await loop.run_in_executor(self._table.reads.streams, next, rows, None)) is not None:
                await self._queue.put(found)
            await self._queue.put(StopAsyncIteration())
        except Exception as error:  # noqa: BLE001  # raised by read()
            await self._queue.put(error)
