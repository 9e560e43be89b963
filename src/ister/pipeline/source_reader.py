"""Read a topic in Spark: the plan asks the broker where its messages lie, and each task decodes one split to Arrow.

Spark starts a Python process for every plan, so this module loads little: what decodes is loaded by tasks, which are kept.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
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

from ister.core.errors import BusyError, ClientError, UnknownTopicError
from ister.core.names import TopicName
from ister.core.splits import SPLIT_BYTES, SPLITS_MAX
from ister.core.ticks import runs
from ister.core.tokens import TOKEN_VARIABLE
from ister.pipeline.client import RETRY_FOR_S, BrokerClient, frames_start, partitions_named
from ister.pipeline.source_offsets import Mark
from ister.pipeline.source_options import Edge, InvalidOptionError, configured, target_of
from ister.rpc import ister_v1_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from ister.pipeline.source_offsets import Marks
    from ister.pipeline.source_options import ReadOptions


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
"""The columns of a topic's table (`ister.lake.schema`), so that a stream and its table look alike."""


class NotStoredError(ClientError):
    """A topic that has no messages to read again."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(f"{topic} cannot be read: {reason}")


class OffsetsGoneError(ClientError):
    """Messages that were asked for were deleted by retention."""

    def __init__(self, topic: str, wanted: int, oldest: int) -> None:
        self.topic = topic
        self.wanted = wanted
        self.oldest = oldest
        super().__init__(
            f"{topic} has no offsets below {oldest} any more, and {wanted} was asked for: retention deleted them; "
            "begin with startingOffsets earliest, a stream with a checkpoint of its own"
        )


class OnlyInTableError(ClientError):
    """Messages that were asked for are in the topic's table, and nowhere else any more."""

    def __init__(self, topic: str, wanted: int, oldest: int) -> None:
        self.topic = topic
        self.wanted = wanted
        self.oldest = oldest
        super().__init__(
            f"{topic} has its offsets below {oldest} in its table alone, and {wanted} was asked for: query the table for "
            f"those, and read the topic with startingOffsets {oldest}"
        )


class Found(NamedTuple):
    """One partition of a topic as the broker told of it."""

    name: str
    generation: int
    oldest: int
    """The oldest offset that any tier has."""
    frames: int
    """The oldest offset that the log or an object has."""
    stop: int
    """Below this everything can be read now."""


class Store(NamedTuple):
    """Where the broker keeps its objects; no secrets."""

    backend: str
    root: str
    options: dict[str, str]


class SplitPartition(InputPartition):
    """What one task reads: consecutive splits as the broker gave them, up to `stop`; and whom to ask if they are gone."""

    def __init__(
        self, number: int, found: Found, splits: Sequence[pb.Split], stop: int, store: Store, options: ReadOptions
    ) -> None:
        self.number = number
        self.found = found
        self.splits = [split.SerializeToString() for split in splits]
        self.stop = stop
        self.store = store
        self.options = options


