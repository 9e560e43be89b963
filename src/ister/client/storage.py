"""Client of ister.v1.Storage, with blocking calls and retries."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from grpc import StatusCode

from ister.client.channel import Channel
from ister.config.environment import TOKEN_KEY
from ister.core.errors import BusyError, ClientError
from ister.core.names import TopicName, partition_of
from ister.core.retry import backoff_s
from ister.core.tiers.splits import Split
from ister.rpc import ister_v1_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from google.protobuf.message import Message

    from ister.client.channel import Status
    from ister.core.errors import IsterError

    Answer = TypeVar("Answer", bound=Message)
    T = TypeVar("T")

ANSWER_BYTES_MAX = 64 << 20
RETRY_FOR_S = 30.0
"""How long Spark's readers and writers retry while the broker is unavailable."""
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0


class BrokerUnavailableError(BusyError):
    """The broker is unavailable now."""


class BrokerRefusedError(ClientError):
    """The broker refused a call: a topic was deleted, created again or pruned, or the caller is not the owner."""

    def __init__(self, text: str, code: StatusCode = StatusCode.UNKNOWN) -> None:
        self.code = code
        super().__init__(text)

    @property
    def is_not_found(self) -> bool:
        """Return True if the broker does not have what the call named."""
        return self.code is StatusCode.NOT_FOUND

    @property
    def is_precondition(self) -> bool:
        """Return True if a precondition of the call does not hold, like being the owner."""
        return self.code is StatusCode.FAILED_PRECONDITION


def retry_unavailable(act: Callable[[], T], retry_for_s: float = RETRY_FOR_S) -> T:
    """Call `act`; retry it with back-off while the broker is unavailable, for `retry_for_s` at most."""
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
    """A client of one broker, which shows log files only to the token of its own child.

    Unary calls are retried for `retry_for_s` while the broker is unavailable: all of them can be repeated.
    """

    def __init__(self, target: str, token: str | None = None, *, retry_for_s: float = 0.0) -> None:
        self._target = target
        self._retry_for_s = retry_for_s
        self._channel = Channel(target, self._error, answer_bytes_max=ANSWER_BYTES_MAX)
        self._metadata = () if token is None else ((TOKEN_KEY, token),)

    def close(self) -> None:
        """Close the channel and cancel its calls."""
        self._channel.close()

    def register(self, name: str, *, owner_epoch: int = 0, least_epoch: int = 0) -> int:
        """Become the owner, or stay it with another epoch; return the epoch, which is `least_epoch` at least."""
        request = pb.RegisterPipelineRequest(name=name, owner_epoch=owner_epoch, least_epoch=least_epoch)
        return self._ask("RegisterPipeline", request, pb.RegisterPipelineResponse).epoch

    def topics(self, namespace: str = "") -> list[pb.Topic]:
        """Return every topic, or those of one namespace."""
        return list(self._ask("ListTopics", pb.ListTopicsRequest(namespace=namespace), pb.ListTopicsResponse).topics)

    def schema(self, schema_id: int, version: int) -> pb.GetSchemaResponse:
        """Return one version of a schema."""
        return self._ask("GetSchema", pb.GetSchemaRequest(schema_id=schema_id, version=version), pb.GetSchemaResponse)

    def sync(self, topic: str, generation: int) -> int:
        """Sync the log; return the synced offset."""
        request = pb.RequestSyncRequest(topic=topic, generation=generation)
        return self._ask("RequestSync", request, pb.RequestSyncResponse).synced_offset

    def upload(self, topic: str, generation: int) -> int:
        """Upload what is synced; return the end of the objects."""
        request = pb.RequestUploadRequest(topic=topic, generation=generation)
        return self._ask("RequestUpload", request, pb.RequestUploadResponse).cloud_stop

    def splits(self, topic: str, generation: int, start: int, *, split_bytes: int, splits_max: int) -> list[Split]:
        """Return the splits of a topic from `start` on."""
        request = pb.ListSpansRequest(
            topic=topic, generation=generation, from_offset=start, split_bytes=split_bytes, splits_max=splits_max
        )
        return [split_from_wire(one) for one in self._ask("ListSpans", request, pb.ListSpansResponse).splits]

    def report(self, topic: str, generation: int, epoch: int, upto: int) -> None:
        """Report the committed offset of a topic's table."""
        request = pb.ReportUptoRequest(topic=topic, generation=generation, epoch=epoch, upto=upto)
        self._ask("ReportUpto", request, pb.ReportUptoResponse)

    def wakeups(self, epoch: int) -> Iterator[pb.Wakeup]:
        """Yield the offsets that producers wait for, until the broker ends the stream."""
        request = pb.WatchWakeupsRequest(epoch=epoch)
        return self._channel.stream("/ister.v1.Storage/WatchWakeups", request, pb.Wakeup, self._metadata)

    def _ask(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        path = f"/ister.v1.Storage/{method}"
        return retry_unavailable(
            lambda: self._channel.call(path, request, answer, self._metadata)[0], self._retry_for_s
        )

    def _error(self, status: Status) -> IsterError:
        text = f"the broker at {self._target} answered {status.code.name}: {status.reason}"
        return BrokerUnavailableError(text) if status.is_retriable else BrokerRefusedError(text, status.code)


def split_from_wire(split: pb.Split) -> Split:
    """Return the split of a message."""
    return Split(
        split.start_offset,
        split.stop_offset,
        split.start_byte,
        split.stop_byte,
        split.log.path,
        split.object.key,
        split.object.etag,
        split.object.size,
    )


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
