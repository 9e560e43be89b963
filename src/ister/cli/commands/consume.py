"""`ister consume`: receive messages until stopped; each is acknowledged once it is written.

It reconnects after a lost connection. Without --subscription it creates a temporary one.
"""

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

import typer
from danube.proto.DanubeApi_pb2 import (
    AckRequest,
    AckResponse,
    ConsumerRequest,
    ConsumerResponse,
    ReceiveRequest,
    StreamMessage,
    TopicLookupRequest,
    TopicPartitionsResponse,
)

from ister.cli.commands.produce import RETRY_FOR_S, RETRY_S
from ister.cli.commands.subscriptions import reset_cursor, unsubscribe
from ister.cli.options import (
    BROKER,
    BrokerOption,
    Position,
    TopicArgument,
    command,
    command_group,
    parse_position,
    utf8_text,
)
from ister.cli.output import (
    OFFSET_COLUMNS,
    many,
    message_columns,
    message_fields,
    message_heading,
    moment,
    notice,
    offset_line,
    preview_columns,
    say,
    to_json,
)
from ister.client.channel import AsyncRemote, BrokerUnreachableError, ChangeUnknownError, Remote, beside
from ister.client.producer import partition_number
from ister.core.dispatch.delivery_id import split_delivery_id
from ister.core.errors import BusyError, InputError, IsterError, NotFoundError
from ister.core.message import MsgID
from ister.core.message import StreamMessage as Stored
from ister.core.names import TopicName
from ister.rpc import danube_admin_pb2 as danube

BUFFER = 100
UNSUBSCRIBE_S = 5.0
"""How long the broker may take to notice that the consumer is disconnected; then the subscription is left behind."""

app = command_group()


