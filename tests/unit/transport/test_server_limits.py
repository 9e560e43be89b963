"""A real grpc server as a whole: how it stops, whom it takes for gone, what it says of itself."""

import asyncio
import socket
from pathlib import Path

import grpc
import pytest
from danube.proto import DanubeApi_pb2
from danube.proto.DanubeApi_pb2 import MessageResponse, ReceiveRequest, StreamMessage
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from structlog.testing import CapturingLogger

from ister.broker.status import status_of
from ister.core.errors import InvalidConfigError
from ister.rpc import danube_admin_pb2
from ister.transport import call as calls
from ister.transport import server as binding
from ister.transport.server import AddressTakenError, refuse_taken, serve
from ister.transport.service import ServerStream, Service, Unary
from parts.binding import LIMITS, NAME, WAIT_S, failure, run, serving, soon, stream, unary
from parts.http2 import GREETING, block, call, eventually, wire

Code = grpc.StatusCode
Status = health_pb2.HealthCheckResponse
STOPPED = (Code.UNAVAILABLE, "the broker is stopping; look the topic up again and retry")


async def echo(request):
    return MessageResponse(request_id=request.request_id)


ECHO = Unary("SendMessage", echo, StreamMessage, MessageResponse)


def endless(ended):
    async def handler(request):
        try:
            yield StreamMessage(request_id=1)
            await asyncio.Event().wait()
        finally:
            ended.set()

    return ServerStream("ReceiveMessages", handler, ReceiveRequest, StreamMessage)


def held(started, go_on, **options):
    async def handler(request):
        started.set()
        await go_on.wait()
        return MessageResponse(request_id=9)

    return Unary("SendMessage", handler, StreamMessage, MessageResponse, **options)


@run
async def test_stopping_ends_streams_at_once_and_lets_calls_finish():
    started, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with serving(endless(ended), held(started, go_on)) as (server, channel):
        receiving = stream(channel, "ReceiveMessages")
        await receiving.read()
        sending = unary(channel, "SendMessage")
        await soon(started)
        stopping = asyncio.create_task(server.stop(WAIT_S))
        assert await failure(receiving) == STOPPED
        assert ended.is_set()
        assert not stopping.done()
        go_on.set()
        assert MessageResponse.FromString(await sending).request_id == 9
        await stopping
        assert (await failure(unary(channel, "SendMessage")))[0] is Code.UNAVAILABLE


@run
async def test_a_call_that_outlasts_the_grace_is_told_to_come_again():
    started = asyncio.Event()
    async with serving(held(started, asyncio.Event())) as (server, channel):
        sending = unary(channel, "SendMessage")
        await soon(started)
        await server.stop(0.05)
        assert (await failure(sending))[0] is Code.UNAVAILABLE


@run
async def test_stopping_waits_for_a_handler_that_finishes_without_its_client():
    started, go_on = asyncio.Event(), asyncio.Event()
    async with serving(held(started, go_on, finishes=True)) as (server, channel):
        sending = unary(channel, "SendMessage")
        await soon(started)
        sending.cancel()
        stopping = asyncio.create_task(server.stop(WAIT_S))
        done, _ = await asyncio.wait([stopping], timeout=0.1)
        assert not done
        go_on.set()
        await stopping


def test_a_handler_that_finishes_too_late_is_cut_short_and_that_is_said(monkeypatch):
    logger = CapturingLogger()
    monkeypatch.setattr(calls, "log", logger)

    async def go():
        started = asyncio.Event()
        async with serving(held(started, asyncio.Event(), finishes=True)) as (server, channel):
            sending = unary(channel, "SendMessage")
            await soon(started)
            await server.stop(0.05)
            assert (await failure(sending))[0] is Code.UNAVAILABLE

    asyncio.run(go())
    assert [call.kwargs for call in logger.calls if call.args == ("call_cut_short",)] == [
        {"call": f"{NAME}/SendMessage"}
    ]


