"""One client's connection on asyncio: reads and writes for the machine in http2/, and watches whether the client lives."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import sys
import termios
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import structlog
from grpc import StatusCode

from ister.broker.calls import Call
from ister.broker.http2 import headers
from ister.broker.http2.connection import Connection
from ister.broker.http2.frames import BrokenProtocolError, Code
from ister.broker.room import Share

if TYPE_CHECKING:
    from ister.broker.calls import Calls
    from ister.broker.http2.stream import Stream

WRITE_BUFFER_BYTES: Final = 1024 * 1024
"""What may wait for a client that does not read, before nothing more is read from it."""
PING_STRIKES_MAX: Final = 100
"""How many pings may come too soon; some clients measure the line with a few in a row."""
CLOSING_S: Final = 1.0
"""How long a client may take to read the last that it is told, and to close."""
GREETING_S: Final = 10.0
"""How long a client may take to say that it speaks HTTP/2, and to tell its settings."""
SILENCE_S: Final = 30.0
"""After how long requests of which nothing more comes are looked for; each is ended when it is found twice."""
LEAVING_MAX: Final = 100
"""Clients that were not let in and have not left yet; there is no time to be polite to more."""
NO_HTTP2: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b"This port speaks gRPC (HTTP/2 without TLS) and nothing else.\n"
)

log = structlog.get_logger()


def _sent_and_not_taken(sock: socket.socket) -> int:
    """Return how many bytes the system keeps that the other end has not acknowledged; 0 where it does not tell."""
    try:
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0


@dataclass(frozen=True, slots=True)
class Pings:
    """When we ping, how long we wait, and how often a client may."""

    every_s: float
    timeout_s: float
    least_s: float


class Door:
    """How many connections a port takes: the process needs descriptors for its files, too."""

    def __init__(self, connections_max: int) -> None:
        self.connections_max = connections_max
        self.leaving = 0
        self._is_full = False

    def lets_in(self, present: int, address: str) -> bool:
        """Whether there is a place for one more; that there is none is said once, until there are some again."""
        if present < self.connections_max:
            if present < self.connections_max * 9 // 10:
                self._is_full = False
            return True
        if not self._is_full:
            self._is_full = True
            reason = f"this port has {present} connections, which is all that it takes"
            log.info("connection_refused", peer=address, reason=reason)
        return False


class Peer(asyncio.Protocol):
    """A connection: what comes is given to the machine, what it wants to send is sent once a turn of the loop."""

    def __init__(self, calls: Calls, pings: Pings, door: Door, peers: set[Peer]) -> None:
        self._calls = calls
        self._pings = pings
        self._door = door
        self._peers = peers
        self._loop = asyncio.get_running_loop()
        self._strikes = 0
        self._pings_seen = 0
        self._pinged_at = float("-inf")
        self._heard = False
        self._written = 0
        self._taken = 0
        self._is_behind = False
        self._paused = False
        self._closing = False
        self._ended = False
        self._address = ""
        self._timer: asyncio.TimerHandle | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport
        self._connection: Connection
        self._share: Share
        self.lost = self._loop.create_future()

    # --- what asyncio tells -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # an answer is one write: it waits for nothing
        place = transport.get_extra_info("peername")
        family = "ipv6" if len(place) > 2 else "ipv4"  # the sixth version has more to say
        host = f"[{place[0]}]" if family == "ipv6" else place[0]
        self._address = f"{family}:{host}:{place[1]}"
        self._connection = Connection(self, self._wake)
        self._share = Share(self._connection, self._address)
        if not self._door.lets_in(len(self._peers), self._address):
            self._turn_away()
            return
        self._peers.add(self)
        self._calls.room.shares.add(self._share)
        patience_s = min(GREETING_S, self._pings.every_s + self._pings.timeout_s)
        self._timer = self._loop.call_later(patience_s, self._judge_greeting)
        self._sweep_timer = self._loop.call_later(SILENCE_S, self._sweep)

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        if self._closing:
            return
        self._heard = True
        connection = self._connection
        try:
            connection.receive(data)
            if connection.pings:
                self._judge_pings()
            else:
                self._pings_seen = self._strikes = 0
        except BrokenProtocolError as error:
            if connection.prefaced:
                log.info("connection_refused", peer=self._address, reason=str(error))
                connection.go_away(error.code, error.why)
            else:
                self._transport.write(NO_HTTP2)
            self.close()
        except Exception:  # the root of a connection
            log.exception("connection_failed", peer=self._address)
            connection.go_away(Code.INTERNAL_ERROR)
            self.close()

    def pause_writing(self) -> None:
        """Hold back: the client does not read."""
        self._paused = True
        if not self._closing:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self._paused = False
        if not self._closing:
            self._transport.resume_reading()
        self._flush()

    def connection_lost(self, _: Exception | None) -> None:
        """Let every call know that its client has gone."""
        self._closing = True
        self._stop_timers()
        self._peers.discard(self)
        for stream in list(self._connection.streams.values()):
            stream.closed = True
            self._connection.forget(stream)
            self.abandoned(stream)
        self._calls.room.forget(self._share)
        if not self.lost.done():
            self.lost.set_result(None)

    # --- what the machine tells ---------------------------------------------------------------------------------------

    def opened(self, stream: Stream) -> None:
        """Find the method of a call; what is no call of ours is refused."""
        request = stream.request
        method = self._calls.methods.get(request.path)
        if not request.is_call:
            stream.started = True
            stream.end(headers.refusal(415))
        elif request.problem:
            stream.end(headers.end(request.problem_code, request.problem))
        elif method is None:
            text = f"there is no method {request.path[:200]} here"
            stream.end(headers.end(StatusCode.UNIMPLEMENTED.value[0], text, (headers.ENCODINGS,)))
        else:
            call = Call(stream, method, self._share)
            stream.call = call
            if request.timeout_s is not None:
                call.timer = self._loop.call_later(request.timeout_s, self._calls.expire, call)
            if not method.gathers:
                self._calls.begin(call)

    def received(self, stream: Stream) -> None:
        """Give what came to the call."""
        call = stream.call
        assert isinstance(call, Call)
        self._calls.received(call)

    def abandoned(self, stream: Stream) -> None:
        """End a call whose client does not wait."""
        call = stream.call
        if isinstance(call, Call):
            self._calls.abandon(call)

    # --- stopping -----------------------------------------------------------------------------------------------------

    def ask_to_leave(self) -> None:
        """Ask the client to close its connection when it has no call any more; what it asks until then is answered."""
        self._connection.ask_to_leave()

    def close(self) -> None:
        """Send what there is, say which calls were not looked at, and close."""
        if not self._connection.going and self._connection.prefaced:
            self._connection.go_away(Code.NO_ERROR)
        self._closing = True
        self._flush()
        self._stop_timers()
        # Not closed at once: the system would throw away what the client has not read yet if there is input that we have not.
        self._timer = self._loop.call_later(CLOSING_S, self.abort)
        if not self._transport.is_closing():
            self._ended = True
            self._transport.resume_reading()
            try:
                self._transport.write_eof()
            except OSError:
                self.abort()  # the client has gone, and we had not heard of it

    def abort(self) -> None:
        """Close, whether or not the client reads."""
        self._transport.abort()

    def _turn_away(self) -> None:
        """Close a connection for which there is no place, without having spoken."""
        if self._door.leaving >= LEAVING_MAX:
            self.abort()
            return
        self._door.leaving += 1
        self.lost.add_done_callback(self._has_left)
        self.close()

    def _has_left(self, _: object) -> None:
        self._door.leaving -= 1

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._sweep_timer):
            if timer is not None:
                timer.cancel()

    # --- sending and asking -------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if not self._ended and (not self._paused or self._closing):
            data = self._connection.take_output()
            if data and not self._transport.is_closing():
                self._written += len(data)
                self._transport.write(data)

    def _sweep(self) -> None:
        """End the calls of which nothing more comes."""
        self._sweep_timer = self._loop.call_later(SILENCE_S, self._sweep)
        self._calls.end_silent(self._connection)

    def _judge_greeting(self) -> None:
        """Do not wait for a client that does not say what it speaks."""
        if self._connection.greeted:
            self._ask()
        else:
            self.abort()

    def _ask(self) -> None:
        """Ask a client that has been silent whether it is there."""
        self._connection.resets = 0
        if self._has_moved():
            self._timer = self._loop.call_later(self._pings.every_s, self._ask)
        else:
            if not self._paused:
                self._connection.ping()
            self._timer = self._loop.call_later(self._pings.timeout_s, self._judge_silence)

    def _judge_silence(self) -> None:
        if self._has_moved():
            self._timer = self._loop.call_later(self._pings.every_s, self._ask)
        else:
            log.info("client_gone", peer=self._address, silent_s=self._pings.every_s + self._pings.timeout_s)
            self.abort()

    def _has_moved(self) -> bool:
        """Whether the client has said something since this was asked last, or has taken some of what waits for it.

        That is a sign of life only when something waits here: as long as there is room, the systems at both ends take it for
        somebody who sleeps.
        """
        unsent = self._transport.get_write_buffer_size()
        taken = self._written - unsent - _sent_and_not_taken(self._transport.get_extra_info("socket"))
        moved = self._heard or (self._is_behind and taken > self._taken)
        self._heard, self._is_behind, self._taken = False, unsent > 0, taken
        return moved

    def _judge_pings(self) -> None:
        now = self._loop.time()
        new = self._connection.pings - self._pings_seen
        self._pings_seen = self._connection.pings
        if new <= 0:
            return
        self._strikes = self._strikes + new if now - self._pinged_at < self._pings.least_s else 0
        self._pinged_at = now
        if self._strikes > PING_STRIKES_MAX:
            raise BrokenProtocolError(Code.ENHANCE_YOUR_CALM, "too_many_pings")
