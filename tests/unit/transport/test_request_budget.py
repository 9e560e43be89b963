"""What requests take while they are not answered: counted as unpacked, waited for, and refused where most is kept."""

import asyncio
import contextlib
import gzip
import tracemalloc

import grpc
import pytest
from danube.proto.DanubeApi_pb2 import MessageResponse, ReceiveRequest, StreamMessage

from ister.transport import call as calls
from ister.transport import request_budget as budget
from ister.transport.http2.frames import DATA, END_STREAM, PING, RST_STREAM, WINDOW_UPDATE, Code, frame
from ister.transport.service import Prompt, ServerStream, Unary
from parts.binding import NAME, serving, unary
from parts.http2 import block, call, code, eventually, headers, message, nothing_is_left, wire

Status = grpc.StatusCode
KIB = 1024
MIB = 1024 * KIB
SEND = f"/{NAME}/SendMessage"
PACKED = block(SEND, ("grpc-encoding", "gzip"))
PING_FRAME = frame(PING, 0, 0, b"are you?")


class Handlers:
    """Handlers that hold their requests until they may go on."""

    def __init__(self):
        self.started = 0
        self.go_on = asyncio.Event()

    async def hold(self, request):
        self.started += 1
        await self.go_on.wait()
        return MessageResponse(request_id=request.request_id)

    async def drop(self, request):
        del request
        self.started += 1
        await self.go_on.wait()
        return MessageResponse()

    async def drop_stream(self, request):
        del request
        self.started += 1
        await self.go_on.wait()
        yield StreamMessage()

    def methods(self, handler=None, **options):
        return (
            Unary("SendMessage", handler or self.hold, StreamMessage, MessageResponse, large=True, **options),
            Prompt("Ack", lambda request: MessageResponse(request_id=5), StreamMessage, MessageResponse),
            ServerStream("ReceiveMessages", self.drop_stream, ReceiveRequest, StreamMessage),
        )


@pytest.fixture
def limits(monkeypatch):
    """Return what makes the budget small enough to be filled in a moment."""

    def narrow(connection=budget.CONNECTION_BYTES_MAX, server=budget.SERVER_BYTES_MAX, small=budget.SMALL_BYTES_MAX):
        monkeypatch.setattr(budget, "CONNECTION_BYTES_MAX", connection)
        monkeypatch.setattr(budget, "SERVER_BYTES_MAX", server)
        monkeypatch.setattr(budget, "SMALL_BYTES_MAX", small)

    return narrow


def sent(size):
    return StreamMessage(payload=bytes(size)).SerializeToString()


def packed(number, size):
    """A call of a few bytes that become many."""
    return headers(number, body=PACKED) + frame(DATA, END_STREAM, number, message(gzip.compress(sent(size)), 1))


def begun(number, size, announced=4 * MIB - 10):
    """A call of which so many bytes come, and no more."""
    data = b"\0" + announced.to_bytes(4) + bytes(size - 5)
    return headers(number) + b"".join(
        frame(DATA, 0, number, data[at : at + 16_384]) for at in range(0, len(data), 16_384)
    )


async def pong(client):
    client.send(PING_FRAME)
    while (await client.until(PING))[1] == 0:
        pass


def test_f40_a_stream_cannot_be_asked_in_megabytes():
    async def go():
        handlers = Handlers()
        async with serving(*handlers.methods()) as (server, _), wire(server.port) as hostile:
            body = block("/grpc.health.v1.Health/Watch", ("grpc-encoding", "gzip"))
            unknown = gzip.compress(b"\xfa\x7f\x9c\xff\xff\x01" + bytes(4 * MIB - 100))
            hostile.send(headers(1, body=body), frame(DATA, END_STREAM, 1, message(unknown, 1)))
            assert code(await hostile.end(1)) is Status.INVALID_ARGUMENT

    asyncio.run(go())


