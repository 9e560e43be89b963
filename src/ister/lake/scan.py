"""A scan of one snapshot: a row range, dense and in order, each row verified by its checksum.

Files whose offsets overlap are merged. Files of ours are sorted by offset, so a streaming merge is tried first; where one
turns out unsorted, the rows are sorted externally, in buckets of offsets on disk.
"""

from __future__ import annotations

from collections import deque
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from ister.core.frames.columns import Chunk, check_rows, rebuild_frames
from ister.core.table.data_files import overlap_groups
from ister.lake.columns import stored_rows
from ister.lake.data_file_rows import RowRange, deleted_of, read_rows
from ister.lake.errors import CorruptRowsError, error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from concurrent.futures import Executor, Future

    from pyiceberg.io import FileIO

    from ister.core.table.data_files import DataFileEntry
    from ister.lake.manifests import DeleteFile

MERGED_FILES_MAX = 16
"""Files of one streaming merge; each is open, with a batch in memory."""
CHECKED_AHEAD = 4
"""Slices that are being verified or wait for the reader; fewer at first, so that a seek is not delayed by them."""
SPILL_BYTES = 1 << 30
"""Bytes on disk at a time, for one reader."""
BUCKETS = 64


class Rows(NamedTuple):
    """Rows as stored messages (`ister.core.frames.columns.SCHEMA`), and their frames in the log, if requested."""

    batch: pa.RecordBatch
    chunk: Chunk


class ScanMode(NamedTuple):
    """How rows are verified, and the size of a slice.

    `check` is `rebuild_frames`, which returns the frames that messages are decoded from, or `check_rows`, which does not.
    """

    check: Callable[[pa.RecordBatch], tuple[Chunk, int]]
    slice_bytes: int


MESSAGES = ScanMode(rebuild_frames, 1 << 20)
BATCHES = ScanMode(check_rows, 1 << 22)


class FileReadError(Exception):
    """A data file could not be read; the caller finds out whether it is deleted, damaged or unreachable."""

    def __init__(self, entry: DataFileEntry, cause: Exception) -> None:
        self.entry, self.cause = entry, cause
        super().__init__(f"{entry.path}: {error_text(cause)}")


class _UnsortedError(Exception):
    """Rows are not dense and sorted by offset."""


class ScanSource(NamedTuple):
    """The files of a snapshot, the threads that read them, and callbacks.

    `missing(start, stop)` is called once for each gap, and raises unless gaps are skipped.
    """

    table: str
    files: FileIO
    deletes: Sequence[DeleteFile]
    pool: Executor
    ahead: int
    missing: Callable[[int, int], None]
    opened: Callable[[], None]


