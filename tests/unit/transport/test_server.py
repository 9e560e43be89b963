"""Handlers behind a real grpc server: what a client gets, and what a handler sees of its client."""

import asyncio

import grpc
import hpack
import pytest
from danube.proto.DanubeApi_pb2 import MessageResponse, ReceiveRequest, StreamMessage
from structlog.testing import CapturingLogger

from ister.core.errors import CorruptMetadataError, InvalidConfigError, LimitError, NotFoundError
from ister.transport import call as calls
from ister.transport.http2 import frames
from ister.transport.service import INTERNAL_TEXT, ServerStream, Unary
from parts.binding import failure, run, serving, soon, stream, unary

Code = grpc.StatusCode
LIMIT = 10_000


@pytest.fixture
def logged(monkeypatch):
    logger = CapturingLogger()
    monkeypatch.setattr(calls, "log", logger)
    return logger.calls


def send(handler, **options):
    return Unary("SendMessage", handler, StreamMessage, MessageResponse, **options)


def receive(handler):
    return ServerStream("ReceiveMessages", handler, ReceiveRequest, StreamMessage)


async def echo(request):
    return MessageResponse(request_id=request.request_id)


@run
async def test_a_message_reaches_its_handler_and_the_answer_its_client():
    async with serving(send(echo)) as (_, channel):
        answer = await unary(channel, "SendMessage", StreamMessage(request_id=7).SerializeToString())
        assert MessageResponse.FromString(answer).request_id == 7
        assert await unary(channel, "SendMessage", b"") == b""


@run
async def test_a_handler_that_asks_for_the_call_knows_headers_and_sends_trailers():
    seen = []

    async def handler(request, call):
        seen.extend([call.header("ister-token"), call.header("absent"), call.header("raw-bin"), call.cancelled])
        seen.append("127.0.0.1" in call.peer)
        call.trail("ister-offset", "12")
        call.trail("other", "x")
        return MessageResponse()

    async with serving(send(handler)) as (_, channel):
        call = unary(channel, "SendMessage", metadata=(("ister-token", "secret"), ("raw-bin", b"\xff")))
        await call
        assert tuple(await call.trailing_metadata()) == (("ister-offset", "12"), ("other", "x"))
    assert seen == ["secret", None, "�", False, True]


@run
async def test_a_handler_whose_second_argument_has_a_default_is_given_no_call():
    async def handler(request, extra=5):
        return MessageResponse(request_id=extra)

    async with serving(send(handler)) as (_, channel):
        assert MessageResponse.FromString(await unary(channel, "SendMessage")).request_id == 5


@pytest.mark.parametrize(
    "data",
    [b"\xff\xff", b"\x12\x05abc", b"\x2a\x01\xff", b"\x1a\xff\xff\xff\xff\x0f", b"\x0b" * 500],
    ids=["no tag", "a part too short", "text that is no text", "a length beyond the end", "groups without an end"],
)
@run
async def test_bytes_that_are_no_message_are_the_clients_fault(data):
    async with serving(send(echo), receive(lambda request: Endless(b""))) as (_, channel):
        text = f"these {len(data)} bytes are not a danube.StreamMessage"
        assert await failure(unary(channel, "SendMessage", data)) == (Code.INVALID_ARGUMENT, text)
        code, _ = await failure(stream(channel, "ReceiveMessages", b"\xff\xff"))
        assert code is Code.INVALID_ARGUMENT


@run
async def test_a_message_over_the_limit_is_the_clients_fault_and_not_a_reason_to_try_again():
    async with serving(send(echo), message_bytes_max=LIMIT) as (_, channel):
        fits = StreamMessage(payload=bytes(LIMIT - 3)).SerializeToString()
        assert len(fits) == LIMIT
        assert await unary(channel, "SendMessage", fits) == b""
        text = f"this danube.StreamMessage has {LIMIT + 1} bytes; the broker takes at most {LIMIT}"
        assert await failure(unary(channel, "SendMessage", fits + b"\0")) == (Code.INVALID_ARGUMENT, text)
        code, _ = await failure(unary(channel, "SendMessage", bytes(4 * LIMIT)))
        assert code is Code.INVALID_ARGUMENT


@run
async def test_an_absurd_message_is_not_even_read_packed_or_not():
    async with serving(send(echo), message_bytes_max=LIMIT) as (_, channel):
        for packing in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            call = unary(channel, "SendMessage", bytes(100 * LIMIT), compression=packing)
            assert (await failure(call))[0] is Code.INVALID_ARGUMENT
        assert await unary(channel, "SendMessage", b"") == b""


