"""Connections on a real socket: who is let in, who is taken for gone, and who is only slow."""

import asyncio
import socket
from contextlib import AsyncExitStack

import pytest
from danube.proto.DanubeApi_pb2 import MessageResponse, ReceiveRequest, StreamMessage
from structlog.testing import CapturingLogger

from ister.transport import connection as peer
from ister.transport.http2.frames import (
    GOAWAY,
    PING,
    PREFACE,
    SETTINGS,
    WINDOW_MAX,
    WINDOW_START,
    Setting,
    window_update,
)
from ister.transport.http2.frames import settings as settings_frame
from ister.transport.service import ServerStream, Unary
from parts.binding import NAME, WAIT_S, failure, run, serving, unary
from parts.http2 import GREETING, block, call, code, eventually, frames_of, wire


async def echo(request):
    return MessageResponse(request_id=request.request_id)


async def pour(request):
    while True:
        yield bytes(100_000)


ECHO = Unary("SendMessage", echo, StreamMessage, MessageResponse)
POUR = ServerStream("ReceiveMessages", pour, ReceiveRequest, StreamMessage)


async def all_of(client):
    """Return everything that the server says until it ends the connection."""
    async with asyncio.timeout(WAIT_S):
        return await client.reader.read()


@pytest.mark.parametrize("first", [b"", PREFACE[:10], PREFACE])
def test_f40_who_does_not_say_what_he_speaks_is_not_waited_for(first, monkeypatch):
    monkeypatch.setattr(peer, "HANDSHAKE_TIMEOUT_S", 0.1)

    async def go():
        async with serving(ECHO) as (server, channel):
            async with wire(server.port, first) as silent, wire(server.port) as quiet:
                said = await all_of(silent)
                assert {kind for kind, *_ in frames_of(said)} <= ({SETTINGS, 8} if first == PREFACE else set())
                assert code(await quiet.answer(1)) is not None, "who has greeted may be quiet"
            assert await unary(channel, "SendMessage") == b""

    asyncio.run(go())


@pytest.mark.parametrize("first", [b"", PREFACE[:5]])
@run
async def test_a_peer_that_has_not_spoken_is_told_nothing_when_the_broker_stops(first):
    async with serving(ECHO) as (server, _), wire(server.port, first) as silent:
        await eventually(lambda: server._connections)
        stopping = asyncio.create_task(server.stop(0.1))
        assert await all_of(silent) == b""
        silent.writer.close()
        await stopping


@run
async def test_a_peer_that_has_not_spoken_is_not_asked_whether_it_lives():
    async with serving(ECHO, keepalive_s=0.05, keepalive_timeout_s=0.2) as (server, _):
        async with wire(server.port, PREFACE[:5]) as silent:
            assert await all_of(silent) == b""
        async with wire(server.port) as silent:
            said = [kind for kind, *_ in frames_of(await all_of(silent))]
            assert (said[0], PING in said, GOAWAY in said) == (SETTINGS, True, False)


def test_f40_connections_beyond_the_limit_are_refused_and_those_that_are_there_are_served(monkeypatch):
    logger = CapturingLogger()
    monkeypatch.setattr(peer, "log", logger)

    def told():
        return [one.kwargs["reason"] for one in logger.calls if one.args == ("connection_refused",)]

    async def go():
        async with serving(ECHO, connections_max=20) as (server, channel), AsyncExitStack() as stack:
            first = [await stack.enter_async_context(wire(server.port)) for _ in range(20)]
            await eventually(lambda: len(server._connections) == 20)
            for _ in range(5):
                async with wire(server.port) as late:
                    assert await all_of(late) == b"", "and is not reset"
                code_, _ = await failure(unary(channel, "SendMessage"))
                assert code_.name == "UNAVAILABLE"
            for number, client in enumerate(first):
                assert int((await client.answer(1))["grpc-status"]) == 0
                assert len(server._connections) == 20 - number // 5
                if number % 5 == 4:
                    client.writer.transport.abort()
                    await eventually(lambda wanted=19 - number // 5: len(server._connections) == wanted)
            assert told() == ["this port has 20 connections, which is all that it takes"]
            for _ in range(4):
                await stack.enter_async_context(wire(server.port))
            await eventually(lambda: len(server._connections) == 20)
            async with wire(server.port) as late:
                assert await all_of(late) == b""
            assert len(told()) == 2, "it was free again between"

    asyncio.run(go())


@run
async def test_f40_a_storm_of_connections_beyond_the_limit_keeps_no_descriptors():
    async with serving(ECHO, connections_max=1) as (server, _), wire(server.port) as first, AsyncExitStack() as stack:
        await eventually(lambda: server._connections)
        late = [await stack.enter_async_context(wire(server.port)) for _ in range(peer.REFUSED_MAX + 50)]
        for client in late[-50:]:
            await client.closed()
        assert int((await first.answer(1))["grpc-status"]) == 0


def slow_socket(port):
    connected = socket.socket()
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    connected.connect(("127.0.0.1", port))
    connected.setblocking(False)
    wide = settings_frame({Setting.INITIAL_WINDOW_SIZE: WINDOW_MAX}) + window_update(0, WINDOW_MAX - WINDOW_START)
    connected.send(PREFACE + wide + call(1, body=block(f"/{NAME}/ReceiveMessages")))
    return connected


@run
async def test_a_client_that_reads_slowly_is_not_taken_for_gone():
    async with serving(ECHO, POUR, keepalive_s=0.2, keepalive_timeout_s=0.2) as (server, _):
        loop = asyncio.get_running_loop()
        with slow_socket(server.port) as slow:
            began = loop.time()
            while loop.time() - began < 2:
                assert await loop.sock_recv(slow, 16_384), "it is cut off"
                await asyncio.sleep(0.02)
            assert len(server._connections) == 1
            [one] = server._connections
            assert sum(map(len, one._connection._out)) < 1000, "it was not asked in vain again and again"
            await eventually(lambda: not server._connections)  # now it reads nothing


@run
async def test_what_the_system_takes_for_a_dead_client_is_no_sign_of_life():
    async def drip(request):
        while True:
            yield bytes(10)
            await asyncio.sleep(0.01)

    dripping = ServerStream("ReceiveMessages", drip, ReceiveRequest, StreamMessage)
    consume = call(1, body=block(f"/{NAME}/ReceiveMessages"))
    async with (
        serving(dripping, keepalive_s=0.1, keepalive_timeout_s=0.1) as (server, _),
        wire(server.port, GREETING + consume) as dead,
    ):
        dead.writer.transport.pause_reading()
        await eventually(lambda: server._connections)
        await eventually(lambda: not server._connections)
