"""Batch reads of the Spark data source: plans splits with the broker; each task decodes some to Arrow.

Spark starts a Python process for every plan, so this module imports little: only tasks, whose workers are reused, import decoders.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ister.client.storage import RETRY_FOR_S, BrokerClient, frames_start, partitions_named
from ister.config.environment import TOKEN_VARIABLE
from ister.core.errors import BusyError, ClientError, UnknownTopicError
from ister.core.names import TopicName
from ister.core.tiers.splits import SPLIT_BYTES, SPLITS_MAX
from ister.pipeline.pacing import runs
from ister.pipeline.source.offsets import Mark
from ister.pipeline.source.options import Edge, InvalidOptionError, configured, target_of
from ister.rpc import ister_v1_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from ister.core.tiers.splits import Split
    from ister.pipeline.source.offsets import Marks
    from ister.pipeline.source.options import ReadOptions


SCHEMA = StructType(
    [
        StructField("topic_offset", LongType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("append_time", TimestampType(), nullable=False),
        StructField("publish_time", TimestampType()),
        StructField("publish_time_ms", LongType(), nullable=False),
        StructField("producer_name", StringType(), nullable=False),
        StructField("producer_id", LongType(), nullable=False),
        StructField("broker_addr", StringType(), nullable=False),
        StructField("request_id", LongType(), nullable=False),
        StructField("routing_key", StringType()),
        StructField("attributes", MapType(StringType(), StringType(), valueContainsNull=False), nullable=False),
        StructField("schema_id", LongType()),
        StructField("schema_version", IntegerType()),
        StructField("payload", BinaryType(), nullable=False),
        StructField("frame_crc", IntegerType(), nullable=False),
    ]
)
"""The columns of a topic's table (`ister.lake.columns`), so that a stream and its table look alike."""


class NotStoredError(ClientError):
    """A topic whose messages are not stored."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic, self.reason = topic, reason
        super().__init__(f"{topic} cannot be read: {reason}")


class OffsetsGoneError(ClientError):
    """Requested messages were deleted by retention."""

    def __init__(self, topic: str, wanted: int, oldest: int) -> None:
        self.topic, self.wanted, self.oldest = topic, wanted, oldest
        super().__init__(
            f"{topic} has no offsets below {oldest} any more, and {wanted} was asked for: retention deleted them; "
            "begin with startingOffsets earliest, a stream with a checkpoint of its own"
        )


class OnlyInTableError(ClientError):
    """Requested messages are in the topic's table only."""

    def __init__(self, topic: str, wanted: int, oldest: int) -> None:
        self.topic, self.wanted, self.oldest = topic, wanted, oldest
        super().__init__(
            f"{topic} has its offsets below {oldest} in its table alone, and {wanted} was asked for: query the table for "
            f"those, and read the topic with startingOffsets {oldest}"
        )


class Found(NamedTuple):
    """One partition of a topic."""

    name: str
    generation: int
    oldest: int
    """The oldest offset that any tier has."""
    frames: int
    """The oldest offset that the log or an object has."""
    stop: int
    """End of what can be read now."""


class Store(NamedTuple):
    """The broker's object store, without secrets."""

    backend: str
    root: str
    options: dict[str, str]


@dataclass(eq=False)
class SplitPartition(InputPartition):
    """Input of one task: consecutive splits up to `stop`; and how to plan again if they were deleted."""

    number: int
    found: Found
    splits: Sequence[Split]
    stop: int
    store: Store
    options: ReadOptions