@pytest.mark.parametrize("path", ["/grpc.health.v1.Health/Check", f"/{NAME}/Ack", f"/{NAME}/ReceiveMessages"])
def test_f40_only_a_method_that_takes_data_is_asked_in_more_than_a_few_bytes(path):
    async def go():
        handlers = Handlers()
        handlers.go_on.set()
        async with serving(*handlers.methods()) as (server, channel), wire(server.port) as client:
            client.send(begun(1, 20 * KIB, 100 * KIB).replace(headers(1), headers(1, body=block(path))))
            assert code(await client.end(1)) is Status.INVALID_ARGUMENT
            assert await unary(channel, "SendMessage", sent(100 * KIB)) == b""

    asyncio.run(go())


def test_f40_requests_whose_handlers_wait_are_counted_as_they_are_unpacked(limits):
    limits(connection=MIB)

    async def go():
        handlers = Handlers()
        async with (
            serving(*handlers.methods(), message_bytes_max=200 * KIB) as (server, _),
            wire(server.port) as hostile,
        ):
            hostile.send(*(packed(number, 100 * KIB) for number in range(1, 100, 2)))
            await pong(hostile)
            await pong(hostile)
            assert 10 <= handlers.started <= 12
            handlers.go_on.set()
            for number in range(1, 100, 2):
                assert code(await hostile.end(number)) is Status.OK
            await eventually(lambda: nothing_is_left(server))
            assert handlers.started == 50

    asyncio.run(go())


def test_f40_a_connection_whose_calls_wait_is_heard_all_the_same(limits):
    limits(connection=MIB)

    async def go():
        handlers = Handlers()
        async with (
            serving(*handlers.methods(), message_bytes_max=200 * KIB) as (server, channel),
            wire(server.port) as client,
        ):
            client.send(*(packed(number, 100 * KIB) for number in range(1, 100, 2)))
            await pong(client)
            client.send(call(101, body=block(f"/{NAME}/Ack")))
            assert code(await client.end(101)) is Status.OK, "what never waits does not wait"
            assert 10 <= handlers.started <= 12
            client.send(*(frame(RST_STREAM, 0, number, Code.CANCEL.to_bytes(4)) for number in range(3, 100, 2)))
            handlers.go_on.set()
            assert code(await client.end(1)) is Status.OK
            await eventually(lambda: nothing_is_left(server))
            assert handlers.started <= 13, "who gave up in the queue was not run"
            assert await unary(channel, "SendMessage", sent(10)) == b""

    asyncio.run(go())


def test_f40_calls_that_wait_when_their_client_goes_leave_nothing_behind(limits):
    limits(connection=MIB)

    async def go():
        handlers = Handlers()
        async with serving(*handlers.methods(), message_bytes_max=200 * KIB) as (server, channel):
            async with wire(server.port) as client:
                client.send(*(packed(number, 100 * KIB) for number in range(1, 100, 2)), begun(101, 50_000))
                await pong(client)
            await eventually(lambda: nothing_is_left(server))
            assert 10 <= handlers.started <= 12
            handlers.go_on.set()
            assert await unary(channel, "SendMessage", sent(10)) == b""

    asyncio.run(go())


def test_f40_calls_that_wait_when_the_broker_stops_are_told_to_come_again(limits):
    limits(connection=MIB)

    async def go():
        handlers = Handlers()
        async with (
            serving(*handlers.methods(), message_bytes_max=200 * KIB) as (server, _),
            wire(server.port) as client,
        ):
            client.send(*(packed(number, 100 * KIB) for number in range(1, 100, 2)))
            await pong(client)
            stopping = asyncio.create_task(server.stop(0.3))
            ended = await client.ends(50)
            assert {code(one) for one in ended.values()} == {Status.UNAVAILABLE}
            await stopping
            assert nothing_is_left(server)

    asyncio.run(go())


