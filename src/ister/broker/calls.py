"""Run handlers for calls: a message in, the handler's message or stream out, errors as statuses.

What a method needs is decided when it is bound, so that a call costs little more than its handler. Bytes that are no message
are the client's fault and are told so here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog
from google.protobuf.message import DecodeError
from grpc import StatusCode

from ister.broker.http2 import headers
from ister.broker.http2.frames import Code
from ister.broker.http2.messages import PREFIX_BYTES, MessageError, only_message, take_messages
from ister.broker.service import Exchange, Prompt, ServerStream, Unary, wants_call
from ister.broker.status import INTERNAL_TEXT, status_of
from ister.core.errors import InvalidRequestError, IsterError, LimitError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, TypeAlias

    from google.protobuf.message import Message

    from ister.broker.http2.connection import Stream
    from ister.broker.service import Method as Described

    Answering: TypeAlias = Callable[["Call", bytes], Coroutine[Any, Any, None]]
    Replying: TypeAlias = Callable[["Call", bytes], None]

HELD_BYTES_MAX: Final = 256 * 1024 * 1024
"""What all requests together may take that are not complete."""
HEADERS_AFTER_S: Final = 0.02
"""When a stream that has nothing to send yet sends its headers: some clients wait for them. Not at once, so that a stream
that is refused is refused as a whole."""
TURN_MESSAGES: Final = 64
"""After how many messages in a row a stream lets others have their turn."""
STOPPING: Final = "the broker is stopping; look the topic up again and retry"

log = structlog.get_logger()


class Call:
    """One call that is under way: what its handler may know of it, and what it takes to end it."""

    __slots__ = ("expired", "inbox", "method", "parts", "peer", "size", "stream", "task", "timer", "trailing")

    def __init__(self, stream: Stream, method: Method, peer: str) -> None:
        self.stream = stream
        self.method = method
        self.peer = peer
        self.parts: list[bytes] = []
        self.size = 0
        self.inbox: asyncio.Queue[bytes | None] | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.expired = False
        self.trailing: tuple[tuple[str, str], ...] = ()

    def header(self, key: str) -> str | None:
        """Return one value of the request's metadata."""
        return self.stream.request.header(key)

    def trail(self, key: str, value: str) -> None:
        """Send this behind the answer."""
        self.trailing = (*self.trailing, (key, value))

    @property
    def cancelled(self) -> bool:
        """Whether the client has gone."""
        return self.stream.closed

    def end(self, code: StatusCode, text: str) -> None:
        """Answer with a status."""
        self.stream.end(headers.end(code.value[0], text, self.trailing))


class Method:
    """A method that is bound: its name, and what runs it."""

    __slots__ = ("answer", "gathers", "name", "reply", "takes")

    def __init__(
        self,
        name: str,
        takes: type[Message],
        answer: Answering | None,
        reply: Replying | None = None,
        *,
        gathers: bool = True,
    ) -> None:
        self.name = name
        self.takes = takes.DESCRIPTOR.full_name
        self.answer = answer
        """What runs it in a task of its own; or else `reply`, which runs it at once."""
        self.reply = reply
        self.gathers = gathers
        """Whether it is run when the request is complete; else at once, and it takes from `inbox` what comes."""