class SubscriptionKind(Enum):
    """How a subscription distributes its messages, in the order of the protocol."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    FAILOVER = "failover"
    KEY_SHARED = "key-shared"


class Delivered(Enum):
    """How received messages are written."""

    TABLE = "table"
    JSON = "json"
    PAYLOAD = "payload"


@dataclass(slots=True, kw_only=True)
class Consumer:
    """A consumer of a topic or of all its partitions, which writes the messages it receives."""

    topic: str
    broker: str
    admin: str
    subscription: str
    is_temporary: bool
    """Whether the subscription is deleted at the end."""
    name: str
    kind: int
    start: Position | None
    count: int | None
    idle_s: float | None
    """Ends after so long without a message; None: never."""
    ack: bool
    output: Delivered
    _remote: AsyncRemote = field(init=False)
    _partitions: list[str] = field(init=False)
    _received: int = field(init=False, default=0)
    _stop: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _queue: asyncio.Queue[StreamMessage | IsterError] = field(init=False, default_factory=lambda: asyncio.Queue(BUFFER))

    async def run(self) -> None:
        """Subscribe, receive until the end, and delete a temporary subscription."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        try:
            async with AsyncExitStack() as stack:
                self._remote = await stack.enter_async_context(AsyncRemote(self.broker))
                await self._find_partitions()
                ids = {topic: await self._subscribe(topic) for topic in self._partitions}
                stack.push_async_callback(self._unsubscribe)
                await self._reset_cursors()
                if self.output is Delivered.TABLE:
                    say(offset_line("OFFSET", "PUBLISHED (UTC)", message_heading()))
                    sys.stdout.flush()
                tasks = [asyncio.create_task(self._receive(topic, number)) for topic, number in ids.items()]
                try:
                    await self._write_all()
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        notice(f"ister: {many(self._received, 'message')} received.")

    # --- before and after ---------------------------------------------------------------------------------------------

    async def _find_partitions(self) -> None:
        request = TopicLookupRequest(topic=self.topic)
        found = await self._remote.call("/danube.Discovery/TopicPartitions", request, TopicPartitionsResponse)
        self._partitions = sorted(found.partitions, key=partition_number)
        if not self._partitions:
            makes_it = f"`ister produce {self.topic}` or `ister topics create` makes it"
            raise NotFoundError(f"there is no topic {self.topic}; {makes_it}")
        if self.start is not None and self.start.kind == "offset" and len(self._partitions) > 1:
            reason = f"means another message in each partition; consume {self._partitions[0]} alone"
            raise InputError(f"--from {self.start.value}", reason)

    async def _reset_cursors(self) -> None:
        """Move the subscription to the position of --from."""
        if self.start is not None:
            with Remote.admin(self.admin) as admin:
                for topic in self._partitions:
                    await asyncio.to_thread(reset_cursor, admin, topic, self.subscription, self.start)

    async def _unsubscribe(self) -> None:
        """Delete a temporary subscription; the broker refuses until it has noticed that the consumer is disconnected."""
        if not self.is_temporary:
            return
        await self._remote.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + UNSUBSCRIBE_S
        waiting = list(self._partitions)
        with Remote.admin(self.admin) as admin:
            while waiting:
                try:
                    await asyncio.to_thread(unsubscribe, admin, waiting[0], self.subscription)
                    waiting.pop(0)
                except IsterError as error:
                    if isinstance(error, NotFoundError) and await asyncio.to_thread(
                        self._is_deleted, admin, waiting[0]
                    ):
                        waiting.pop(0)
                        continue
                    if loop.time() > deadline or isinstance(error, BrokerUnreachableError):
                        notice(f"ister: warning: subscription {self.subscription} stays: {error}")
                        return
                    await asyncio.sleep(RETRY_S)

    def _is_deleted(self, admin: Remote, topic: str) -> bool:
        """Return True if there is no such subscription; the status of Unsubscribe is the same for one that is in use."""
        request = danube.TopicRequest(name=topic)
        try:
            found = admin.ask("/danube_admin.TopicAdmin/ListSubscriptions", request, danube.SubscriptionListResponse)
        except NotFoundError:
            return True
        return self.subscription not in found.subscriptions

    # --- receiving ----------------------------------------------------------------------------------------------------

    async def _receive(self, topic: str, consumer_id: int) -> None:
        """Put messages into the queue, and an error that is not retried."""
        method = "/danube.ConsumerService/ReceiveMessages"
        try:
            while True:
                with suppress(BusyError, NotFoundError):
                    async for message in self._remote.stream(
                        method, ReceiveRequest(consumer_id=consumer_id), StreamMessage
                    ):
                        await self._queue.put(message)
                consumer_id = await self._subscribe_again(topic)
        except IsterError as error:
            await self._queue.put(error)

    async def _subscribe_again(self, topic: str) -> int:
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        while True:
            await asyncio.sleep(RETRY_S)
            try:
                return await self._subscribe(topic)
            except BusyError as error:
                if deadline is None:
                    deadline = loop.time() + RETRY_FOR_S
                    notice(f"ister: {error}; trying again for {RETRY_FOR_S:g} s.")
                elif loop.time() > deadline:
                    raise

    async def _write_all(self) -> None:
        columns = preview_columns(OFFSET_COLUMNS)
        while self.count is None or self._received < self.count:
            batch = await self._next_batch(BUFFER if self.count is None else self.count - self._received)
            if not batch:
                return
            for message in batch:
                self._write(from_wire(message), columns)
            sys.stdout.flush()
            self._received += len(batch)
            if self.ack:
                try:
                    async with asyncio.TaskGroup() as group:
                        for message in batch:
                            group.create_task(self._ack(message))
                except ExceptionGroup as failures:
                    raise failures.exceptions[0] from failures

    def _write(self, message: Stored, columns: int) -> None:
        topic = message.msg_id.topic_name
        match self.output:
            case Delivered.TABLE:
                # A partition's number stands before its offset.
                partition = "" if self._partitions == [self.topic] else f"{topic.rpartition('-part-')[2]}/"
                published = moment(message.publish_time * 1000)
                say(offset_line(f"{partition}{message.offset}", published, message_columns(message, columns)))
            case Delivered.JSON:
                fields = {"topic": topic, "offset": message.offset, "subscription": message.subscription_name}
                say(to_json(fields | message_fields(message)))
            case Delivered.PAYLOAD:
                sys.stdout.flush()
                sys.stdout.buffer.write(message.payload + b"\n")

    async def _next_batch(self, most: int) -> list[StreamMessage]:
        """Wait for messages; return none after a signal, or after `idle_s` without a message."""
        if self._stop.is_set():
            return []
        if self._queue.empty():
            coming = asyncio.create_task(self._queue.get())
            stopped = asyncio.create_task(self._stop.wait())
            done, rest = await asyncio.wait((coming, stopped), timeout=self.idle_s, return_when=asyncio.FIRST_COMPLETED)
            for task in rest:
                task.cancel()
            if coming not in done or stopped in done:
                return []
            batch = [coming.result()]
        else:
            batch = [self._queue.get_nowait()]
        while len(batch) < most and not self._queue.empty():
            batch.append(self._queue.get_nowait())
        messages: list[StreamMessage] = []
        for found in batch:
            if isinstance(found, StreamMessage):
                messages.append(found)
            elif messages:
                self._queue.put_nowait(found)  # raised once the messages before it are written
            else:
                raise found
        return messages

    async def _ack(self, message: StreamMessage) -> None:
        request = AckRequest(request_id=message.request_id, msg_id=message.msg_id, subscription_name=self.subscription)
        try:
            await self._remote.call("/danube.ConsumerService/Ack", request, AckResponse)
        except BusyError:
            pass  # it is redelivered
        except ChangeUnknownError as error:
            # The protocol has INTERNAL for a topic or subscription that does not exist.
            if error.code.name != "INTERNAL":
                raise
            what = f"the acknowledgement of offset {message.msg_id.topic_offset} was refused ({error.cause})"
            raise NotFoundError(f"{what}; the topic or the subscription was deleted meanwhile") from error

    async def _subscribe(self, topic: str) -> int:
        request = ConsumerRequest(
            topic_name=topic,
            consumer_name=self.name,
            subscription=self.subscription,
            subscription_type=ConsumerRequest.SubscriptionType.Name(self.kind),
        )
        return (await self._remote.call("/danube.ConsumerService/Subscribe", request, ConsumerResponse)).consumer_id


