"""Bound methods: decode the request, run the handler, encode and send its response or stream.

Everything that depends on the method alone is done when it is bound, so that a call costs little more than its handler. No
reference to a request is held here once its handler has it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from ister.core.errors import InvalidRequestError
from ister.transport.http2 import headers
from ister.transport.http2.messages import take_messages
from ister.transport.service import BidirectionalStream, Prompt, ServerStream, Unary, wants_call

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, TypeAlias

    from google.protobuf.message import Message

    from ister.transport.call import Call, Calls
    from ister.transport.http2.stream import Stream
    from ister.transport.service import Method

    Answering: TypeAlias = Callable[[Call, bytes], Coroutine[Any, Any, None]]
    Replying: TypeAlias = Callable[[Call, bytes], None]

REQUEST_BYTES_MAX: Final = 64 * 1024
"""Size of a request without client data."""
STREAM_REQUEST_BYTES_MAX: Final = 4 * 1024
"""Size of the request of a server stream: it may live as long as the stream, and is not counted (request_budget.py)."""
HEADERS_AFTER_S: Final = 0.02
"""Delay of a stream's headers if it has nothing to send yet: some clients wait for them. Not sent at once, so that a stream
refused early gets a trailers-only response."""
YIELD_AFTER_MESSAGES: Final = 64
"""Consecutive messages of a stream before it yields to the event loop."""


@dataclass(frozen=True, slots=True)
class BoundMethod:
    """A bound method."""

    name: str
    request: str
    """The name of the request's message type."""
    limit: int
    """Maximum bytes of a message."""
    answer: Answering | None = None
    """Runs the handler in a task; `reply`, set instead for prompt methods, runs it at once."""
    reply: Replying | None = None
    buffers_request: bool = True
    """Whether the handler runs when the request is complete; if not, at once, with the call's `inbox`."""
    is_long_lived: bool = False
    """Whether it may run until shutdown, which then cancels it."""


def bind_method(calls: Calls, name: str, method: Method) -> BoundMethod:
    """Return the bound method."""
    most = calls.message_bytes_max
    limit = min(most, REQUEST_BYTES_MAX)
    request = method.request.DESCRIPTOR.full_name
    match method:
        case Unary():
            limit = most if method.large else limit
            return BoundMethod(name, request, limit, answer=_unary(calls, name, method, limit))
        case Prompt():
            return BoundMethod(name, request, limit, reply=_prompt(calls, name, method, limit))
        case ServerStream():
            limit = min(most, STREAM_REQUEST_BYTES_MAX)
            return BoundMethod(name, request, limit, answer=_stream(calls, method, limit), is_long_lived=True)
        case BidirectionalStream():
            answer = _bidirectional(calls, method, limit)
            return BoundMethod(name, request, limit, answer=answer, buffers_request=False, is_long_lived=True)


def too_large(name: str, size: int, limit: int) -> InvalidRequestError:
    """Return the error of an oversized message."""
    return InvalidRequestError(f"this {name} has {size} bytes; the broker takes at most {limit}")


def _unary(calls: Calls, name: str, method: Unary, limit: int) -> Answering:
    decode = _decoder(method.request, limit)
    with_call = wants_call(method.handler)
    handler: Any = method.handler
    if method.finishes:
        handler, with_call = _finisher(calls, name, handler, with_call=with_call), True
    rpcs, ok = calls.rpcs, (f"/{name}", "OK")
    rpcs.setdefault(ok, 0)

    async def answer(call: Call, data: bytes) -> None:
        try:
            handling = handler(decode(data), call) if with_call else handler(decode(data))
            data = b""
            response = await handling
            call.stream.answer(response.SerializeToString(), call.trailing)
            rpcs[ok] += 1
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # the root of a call
            data = b""  # not referenced by the traceback, which lives until the next garbage collection
            calls.fail(call, error)
        finally:
            calls.done(call)

    return answer


def _prompt(calls: Calls, name: str, method: Prompt, limit: int) -> Replying:
    decode = _decoder(method.request, limit)
    handler, rpcs, ok = method.handler, calls.rpcs, (f"/{name}", "OK")
    rpcs.setdefault(ok, 0)

    def reply(call: Call, data: bytes) -> None:
        try:
            response = handler(decode(data))
            call.stream.answer(response.SerializeToString())
            rpcs[ok] += 1
        except Exception as error:  # noqa: BLE001  # the root of a call
            calls.fail(call, error)
        finally:
            calls.done(call)

    return reply


def _finisher(
    calls: Calls, name: str, handler: Any, *, with_call: bool
) -> Callable[[Message, Call], Coroutine[Any, Any, Message]]:
    """Return a handler that runs to its end even if the call is cancelled."""

    async def finish(request: Message, call: Call) -> Message:
        task = asyncio.create_task(handler(request, call) if with_call else handler(request), name=name)
        del request
        calls.finishing(task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            calls.linger(call, task)
            raise

    return finish


def _stream(calls: Calls, method: ServerStream, limit: int) -> Answering:
    decode = _decoder(method.request, limit)
    with_call = wants_call(method.handler)
    handler: Any = method.handler

    async def send(call: Call, data: bytes) -> None:
        stream = call.stream
        items = handler(decode(data), call) if with_call else handler(decode(data))
        data = b""
        sent = 0
        try:
            async for item in items:
                sent += 1
                if not stream.write(item if type(item) is bytes else item.SerializeToString()):
                    await _drained(stream)
                elif sent % YIELD_AFTER_MESSAGES == 0:
                    await asyncio.sleep(0)
        finally:
            # Not left to the garbage collector: the next consumer of the subscription waits for it.
            if hasattr(items, "aclose"):
                await items.aclose()

    return _long_lived(calls, send)


def _bidirectional(calls: Calls, method: BidirectionalStream, limit: int) -> Answering:
    decode = _decoder(method.request, limit)

    async def send(call: Call, data: bytes) -> None:
        assert call.inbox is not None, "bidirectional streams have an inbox"
        buffer = bytearray(data)
        while (part := await call.inbox.get()) is not None:
            calls.was_read(call, part)
            buffer += part
            for message in take_messages(buffer, call.stream.request.encoding, limit):
                response = await method.handler(decode(message))
                if not call.stream.write(response.SerializeToString()):
                    await _drained(call.stream)

    return _long_lived(calls, send)


def _long_lived(calls: Calls, send: Answering) -> Answering:
    """Return the coroutine function of a long-lived call: early headers, status, counting."""

    async def stream(call: Call, data: bytes) -> None:
        opening = asyncio.get_running_loop().call_later(HEADERS_AFTER_S, call.stream.start)
        try:
            sending = send(call, data)
            data = b""
            await sending
            calls.count(call.method.name, "OK")
            call.stream.end(headers.end(0, "", call.trailing))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # the root of a call
            calls.fail(call, error)
        finally:
            opening.cancel()
            calls.done(call)

    return stream


async def _drained(stream: Stream) -> None:
    """Wait until the stream accepts more data."""
    if stream.closed:
        return
    taken = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not taken.done():
            taken.set_result(None)

    stream.on_drained(wake)
    try:
        await taken
    finally:
        stream.on_drained(None)


def _decoder(kind: type[Message], limit: int) -> Callable[[bytes], Message]:
    parse, name = kind.FromString, kind.DESCRIPTOR.full_name

    def decode(data: bytes) -> Message:
        if len(data) > limit:
            raise too_large(name, len(data), limit)
        try:
            return parse(data)
        except DecodeError:
            raise InvalidRequestError(f"these {len(data)} bytes are not a {name}") from None

    return decode
