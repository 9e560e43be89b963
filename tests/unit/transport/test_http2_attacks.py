"""Peers that mean harm, on a real socket: what they get, what the broker keeps of it, and that others are served."""

import asyncio
import gzip
from functools import partial

import grpc
import pytest
from danube.proto.DanubeApi_pb2 import MessageResponse, ReceiveRequest, StreamMessage
from hpack import Encoder

from ister.transport import connection as peer
from ister.transport.connection import PING_STRIKES_MAX, WRITE_BUFFER_BYTES
from ister.transport.http2.connection import IDLE_FRAMES_MAX, RESETS_MAX, STREAMS_MAX, Http2Connection
from ister.transport.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_MAX,
    WINDOW_START,
    WINDOW_UPDATE,
    Code,
    Setting,
    frame,
)
from ister.transport.http2.frames import settings as settings_frame
from ister.transport.http2.headers import literal
from ister.transport.service import ServerStream, Unary
from parts.binding import NAME, WAIT_S, run, serving, soon, unary
from parts.http2 import (
    BLOCK,
    GREETING,
    LARGEST,
    block,
    call,
    code,
    eventually,
    fields,
    headers,
    message,
    nothing_is_left,
    wire,
)

Status = grpc.StatusCode
CONSUME = f"/{NAME}/ReceiveMessages"
REFLECT = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
RESET = Code.CANCEL.to_bytes(4)


class Handlers:
    """Handlers that count who has come and who has gone."""

    def __init__(self):
        self.started = self.ended = self.given = 0
        self.go_on = asyncio.Event()
        self.gone = asyncio.Event()

    async def hold(self, request):
        self.started += 1
        try:
            await self.go_on.wait()
        finally:
            self.ended += 1
            self.gone.set()
        return MessageResponse()

    async def echo(self, request):
        self.started += 1
        return MessageResponse(request_id=request.request_id)

    async def pour(self, request):
        try:
            while True:
                self.given += 1
                yield bytes(100_000)
        finally:
            self.gone.set()

    def methods(self, handler):
        return (
            Unary("SendMessage", handler, StreamMessage, MessageResponse),
            ServerStream("ReceiveMessages", self.pour, ReceiveRequest, StreamMessage),
        )


@run
async def test_f40_rapid_resets_cancel_their_handlers_and_leave_nothing_behind():
    handlers = Handlers()
    async with serving(*handlers.methods(handlers.hold)) as (server, _), wire(server.port) as hostile:
        last = 2 * RESETS_MAX + 1
        for number in range(1, last, 2):
            hostile.send(call(number), frame(RST_STREAM, 0, number, RESET))
            if number % 500 == 1:
                await hostile.writer.drain()
        hostile.send(call(last, body=block("/absent")))
        assert code(await hostile.end(last)) is Status.UNIMPLEMENTED
        await eventually(lambda: nothing_is_left(server))
        assert handlers.started == handlers.ended


@run
async def test_f40_resets_without_end_are_ended():
    handlers = Handlers()
    async with serving(*handlers.methods(handlers.hold)) as (server, channel):
        async with wire(server.port) as hostile:
            hostile.send(*(call(one) + frame(RST_STREAM, 0, one, RESET) for one in range(1, 4 * RESETS_MAX, 2)))
            assert await hostile.last_words() is Code.ENHANCE_YOUR_CALM
        await eventually(lambda: nothing_is_left(server))
        handlers.go_on.set()
        assert await unary(channel, "SendMessage") == b""


@run
async def test_a_client_that_gives_up_now_and_then_is_never_taken_for_hostile():
    handlers = Handlers()
    async with (
        serving(*handlers.methods(handlers.hold), keepalive_s=0.05, keepalive_timeout_s=5) as (server, _),
        wire(server.port) as client,
    ):
        for first in range(1, 6 * RESETS_MAX, 2 * RESETS_MAX):
            numbers = range(first, first + 2 * RESETS_MAX, 2)
            client.send(*(call(one) + frame(RST_STREAM, 0, one, RESET) for one in numbers))
            await eventually(lambda: not any(one._connection.resets for one in server._connections))
            assert len(server._connections) == 1


