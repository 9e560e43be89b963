"""One call on a connection: what came of it, and what is still to be sent. Pure, as the connection is."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from ister.broker.http2 import frames, headers
from ister.broker.http2.frames import DATA, END_HEADERS, END_STREAM, FRAME_BYTES_MAX, HEAD, HEADERS, Code, frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.broker.http2.connection import Connection
    from ister.broker.http2.headers import Request

UNREAD_MAX: Final = 64 * 1024
"""How many bytes of a stream wait to be sent before its writer must wait."""

_START_HEAD: Final = HEAD.pack(0, len(headers.START), HEADERS, END_HEADERS, 0)[:5]
_OK_HEAD: Final = HEAD.pack(0, len(headers.END_OK), HEADERS, END_HEADERS | END_STREAM, 0)[:5]


class Stream:
    """One call: what the client sent, and what it is still to get."""

    __slots__ = (
        "body",
        "call",
        "closed",
        "complete",
        "connection",
        "drained",
        "id",
        "request",
        "sent_bytes",
        "sent_marks",
        "started",
        "trailer",
        "unsent",
        "unsent_bytes",
        "window_in",
        "window_out",
    )

    def __init__(self, connection: Connection, number: int, request: Request, window_in: int, window_out: int) -> None:
        self.connection = connection
        self.id = number
        self.request = request
        self.call: object = None
        """Whatever its owner remembers of it."""
        self.body = b""
        self.complete = False
        self.closed = False
        self.started = False
        self.window_in = window_in
        self.window_out = window_out
        self.unsent: list[bytes | memoryview] = []
        self.unsent_bytes = 0
        self.sent_bytes = 0
        self.sent_marks: deque[tuple[int, Callable[[], None]]] | None = None
        """How many bytes must have been sent before something is called, in that order; None where nobody asks."""
        self.trailer: bytes | None = None
        self.drained: Callable[[], None] | None = None
        """Called, once, when what waited to be sent has become little."""

    def start(self) -> None:
        """Send the headers of the answer."""
        if not self.started and not self.closed:
            self.started = True
            connection = self.connection
            if connection.table_shrinks:
                connection.send(frame(HEADERS, END_HEADERS, self.id, connection.first_block(headers.START)))
            else:
                connection.send(_START_HEAD + self.id.to_bytes(4) + headers.START)

    def write(self, message: bytes) -> bool:
        """Send one message; False asks the writer to wait until `drained`."""
        if self.closed:
            return True
        if not self.started:
            self.start()
        self.unsent.append(len(message).to_bytes(5))  # a flag of zero, and four bytes of length
        self.unsent.append(message)
        self.unsent_bytes += len(message) + 5
        self.connection.blocked(self)
        return self.unsent_bytes < UNREAD_MAX

    def when_sent(self, done: Callable[[], None]) -> None:
        """Call `done` once the peer's windows have let all go that was written so far; never, if the stream ends before."""
        if not self.unsent_bytes:
            if not self.closed:
                done()
            return
        if self.sent_marks is None:
            self.sent_marks = deque()
        self.sent_marks.append((self.sent_bytes + self.unsent_bytes, done))

    def answer(self, message: bytes, trail: tuple[tuple[str, str], ...] = ()) -> None:
        """Send the only message and the good end: most calls are this, and most of it is constant."""
        connection = self.connection
        size = len(message) + 5
        if self.closed:
            return
        if (
            size > self.window_out
            or size > connection.window_out
            or size > FRAME_BYTES_MAX
            or self.started
            or connection.table_shrinks
        ):
            self.write(message)
            self.end(headers.end(0, "", trail))
            return
        connection.window_out -= size
        number = self.id.to_bytes(4)
        if trail:
            block = headers.end(0, "", trail)
            last = frame(HEADERS, END_HEADERS | END_STREAM, self.id, block)
        else:
            last = _OK_HEAD + number + headers.END_OK
        connection.send(
            b"".join(
                (
                    _START_HEAD,
                    number,
                    headers.START,
                    HEAD.pack(0, size, DATA, 0, self.id),
                    (size - 5).to_bytes(5),
                    message,
                    last,
                )
            )
        )
        self.closed = True
        if connection.resets:
            connection.resets -= 1
        connection.forget(self)

    def end(self, block: bytes) -> None:
        """End the answer with these headers, after everything that was written."""
        if self.closed or self.trailer is not None:
            return
        if not self.started:
            self.started = True
            block = headers.START + block
        self.trailer = block
        self.connection.blocked(self)

    def reset(self, code: Code) -> None:
        """End the call without an answer."""
        if not self.closed:
            self.closed = True
            self.connection.count_reset(self)
            self.connection.send(frames.reset(self.id, code))
            self.connection.forget(self)
