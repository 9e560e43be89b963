"""One pass over a snapshot: the offsets that were asked for, dense and in order, each row checked against its checksum.

Files whose offsets overlap are merged. That is tried on the fly, as files of ours are sorted by offset; what turns out not
to be is read again through a spill on disk, and only what is missing there is missing.
"""

from __future__ import annotations

from collections import deque
from itertools import count, islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ister.core.columns import Chunk, check_rows, rebuild_frames
from ister.core.layout import clusters
from ister.lake.deletes import deleted_of
from ister.lake.errors import CorruptRowsError
from ister.lake.lane import Wish, read_lane
from ister.lake.schema import stored_rows
from ister.lake.spill import SPILL_BYTES, Spill, SpillFullError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from concurrent.futures import Executor, Future

    from pyiceberg.io import FileIO

    from ister.core.layout import Part
    from ister.lake.index import Delete

LANES_MAX = 16
"""How many files are merged on the fly; each is open, and has a batch in memory."""
CHECKED_AHEAD = 4
"""How many pieces are being checked, or wait to be given out; fewer at first, so that whoever seeks need not wait for them."""


class Rows(NamedTuple):
    """Rows as stored messages (`ister.core.columns.SCHEMA`), and the frames that they are in the log, where asked for."""

    batch: pa.RecordBatch
    chunk: Chunk


class Form(NamedTuple):
    """How rows are checked and in which pieces they are given out.

    `check` is `rebuild_frames`, which gives the frames that messages are made of, or `check_rows`, which does not.
    """

    check: Callable[[pa.RecordBatch], tuple[Chunk, int]]
    piece_bytes: int


MESSAGES = Form(rebuild_frames, 1 << 20)
BATCHES = Form(check_rows, 1 << 22)


class FileTroubleError(Exception):
    """A data file could not be read; whether it is gone, damaged or out of reach is for the caller to find out."""

    def __init__(self, part: Part, cause: Exception) -> None:
        self.part = part
        self.cause = cause
        super().__init__(f"{part.path}: {type(cause).__name__}: {cause}")


class _DisorderError(Exception):
    """Rows did not come as rows that are sorted do."""


class Source(NamedTuple):
    """What one pass reads: the files of a snapshot, who opens them, and what happens where rows are missing.

    `missing(start, stop)` is told once, and raises unless they are to be skipped.
    """

    table: str
    files: FileIO
    deletes: Sequence[Delete]
    pool: Executor
    ahead: int
    missing: Callable[[int, int], None]
    opened: Callable[[], None]


