"""Send messages one after another, each answered before the next goes out, so that their order holds."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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

from ister.cli import stdin
from ister.cli.display import many, notice, printable, say
from ister.cli.exits import InputError
from ister.cli.remote import Remote
from ister.core.errors import BusyError, IsterError, NotFoundError
from ister.core.names import TopicName
from ister.core.routing import fnv1a
from ister.core.wire_keys import GENERATION_KEY, OFFSET_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

PATIENCE_S = 30.0
"""How long a broker may be away before we give up."""
RETRY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """What every message has."""

    topic: str
    reliable: bool
    key: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    producer: str = ""


@dataclass(slots=True)
class Sent:
    """What became of the messages for one topic or partition."""

    topic: str
    messages: int = 0
    first: int | None = None
    last: int | None = None


def payloads(texts: Sequence[str], files: Sequence[Path]) -> Iterator[bytes]:
    """Give what was typed, then what is in files, each whole; or else the lines of stdin."""
    for text in texts:
        yield text.encode("utf-8", "surrogateescape")
    for path in files:
        yield path.read_bytes()
    if not texts and not files:
        if sys.stdin.isatty():
            notice("Type messages, one a line; Ctrl-D ends.")
        yield from stdin.lines()


def parse_attributes(words: Sequence[str]) -> dict[str, str]:
    """Read NAME=VALUE words."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise InputError(f"--attribute {word}", "has no value; write it like name=value")
        found[name] = value
    return found


def produce(url: str, sending: Sending, messages: Iterable[bytes]) -> list[Sent]:
    """Send messages; returns what is stored where. What was stored before a failure is told before it."""
    TopicName.parse(sending.topic)
    with Remote.broker(url) as broker:
        sender = _Sender(broker, url, sending)
        try:
            for message in messages:
                sender.send(message)
        except (IsterError, OSError, KeyboardInterrupt):
            if sender.count:
                notice(f"ister: {many(sender.count, 'message')} had been answered before.")
            raise
        return sender.sent


class _Sender:
    """A producer of a topic, or one of each of its partitions."""

    def __init__(self, broker: Remote, url: str, sending: Sending) -> None:
        self._broker = broker
        self._url = url
        self._sending = sending
        self._requests = itertools.count(1)
        self._name = sending.producer or f"ister-{os.uname().nodename}-{os.getpid()}"
        request = TopicLookupRequest(request_id=next(self._requests), topic=sending.topic)
        found = broker.ask("/danube.Discovery/TopicPartitions", request, TopicPartitionsResponse)
        names = sorted(found.partitions, key=partition_number) or [sending.topic]
        self.sent = [Sent(name) for name in names]
        self._producers: dict[str, int] = {}
        self._generations: dict[str, str] = {}
        """Of each topic, so that one that is deleted meanwhile is not created again."""

    @property
    def count(self) -> int:
        """How many messages were answered."""
        return sum(sent.messages for sent in self.sent)

    def send(self, payload: bytes) -> None:
        """Send one message, again while the broker is away; one whose answer was lost may so be stored twice.

        One that is stored and has not reached its level in time (StoredError) is never sent again.
        """
        sent = self._route()
        deadline: float | None = None
        renewed = False
        while True:
            try:
                told = self._send(sent.topic, payload)
                break
            except NotFoundError:
                if renewed or sent.topic not in self._producers:
                    raise
                renewed = True
                del self._producers[sent.topic]  # the broker does not know us any more: begin anew
            except BusyError as error:
                if not self._producers:
                    raise
                if deadline is None:
                    deadline = time.monotonic() + PATIENCE_S
                    notice(f"ister: {error}; trying again for {PATIENCE_S:g} s.")
                elif time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)
        sent.messages += 1
        if told is not None:
            sent.first = told if sent.first is None else sent.first
            sent.last = told

    def _send(self, topic: str, payload: bytes) -> int | None:
        sending = self._sending
        if topic not in self._producers:
            self._producers[topic] = self._create(topic)
        message = StreamMessage(
            request_id=next(self._requests),
            msg_id=MsgID(producer_id=self._producers[topic], topic_name=topic, broker_addr=self._url),
            payload=payload,
            publish_time=int(time.time() * 1000),
            producer_name=self._producer_name(topic),
            attributes=sending.attributes,
            routing_key=sending.key,
        )
        _, told = self._broker.change_told(
            "/danube.ProducerService/SendMessage", message, MessageResponse, self._generation(topic)
        )
        return int(told[OFFSET_KEY]) if OFFSET_KEY in told else None

    def _create(self, topic: str) -> int:
        strategy = DispatchStrategy.Reliable if self._sending.reliable else DispatchStrategy.NonReliable
        request = ProducerRequest(
            request_id=next(self._requests),
            producer_name=self._producer_name(topic),
            topic_name=topic,
            dispatch_strategy=strategy,
        )
        found, told = self._broker.change_told(
            "/danube.ProducerService/CreateProducer", request, ProducerResponse, self._generation(topic)
        )
        if GENERATION_KEY in told:
            self._generations[topic] = told[GENERATION_KEY]
        return found.producer_id

    def _generation(self, topic: str) -> tuple[tuple[str, str], ...]:
        """Return the metadata that names the generation we began with."""
        return ((GENERATION_KEY, self._generations[topic]),) if topic in self._generations else ()

    def _producer_name(self, topic: str) -> str:
        return self._name if len(self.sent) == 1 else f"{self._name}-{partition_number(topic)}"

    def _route(self) -> Sent:
        """Choose a partition as every client does: by the key's hash, else in turn."""
        key = self._sending.key
        turn = self.count if key is None else fnv1a(key.encode())
        return self.sent[turn % len(self.sent)]


def show_table(sending: Sending, sent: Sequence[Sent]) -> None:
    """Write what became of the messages."""
    for one in sent:
        if one.messages == 0 and len(sent) > 1:
            continue
        topic = printable(one.topic)
        if not sending.reliable:
            say(f"{many(one.messages, 'message')} sent to {topic}, which stores nothing.")
        elif one.first is None:
            say(f"{many(one.messages, 'message')} stored in {topic}.")
        elif one.first == one.last:
            say(f"{many(one.messages, 'message')} stored in {topic} at offset {one.first}.")
        else:
            say(f"{many(one.messages, 'message')} stored in {topic}, from offset {one.first} to {one.last}.")


def show_json(sending: Sending, sent: Sequence[Sent]) -> None:
    """Write one JSON object."""
    content = {
        "topic": sending.topic,
        "messages": sum(one.messages for one in sent),
        "stored": [
            {"topic": one.topic, "messages": one.messages, "first_offset": one.first, "last_offset": one.last}
            for one in sent
        ],
    }
    say(json.dumps(content, separators=(",", ":")))


def partition_number(topic: str) -> int:
    """Return the number of a partition; 0 for what is none."""
    _, found, number = topic.rpartition("-part-")
    return int(number) if found and number.isascii() and number.isdecimal() else 0
