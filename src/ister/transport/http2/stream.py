"""HTTP/2 stream of one gRPC call: the received request, and the unsent part of the response. Sans-I/O."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from ister.transport.http2 import frames, headers
from ister.transport.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    HEAD,
    HEADERS,
    WINDOW_MAX,
    BrokenProtocolError,
    Code,
    frame,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.transport.http2.connection import Http2Connection
    from ister.transport.http2.headers import RequestHeaders

STREAM_WINDOW: Final = 1024 * 1024
UNSENT_BYTES_MAX: Final = 64 * 1024
"""Unsent bytes of a stream from which on its writer must wait."""

_START_HEAD: Final = HEAD.pack(0, len(headers.START), HEADERS, END_HEADERS, 0)[:5]
_OK_HEAD: Final = HEAD.pack(0, len(headers.END_OK), HEADERS, END_HEADERS | END_STREAM, 0)[:5]


class Stream:
    """One call on a connection."""

    __slots__ = (
        "_drained", "_sent_bytes", "_sent_marks", "_started", "_window_in", "body", "call", "closed", "complete",
        "connection", "id", "request", "trailers", "unsent", "unsent_bytes", "window_out",
    )  # fmt: skip

    def __init__(self, connection: Http2Connection, number: int, request: RequestHeaders, window_out: int) -> None:
        self.connection = connection
        self.id = number
        self.request = request
        self.call: object = None
        """The listener's own object for this stream."""
        self.body = b""
        """The part of the request that came last, until it is taken."""
        self.complete = False
        """Whether the client has ended its side."""
        self.closed = False
        self.window_out = window_out
        self.unsent: list[bytes | memoryview] = []
        self.unsent_bytes = 0
        self.trailers: bytes | None = None
        self._started = False
        self._window_in = STREAM_WINDOW
        self._sent_bytes = 0
        self._sent_marks: deque[tuple[int, Callable[[], None]]] | None = None
        """Callbacks with the value of `_sent_bytes` from which on each is due, in order."""
        self._drained: Callable[[], None] | None = None

    def bind(self, call: object) -> None:
        """Set the listener's object for this stream."""
        self.call = call

    # --- request ------------------------------------------------------------------------------------------------------

    def receive(self, body: bytes, *, complete: bool) -> bool:
        """Take a part of the request; return False if the response has ended, so that nobody needs it."""
        self.complete = complete
        if self.trailers is not None:
            return False
        self.body = body
        return True

    def take_body(self) -> bytes:
        """Return what was received and not taken yet."""
        body, self.body = self.body, b""
        return body

    def consume_window(self, size: int) -> int:
        """Count received bytes; return the window update that is due, 0 for none."""
        self._window_in -= size
        if self._window_in >= STREAM_WINDOW // 2:
            return 0
        if self._window_in < 0:
            raise BrokenProtocolError(Code.FLOW_CONTROL_ERROR, "more data came than its stream allows")
        more, self._window_in = STREAM_WINDOW - self._window_in, STREAM_WINDOW
        return more

    # --- response -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Send the response headers."""
        if not self._started and not self.closed:
            self._started = True
            connection = self.connection
            if connection.table_shrinks:
                connection.send(frame(HEADERS, END_HEADERS, self.id, connection.first_block(headers.START)))
            else:
                connection.send(_START_HEAD + self.id.to_bytes(4) + headers.START)

    def write(self, message: bytes) -> bool:
        """Send a message; False asks the writer to wait for `on_drained`."""
        if self.closed:
            return True
        if not self._started:
            self.start()
        self.unsent.append(len(message).to_bytes(5))  # a flag of zero, and four bytes of length
        self.unsent.append(message)
        self.unsent_bytes += len(message) + 5
        self.connection.blocked(self)
        return self.unsent_bytes < UNSENT_BYTES_MAX

    def on_drained(self, callback: Callable[[], None] | None) -> None:
        """Set what to call when less than UNSENT_BYTES_MAX is unsent, or the stream is closed."""
        self._drained = callback

    def when_sent(self, done: Callable[[], None]) -> None:
        """Call `done` once the peer's windows have admitted all that was written; never if the stream ends before."""
        if not self.unsent_bytes:
            if not self.closed:
                done()
            return
        if self._sent_marks is None:
            self._sent_marks = deque()
        self._sent_marks.append((self._sent_bytes + self.unsent_bytes, done))

    def answer(self, message: bytes, trail: tuple[tuple[str, str], ...] = ()) -> None:
        """Send the only message and an OK status: the fast path of most calls, whose frames are mostly constant."""
        connection = self.connection
        size = len(message) + 5
        if self.closed:
            return
        if (
            size > self.window_out
            or size > connection.window_out
            or size > FRAME_BYTES_MAX
            or self._started
            or connection.table_shrinks
        ):
            self.write(message)
            self.end(headers.end(0, "", trail))
            return
        number = self.id.to_bytes(4)
        if trail:
            block = headers.end(0, "", trail)
            last = frame(HEADERS, END_HEADERS | END_STREAM, self.id, block)
        else:
            last = _OK_HEAD + number + headers.END_OK
        data = b"".join(
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
        self.closed = True
        connection.finish(self, data, size)
        if self._drained is not None:
            self._drained()

    def end(self, block: bytes) -> None:
        """End the response with these trailers, after everything that was written."""
        if self.closed or self.trailers is not None:
            return
        if not self._started:
            self._started = True
            block = headers.START + block
        self.trailers = block
        self.connection.blocked(self)

    def reject(self, block: bytes) -> None:
        """Send these headers as the whole response."""
        self._started = True
        self.end(block)

    def reset(self, code: Code) -> None:
        """End the call without a response."""
        if not self.closed:
            self.abort()
            self.connection.send(frames.reset(self.id, code))

    def abort(self) -> None:
        """Close a stream that one of both ends has reset."""
        if not self._started:
            self.connection.count_reset()
        self.close()

    def close(self) -> None:
        """Forget the stream, and wake its writer."""
        self.closed = True
        self.connection.forget(self)
        if self._drained is not None:
            self._drained()

    # --- flow control of the response ---------------------------------------------------------------------------------

    def widen(self, more: int) -> bool:
        """Add to the window; return False if it becomes too large."""
        self.window_out += more
        return self.window_out <= WINDOW_MAX

    def take_data(self, window: int, out: list[bytes | memoryview]) -> int:
        """Append DATA frames as far as both windows allow; return the number of their bytes."""
        window = min(window, self.window_out)
        if window <= 0:
            return 0
        data = b"".join(self.unsent) if len(self.unsent) > 1 else self.unsent[0]
        self.unsent.clear()
        sent = min(window, len(data))
        for at in range(0, sent, FRAME_BYTES_MAX):
            size = min(FRAME_BYTES_MAX, sent - at)
            out.append(HEAD.pack(0, size, DATA, 0, self.id))
            out.append(data[at : at + size])
        self.window_out -= sent
        if sent < len(data):
            self.unsent.append(memoryview(data)[sent:])  # not copied each time that a small window opens
        self.unsent_bytes = len(data) - sent
        self._sent_bytes += sent
        return sent

    def report_sent(self) -> None:
        """Call back those that wait for what was sent."""
        while self._sent_marks and self._sent_marks[0][0] <= self._sent_bytes:
            self._sent_marks.popleft()[1]()
        if self._drained is not None and self.unsent_bytes < UNSENT_BYTES_MAX:
            self._drained()