def test_what_is_cut_short_may_tidy_up_but_not_for_ever(monkeypatch):
    monkeypatch.setattr(calls, "CUT_S", 0.2)

    async def go():
        started, go_on, tidied = asyncio.Event(), asyncio.Event(), []

        async def handler(request):
            number = request.request_id
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                if number:
                    await go_on.wait()
                await asyncio.sleep(0.05)
                tidied.append(number)

        finishing = Unary("SendMessage", handler, StreamMessage, MessageResponse, finishes=True)
        async with serving(finishing) as (server, channel):
            sending = [unary(channel, "SendMessage", data) for data in (b"", b"\x08\x07")]
            await soon(started)
            async with asyncio.timeout(WAIT_S / 2):
                await server.stop(0.05)
            assert tidied == [0], "one is waited for, the other takes too long"
            go_on.set()
            for one in sending:
                assert (await failure(one))[0] is Code.UNAVAILABLE
            while len(tidied) < 2:  # noqa: ASYNC110  # what it looks at has no event
                await asyncio.sleep(0)

    asyncio.run(go())


@pytest.mark.parametrize("grace_s", [0, 5])
@run
async def test_a_stream_that_is_opened_as_the_broker_stops_costs_no_grace(grace_s):
    ended = asyncio.Event()
    async with serving(endless(ended)) as (server, _), wire(server.port, b"") as client:
        await eventually(lambda: server._connections)
        [peer] = server._connections
        stopping = asyncio.create_task(server.stop(grace_s))
        peer.data_received(GREETING + call(1, body=block(f"/{NAME}/ReceiveMessages")))  # read in the same turn
        began = asyncio.get_running_loop().time()
        told = await client.end(1)
        await stopping
        assert asyncio.get_running_loop().time() - began < 2
        assert told["grpc-status"] == str(Code.UNAVAILABLE.value[0])
        assert not server._calls.running


@run
async def test_a_taken_port_is_refused_by_name():
    async with serving(ECHO) as (server, channel):
        with pytest.raises(AddressTakenError, match=f"127.0.0.1:{server.port} is taken") as taken:
            await serve(
                [Service(NAME, (ECHO,))], host="127.0.0.1", port=server.port, describe_error=status_of, **LIMITS
            )
        assert taken.value.address == f"127.0.0.1:{server.port}"
        assert await unary(channel, "SendMessage") == b""


def test_a_port_that_is_taken_after_we_looked_is_refused_all_the_same(monkeypatch):
    monkeypatch.setattr(binding, "refuse_taken", lambda host, port: f"{host}:{port}")

    async def go():
        async with serving(ECHO) as (server, _):
            with pytest.raises(AddressTakenError):
                await serve(
                    [Service(NAME, (ECHO,))], host="127.0.0.1", port=server.port, describe_error=status_of, **LIMITS
                )

    asyncio.run(go())


def test_a_port_with_old_connections_is_free():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            listening.accept()[0].close()  # who closes first keeps the port for a minute
            client.recv(1)
    assert refuse_taken("127.0.0.1", port) == f"127.0.0.1:{port}"


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_an_address_of_the_sixth_version_is_written_in_brackets():
    assert refuse_taken("::1", 0) == "[::1]:0"


@run
async def test_the_port_of_a_server_that_stopped_can_be_taken():
    async with serving(ECHO) as (server, channel):
        await unary(channel, "SendMessage")
        await server.stop(0)
        again = await serve(
            [Service(NAME, (ECHO,))], host="127.0.0.1", port=server.port, describe_error=status_of, **LIMITS
        )
        assert again.port == server.port
        await again.stop(0)


@pytest.mark.parametrize(
    ("host", "says"), [("192.0.2.1", "nobody can listen on"), ("no such host", "is no address of")]
)
@run
async def test_an_address_that_is_not_ours_is_refused_with_its_reason(host, says):
    with pytest.raises(InvalidConfigError, match=says):
        await serve([], host=host, port=6650, describe_error=status_of, **LIMITS)


class Wire:
    """A wire between a client and a server that can go dead without either of them being told."""

    def __init__(self, port):
        self._port = port
        self._live = asyncio.Event()
        self._live.set()

    async def __aenter__(self):
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._listening = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.port = self._listening.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._listening.close()
        for task in list(self._tasks._tasks):
            task.cancel()
        await self._tasks.__aexit__(None, None, None)

    def die(self):
        self._live.clear()

    async def _join(self, reader, writer):
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._tasks.create_task(self._carry(reader, far_writer))
        self._tasks.create_task(self._carry(far_reader, writer))

    async def _carry(self, reader, writer):
        try:
            while data := await reader.read(65536):
                await self._live.wait()
                writer.write(data)
        finally:
            writer.close()


