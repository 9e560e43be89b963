"""Writes of the Spark data source: tasks produce rows to a topic, at least once.

Every message is acknowledged before its task ends. A repeated task sends its rows again, and what a failed job sent is not
removed. Many messages are in flight at once, so rows of one task may be stored in another order.

A job writes to one generation of its topic. The driver looks it up before the first task, and every call of a task names it:
a topic that is deleted meanwhile is not created again. Only a topic that did not exist then is created, by the first task; of
a stream only in its first batch, since each batch looks it up.

A message that is stored and has not reached the topic's ack level in time is never sent again. Spark repeats a failed task with
all its rows; so a task whose messages do not reach their level stops sending and succeeds, and the driver fails the job.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import structlog
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, IntegerType, LongType, MapType, StringType

from ister.client.channel import Channel, StoredError
from ister.client.producer import Producer
from ister.client.storage import (
    ANSWER_BYTES_MAX,
    RETRY_FIRST_S,
    RETRY_FOR_S,
    RETRY_MAX_S,
    BrokerClient,
    BrokerRefusedError,
    BrokerUnavailableError,
    partitions_named,
    retry_unavailable,
)
from ister.core.errors import ClientError, InvalidMessageError, UnknownOutcomeError
from ister.core.names import TopicName
from ister.core.retry import backoff_s
from ister.core.wire_keys import GENERATION_KEY
from ister.pipeline.source.offsets import CREATE_FIRST, WRITE_AGAIN, TopicChangedError
from ister.pipeline.source.options import target_of
from ister.rpc import ister_v1_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from danube.proto.DanubeApi_pb2 import MessageResponse, StreamMessage
    from pyspark.sql.types import DataType, StructType

    from ister.client.channel import Status
    from ister.core.errors import IsterError
    from ister.pipeline.source.options import WriteOptions

log = structlog.get_logger()

MESSAGES_IN_FLIGHT = 256
BYTES_IN_FLIGHT = 8 << 20
CALL_S = 60.0
"""Least deadline of a call; that of a send is the topic's ack_timeout_ms and half of this."""
LEVEL_S = 60.0
"""How long a task of `df.write` waits for stored messages to reach the topic's level, after the broker has waited."""
BATCH_ID_PROPERTY = "streaming.sql.batchId"
"""Spark's local property with the number of a stream's batch."""
LEVELS = {"cloud": pb.ACK_LEVEL_CLOUD, "lake": pb.ACK_LEVEL_LAKE}
PLACES = {"cloud": "in an object", "lake": "in the table"}
COLUMNS = {
    "payload": "binary or string",
    "routing_key": "string",
    "attributes": "map<string,string>",
    "publish_time_ms": "bigint or int",
}
"""Columns of rows and their types; a topic's own columns of the same names mean the same."""
KINDS = {
    "payload": (BinaryType, StringType),
    "routing_key": (StringType,),
    "attributes": (),
    "publish_time_ms": (LongType, IntegerType),
}
"""The same for columns that are not maps."""


class InvalidColumnsError(ClientError):
    """Rows that cannot become messages."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        rules = ", ".join(f"{name} ({kind})" for name, kind in COLUMNS.items())
        super().__init__(f"these rows cannot be messages: {reason}; select {rules}; all but payload may be left out")


class SendUnknownError(UnknownOutcomeError):
    """A message may or may not be stored."""

    def __init__(self, broker: str, cause: str) -> None:
        self.broker, self.cause = broker, cause
        super().__init__(f"the broker at {broker} did not say whether it stored a message ({cause})")


class StoredBelowLevelError(UnknownOutcomeError):
    """Rows are stored in the log, and did not reach the topic's level in time."""

    def __init__(self, pending: Mapping[str, Pending], messages: int, unsent: int) -> None:
        self.pending, self.messages, self.unsent = dict(pending), messages, unsent
        topics = "; ".join(
            f"{topic} is stored below offset {one.stop}, not yet {PLACES[one.level]}" for topic, one in pending.items()
        )
        rest = f", and {unsent} rows were not sent" if unsent else ", and all rows were sent"
        super().__init__(
            f"{topics}: {messages} rows are stored, do not write them again{rest}; see to the pipeline first"
        )