def test_f40_handlers_that_go_on_without_their_clients_count_as_calls(monkeypatch):
    monkeypatch.setattr(peer, "Http2Connection", partial(Http2Connection, streams_max=50))

    async def go():
        handlers = Handlers()
        finishing = Unary("SendMessage", handlers.hold, StreamMessage, MessageResponse, finishes=True)
        async with serving(finishing) as (server, channel), wire(server.port) as hostile:
            for first in range(1, 200, 40):
                numbers = range(first, first + 40, 2)
                hostile.send(*(call(number) for number in numbers), frame(PING, 0, 0, bytes(8)))
                await hostile.until(PING)
                await eventually(lambda wanted=first // 2 + 20: handlers.started >= min(wanted, 50))
                hostile.send(*(frame(RST_STREAM, 0, number, RESET) for number in numbers))
            hostile.send(call(201))
            assert (await hostile.until(RST_STREAM, 201))[3] == Code.REFUSED_STREAM.to_bytes(4)
            assert handlers.started == len(server._calls._finishing) == 50
            handlers.go_on.set()
            await eventually(lambda: nothing_is_left(server))
            assert code(await hostile.answer(203)) is Status.OK
            assert await unary(channel, "SendMessage") == b""

    asyncio.run(go())


@run
async def test_f40_resets_of_calls_that_run_cancel_them():
    handlers = Handlers()
    async with serving(*handlers.methods(handlers.hold)) as (server, _), wire(server.port) as hostile:
        hostile.send(*(call(number) for number in range(1, 1001, 2)))
        await eventually(lambda: handlers.started == 500)
        hostile.send(*(frame(RST_STREAM, 0, number, RESET) for number in range(1, 1001, 2)))
        await eventually(lambda: handlers.ended == 500)
        await eventually(lambda: nothing_is_left(server))


@run
async def test_f40_a_client_that_goes_away_amid_everything_leaves_nothing_behind():
    handlers = Handlers()
    async with serving(*handlers.methods(handlers.hold)) as (server, channel):
        async with wire(server.port) as hostile:
            hostile.send(*(call(number) for number in range(1, 201, 2)), call(201, body=block(CONSUME)))
            hostile.send(headers(203), frame(DATA, 0, 203, b"\0\0\0\0\x64half of"))
            await eventually(lambda: handlers.started == 100 and handlers.given and server._calls.budget.bytes > 500)
        await eventually(lambda: nothing_is_left(server))
        assert handlers.ended == 100
        handlers.go_on.set()
        assert await unary(channel, "SendMessage") == b""


@run
async def test_f40_a_client_that_never_reads_is_given_a_bounded_amount_and_harms_nobody():
    handlers = Handlers()
    wide = settings_frame({Setting.INITIAL_WINDOW_SIZE: WINDOW_MAX})
    open_wide = frame(WINDOW_UPDATE, 0, 0, (WINDOW_MAX - WINDOW_START).to_bytes(4))
    async with (
        serving(*handlers.methods(handlers.echo)) as (server, channel),
        wire(server.port, PREFACE + wide + open_wide) as hostile,
    ):
        hostile.writer.transport.pause_reading()
        hostile.send(call(1, body=block(CONSUME)))
        await eventually(lambda: any(peer._paused for peer in server._connections))
        [peer] = server._connections  # the channel has not connected yet
        hostile.send(frame(PING, 0, 0, bytes(8)) * 100_000)
        given = handlers.given
        for _ in range(50):
            assert await unary(channel, "SendMessage") == b""
        assert handlers.given <= given + 2
        assert peer._transport.get_write_buffer_size() < 2 * WRITE_BUFFER_BYTES
        assert sum(map(len, peer._connection._out)) < WRITE_BUFFER_BYTES
        hostile.writer.transport.abort()
        await soon(handlers.gone)
        await eventually(lambda: nothing_is_left(server))


@run
async def test_f40_a_client_that_never_reads_is_taken_for_gone():
    handlers = Handlers()
    async with serving(*handlers.methods(handlers.echo), keepalive_s=0.1, keepalive_timeout_s=0.1) as (server, _):
        wide = settings_frame({Setting.INITIAL_WINDOW_SIZE: WINDOW_MAX})
        open_wide = frame(WINDOW_UPDATE, 0, 0, (WINDOW_MAX - WINDOW_START).to_bytes(4))
        async with wire(server.port, PREFACE + wide + open_wide) as hostile:
            hostile.writer.transport.pause_reading()
            hostile.send(call(1, body=block(CONSUME)))
            await soon(handlers.gone)
            await eventually(lambda: not server._connections)


@run
async def test_f40_a_client_that_opens_no_window_holds_a_bounded_number_of_answers():
    handlers = Handlers()
    shut = settings_frame({Setting.INITIAL_WINDOW_SIZE: 0})
    async with serving(*handlers.methods(handlers.echo)) as (server, channel):
        async with wire(server.port, PREFACE + shut) as hostile:
            calls_ = STREAMS_MAX + 500
            hostile.send(*(call(2 * number + 1) for number in range(calls_)), call(2 * calls_ + 1))
            await hostile.until(RST_STREAM, 2 * calls_ + 1)
            await eventually(lambda: handlers.started == STREAMS_MAX)
            assert await unary(channel, "SendMessage") == b""
        await eventually(lambda: nothing_is_left(server))


@run
async def test_f40_a_client_that_asks_on_and_on_without_reading_answers_fills_no_memory():
    handlers = Handlers()
    shut = settings_frame({Setting.INITIAL_WINDOW_SIZE: 0})
    async with serving(*handlers.methods(handlers.echo), message_bytes_max=100_000) as (server, _):
        async with wire(server.port, PREFACE + shut) as hostile:
            many = message(b"\x3a\0") * 2000  # each asks for the list of services
            hostile.send(headers(1, body=block(REFLECT)), frame(DATA, 0, 1, many))
            await eventually(lambda: any(peer._connection.streams for peer in server._connections))
            [stream] = [stream for peer in server._connections for stream in peer._connection.streams.values()]
            for number in range(50):
                hostile.send(frame(DATA, 0, 1, many) * 4, frame(PING, 0, 0, number.to_bytes(8)))
                await hostile.until(PING)
                waiting = sum(len(part or b"") for part in stream.call.inbox._queue)
                assert waiting + stream.unsent_bytes < 1_000_000
        await eventually(lambda: nothing_is_left(server))


@run
async def test_f40_an_exchange_that_fails_lets_go_of_what_came_behind():
    handlers = Handlers()
    async with serving(*handlers.methods(handlers.echo)) as (server, _), wire(server.port) as hostile:
        garbage = frame(DATA, 0, 1, message(b"\xff\xff") + bytes(10_000))
        hostile.send(headers(1, body=block(REFLECT)), garbage * 20)
        assert code(await hostile.end(1)) is Status.INVALID_ARGUMENT
        await eventually(lambda: nothing_is_left(server))


@run
async def test_f40_an_exchange_that_asks_too_much_at_a_time_is_told_so():
    handlers = Handlers()
    async with serving(*handlers.methods(handlers.echo)) as (server, _), wire(server.port) as client:
        large = b"\0" + (15 << 20).to_bytes(4) + bytes(15 * LARGEST - 5)
        parts = [frame(DATA, 0, 1, large[at : at + LARGEST]) for at in range(0, len(large), LARGEST)]
        client.send(headers(1, body=block(REFLECT)), *parts)
        assert code(await client.end(1)) is Status.INVALID_ARGUMENT
        await eventually(lambda: nothing_is_left(server))


@pytest.mark.parametrize("first", [b"", PREFACE[:10], PREFACE, GREETING + headers(1)[:15]])
@run
async def test_f40_a_client_that_stops_in_the_middle_of_a_word_is_taken_for_gone(first):
    handlers = Handlers()
    async with (
        serving(*handlers.methods(handlers.echo), keepalive_s=0.05, keepalive_timeout_s=0.05) as (server, _),
        wire(server.port, first) as silent,
    ):
        await silent.closed()
        await eventually(lambda: not server._connections)


@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"POST /a HTTP/1.1\r\n\r\n", b"\x16\x03\x01\2\0"]
)
@run
async def test_f40_who_speaks_another_protocol_is_told_so_in_words(first):
    handlers = Handlers()
    async with serving(*handlers.methods(handlers.echo)) as (server, _):
        async with wire(server.port, b"") as browser:
            await eventually(lambda: server._connections)
            browser.send(first)
            async with asyncio.timeout(WAIT_S):
                head, _, body = (await browser.reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert body == b"This port speaks gRPC (HTTP/2 without TLS) and nothing else.\n"


@run
async def test_f40_who_breaks_the_protocol_is_told_why_and_others_are_served():
    handlers = Handlers()
    async with serving(*handlers.methods(handlers.hold)) as (server, channel):
        attacks = {
            frame(SETTINGS, 0, 0) * (IDLE_FRAMES_MAX + 1): Code.ENHANCE_YOUR_CALM,
            frame(PING, 0, 0, bytes(8)) * (PING_STRIKES_MAX + 1): Code.ENHANCE_YOUR_CALM,
            headers(3, 0) + frame(DATA, 0, 3): Code.PROTOCOL_ERROR,
            headers(3, END_HEADERS, b"\xff"): Code.COMPRESSION_ERROR,
            frame(DATA, 0, 1, bytes(LARGEST + 1))[:9]: Code.FRAME_SIZE_ERROR,
            frame(WINDOW_UPDATE, 0, 0, WINDOW_MAX.to_bytes(4)): Code.FLOW_CONTROL_ERROR,
        }
        for number, (data, why) in enumerate(attacks.items(), 1):
            async with wire(server.port) as hostile:
                hostile.send(call(1), frame(PING, 0, 0, bytes(8)))
                await eventually(lambda wanted=number: handlers.started == wanted)
                await hostile.until(PING)
                hostile.send(data)
                assert await hostile.last_words() is why
            await eventually(lambda wanted=number: handlers.ended == wanted)
        await eventually(lambda: nothing_is_left(server))
        handlers.go_on.set()
        assert await unary(channel, "SendMessage") == b""


@run
async def test_f40_a_request_that_is_too_large_is_told_so():
    handlers = Handlers()
    async with (
        serving(*handlers.methods(handlers.echo), message_bytes_max=1000) as (server, _),
        wire(server.port) as hostile,
    ):
        hostile.send(headers(1), frame(DATA, 0, 1, bytes(10_000)))
        ended = await hostile.end(1)
        assert (code(ended), ended["grpc-message"]) == (
            Status.INVALID_ARGUMENT,
            "this danube.StreamMessage has 9995 bytes; the broker takes at most 1000",
        )
        await eventually(lambda: nothing_is_left(server))


def timed(text):
    return block(f"/{NAME}/SendMessage", ("grpc-timeout", text))


@run
async def test_f40_a_deadline_that_passes_cancels_the_handler_and_is_told():
    handlers = Handlers()
    async with serving(*handlers.methods(handlers.hold)) as (server, _), wire(server.port) as client:
        assert code(await client.answer(1, body=timed("20m"))) is Status.DEADLINE_EXCEEDED
        await soon(handlers.gone)
        await eventually(lambda: nothing_is_left(server))


@pytest.mark.parametrize("text", ["1m", "0n", "1u"])
@run
async def test_f40_a_request_that_is_not_whole_at_its_deadline_is_let_go(text):
    handlers = Handlers()
    counted = {}
    async with serving(*handlers.methods(handlers.hold), rpcs=counted) as (server, _), wire(server.port) as client:
        for number in range(1, 100, 2):
            client.send(headers(number, body=timed(text)), frame(DATA, 0, number, bytes(1000)))
            assert code(await client.end(number)) is Status.DEADLINE_EXCEEDED
        await eventually(lambda: nothing_is_left(server))
        assert counted[f"/{NAME}/SendMessage", "DEADLINE_EXCEEDED"] == 50


@run
async def test_f40_a_deadline_that_is_over_at_once_is_answered_all_the_same():
    handlers = Handlers()
    async with serving(*handlers.methods(handlers.hold)) as (server, _), wire(server.port) as client:
        client.send(*(call(number, body=timed("0n")) for number in range(1, 400, 2)))
        for number in range(1, 400, 2):
            assert code(await client.end(number)) is Status.DEADLINE_EXCEEDED
        await eventually(lambda: nothing_is_left(server))


@pytest.mark.parametrize(
    ("encoding", "data", "wanted"),
    [
        ("gzip", message(gzip.compress(b"\x08\x07"), 1), Status.OK),
        ("gzip", message(b"\x08\x07"), Status.OK),
        ("identity", message(gzip.compress(b""), 1), Status.INTERNAL),
        ("snappy", message(b"\x08\x07", 1), Status.UNIMPLEMENTED),
        ("gzip", message(gzip.compress(bytes(10**7)), 1), Status.INVALID_ARGUMENT),
        ("gzip", message(gzip.compress(bytes(100))[:-3], 1), Status.INTERNAL),
        ("gzip", message(b"", 9), Status.INTERNAL),
        ("identity", message(b"") * 2, Status.UNIMPLEMENTED),
        ("identity", b"", Status.UNIMPLEMENTED),
    ],
    ids=["packed", "not packed", "no packing named", "unknown", "a bomb", "cut off", "no flag", "two messages", "none"],
)
@run
async def test_f40_a_message_is_taken_as_it_is_packed_or_refused(encoding, data, wanted):
    handlers = Handlers()
    async with (
        serving(*handlers.methods(handlers.echo), message_bytes_max=100_000) as (server, _),
        wire(server.port) as client,
    ):
        client.send(headers(1, body=block(f"/{NAME}/SendMessage", ("grpc-encoding", encoding))))
        client.send(frame(DATA, END_STREAM, 1, data))
        ended = await client.end(1)
        assert code(ended) is wanted
        assert handlers.started == (wanted is Status.OK)
        assert ended.get("grpc-accept-encoding") == ("identity,deflate,gzip" if encoding == "snappy" else None)


@pytest.mark.parametrize("cut", range(8))
@run
async def test_f40_a_message_may_come_in_any_parts_and_some_may_be_empty(cut):
    handlers = Handlers()
    data = message(b"\x08\x07")
    async with serving(*handlers.methods(handlers.echo)) as (server, _), wire(server.port) as client:
        nothing = frame(DATA, 0, 1)
        client.send(headers(1), nothing, frame(DATA, 0, 1, data[:cut]), nothing, frame(DATA, 0, 1, data[cut:]))
        client.send(nothing, frame(DATA, END_STREAM, 1))
        assert code(await client.end(1)) is Status.OK
        client.send(headers(3, END_HEADERS | END_STREAM))
        assert code(await client.end(3)) is Status.UNIMPLEMENTED
        assert handlers.started == 1


@run
async def test_f40_what_is_no_call_of_ours_is_refused():
    handlers = Handlers()
    path = f"/{NAME}/SendMessage"
    async with serving(*handlers.methods(handlers.echo)) as (server, _), wire(server.port) as client:
        assert (await client.answer(1, body=block(path, content_type="text/html")))[":status"] == "415"
        assert (await client.answer(3, body=block(path, method="GET")))[":status"] == "415"
        assert (await client.answer(5, body=block("/favicon.ico", content_type="")))[":status"] == "415"
        for number, kind in ((15, "-web+proto"), (17, "-web"), (19, "x"), (21, " +proto")):
            ended = await client.answer(number, body=block(path, content_type="application/grpc" + kind))
            assert ended[":status"] == "415"
        ended = await client.answer(23, body=block("/absent/ünknown" + "x" * 3000))
        assert code(ended) is Status.UNIMPLEMENTED
        assert ended["grpc-accept-encoding"] == "identity,deflate,gzip"
        assert len(ended["grpc-message"]) < 1000
        wrong = block(path, ("grpc-timeout", "soon"))
        assert code(await client.answer(25, body=wrong)) is Status.INTERNAL
        upper = BLOCK + b"\0\1A\1b"
        assert code(await client.answer(27, body=upper)) is Status.INTERNAL
        for number, kind in ((29, ""), (31, "+proto"), (33, ";charset=utf-8"), (35, "+json; x=y")):
            right = block(path, content_type="application/grpc" + kind)
            assert code(await client.answer(number, body=right)) is Status.OK
        assert handlers.started == 4


@run
async def test_a_call_that_crosses_our_goodbye_does_not_end_the_calls_before_it():
    handlers = Handlers()
    async with serving(*handlers.methods(handlers.hold)) as (server, _), wire(server.port) as client:
        client.send(call(1))
        await eventually(lambda: handlers.started == 1)
        stopping = asyncio.create_task(server.stop(WAIT_S))
        await eventually(lambda: server._calls.stopping)
        client.send(
            call(3), frame(HEADERS, END_HEADERS, 5, BLOCK), frame(DATA, 0, 5, b"x"), frame(PING, 0, 0, bytes(8))
        )
        while (await client.until(PING))[1] == 0:
            pass
        handlers.go_on.set()
        assert code(await client.end(1)) is Status.OK
        await stopping
        assert handlers.started == 1


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        (b"\x00\x01a\x02\xff\xfe", Status.OK),
        (b"\x00\x02\xff\xfe\x01a", Status.INTERNAL),
        (literal("a", "v" * 16_200), Status.RESOURCE_EXHAUSTED),
        (literal("a", "v" * 17_000), Status.RESOURCE_EXHAUSTED),
        (literal("a", "v") * 500, Status.RESOURCE_EXHAUSTED),
    ],
    ids=["a value that is no text", "a name that is no text", "16 KB", "17 KB", "many"],
)
@run
async def test_f40_what_is_wrong_with_the_headers_of_one_call_ends_that_call_alone(more, wanted):
    handlers = Handlers()
    encoder = Encoder()
    async with serving(*handlers.methods(handlers.hold)) as (server, _), wire(server.port) as client:
        client.send(call(1, body=encoder.encode(fields())))
        await eventually(lambda: handlers.started == 1)
        # Both tables have the entry, whatever comes of the call.
        odd = encoder.encode([*fields(), ("new", "entry")]) + more
        client.send(frame(HEADERS, 0, 3, odd[:16_000]), frame(CONTINUATION, END_HEADERS, 3, odd[16_000:]))
        client.send(frame(DATA, END_STREAM, 3, bytes(5)))
        handlers.go_on.set()
        ended = await client.ends(2)
        assert (code(ended[1]), code(ended[3])) == (Status.OK, wanted)
        assert code(await client.answer(5, body=encoder.encode([*fields(), ("new", "entry")]))) is Status.OK


@run
async def test_an_exchange_begins_with_its_headers_and_not_with_what_is_asked():
    handlers = Handlers()
    async with serving(*handlers.methods(handlers.echo)) as (server, _), wire(server.port) as client:
        client.send(headers(1, body=block(REFLECT)))
        _, flags, _, _ = await client.until(HEADERS, 1)
        assert not flags & END_STREAM
        client.send(frame(DATA, END_STREAM, 1, message(b"\x3a\0")))
        assert code(await client.end(1)) is Status.OK
        client.send(headers(3, END_HEADERS | END_STREAM, block(REFLECT)))
        assert code(await client.end(3)) is Status.OK
        await eventually(lambda: nothing_is_left(server))
