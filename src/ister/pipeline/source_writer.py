"""Produce rows to a topic from Spark's tasks, by the protocol that every client speaks: at least once.

A message is acknowledged before its task ends. A task that is repeated sends its rows again, and what a failed job sent
stays. Many messages are under way at once, so rows of one task may be stored in another order than they came.

A job writes to one generation of its topic. The driver looks it up before the first task, and every call of a task names it:
a topic that is deleted meanwhile is not created again. Only a topic that did not exist then is created, by the first task; of
a stream only in its first batch, since each batch is looked up by itself.

A message that is stored and has not reached the topic's level in time is never sent again. Spark repeats a task that fails,
with all its rows; so a task that waits for a level in vain stops sending and succeeds, and the driver fails the job.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, cast

import grpc
import structlog
from danube.proto.DanubeApi_pb2 import (
    DispatchStrategy,
    MessageResponse,
    MsgID,
    ProducerRequest,
    ProducerResponse,
    StreamMessage,
)
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, IntegerType, LongType, MapType, StringType

from ister.core.errors import ClientError, InvalidMessageError, UnknownOutcomeError
from ister.core.names import TopicName, partition_of
from ister.core.retry import backoff_s
from ister.core.routing import fnv1a
from ister.core.wire_keys import GENERATION_KEY, OFFSET_KEY, PENDING_LEVEL_KEY
from ister.pipeline.client import (
    NOT_NOW,
    OPTIONS,
    RETRY_FIRST_S,
    RETRY_FOR_S,
    RETRY_MAX_S,
    BrokerClient,
    BrokerRefusedError,
    BrokerUnavailableError,
    partitions_named,
    retry_unavailable,
)
from ister.pipeline.source_offsets import CREATE_FIRST, WRITE_AGAIN, TopicChangedError
from ister.pipeline.source_options import target_of
from ister.rpc import ister_v1_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from ister.core.errors import IsterError
    from ister.pipeline.source_options import WriteOptions

log = structlog.get_logger()

MESSAGES_UNDER_WAY = 256
BYTES_UNDER_WAY = 8 << 20
CALL_S = 60.0
"""How long a call may take at least; one that sends takes as long as the topic's ack_timeout_ms, and half of this more."""
LEVEL_S = 60.0
"""How long a task of `df.write` waits for messages that are stored to reach the topic's level, after the broker has waited."""
BATCH_ID_PROPERTY = "streaming.sql.batchId"
"""The local property in which Spark tells the tasks of a stream the number of their batch."""
LEVELS = {"cloud": pb.ACK_LEVEL_CLOUD, "lake": pb.ACK_LEVEL_LAKE}
PLACES = {"cloud": "in an object", "lake": "in the table"}
UINT64 = (1 << 64) - 1
REFUSED = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
COLUMNS = {
    "payload": "binary or string",
    "routing_key": "string",
    "attributes": "map<string,string>",
    "publish_time_ms": "bigint or int",
}
"""What a row may have, and of which type; a topic's own columns of the same names mean the same."""


class InvalidColumnsError(ClientError):
    """Rows that cannot become messages."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        rules = ", ".join(f"{name} ({kind})" for name, kind in COLUMNS.items())
        super().__init__(f"these rows cannot be messages: {reason}; select {rules}; all but payload may be left out")


class SendUnknownError(UnknownOutcomeError):
    """The broker took a message and did not say whether it is stored."""

    def __init__(self, broker: str, cause: str) -> None:
        self.broker = broker
        self.cause = cause
        super().__init__(f"the broker at {broker} did not say whether it stored a message ({cause})")


class StoredBelowLevelError(UnknownOutcomeError):
    """Rows are stored in the log, and did not reach the topic's level in time."""

    def __init__(self, pending: Mapping[str, Pending], messages: int, unsent: int) -> None:
        self.pending = dict(pending)
        self.messages = messages
        self.unsent = unsent
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
    """How long a message may take to be acknowledged."""


class Pending(NamedTuple):
    """Messages below `stop` are stored, and have not reached `level` yet."""

    level: str
    stop: int


