"""A real server and a real client on loopback, for tests of the binding."""

import asyncio
from contextlib import asynccontextmanager

import grpc

from ister.broker.status import status_of
from ister.transport.server import serve
from ister.transport.service import Service

NAME = "danube.ProducerService"
WAIT_S = 10
LIMITS = {"message_bytes_max": 4 * 1024 * 1024, "keepalive_s": 20.0, "keepalive_timeout_s": 10.0}


@asynccontextmanager
async def serving(*methods, name=NAME, **options):
    options = LIMITS | options
    server = await serve([Service(name, methods)], host="127.0.0.1", port=0, describe_error=status_of, **options)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            yield server, channel
    finally:
        await server.stop(0)


def unary(channel, method, data=b"", **options):
    return channel.unary_unary(f"/{NAME}/{method}")(data, timeout=WAIT_S, **options)


def stream(channel, method, data=b""):
    return channel.unary_stream(f"/{NAME}/{method}")(data, timeout=WAIT_S)


async def failure(call):
    """Return the code and the text of a call that fails."""
    try:
        if isinstance(call, grpc.aio.UnaryUnaryCall):
            await call
        else:
            while await call.read() is not grpc.aio.EOF:
                pass
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details()
    raise AssertionError("it did not fail")


async def soon(event):
    """Wait for what must happen, but not for ever."""
    async with asyncio.timeout(WAIT_S):
        await event.wait()


def run(test):
    """Run a test that is a coroutine function."""

    def in_loop(*arguments, **named):
        asyncio.run(test(*arguments, **named))

    in_loop.__name__, in_loop.__wrapped__ = test.__name__, test
    return in_loop