class Scan:
    """Yields a row range from some files, which must be all that may hold it, sorted by first offset."""

    def __init__(
        self,
        source: ScanSource,
        entries: list[DataFileEntry],
        row_range: RowRange,
        mode: ScanMode = MESSAGES,
        *,
        spill_bytes: int = SPILL_BYTES,
    ) -> None:
        self.next_offset = row_range.start
        self._mode = mode
        self._source = source
        self._range = row_range
        self._spill_bytes = spill_bytes
        self._groups = deque(overlap_groups(entries))
        self._opened_ahead: dict[str, tuple[Iterator[pa.RecordBatch], Future[pa.RecordBatch | None]]] = {}

    def __iter__(self) -> Iterator[Rows]:
        """Yield verified rows; other threads verify a few slices ahead."""
        pending: deque[Future[Rows]] = deque()
        yielded = 0
        failure: Exception | None = None
        slices = self._slices()
        try:
            while True:
                try:
                    one = next(slices, None)
                except Exception as error:  # noqa: BLE001  # raised after the rows before it
                    one, failure = None, error
                if one is None:
                    break
                pending.append(self._source.pool.submit(self._checked, *one))
                if len(pending) >= min(CHECKED_AHEAD, yielded + 1):
                    yield pending.popleft().result()
                    yielded += 1
            while pending:
                yield pending.popleft().result()
            if failure is not None:
                raise failure
        finally:
            slices.close()
            for checked in pending:
                checked.cancel()
            for _, first in self._opened_ahead.values():
                first.cancel()
            self._opened_ahead.clear()

    def _slices(self) -> Generator[tuple[pa.RecordBatch, list[DataFileEntry]]]:
        """Yield dense rows in order, a slice at a time, with the files that may hold them."""
        for number in count(1):
            if not self._groups:
                break
            ahead = min(number, self._source.ahead)  # the first file alone: a seek waits for no other
            for entry in [entry for group in islice(self._groups, ahead) for entry in group][:ahead]:
                self._open(entry)
            entries = self._groups.popleft()
            for rows in self._read_group(entries):
                slices = max(1, round(rows.nbytes / self._mode.slice_bytes))
                step = max(1, -(-rows.num_rows // slices))
                for at in range(0, rows.num_rows, step):
                    yield rows.slice(at, step), entries
        if self.next_offset < self._range.stop:
            self._skip(self._range.stop)

    def _checked(self, rows: pa.RecordBatch, entries: list[DataFileEntry]) -> Rows:
        chunk, bad = self._mode.check(rows)
        if bad >= 0:
            offset = rows.column("topic_offset")[bad].as_py()
            holders = [entry.path for entry in entries if entry.first <= offset <= entry.last]
            raise CorruptRowsError(
                self._source.table, " or ".join(holders[:3]), f"offset {offset} has other values than were committed"
            )
        return Rows(rows, chunk)

    # --- groups of overlapping files ------------------------------------------------------------------------------------

    def _read_group(self, entries: list[DataFileEntry]) -> Iterator[pa.RecordBatch]:
        stop = min(self._range.stop, max(entry.last for entry in entries) + 1)
        if self.next_offset >= stop:
            return
        if len(entries) > MERGED_FILES_MAX:
            yield from self._sorted(entries, stop)
            return
        try:
            for rows in self._merged(entries):
                self._advance(rows)
                yield rows
        except _UnsortedError:
            yield from self._sorted(entries, stop)

    def _merged(self, entries: list[DataFileEntry]) -> Iterator[pa.RecordBatch]:
        """Merge files that are sorted by offset; _UnsortedError when one is not."""
        readers = [_SortedFile(*self._open(entry)) for entry in entries]
        for entry in entries:
            del self._opened_ahead[entry.path]
        heads = [reader for reader in readers if reader.advance()]
        while heads:
            limit = min(reader.last for reader in heads)
            taken = [rows for reader in heads if (rows := reader.take(limit)).num_rows]
            yield taken[0] if len(taken) == 1 else _by_offset(pa.Table.from_batches(taken))[0]
            heads = [reader for reader in heads if reader.left or reader.advance()]

    def _sorted(self, entries: list[DataFileEntry], stop: int) -> Iterator[pa.RecordBatch]:
        """Sort on disk, window by window; offsets that are then absent are missing."""
        width = stop - self.next_offset
        while self.next_offset < stop:
            end = min(stop, self.next_offset + width)
            with Spill(self.next_offset, end, self._spill_bytes) as spill:
                try:
                    for entry in entries:
                        for rows in self._rows(entry, self._range._replace(start=self.next_offset, stop=end)):
                            spill.add(rows)
                except SpillFullError:
                    if end - self.next_offset > 1:
                        width = (end - self.next_offset) // 2
                        continue
                    raise
                for rows in spill.sorted():
                    for run in self._runs(rows):
                        if (start := run.column("topic_offset")[0].as_py()) > self.next_offset:
                            self._skip(start)
                        self._advance(run)
                        yield run
            if self.next_offset < end:
                self._skip(end)

    def _runs(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Split sorted rows at missing offsets; a duplicate offset is corruption."""
        steps = np.diff(rows.column("topic_offset").to_numpy())
        if (twice := np.flatnonzero(steps == 0)).size:
            offset = rows.column("topic_offset")[int(twice[0])].as_py()
            raise CorruptRowsError(self._source.table, "any", f"offset {offset} is there twice")
        at = 0
        for cut in [*(np.flatnonzero(steps != 1) + 1).tolist(), rows.num_rows]:
            yield rows.slice(at, cut - at)
            at = cut

    def _advance(self, rows: pa.RecordBatch) -> None:
        """Move `next_offset` past these rows; _UnsortedError unless they are exactly the next ones."""
        offsets = rows.column("topic_offset").to_numpy()
        if (
            offsets[0] != self.next_offset
            or offsets[-1] - offsets[0] + 1 != len(offsets)
            or (np.diff(offsets) != 1).any()
        ):
            raise _UnsortedError
        self.next_offset += len(offsets)

    def _skip(self, stop: int) -> None:
        self._source.missing(self.next_offset, stop)
        self.next_offset = stop

    # --- files --------------------------------------------------------------------------------------------------------

    def _open(self, entry: DataFileEntry) -> tuple[Iterator[pa.RecordBatch], Future[pa.RecordBatch | None]]:
        if entry.path not in self._opened_ahead:
            rows = self._rows(entry, self._range._replace(start=self.next_offset))
            self._opened_ahead[entry.path] = (rows, self._source.pool.submit(next, rows, None))
        return self._opened_ahead[entry.path]

    def _rows(self, entry: DataFileEntry, row_range: RowRange) -> Iterator[pa.RecordBatch]:
        source = self._source
        source.opened()
        try:
            for rows in read_rows(source.files, entry, row_range, deleted_of(entry, source.deletes, source.files)):
                yield stored_rows(rows)
        except (pa.ArrowException, ValueError, OSError) as error:
            raise FileReadError(entry, error) from error


class _SortedFile:
    """The rows of one file in a merge: the current batch, and how much of it is left."""

    def __init__(self, rest: Iterator[pa.RecordBatch], first: Future[pa.RecordBatch | None]) -> None:
        self.last = -1
        self.left = 0
        self._rest = rest
        self._first: Future[pa.RecordBatch | None] | None = first
        self._rows: pa.RecordBatch
        self._offsets: np.ndarray

    def advance(self) -> bool:
        """Load the next batch; False at the end of the file."""
        if self._first is not None:
            rows, self._first = self._first.result(), None
        else:
            rows = next(self._rest, None)
        if rows is None:
            return False
        offsets = rows.column("topic_offset").to_numpy()
        if offsets[0] <= self.last or (np.diff(offsets) <= 0).any():
            raise _UnsortedError
        self._rows, self._offsets, self.left = rows, offsets, len(offsets)
        self.last = int(offsets[-1])
        return True

    def take(self, limit: int) -> pa.RecordBatch:
        """Return the rows up to an offset, inclusive."""
        at = len(self._offsets) - self.left
        cut = int(np.searchsorted(self._offsets, limit, side="right"))
        self.left = len(self._offsets) - cut
        return self._rows.slice(at, max(0, cut - at))


class SpillFullError(Exception):
    """More than the bytes allowed on disk; use a smaller offset window."""


class Spill:
    """External sort of rows with offsets [start, stop), in buckets on disk; use it as a context manager."""

    def __init__(self, start: int, stop: int, bytes_max: int = SPILL_BYTES) -> None:
        self._start = start
        self._width = max(1, -(-(stop - start) // BUCKETS))
        self._bytes_left = bytes_max
        self._writers: dict[int, tuple[pa.NativeFile, ipc.RecordBatchStreamWriter]] = {}

    def __enter__(self) -> Self:
        self._temporary = TemporaryDirectory(prefix="ister-spill-")
        self._directory = Path(self._temporary.name)
        return self

    def __exit__(self, *_: object) -> None:
        self._close_writers()
        self._temporary.cleanup()

    def add(self, rows: pa.RecordBatch) -> None:
        """Write rows to their buckets; SpillFullError when there are too many."""
        self._bytes_left -= rows.nbytes
        if self._bytes_left < 0:
            raise SpillFullError
        buckets = (rows.column("topic_offset").to_numpy() - self._start) // self._width
        for bucket in np.unique(buckets).tolist():
            self._writer(bucket, rows.schema).write_batch(rows.filter(pa.array(buckets == bucket)))

    def sorted(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows by offset, a bucket at a time."""
        self._close_writers()
        for path in sorted(self._directory.iterdir()):
            with pa.OSFile(str(path)) as file, ipc.open_stream(file) as source:
                rows = source.read_all()
            path.unlink()
            yield from _by_offset(rows)

    def _writer(self, bucket: int, schema: pa.Schema) -> ipc.RecordBatchStreamWriter:
        if bucket not in self._writers:
            file = pa.OSFile(str(self._directory / f"{bucket:04}"), "wb")
            self._writers[bucket] = (file, ipc.new_stream(file, schema))
        return self._writers[bucket][1]

    def _close_writers(self) -> None:
        for file, writer in self._writers.values():
            writer.close()
            file.close()
        self._writers.clear()


def _by_offset(rows: pa.Table) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = rows.take(pc.sort_indices(rows["topic_offset"])).combine_chunks().to_batches()
    return batches