def test_a_client_with_more_in_flight_than_its_share_waits_and_loses_nothing(limits):
    limits(connection=MIB)

    async def go():
        handlers = Handlers()
        async with serving(*handlers.methods()) as (server, channel):
            asked = [
                unary(channel, "SendMessage", StreamMessage(request_id=number, payload=bytes(150 * KIB)).SerializeToString())
                for number in range(13)
            ]  # fmt: skip
            await eventually(lambda: handlers.started == 6)
            await eventually(lambda: any(peer._connection.is_paused for peer in server._connections))
            handlers.go_on.set()
            answers = [MessageResponse.FromString(one).request_id for one in await asyncio.gather(*asked)]
            assert answers == list(range(13))
            await eventually(lambda: nothing_is_left(server))
            assert not any(peer._connection.is_paused for peer in server._connections)

    asyncio.run(go())


def test_a_connections_window_is_given_back_when_its_calls_have_ended(limits, monkeypatch):
    limits(connection=100_000, server=10**6)
    monkeypatch.setattr("ister.transport.http2.connection.CONNECTION_WINDOW", 400_000)

    async def go():
        handlers = Handlers()
        async with serving(*handlers.methods()) as (server, _), wire(server.port) as client:
            client.send(call(1, sent(15_000)))
            client.send(begun(3, 190_000), PING_FRAME)
            seen = []
            while (found := await client.frame())[0] != PING:
                seen.append(found)
            assert [one[:3] for one in seen[2:] if one[0] == WINDOW_UPDATE] == []
            handlers.go_on.set()
            assert (await client.until(WINDOW_UPDATE))[2] == 0

    asyncio.run(go())


def test_f40_a_connection_can_always_complete_a_call_whatever_else_it_has_begun(limits):
    limits(connection=100_000)

    async def go():
        handlers = Handlers()
        handlers.go_on.set()
        whole = message(sent(50_000))
        async with serving(*handlers.methods()) as (server, _), wire(server.port) as client:
            client.send(headers(1), frame(DATA, 0, 1, whole[:10_000]))
            client.send(*(begun(number, 16_000) for number in range(3, 30, 2)), frame(DATA, 0, 29, bytes(1000)))
            ended = await client.end(29)
            assert code(ended) is Status.RESOURCE_EXHAUSTED, "the newest goes first"
            for at in range(10_000, len(whole), 10_000):
                client.send(frame(DATA, 0, 1, whole[at : at + 10_000]))
            client.send(frame(DATA, END_STREAM, 1))
            assert code(await client.end(1)) is Status.OK
            await pong(client)
            assert 100_000 < server._calls.budget.bytes <= 200_000

    asyncio.run(go())


def test_f40_a_quiet_peer_makes_room_for_who_comes(limits):
    limits(connection=300_000, server=200_000)

    async def go():
        handlers = Handlers()
        handlers.go_on.set()
        async with serving(*handlers.methods()) as (server, channel):
            async with wire(server.port) as quiet, wire(server.port) as modest:
                modest.send(begun(1, 30_000))
                quiet.send(begun(1, 300_000), begun(3, 190_000), begun(5, 150_000))
                assert code(await quiet.end(1)) is Status.RESOURCE_EXHAUSTED, (
                    "the largest of the connection that has most"
                )
                for _ in range(20):
                    assert await unary(channel, "SendMessage", sent(100_000)) == b""
                assert code(await quiet.end(3)) is Status.RESOURCE_EXHAUSTED
                modest.send(frame(RST_STREAM, 0, 1, bytes(4)))
                await pong(modest)
            await eventually(lambda: nothing_is_left(server))

    asyncio.run(go())


