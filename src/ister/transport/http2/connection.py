"""HTTP/2 connection state machine (RFC 9113), server side. Sans-I/O: bytes in, events and bytes out.

The owner feeds `receive`, and writes what `take_output` returns after each call of `wake`. Everything that a peer can make
us hold is bounded: frames, headers, streams, windows, and unsent data, because writers wait (`Stream.write`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ister.transport.http2 import frames, headers
from ister.transport.http2 import stream as streams
from ister.transport.http2.frames import (
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
from ister.transport.http2.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

STREAMS_MAX: Final = 4096
"""Concurrent calls on one connection."""
CONNECTION_WINDOW: Final = 16 * 1024 * 1024
BLOCK_BYTES_MAX: Final = 20 * 1024
"""Encoded headers of one request: slightly more than a list of 16 KiB can need, so that a longer list is refused and the
connection lives on."""
IDLE_FRAMES_MAX: Final = 1000
"""Consecutive frames without effect: settings, priorities, empty data, unsolicited acknowledgements."""
LATE_FRAMES_MAX: Final = 10_000
"""Consecutive frames for ended calls: a client may reset all of its calls just after their answers, each with a window."""
RESETS_MAX: Final = STREAMS_MAX
"""Calls reset before any answer, less those answered: a client may reset all of its calls, once."""
TABLE_BYTES: Final = 4096
"""Initial size of the HPACK table."""

_FORBIDDEN_ON_STREAM: Final = frozenset({SETTINGS, PING, GOAWAY})


class StreamListener(Protocol):
    """Receiver of a connection's events."""

    def opened(self, stream: Stream) -> None:
        """Handle a new stream, whose headers are known; `stream.end` may be called at once."""

    def received(self, stream: Stream) -> None:
        """Handle request data: `stream.take_body()` returns it, `stream.complete` is True after the last."""

    def abandoned(self, stream: Stream) -> None:
        """Handle a stream that was reset."""


