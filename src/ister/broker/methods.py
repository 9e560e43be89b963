"""Make methods of handlers: a message in, the handler's message or stream out.

What a method needs is decided when it is bound, so that a call costs little more than its handler. Bytes that are no message
are the client's fault and are told so here. Nothing here keeps a request: once its handler has it, that alone decides.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from ister.broker.http2 import headers
from ister.broker.http2.messages import take_messages
from ister.broker.service import Exchange, Prompt, ServerStream, Unary, wants_call
from ister.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, TypeAlias

    from google.protobuf.message import Message

    from ister.broker.calls import Call, Calls
    from ister.broker.http2.stream import Stream
    from ister.broker.service import Method as Described

    Answering: TypeAlias = Callable[[Call, bytes], Coroutine[Any, Any, None]]
    Replying: TypeAlias = Callable[[Call, bytes], None]

REQUEST_BYTES_MAX: Final = 64 * 1024
"""What a request may have that carries no data of a client's."""
STREAM_REQUEST_BYTES_MAX: Final = 4 * 1024
"""What a request may have whose answer goes on: it may be kept for as long, and is not counted (room.py)."""
HEADERS_AFTER_S: Final = 0.02
"""When a stream that has nothing to send yet sends its headers: some clients wait for them. Not at once, so that a stream
that is refused is refused as a whole."""
TURN_MESSAGES: Final = 64
"""After how many messages in a row a stream lets others have their turn."""


class Method:
    """A method that is bound: its name, and what runs it."""

    __slots__ = ("answer", "gathers", "lasts", "limit", "name", "reply", "takes")

    def __init__(
        self,
        name: str,
        takes: type[Message],
        limit: int,
        answer: Answering | None = None,
        reply: Replying | None = None,
        *,
        gathers: bool = True,
    ) -> None:
        self.name = name
        self.takes = takes.DESCRIPTOR.full_name
        self.limit = limit
        """How many bytes a message may have."""
        self.answer = answer
        """What runs it in a task of its own; or else `reply`, which runs it at once."""
        self.reply = reply
        self.gathers = gathers
        """Whether it is run when the request is complete; else at once, and it takes from `inbox` what comes."""
        self.lasts = False
        """Whether it may go on for ever, and is ended when the broker stops."""


def bound(calls: Calls, name: str, method: Described) -> Method:
    """Return what serves a method."""
    most = calls.message_bytes_max
    match method:
        case Unary():
            limit = most if method.large else min(most, REQUEST_BYTES_MAX)
            return Method(name, method.request, limit, _unary(calls, name, method, limit))
        case Prompt():
            limit = min(most, REQUEST_BYTES_MAX)
            return Method(name, method.request, limit, reply=_prompt(calls, name, method, limit))
        case ServerStream():
            limit = min(most, STREAM_REQUEST_BYTES_MAX)
            made = Method(name, method.request, limit, _stream(calls, method, limit))
        case Exchange():
            limit = min(most, REQUEST_BYTES_MAX)
            made = Method(name, method.request, limit, _exchange(calls, method, limit), gathers=False)
    made.lasts = True
    return made


def too_large(name: str, size: int, limit: int) -> InvalidRequestError:
    """Return the error of a message that is not taken."""
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
            data = b""  # not kept by the traceback of the answer, which lives until the next collection
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
    """Let a handler run to its end when its client goes away."""

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
        turn = 0
        try:
            async for item in items:
                turn += 1
                if not stream.write(item if type(item) is bytes else item.SerializeToString()):
                    await _drained(stream)
                elif turn % TURN_MESSAGES == 0:
                    await asyncio.sleep(0)
        finally:
            # Not left to the collector: whoever waits behind this consumer must not wait for that.
            if hasattr(items, "aclose"):
                await items.aclose()

    return _going_on(calls, send)


def _exchange(calls: Calls, method: Exchange, limit: int) -> Answering:
    decode = _decoder(method.request, limit)

    async def send(call: Call, data: bytes) -> None:
        assert call.inbox is not None, "it is run with one"
        buffer = bytearray(data)
        while (part := await call.inbox.get()) is not None:
            calls.was_read(call, part)
            buffer += part
            for asked in take_messages(buffer, call.stream.request.encoding, limit):
                response = await method.handler(decode(asked))
                if not call.stream.write(response.SerializeToString()):
                    await _drained(call.stream)

    return _going_on(calls, send)


def _going_on(calls: Calls, send: Answering) -> Answering:
    """Run what may go on for long."""

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
    """Wait until the client has taken what was written."""
    if stream.closed:
        return
    taken = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not taken.done():
            taken.set_result(None)

    stream.drained = wake
    try:
        await taken
    finally:
        stream.drained = None


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