def test_f40_when_handlers_hold_all_there_is_others_run_one_message_at_a_time(limits):
    limits(connection=MIB, server=MIB)

    async def go():
        handlers = Handlers()
        async with serving(*handlers.methods(), message_bytes_max=200_000) as (server, channel):
            async with wire(server.port) as first, wire(server.port) as second, wire(server.port) as odd:
                for client in (first, second):
                    client.send(*(packed(number, 150_000) for number in range(1, 40, 2)))
                await pong(first)
                await pong(second)
                full = handlers.started
                assert 7 <= full <= 10
                asked = [unary(channel, "SendMessage", sent(70_000)) for _ in range(3)]
                await eventually(lambda: handlers.started == full + 2)
                small = [unary(channel, "SendMessage") for _ in range(3)]
                parts = [message(sent(199_000))[at : at + 15_000] for at in range(0, 199_000, 15_000)]
                odd.send(headers(1), *(frame(DATA, 0, 1, part) for part in parts))
                odd.send(frame(DATA, END_STREAM, 1, bytes(15_000)))
                assert code(await odd.end(1)) is Status.UNIMPLEMENTED, "it is more than one message, and does not wait"
                assert handlers.started <= full + 5
                handlers.go_on.set()
                assert await asyncio.gather(*asked, *small) == [b""] * 6
            await eventually(lambda: nothing_is_left(server))

    asyncio.run(go())


def test_f40_what_all_requests_take_is_bounded_whatever_is_done(limits):
    limits(connection=MIB, server=MIB, small=1000)

    async def go():
        handlers = Handlers()
        async with serving(*handlers.methods(), message_bytes_max=300_000) as (server, _):
            async with contextlib.AsyncExitStack() as stack:
                many = [await stack.enter_async_context(wire(server.port)) for _ in range(12)]
                for client in many:
                    client.send(*(packed(number, 250_000) for number in range(1, 10, 2)))
                    client.send(begun(11, 100_000), begun(13, 100_000), call(15))
                for client in many:
                    await pong(client)
                    await pong(client)
                assert server._calls.budget.bytes < 2 * MIB + 300_000
                assert handlers.started >= 12, "each may ask something small"
            await eventually(lambda: nothing_is_left(server))

    asyncio.run(go())