class Target(NamedTuple):
    """A topic or partition to write to."""

    generation: int
    timeout_s: float = CALL_S
    """Deadline of an acknowledgement."""


class Pending(NamedTuple):
    """Messages below `stop` are stored, and have not reached `level` yet."""

    level: str
    stop: int


@dataclass(frozen=True)
class Sent(WriterCommitMessage):
    """What one task sent, to which generations; and what is stored below its level, after which it stopped sending."""

    messages: int
    generations: Mapping[str, int] = field(default_factory=dict)
    pending: Mapping[str, Pending] = field(default_factory=dict)
    unsent: int = 0


def find_targets(options: WriteOptions, retry_for_s: float = RETRY_FOR_S) -> dict[str, Target]:
    """Return the topic, or its partitions in their order, by name; nothing if it does not exist."""
    with closing(BrokerClient(target_of(options.broker), retry_for_s=retry_for_s)) as client:
        try:
            listed = client.topics(TopicName.parse(options.topic).namespace)
        except BrokerRefusedError as error:
            if not error.is_not_found:
                raise
            listed = []  # no such namespace: CreateProducer reports it
    targets = {}
    for topic in partitions_named(listed, options.topic).values():
        timeout_s = json.loads(topic.policies or "{}").get("ack_timeout_ms", 0) / 1000 + CALL_S / 2
        targets[topic.name] = Target(topic.generation, max(CALL_S, timeout_s))
    return targets


def find_targets_now(options: WriteOptions) -> dict[str, Target] | None:
    """Return the same, None if the broker is unavailable; tasks then look it up.

    Spark creates a stream's writer for every commit, too, and a commit must not fail because the broker is unavailable.
    """
    try:
        return find_targets(options, retry_for_s=0)
    except BrokerUnavailableError:
        return None


