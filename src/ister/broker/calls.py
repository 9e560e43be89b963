"""The life of a call: its request as it comes, its handler, its end, and what becomes of it when the broker stops."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog
from grpc import StatusCode

from ister.broker.http2 import headers
from ister.broker.http2.frames import Code
from ister.broker.http2.messages import PREFIX_BYTES, MessageError, UnknownPackingError, only_message
from ister.broker.methods import bound, too_large
from ister.broker.room import Room
from ister.broker.status import INTERNAL_TEXT, refers_to_log, status_of
from ister.core.errors import IsterError, LimitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from ister.broker.http2.connection import Connection
    from ister.broker.http2.stream import Stream
    from ister.broker.methods import Method
    from ister.broker.room import Share
    from ister.broker.service import Method as Described

PART_BYTES: Final = 64
"""What a part of an exchange takes beside its bytes, while it waits to be read."""
UNREAD_BYTES_MAX: Final = 512 * 1024
"""What may wait to be read of an exchange: more than comes at a time, so that its handler has had a turn before that."""
CUT_S: Final = 1.0
"""How long a call that is cut short may take to tidy up."""
STOPPING: Final = "the broker is stopping; look the topic up again and retry"
TOO_MUCH: Final = "the broker has more requests than it can keep; try again"

log = structlog.get_logger()


class Call:
    """One call that is under way: what its handler may know of it, and what it takes to end it."""

    __slots__ = (
        "body", "expired", "inbox", "is_silent", "method", "share", "size", "stream", "task", "timer", "trailing",
    )  # fmt: skip

    def __init__(self, stream: Stream, method: Method, share: Share) -> None:
        self.stream = stream
        self.method = method
        self.share = share
        self.body: bytes | bytearray | None = None
        """What came of a request that does not run yet."""
        self.size = 0
        """What is counted for it (room.py)."""
        self.inbox: asyncio.Queue[bytes | None] | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.expired = False
        self.is_silent = False
        """Whether nothing came of it since somebody looked."""
        self.trailing: tuple[tuple[str, str], ...] = ()

    @property
    def peer(self) -> str:
        """Who calls, for logs."""
        return self.share.peer

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

    def when_sent(self, done: Callable[[], None]) -> None:
        """Call `done` once all that was written so far has left the send buffer; never, if the call ends before."""
        self.stream.when_sent(done)

    def end(self, code: StatusCode, text: str) -> None:
        """Answer with a status."""
        self.stream.end(headers.end(code.value[0], text, self.trailing))


class Calls:
    """Knows the methods, and which calls are under way."""

    def __init__(self, message_bytes_max: int, rpcs: dict[tuple[str, str], int]) -> None:
        self.methods: dict[str, Method] = {}
        self.room = Room(message_bytes_max + PREFIX_BYTES)
        self.message_bytes_max = message_bytes_max
        self.rpcs = rpcs
        self.running: set[Call] = set()
        self.stopping = False
        self._streams: set[Call] = set()
        self._finishing: set[asyncio.Task[Message]] = set()
        self._is_resuming = False

    def bind(self, name: str, method: Described) -> None:
        """Serve a method under its full name."""
        self.methods[f"/{name}"] = bound(self, name, method)

    # --- requests as they come ----------------------------------------------------------------------------------------

    def begin(self, call: Call) -> None:
        """Run an exchange, of which nothing but the headers have come."""
        call.inbox = asyncio.Queue()
        if self.stopping:
            self._refuse(call, StatusCode.UNAVAILABLE, STOPPING)
        else:
            self._run(call, b"")

    def received(self, call: Call) -> None:
        """Take what came of a request, and run it when it is complete."""
        stream = call.stream
        if call.inbox is not None:
            self._feed(call, call.inbox)
        elif stream.complete and call.body is None:
            body, stream.body = stream.body, b""
            if self.room.admit(call, len(body)) or call.method.reply is not None:
                self._start(call, body)
            else:
                call.body = body
                self.room.wait(call)
                self._settle(call.share)
        else:
            self._gather(call)

    def _gather(self, call: Call) -> None:
        stream = call.stream
        part, stream.body = stream.body, b""
        call.is_silent = False
        if call.body is None:
            call.body = bytearray()
        call.body += part  # one piece of memory: a client may send it byte by byte
        self.room.gather(call, len(part))
        if stream.complete:
            self.room.wait(call)
            self._settle(call.share)
        elif (size := _size(call)) > call.method.limit:
            # As soon as that is known: a client that has to send it all would send it again.
            self._refuse(call, *status_of(too_large(call.method.takes, size, call.method.limit)))
        else:
            self._settle(call.share)

    def _feed(self, call: Call, inbox: asyncio.Queue[bytes | None]) -> None:
        if call.task is None:
            return  # it has ended, or was refused
        part, call.stream.body = call.stream.body, b""
        if part:
            inbox.put_nowait(part)
            self.room.gather(call, len(part) + PART_BYTES)
            if call.size > UNREAD_BYTES_MAX:
                self._shed(call)  # it asks on and on, and does not read the answers
            else:
                self._settle(call.share)
        if call.stream.complete:
            inbox.put_nowait(None)

    def was_read(self, call: Call, part: bytes) -> None:
        """Let go of a part of an exchange."""
        self.room.scatter(call, len(part) + PART_BYTES)
        self._resume_soon()

    def end_silent(self, connection: Connection) -> None:
        """End the calls of a connection of which nothing came since the last time; not if it was held back by us."""
        if connection.held_back:
            return
        for stream in list(connection.streams.values()):
            call = stream.call
            if stream.complete or not isinstance(call, Call) or call.inbox is not None or stream.trailer is not None:
                continue
            if call.is_silent:
                self._refuse(call, StatusCode.DEADLINE_EXCEEDED, "nothing more of the request came for too long")
            else:
                call.is_silent = True

    def expire(self, call: Call) -> None:
        """End a call because its client does not wait any longer."""
        call.expired = True
        if call.task is not None:
            self._cancel(call, call.task)
        else:
            late = "its turn" if call.stream.complete else "the request"
            self._refuse(call, StatusCode.DEADLINE_EXCEEDED, f"{late} did not come in time")

    def abandon(self, call: Call) -> None:
        """End a call whose client has gone; as long as it runs, it counts as one of its connection."""
        if call.task is None:
            self.done(call)
        else:
            self._count_lingering(call, call.task)
            self._cancel(call, call.task)

    def _cancel(self, call: Call, task: asyncio.Task[None]) -> None:
        def after(_: object) -> None:
            if call.task is task:  # it had not even begun, so that nothing of it has run
                self.fail(call, asyncio.CancelledError())
                self.done(call)

        task.add_done_callback(after)
        task.cancel()

    # --- room ---------------------------------------------------------------------------------------------------------

    def _settle(self, share: Share) -> None:
        """Run what has waited long enough, and refuse what there is no room for."""
        room = self.room
        while True:
            while (call := room.next_of(share)) is not None:
                assert call.body is not None, "it waits with what came"
                body, call.body = bytes(call.body), None
                self._start(call, body)
            excess = room.excess(share)
            if excess is None:
                break
            self._shed(excess)
        room.settle(share)

    def _shed(self, call: Call) -> None:
        if call.task is None:
            self._refuse(call, *status_of(LimitError(TOO_MUCH)))
        else:
            self.room.release(call)
            call.stream.reset(Code.ENHANCE_YOUR_CALM)
            self.abandon(call)

    def _resume_soon(self) -> None:
        """Look after connections that are held back, once in a turn of the loop."""
        if self.room.stalled and not self._is_resuming:
            self._is_resuming = True
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        self._is_resuming = False
        for share in list(self.room.stalled):
            self._settle(share)

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
        if len(data) > call.size:
            self.room.grow(call, len(data) - call.size)
            self.room.settle(call.share)
        if method.reply is not None:
            method.reply(call, data)
        else:
            self._run(call, data)

    def _run(self, call: Call, data: bytes) -> None:
        method = call.method
        assert method.answer is not None, "what is not replied to at once is answered"
        call.task = asyncio.get_running_loop().create_task(method.answer(call, data))
        self.running.add(call)
        if method.lasts:
            self._streams.add(call)
            if call.inbox is None:
                self.room.release(call)  # what it was asked is small, and gone soon
                self._resume_soon()

    def _refuse(self, call: Call, code: StatusCode, text: str) -> None:
        """End a call that was never run."""
        self.done(call)
        self.count(call.method.name, code.name)
        call.end(code, text)

    def done(self, call: Call) -> None:
        """Forget a call."""
        if call.task is not None:
            call.task = None
            self.running.discard(call)
            self._streams.discard(call)
        if call.timer is not None:
            call.timer.cancel()
        call.body = None
        self.room.release(call)
        if self.room.stalled:
            self._resume_soon()

    def linger(self, call: Call, task: asyncio.Task[Message]) -> None:
        """Count a handler that goes on without its client until it ends, and say if it ends badly."""
        self._count_lingering(call, task)
        give_back = self.room.lend(call)

        def ended(_: object) -> None:
            give_back()
            self._resume_soon()
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, IsterError):
                log.error("call_failed", call=call.method.name, exc_info=error)

        task.add_done_callback(ended)

    @staticmethod
    def _count_lingering(call: Call, task: asyncio.Task[None] | asyncio.Task[Message]) -> None:
        connection = call.stream.connection
        connection.lingering += 1

        def ended(_: object) -> None:
            connection.lingering -= 1

        task.add_done_callback(ended)

    def finishing(self, task: asyncio.Task[Message]) -> None:
        """Remember a handler that runs to its end, whatever its client does."""
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    def fail(self, call: Call, error: BaseException) -> None:
        """Answer with an error; when the client has gone, nobody is there to be answered."""
        if isinstance(error, MessageError):
            [code] = [code for code in StatusCode if code.value[0] == error.code]
            text = error.text
            if isinstance(error, UnknownPackingError):
                call.trail(*headers.ENCODINGS)
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
        self.count(call.method.name, code.name)
        if text is INTERNAL_TEXT:
            log.error("call_failed", call=call.method.name, exc_info=error)
        elif refers_to_log(text):
            log.warning("call_refused", call=call.method.name, error=type(error).__name__, cause=str(error))
        call.end(code, text)

    def count(self, name: str, code: str) -> None:
        """Count a call that has ended."""
        key = (f"/{name}", code)
        self.rpcs[key] = self.rpcs.get(key, 0) + 1

    # --- stopping -----------------------------------------------------------------------------------------------------

    def end_streams(self) -> None:
        """End every call that would go on for ever, or has not begun, and say why."""
        self.stopping = True
        for call in list(self._streams):
            assert call.task is not None, "it runs"
            self._cancel(call, call.task)
        for share in list(self.room.stalled):
            for call in list(share.waiting):
                if call in share.pending:
                    self._refuse(call, StatusCode.UNAVAILABLE, STOPPING)

    async def end_others(self, grace_s: float) -> None:
        """Wait for the calls that are under way; what takes longer is ended, and told to come again."""
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
        """Wait for the calls that go on without their clients; what takes longer is cancelled, and said."""
        if not self._finishing:
            return
        _, late = await asyncio.wait(self._finishing, timeout=timeout_s)
        for task in late:
            log.warning("call_cut_short", call=task.get_name())
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=CUT_S)


def _size(call: Call) -> int:
    """Return how large a request is that is not complete: as it says, or as it is."""
    if call.body is None or call.size < PREFIX_BYTES:
        return 0
    return max(int.from_bytes(call.body[1:PREFIX_BYTES]), call.size - PREFIX_BYTES)