@run
async def test_an_error_of_ours_becomes_its_status():
    async def handler(request):
        raise NotFoundError("topic /default/x does not exist")

    async with serving(send(handler)) as (_, channel):
        assert await failure(unary(channel, "SendMessage")) == (Code.NOT_FOUND, "topic /default/x does not exist")


async def surprise(request):
    raise ValueError("/secret/place")


async def nothing(request):
    return None


async def wait_for_what_was_cancelled(request):
    never = asyncio.get_running_loop().create_future()
    never.cancel()
    await never


@pytest.mark.parametrize("handler", [surprise, nothing, wait_for_what_was_cancelled])
def test_a_bug_is_told_to_the_log_and_not_to_the_client(handler, logged):
    async def go():
        async with serving(send(handler)) as (_, channel):
            assert await failure(unary(channel, "SendMessage")) == (Code.INTERNAL, INTERNAL_TEXT)

    asyncio.run(go())
    [failed] = [call for call in logged if call.method_name == "error"]
    assert failed.args == ("call_failed",)
    assert failed.kwargs["call"] == "danube.ProducerService/SendMessage"
    assert failed.kwargs["exc_info"].__traceback__ is not None


@run
async def test_an_unknown_method_is_unimplemented():
    async with serving(send(echo)) as (_, channel):
        assert (await failure(unary(channel, "Absent")))[0] is Code.UNIMPLEMENTED


@run
async def test_a_stream_gives_messages_and_the_bytes_of_messages():
    async def handler(request):
        for number in range(request.consumer_id):
            message = StreamMessage(request_id=number)
            yield message.SerializeToString() if number % 2 else message

    async with serving(receive(handler)) as (_, channel):
        call = stream(channel, "ReceiveMessages", ReceiveRequest(consumer_id=5).SerializeToString())
        assert [StreamMessage.FromString(one).request_id async for one in call] == [0, 1, 2, 3, 4]


@run
async def test_a_stream_that_fails_gives_what_it_had_and_then_its_status():
    async def handler(request, call):
        call.trail("ister-offset", "1")
        yield StreamMessage(request_id=1)
        raise LimitError("enough")

    async with serving(receive(handler)) as (_, channel):
        call = stream(channel, "ReceiveMessages")
        assert StreamMessage.FromString(await call.read()).request_id == 1
        assert await failure(call) == (Code.RESOURCE_EXHAUSTED, "enough")
        assert tuple(await call.trailing_metadata()) == (("ister-offset", "1"),)


class Endless:
    """An iterator that is no generator."""

    def __init__(self, item):
        self.item = item
        self.given = 0

    def __aiter__(self):
        return self

    async def __anext__(self):
        self.given += 1
        return self.item


class Closing(Endless):
    """One that can be closed."""

    def __init__(self, item):
        super().__init__(item)
        self.closed = asyncio.Event()

    async def aclose(self):
        self.closed.set()


@run
async def test_f38_a_consumer_that_does_not_read_is_not_given_more_than_the_wire_holds():
    items = Closing(bytes(1024 * 1024))
    async with serving(receive(lambda request: items)) as (_, channel):
        call = stream(channel, "ReceiveMessages")
        await call.read()
        before = -1
        while before != items.given:
            before = items.given
            await unary_round_trip(channel)
        assert items.given < 50
        call.cancel()
        await soon(items.closed)


async def unary_round_trip(channel):
    for _ in range(20):
        await failure(unary(channel, "Absent"))


def test_an_iterator_that_cannot_be_closed_is_let_go(logged):
    async def go():
        async with serving(receive(lambda request: Endless(b""))) as (server, channel):
            call = stream(channel, "ReceiveMessages")
            await call.read()
            assert server._calls._streams
            call.cancel()
            while server._calls._streams:
                await unary_round_trip(channel)

    asyncio.run(go())
    assert [call for call in logged if call.method_name == "error"] == []


def watched(ended):
    """A handler that gives one message, waits for ever, and says when it was ended."""

    async def handler(request):
        try:
            yield StreamMessage(request_id=1)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # what it does to tidy up may take its turns
            ended.set()

    return handler


@run
async def test_a_client_that_cancels_ends_its_stream_at_once():
    ended = asyncio.Event()
    async with serving(receive(watched(ended))) as (_, channel):
        call = stream(channel, "ReceiveMessages")
        await call.read()
        call.cancel()
        await soon(ended)


