"""Producers of a topic: partition routing, producer ids, and the generation that every call names."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from danube.proto.DanubeApi_pb2 import (
    DispatchStrategy,
    MessageResponse,
    MsgID,
    ProducerRequest,
    ProducerResponse,
    StreamMessage,
)

from ister.core.hashing import fnv1a
from ister.core.names import TopicName, partition_of
from ister.core.wire_keys import GENERATION_KEY, OFFSET_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ister.client.channel import Channel, Metadata

_SEND = "/danube.ProducerService/SendMessage"
_UINT64 = (1 << 64) - 1


class Producer:
    """A producer of a topic, or one of each of its partitions.

    Every call names the topic's generation once it is known, so a topic that is deleted meanwhile is not created again.
    """

    def __init__(
        self,
        channel: Channel,
        url: str,
        name: str,
        topics: Sequence[str],
        *,
        is_reliable: bool = True,
        generations: Mapping[str, int] | None = None,
    ) -> None:
        self._channel = channel
        self._url = url
        self._name = name
        self._strategy = DispatchStrategy.Reliable if is_reliable else DispatchStrategy.NonReliable
        self._send = channel.unary(_SEND, MessageResponse)
        self._requests = itertools.count(1)
        self.topics = topics
        self.ids: dict[str, int] = {}
        self.generations = dict(generations or {})

    def route(self, key: str | None, turn: int) -> str:
        """Return the partition for a message as every client does: by the key's hash, else in turn."""
        return self.topics[(turn if key is None else fnv1a(key.encode())) % len(self.topics)]

    def create(self, topic: str) -> None:
        """Create the producer of a topic or partition, and the topic if it does not exist."""
        request = ProducerRequest(
            request_id=next(self._requests),
            producer_name=self._name_for(topic),
            topic_name=topic,
            dispatch_strategy=self._strategy,
        )
        method = "/danube.ProducerService/CreateProducer"
        found, trailing = self._channel.call(method, request, ProducerResponse, self._metadata(topic))
        if GENERATION_KEY in trailing:
            self.generations[topic] = int(trailing[GENERATION_KEY])
        self.ids[topic] = found.producer_id

    def message(
        self,
        topic: str,
        payload: bytes,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        publish_time_ms: int | None = None,
    ) -> StreamMessage:
        """Return a message of the topic's producer, published now unless it has a time."""
        now_ms = int(time.time() * 1000)
        return StreamMessage(
            request_id=next(self._requests),
            msg_id=MsgID(producer_id=self.ids[topic], topic_name=topic, broker_addr=self._url),
            payload=payload,
            publish_time=now_ms if publish_time_ms is None else publish_time_ms & _UINT64,
            producer_name=self._name_for(topic),
            attributes=attributes,
            routing_key=key,
        )

    def send(self, message: StreamMessage) -> int | None:
        """Send a message; return its offset, None if the topic is not stored."""
        trailing = self._channel.call(_SEND, message, MessageResponse, self._metadata(message.msg_id.topic_name))[1]
        return int(trailing[OFFSET_KEY]) if OFFSET_KEY in trailing else None

    def start(self, message: StreamMessage, timeout_s: float) -> Callable[[], MessageResponse]:
        """Start to send a message; return a function that waits for its acknowledgement."""
        future = self._send.future(message, timeout=timeout_s, metadata=self._metadata(message.msg_id.topic_name))
        return lambda: self._channel.wait(future)

    def _metadata(self, topic: str) -> Metadata:
        return ((GENERATION_KEY, str(self.generations[topic])),) if topic in self.generations else ()

    def _name_for(self, topic: str) -> str:
        return self._name if len(self.topics) == 1 else f"{self._name}-{partition_number(topic)}"


def partition_number(topic: str) -> int:
    """Return the number of a partition, 0 for a topic that is none."""
    found = partition_of(TopicName.parse(topic))
    return 0 if found is None else found[1]
