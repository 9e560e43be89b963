"""Life cycle of a call: receive the request, run the handler, answer, cancel; and the drain at shutdown."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog
from grpc import StatusCode

from ister.core.errors import IsterError, LimitError
from ister.transport.http2 import headers
from ister.transport.http2.frames import Code
from ister.transport.http2.messages import PREFIX_BYTES, MessageError, UnknownEncodingError, only_message
from ister.transport.method import bind_method, too_large
from ister.transport.request_budget import RequestBudget
from ister.transport.service import INTERNAL_TEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from google.protobuf.message import Message

    from ister.transport.http2.connection import Http2Connection
    from ister.transport.http2.stream import Stream
    from ister.transport.method import BoundMethod
    from ister.transport.request_budget import ConnectionBudget
    from ister.transport.service import DescribeError, Method

PART_BYTES: Final = 64
"""Overhead of an unread part of a bidirectional stream."""
UNREAD_BYTES_MAX: Final = 512 * 1024
"""Unread bytes allowed on a bidirectional stream; more than one socket read, so the handler runs before the limit."""
CUT_S: Final = 1.0
"""Time for a cancelled call to clean up."""
STOPPING: Final = "the broker is stopping; look the topic up again and retry"
TOO_MUCH: Final = "the broker has more requests than it can keep; try again"

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class Call:
    """A call in progress."""

    stream: Stream
    method: BoundMethod
    budget: ConnectionBudget
    peer: str
    """The client's address, for logs."""
    body: bytes | bytearray | None = None
    """The received part of a request that does not run yet."""
    inbox: asyncio.Queue[bytes | None] | None = None
    task: asyncio.Task[None] | None = None
    expired: bool = False
    is_stalled: bool = False
    """Whether no data came since the last check."""
    trailing: tuple[tuple[str, str], ...] = ()
    _timer: asyncio.TimerHandle | None = None

    # --- for the handler (transport.service.Call) ---------------------------------------------------------------------

    def header(self, key: str) -> str | None:
        """Return one value of the request's metadata."""
        return self.stream.request.header(key)

    def trail(self, key: str, value: str) -> None:
        """Add trailing metadata to the response."""
        self.trailing = (*self.trailing, (key, value))

    @property
    def cancelled(self) -> bool:
        """Whether the client has disconnected or cancelled."""
        return self.stream.closed

    def when_sent(self, done: Callable[[], None]) -> None:
        """Call `done` once all that was written so far has left the send buffer; never if the call ends before."""
        self.stream.when_sent(done)

    # --- for the server -----------------------------------------------------------------------------------------------

    def set_deadline(self, timer: asyncio.TimerHandle) -> None:
        """Remember the timer of the client's deadline, to cancel it at the end."""
        self._timer = timer

    def expire(self) -> None:
        """Mark the client's deadline as passed."""
        self.expired = True

    def open_inbox(self) -> None:
        """Receive the request in parts, while the handler runs."""
        self.inbox = asyncio.Queue()

    def append_body(self, part: bytes) -> int:
        """Append to the buffered request; return its size so far, or the size that its prefix announces."""
        self.is_stalled = False
        if self.body is None:
            self.body = bytearray()
        self.body += part  # one buffer: a client may send it byte by byte
        size = len(self.body)
        return 0 if size < PREFIX_BYTES else max(int.from_bytes(self.body[1:PREFIX_BYTES]), size - PREFIX_BYTES)

    def hold_body(self, body: bytes) -> None:
        """Keep a complete request until it may run."""
        self.body = body

    def take_body(self) -> bytes:
        """Return the buffered request, which is about to run."""
        assert self.body is not None, "a waiting call has a buffered request"
        body, self.body = bytes(self.body), None
        return body

    def check_stalled(self) -> bool:
        """Return True if no data came since the last check."""
        was_stalled, self.is_stalled = self.is_stalled, True
        return was_stalled

    def run(self, answering: Coroutine[Any, Any, None]) -> None:
        """Run the handler in a task."""
        self.task = asyncio.get_running_loop().create_task(answering)

    def finish(self) -> None:
        """Drop the task, the deadline and the request."""
        self.task = self.body = None
        if self._timer is not None:
            self._timer.cancel()

    def end(self, code: StatusCode, text: str) -> None:
        """Answer with a status."""
        self.stream.end(headers.end(code.value[0], text, self.trailing))


