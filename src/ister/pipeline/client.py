"""Ask the broker: the driver's side of ister.v1.Storage, in blocking calls."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import grpc

from ister.core.errors import BusyError, ClientError
from ister.core.names import TopicName, partition_of
from ister.core.retry import backoff_s
from ister.core.tokens import TOKEN_KEY
from ister.rpc import ister_v1_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from google.protobuf.message import Message

    from ister.core.errors import IsterError

    Answer = TypeVar("Answer", bound=Message)
    T = TypeVar("T")

CALL_S = 60.0
"""A sync or an upload may take long; nothing takes longer."""
RETRY_FOR_S = 30.0
"""How long Spark's readers and writers wait for a broker that is away."""
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0
OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 200),  # gRPC's own back-off reaches two minutes
    ("grpc.max_reconnect_backoff_ms", 2000),
]
NOT_NOW = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.CANCELLED,
    }
)


class BrokerUnavailableError(BusyError):
    """The broker does not answer now."""


class BrokerRefusedError(ClientError):
    """The broker refused: a topic is not what we took it for, gone, made again or pruned, or we are not the owner."""

    def __init__(self, text: str, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN) -> None:
        self.code = code
        super().__init__(text)


def retry_unavailable(act: Callable[[], T], retry_for_s: float = RETRY_FOR_S) -> T:
    """Return what `act` returns; retry it with back-off while the broker is unavailable, for `retry_for_s` at most."""
    deadline = time.monotonic() + retry_for_s
    attempts = 0
    while True:
        try:
            return act()
        except BrokerUnavailableError:
            if time.monotonic() >= deadline:
                raise
        attempts += 1
        time.sleep(backoff_s(attempts, RETRY_MAX_S, RETRY_FIRST_S))


class BrokerClient:
    """One broker. With the token that it gave to its own child, it also tells of files.

    Unary calls are retried for `retry_for_s` while the broker is unavailable: all of them can be repeated.
    """

    def __init__(self, target: str, token: str | None = None, *, retry_for_s: float = 0.0) -> None:
        self._target = target
        self._retry_for_s = retry_for_s
        self._channel = grpc.insecure_channel(target, options=OPTIONS)
        self._metadata = () if token is None else ((TOKEN_KEY, token),)

    def close(self) -> None:
        """End every call."""
        self._channel.close()

    def register(self, name: str, *, owner_epoch: int = 0, least_epoch: int = 0) -> int:
        """Become the owner, or stay it with another epoch; returns the epoch, which is `least_epoch` at least."""
        request = pb.RegisterPipelineRequest(name=name, owner_epoch=owner_epoch, least_epoch=least_epoch)
        return self._ask("RegisterPipeline", request, pb.RegisterPipelineResponse).epoch

    def topics(self, namespace: str = "") -> list[pb.Topic]:
        """Return every topic, or those of one namespace, as of now."""
        return list(self._ask("ListTopics", pb.ListTopicsRequest(namespace=namespace), pb.ListTopicsResponse).topics)

    def schema(self, schema_id: int, version: int) -> pb.GetSchemaResponse:
        """Return one version of a schema."""
        return self._ask("GetSchema", pb.GetSchemaRequest(schema_id=schema_id, version=version), pb.GetSchemaResponse)

    def sync(self, topic: str, generation: int) -> int:
        """Have everything synced that is in the log now; returns the offset it reaches."""
        request = pb.RequestSyncRequest(topic=topic, generation=generation)
        return self._ask("RequestSync", request, pb.RequestSyncResponse).synced_offset

    def upload(self, topic: str, generation: int) -> int:
        """Have everything uploaded that is synced now; returns the offset it reaches."""
        request = pb.RequestUploadRequest(topic=topic, generation=generation)
        return self._ask("RequestUpload", request, pb.RequestUploadResponse).cloud_stop

    def spans(
        self, topic: str, generation: int, start: int, *, split_bytes: int, splits_max: int
    ) -> pb.ListSpansResponse:
        """Return where a topic's messages lie from `start` on."""
        request = pb.ListSpansRequest(
            topic=topic, generation=generation, from_offset=start, split_bytes=split_bytes, splits_max=splits_max
        )
        return self._ask("ListSpans", request, pb.ListSpansResponse)

    def report(self, topic: str, generation: int, epoch: int, upto: int) -> None:
        """Say how far a topic's table is."""
        request = pb.ReportUptoRequest(topic=topic, generation=generation, epoch=epoch, upto=upto)
        self._ask("ReportUpto", request, pb.ReportUptoResponse)

    def wakeups(self, epoch: int) -> Iterator[pb.Wakeup]:
        """Give what producers wait for, until the broker ends it."""
        call: grpc.UnaryStreamMultiCallable[pb.WatchWakeupsRequest, pb.Wakeup] = self._channel.unary_stream(
            "/ister.v1.Storage/WatchWakeups",
            request_serializer=pb.WatchWakeupsRequest.SerializeToString,
            response_deserializer=pb.Wakeup.FromString,
        )
        try:
            yield from call(pb.WatchWakeupsRequest(epoch=epoch), metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._error(error) from None

    def _ask(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        call: grpc.UnaryUnaryMultiCallable[Message, Answer] = self._channel.unary_unary(
            f"/ister.v1.Storage/{method}",
            request_serializer=lambda given: given.SerializeToString(),
            response_deserializer=answer.FromString,
        )

        def attempt() -> Answer:
            try:
                return call(request, timeout=CALL_S, metadata=self._metadata)
            except grpc.RpcError as error:
                raise self._error(error) from None

        return retry_unavailable(attempt, self._retry_for_s)

    def _error(self, error: grpc.RpcError) -> IsterError:
        code = error.code()
        text = f"the broker at {self._target} answered {code.name}: {error.details() or 'no reason'}"
        return BrokerUnavailableError(text) if code in NOT_NOW else BrokerRefusedError(text, code)


def partitions_named(topics: Iterable[pb.Topic], name: str) -> dict[int, pb.Topic]:
    """Return the topic of a name, or the partitions of that base, by number and in its order; nothing if there is none."""
    wanted = TopicName.parse(name)
    found: dict[int, pb.Topic] = {}
    for topic in topics:
        part = partition_of(TopicName.parse(topic.name)) if topic.HasField("partition") else None
        if topic.name == name:
            return {0 if part is None else part[1]: topic}
        if part is not None and part[0] == wanted:
            found[part[1]] = topic
    return dict(sorted(found.items()))


def frames_start(offsets: pb.Offsets) -> int:
    """Return the oldest offset that the log or an object has; older messages may be rows of the table alone."""
    if offsets.cloud_start < offsets.cloud_stop:
        return min(offsets.log_start, offsets.cloud_start)
    return offsets.log_start
