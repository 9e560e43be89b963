"""What a Spark task does: read splits, decode them with every checksum, write Parquet; only descriptions go back.

This module travels to executors. It knows no broker and no catalog. Whatever goes wrong with one topic is told as that
topic's outcome, so that it holds up no other; what Spark itself must know of, like a lost machine, is Spark's to repeat.
A task that is repeated writes files of other names, and those of the lost attempt are never committed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import traceback
import uuid
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from zipimport import zipimporter

import pyarrow as pa

from ister.core import kernels
from ister.core.columns import batch_of, corrupt, scan_run
from ister.core.errors import BusyError, CorruptError, CorruptLogError, CorruptObjectError
from ister.core.frame import HEADER, HEADER_BYTES
from ister.lake.parquet import Written, write_files
from ister.lake.schema import table_rows
from ister.pipeline.typed import Values
from ister.ports.objects import StoreSettings, open_store
from ister.ports.objects.checked import read_checked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ister.core.columns import Scan
    from ister.core.typed.decode import Named
    from ister.core.typed.fit import Path
    from ister.pipeline.typed import Typed

READ_BYTES = 4 << 20
"""How much is decoded at a time: about seven times as much memory."""
SECRETS_VARIABLE = "ISTER_EXECUTOR_SECRETS"
"""Passwords and keys reach executors by their environment alone: a JSON object of `Reach`'s fields `files` and `options`."""
OUTCOMES = pa.schema([("work", pa.int32()), ("verdict", pa.string()), ("text", pa.string())])
OUTCOMES_SQL = "work int, verdict string, text string"


class Verdict(StrEnum):
    """How a work ended."""

    WRITTEN = "written"
    GONE = "gone"
    """What was planned is not there any more: plan again."""
    WAITS = "waits"
    """A store does not answer now."""
    CORRUPT = "corrupt"
    FAILED = "failed"
    """A bug of ours, with its traceback."""


Outcome: TypeAlias = tuple[Verdict, str]
"""How a work ended: what was written, as `Done` writes it, or why not."""


class Source(NamedTuple):
    """Whole frames: bytes [start_byte, stop_byte) of a file or an object."""

    start: int
    stop: int
    start_byte: int
    stop_byte: int
    path: str = ""
    key: str = ""
    etag: str = ""


class Reach(NamedTuple):
    """How to reach the warehouse and the objects, without secrets: these are added where the task runs."""

    files: dict[str, str]
    """Properties of PyIceberg's FileIO."""
    backend: str
    root: str
    options: dict[str, str]
    """Of the object store."""

    def whole(self) -> Reach:
        """Return it with the secrets of this machine's environment."""
        secrets = json.loads(os.environ.get(SECRETS_VARIABLE, "{}"))
        files, options = secrets.get("files", {}), secrets.get("options", {})
        return self._replace(files=self.files | files, options=self.options | options)


class Work(NamedTuple):
    """Consecutive messages of one topic, for one file or a file a day."""

    topic: str
    partition: int
    location: str
    sources: tuple[Source, ...]
    target_bytes: int
    typed: Typed | None = None


class Done(NamedTuple):
    """What a work that went well has to say."""

    files: list[Written]
    unknown: list[Named]
    """Schemas that its messages name and that it was not given; their rows have a decode_error."""
    misfits: list[Path]
    """Columns that lack one beside them for values that do not fit; their rows have a decode_error."""

    def to_json(self) -> str:
        """Write it as text, to come back from a task."""
        return json.dumps([[one.to_json() for one in self.files], self.unknown, self.misfits])

    @classmethod
    def from_json(cls, text: str) -> Done:
        """Read what `to_json` wrote."""
        files, unknown, misfits = json.loads(text)
        return cls(
            [Written.from_json(one) for one in files],
            [(schema_id, version) for schema_id, version in unknown],
            [tuple(path) for path in misfits],
        )


