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
from ister.broker.http2.stream import UNREAD_MAX, Stream

if TYPE_CHECKING:
    from collections.abc import Callable

STREAMS_MAX: Final = 4096
"""Calls at a time on one connection; a client that wants more waits."""
STREAM_WINDOW: Final = 1024 * 1024
CONNECTION_WINDOW: Final = 16 * 1024 * 1024
BLOCK_BYTES_MAX: Final = 20 * 1024
"""What the headers of one request may take as they are sent: a little more than a list of 16 KiB can need, so that who sends
one that is too long is told so and keeps his connection."""
IDLE_FRAMES_MAX: Final = 1000
"""Frames in a row that move nothing: settings, priorities, empty data, answers to what we did not ask."""
LATE_FRAMES_MAX: Final = 10_000
"""Frames in a row for calls that have ended: all may be given up when they have just been answered, each with a window."""
RESETS_MAX: Final = STREAMS_MAX
"""Calls given up that were not answered at all, beyond those that were: a client may give up all that it has, once."""
TABLE_BYTES: Final = 4096
"""The common memory of headers as everyone has it at first."""

_FORBIDDEN_ON_STREAM: Final = frozenset({SETTINGS, PING, GOAWAY})


class Calls(Protocol):
    """Who is told what a peer wants."""

    def opened(self, stream: Stream) -> None:
        """Take a new call, of which the headers are known; `stream.end` may be called at once."""

    def received(self, stream: Stream) -> None:
        """Take what came: `stream.body` has it, `stream.complete` tells whether it is all."""

    def abandoned(self, stream: Stream) -> None:
        """Learn that the client does not wait any more."""


class Connection:
    """What both ends have said so far."""

    def __init__(self, calls: Calls, wake: Callable[[], None], *, streams_max: int = STREAMS_MAX) -> None:
        self.streams: dict[int, Stream] = {}
        self.window_out = WINDOW_START
        self.pings = 0
        """Pings since we last sent anything of a call."""
        self.going = False
        """No new call is taken."""
        self.held_back = False
        """Whether the peer may send no more data than its window has now; see `let_go_on`."""
        self.lingering = 0
        """Calls that go on here although their streams have ended; they count among those that may be."""
        self.resets = 0
        """Calls that were given up without an answer, less those that were answered; whoever keeps time may forget some."""
        self.table_shrinks = False
        """Whether our next headers must say that we use no table."""
        self._calls = calls
        self._wake = wake
        self._streams_max = streams_max
        self._out: list[bytes | memoryview] = []
        self._due = False
        self._rest = b""
        self.prefaced = False
        """Whether the peer speaks HTTP/2 at all."""
        self.greeted = False
        """Whether it has told its settings."""
        self._acks_due = 0
        self._pongs_due = 0
        self._table_is_gone = False
        self._last = 0
        self._block: bytearray | None = None
        self._block_stream = 0
        self._block_ends = False
        self._headers = headers.RequestHeaders()
        self._stream_window_out = WINDOW_START
        self._window_in = CONNECTION_WINDOW
        self._idle_frames = self._late_frames = 0
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
        if self.prefaced:
            self._pongs_due += 1
            self.send(frame(PING, 0, 0, b"are you?"))

    def ask_to_leave(self) -> None:
        """Ask the peer to open no more calls here; those that it has on the way are looked at."""
        if self.prefaced:
            self.send(frames.goaway(STREAM_MAX, Code.NO_ERROR))

    def go_away(self, code: Code, why: str = "") -> None:
        """Take no more calls, and say so and why; those that are under way go on."""
        self.going = True
        if self.prefaced:
            self.send(frames.goaway(self._last, code, why))

    def let_go_on(self) -> None:
        """Give the peer back what was held back of its window."""
        self.held_back = False
        if self._window_in < CONNECTION_WINDOW // 2:
            self._widen()

    def first_block(self, block: bytes) -> bytes:
        """Return a block of headers with what its reader has to know first."""
        self.table_shrinks, self._table_is_gone = False, True
        return headers.NO_TABLE + block

    def count_reset(self, stream: Stream) -> None:
        """Remember a call that was given up, unless it has had something of an answer."""
        if not stream.started:
            self.resets += 1

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
                block = self.first_block(stream.trailer) if self.table_shrinks else stream.trailer
                self._out.append(frame(HEADERS, flags, stream.id, block))
                if self.resets:
                    self.resets -= 1
                if not stream.complete:
                    self._out.append(frames.reset(stream.id, Code.NO_ERROR))  # what it still sends is not needed
                stream.closed = True
                self.forget(stream)

    def _pump_data(self, stream: Stream) -> None:
        room = min(self.window_out, stream.window_out)
        if room <= 0:
            return
        self.pings = self._idle_frames = self._late_frames = 0
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
        stream.sent_bytes += sent
        while stream.sent_marks and stream.sent_marks[0][0] <= stream.sent_bytes:
            stream.sent_marks.popleft()[1]()
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
            if not self.held_back:
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
        if not self.greeted or not number & 1:
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
        if len(self.streams) + self.lingering >= self._streams_max:
            self.send(frames.reset(number, Code.REFUSED_STREAM))
            self.resets += 1
            self._judge_resets()
            return
        self._idle_frames = self._late_frames = 0
        stream = Stream(self, number, request, STREAM_WINDOW, self._stream_window_out)
        self.streams[number] = stream
        self._calls.opened(stream)
        if ends:
            stream.complete = True
            if stream.trailer is None and not stream.closed:
                self._calls.received(stream)

    def _take_other(self, kind: int, flags: int, number: int, body: bytes) -> None:
        if not self.greeted and kind != SETTINGS:
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
            stream.window_out += more
            if not more or stream.window_out > WINDOW_MAX:
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
        stream.closed = True
        self.count_reset(stream)
        self.forget(stream)
        self._calls.abandoned(stream)
        self._judge_resets()

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
        if self.greeted:
            self._count_idle()
        self.greeted = True
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

    def _give_up(self, stream: Stream, code: Code) -> None:
        """End a call with which something is wrong."""
        stream.reset(code)
        self._calls.abandoned(stream)
        self._judge_resets()

    def _judge_resets(self) -> None:
        if self.resets > RESETS_MAX:
            raise BrokenProtocolError(Code.ENHANCE_YOUR_CALM, "too many calls are given up")

    def _check_not_idle(self, number: int) -> None:
        if not number & 1 or (number > self._last and not self.going):  # those are sent before our goodbye is read
            raise BrokenProtocolError(Code.PROTOCOL_ERROR, "a frame came for a stream that is not open")

    def _count_idle(self) -> None:
        self._idle_frames += 1
        if self._idle_frames > IDLE_FRAMES_MAX:
            raise BrokenProtocolError(Code.ENHANCE_YOUR_CALM, "too many frames that move nothing")

    def _count_late(self) -> None:
        self._late_frames += 1
        if self._late_frames > LATE_FRAMES_MAX:
            raise BrokenProtocolError(Code.ENHANCE_YOUR_CALM, "too many frames for calls that have ended")
