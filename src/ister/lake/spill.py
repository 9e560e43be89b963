"""Sort rows that do not fit in memory: into buckets of offsets on disk, then bucket by bucket; both bounded."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

if TYPE_CHECKING:
    from collections.abc import Iterator

SPILL_BYTES = 1 << 30
"""What is on disk at a time, for one reader."""
BUCKETS = 64


class SpillFullError(Exception):
    """More bytes than may be on disk; ask for fewer offsets."""


class Spill:
    """Rows with offsets [start, stop), given in any order, taken in order; use it as a context."""

    def __init__(self, start: int, stop: int, bytes_max: int = SPILL_BYTES) -> None:
        self._start = start
        self._width = max(1, -(-(stop - start) // BUCKETS))
        self._bytes_left = bytes_max
        self._writers: dict[int, tuple[pa.NativeFile, ipc.RecordBatchStreamWriter]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._directory = Path(self._stack.enter_context(TemporaryDirectory(prefix="ister-spill-")))
        return self

    def __exit__(self, *_: object) -> None:
        self._close_writers()
        self._stack.close()

    def add(self, rows: pa.RecordBatch) -> None:
        """Put rows aside; SpillFullError when there are too many."""
        self._bytes_left -= rows.nbytes
        if self._bytes_left < 0:
            raise SpillFullError
        buckets = (rows.column("topic_offset").to_numpy() - self._start) // self._width
        for bucket in np.unique(buckets).tolist():
            self._writer(bucket, rows.schema).write_batch(rows.filter(pa.array(buckets == bucket)))

    def sorted(self) -> Iterator[pa.RecordBatch]:
        """Give the rows by their offsets, a bucket at a time."""
        self._close_writers()
        for path in sorted(self._directory.iterdir()):
            with pa.OSFile(str(path)) as file, ipc.open_stream(file) as source:
                rows = source.read_all()
            path.unlink()
            yield from rows.take(pc.sort_indices(rows["topic_offset"])).combine_chunks().to_batches()

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