class Sent(WriterCommitMessage):
    """What one task sent, to which generations; and what is stored below its level, after which it sent no more."""

    def __init__(
        self,
        messages: int,
        generations: Mapping[str, int] | None = None,
        pending: Mapping[str, Pending] | None = None,
        unsent: int = 0,
    ) -> None:
        self.messages = messages
        self.generations = dict(generations or {})
        self.pending = dict(pending or {})
        self.unsent = unsent


def find_targets(options: WriteOptions, retry_for_s: float = RETRY_FOR_S) -> dict[str, Target]:
    """Return the topic, or its partitions in their order, by name; nothing if it does not exist."""
    client = BrokerClient(target_of(options.broker), retry_for_s=retry_for_s)
    try:
        listed = client.topics(TopicName.parse(options.topic).namespace)
    except BrokerRefusedError as error:
        if error.code is not grpc.StatusCode.NOT_FOUND:
            raise
        listed = []  # no such namespace: CreateProducer says so
    finally:
        client.close()
    return {topic.name: _target(topic) for topic in partitions_named(listed, options.topic).values()}


def find_targets_now(options: WriteOptions) -> dict[str, Target] | None:
    """Return the same, None if the broker is away.

    Spark makes a stream's writer for every commit, too: a commit must not fail because the broker is away by then. Tasks
    that are not told look it up themselves.
    """
    try:
        return find_targets(options, retry_for_s=0)
    except BrokerUnavailableError:
        return None


def _target(topic: pb.Topic) -> Target:
    timeout_s = json.loads(topic.policies or "{}").get("ack_timeout_ms", 0) / 1000 + CALL_S / 2
    return Target(topic.generation, max(CALL_S, timeout_s))