def run_tasks(
    tasks: Sequence[Sequence[tuple[int, Work]]], reach: Reach, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Do the works of the tasks whose numbers come; give one outcome for each work."""
    reach = reach.whole()
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for index, work in tasks[number]:
                verdict, text = outcome_of(work, reach)
                yield pa.RecordBatch.from_arrays([[index], [verdict.value], [text]], schema=OUTCOMES)
    ease_reuse()


def run_nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give back the numbers of the tasks: what a job needs to show that workers start and answer."""
    yield from batches


def ease_reuse() -> None:
    """Make this worker's next task begin at once.

    Before each task Spark has every finder of modules look anew, and one of an archive reads its whole directory: with
    Spark's own archives and one finder for each package that is a quarter of a second. A finder that is forgotten
    is made again when something is imported. After each task Spark collects garbage: among what was imported there is none.
    """
    for place, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[place]
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


def outcome_of(work: Work, reach: Reach) -> Outcome:
    """Do one work, and say how it ended."""
    try:
        done = do(work, reach)
    except FileNotFoundError as error:
        return Verdict.GONE, str(error)
    except CorruptError as error:
        return Verdict.CORRUPT, str(error)
    except (BusyError, OSError) as error:
        return Verdict.WAITS, str(error) or type(error).__name__
    except Exception:  # noqa: BLE001  # the root of a work: another topic must not wait for this one
        return Verdict.FAILED, traceback.format_exc()
    return Verdict.WRITTEN, done.to_json()


def do(work: Work, reach: Reach) -> Done:
    """Write a work's rows; returns what was written, which holds exactly its offsets."""
    batches = (batch for source in work.sources for batch in decoded(source, reach))
    rows = (table_rows(batch, work.partition) for batch in batches)
    values = None if work.typed is None else Values(work.typed)
    written = write_files(
        reach.files,
        work.location,
        rows if values is None else (piece for batch in rows for piece in values.add_to(batch)),
        partition=work.partition,
        name=uuid.uuid4().hex,
        target_bytes=work.target_bytes,
    )
    return Done(written, [], []) if values is None else Done(written, values.unknown, sorted(values.misfits))


def decoded(source: Source, reach: Reach) -> Iterator[pa.RecordBatch]:
    """Decode a source piece by piece; every offset of it comes, or CorruptLogError."""
    if source.path:
        with open(source.path, "rb", buffering=0) as file:  # noqa: PTH123  # pread needs no Path
            yield from frames(source, lambda at, count: os.pread(file.fileno(), count, at))
    else:
        data = asyncio.run(_fetch(source, reach))
        view = memoryview(data)
        yield from frames(source, lambda at, count: view[at - source.start_byte : at - source.start_byte + count])


def frames(source: Source, read: Callable[[int, int], bytes | memoryview]) -> Iterator[pa.RecordBatch]:
    """Decode what `read` gives, from the source's first byte to its last."""
    for data, scan in _scans(source, read):
        if scan.rows:
            yield batch_of(data, scan)


def _scans(source: Source, read: Callable[[int, int], bytes | memoryview]) -> Iterator[tuple[bytes | memoryview, Scan]]:
    at, expected, count = source.start_byte, source.start, READ_BYTES
    while expected < source.stop:
        data = read(at, min(count, source.stop_byte - at))
        scan = scan_run(data, first_offset=expected, limit=source.stop)
        yield data, scan
        if scan.end:
            at, expected, count = at + scan.end, scan.next_offset, READ_BYTES
        elif scan.code == kernels.NEED_MORE and len(data) == count:
            count = HEADER_BYTES + HEADER.unpack_from(data)[1]
        else:
            raise corrupt(source.path or source.key, at, expected, scan.code or kernels.NEED_MORE)


async def _fetch(source: Source, reach: Reach) -> bytes:
    """Read an object's frames; all of them are checked first, because those that are decoded are not read again."""

    def check(data: bytes) -> bytes:
        view = memoryview(data)
        try:
            for _ in _scans(source, lambda at, count: view[at - source.start_byte : at - source.start_byte + count]):
                pass
        except CorruptLogError as error:
            raise CorruptObjectError(source.key, error.byte, error.expected_offset, error.reason) from None
        return data

    store = open_store(StoreSettings(reach.backend, reach.root, reach.options))
    try:
        return await read_checked(store, source.key, source.start_byte, source.stop_byte, etag=source.etag, check=check)
    finally:
        await store.close()
