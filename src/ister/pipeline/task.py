"""Spark tasks of a micro-batch: read splits, decode them with every checksum, write Parquet, return descriptions.

This module runs on executors; it knows no broker and no catalog. A failure of one topic is that topic's outcome, not an
exception, so it stops no other topic; Spark repeats tasks that it lost. A repeated task writes files of other names, and those
of the lost attempt are never committed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import traceback
import uuid
from collections import deque
from dataclasses import asdict
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from zipimport import zipimporter

import pyarrow as pa

from ister.config.environment import SECRETS_VARIABLE
from ister.core.errors import BusyError, CorruptError, CorruptLogError, CorruptObjectError
from ister.core.frames.columns import batch_of
from ister.core.frames.scanner import FrameScanner
from ister.core.tiers.splits import Split
from ister.lake.columns import table_rows
from ister.lake.parquet import Written, write_files
from ister.pipeline.typed_values import Values
from ister.ports.objects import StoreSettings, open_store
from ister.ports.objects.checked import read_checked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ister.core.frames.columns import Scan
    from ister.pipeline.typed_values import Typed
    from ister.schemas.columns.cells import Path
    from ister.schemas.decode import Named

READ_BYTES = 4 << 20
"""How much is decoded at a time: about seven times as much memory."""
PLANS = pa.schema({"number": pa.int32(), "topic": pa.string(), "splits": pa.string()})
"""Rows of the job's DataFrame: numbered `FilePlan`s. Splits are JSON: a nested column costs a job 8 ms of projections."""
OUTCOMES = pa.schema({"number": pa.int32(), "verdict": pa.string(), "text": pa.string()})
OUTCOMES_SQL = "number int, verdict string, text string"


class Verdict(StrEnum):
    """How the splits of one file ended."""

    WRITTEN = "written"
    GONE = "gone"
    """A log file or an object was deleted after planning: plan again."""
    WAITS = "waits"
    """A store does not answer now."""
    CORRUPT = "corrupt"
    FAILED = "failed"
    """A bug of ours, with its traceback."""


Outcome: TypeAlias = tuple[Verdict, str]
"""A verdict with the `WriteResult` as JSON, or the reason."""


class Reach(NamedTuple):
    """Access to the warehouse and the objects, without secrets: these are added where the task runs."""

    files: dict[str, str]
    """Properties of PyIceberg's FileIO."""
    backend: str
    root: str
    options: dict[str, str]
    """Of the object store."""

    def whole(self) -> Reach:
        """Return it with the secrets of the environment."""
        secrets = json.loads(os.environ.get(SECRETS_VARIABLE, "{}"))
        files, options = secrets.get("files", {}), secrets.get("options", {})
        return self._replace(files=self.files | files, options=self.options | options)


class FilePlan(NamedTuple):
    """Consecutive splits of one topic that become a data file, or one a day."""

    topic: str
    splits: tuple[Split, ...]

    @property
    def bytes(self) -> int:
        """Return the size of the frames."""
        return sum(split.bytes for split in self.splits)


class Destination(NamedTuple):
    """Where a topic's rows go: a table's location, and the partition number there."""

    location: str
    partition: int
    typed: Typed | None
    """None for a topic without a schema."""


class WriteJob(NamedTuple):
    """What all tasks of a job share."""

    reach: Reach
    target_bytes: int
    destinations: Mapping[str, Destination]
    """By topic."""


class WriteResult(NamedTuple):
    """What was written for a file plan."""

    files: list[Written]
    unknown: list[Named]
    """Schemas that messages name and that the task did not have; their rows have a decode_error."""
    misfits: list[Path]
    """Columns that lack a sibling for values that do not fit; their rows have a decode_error."""

    def to_json(self) -> str:
        """Return it as the text of an outcome."""
        return json.dumps([[one.to_json() for one in self.files], self.unknown, self.misfits])

    @classmethod
    def from_json(cls, text: str) -> WriteResult:
        """Parse what `to_json` returned."""
        files, unknown, misfits = json.loads(text)
        return cls(
            [Written.from_json(one) for one in files],
            [(schema_id, version) for schema_id, version in unknown],
            [tuple(path) for path in misfits],
        )


def plan_rows(plans: Sequence[tuple[int, FilePlan]]) -> pa.RecordBatch:
    """Return file plans with their numbers as rows."""
    rows = [
        {"number": number, "topic": plan.topic, "splits": json.dumps([asdict(split) for split in plan.splits])}
        for number, plan in plans
    ]
    return pa.RecordBatch.from_pylist(rows, schema=PLANS)


