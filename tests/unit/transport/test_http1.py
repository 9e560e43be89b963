"""Probes and scrapes over real sockets: what is answered, and that nobody can hang it, fill it or break it."""

import asyncio
import gc
import json
import os
import socket
import struct
import urllib.request
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from ister.broker.metrics.health import Readiness, readiness_response
from ister.core.errors import CorruptLogError
from ister.core.names import TopicName
from ister.transport import http1 as http
from ister.transport.http1 import BadRequestError, HttpLimits, HttpServer, Response, parse_head
from parts.cloud import run, told, until
from parts.metric import FakeBroker, FakeSubscription, many_topics, serving, topic_with

GET = "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n"
BAD = {TopicName("default", "bad"): CorruptLogError("/secret/place/wal-1.log", 7, 3, "rot")}


@asynccontextmanager
async def served(broker=None, **limits):
    async with stopped(await serving(broker or FakeBroker(), **limits)) as server:
        yield server


@asynccontextmanager
async def answering(answers, **limits):
    server = HttpServer(answers, HttpLimits(**limits))
    await server.start("127.0.0.1", 0)
    async with stopped(server):
        yield server


@asynccontextmanager
async def stopped(server):
    """Stop a server at the end, and insist that no task of it ended with an error that nobody has seen."""
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    try:
        yield server
    finally:
        await server.stop()
    await asyncio.sleep(0)
    gc.collect()
    assert complaints == []


@asynccontextmanager
async def connected(server):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ask(server, request):
    """Send bytes, read until the other side closes, and return the status, the headers and the body."""
    async with connected(server) as (reader, writer):
        writer.write(request if isinstance(request, bytes) else request.encode())
        return understand(await reader.read())


