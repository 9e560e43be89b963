"""A handler that never waits: a client sees no difference, and it is run without a task."""

import asyncio

import grpc
import pytest
from danube.proto.DanubeApi_pb2 import MessageResponse, StreamMessage
from structlog.testing import CapturingLogger

from ister.broker.cluster.read_only import for_readers
from ister.core.errors import NotFoundError
from ister.transport import call as calls
from ister.transport.service import INTERNAL_TEXT, Prompt, Service
from parts.binding import failure, run, serving, unary

Code = grpc.StatusCode
LIMIT = 10_000


def prompt(handler):
    return Prompt("SendMessage", handler, StreamMessage, MessageResponse)


def echo(request):
    return MessageResponse(request_id=request.request_id)


@run
async def test_each_answer_is_for_its_request_and_no_task_is_made():
    tasks = set()

    def handler(request):
        tasks.add(asyncio.current_task())
        return echo(request)

    rpcs = {}
    async with serving(prompt(handler), rpcs=rpcs) as (_, channel):
        asked = [
            unary(channel, "SendMessage", StreamMessage(request_id=number).SerializeToString()) for number in range(200)
        ]
        answers = [MessageResponse.FromString(answer).request_id for answer in await asyncio.gather(*asked)]
        assert answers == list(range(200))
        assert tasks == {None}
        assert rpcs["/danube.ProducerService/SendMessage", "OK"] == 200


@run
async def test_what_a_client_does_wrong_is_told_and_the_next_request_is_answered():
    def absent(request):
        raise NotFoundError("topic /default/x does not exist")

    async with serving(prompt(echo), message_bytes_max=LIMIT) as (_, channel):
        text = "these 2 bytes are not a danube.StreamMessage"
        assert await failure(unary(channel, "SendMessage", b"\xff\xff")) == (Code.INVALID_ARGUMENT, text)
        for size in (LIMIT + 1, 100 * LIMIT):
            assert (await failure(unary(channel, "SendMessage", bytes(size))))[0] is Code.INVALID_ARGUMENT
        assert await unary(channel, "SendMessage", b"") == b""
    async with serving(prompt(absent)) as (_, channel):
        assert await failure(unary(channel, "SendMessage")) == (Code.NOT_FOUND, "topic /default/x does not exist")


def surprise(request):
    raise ValueError("/secret/place")


@pytest.mark.parametrize("handler", [surprise, lambda request: None])
def test_a_bug_is_told_to_the_log_and_not_to_the_client(handler, monkeypatch):
    logger = CapturingLogger()
    monkeypatch.setattr(calls, "log", logger)

    async def go():
        async with serving(prompt(handler)) as (_, channel):
            assert await failure(unary(channel, "SendMessage")) == (Code.INTERNAL, INTERNAL_TEXT)
            assert await failure(unary(channel, "SendMessage")) == (Code.INTERNAL, INTERNAL_TEXT)

    asyncio.run(go())
    assert [call.args for call in logger.calls if call.method_name == "error"] == [("call_failed",)] * 2


def test_a_broker_that_only_reads_has_none_that_it_must_look_for_first():
    service = Service("danube.ProducerService", (prompt(echo),))
    with pytest.raises(AssertionError, match="waits"):
        for_readers(service, asyncio.sleep, asyncio.sleep)
