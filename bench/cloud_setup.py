"""Test data of bench/cloud.py: deterministic messages, a log, and its objects."""

from __future__ import annotations

import random
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ister.cloud import CloudReader, ObjectCatalog, Uploader, UploadOptions
from ister.cloud.uploader import UploadCheckpoint
from ister.core.message import MsgID, StreamMessage
from ister.core.names import TopicName
from ister.ports.files.files import OsFiles
from ister.ports.metadata import SqliteMetadata
from ister.ports.objects import FsStore
from ister.wal import AckLevel, Wal, WalConfig

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024 * 1024
FILE_BYTES = 512 * MIB
BATCH = 10_000
TOPIC = TopicName("default", "bench")
NAME, ADDR = "producer-1", "http://127.0.0.1:6650"
PAYLOADS = [random.Random(number).randbytes(200) for number in range(BATCH)]


def message_of(number: int) -> StreamMessage:
    return StreamMessage(PAYLOADS[number % BATCH], MsgID(7, str(TOPIC), ADDR, number), number, 1_700_000_000_000, NAME)


def arrow_of(start: int) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "payload": pa.array(PAYLOADS, pa.binary()),
            "producer_id": pa.array(np.full(BATCH, 7, np.uint64)),
            "request_id": pa.array(np.arange(start, start + BATCH, dtype=np.uint64)),
            "publish_time": pa.array(np.full(BATCH, 1_700_000_000_000, np.uint64)),
            "producer_name": pa.array([NAME] * BATCH),
            "broker_addr": pa.array([ADDR] * BATCH),
        }
    )


def log_config(directory: Path, max_bytes: int) -> WalConfig:
    return WalConfig(dir=directory, topic=str(TOPIC), max_bytes=max_bytes, level=AckLevel.WAL)


async def fill(wal: Wal, size: int) -> None:
    """Append whole batches until the log has the given size, and sync them."""
    written = wal.appended_bytes
    while wal.appended_bytes - written < size:
        for _ in range(10):
            await wal.append_arrow(arrow_of(wal.next_offset))
        await wal.sync()


class Objects:
    """A store, a metadata file and an uploader of a log, in a directory of their own."""

    def __init__(self, directory: Path, wal: Wal, metadata: SqliteMetadata) -> None:
        self.directory = directory
        self.wal = wal
        self.store = FsStore(directory / "objects")
        self.catalog = ObjectCatalog(metadata, "/danube-data", TOPIC, 1)
        checkpoint = UploadCheckpoint(OsFiles(), directory)
        self.uploader = Uploader(wal, self.store, self.catalog, checkpoint, UploadOptions())
        self.reader = CloudReader(self.store, self.catalog)

    def paths(self) -> list[Path]:
        return sorted((self.directory / "objects").rglob("data-*.dnb"))

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.paths())

    def verify_bytes(self) -> None:
        """Check that the objects, concatenated, equal the log's files."""
        objects = iter(self.paths())
        for segment in self.wal.segments():
            with segment.path.open("rb") as file:
                upto = self.uploader.uploaded.value
                stop = min(upto, self.wal.locate(segment.first)[1])
                while segment.first < stop:
                    path = next(objects)
                    data = path.read_bytes()
                    assert file.read(len(data)) == data, f"{path.name} is not the log's bytes"
                    if int(path.stem.split("-")[2]) >= stop:
                        break
        assert next(objects, None) is None, "an object that no file of the log has"


@asynccontextmanager
async def objects_of(wal: Wal, directory: Path):
    shutil.rmtree(directory, ignore_errors=True)
    OsFiles().make_directory(directory)
    metadata = await SqliteMetadata.open(directory / "metadata.db")
    try:
        yield Objects(directory, wal, metadata)
    finally:
        await metadata.close()
        shutil.rmtree(directory)


async def verify_messages(reader, span: range) -> None:
    """Check that a reader returns exactly these messages."""
    at = span.start
    while at < span.stop:
        messages = await reader.read()
        assert messages, f"the reader ends at {at}"
        for number, message in enumerate(messages, at):
            assert message.offset == message.request_id == number, (
                f"offset {message.offset} came where {number} was due"
            )
            assert message.payload == PAYLOADS[number % BATCH], f"offset {number} came back changed"
        at += len(messages)
    assert at == span.stop, f"{at - span.start} of {len(span)} messages came back"