async def cut(reader):
    """Tell whether the other side ends the connection without a word."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


def understand(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    line, *lines = head.decode().split("\r\n")
    return int(line.split()[1]), dict(text.split(": ", 1) for text in lines), body


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


# --- what is answered -------------------------------------------------------------------------------------------------


def test_a_broker_that_lives_is_healthy_whatever_else_is_wrong():
    async def story():
        async with served(FakeBroker(state=Readiness(missing=("recovery",), problems=BAD))) as server:
            status, headers, body = await ask(server, GET.format("/healthz"))
        assert (status, body) == (200, b"ok\n")
        assert headers["Content-Length"] == "3"
        assert headers["Connection"] == "close"
        assert headers["Cache-Control"] == "no-store"

    run(story())


@pytest.mark.parametrize(
    ("state", "status", "word"),
    [
        (Readiness(), 200, "ready"),
        (Readiness(topics=5), 200, "ready"),
        (Readiness(topics=5, problems=BAD), 200, "ready"),
        (Readiness(topics=0, problems=BAD), 503, "broken"),
        (Readiness(missing=("recovery: 3 of 7 topics", "port 6650")), 503, "starting"),
        (Readiness(missing=("port 6650",), topics=5, problems=BAD), 503, "starting"),
        (Readiness(draining=True, topics=5), 503, "draining"),
    ],
)
def test_a_broker_is_ready_once_it_serves_and_says_what_is_in_the_way(state, status, word):
    async def story():
        async with served(FakeBroker(state=state)) as server:
            answered, headers, body = await ask(server, GET.format("/readyz"))
        said = json.loads(body)
        assert (answered, said["status"]) == (status, word)
        assert headers["Content-Type"] == "application/json"
        assert said["missing"] == list(state.missing)
        assert (said["topics"], said["topics_with_problems"]) == (state.topics, len(state.problems))
        assert said["problems"] == ([{"topic": "/default/bad", "problem": "CorruptLogError"}] if state.problems else [])

    run(story())


def test_s20_a_problem_is_told_without_its_text_and_twenty_at_most():
    problems = {TopicName("default", f"t{n:02}"): BAD[TopicName("default", "bad")] for n in range(50)}
    body = b"".join(readiness_response(Readiness(topics=1, problems=problems)).body)
    said = json.loads(body)
    assert b"secret" not in body
    assert [problem["topic"] for problem in said["problems"]] == [f"/default/t{n:02}" for n in range(20)]
    assert said["topics_with_problems"] == 50


@pytest.mark.parametrize(
    ("accept", "read", "kind"),
    [
        ("", read_text, "text/plain; version=0.0.4; charset=utf-8"),
        (
            "Accept: application/openmetrics-text;version=1.0.0;q=0.5\r\naccept: text/plain;q=0.2\r\n",
            read_openmetrics,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        ),
    ],
)
def test_metrics_come_in_the_format_that_was_asked_for(accept, read, kind):
    async def story():
        async with served(FakeBroker([topic_with(FakeSubscription())])) as server:
            status, headers, body = await ask(server, f"GET /metrics HTTP/1.1\r\nHost: x\r\n{accept}\r\n")
        assert (status, headers["Content-Type"]) == (200, kind)
        assert int(headers["Content-Length"]) == len(body)
        lags = [f.samples[0].value for f in read(body.decode()) if f.name == "danube_subscription_lag_messages"]
        assert lags == [45]

    run(story())


def test_a_large_page_comes_whole():
    async def story():
        async with served(FakeBroker(many_topics(300, 50, 5))) as server:
            status, headers, body = await ask(server, GET.format("/metrics"))
        assert status == 200
        assert int(headers["Content-Length"]) == len(body) > 500_000
        assert body.endswith(b"ister_metrics_subscriptions_left_out 0\n")

    run(story())


def test_a_client_that_is_no_test_of_ours_understands_it():
    async def story():
        async with served() as server:
            url = f"http://127.0.0.1:{server.port}/healthz?verbose=1"
            opening = asyncio.get_running_loop().run_in_executor(None, lambda: urllib.request.urlopen(url).read())
            assert await opening == b"ok\n"

    run(story())


def test_head_says_what_get_would_without_the_body():
    async def story():
        async with served() as server:
            status, headers, body = await ask(server, "HEAD /healthz HTTP/1.1\r\n\r\n")
        assert (status, headers["Content-Length"], body) == (200, "3", b"")

    run(story())


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (GET.format("/healthz"), 200),
        (GET.format("/healthz?x=/metrics#y"), 200),
        (GET.format("http://localhost:9040/healthz"), 200),
        ("GET /healthz HTTP/1.0\r\n\r\n", 200),
        (GET.format("/"), 404),
        (GET.format("http://localhost"), 404),
        (GET.format("/healthz/"), 404),
        (GET.format("/%68ealthz"), 404),
        (GET.format("/../healthz"), 404),
        ("POST /healthz HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 405),
        ("get /healthz HTTP/1.1\r\n\r\n", 405),
        ("OPTIONS /readyz HTTP/1.1\r\n\r\n", 405),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        ("GET /healthz HTTP/3.1\r\n\r\n", 505),
        ("GET * HTTP/1.1\r\n\r\n", 400),
        ("GET healthz HTTP/1.1\r\n\r\n", 400),
        ("GET  /healthz HTTP/1.1\r\n\r\n", 400),
        ("GET /healthz\r\n\r\n", 400),
        ("\r\n\r\n", 400),
        ("GET /healthz HTTP/1.1\r\nno colon\r\n\r\n", 400),
        ("GET /healthz HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400),
        ("GET /healthz HTTP/1.1\r\nSpace : b\r\n\r\n", 400),
        ("GET /healthz HTTP/1.1\r\n: b\r\n\r\n", 400),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (f"GET /{'a' * 9000} HTTP/1.1\r\n\r\n", 431),
        ("GET /healthz HTTP/1.1\r\n" + "A: b\r\n" * 5000 + "\r\n", 431),
        (b"\xff" * 100_000, 431),
    ],
)
def test_every_request_has_its_status(request_, status):
    async def story():
        async with served() as server:
            assert (await ask(server, request_))[0] == status
            assert (await ask(server, GET.format("/healthz")))[0] == 200

    run(story())


def test_a_method_that_is_not_allowed_is_told_which_are():
    async def story():
        async with served() as server:
            _, headers, _ = await ask(server, "DELETE /metrics HTTP/1.1\r\n\r\n")
            _, _, body = await ask(server, GET.format("/nowhere"))
        assert headers["Allow"] == "GET, HEAD"
        assert body == b"not found; there are /healthz, /metrics, /readyz\n"

    run(story())


def test_a_refusal_arrives_although_its_client_is_still_sending():
    async def story():
        async with served() as server:
            for head in ("POST /metrics HTTP/1.1\r\n\r\n", "x" * 20_000):
                status, _, _ = await ask(server, head.encode() + b"y" * 500_000)
                assert status in {405, 431}

    run(story())


@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_request_may_come_in_pieces(size):
    async def story():
        async with served() as server, connected(server) as (reader, writer):
            request = GET.format("/healthz").encode()
            for at in range(0, len(request), size):
                writer.write(request[at : at + size])
                await writer.drain()
                await asyncio.sleep(0)
            assert understand(await reader.read())[0] == 200

    run(story())


def test_what_comes_behind_a_request_is_not_a_second_one():
    async def story():
        async with served() as server:
            status, _, body = await ask(server, GET.format("/healthz") * 3)
        assert (status, body) == (200, b"ok\n")

    run(story())


def test_an_answer_that_fails_is_500_without_a_word_why_and_is_logged():
    async def broken(_):
        raise ZeroDivisionError("secret")

    async def story():
        with told() as events:
            async with answering({"/x": broken}) as server:
                status, _, body = await ask(server, GET.format("/x"))
        assert (status, body) == (500, b"internal server error\n")
        assert [(event["event"], event["path"]) for event in events] == [("http_failed", "/x")]

    run(story())


# --- clients that are not nice ----------------------------------------------------------------------------------------


@given(data=st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_f40_any_head_is_understood_or_refused(data):
    with suppress(BadRequestError):
        assert parse_head(data + b"\r\n\r\n").path.startswith("/")


@given(
    parts=st.lists(
        st.sampled_from(
            ["GET", " ", "/metrics", "HTTP/1.1", "\r\n", "\r\n\r\n", ":", "Accept", "\x00", "é", "HEAD", "?"]
        ),
        max_size=20,
    )
)
@settings(max_examples=300, deadline=None)
def test_f40_pieces_of_requests_in_any_order_are_understood_or_refused(parts):
    with suppress(BadRequestError):
        assert parse_head("".join(parts).encode()).path.startswith("/")


def test_f40_hostile_bytes_on_the_socket_leave_it_working(count, tell):
    trials = count(150, 3000)

    async def story():
        async with served(head_s=0.05) as server:
            for trial in range(trials):
                data = os.urandom(trial * 37 % 20_000)
                async with connected(server) as (reader, writer):
                    writer.write(data + (b"\r\n\r\n" if trial % 2 else b""))
                    if trial % 3:
                        writer.write_eof()
                    try:
                        answer = await reader.read()
                    except ConnectionError:
                        continue
                    assert answer == b"" or understand(answer)[0] in {400, 408, 431}
            assert (await ask(server, GET.format("/healthz")))[0] == 200
            await until(lambda: not server._connections)

    run(story(), 120)
    tell("F40", f"{trials} connections of random bytes to the metrics port")


def test_a_request_that_does_not_come_is_given_up():
    async def story():
        async with served(head_s=0.05) as server:
            for sent in (b"", b"GET /healthz HTTP/1.1\r\n", b"GET /healthz HTTP/1.1\n\n"):
                assert (await ask(server, sent))[0] == 408

    run(story())


def test_whoever_is_silent_longest_gives_way_to_the_next():
    async def story():
        async with served(connections=5, head_s=60) as server:
            silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(5)]
            await until(lambda: len(server._connections) == 5)
            assert (await ask(server, GET.format("/healthz")))[0] == 200
            assert await cut(silent[0][0])
            silent[1][1].write(GET.format("/healthz").encode())
            assert understand(await silent[1][0].read())[0] == 200
            for _, writer in silent:
                writer.close()

    run(story())


def test_whoever_has_an_answer_and_does_not_go_gives_way_to_the_next(monkeypatch):
    monkeypatch.setattr(http, "LINGER_S", 60)

    async def story():
        async with served(connections=3) as server:
            answered = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
            for reader, writer in answered:
                writer.write(GET.format("/healthz").encode())
                assert understand(await reader.read())[0] == 200
            assert len(server._connections) == 3
            assert (await ask(server, GET.format("/healthz")))[0] == 200
            for _, writer in answered:
                writer.close()

    run(story())


def test_a_flood_of_silent_clients_does_not_keep_a_probe_out():
    async def story():
        async with served(connections=8, head_s=60) as server:
            silent = []
            for _ in range(200):
                silent.append((await asyncio.open_connection("127.0.0.1", server.port))[1])
                if len(silent) % 40 == 0:
                    assert (await ask(server, GET.format("/healthz")))[0] == 200
            assert len(server._connections) <= 8
            for writer in silent:
                writer.transport.abort()
            await until(lambda: not server._connections)

    run(story())


def test_when_everyone_is_being_answered_the_next_is_told_to_come_later():
    async def story():
        go_on = asyncio.Event()

        async def slow(_):
            await go_on.wait()
            return Response(HTTPStatus.OK, "text/plain", [b"late"])

        async with answering({"/slow": slow}, connections=3) as server:
            waiting = [asyncio.create_task(ask(server, GET.format("/slow"))) for _ in range(3)]
            await until(lambda: len(server._connections) == 3 and not server._idle)
            async with connected(server) as (reader, _):
                status, _, body = understand(await reader.read())
                assert (status, body) == (503, b"service unavailable\n")
            go_on.set()
            assert [(status, body) for status, _, body in await asyncio.gather(*waiting)] == [(200, b"late")] * 3

    run(story())


def test_f34_a_client_that_does_not_read_is_dropped():
    async def story():
        async def large(_):
            return Response(HTTPStatus.OK, "text/plain", [bytes(1_000_000)] * 20)

        async with answering({"/large": large}, answer_s=0.2) as server:
            lazy = socket.create_connection(("127.0.0.1", server.port))
            before = descriptors()
            lazy.sendall(GET.format("/large").encode())
            await until(lambda: server._connections)
            await until(lambda: not server._connections)
            await until(lambda: descriptors() == before)
            lazy.close()

    run(story())


def test_f34_a_client_that_leaves_the_last_bytes_unread_is_dropped_too(monkeypatch):
    monkeypatch.setattr(http, "LINGER_S", 0.05)

    async def story():
        async def some(request):
            return Response(HTTPStatus.OK, "text/plain", [bytes(int(request.headers["size"]))])

        async with answering({"/some": some}, answer_s=0.2) as server:
            # Small buffers, so that one of these sizes leaves a little that the kernel does not take.
            server._server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            before, clients = descriptors(), []
            for size in range(10_000, 400_000, 20_000):
                client = socket.socket()
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.connect(("127.0.0.1", server.port))
                client.sendall(f"GET /some HTTP/1.1\r\nSize: {size}\r\n\r\n".encode())
                clients.append(client)
            await until(lambda: len(server._connections) == len(clients))
            await until(lambda: not server._connections)
            await until(lambda: descriptors() == before + len(clients))
            for client in clients:
                client.close()

    run(story())


def test_an_answer_that_takes_too_long_is_given_up():
    async def story():
        async def never(_):
            await asyncio.Event().wait()

        async with answering({"/never": never}, answer_s=0.05) as server, connected(server) as (reader, writer):
            writer.write(GET.format("/never").encode())
            assert await cut(reader)

    run(story())


@pytest.mark.parametrize("sent", [b"", b"GET /met", GET.format("/metrics").encode()])
def test_f38_a_client_that_vanishes_leaves_nothing_behind(sent):
    async def story():
        async with served(FakeBroker(many_topics(300, 0, 0))) as server:
            before = descriptors()
            for _ in range(100):
                async with connected(server) as (_, writer):
                    client = writer.get_extra_info("socket")
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    writer.write(sent)
            assert (await ask(server, GET.format("/healthz")))[0] == 200
            await until(lambda: not server._connections)
            await until(lambda: descriptors() == before)

    run(story())


# --- the end ----------------------------------------------------------------------------------------------------------


def test_stopping_lets_an_answer_come_to_its_end_and_drops_whoever_asks_nothing():
    async def story():
        go_on = asyncio.Event()

        async def slow(_):
            await go_on.wait()
            return Response(HTTPStatus.OK, "text/plain", [b"late"])

        async with answering({"/slow": slow}) as server, connected(server) as (silent, _):
            answered = asyncio.create_task(ask(server, GET.format("/slow")))
            await until(lambda: len(server._connections) == 2 and len(server._idle) == 1)
            stopping = asyncio.create_task(server.stop())
            assert await cut(silent)
            go_on.set()
            assert (await answered)[0] == 200
            await stopping
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", server.port)

    run(story())


def test_stopping_does_not_wait_for_an_answer_for_ever(monkeypatch):
    monkeypatch.setattr(http, "LINGER_S", 0.05)

    async def story():
        async def never(_):
            await asyncio.Event().wait()

        async with answering({"/never": never}, answer_s=600) as server, connected(server) as (reader, writer):
            writer.write(GET.format("/never").encode())
            await until(lambda: server._connections and not server._idle)
            await server.stop()
            assert await cut(reader)

    run(story())


def test_a_port_that_is_taken_is_told():
    async def story():
        async with served() as server:
            with pytest.raises(OSError, match="address already in use"):
                await HttpServer({}).start("127.0.0.1", server.port)

    run(story())


def test_a_server_that_was_never_started_can_be_stopped():
    run(HttpServer({}).stop())
