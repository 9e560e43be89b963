"""Produce rows to a topic from Spark's tasks, by the protocol that every client speaks: at least once.

A message is acknowledged before its task ends. A task that is repeated sends its rows again, and what a failed job sent
stays. Many messages are under way at once, so rows of one task may be stored in another order than they came.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

import grpc
from danube.proto.DanubeApi_pb2 import (
    DispatchStrategy,
    MessageResponse,
    MsgID,
    ProducerRequest,
    ProducerResponse,
    StreamMessage,
    TopicLookupRequest,
    TopicPartitionsResponse,
)
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, IntegerType, LongType, MapType, StringType

from ister.core.errors import ClientError, InvalidMessageError, UnknownOutcomeError
from ister.core.names import TopicName, partition_of
from ister.core.routing import fnv1a
from ister.pipeline.client import NOT_NOW, BrokerRefusedError, BrokerUnavailableError
from ister.pipeline.source_options import target_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from google.protobuf.message import Message
    from pyspark.sql.types import DataType, StructType

    from ister.pipeline.source_options import WriteOptions

    Answer = TypeVar("Answer", bound=Message)
    T = TypeVar("T")

MESSAGES_UNDER_WAY = 256
BYTES_UNDER_WAY = 8 << 20
CALL_S = 60.0
"""With level cloud a producer waits up to 30 s by default."""
PATIENCE_S = 30.0
"""How long a broker may be away before the task fails."""
RETRY_S = 0.2
SEND_AGAIN = NOT_NOW | {grpc.StatusCode.NOT_FOUND}
"""What may go better later; a broker that does not know a producer any more knows it again once it is made again."""
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


class Sent(WriterCommitMessage):
    """How many messages one task sent."""

    def __init__(self, messages: int) -> None:
        self.messages = messages


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

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task."""
        return send_rows(self._options, iterator)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """What `df.writeStream` asks."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task."""
        return send_rows(self._options, iterator)


def send_rows(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> Sent:
    """Send rows, and return once every one of them is acknowledged."""
    task = TaskContext.get()
    sender = Sender(options, 0 if task is None else task.partitionId())
    try:
        return Sent(sender.send_all(row for batch in batches for row in rows_of(batch)))
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
    """A producer of a topic, or one of each of its partitions; many messages are under way at once."""

    def __init__(self, options: WriteOptions, task: int) -> None:
        self._options = options
        self._turn = task  # tasks begin at different partitions
        self._name = f"spark-{task}"
        self._channel = grpc.insecure_channel(target_of(options.broker))
        self._send: grpc.UnaryUnaryMultiCallable[StreamMessage, MessageResponse] = self._channel.unary_unary(
            "/danube.ProducerService/SendMessage",
            request_serializer=StreamMessage.SerializeToString,
            response_deserializer=MessageResponse.FromString,
        )
        self._requests = itertools.count(1)
        self._topics: list[str] = []
        self._producers: dict[str, int] = {}
        self._under_way: deque[tuple[StreamMessage, grpc.Future[MessageResponse]]] = deque()
        self._bytes = 0

    def close(self) -> None:
        """End the connection, and what is under way."""
        self._channel.close()

    def send_all(self, rows: Iterator[MessageRow]) -> int:
        """Send messages; returns how many, once each was acknowledged."""
        count = 0
        for row in rows:
            message = self._message(row)
            while len(self._under_way) >= MESSAGES_UNDER_WAY or self._bytes >= BYTES_UNDER_WAY:
                self._settle()
            self._under_way.append((message, self._send.future(message, timeout=CALL_S)))
            self._bytes += len(row.payload)
            count += 1
        while self._under_way:
            self._settle()
        return count

    def _settle(self) -> None:
        """Wait for the oldest message; send it again as long as the broker cannot take it now."""
        message, future = self._under_way.popleft()
        self._bytes -= len(message.payload)
        try:
            future.result()
        except grpc.RpcError as error:
            if cast("grpc.Call", error).code() not in SEND_AGAIN:
                raise self._error(error) from None
            self._patient(lambda: self._send_again(message), SEND_AGAIN)

    def _send_again(self, message: StreamMessage) -> None:
        """Send a message by its producer made again, which a broker that forgot it needs; it makes nothing twice."""
        message.msg_id.producer_id = self._create(message.msg_id.topic_name)
        self._send(message, timeout=CALL_S)

    def _patient(self, act: Callable[[], T], later: frozenset[grpc.StatusCode] = NOT_NOW) -> T:
        """Do something, again and again as long as the broker cannot now: one that is away is waited for."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return act()
            except grpc.RpcError as error:
                if cast("grpc.Call", error).code() not in later or time.monotonic() > deadline:
                    raise self._error(error) from None
            time.sleep(RETRY_S)

    def _message(self, row: MessageRow) -> StreamMessage:
        if not self._topics:
            self._topics = self._patient(self._ask_partitions)
        topic = self._route(row.routing_key)
        if topic not in self._producers:
            self._producers[topic] = self._patient(lambda: self._create(topic))
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

    def _ask_partitions(self) -> list[str]:
        request = TopicLookupRequest(request_id=next(self._requests), topic=self._options.topic)
        found = self._ask("/danube.Discovery/TopicPartitions", request, TopicPartitionsResponse)
        return sorted(found.partitions, key=_number) or [self._options.topic]

    def _create(self, topic: str) -> int:
        request = ProducerRequest(
            request_id=next(self._requests),
            producer_name=self._producer_name(topic),
            topic_name=topic,
            dispatch_strategy=DispatchStrategy.Reliable,
        )
        return self._ask("/danube.ProducerService/CreateProducer", request, ProducerResponse).producer_id

    def _ask(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        call: grpc.UnaryUnaryMultiCallable[Message, Answer] = self._channel.unary_unary(
            method,
            request_serializer=lambda given: given.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return call(request, timeout=CALL_S)

    def _error(self, error: grpc.RpcError) -> ClientError | BrokerUnavailableError | SendUnknownError:
        call = cast("grpc.Call", error)  # what a call raises is one, and is typed as neither
        code, text = call.code(), call.details() or "no reason"
        if code in NOT_NOW:
            return BrokerUnavailableError(f"the broker at {self._options.broker} answered {code.name}: {text}")
        if code in REFUSED:
            return BrokerRefusedError(f"the broker at {self._options.broker} refused a message: {text}")
        return SendUnknownError(self._options.broker, text)


def _number(topic: str) -> int:
    found = partition_of(TopicName.parse(topic))
    return 0 if found is None else found[1]