class Calls:
    """The methods of a server, and its calls in progress."""

    def __init__(self, message_bytes_max: int, rpcs: dict[tuple[str, str], int], describe_error: DescribeError) -> None:
        self._describe_error = describe_error
        self.methods: dict[str, BoundMethod] = {}
        self.budget = RequestBudget(message_bytes_max + PREFIX_BYTES)
        self.message_bytes_max = message_bytes_max
        self.rpcs = rpcs
        self.running: set[Call] = set()
        self.stopping = False
        self._streams: set[Call] = set()
        self._finishing: set[asyncio.Task[Message]] = set()
        self._is_resuming = False

    def bind(self, name: str, method: Method) -> None:
        """Serve a method under its full name."""
        self.methods[f"/{name}"] = bind_method(self, name, method)

    # --- receiving requests -------------------------------------------------------------------------------------------

    def begin(self, call: Call) -> None:
        """Run a bidirectional stream, of which only the headers have come."""
        call.open_inbox()
        if self.stopping:
            self._refuse(call, StatusCode.UNAVAILABLE, STOPPING)
        else:
            self._run(call, b"")

    def received(self, call: Call) -> None:
        """Take received data, and run the call when its request is complete."""
        stream = call.stream
        if call.inbox is not None:
            self._feed(call, call.inbox)
        elif stream.complete and call.body is None:
            body = stream.take_body()
            if call.budget.admit(call, len(body)) or call.method.reply is not None:
                self._start(call, body)
            else:
                call.hold_body(body)
                call.budget.wait(call)
                self._settle(call.budget)
        else:
            self._buffer(call)

    def _buffer(self, call: Call) -> None:
        part = call.stream.take_body()
        size = call.append_body(part)
        call.budget.add_part(call, len(part))
        if call.stream.complete:
            call.budget.wait(call)
        elif size > call.method.limit:
            # As soon as it is known: a client that has sent all of it would send it again.
            self._refuse(call, *self._describe_error(too_large(call.method.request, size, call.method.limit)))
            return
        self._settle(call.budget)

    def _feed(self, call: Call, inbox: asyncio.Queue[bytes | None]) -> None:
        if call.task is None:
            return  # it has ended, or was refused
        part = call.stream.take_body()
        if part:
            inbox.put_nowait(part)
            if call.budget.add_part(call, len(part) + PART_BYTES) > UNREAD_BYTES_MAX:
                self._shed(call)  # the client sends on and does not read the answers
            else:
                self._settle(call.budget)
        if call.stream.complete:
            inbox.put_nowait(None)

    def was_read(self, call: Call, part: bytes) -> None:
        """Release a part of a bidirectional stream that its handler has read."""
        call.budget.remove_part(call, len(part) + PART_BYTES)
        self._resume_soon()

    def end_stalled(self, connection: Http2Connection) -> None:
        """End a connection's requests without data since the last check, unless its window is withheld by us."""
        if connection.is_paused:
            return
        for stream in list(connection.streams.values()):
            call = stream.call
            if stream.complete or not isinstance(call, Call) or call.inbox is not None or stream.trailers is not None:
                continue
            if call.check_stalled():
                self._refuse(call, StatusCode.DEADLINE_EXCEEDED, "nothing more of the request came for too long")

    def expire(self, call: Call) -> None:
        """End a call whose deadline has passed."""
        call.expire()
        if call.task is not None:
            self._cancel(call, call.task)
        else:
            late = "its turn" if call.stream.complete else "the request"
            self._refuse(call, StatusCode.DEADLINE_EXCEEDED, f"{late} did not come in time")

    def abandon(self, call: Call) -> None:
        """Cancel a call whose client is gone; until its handler ends it counts as a concurrent call."""
        if call.task is None:
            self.done(call)
        else:
            self._count_lingering(call, call.task)
            self._cancel(call, call.task)

    def _cancel(self, call: Call, task: asyncio.Task[None]) -> None:
        def after(_: object) -> None:
            if call.task is task:  # the task was cancelled before its first step
                self.fail(call, asyncio.CancelledError())
                self.done(call)

        task.add_done_callback(after)
        task.cancel()

    # --- admission control --------------------------------------------------------------------------------------------

    def _settle(self, budget: ConnectionBudget) -> None:
        """Run the waiting calls that may run, and shed those beyond the budget."""
        while True:
            while (call := budget.next_runnable()) is not None:
                self._start(call, call.take_body())
            excess = self.budget.find_excess(budget)
            if excess is None:
                break
            self._shed(excess)
        budget.settle()

    def _shed(self, call: Call) -> None:
        if call.task is None:
            self._refuse(call, *self._describe_error(LimitError(TOO_MUCH)))
        else:
            call.budget.release(call)
            call.stream.reset(Code.ENHANCE_YOUR_CALM)
            self.abandon(call)

    def _resume_soon(self) -> None:
        """Settle stalled connections, once per event-loop iteration."""
        if self.budget.stalled and not self._is_resuming:
            self._is_resuming = True
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        self._is_resuming = False
        for budget in list(self.budget.stalled):
            self._settle(budget)

    # --- running ------------------------------------------------------------------------------------------------------

    def _start(self, call: Call, body: bytes) -> None:
        if self.stopping:
            self._refuse(call, StatusCode.UNAVAILABLE, STOPPING)
            return
        method = call.method
        try:
            data = only_message(body, call.stream.request.encoding, method.limit)
        except MessageError as error:
            self.fail(call, error)
            self.done(call)
            return
        if len(data) > len(body):
            call.budget.grow(call, len(data) - len(body))
            call.budget.settle()
        if method.reply is not None:
            method.reply(call, data)
        else:
            self._run(call, data)

    def _run(self, call: Call, data: bytes) -> None:
        method = call.method
        assert method.answer is not None, "a method has `answer` or `reply`"
        call.run(method.answer(call, data))
        self.running.add(call)
        if method.is_long_lived:
            self._streams.add(call)
            if call.inbox is None:
                call.budget.release(call)  # its request is small, and soon freed
                self._resume_soon()

    def _refuse(self, call: Call, code: StatusCode, text: str) -> None:
        """End a call that never ran."""
        self.done(call)
        self.count(call.method.name, code.name)
        call.end(code, text)

    def done(self, call: Call) -> None:
        """Forget a call."""
        if call.task is not None:
            self.running.discard(call)
            self._streams.discard(call)
        call.finish()
        call.budget.release(call)
        if self.budget.stalled:
            self._resume_soon()

    def linger(self, call: Call, task: asyncio.Task[Message]) -> None:
        """Count a handler that runs on without its client until it ends, and log an unexpected error."""
        self._count_lingering(call, task)
        release = call.budget.detach(call)

        def ended(_: object) -> None:
            release()
            self._resume_soon()
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, IsterError):
                log.error("call_failed", call=call.method.name, exc_info=error)

        task.add_done_callback(ended)

    @staticmethod
    def _count_lingering(call: Call, task: asyncio.Task[None] | asyncio.Task[Message]) -> None:
        connection = call.stream.connection
        connection.begin_lingering()
        task.add_done_callback(connection.end_lingering)

    def finishing(self, task: asyncio.Task[Message]) -> None:
        """Track a handler that runs to its end even if its client disconnects."""
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    def fail(self, call: Call, error: BaseException) -> None:
        """Answer with the status of an error, and count it."""
        if isinstance(error, MessageError):
            [code] = [code for code in StatusCode if code.value[0] == error.code]
            text = error.text
            if isinstance(error, UnknownEncodingError):
                call.trail(*headers.ENCODINGS)
        elif isinstance(error, Exception):
            code, text = self._describe_error(error)
            if isinstance(error, IsterError):
                error.__traceback__ = None  # it references the request, and an expected error needs none
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
        self.count(call.method.name, code.name)
        if text is INTERNAL_TEXT:
            log.error("call_failed", call=call.method.name, exc_info=error)
        elif "log says" in text:  # the client is referred to the log
            log.warning("call_refused", call=call.method.name, error=type(error).__name__, cause=str(error))
        call.end(code, text)

    def count(self, name: str, code: str) -> None:
        """Count an ended call."""
        key = (f"/{name}", code)
        self.rpcs[key] = self.rpcs.get(key, 0) + 1

    # --- stopping -----------------------------------------------------------------------------------------------------

    def end_streams(self) -> None:
        """End the long-lived calls and those that wait."""
        self.stopping = True
        for call in list(self._streams):
            assert call.task is not None, "it runs"
            self._cancel(call, call.task)
        for budget in list(self.budget.stalled):
            for call in budget.waiting():
                self._refuse(call, StatusCode.UNAVAILABLE, STOPPING)

    async def end_others(self, grace_s: float) -> None:
        """Wait for the running calls; after `grace_s` they are cancelled, with UNAVAILABLE as their status."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        while self.running and loop.time() < deadline:
            await asyncio.wait(self._tasks(), timeout=deadline - loop.time())
        late = self._tasks()
        for call in list(self.running):
            assert call.task is not None, "it runs"
            self._cancel(call, call.task)
        if late:
            await asyncio.wait(late, timeout=CUT_S)

    def _tasks(self) -> set[asyncio.Task[None]]:
        return {call.task for call in self.running if call.task is not None}

    async def finish(self, timeout_s: float) -> None:
        """Wait for handlers that run without their clients; after the timeout they are cancelled and logged."""
        if not self._finishing:
            return
        _, late = await asyncio.wait(self._finishing, timeout=timeout_s)
        for task in late:
            log.warning("call_cut_short", call=task.get_name())
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=CUT_S)