def test_f40_a_request_of_which_nothing_more_comes_is_let_go(monkeypatch):
    monkeypatch.setattr("ister.transport.connection.STALL_CHECK_S", 0.1)

    async def go():
        handlers = Handlers()
        counted = {}
        async with serving(*handlers.methods(), rpcs=counted) as (server, _), wire(server.port) as quiet:
            reflect = block("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
            quiet.send(begun(1, 50_000), headers(3), headers(5, body=reflect), call(7))
            for number in (1, 3):
                ended = await quiet.end(number)
                assert code(ended) is Status.DEADLINE_EXCEEDED
                assert "came" in ended["grpc-message"]
            assert counted[SEND, "DEADLINE_EXCEEDED"] == 2
            await pong(quiet)
            [peer] = server._connections
            assert sorted(peer._connection.streams) == [5, 7], "an exchange and a handler may take their time"
            quiet.send(headers(9), frame(DATA, 0, 9, b"\0\0\0\0\x64"))
            for _ in range(10):
                await asyncio.sleep(0.04)
                quiet.send(frame(DATA, 0, 9, b"\xff"))
            quiet.send(frame(DATA, END_STREAM, 9, bytes(90)))
            assert code(await quiet.end(9)) is Status.INVALID_ARGUMENT, "slow, and heard to its end"

    asyncio.run(go())


def test_f40_a_request_that_cannot_come_because_we_hold_it_back_is_waited_for(monkeypatch, limits):
    limits(connection=200_000)
    monkeypatch.setattr("ister.transport.connection.STALL_CHECK_S", 0.02)

    async def go():
        handlers = Handlers()
        async with serving(*handlers.methods(), message_bytes_max=160_000) as (server, _), wire(server.port) as client:
            client.send(packed(1, 150_000), begun(3, 16_000, 100_000), packed(5, 150_000))
            await eventually(lambda: any(peer._connection.is_paused for peer in server._connections))
            await asyncio.sleep(0.2)
            assert any(3 in peer._connection.streams for peer in server._connections)
            handlers.go_on.set()
            assert code(await client.end(3)) is Status.DEADLINE_EXCEEDED

    asyncio.run(go())


def traced(run):
    """Return what is still there of what this run took."""
    tracemalloc.start()
    try:
        return asyncio.run(run)
    finally:
        tracemalloc.stop()


def test_a_request_is_gone_when_its_handler_lets_go_of_it():
    whole = message(sent(3 * MIB))

    async def go():
        handlers = Handlers()
        async with serving(*handlers.methods(handlers.drop)) as (server, _), wire(server.port) as client:
            client.send(headers(1))
            for at in range(0, len(whole), 16_384):
                client.send(frame(DATA, END_STREAM if at + 16_384 >= len(whole) else 0, 1, whole[at : at + 16_384]))
                await client.writer.drain()
            await eventually(lambda: handlers.started)
            held = tracemalloc.get_traced_memory()[0]
            assert server._calls.budget.bytes == len(whole), "it is counted until it is answered"
            handlers.go_on.set()
            assert code(await client.end(1)) is Status.OK
            await eventually(lambda: nothing_is_left(server))
            return held

    assert traced(go()) < MIB


def test_streams_keep_nothing_of_their_requests():
    async def go():
        handlers = Handlers()
        async with serving(*handlers.methods()) as (server, _), wire(server.port) as client:
            body = block(f"/{NAME}/ReceiveMessages")
            before = tracemalloc.get_traced_memory()[0]
            for number in range(1, 1000, 2):
                client.send(call(number, b"\xfa\x7f\xb8\x17" + bytes(3000), body))
                await client.writer.drain()
            await eventually(lambda: handlers.started == 500)
            await pong(client)
            assert server._calls.budget.bytes == 0
            return tracemalloc.get_traced_memory()[0] - before

    assert traced(go()) < 500 * 5000


def test_f40_many_small_parts_of_a_request_take_what_they_are_counted_as():
    async def go():
        handlers = Handlers()
        async with serving(*handlers.methods()) as (server, _), wire(server.port) as hostile:
            hostile.send(begun(1, 5))
            await pong(hostile)
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(40):
                hostile.send(frame(DATA, 0, 1, b"ab") * 1000)
                await pong(hostile)
            assert server._calls.budget.bytes == 80_005
            return tracemalloc.get_traced_memory()[0] - before

    assert traced(go()) < 500_000


def test_f40_a_handler_that_goes_on_without_its_client_is_counted_until_it_ends():
    async def go():
        handlers = Handlers()
        async with serving(*handlers.methods(finishes=True)) as (server, _), wire(server.port) as hostile:
            hostile.send(call(1, sent(10_000)))
            await eventually(lambda: handlers.started)
            hostile.send(frame(RST_STREAM, 0, 1, bytes(4)))
            await eventually(lambda: not any(peer._connection.streams for peer in server._connections))
            await pong(hostile)
            assert server._calls.budget.bytes > 10_000
            handlers.go_on.set()
            await eventually(lambda: nothing_is_left(server))

    asyncio.run(go())


def test_an_unread_exchange_counts_its_parts_and_not_only_their_bytes():
    async def go():
        shut = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000006040000000000000400000000")
        handlers = Handlers()
        async with serving(*handlers.methods()) as (server, _), wire(server.port, shut) as hostile:
            body = block("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
            hostile.send(headers(1, body=body), frame(DATA, 0, 1, message(b"\x3a\0") * 2000))
            await soon_blocked(server)
            hostile.send(frame(DATA, 0, 1, b"\0") * (calls.UNREAD_BYTES_MAX // 60))
            assert (await hostile.until(RST_STREAM, 1))[3] == Code.ENHANCE_YOUR_CALM.to_bytes(4)
            await eventually(lambda: nothing_is_left(server))

    async def soon_blocked(server):
        await eventually(
            lambda: any(s.unsent_bytes for p in server._connections for s in p._connection.streams.values())
        )

    asyncio.run(go())