@dataclass(eq=False)
class TopicPlanner:
    """Plans reads of one topic; a broker that does not show its files must upload messages before they are read."""

    options: ReadOptions
    client: BrokerClient
    with_files: bool

    @classmethod
    def open(cls, options: ReadOptions) -> TopicPlanner:
        """Connect, with the token of the environment if there is one."""
        token = os.environ.get(TOKEN_VARIABLE)
        client = BrokerClient(target_of(options.broker), token, retry_for_s=RETRY_FOR_S)
        return cls(options, client, with_files=token is not None)

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def partitions(self) -> dict[int, Found]:
        """Return the topic, or its partitions, by number as in its table; sync or upload them first."""
        namespace = TopicName.parse(self.options.topic).namespace
        found = partitions_named(self.client.topics(namespace), self.options.topic)
        if not found:
            raise UnknownTopicError(self.options.topic, f"the broker at {self.options.broker}")
        return {number: self._found(topic) for number, topic in found.items()}

    def first(self, found: dict[int, Found]) -> Marks:
        """Return the start of a new read."""
        start = self.options.start
        marks = {}
        for number, one in found.items():
            offset = {Edge.EARLIEST: one.oldest, Edge.LATEST: one.stop}[start] if isinstance(start, Edge) else start
            check_readable(one, offset)
            marks[number] = Mark(one.generation, offset, offset)
        return marks

    def partitions_of(self, found: dict[int, Found], start: Marks, stop: dict[int, int]) -> list[SplitPartition]:
        """Return the inputs of tasks that cover [start, stop) of each partition exactly once, in about equal sizes."""
        store = store_of(self.options)
        is_reachable = store.backend != "fs" or Path(store.root).is_dir()
        planned = []
        for number, one in found.items():
            splits = self.splits(one, start[number].offset, stop[number])
            if not is_reachable and any(split.key for split in splits):
                cause = f"or config must say where the broker keeps its objects; there are none in {store.root}"
                raise InvalidOptionError("dataDir", cause)
            for run in runs([split.bytes for split in splits], SPLIT_BYTES, cores=1):
                few = splits[run.start : run.stop]
                planned.append(SplitPartition(number, one, few, stop[number], store, self.options))
        return planned

    def splits(self, found: Found, start: int, stop: int) -> list[Split]:
        """Return the splits of [start, stop) of one partition; the last one may go beyond."""
        if start < stop:
            check_readable(found, start)
        at = start
        splits: list[Split] = []
        while at < stop:
            more = self.client.splits(found.name, found.generation, at, split_bytes=SPLIT_BYTES, splits_max=SPLITS_MAX)
            if not more:
                raise BusyError(
                    f"{found.name} has offsets up to {stop}, and only those below {at} can be read; try again"
                )
            splits += [split for split in more if split.start < stop]
            at = more[-1].stop
        return splits

    def _found(self, topic: pb.Topic) -> Found:
        if topic.dispatch != pb.DISPATCH_RELIABLE:
            raise NotStoredError(topic.name, "it is not reliable, so its messages are not stored")
        if not topic.HasField("offsets"):
            raise NotStoredError(topic.name, "the broker could not open it; its log says why")
        offsets, stop = topic.offsets, topic.offsets.synced
        if stop < offsets.next:
            stop = self.client.sync(topic.name, topic.generation)
        if not self.with_files:
            is_uploaded = offsets.cloud_stop >= stop
            stop = offsets.cloud_stop if is_uploaded else self.client.upload(topic.name, topic.generation)
        return Found(topic.name, topic.generation, offsets.start, frames_start(offsets), stop)


def check_readable(found: Found, offset: int) -> None:
    """Raise if an offset is older than what can be read: it is only in the table, or deleted."""
    if offset < found.oldest:
        raise OffsetsGoneError(found.name, offset, found.oldest)
    if offset < found.frames:
        raise OnlyInTableError(found.name, offset, found.frames)


@dataclass(eq=False)
class TopicBatchReader(DataSourceReader):
    """The reader of `spark.read`."""

    options: ReadOptions

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read of what is stored now."""
        with closing(TopicPlanner.open(self.options)) as topic:
            found = topic.partitions()
            wanted = self.options.stop
            stop = {n: one.stop if isinstance(wanted, Edge) else min(one.stop, wanted) for n, one in found.items()}
            return topic.partitions_of(found, topic.first(found), stop) or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode the input of one task."""
        return read_split(partition)


def read_split(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Decode the input of a task; an empty plan has one empty partition."""
    if not isinstance(partition, SplitPartition):
        return iter(())
    from ister.pipeline.source.task import batches_of  # noqa: PLC0415  # seconds of imports that plans do not need

    return batches_of(partition)


def store_of(options: ReadOptions) -> Store:
    """Return the broker's object store, from its configuration."""
    cloud = configured(options.config, options.data_dir).wal_cloud.cloud
    return Store(cloud.backend, cloud.absolute_root(), cloud.public_options())