class Calls:
    """Makes methods of handlers, and knows which calls are under way."""

    def __init__(self, message_bytes_max: int, rpcs: dict[tuple[str, str], int]) -> None:
        self.methods: dict[str, Method] = {}
        self.running: set[asyncio.Task[None]] = set()
        self.stopping = False
        self._limit = message_bytes_max
        self._held = 0
        self._rpcs = rpcs
        self._streams: set[asyncio.Task[None]] = set()
        self._finishing: set[asyncio.Task[Message]] = set()

    def bind(self, name: str, method: Described) -> None:
        """Serve a method under its full name."""
        match method:
            case Unary():
                bound = Method(name, method.request, self._unary(name, method))
            case Prompt():
                bound = Method(name, method.request, None, self._prompt(name, method))
            case ServerStream():
                bound = Method(name, method.request, self._stream(name, method))
            case Exchange():
                bound = Method(name, method.request, self._exchange(name, method), gathers=False)
        self.methods[f"/{name}"] = bound

    # --- requests as they come ----------------------------------------------------------------------------------------

    def received(self, call: Call) -> None:
        """Take what came of a request, and run it when it is complete."""
        stream = call.stream
        if not call.method.gathers:
            self._feed(call)
            return
        if stream.complete and not call.parts:
            self._start(call, stream.body)
            return
        size = len(stream.body)
        if size:
            call.parts.append(stream.body)
            call.size += size
            self._held += size
            stream.body = b""
        if stream.complete:
            body = b"".join(call.parts)
            self._let_go(call)
            self._start(call, body)
        elif self._held > HELD_BYTES_MAX:
            error = LimitError("the broker has too many requests that are not complete; try again")
            self._refuse(call, *status_of(error))
        else:
            self._check_size(call)

    def _check_size(self, call: Call) -> None:
        """Refuse what is too large as soon as that is known: a client that has to send it all would send it again."""
        if call.size < PREFIX_BYTES:
            return
        if len(call.parts[0]) < PREFIX_BYTES:
            call.parts = [b"".join(call.parts)]
        announced = int.from_bytes(call.parts[0][1:PREFIX_BYTES])
        size = max(announced, call.size - PREFIX_BYTES)
        if size > self._limit:
            self._refuse(call, *status_of(_too_large(call.method.takes, size, self._limit)))

    def _refuse(self, call: Call, code: StatusCode, text: str) -> None:
        """End a call that was never run."""
        self._done(call)
        self.count(call.method.name, code.name)
        call.end(code, text)

    def _feed(self, call: Call) -> None:
        if call.inbox is None:
            call.inbox = asyncio.Queue()
            self._start(call, b"")
        if call.task is None:
            return  # it was refused
        call.inbox.put_nowait(call.stream.body)
        call.size += len(call.stream.body)
        self._held += len(call.stream.body)
        call.stream.body = b""
        if call.size > self._limit + PREFIX_BYTES or self._held > HELD_BYTES_MAX:
            call.stream.reset(Code.ENHANCE_YOUR_CALM)  # it asks on and on, and does not read the answers
            self.abandon(call)
        if call.stream.complete:
            call.inbox.put_nowait(None)

    def expire(self, call: Call) -> None:
        """End a call because its client does not wait any longer."""
        call.expired = True
        if call.task is not None:
            self._cancel(call, call.task)
        else:
            self._refuse(call, StatusCode.DEADLINE_EXCEEDED, "the request did not come in time")

    def abandon(self, call: Call) -> None:
        """End a call whose client has gone."""
        self._let_go(call)
        if call.timer is not None:
            call.timer.cancel()
        if call.task is not None:
            self._cancel(call, call.task)

    def _let_go(self, call: Call) -> None:
        """Forget what came of a request."""
        self._held -= call.size
        call.parts, call.size = [], 0

    def _cancel(self, call: Call, task: asyncio.Task[None]) -> None:
        def after(_: object) -> None:
            if call.task is task:  # it had not even begun, so that nothing of it has run
                self._fail(call.method.name, call, asyncio.CancelledError())
                self._done(call)

        task.add_done_callback(after)
        task.cancel()

    def _start(self, call: Call, body: bytes) -> None:
        if self.stopping:
            self._refuse(call, StatusCode.UNAVAILABLE, STOPPING)
            return
        method = call.method
        if method.reply is not None:
            method.reply(call, body)
            return
        assert method.answer is not None, "it has the one or the other"
        task = asyncio.get_running_loop().create_task(method.answer(call, body))
        call.task = task
        self.running.add(task)

    def _done(self, call: Call) -> None:
        task, call.task = call.task, None
        if task is not None:
            self.running.discard(task)
            self._streams.discard(task)
        if call.timer is not None:
            call.timer.cancel()
        self._let_go(call)

    # --- stopping -----------------------------------------------------------------------------------------------------

    def end_streams(self) -> None:
        """End every call that would go on for ever, and say why."""
        self.stopping = True
        for task in self._streams:
            task.cancel()

    async def end_others(self, grace_s: float) -> None:
        """Wait for the calls that are under way; what takes longer is ended, and told to come again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        while self.running and loop.time() < deadline:
            await asyncio.wait(self.running, timeout=deadline - loop.time())
        late = list(self.running)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def finish(self, timeout_s: float) -> None:
        """Wait for the calls that go on without their clients; what takes longer is cancelled, and said."""
        if self._finishing:
            _, late = await asyncio.wait(self._finishing, timeout=timeout_s)
            for task in late:
                log.warning("call_cut_short", call=task.get_name())
                task.cancel()

    # --- methods ------------------------------------------------------------------------------------------------------

    def _unary(self, name: str, method: Unary) -> Answering:
        decode = _decoder(method.request, self._limit)
        with_call = wants_call(method.handler)
        handler: Any = self._finisher(name, method.handler) if method.finishes else method.handler
        rpcs, ok, limit = self._rpcs, (f"/{name}", "OK"), self._limit
        rpcs.setdefault(ok, 0)

        async def answer(call: Call, body: bytes) -> None:
            stream = call.stream
            try:
                request = decode(only_message(body, stream.request.encoding, limit))
                response = await (handler(request, call) if with_call else handler(request))
                stream.answer(response.SerializeToString(), call.trailing)
                rpcs[ok] += 1
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # the root of a call
                body = b""  # not kept by the traceback of the answer, which lives until the next collection
                self._fail(name, call, error)
            finally:
                self._done(call)

        return answer

    def _prompt(self, name: str, method: Prompt) -> Replying:
        decode = _decoder(method.request, self._limit)
        handler, rpcs, ok, limit = method.handler, self._rpcs, (f"/{name}", "OK"), self._limit
        rpcs.setdefault(ok, 0)

        def reply(call: Call, body: bytes) -> None:
            stream = call.stream
            try:
                response = handler(decode(only_message(body, stream.request.encoding, limit)))
                stream.answer(response.SerializeToString())
                rpcs[ok] += 1
            except Exception as error:  # noqa: BLE001  # the root of a call
                self._fail(name, call, error)
            finally:
                self._done(call)

        return reply

    def _finisher(self, name: str, handler: Any) -> Callable[..., Coroutine[Any, Any, Message]]:
        """Let a handler run to its end when its client goes away."""

        async def finish(*arguments: object) -> Message:
            task = asyncio.create_task(handler(*arguments), name=name)
            self._finishing.add(task)
            task.add_done_callback(self._finishing.discard)
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                task.add_done_callback(_report_abandoned)
                raise

        return finish

    def _stream(self, name: str, method: ServerStream) -> Answering:
        decode = _decoder(method.request, self._limit)
        with_call = wants_call(method.handler)
        handler: Any = method.handler

        async def send(call: Call, body: bytes) -> None:
            stream = call.stream
            request = decode(only_message(body, stream.request.encoding, self._limit))
            items = handler(request, call) if with_call else handler(request)
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

        return self._going_on(name, send)

    def _exchange(self, name: str, method: Exchange) -> Answering:
        decode = _decoder(method.request, self._limit)

        async def send(call: Call, body: bytes) -> None:
            assert call.inbox is not None, "it is run with one"
            buffer = bytearray(body)
            while (part := await call.inbox.get()) is not None:
                call.size -= len(part)
                self._held -= len(part)
                buffer += part
                for data in take_messages(buffer, call.stream.request.encoding, self._limit):
                    response = await method.handler(decode(data))
                    if not call.stream.write(response.SerializeToString()):
                        await _drained(call.stream)

        return self._going_on(name, send)

    def _going_on(self, name: str, send: Answering) -> Answering:
        """Run what may go on for long, and is ended when the broker stops."""

        async def stream(call: Call, body: bytes) -> None:
            task = asyncio.current_task()
            assert task is not None, "every call runs in a task"
            self._streams.add(task)
            opening = asyncio.get_running_loop().call_later(HEADERS_AFTER_S, call.stream.start)
            try:
                await send(call, body)
                self.count(name, "OK")
                call.end(StatusCode.OK, "")
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # the root of a call
                self._fail(name, call, error)
            finally:
                opening.cancel()
                self._done(call)

        return stream

    def _fail(self, name: str, call: Call, error: BaseException) -> None:
        """Answer with an error; when the client has gone, nobody is there to be answered."""
        if isinstance(error, MessageError):
            [code] = [code for code in StatusCode if code.value[0] == error.code]
            text = error.text
        elif isinstance(error, Exception):
            code, text = status_of(error)
            if isinstance(error, IsterError):
                error.__traceback__ = None  # it holds what was sent; an expected error needs none
        elif call.task is not None and call.task.cancelling():
            if call.expired:
                code, text = StatusCode.DEADLINE_EXCEEDED, "the client's deadline has passed"
            elif self.stopping and not call.cancelled:
                code, text = StatusCode.UNAVAILABLE, STOPPING
            else:
                code, text = StatusCode.CANCELLED, "the client has gone"
        else:
            # Something that the handler waited for was cancelled.
            code, text = StatusCode.INTERNAL, INTERNAL_TEXT
        self.count(name, code.name)
        if text is INTERNAL_TEXT:
            log.error("call_failed", call=name, exc_info=error)
        call.end(code, text)

    def count(self, name: str, code: str) -> None:
        """Count a call that has ended."""
        key = (f"/{name}", code)
        self._rpcs[key] = self._rpcs.get(key, 0) + 1


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


def _too_large(name: str, size: int, limit: int) -> InvalidRequestError:
    return InvalidRequestError(f"this {name} has {size} bytes; the broker takes at most {limit}")


def _decoder(kind: type[Message], limit: int) -> Callable[[bytes], Message]:
    parse, name = kind.FromString, kind.DESCRIPTOR.full_name

    def decode(data: bytes) -> Message:
        if len(data) > limit:
            raise _too_large(name, len(data), limit)
        try:
            return parse(data)
        except DecodeError:
            raise InvalidRequestError(f"these {len(data)} bytes are not a {name}") from None

    return decode


def _report_abandoned(task: asyncio.Task[Message]) -> None:
    """Say how a call ended whose client did not wait for it, if it ended badly."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error("call_failed", call=task.get_name(), exc_info=error)