class TopicPlanner:
    """Asks a broker for one topic; where it is not told of files, it has messages uploaded before they are read."""

    def __init__(self, options: ReadOptions, client: BrokerClient, *, with_files: bool) -> None:
        self._options = options
        self._client = client
        self._with_files = with_files

    @classmethod
    def open(cls, options: ReadOptions) -> TopicPlanner:
        """Connect, with the token of this environment if it has one."""
        token = os.environ.get(TOKEN_VARIABLE)
        client = BrokerClient(target_of(options.broker), token, retry_for_s=RETRY_FOR_S)
        return cls(options, client, with_files=token is not None)

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def partitions(self) -> dict[int, Found]:
        """Return the topic, or its partitions, by number as in its table; what is stored now can be read then."""
        namespace = TopicName.parse(self._options.topic).namespace
        found = partitions_named(self._client.topics(namespace), self._options.topic)
        if not found:
            raise UnknownTopicError(self._options.topic, f"the broker at {self._options.broker}")
        return {number: self._look(topic) for number, topic in found.items()}

    def first(self, found: dict[int, Found]) -> Marks:
        """Return where reading begins."""
        start = self._options.start
        marks = {}
        for number, one in found.items():
            offset = {Edge.EARLIEST: one.oldest, Edge.LATEST: one.stop}[start] if isinstance(start, Edge) else start
            check_there(one, offset)
            marks[number] = Mark(one.generation, offset, offset)
        return marks

    def partitions_of(self, found: dict[int, Found], start: Marks, stop: dict[int, int]) -> list[SplitPartition]:
        """Return what tasks read to get [start, stop) of each partition: every offset once, about as much for each task."""
        store = store_of(self._options)
        there = store.backend != "fs" or Path(store.root).is_dir()
        planned = []
        for number, one in found.items():
            splits = self.splits(one, start[number].offset, stop[number])
            if not there and any(split.HasField("object") for split in splits):
                raise InvalidOptionError(
                    "dataDir",
                    f"or config must say where the broker keeps its objects; there are none in {store.root}",
                )
            sizes = [split.stop_byte - split.start_byte for split in splits]
            for run in runs(sizes, SPLIT_BYTES, cores=1):
                few = splits[run.start : run.stop]
                planned.append(SplitPartition(number, one, few, stop[number], store, self._options))
        return planned

    def splits(self, found: Found, start: int, stop: int) -> list[pb.Split]:
        """Return where [start, stop) of one partition lies now; the last split may go beyond."""
        if start < stop:
            check_there(found, start)
        at = start
        splits: list[pb.Split] = []
        while at < stop:
            spans = self._client.spans(found.name, found.generation, at, split_bytes=SPLIT_BYTES, splits_max=SPLITS_MAX)
            if not spans.splits:
                raise BusyError(
                    f"{found.name} has offsets up to {stop}, and only those below {at} can be read; try again"
                )
            splits += [split for split in spans.splits if split.start_offset < stop]
            at = spans.stop_offset
        return splits

    def _look(self, topic: pb.Topic) -> Found:
        if topic.dispatch != pb.DISPATCH_RELIABLE:
            raise NotStoredError(topic.name, "it is not reliable, so its messages are not stored")
        if not topic.HasField("offsets"):
            raise NotStoredError(topic.name, "the broker could not open it; its log says why")
        offsets = topic.offsets
        stop = offsets.synced
        if stop < offsets.next:
            stop = self._client.sync(topic.name, topic.generation)
        if not self._with_files:
            reached = offsets.cloud_stop
            stop = reached if reached >= stop else self._client.upload(topic.name, topic.generation)
        return Found(topic.name, topic.generation, offsets.start, frames_start(offsets), stop)


def check_there(found: Found, offset: int) -> None:
    """Refuse an offset that is older than what can be read, and say where it is, or that it is gone."""
    if offset < found.oldest:
        raise OffsetsGoneError(found.name, offset, found.oldest)
    if offset < found.frames:
        raise OnlyInTableError(found.name, offset, found.frames)


@contextmanager
def planner(options: ReadOptions) -> Iterator[TopicPlanner]:
    """Give a planner for one plan."""
    found = TopicPlanner.open(options)
    try:
        yield found
    finally:
        found.close()


class TopicBatchReader(DataSourceReader):
    """What `spark.read` asks."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read of what is there now."""
        with planner(self._options) as topic:
            found = topic.partitions()
            wanted = self._options.stop
            stop = {n: one.stop if isinstance(wanted, Edge) else min(one.stop, wanted) for n, one in found.items()}
            return topic.partitions_of(found, topic.first(found), stop) or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode what one task is given."""
        return read_split(partition)


def read_split(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Decode what a task is to read; an empty plan has one empty partition."""
    if not isinstance(partition, SplitPartition):
        return iter(())
    from ister.pipeline.source_task import batches_of  # noqa: PLC0415  # seconds, which plans need not spend

    return batches_of(partition)


def store_of(options: ReadOptions) -> Store:
    """Return where the broker keeps its objects, as the configuration says."""
    cloud = configured(options.config, options.data_dir).wal_cloud.cloud
    return Store(cloud.backend, cloud.absolute_root(), cloud.public_options())