@run
async def test_f38_a_peer_that_fell_silent_is_taken_for_gone():
    ended = asyncio.Event()
    async with (
        serving(endless(ended), keepalive_s=0.2, keepalive_timeout_s=0.2) as (server, _),
        Wire(server.port) as wire,
        grpc.aio.insecure_channel(f"127.0.0.1:{wire.port}") as channel,
    ):
        receiving = channel.unary_stream(f"/{NAME}/ReceiveMessages")(b"")  # without a deadline, which would end it too
        await receiving.read()
        done, _ = await asyncio.wait([asyncio.create_task(ended.wait())], timeout=1.0)
        assert not done, "a quiet peer that answers is not gone"
        wire.die()
        await soon(ended)


PING, PONG, GOAWAY = 6, (6, 1), 7


async def pings_until_cut_off(port, pings):
    """Ping a server without having a call, back to back; return how many pongs came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    pongs = 0
    async with asyncio.timeout(WAIT_S):
        while pongs < pings:
            writer.write(bytes([0, 0, 8, PING, 0, 0, 0, 0, 0]) + bytes(8))
            kind = None
            while kind != PONG:
                head = await reader.readexactly(9)
                await reader.readexactly(int.from_bytes(head[:3]))
                kind = (head[3], head[4] & 1)
                if kind[0] == GOAWAY:
                    writer.close()
                    return pongs
            pongs += 1
    writer.close()
    return pongs


@pytest.mark.parametrize(("interval_ms", "cut_off"), [(0, False), (binding.PING_INTERVAL_MS_MIN, True)])
def test_a_client_without_calls_may_ping_as_often_as_we_say(monkeypatch, interval_ms, cut_off):
    monkeypatch.setattr(binding, "PING_INTERVAL_MS_MIN", interval_ms)

    async def go():
        async with serving(ECHO) as (server, _):
            assert (await pings_until_cut_off(server.port, 200) < 200) is cut_off

    asyncio.run(go())


async def health(channel, service):
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    answer = await check(health_pb2.HealthCheckRequest(service=service).SerializeToString(), timeout=WAIT_S)
    return Status.FromString(answer).status


@run
async def test_health_is_told_as_a_whole_and_by_service_until_the_broker_drains():
    async with serving(ECHO) as (server, channel):
        assert [await health(channel, service) for service in ("", NAME)] == [Status.SERVING] * 2
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await health(channel, "absent.Service")
        assert unknown.value.code() is Code.NOT_FOUND
        listed = await channel.unary_unary("/grpc.health.v1.Health/List")(b"", timeout=WAIT_S)
        statuses = health_pb2.HealthListResponse.FromString(listed).statuses
        assert {name: one.status for name, one in statuses.items()} == {"": Status.SERVING, NAME: Status.SERVING}

        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
        watching = watch(b"", timeout=WAIT_S)
        absent = watch(health_pb2.HealthCheckRequest(service="absent.Service").SerializeToString(), timeout=WAIT_S)
        assert Status.FromString(await watching.read()).status == Status.SERVING
        assert Status.FromString(await absent.read()).status == Status.SERVICE_UNKNOWN
        server.drain()
        assert Status.FromString(await watching.read()).status == Status.NOT_SERVING
        assert [await health(channel, service) for service in ("", NAME)] == [Status.NOT_SERVING] * 2
        assert await unary(channel, "SendMessage") == b"", "it still serves"
        await server.stop(WAIT_S)
        assert await failure(watching) == STOPPED


@run
async def test_reflection_shows_every_service_and_its_messages():
    admin = danube_admin_pb2.DESCRIPTOR.services_by_name["TopicAdmin"]
    async with serving(ECHO, name=admin.full_name) as (_, channel):
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=admin.full_name),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="danube.StreamMessage"),
        ]
        call = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")(
            (one.SerializeToString() for one in asked), timeout=WAIT_S
        )
        listed, ours, theirs = [reflection_pb2.ServerReflectionResponse.FromString(one) async for one in call]
        names = {service.name for service in listed.list_services_response.service}
        assert {admin.full_name, "grpc.health.v1.Health"} <= names
        for answer, file in ((ours, danube_admin_pb2.DESCRIPTOR), (theirs, DanubeApi_pb2.DESCRIPTOR)):
            [described] = answer.file_descriptor_response.file_descriptor_proto
            assert FileDescriptorProto.FromString(described).name == file.name