class Scan:
    """Gives the rows of a wish from some files, which must be all that may hold them, by their first offset."""

    def __init__(
        self,
        source: Source,
        parts: list[Part],
        wish: Wish,
        form: Form = MESSAGES,
        *,
        spill_bytes: int = SPILL_BYTES,
    ) -> None:
        self.next_offset = wish.start
        self._form = form
        self._source = source
        self._wish = wish
        self._spill_bytes = spill_bytes
        self._clusters = deque(clusters(parts))
        self._begun: dict[str, tuple[Iterator[pa.RecordBatch], Future[pa.RecordBatch | None]]] = {}

    def __iter__(self) -> Iterator[Rows]:
        """Give rows that were checked; a few are being checked by other threads meanwhile."""
        pending: deque[Future[Rows]] = deque()
        given = 0
        trouble: Exception | None = None
        pieces = self._pieces()
        try:
            while trouble is None:
                try:
                    piece = next(pieces, None)
                except Exception as error:  # noqa: BLE001  # told once what came before it is given out
                    trouble = error
                    break
                if piece is None:
                    break
                pending.append(self._source.pool.submit(self._checked, *piece))
                if len(pending) >= min(CHECKED_AHEAD, given + 1):
                    yield pending.popleft().result()
                    given += 1
            while pending:
                yield pending.popleft().result()
            if trouble is not None:
                raise trouble
        finally:
            pieces.close()
            for checked in pending:
                checked.cancel()
            for _, first in self._begun.values():
                first.cancel()
            self._begun.clear()

    def _pieces(self) -> Generator[tuple[pa.RecordBatch, list[Part]]]:
        """Give dense rows in order, a piece at a time, with the files that they may be from."""
        for turn in count(1):
            if not self._clusters:
                break
            self._begin_ahead(min(turn, self._source.ahead))  # the first file alone: whoever seeks waits for no other
            parts = self._clusters.popleft()
            for rows in self._cluster(parts):
                pieces = max(1, round(rows.nbytes / self._form.piece_bytes))
                step = max(1, -(-rows.num_rows // pieces))
                for at in range(0, rows.num_rows, step):
                    yield rows.slice(at, step), parts
        if self.next_offset < self._wish.stop:
            self._skip(self._wish.stop)

    def _checked(self, rows: pa.RecordBatch, parts: list[Part]) -> Rows:
        chunk, bad = self._form.check(rows)
        if bad >= 0:
            offset = rows.column("topic_offset")[bad].as_py()
            holders = [part.path for part in parts if part.first <= offset <= part.last]
            raise CorruptRowsError(
                self._source.table, " or ".join(holders[:3]), f"offset {offset} has other values than were committed"
            )
        return Rows(rows, chunk)

    # --- clusters -----------------------------------------------------------------------------------------------------

    def _cluster(self, parts: list[Part]) -> Iterator[pa.RecordBatch]:
        stop = min(self._wish.stop, max(part.last for part in parts) + 1)
        if self.next_offset >= stop:
            return
        if len(parts) > LANES_MAX:
            yield from self._sorted(parts, stop)
            return
        try:
            for rows in self._merged(parts):
                self._follow(rows)
                yield rows
        except _DisorderError:
            yield from self._sorted(parts, stop)

    def _merged(self, parts: list[Part]) -> Iterator[pa.RecordBatch]:
        """Merge files that are sorted by offset; _DisorderError when one is not."""
        lanes = [_Lane(*self._begin(part)) for part in parts]
        for part in parts:
            del self._begun[part.path]
        heads = [lane for lane in lanes if lane.advance()]
        while heads:
            limit = min(lane.last for lane in heads)
            taken = [rows for lane in heads if (rows := lane.take(limit)).num_rows]
            yield taken[0] if len(taken) == 1 else _joined(taken)
            heads = [lane for lane in heads if lane.left or lane.advance()]

    def _sorted(self, parts: list[Part], stop: int) -> Iterator[pa.RecordBatch]:
        """Sort on disk, window by window; what is not there then is missing."""
        width = stop - self.next_offset
        while self.next_offset < stop:
            end = min(stop, self.next_offset + width)
            with Spill(self.next_offset, end, self._spill_bytes) as spill:
                try:
                    for part in parts:
                        for rows in self._lane(part, self._wish._replace(start=self.next_offset, stop=end)):
                            spill.add(rows)
                except SpillFullError:
                    if end - self.next_offset > 1:
                        width = (end - self.next_offset) // 2
                        continue
                    raise
                for rows in spill.sorted():
                    for run in self._runs(rows):
                        if (start := _first(run)) > self.next_offset:
                            self._skip(start)
                        self._follow(run)
                        yield run
            if self.next_offset < end:
                self._skip(end)

    def _runs(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Cut sorted rows where an offset is missing; two of the same are damage."""
        steps = np.diff(rows.column("topic_offset").to_numpy())
        if (twice := np.flatnonzero(steps == 0)).size:
            offset = rows.column("topic_offset")[int(twice[0])].as_py()
            raise CorruptRowsError(self._source.table, "any", f"offset {offset} is there twice")
        at = 0
        for cut in [*(np.flatnonzero(steps != 1) + 1).tolist(), rows.num_rows]:
            yield rows.slice(at, cut - at)
            at = cut

    # --- what is given out --------------------------------------------------------------------------------------------

    def _follow(self, rows: pa.RecordBatch) -> None:
        """Go on past these rows, which must be exactly what comes next."""
        offsets = rows.column("topic_offset").to_numpy()
        if (
            offsets[0] != self.next_offset
            or offsets[-1] - offsets[0] + 1 != len(offsets)
            or (np.diff(offsets) != 1).any()
        ):
            raise _DisorderError
        self.next_offset += len(offsets)

    def _skip(self, stop: int) -> None:
        self._source.missing(self.next_offset, stop)
        self.next_offset = stop

    # --- files --------------------------------------------------------------------------------------------------------

    def _begin_ahead(self, files: int) -> None:
        """Open the files that come next, before they are needed."""
        coming = [part for cluster in islice(self._clusters, files) for part in cluster]
        for part in coming[:files]:
            self._begin(part)

    def _begin(self, part: Part) -> tuple[Iterator[pa.RecordBatch], Future[pa.RecordBatch | None]]:
        if part.path not in self._begun:
            lane = self._lane(part, self._wish._replace(start=self.next_offset))
            self._begun[part.path] = (lane, self._source.pool.submit(next, lane, None))
        return self._begun[part.path]

    def _lane(self, part: Part, wish: Wish) -> Iterator[pa.RecordBatch]:
        source = self._source
        source.opened()
        try:
            for rows in read_lane(source.files, part, wish, deleted_of(part, source.deletes, source.files)):
                yield stored_rows(rows)
        except (pa.ArrowException, ValueError, OSError) as error:
            raise FileTroubleError(part, error) from error


class _Lane:
    """The rows of one file, of which some were taken."""

    def __init__(self, rest: Iterator[pa.RecordBatch], first: Future[pa.RecordBatch | None]) -> None:
        self.last = -1
        self.left = 0
        self._rest = rest
        self._first: Future[pa.RecordBatch | None] | None = first
        self._rows: pa.RecordBatch
        self._offsets: np.ndarray

    def advance(self) -> bool:
        """Turn to the next rows; False when there are none."""
        if self._first is not None:
            rows, self._first = self._first.result(), None
        else:
            rows = next(self._rest, None)
        if rows is None:
            return False
        offsets = rows.column("topic_offset").to_numpy()
        if offsets[0] <= self.last or (np.diff(offsets) <= 0).any():
            raise _DisorderError
        self._rows, self._offsets, self.left = rows, offsets, len(offsets)
        self.last = int(offsets[-1])
        return True

    def take(self, limit: int) -> pa.RecordBatch:
        """Take the rows up to an offset."""
        at = len(self._offsets) - self.left
        cut = int(np.searchsorted(self._offsets, limit, side="right"))
        self.left = len(self._offsets) - cut
        return self._rows.slice(at, max(0, cut - at))


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    rows = pa.Table.from_batches(batches)
    (joined,) = rows.take(pc.sort_indices(rows["topic_offset"])).combine_chunks().to_batches()
    return joined


def _first(rows: pa.RecordBatch) -> int:
    first: int = rows.column("topic_offset")[0].as_py()
    return first
