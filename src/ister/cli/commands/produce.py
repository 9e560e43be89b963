"""`ister produce`: send messages one at a time, each acknowledged before the next, so that their order holds."""

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from danube.proto.DanubeApi_pb2 import TopicLookupRequest, TopicPartitionsResponse

from ister.cli import stdin
from ister.cli.options import (
    BROKER,
    BrokerOption,
    OutputOption,
    ReliableOption,
    TopicArgument,
    command,
    command_group,
    utf8_text,
)
from ister.cli.output import Output, fields_of, many, notice, printable, say
from ister.client.channel import Remote
from ister.client.producer import Producer, partition_number
from ister.core.errors import BusyError, InputError, IsterError, NotFoundError
from ister.core.names import TopicName

RETRY_FOR_S = 30.0
"""How long a call is retried while the broker is unavailable."""
RETRY_S = 0.2

app = command_group()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """What all messages of one command have in common."""

    topic: str
    reliable: bool
    key: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    producer: str = ""


@dataclass(slots=True)
class Sent:
    """The messages that one topic or partition acknowledged, and their offsets."""

    topic: str
    messages: int = 0
    first: int | None = None
    last: int | None = None


def payloads(texts: Sequence[str], files: Sequence[Path]) -> Iterator[bytes]:
    """Yield the texts, then the content of each file; or else the lines of stdin."""
    for text in texts:
        yield text.encode("utf-8", "surrogateescape")
    for path in files:
        yield path.read_bytes()
    if not texts and not files:
        if sys.stdin.isatty():
            notice("Type messages, one a line; Ctrl-D ends.")
        yield from stdin.lines()


def parse_attributes(words: Sequence[str]) -> dict[str, str]:
    """Parse NAME=VALUE words."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise InputError(f"--attribute {word}", "has no value; write it like name=value")
        found[name] = value
    return found


def produce(url: str, sending: Sending, messages: Iterable[bytes]) -> list[Sent]:
    """Send messages; return what is stored where. Before a failure is raised, a notice has the number of messages sent."""
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
        return list(sender.sent.values())


class _Sender:
    """A producer of a topic, or one of each of its partitions."""

    def __init__(self, broker: Remote, url: str, sending: Sending) -> None:
        self._sending = sending
        name = sending.producer or f"ister-{os.uname().nodename}-{os.getpid()}"
        request = TopicLookupRequest(request_id=1, topic=sending.topic)
        found = broker.ask("/danube.Discovery/TopicPartitions", request, TopicPartitionsResponse)
        names = sorted(found.partitions, key=partition_number) or [sending.topic]
        self.sent = {topic: Sent(topic) for topic in names}
        self._producer = Producer(broker, url, name, names, is_reliable=sending.reliable)

    @property
    def count(self) -> int:
        """The number of acknowledged messages."""
        return sum(sent.messages for sent in self.sent.values())

    def send(self, payload: bytes) -> None:
        """Send one message; retry while the broker is unavailable, so one whose answer was lost may be stored twice.

        A message that is stored and has not reached its level in time (StoredError) is not sent again.
        """
        sent = self.sent[self._producer.route(self._sending.key, self.count)]
        deadline: float | None = None
        renewed = False
        while True:
            try:
                offset = self._send(sent.topic, payload)
                break
            except NotFoundError:
                if renewed or sent.topic not in self._producer.ids:
                    raise
                renewed = True
                del self._producer.ids[sent.topic]  # the broker does not know this producer any more: create it again
            except BusyError as error:
                if not self._producer.ids:
                    raise
                if deadline is None:
                    deadline = time.monotonic() + RETRY_FOR_S
                    notice(f"ister: {error}; trying again for {RETRY_FOR_S:g} s.")
                elif time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)
        sent.messages += 1
        if offset is not None:
            sent.first = offset if sent.first is None else sent.first
            sent.last = offset

    def _send(self, topic: str, payload: bytes) -> int | None:
        if topic not in self._producer.ids:
            self._producer.create(topic)
        message = self._producer.message(topic, payload, self._sending.key, self._sending.attributes)
        return self._producer.send(message)


@command(app)
def _produce(
    topic: TopicArgument,
    *,
    message: Annotated[list[str] | None, typer.Option("--message", "-m", metavar="TEXT", help="Send this.")] = None,
    files: Annotated[
        list[Path] | None, typer.Option("--file", "-f", metavar="FILE", help="Send this file, whole.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Routing key of the messages.", parser=utf8_text)
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option("--attribute", "-a", metavar="NAME=VALUE", help="An attribute of the messages.", parser=utf8_text),
    ] = None,
    producer: Annotated[
        str, typer.Option(metavar="NAME", help="Producer's name.", show_default="of this process", parser=utf8_text)
    ] = "",
    reliable: ReliableOption = True,
    broker: BrokerOption = BROKER,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send messages to a topic.

    Sends what -m and -f give, or else the lines of stdin. A topic that is not there is made, unless the broker is set not to.

    Example: ister produce /default/orders -m 'one order' -k customer-7
    """
    sending = Sending(
        topic=topic,
        reliable=reliable,
        key=key,
        attributes=parse_attributes(attribute or []),
        producer=producer,
    )
    sent = produce(broker, sending, payloads(message or [], files or []))
    output.show(sent, lambda _: _fields(sending, sent), lambda _: _write(sending, sent))


def _write(sending: Sending, sent: Sequence[Sent]) -> None:
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


def _fields(sending: Sending, sent: Sequence[Sent]) -> object:
    return {
        "topic": sending.topic,
        "messages": sum(one.messages for one in sent),
        "stored": [fields_of(one, first="first_offset", last="last_offset") for one in sent],
    }