def write_splits(job: WriteJob, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the files that the rows plan; yield one outcome for each row. For `mapInArrow`."""
    job = job._replace(reach=job.reach.whole())
    for batch in batches:
        for row in batch.to_pylist():
            plan = FilePlan(row["topic"], tuple(Split(**split) for split in json.loads(row["splits"])))
            verdict, text = outcome_of(plan, job)
            yield pa.RecordBatch.from_arrays([[row["number"]], [verdict.value], [text]], schema=OUTCOMES)
    ease_reuse()


def pass_through(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows as they are: a job of it shows that workers start and answer."""
    yield from batches


def ease_reuse() -> None:
    """Make the next task of this worker start at once.

    Before each task Spark invalidates every module finder, and that of an archive reads its whole directory again: with
    Spark's own archives and one finder for each package, a quarter of a second. A finder that is dropped is created by the
    next import. After each task Spark collects garbage; what was imported is frozen, because none of it is.
    """
    for place, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[place]
    _freeze_imports()


@cache
def _freeze_imports() -> None:
    # Once for a worker, and not by `gc.get_freeze_count`: that counts all frozen objects, which takes 20 ms a task.
    gc.collect()
    gc.freeze()


def outcome_of(plan: FilePlan, job: WriteJob) -> Outcome:
    """Write a file plan; return how that ended."""
    try:
        result = write(plan, job)
    except FileNotFoundError as error:
        return Verdict.GONE, str(error)
    except CorruptError as error:
        return Verdict.CORRUPT, str(error)
    except (BusyError, OSError) as error:
        return Verdict.WAITS, str(error) or type(error).__name__
    except Exception:  # noqa: BLE001  # the root of a topic: the others go on
        return Verdict.FAILED, traceback.format_exc()
    return Verdict.WRITTEN, result.to_json()


def write(plan: FilePlan, job: WriteJob) -> WriteResult:
    """Write the rows of a file plan, exactly its offsets."""
    destination = job.destinations[plan.topic]
    batches = (batch for split in plan.splits for batch in decoded(split, job.reach))
    rows = (table_rows(batch, destination.partition) for batch in batches)
    values = None if destination.typed is None else Values(destination.typed)
    written = write_files(
        job.reach.files,
        destination.location,
        rows if values is None else (piece for batch in rows for piece in values.add_to(batch)),
        partition=destination.partition,
        name=uuid.uuid4().hex,
        target_bytes=job.target_bytes,
    )
    if values is None:
        return WriteResult(written, [], [])
    return WriteResult(written, values.unknown, sorted(values.misfits))


def decoded(split: Split, reach: Reach) -> Iterator[pa.RecordBatch]:
    """Decode a split batch by batch; yield every offset of it, or raise CorruptLogError."""
    if split.path:
        with open(split.path, "rb", buffering=0) as file:  # noqa: PTH123  # pread needs no Path
            yield from frames(split, lambda at, count: os.pread(file.fileno(), count, at))
    else:
        yield from frames(split, _slicer(split, asyncio.run(_fetch(split, reach))))


def frames(split: Split, read: Callable[[int, int], bytes | memoryview]) -> Iterator[pa.RecordBatch]:
    """Decode what `read` returns, from the split's first byte to its last."""
    for data, scan in _scans(split, read):
        if scan.rows:
            yield batch_of(data, scan)


def _slicer(split: Split, data: bytes) -> Callable[[int, int], memoryview]:
    view = memoryview(data)
    return lambda at, count: view[at - split.start_byte : at - split.start_byte + count]


def _scans(split: Split, read: Callable[[int, int], bytes | memoryview]) -> Iterator[tuple[bytes | memoryview, Scan]]:
    scanner = FrameScanner(split.path or split.key, split.start, split.start_byte, READ_BYTES, limit=split.stop)
    while scanner.offset < split.stop:
        data = read(scanner.byte, min(scanner.need, split.stop_byte - scanner.byte))
        yield data, scanner.feed(data)


async def _fetch(split: Split, reach: Reach) -> bytes:
    """Read an object's frames, all of them checked, because frames that are decoded are not read again."""

    def check(data: bytes) -> bytes:
        try:
            deque(_scans(split, _slicer(split, data)), maxlen=0)
        except CorruptLogError as error:
            raise CorruptObjectError(split.key, error.byte, error.expected_offset, error.reason) from None
        return data

    store = open_store(StoreSettings(reach.backend, reach.root, reach.options))
    try:
        return await read_checked(store, split.key, split.start_byte, split.stop_byte, etag=split.etag, check=check)
    finally:
        await store.close()
