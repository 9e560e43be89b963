"""`ister consume`: receive messages until stopped; each is acknowledged once it is written.

It reconnects to a broker that went away. Without --subscription it makes one of its own, and deletes it at the end.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, TypeVar

import grpc
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
from google.protobuf.message import Message
from grpc import StatusCode

from ister.cli.commands.produce import PATIENCE_S, RETRY_S
from ister.cli.commands.subscriptions import reset_cursor
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
    many,
    message_columns,
    message_fields,
    message_heading,
    moment,
    notice,
    preview_columns,
    say,
    to_json,
)
from ister.client.channel import (
    CHANNEL_OPTIONS,
    TIMEOUT_S,
    BrokerUnreachableError,
    ChangeUnknownError,
    Remote,
    beside,
    error_of,
    target_of,
)
from ister.client.producer import partition_number
from ister.core.dispatch.delivery_id import split_delivery_id
from ister.core.errors import BusyError, InputError, IsterError, NotFoundError
from ister.core.message import MsgID
from ister.core.message import StreamMessage as Stored
from ister.core.names import TopicName
from ister.rpc.danube_admin_pb2 import (
    SubscriptionListResponse,
    SubscriptionRequest,
    SubscriptionResponse,
    TopicRequest,
)

BUFFER = 100
UNSUBSCRIBE_S = 5.0
"""How long the broker may take to see that we are gone, before our own subscription is left behind."""

_LINE = "{:>12} {:27} {}"
_COLUMNS = 12 + 27 + 2

Answer = TypeVar("Answer", bound=Message)
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


@dataclass(frozen=True, slots=True)
class DeliveredLines:
    """A heading, and how one message is written."""

    heading: str
    write: Callable[[Stored], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """What to receive; `subscription` None: one of our own. `idle_s` ends it when nothing has come for so long."""

    topic: str
    broker: str
    admin: str
    subscription: str | None = None
    kind: int = ConsumerRequest.SubscriptionType.Exclusive
    start: Position | None = None
    count: int | None = None
    idle_s: float | None = None
    ack: bool = True


def consume(consuming: ConsumeOptions, lines: Callable[[bool], DeliveredLines]) -> None:
    """Write what comes; `lines` is told whether the topic has partitions."""
    TopicName.parse(consuming.topic)
    asyncio.run(_Consumer(consuming).run(lines))


class _Consumer:
    """One consumer of a topic or of all its partitions."""

    def __init__(self, consuming: ConsumeOptions) -> None:
        self._consuming = consuming
        own = f"ister-{os.uname().nodename}-{os.getpid()}"
        self._name = own
        self._subscription = consuming.subscription or own
        self._partitions: list[str] = []
        self._received = 0
        self._stop = asyncio.Event()
        self._queue: asyncio.Queue[StreamMessage | IsterError] = asyncio.Queue(BUFFER)

    async def run(self, lines: Callable[[bool], DeliveredLines]) -> None:
        """Subscribe, receive until the end, and tidy up."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        try:
            async with AsyncExitStack() as stack:
                target = target_of(self._consuming.broker, "--broker")
                self._channel = await stack.enter_async_context(
                    grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
                )
                await self._find_partitions()
                ids = {topic: await self._subscribe(topic) for topic in self._partitions}
                stack.push_async_callback(self._leave)
                await self._place()
                shown = lines(len(self._partitions) > 1 or self._partitions[0] != self._consuming.topic)
                if shown.heading:
                    say(shown.heading)
                    sys.stdout.flush()
                tasks = [asyncio.create_task(self._receive(topic, number)) for topic, number in ids.items()]
                try:
                    await self._write_all(shown)
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
        topic = self._consuming.topic
        found = await self._call(
            "/danube.Discovery/TopicPartitions", TopicLookupRequest(topic=topic), TopicPartitionsResponse
        )
        self._partitions = sorted(found.partitions, key=partition_number)
        if not self._partitions:
            raise NotFoundError(f"there is no topic {topic}; `ister produce {topic}` or `ister topics create` makes it")
        start = self._consuming.start
        if start is not None and start.kind == "offset" and len(self._partitions) > 1:
            raise InputError(
                f"--from {start.value}", f"means another message in each partition; consume {self._partitions[0]} alone"
            )

    async def _place(self) -> None:
        """Move the subscription to where it should begin."""
        start = self._consuming.start
        if start is not None:
            with Remote.admin(self._consuming.admin) as admin:
                for topic in self._partitions:
                    await asyncio.to_thread(reset_cursor, admin, topic, self._subscription, start)

    async def _leave(self) -> None:
        """End our own subscription; the broker refuses until it has seen that we are gone."""
        if self._consuming.subscription is not None:
            return
        await self._channel.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + UNSUBSCRIBE_S
        waiting = list(self._partitions)
        with Remote.admin(self._consuming.admin) as admin:
            while waiting:
                request = SubscriptionRequest(topic=waiting[0], subscription=self._subscription)
                try:
                    await asyncio.to_thread(
                        admin.change, "/danube_admin.TopicAdmin/Unsubscribe", request, SubscriptionResponse
                    )
                    waiting.pop(0)
                except IsterError as error:
                    if isinstance(error, NotFoundError) and await asyncio.to_thread(self._is_gone, admin, waiting[0]):
                        waiting.pop(0)
                        continue
                    if loop.time() > deadline or isinstance(error, BrokerUnreachableError):
                        notice(f"ister: warning: subscription {self._subscription} stays: {error}")
                        return
                    await asyncio.sleep(RETRY_S)

    def _is_gone(self, admin: Remote, topic: str) -> bool:
        """Tell whether there is no such subscription; the protocol says the same of one that someone still uses."""
        request = TopicRequest(name=topic)
        try:
            found = admin.ask("/danube_admin.TopicAdmin/ListSubscriptions", request, SubscriptionListResponse)
        except NotFoundError:
            return True
        return self._subscription not in found.subscriptions

    # --- receiving ----------------------------------------------------------------------------------------------------

    async def _receive(self, topic: str, consumer_id: int) -> None:
        """Put what comes into the queue, and what cannot be helped."""
        try:
            while True:
                try:
                    async for message in self._stream(consumer_id):
                        await self._queue.put(message)
                except grpc.aio.AioRpcError as error:
                    told = self._error(error)
                    if not isinstance(told, BusyError | NotFoundError):
                        raise told from error
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
                    deadline = loop.time() + PATIENCE_S
                    notice(f"ister: {error}; trying again for {PATIENCE_S:g} s.")
                elif loop.time() > deadline:
                    raise

    async def _write_all(self, shown: DeliveredLines) -> None:
        count, idle_s = self._consuming.count, self._consuming.idle_s
        while count is None or self._received < count:
            batch = await self._next_batch(idle_s, BUFFER if count is None else count - self._received)
            if not batch:
                return
            for message in batch:
                shown.write(from_wire(message))
            sys.stdout.flush()
            self._received += len(batch)
            if self._consuming.ack:
                try:
                    async with asyncio.TaskGroup() as group:
                        for message in batch:
                            group.create_task(self._ack(message))
                except ExceptionGroup as failures:
                    raise failures.exceptions[0] from failures

    async def _next_batch(self, idle_s: float | None, most: int) -> list[StreamMessage]:
        """Wait for messages; nothing when we were stopped, or nothing has come for long enough."""
        if self._stop.is_set():
            return []
        if self._queue.empty():
            coming = asyncio.create_task(self._queue.get())
            stopped = asyncio.create_task(self._stop.wait())
            done, rest = await asyncio.wait((coming, stopped), timeout=idle_s, return_when=asyncio.FIRST_COMPLETED)
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
                self._queue.put_nowait(found)  # told once what came before it is written
            else:
                raise found
        return messages

    async def _ack(self, message: StreamMessage) -> None:
        request = AckRequest(request_id=message.request_id, msg_id=message.msg_id, subscription_name=self._subscription)
        try:
            await self._call("/danube.ConsumerService/Ack", request, AckResponse)
        except BusyError:
            pass  # it comes once more
        except ChangeUnknownError as error:
            # The protocol says INTERNAL where it means that there is no such topic or subscription.
            if error.code is not StatusCode.INTERNAL:
                raise
            what = f"the acknowledgement of offset {message.msg_id.topic_offset} was refused ({error.cause})"
            raise NotFoundError(f"{what}; the topic or the subscription was deleted meanwhile") from error

    # --- the broker ---------------------------------------------------------------------------------------------------

    async def _subscribe(self, topic: str) -> int:
        request = ConsumerRequest(
            topic_name=topic,
            consumer_name=self._name,
            subscription=self._subscription,
            subscription_type=ConsumerRequest.SubscriptionType.Name(self._consuming.kind),
        )
        return (await self._call("/danube.ConsumerService/Subscribe", request, ConsumerResponse)).consumer_id

    def _stream(self, consumer_id: int) -> AsyncIterable[StreamMessage]:
        receive = self._channel.unary_stream(
            "/danube.ConsumerService/ReceiveMessages",
            request_serializer=ReceiveRequest.SerializeToString,
            response_deserializer=StreamMessage.FromString,
        )
        return receive(ReceiveRequest(consumer_id=consumer_id))

    async def _call(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        call = self._channel.unary_unary(
            method, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
        )
        try:
            found: Answer = await call(request, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise self._error(error) from error
        return found

    def _error(self, error: grpc.aio.AioRpcError) -> IsterError:
        return error_of(error.code(), error.details() or "", self._consuming.broker, "--broker")


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
    consuming = ConsumeOptions(
        topic=topic,
        broker=broker,
        admin=admin or beside(broker),
        subscription=subscription,
        kind=list(SubscriptionKind).index(kind),
        start=None if start is None else parse_position(start, "--from"),
        count=count,
        idle_s=None if follow else idle,
        ack=ack,
    )
    consume(consuming, {Delivered.TABLE: _table, Delivered.JSON: _json, Delivered.PAYLOAD: _payloads}[output])


# --- output -----------------------------------------------------------------------------------------------------------


def _table(partitioned: bool) -> DeliveredLines:  # noqa: FBT001  # as `consume` calls it
    """Write one aligned line a message; a partition's number stands before its offset."""
    columns = preview_columns(_COLUMNS)

    def write(message: Stored) -> None:
        offset = f"{message.msg_id.topic_name.rpartition('-part-')[2]}/" if partitioned else ""
        rest = message_columns(message, columns)
        say(_LINE.format(f"{offset}{message.offset}", moment(message.publish_time * 1000), rest).rstrip())

    return DeliveredLines(_LINE.format("OFFSET", "PUBLISHED (UTC)", message_heading()), write)


def _json(_: bool) -> DeliveredLines:  # noqa: FBT001  # as `consume` calls it
    """Write one JSON object a message."""

    def write(message: Stored) -> None:
        fields = {
            "topic": message.msg_id.topic_name,
            "offset": message.offset,
            "subscription": message.subscription_name,
        }
        say(to_json(fields | message_fields(message)))

    return DeliveredLines("", write)


def _payloads(_: bool) -> DeliveredLines:  # noqa: FBT001  # as `consume` calls it
    """Write each payload unchanged, and a newline."""

    def write(message: Stored) -> None:
        sys.stdout.flush()
        sys.stdout.buffer.write(message.payload + b"\n")

    return DeliveredLines("", write)


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