@command(app)
def _consume(
    topic: TopicArgument,
    *,
    subscription: Annotated[
        str | None,
        typer.Option(
            "--subscription",
            "-s",
            metavar="NAME",
            help="Its name.",
            show_default="one that ends with us",
            parser=utf8_text,
        ),
    ] = None,
    kind: Annotated[
        SubscriptionKind, typer.Option("--type", "-t", metavar="TYPE", help="exclusive, shared, failover, key-shared.")
    ] = SubscriptionKind.EXCLUSIVE,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="PLACE", help="earliest, latest, OFFSET or TIME.", show_default=False),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for more, or end after a silence.")] = True,
    idle: Annotated[float, typer.Option(min=0.1, max=3600, metavar="SECONDS", help="How long that silence is.")] = 2.0,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, metavar="N", help="End after so many.", show_default=False)
    ] = None,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Acknowledge what was written.")] = True,
    broker: BrokerOption = BROKER,
    admin: Annotated[
        str | None,
        typer.Option(
            "--admin",
            envvar="ISTER_ADMIN",
            show_envvar=False,
            metavar="URL",
            help="For --from.",
            show_default="beside it",
        ),
    ] = None,
    output: Annotated[
        Delivered, typer.Option("--output", "-o", metavar="HOW", help="table, json, payload.")
    ] = Delivered.TABLE,
) -> None:
    """Receive messages of a topic.

    A time is like 2026-01-31T18:00:00Z. --from moves the subscription, for everyone who uses it. A broker does not say
    where a topic ends: --no-follow ends when nothing has come for --idle seconds.

    Example: ister consume /default/orders --from earliest
    """
    TopicName.parse(topic)
    name = f"ister-{os.uname().nodename}-{os.getpid()}"
    consumer = Consumer(
        topic=topic,
        broker=broker,
        admin=admin or beside(broker),
        subscription=subscription or name,
        is_temporary=subscription is None,
        name=name,
        kind=list(SubscriptionKind).index(kind),
        start=None if start is None else parse_position(start, "--from"),
        count=count,
        idle_s=None if follow else idle,
        ack=ack,
        output=output,
    )
    asyncio.run(consumer.run())


def from_wire(message: StreamMessage) -> Stored:
    """Return a delivered message as a stored one; its append time is not sent, and the delivery id is left out."""
    found = message.msg_id
    address, _ = split_delivery_id(found.broker_addr)
    return Stored(
        message.payload,
        MsgID(found.producer_id, found.topic_name, address, found.topic_offset),
        message.request_id,
        message.publish_time,
        message.producer_name,
        message.subscription_name,
        dict(message.attributes),
        message.schema_id if message.HasField("schema_id") else None,
        message.schema_version if message.HasField("schema_version") else None,
        message.routing_key if message.HasField("routing_key") else None,
    )