@run
async def test_a_client_that_closes_its_connection_ends_its_stream_at_once():
    ended = asyncio.Event()
    async with serving(receive(watched(ended))) as (server, _):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as other:
            await stream(other, "ReceiveMessages").read()
            assert not ended.is_set()
        await soon(ended)


@run
async def test_a_client_that_goes_away_cancels_its_handler():
    started, ended = asyncio.Event(), asyncio.Event()

    async def handler(request):
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with serving(send(handler)) as (_, channel):
        call = unary(channel, "SendMessage")
        await soon(started)
        call.cancel()
        await soon(ended)


@run
async def test_a_handler_that_finishes_does_so_without_its_client():
    started, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handler(request, call):
        started.set()
        await go_on.wait()
        ended.set()
        return MessageResponse(request_id=3)

    async with serving(send(handler, finishes=True)) as (server, channel):
        call = unary(channel, "SendMessage")
        await soon(started)
        call.cancel()
        await unary_round_trip(channel)
        go_on.set()
        await soon(ended)
        await unary_round_trip(channel)
        assert server._calls._finishing == set()
        assert MessageResponse.FromString(await unary(channel, "SendMessage")).request_id == 3


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("a bug"), (Code.INTERNAL, INTERNAL_TEXT)),
        (LimitError("too late"), (Code.RESOURCE_EXHAUSTED, "too late")),
    ],
)
def test_a_handler_that_fails_when_its_client_has_gone_is_told_to_the_log_if_that_is_a_bug(logged, error, told):
    async def go():
        started, go_on = asyncio.Event(), asyncio.Event()

        async def handler(request):
            started.set()
            await go_on.wait()
            raise error

        async with serving(send(handler, finishes=True)) as (_, channel):
            call = unary(channel, "SendMessage")
            await soon(started)
            call.cancel()
            await unary_round_trip(channel)
            go_on.set()
            await unary_round_trip(channel)
            assert await failure(unary(channel, "SendMessage")) == told

    asyncio.run(go())
    failed = [(call.args, str(call.kwargs["exc_info"])) for call in logged if call.method_name == "error"]
    assert failed == ([(("call_failed",), "a bug")] * 2 if isinstance(error, ValueError) else [])


@pytest.mark.parametrize(
    "error",
    [InvalidConfigError("metadata.etcd_user", "lacks a right"), CorruptMetadataError("/k", "it is not ours")],
)
def test_where_a_client_is_told_that_the_log_says_more_it_does(logged, error):
    """L3."""

    async def go():
        async def handler(request):
            raise error

        async with serving(send(handler)) as (_, channel):
            _, text = await failure(unary(channel, "SendMessage"))
            assert "log says" in text

    asyncio.run(go())
    assert [(call.args, call.kwargs["error"], call.kwargs["cause"]) for call in logged] == [
        (("call_refused",), type(error).__name__, str(error))
    ]


@run
async def test_a_call_that_is_given_up_before_it_began_leaves_nothing_behind():
    headers = hpack.Encoder().encode([
        (":method", "POST"), (":scheme", "http"), (":path", "/danube.ProducerService/SendMessage"),
        ("content-type", "application/grpc"),
    ])  # fmt: skip
    head = frames.frame(frames.HEADERS, frames.END_HEADERS, 1, headers)
    body = frames.frame(frames.DATA, frames.END_STREAM, 1, bytes(5))
    started = []

    async def handler(request):
        started.append(request)
        return MessageResponse()

    async with serving(send(handler)) as (server, channel):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(frames.PREFACE + frames.settings({}) + head + body + frames.reset(1, frames.Code.CANCEL))
        while not server._calls.rpcs.get(("/danube.ProducerService/SendMessage", "CANCELLED")):
            await unary_round_trip(channel)
        assert (len(server._calls.running), started) == (0, [])
        writer.close()


@run
async def test_a_client_is_told_when_its_deadline_has_passed_and_the_handler_is_cancelled():
    ended = asyncio.Event()

    async def handler(request):
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    rpcs = {}
    async with serving(send(handler), rpcs=rpcs) as (_, channel):
        call = channel.unary_unary("/danube.ProducerService/SendMessage")(b"", timeout=0.05)
        assert (await failure(call))[0] is Code.DEADLINE_EXCEEDED
        await soon(ended)


@run
async def test_a_stream_is_open_for_its_client_before_there_is_a_message():
    async def handler(request):
        await asyncio.Event().wait()
        yield StreamMessage()

    async with serving(receive(handler)) as (_, channel):
        call = stream(channel, "ReceiveMessages")
        async with asyncio.timeout(5):
            await call.initial_metadata()
        call.cancel()
