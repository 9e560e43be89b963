"""One connection of HTTP/2, as a pure machine: bytes come in, calls are told, bytes to send are collected.

It does no I/O and keeps no time. Whoever owns it feeds `receive`, writes what `take_output` returns, and asks again when
`wake` is called. Everything that a peer can make us keep is bounded: frames, headers, streams, windows, and what waits
to be sent, because a stream's writer is told to wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ister.broker.http2 import frames, headers
from ister.broker.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    GOAWAY,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_MAX,
    WINDOW_MAX,
    WINDOW_START,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    BrokenProtocolError,
    Code,
    Setting,
    frame,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.broker.http2.headers import Request

STREAMS_MAX: Final = 4096
"""Calls at a time on one connection; a client that wants more waits."""
STREAM_WINDOW: Final = 1024 * 1024
CONNECTION_WINDOW: Final = 16 * 1024 * 1024
BLOCK_BYTES_MAX: Final = 4 * headers.LIST_BYTES_MAX
"""What the headers of one request may take as they are sent."""
IDLE_FRAMES_MAX: Final = 1000
"""Frames in a row that move nothing: settings, priorities, empty data."""
UNREAD_MAX: Final = 64 * 1024
"""How many bytes of a stream wait to be sent before its writer must wait."""

_FORBIDDEN_ON_STREAM: Final = frozenset({SETTINGS, PING, GOAWAY})
_START_HEAD: Final = HEAD.pack(0, len(headers.START), HEADERS, END_HEADERS, 0)[:5]
_OK_HEAD: Final = HEAD.pack(0, len(headers.END_OK), HEADERS, END_HEADERS | END_STREAM, 0)[:5]


class Calls(Protocol):
    """Who is told what a peer wants."""

    def opened(self, stream: Stream) -> None:
        """Take a new call, of which the headers are known; `stream.end` may be called at once."""

    def received(self, stream: Stream) -> None:
        """Take what came: `stream.body` has it, `stream.complete` tells whether it is all."""

    def abandoned(self, stream: Stream) -> None:
        """Learn that the client does not wait any more."""


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
        "started",
        "trailer",
        "unsent",
        "unsent_bytes",
        "window_in",
        "window_out",
    )

    def __init__(self, connection: Connection, number: int, request: Request, window_out: int) -> None:
        self.connection = connection
        self.id = number
        self.request = request
        self.call: object = None
        """Whatever its owner remembers of it."""
        self.body = b""
        self.complete = False
        self.closed = False
        self.started = False
        self.window_in = STREAM_WINDOW
        self.window_out = window_out
        self.unsent: list[bytes | memoryview] = []
        self.unsent_bytes = 0
        self.trailer: bytes | None = None
        self.drained: Callable[[], None] | None = None
        """Called, once, when what waited to be sent has become little."""

    def start(self) -> None:
        """Send the headers of the answer."""
        if not self.started and not self.closed:
            self.started = True
            self.connection.send(_START_HEAD + self.id.to_bytes(4) + headers.START)

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

    def answer(self, message: bytes, trail: tuple[tuple[str, str], ...] = ()) -> None:
        """Send the only message and the good end: most calls are this, and most of it is constant."""
        connection = self.connection
        size = len(message) + 5
        if self.closed:
            return
        if size > self.window_out or size > connection.window_out or size > FRAME_BYTES_MAX or self.started:
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
            self.connection.send(frames.reset(self.id, code))
            self.connection.forget(self)


class Connection:
    """What both ends have said so far."""

    def __init__(self, calls: Calls, wake: Callable[[], None], *, streams_max: int = STREAMS_MAX) -> None:
        self.streams: dict[int, Stream] = {}
        self.window_out = WINDOW_START
        self.pings = 0
        """Pings since we last sent anything of a call."""
        self.going = False
        """No new call is taken."""
        self._calls = calls
        self._wake = wake
        self._streams_max = streams_max
        self._out: list[bytes | memoryview] = []
        self._due = False
        self._rest = b""
        self.prefaced = False
        """Whether the peer speaks HTTP/2 at all."""
        self._greeted = False
        self._last = 0
        self._block: bytearray | None = None
        self._block_stream = 0
        self._block_ends = False
        self._headers = headers.RequestHeaders()
        self._stream_window_out = WINDOW_START
        self._window_in = CONNECTION_WINDOW
        self._idle_frames = 0
        self._blocked: dict[int, Stream] = {}

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send this with what else there is."""
        self._out.append(data)
        if not self._due:
            self._due = True
            self._wake()

    def blocked(self, stream: Stream) -> None:
        """Remember that a stream has something to send."""
        self._blocked[stream.id] = stream
        if not self._due:
            self._due = True
            self._wake()

    def take_output(self) -> bytes:
        """Return what is to be sent now, as far as the peer's windows allow."""
        self._due = False
        if self._blocked:
            self._pump()
        out = b"".join(self._out)
        self._out.clear()
        return out

    def ping(self) -> None:
        """Ask the peer for a sign of life."""
        self.send(frame(PING, 0, 0, b"are you?"))

    def ask_to_leave(self) -> None:
        """Ask the peer to open no more calls here; those that it has on the way are looked at."""
        self.send(frames.goaway(STREAM_MAX, Code.NO_ERROR))

    def go_away(self, code: Code, why: str = "") -> None:
        """Take no more calls, and say so and why; those that are under way go on."""
        self.going = True
        self.send(frames.goaway(self._last, code, why))

    def forget(self, stream: Stream) -> None:
        """Let go of a stream that is closed."""
        self.pings = 0
        self._blocked.pop(stream.id, None)
        self.streams.pop(stream.id, None)
        if stream.drained is not None:
            stream.drained()

    def _pump(self) -> None:
        """Turn what streams want to send into frames; each gets its turn when the connection's window is small."""
        for stream in list(self._blocked.values()):
            if stream.unsent:
                if self.window_out <= 0:
                    continue
                self._pump_data(stream)
            del self._blocked[stream.id]
            if stream.unsent:
                if stream.window_out > 0:
                    self._blocked[stream.id] = stream  # behind the others
            elif stream.trailer is not None:
                flags = END_HEADERS | END_STREAM
                self._out.append(frame(HEADERS, flags, stream.id, stream.trailer))
                if not stream.complete:
                    self._out.append(frames.reset(stream.id, Code.NO_ERROR))  # what it still sends is not needed
                stream.closed = True
                self.forget(stream)

    def _pump_data(self, stream: Stream) -> None:
        room = min(self.window_out, stream.window_out)
        if room <= 0:
            return
        self.pings = self._idle_frames = 0
        data = b"".join(stream.unsent) if len(stream.unsent) > 1 else stream.unsent[0]
        stream.unsent.clear()
        sent = min(room, len(data))
        out = self._out
        for at in range(0, sent, FRAME_BYTES_MAX):
            size = min(FRAME_BYTES_MAX, sent - at)
            out.append(HEAD.pack(0, size, DATA, 0, stream.id))
            out.append(data[at : at + size])
        self.window_out -= sent
        stream.window_out -= sent
        if sent < len(data):
            stream.unsent.append(memoryview(data)[sent:])  # not copied each time that a small window opens
        stream.unsent_bytes = len(data) - sent
        if stream.drained is not None and stream.unsent_bytes < UNREAD_MAX:
            stream.drained()

    # --- receiving ----------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Take bytes as they come; BrokenProtocolError ends the connection."""
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        if not self.prefaced:
            if not data.startswith(PREFACE[:end]):
                raise BrokenProtocolError(Code.PROTOCOL_ERROR, "this port speaks HTTP/2 (gRPC) and nothing else")
            if end < len(PREFACE):
                self._rest = data
                return
            self.prefaced = True
            self._greet()
            at = len(PREFACE)
        unpack = HEAD.unpack_from
        while end - at >= HEAD_BYTES:
            high, low, kind, flags, number = unpack(data, at)
            number &= STREAM_MAX  # the bit above is to be ignored
            if high << 16 | low > FRAME_BYTES_MAX:
                raise BrokenProtocolError(Code.FRAME_SIZE_ERROR, "a frame is too large")
            start = at + HEAD_BYTES
            stop = start + low + (high << 16)
            if stop > end:
                break
            if self._block is not None and (kind != CONTINUATION or number != self._block_stream):
                raise BrokenProtocolError(Code.PROTOCOL_ERROR, "headers are interrupted")
            if kind == DATA:
                self._take_data(number, flags, data, start, stop)
            elif kind == HEADERS:
                self._take_headers(number, flags, data[start:stop])
            else:
                self._take_other(kind, flags, number, data[start:stop])
            at = stop
        self._rest = data[at:] if at < end else b""

    def _greet(self) -> None:
        """Say what we take; not before we know that the peer speaks HTTP/2, so that another is answered in its language."""
        ours = {
            Setting.MAX_CONCURRENT_STREAMS: self._streams_max,
            Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            Setting.MAX_HEADER_LIST_SIZE: headers.LIST_BYTES_MAX,
        }
        self.send(frames.settings(ours) + frames.window_update(0, CONNECTION_WINDOW - WINDOW_START))

    def _take_data(self, number: int, flags: int, data: bytes, start: int, stop: int) -> None:
        size = stop - start
        self._window_in -= size
        if self._window_in < CONNECTION_WINDOW // 2:
            if self._window_in < 0:
                raise BrokenProtocolError(Code.FLOW_CONTROL_ERROR, "more data came than the window allows")
            self.send(frames.window_update(0, CONNECTION_WINDOW - self._window_in))
            self._window_in = CONNECTION_WINDOW
        if flags & PADDED:
            if not size or data[start] >= size:
                raise BrokenProtocolError(Code.PROTOCOL_ERROR, "padding is longer than its frame")
            start, stop = start + 1, stop - data[start]
        stream = self.streams.get(number)
        if stream is None or stream.complete:
            self._check_not_idle(number)
            if stream is not None:
                stream.reset(Code.STREAM_CLOSED)
                self._calls.abandoned(stream)
            return
        ends = flags & END_STREAM
        if not ends:
            stream.window_in -= size
            if stream.window_in < STREAM_WINDOW // 2:
                if stream.window_in < 0:
                    raise BrokenProtocolError(Code.FLOW_CONTROL_ERROR, "more data came than its stream allows")
                self.send(frames.window_update(number, STREAM_WINDOW - stream.window_in))
                stream.window_in = STREAM_WINDOW
            if start == stop:
                self._count_idle()
        stream.complete = ends != 0
        if stream.trailer is None:
            stream.body = data[start:stop]
            self._calls.received(stream)

    def _take_headers(self, number: int, flags: int, block: bytes) -> None:
        if not self._greeted or not number & 1:
            raise BrokenProtocolError(Code.PROTOCOL_ERROR, "headers came for a stream that cannot be")
        if flags & (PADDED | WITH_PRIORITY):
            padding = 0
            if flags & PADDED:
                if not block:
                    raise BrokenProtocolError(Code.FRAME_SIZE_ERROR, "headers are too short")
                padding, block = block[0], block[1:]
            if flags & WITH_PRIORITY:
                if len(block) < 5:  # a stream and a weight
                    raise BrokenProtocolError(Code.FRAME_SIZE_ERROR, "headers are too short")
                if int.from_bytes(block[:4]) & WINDOW_MAX == number:
                    raise BrokenProtocolError(Code.PROTOCOL_ERROR, "a stream depends on itself")
                block = block[5:]
            if padding > len(block):
                raise BrokenProtocolError(Code.PROTOCOL_ERROR, "padding is longer than its frame")
            block = block[: len(block) - padding]
        if flags & END_HEADERS:
            self._open(number, block, ends=flags & END_STREAM != 0)
        else:
            self._block, self._block_stream, self._block_ends = bytearray(block), number, flags & END_STREAM != 0

    def _take_continuation(self, flags: int, more: bytes) -> None:
        if self._block is None:
            raise BrokenProtocolError(Code.PROTOCOL_ERROR, "headers go on that have not begun")
        if not more:
            self._count_idle()
        self._block += more
        if len(self._block) > BLOCK_BYTES_MAX:
            raise BrokenProtocolError(Code.ENHANCE_YOUR_CALM, "headers are too large")
        if flags & END_HEADERS:
            block, self._block = bytes(self._block), None
            self._open(self._block_stream, block, ends=self._block_ends)

    def _open(self, number: int, block: bytes, *, ends: bool) -> None:
        request = self._headers.decode(block)
        if number <= self._last:
            stream = self.streams.get(number)
            if stream is None:
                return  # it was ended here while the client was still sending
            if stream.complete or not ends:
                raise BrokenProtocolError(Code.PROTOCOL_ERROR, "a call has headers twice")
            stream.complete = True
            if stream.trailer is None:
                stream.body = b""
                self._calls.received(stream)
            return
        if self.going:
            return  # the client was told that this one is not looked at
        self._last = number
        if len(self.streams) >= self._streams_max:
            self.send(frames.reset(number, Code.REFUSED_STREAM))
            return
        self._idle_frames = 0
        stream = Stream(self, number, request, self._stream_window_out)
        self.streams[number] = stream
        self._calls.opened(stream)
        if ends:
            stream.complete = True
            if stream.trailer is None and not stream.closed:
                self._calls.received(stream)

    def _take_other(self, kind: int, flags: int, number: int, body: bytes) -> None:
        if not self._greeted and kind != SETTINGS:
            raise BrokenProtocolError(Code.PROTOCOL_ERROR, "a connection begins with settings")
        if number and kind in _FORBIDDEN_ON_STREAM:
            raise BrokenProtocolError(Code.PROTOCOL_ERROR, "a frame for the connection came on a stream")
        if kind == WINDOW_UPDATE:
            self._take_window(number, body)
        elif kind == PING:
            self._take_ping(flags, body)
        elif kind == RST_STREAM:
            self._take_reset(number, body)
        elif kind == SETTINGS:
            self._take_settings(flags, body)
        elif kind == CONTINUATION:
            self._take_continuation(flags, body)
        elif kind == PUSH_PROMISE:
            raise BrokenProtocolError(Code.PROTOCOL_ERROR, "clients do not push")
        else:
            if kind == PRIORITY and len(body) != 5:  # a stream and a weight
                raise BrokenProtocolError(Code.FRAME_SIZE_ERROR, "a priority has five bytes")
            self._count_idle()  # priorities, a client's GOAWAY, and what is not known to us

    def _take_window(self, number: int, body: bytes) -> None:
        if len(body) != 4:  # one number
            raise BrokenProtocolError(Code.FRAME_SIZE_ERROR, "a window is one number")
        more = int.from_bytes(body) & WINDOW_MAX
        if number == 0:
            if not more:
                raise BrokenProtocolError(Code.PROTOCOL_ERROR, "a window grows by nothing")
            self.window_out += more
            if self.window_out > WINDOW_MAX:
                raise BrokenProtocolError(Code.FLOW_CONTROL_ERROR, "a window is too large")
        else:
            stream = self.streams.get(number)
            if stream is None:
                self._check_not_idle(number)
                return
            stream.window_out += more
            if not more or stream.window_out > WINDOW_MAX:
                stream.reset(Code.FLOW_CONTROL_ERROR if more else Code.PROTOCOL_ERROR)
                self._calls.abandoned(stream)
                return
            if stream.unsent:
                self._blocked[number] = stream
        if self._blocked and not self._due:
            self._due = True
            self._wake()

    def _take_ping(self, flags: int, body: bytes) -> None:
        if len(body) != 8:  # as the protocol has it
            raise BrokenProtocolError(Code.FRAME_SIZE_ERROR, "a ping has eight bytes")
        if not flags & ACK:
            self.pings += 1
            self.send(frame(PING, ACK, 0, body))

    def _take_reset(self, number: int, body: bytes) -> None:
        if len(body) != 4:  # one number
            raise BrokenProtocolError(Code.FRAME_SIZE_ERROR, "a reset is one number")
        stream = self.streams.get(number)
        if stream is None:
            self._check_not_idle(number)
            return
        stream.closed = True
        self.forget(stream)
        self._calls.abandoned(stream)

    def _take_settings(self, flags: int, body: bytes) -> None:
        if flags & ACK:
            if body:
                raise BrokenProtocolError(Code.FRAME_SIZE_ERROR, "an answer to settings is empty")
            return
        if len(body) % 6:
            raise BrokenProtocolError(Code.FRAME_SIZE_ERROR, "settings are pairs of numbers")
        if self._greeted:
            self._count_idle()
        self._greeted = True
        window = self._stream_window_out
        for at in range(0, len(body), 6):
            key, value = int.from_bytes(body[at : at + 2]), int.from_bytes(body[at + 2 : at + 6])
            if key == Setting.INITIAL_WINDOW_SIZE:
                window = value
                if window > WINDOW_MAX:
                    raise BrokenProtocolError(Code.FLOW_CONTROL_ERROR, "a window is too large")
            elif key == Setting.ENABLE_PUSH and value > 1:
                raise BrokenProtocolError(Code.PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1")
            elif key == Setting.MAX_FRAME_SIZE and not FRAME_BYTES_MAX <= value < 1 << 24:
                raise BrokenProtocolError(Code.PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of bounds")
        if window != self._stream_window_out:
            self._resize(window)  # once, whatever the frame repeats: it looks at every stream
        self.send(frame(SETTINGS, ACK, 0))

    def _resize(self, window: int) -> None:
        more = window - self._stream_window_out
        self._stream_window_out = window
        for stream in self.streams.values():
            stream.window_out += more
            if stream.window_out > WINDOW_MAX:
                raise BrokenProtocolError(Code.FLOW_CONTROL_ERROR, "a window is too large")
            if stream.unsent:
                self._blocked[stream.id] = stream

    def _check_not_idle(self, number: int) -> None:
        if not number & 1 or (number > self._last and not self.going):  # those are sent before our goodbye is read
            raise BrokenProtocolError(Code.PROTOCOL_ERROR, "a frame came for a stream that is not open")

    def _count_idle(self) -> None:
        self._idle_frames += 1
        if self._idle_frames > IDLE_FRAMES_MAX:
            raise BrokenProtocolError(Code.ENHANCE_YOUR_CALM, "too many frames that move nothing")