def check_commits(topic: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Refuse to commit what went to different generations of a topic, or is stored below its level."""
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
    """Refuse rows that are no messages before any of them is sent."""
    names = [field.name for field in schema.fields]
    if "payload" not in names:
        raise InvalidColumnsError("there is no column payload")
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise InvalidColumnsError(f"there is no place for column {field.name}")
        if not _fits(field.name, field.dataType):
            raise InvalidColumnsError(f"column {field.name} is {field.dataType.simpleString()}")


def _fits(name: str, kind: DataType) -> bool:
    match name:
        case "payload":
            return isinstance(kind, BinaryType | StringType)
        case "routing_key":
            return isinstance(kind, StringType)
        case "attributes":
            return (
                isinstance(kind, MapType)
                and isinstance(kind.keyType, StringType)
                and isinstance(kind.valueType, StringType)
            )
        case _:
            return isinstance(kind, LongType | IntegerType)


class TopicBatchWriter(DataSourceArrowWriter):
    """What `df.write` asks."""

    def __init__(self, options: WriteOptions, targets: dict[str, Target], level_s: float = LEVEL_S) -> None:
        self._options = options
        self._targets = targets
        self._level_s = level_s

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task."""
        return send_rows(self._options, self._targets, iterator, self._level_s)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Fail the job if tasks wrote to different generations, or stopped below the topic's level."""
        check_commits(self._options.topic, messages)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """What `df.writeStream` asks."""

    def __init__(self, options: WriteOptions, targets: dict[str, Target] | None) -> None:
        self._options = options
        self._targets = targets

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task; wait for the topic's level without a deadline.

        A stream that fails sends its batch again when it is started again, with the rows that are stored.
        """
        return send_rows(self._options, self._targets, iterator, None)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Fail the query if tasks wrote to different generations; create the topic if the first batch had no rows."""
        check_commits(self._options.topic, messages)
        if batchId == 0 and not any(isinstance(one, Sent) and one.generations for one in messages):
            create_topic(self._options)


def send_rows(
    options: WriteOptions, targets: dict[str, Target] | None, batches: Iterator[pa.RecordBatch], level_s: float | None
) -> Sent:
    """Send rows, and return once every one of them is acknowledged, or the topic's level was waited for in vain."""
    task = TaskContext.get()
    number, batch = (0, None) if task is None else (task.partitionId(), task.getLocalProperty(BATCH_ID_PROPERTY))
    found = find_targets(options) if targets is None else targets
    sender = Sender(options, found, number, level_s, may_create=batch in {None, "0"})
    try:
        return sender.send_all(row for batch in batches for row in rows_of(batch))
    finally:
        sender.close()


def create_topic(options: WriteOptions) -> None:
    """Create the topic if it does not exist, as a task with rows does."""
    targets = find_targets(options)
    if not targets:
        sender = Sender(options, targets, 0, None)
        try:
            sender.create()
        finally:
            sender.close()


class MessageRow(NamedTuple):
    """One message to be."""

    payload: bytes
    routing_key: str | None
    attributes: dict[str, str]
    publish_time_ms: int | None


def rows_of(batch: pa.RecordBatch) -> Iterator[MessageRow]:
    """Give the rows of a batch as messages; absent columns are as if they were null."""
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
    """A producer of a topic, or one of each of its partitions; many messages are under way at once.

    `level_s` is how long it waits for messages that are stored to reach the topic's level; None waits for ever.
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
        self._name = f"spark-{task}"
        self._level_s = level_s
        self._client = BrokerClient(target_of(options.broker))
        self._channel = grpc.insecure_channel(target_of(options.broker), options=OPTIONS)
        self._send: grpc.UnaryUnaryMultiCallable[StreamMessage, MessageResponse] = self._channel.unary_unary(
            "/danube.ProducerService/SendMessage",
            request_serializer=StreamMessage.SerializeToString,
            response_deserializer=MessageResponse.FromString,
        )
        self._requests = itertools.count(1)
        self._topics = list(targets) or [options.topic]
        self._targets = dict(targets)
        self._producers: dict[str, int] = {}
        self._under_way: deque[tuple[StreamMessage, grpc.Future[MessageResponse]]] = deque()
        self._bytes = 0
        self._pending: dict[str, Pending] = {}

    def close(self) -> None:
        """End the connection, and what is under way."""
        self._channel.close()
        self._client.close()

    def create(self) -> None:
        """Create producers, and a topic that does not exist."""
        for topic in self._topics:
            self._producers[topic] = retry_unavailable(lambda: self._create(topic))  # noqa: B023  # called at once

    def send_all(self, rows: Iterator[MessageRow]) -> Sent:
        """Send messages; return once each was acknowledged. After a level was waited for in vain, rows are only counted."""
        count = unsent = 0
        is_sending = True
        for row in rows:
            while len(self._under_way) >= MESSAGES_UNDER_WAY or self._bytes >= BYTES_UNDER_WAY:
                self._settle()
            if self._pending and is_sending:
                is_sending = self._settle_all()
            if not is_sending:
                unsent += 1
                continue
            message = self._message(row)
            self._under_way.append((message, self._start(message)))
            self._bytes += len(row.payload)
            count += 1
        if is_sending:
            self._settle_all()
        generations = {name: target.generation for name, target in self._targets.items() if name in self._producers}
        return Sent(count, generations, self._pending, unsent)

    def _settle_all(self) -> bool:
        """Wait for all messages that are under way, then for their level; return False if that was not reached in time."""
        while self._under_way:
            self._settle()
        return self._wait_for_level()

    def _settle(self) -> None:
        """Wait for the oldest message; send it again if the broker was away, or does not know the producer any more."""
        message, future = self._under_way.popleft()
        self._bytes -= len(message.payload)
        try:
            self._finish(message, future)
        except BrokerUnavailableError:
            pass
        except BrokerRefusedError as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise
        else:
            return
        retry_unavailable(lambda: self._send_again(message))

    def _send_again(self, message: StreamMessage) -> None:
        message.msg_id.producer_id = self._create(message.msg_id.topic_name)
        try:
            self._finish(message, self._start(message))
        except BrokerRefusedError as error:
            if error.code is grpc.StatusCode.NOT_FOUND:
                raise self._deleted() from error
            raise

    def _start(self, message: StreamMessage) -> grpc.Future[MessageResponse]:
        topic = message.msg_id.topic_name
        return self._send.future(message, timeout=self._targets[topic].timeout_s, metadata=self._metadata(topic))

    def _finish(self, message: StreamMessage, future: grpc.Future[MessageResponse]) -> None:
        """Wait for an answer. A message that is stored below its level is sent, and pending."""
        try:
            future.result()
        except grpc.RpcError as error:
            trailing = _trailing(error)
            level = trailing.get(PENDING_LEVEL_KEY)
            if level not in LEVELS:
                raise self._error(error) from None
            topic, stop = message.msg_id.topic_name, int(trailing[OFFSET_KEY]) + 1
            known = self._pending.get(topic)
            self._pending[topic] = Pending(level, stop if known is None else max(known.stop, stop))

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
            if topic is None or topic.generation != self._targets[name].generation:
                raise self._deleted()
            reached = topic.offsets.lake_upto if pending.level == "lake" else topic.offsets.cloud_stop
            if reached >= pending.stop or topic.level != LEVELS[pending.level]:  # else its policy was changed
                del self._pending[name]

    def _message(self, row: MessageRow) -> StreamMessage:
        topic = self._route(row.routing_key)
        if topic not in self._producers:
            self._producers[topic] = retry_unavailable(lambda: self._create(topic))
        now_ms = int(time.time() * 1000)
        return StreamMessage(
            request_id=next(self._requests),
            msg_id=MsgID(producer_id=self._producers[topic], topic_name=topic, broker_addr=self._options.broker),
            payload=row.payload,
            publish_time=now_ms if row.publish_time_ms is None else row.publish_time_ms & UINT64,
            producer_name=self._producer_name(topic),
            attributes=row.attributes,
            routing_key=row.routing_key,
        )

    def _route(self, key: str | None) -> str:
        """Choose a partition as every client does: by the key's hash, else in turn."""
        if key is not None:
            return self._topics[fnv1a(key.encode()) % len(self._topics)]
        self._turn += 1
        return self._topics[self._turn % len(self._topics)]

    def _producer_name(self, topic: str) -> str:
        return self._name if len(self._topics) == 1 else f"{self._name}-{_number(topic)}"

    def _metadata(self, topic: str) -> tuple[tuple[str, str], ...]:
        """Name the generation that is meant; a topic that could not be opened when it was looked up has none."""
        target = self._targets.get(topic)
        return ((GENERATION_KEY, str(target.generation)),) if target is not None and target.generation else ()

    def _create(self, topic: str) -> int:
        """Create a producer, and remember the generation of a topic that is created with it."""
        request = ProducerRequest(
            request_id=next(self._requests),
            producer_name=self._producer_name(topic),
            topic_name=topic,
            dispatch_strategy=DispatchStrategy.Reliable,
        )
        create: grpc.UnaryUnaryMultiCallable[ProducerRequest, ProducerResponse] = self._channel.unary_unary(
            "/danube.ProducerService/CreateProducer",
            request_serializer=ProducerRequest.SerializeToString,
            response_deserializer=ProducerResponse.FromString,
        )
        if topic not in self._targets and not self._may_create:
            raise TopicChangedError(topic, "does not exist", CREATE_FIRST)
        meant = self._metadata(topic)
        try:
            answer, call = create.with_call(request, timeout=CALL_S, metadata=meant)
        except grpc.RpcError as error:
            if meant and cast("grpc.Call", error).code() is grpc.StatusCode.NOT_FOUND:
                raise self._deleted() from None
            raise self._error(error) from None
        if not meant:
            known = self._targets.get(topic, Target(0))
            self._targets[topic] = known._replace(generation=int(_trailing(call).get(GENERATION_KEY, 0)))
        return answer.producer_id

    def _deleted(self) -> TopicChangedError:
        return TopicChangedError(self._options.topic, "was deleted while rows were written to it", WRITE_AGAIN)

    def _error(self, error: grpc.RpcError) -> IsterError:
        call = cast("grpc.Call", error)  # what a call raises is one, and is typed as neither
        code, text = call.code(), call.details() or "no reason"
        if GENERATION_KEY in _trailing(error):
            return self._deleted()
        if code in NOT_NOW:
            return BrokerUnavailableError(f"the broker at {self._options.broker} answered {code.name}: {text}")
        if code in REFUSED:
            return BrokerRefusedError(f"the broker at {self._options.broker} refused a message: {text}", code)
        return SendUnknownError(self._options.broker, text)


def _trailing(call: grpc.RpcError | grpc.Call) -> dict[str, str]:
    return {key: str(value) for key, value in cast("grpc.Call", call).trailing_metadata() or ()}


def _number(topic: str) -> int:
    found = partition_of(TopicName.parse(topic))
    return 0 if found is None else found[1]