class Http2Connection:
    """State of one connection."""

    def __init__(self, listener: StreamListener, wake: Callable[[], None], *, streams_max: int = STREAMS_MAX) -> None:
        self.streams: dict[int, Stream] = {}
        self.window_out = WINDOW_START
        self.pings = 0
        """Pings since the last frame of a call was sent."""
        self.going = False
        """Whether new calls are ignored."""
        self.is_paused = False
        """Whether the connection window is withheld from the peer."""
        self.resets = 0
        """Calls reset without an answer, less those answered."""
        self.table_shrinks = False
        """Whether our next headers must announce an empty HPACK table."""
        self._lingering = 0
        """Handlers that still run although their streams are closed; they count as concurrent calls."""
        self._listener = listener
        self._wake = wake
        self._streams_max = streams_max
        self._out: list[bytes | memoryview] = []
        self._due = False
        self._rest = b""
        self.prefaced = False
        """Whether the connection preface was received."""
        self.has_settings = False
        """Whether the peer's settings were received."""
        self._acks_due = 0
        self._pongs_due = 0
        self._table_is_gone = False
        self._last = 0
        self._block: bytearray | None = None
        self._block_stream = 0
        self._block_ends = False
        self._headers = headers.HeaderDecoder()
        self._stream_window_out = WINDOW_START
        self._window_in = CONNECTION_WINDOW
        self._idle_frames = self._late_frames = 0
        self._blocked: dict[int, Stream] = {}

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Queue frames for the next write."""
        self._out.append(data)
        if not self._due:
            self._due = True
            self._wake()

    def blocked(self, stream: Stream) -> None:
        """Queue a stream that has data or trailers to send."""
        self._blocked[stream.id] = stream
        if not self._due:
            self._due = True
            self._wake()

    def take_output(self) -> bytes:
        """Return the bytes to send now, as far as the peer's windows allow."""
        self._due = False
        if self._blocked:
            self._pump()
        out = b"".join(self._out)
        self._out.clear()
        return out

    def ping(self) -> None:
        """Send a keepalive ping."""
        if self.prefaced:
            self._pongs_due += 1
            self.send(frame(PING, 0, 0, b"are you?"))

    def announce_shutdown(self) -> None:
        """Start a graceful shutdown: ask the peer to open no more streams, and still serve those on the way."""
        if self.prefaced:
            self.send(frames.goaway(STREAM_MAX, Code.NO_ERROR))

    def go_away(self, code: Code, why: str = "") -> None:
        """Ignore new calls, and report the reason; calls in progress continue."""
        self.going = True
        if self.prefaced:
            self.send(frames.goaway(self._last, code, why))

    def pause_window(self) -> None:
        """Grant the peer no more connection window until `resume_window`."""
        self.is_paused = True

    def resume_window(self) -> None:
        """Grant the connection window that was withheld."""
        self.is_paused = False
        if self._window_in < CONNECTION_WINDOW // 2:
            self._widen()

    def first_block(self, block: bytes) -> bytes:
        """Return a header block that begins with the HPACK table size update."""
        self.table_shrinks, self._table_is_gone = False, True
        return headers.NO_TABLE + block

    def begin_lingering(self) -> None:
        """Count a handler that outlives its stream."""
        self._lingering += 1

    def end_lingering(self, _: object = None) -> None:
        """Stop counting a handler that has ended."""
        self._lingering -= 1

    def count_reset(self) -> None:
        """Count a call that was reset without an answer."""
        self.resets += 1

    def forgive_resets(self) -> None:
        """Forget the resets so far."""
        self.resets = 0

    def finish(self, stream: Stream, data: bytes, size: int) -> None:
        """Send a whole response, of which `size` bytes are subject to flow control, and forget its stream."""
        self.window_out -= size
        if self.resets:
            self.resets -= 1
        self.send(data)
        self.forget(stream)

    def forget(self, stream: Stream) -> None:
        """Remove a closed stream."""
        self.pings = 0
        self._blocked.pop(stream.id, None)
        self.streams.pop(stream.id, None)

    def _pump(self) -> None:
        """Turn unsent data into frames; streams take turns when the connection's window is small."""
        for stream in list(self._blocked.values()):
            if stream.unsent:
                if self.window_out <= 0:
                    continue
                sent = stream.take_data(self.window_out, self._out)
                if sent:
                    self.pings = self._idle_frames = self._late_frames = 0
                    self.window_out -= sent
                    stream.report_sent()
            del self._blocked[stream.id]
            if stream.unsent:
                if stream.window_out > 0:
                    self._blocked[stream.id] = stream  # behind the others
            elif stream.trailers is not None:
                flags = END_HEADERS | END_STREAM
                block = self.first_block(stream.trailers) if self.table_shrinks else stream.trailers
                self._out.append(frame(HEADERS, flags, stream.id, block))
                if self.resets:
                    self.resets -= 1
                if not stream.complete:
                    self._out.append(frames.reset(stream.id, Code.NO_ERROR))  # what it still sends is not needed
                stream.close()

    # --- receiving ----------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Process received bytes; BrokenProtocolError ends the connection."""
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
            self._send_settings()
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

    def _send_settings(self) -> None:
        """Send our settings; only after the preface, so that an HTTP/1 client gets an HTTP/1 answer."""
        ours = {
            Setting.MAX_CONCURRENT_STREAMS: self._streams_max,
            Setting.INITIAL_WINDOW_SIZE: streams.STREAM_WINDOW,
            Setting.MAX_HEADER_LIST_SIZE: headers.LIST_BYTES_MAX,
        }
        self._acks_due += 1
        self.send(frames.settings(ours) + frames.window_update(0, CONNECTION_WINDOW - WINDOW_START))

    def _widen(self) -> None:
        self.send(frames.window_update(0, CONNECTION_WINDOW - self._window_in))
        self._window_in = CONNECTION_WINDOW

    def _take_data(self, number: int, flags: int, data: bytes, start: int, stop: int) -> None:
        size = stop - start
        self._window_in -= size
        if self._window_in < CONNECTION_WINDOW // 2:
            if self._window_in < 0:
                raise BrokenProtocolError(Code.FLOW_CONTROL_ERROR, "more data came than the window allows")
            if not self.is_paused:
                self._widen()
        if flags & PADDED:
            if not size or data[start] >= size:
                raise BrokenProtocolError(Code.PROTOCOL_ERROR, "padding is longer than its frame")
            start, stop = start + 1, stop - data[start]
        stream = self.streams.get(number)
        if stream is None or stream.complete:
            self._check_not_idle(number)
            if stream is not None:
                self._give_up(stream, Code.STREAM_CLOSED)
            elif not size:
                self._count_late()
            return
        ends = flags & END_STREAM
        if not ends:
            more = stream.consume_window(size)
            if more:
                self.send(frames.window_update(number, more))
            if start == stop:
                self._count_idle()
        if stream.receive(data[start:stop], complete=ends != 0):
            self._listener.received(stream)

    def _take_headers(self, number: int, flags: int, block: bytes) -> None:
        if not self.has_settings or not number & 1:
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
                return  # ended here while the client was still sending
            if stream.complete or not ends:
                raise BrokenProtocolError(Code.PROTOCOL_ERROR, "a call has headers twice")
            if stream.receive(b"", complete=True):
                self._listener.received(stream)
            return
        if self.going:
            return  # our GOAWAY says that this stream is not processed
        self._last = number
        if len(self.streams) + self._lingering >= self._streams_max:
            self.send(frames.reset(number, Code.REFUSED_STREAM))
            self.count_reset()
            self._check_resets()
            return
        self._idle_frames = self._late_frames = 0
        stream = Stream(self, number, request, self._stream_window_out)
        self.streams[number] = stream
        self._listener.opened(stream)
        if ends and stream.receive(b"", complete=True) and not stream.closed:
            self._listener.received(stream)

    def _take_other(self, kind: int, flags: int, number: int, body: bytes) -> None:
        if not self.has_settings and kind != SETTINGS:
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
                self._count_late()
                return
            if not stream.widen(more) or not more:
                self._give_up(stream, Code.FLOW_CONTROL_ERROR if more else Code.PROTOCOL_ERROR)
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
        elif self._pongs_due:
            self._pongs_due -= 1
        else:
            self._count_idle()

    def _take_reset(self, number: int, body: bytes) -> None:
        if len(body) != 4:  # one number
            raise BrokenProtocolError(Code.FRAME_SIZE_ERROR, "a reset is one number")
        stream = self.streams.get(number)
        if stream is None:
            self._check_not_idle(number)
            self._count_late()
            return
        stream.abort()
        self._listener.abandoned(stream)
        self._check_resets()

    def _take_settings(self, flags: int, body: bytes) -> None:
        if flags & ACK:
            if body:
                raise BrokenProtocolError(Code.FRAME_SIZE_ERROR, "an answer to settings is empty")
            if self._acks_due:
                self._acks_due -= 1
            else:
                self._count_idle()
            return
        if len(body) % 6:
            raise BrokenProtocolError(Code.FRAME_SIZE_ERROR, "settings are pairs of numbers")
        if self.has_settings:
            self._count_idle()
        self.has_settings = True
        window = self._stream_window_out
        for at in range(0, len(body), 6):
            key, value = int.from_bytes(body[at : at + 2]), int.from_bytes(body[at + 2 : at + 6])
            if key == Setting.INITIAL_WINDOW_SIZE:
                window = value
                if window > WINDOW_MAX:
                    raise BrokenProtocolError(Code.FLOW_CONTROL_ERROR, "a window is too large")
            elif key == Setting.HEADER_TABLE_SIZE and value < TABLE_BYTES:
                self.table_shrinks = not self._table_is_gone
            elif key == Setting.ENABLE_PUSH and value > 1:
                raise BrokenProtocolError(Code.PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1")
            elif key == Setting.MAX_FRAME_SIZE and not FRAME_BYTES_MAX <= value < 1 << 24:
                raise BrokenProtocolError(Code.PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of bounds")
        if window != self._stream_window_out:
            self._resize(window)  # once per frame: it visits every stream
        self.send(frame(SETTINGS, ACK, 0))

    def _resize(self, window: int) -> None:
        more = window - self._stream_window_out
        self._stream_window_out = window
        for stream in self.streams.values():
            if not stream.widen(more):
                raise BrokenProtocolError(Code.FLOW_CONTROL_ERROR, "a window is too large")
            if stream.unsent:
                self._blocked[stream.id] = stream

    def _give_up(self, stream: Stream, code: Code) -> None:
        """Reset a stream for a protocol error of its own."""
        stream.reset(code)
        self._listener.abandoned(stream)
        self._check_resets()

    def _check_resets(self) -> None:
        if self.resets > RESETS_MAX:
            raise BrokenProtocolError(Code.ENHANCE_YOUR_CALM, "too many calls are given up")

    def _check_not_idle(self, number: int) -> None:
        if not number & 1 or (number > self._last and not self.going):  # sent before our GOAWAY arrived
            raise BrokenProtocolError(Code.PROTOCOL_ERROR, "a frame came for a stream that is not open")

    def _count_idle(self) -> None:
        self._idle_frames += 1
        if self._idle_frames > IDLE_FRAMES_MAX:
            raise BrokenProtocolError(Code.ENHANCE_YOUR_CALM, "too many frames that move nothing")

    def _count_late(self) -> None:
        self._late_frames += 1
        if self._late_frames > LATE_FRAMES_MAX:
            raise BrokenProtocolError(Code.ENHANCE_YOUR_CALM, "too many frames for calls that have ended")