def check_commits(topic: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Raise if rows went to different generations of a topic, or are stored below its level."""
    sent = [one for one in messages if isinstance(one, Sent)]
    generations: dict[str, int] = {}
    pending: dict[str, Pending] = {}
    for one in sent:
        for name, generation in one.generations.items():
            if generations.setdefault(name, generation) != generation:
                raise TopicChangedError(topic, "was deleted and created again while rows were written", WRITE_AGAIN)
        for name, missed in one.pending.items():
            pending[name] = max(missed, pending.get(name, missed), key=lambda each: each.stop)
    if pending:
        raise StoredBelowLevelError(pending, sum(one.messages for one in sent), sum(one.unsent for one in sent))


def check_columns(schema: StructType) -> None:
    """Raise if rows of this schema cannot be messages."""
    if "payload" not in schema.names:
        raise InvalidColumnsError("there is no column payload")
    for column in schema.fields:
        if column.name not in COLUMNS:
            raise InvalidColumnsError(f"there is no place for column {column.name}")
        if not _fits(column.name, column.dataType):
            raise InvalidColumnsError(f"column {column.name} is {column.dataType.simpleString()}")


def _fits(name: str, kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return name == "attributes" and isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
    return isinstance(kind, KINDS[name])


@dataclass(eq=False)
class TopicBatchWriter(DataSourceArrowWriter):
    """The writer of `df.write`."""

    options: WriteOptions
    targets: dict[str, Target]
    level_s: float = LEVEL_S

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task."""
        return send_rows(self.options, self.targets, iterator, self.level_s)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Fail the job if tasks wrote to different generations, or stopped below the topic's level."""
        check_commits(self.options.topic, messages)


@dataclass(eq=False)
class TopicStreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`."""

    options: WriteOptions
    targets: dict[str, Target] | None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task; wait for the topic's level without a deadline.

        A restarted stream sends its failed batch again, with the rows that are stored.
        """
        return send_rows(self.options, self.targets, iterator, None)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Fail the query if tasks wrote to different generations; create the topic if the first batch had no rows."""
        check_commits(self.options.topic, messages)
        if batchId == 0 and not any(isinstance(one, Sent) and one.generations for one in messages):
            create_topic(self.options)


def send_rows(
    options: WriteOptions, targets: dict[str, Target] | None, batches: Iterator[pa.RecordBatch], level_s: float | None
) -> Sent:
    """Send rows; return once each is acknowledged, or did not reach the topic's level in time."""
    task = TaskContext.get()
    number, batch = (0, None) if task is None else (task.partitionId(), task.getLocalProperty(BATCH_ID_PROPERTY))
    found = find_targets(options) if targets is None else targets
    with closing(Sender(options, found, number, level_s, may_create=batch in {None, "0"})) as sender:
        return sender.send_all(row for batch in batches for row in rows_of(batch))


def create_topic(options: WriteOptions) -> None:
    """Create the topic if it does not exist, as a task with rows does."""
    targets = find_targets(options)
    if not targets:
        with closing(Sender(options, targets, 0, None)) as sender:
            sender.create()


class MessageRow(NamedTuple):
    """A row that becomes a message."""

    payload: bytes
    routing_key: str | None
    attributes: dict[str, str]
    publish_time_ms: int | None


def rows_of(batch: pa.RecordBatch) -> Iterator[MessageRow]:
    """Yield the rows of a batch; absent columns count as null."""
    nothing = [None] * batch.num_rows
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    for payload, key, attributes, time_ms in zip(*(columns.get(name, nothing) for name in COLUMNS), strict=True):
        if payload is None:
            raise InvalidMessageError("payload", "is null; filter such rows out, or make them empty")
        pairs = dict(attributes or ())
        missing = next((name for name, value in pairs.items() if value is None), None)
        if missing is not None:
            raise InvalidMessageError("attributes", f"has null for {missing[:80]!r}; leave it out, or make it empty")
        yield MessageRow(payload.encode() if isinstance(payload, str) else payload, key, pairs, time_ms)


class Sender:
    """Sends the rows of one task with many messages in flight.

    `level_s` is how long it waits for stored messages to reach the topic's level; None waits for ever.
    """

    def __init__(
        self,
        options: WriteOptions,
        targets: dict[str, Target],
        task: int,
        level_s: float | None,
        *,
        may_create: bool = True,
    ) -> None:
        self._options = options
        self._may_create = may_create
        self._turn = task  # tasks begin at different partitions
        self._level_s = level_s
        self._client = BrokerClient(target_of(options.broker))
        self._channel = Channel(target_of(options.broker), self._error, answer_bytes_max=ANSWER_BYTES_MAX)
        self._targets = dict(targets)
        # A topic that could not be opened when it was looked up has no generation.
        generations = {name: target.generation for name, target in targets.items() if target.generation}
        topics = list(targets) or [options.topic]
        self._producer = Producer(self._channel, options.broker, f"spark-{task}", topics, generations=generations)
        self._in_flight: deque[tuple[StreamMessage, Callable[[], MessageResponse]]] = deque()
        self._bytes = 0
        self._pending: dict[str, Pending] = {}

    def close(self) -> None:
        """Close the connections and cancel what is in flight."""
        self._channel.close()
        self._client.close()

    def create(self) -> None:
        """Create the producers, and the topic if it does not exist."""
        for topic in self._producer.topics:
            retry_unavailable(lambda: self._create(topic))  # noqa: B023  # called at once

    def send_all(self, rows: Iterator[MessageRow]) -> Sent:
        """Send messages; return once each was acknowledged. Once a level is not reached in time, rows are only counted."""
        count = unsent = 0
        is_sending = True
        for row in rows:
            while len(self._in_flight) >= MESSAGES_IN_FLIGHT or self._bytes >= BYTES_IN_FLIGHT:
                self._settle()
            if self._pending and is_sending:
                is_sending = self._settle_all()
            if not is_sending:
                unsent += 1
                continue
            message = self._message(row)
            self._in_flight.append((message, self._start(message)))
            self._bytes += len(row.payload)
            count += 1
        if is_sending:
            self._settle_all()
        generations = {name: self._producer.generations.get(name, 0) for name in self._producer.ids}
        return Sent(count, generations, self._pending, unsent)

    def _settle_all(self) -> bool:
        """Wait for all messages in flight, then for their level; return False if that was not reached in time."""
        while self._in_flight:
            self._settle()
        return self._wait_for_level()

    def _settle(self) -> None:
        """Wait for the oldest message; send it again if the broker was unavailable or does not know the producer any more."""
        message, acknowledged = self._in_flight.popleft()
        self._bytes -= len(message.payload)
        try:
            self._finish(message, acknowledged)
        except (BrokerUnavailableError, BrokerRefusedError) as error:
            if isinstance(error, BrokerRefusedError) and not error.is_not_found:
                raise
            retry_unavailable(lambda: self._send_again(message))

    def _send_again(self, message: StreamMessage) -> None:
        self._create(message.msg_id.topic_name)
        message.msg_id.producer_id = self._producer.ids[message.msg_id.topic_name]
        try:
            self._finish(message, self._start(message))
        except BrokerRefusedError as error:
            if error.is_not_found:
                raise self._deleted() from error
            raise

    def _start(self, message: StreamMessage) -> Callable[[], MessageResponse]:
        return self._producer.start(message, self._targets[message.msg_id.topic_name].timeout_s)

    def _finish(self, message: StreamMessage, acknowledged: Callable[[], MessageResponse]) -> None:
        """Wait for an acknowledgement. A message that is stored below its level is sent, and pending."""
        try:
            acknowledged()
        except StoredError as error:
            if error.level not in LEVELS:
                raise
            topic = message.msg_id.topic_name
            known = self._pending.get(topic, Pending(error.level, 0))
            self._pending[topic] = Pending(error.level, max(known.stop, error.offset))

    def _wait_for_level(self) -> bool:
        """Return True once everything that is pending has reached its level, False if that takes too long."""
        if not self._pending:
            return True
        for name, one in self._pending.items():
            log.warning("spark_level_pending", topic=name, level=one.level, below=one.stop)
        deadline = None if self._level_s is None else time.monotonic() + self._level_s
        for attempts in itertools.count(1):
            self._drop_reached()
            if not self._pending:
                return True
            if deadline is not None and time.monotonic() >= deadline:
                break
            time.sleep(backoff_s(attempts, RETRY_MAX_S, RETRY_FIRST_S))
        return False

    def _drop_reached(self) -> None:
        try:
            topics = {one.name: one for one in self._client.topics(TopicName.parse(self._options.topic).namespace)}
        except BrokerUnavailableError:
            return
        for name, pending in list(self._pending.items()):
            topic = topics.get(name)
            if topic is None or topic.generation != self._producer.generations.get(name, 0):
                raise self._deleted()
            reached = topic.offsets.lake_upto if pending.level == "lake" else topic.offsets.cloud_stop
            if reached >= pending.stop or topic.level != LEVELS[pending.level]:  # the policy was changed
                del self._pending[name]

    def _message(self, row: MessageRow) -> StreamMessage:
        self._turn += row.routing_key is None
        topic = self._producer.route(row.routing_key, self._turn)
        if topic not in self._producer.ids:
            retry_unavailable(lambda: self._create(topic))
        return self._producer.message(topic, *row)

    def _create(self, topic: str) -> None:
        if topic not in self._targets and not self._may_create:
            raise TopicChangedError(topic, "does not exist", CREATE_FIRST)
        was_known = topic in self._producer.generations
        try:
            self._producer.create(topic)
        except BrokerRefusedError as error:
            if was_known and error.is_not_found:
                raise self._deleted() from None
            raise
        self._targets.setdefault(topic, Target(0))

    def _deleted(self) -> TopicChangedError:
        return TopicChangedError(self._options.topic, "was deleted while rows were written to it", WRITE_AGAIN)

    def _error(self, status: Status) -> IsterError:
        broker = self._options.broker
        if GENERATION_KEY in status.trailing:
            return self._deleted()
        if status.is_retriable:
            return BrokerUnavailableError(f"the broker at {broker} answered {status.code.name}: {status.reason}")
        if status.is_refusal:
            return BrokerRefusedError(f"the broker at {broker} refused a message: {status.reason}", status.code)
        return SendUnknownError(broker, status.reason)
