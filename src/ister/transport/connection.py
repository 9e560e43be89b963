"""A client's connection on asyncio: I/O for the state machine in http2/, limits, handshake and keepalive."""

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

from ister.transport.call import Call
from ister.transport.http2 import headers
from ister.transport.http2.connection import Http2Connection
from ister.transport.http2.frames import BrokenProtocolError, Code

if TYPE_CHECKING:
    from ister.transport.call import Calls
    from ister.transport.http2.stream import Stream
    from ister.transport.request_budget import ConnectionBudget

WRITE_BUFFER_BYTES: Final = 1024 * 1024
"""Unsent bytes from which on nothing more is read from a client."""
PING_STRIKES_MAX: Final = 100
"""Pings that may come too soon; some clients measure the bandwidth with a few in a row."""
CLOSING_S: Final = 1.0
"""Time for a client to read our last frames and to close."""
HANDSHAKE_TIMEOUT_S: Final = 10.0
STALL_CHECK_S: Final = 30.0
"""Interval of the check for stalled requests; a request ends when two checks in a row find it without new data."""
REFUSED_MAX: Final = 100
"""Refused connections that are closed gracefully at a time; further ones are aborted."""
NO_HTTP2: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b"This port speaks gRPC (HTTP/2 without TLS) and nothing else.\n"
)

log = structlog.get_logger()


def _unacknowledged_bytes(sock: socket.socket) -> int:
    """Return the bytes in the kernel's send queue that the peer has not acknowledged; 0 where unsupported."""
    try:
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0


@dataclass(frozen=True, slots=True)
class Keepalive:
    """When we ping, how long we wait, and the minimum interval of a client's pings."""

    interval_s: float
    timeout_s: float
    client_interval_s_min: float


class ConnectionLimiter:
    """Bounds the connections of a port: the process needs file descriptors for its logs, too."""

    def __init__(self, connections_max: int) -> None:
        self.connections: set[ServerConnection] = set()
        self._connections_max = connections_max
        self._refused = 0
        self._is_full = False

    def try_acquire(self, connection: ServerConnection, address: str) -> bool:
        """Return True if the connection may be served. Logs the limit once, again after usage fell below 90 %."""
        present = len(self.connections)
        if present < self._connections_max:
            if present < self._connections_max * 9 // 10:
                self._is_full = False
            self.connections.add(connection)
            return True
        if not self._is_full:
            self._is_full = True
            reason = f"this port has {present} connections, which is all that it takes"
            log.info("connection_refused", peer=address, reason=reason)
        return False

    def release(self, connection: ServerConnection) -> None:
        """Forget a lost connection."""
        self.connections.discard(connection)

    def may_close_gracefully(self, lost: asyncio.Future[None]) -> bool:
        """Return True if a refused connection may wait for its client, until it is lost."""
        if self._refused >= REFUSED_MAX:
            return False
        self._refused += 1
        lost.add_done_callback(self._refused_left)
        return True

    def _refused_left(self, _: object) -> None:
        self._refused -= 1


class ServerConnection(asyncio.Protocol):
    """A connection: received bytes go to the state machine, its output is written once per event-loop iteration."""

    def __init__(self, calls: Calls, keepalive: Keepalive, limiter: ConnectionLimiter) -> None:
        self._calls = calls
        self._keepalive = keepalive
        self._limiter = limiter
        self._loop = asyncio.get_running_loop()
        self._strikes = 0
        self._pings_seen = 0
        self._pinged_at = float("-inf")
        self._heard = False
        self._written = 0
        self._acknowledged = 0
        self._is_behind = False
        self._paused = False
        self._closing = False
        self._ended = False
        self._address = ""
        self._timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport
        self._connection: Http2Connection
        self._budget: ConnectionBudget
        self.lost: asyncio.Future[None] = self._loop.create_future()

    # --- callbacks of asyncio -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the connection up, or refuse it."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # an answer is one write
        place = transport.get_extra_info("peername")
        family = "ipv6" if len(place) > 2 else "ipv4"  # an IPv6 address has flow and scope, too
        host = f"[{place[0]}]" if family == "ipv6" else place[0]
        self._address = f"{family}:{host}:{place[1]}"
        self._connection = Http2Connection(self, self._wake)
        self._budget = self._calls.budget.connect(self._connection)
        if not self._limiter.try_acquire(self, self._address):
            # Beyond the limit: closed without an HTTP/2 frame.
            if self._limiter.may_close_gracefully(self.lost):
                self.close()
            else:
                self.abort()
            return
        timeout_s = min(HANDSHAKE_TIMEOUT_S, self._keepalive.interval_s + self._keepalive.timeout_s)
        self._timer = self._loop.call_later(timeout_s, self._check_handshake)
        self._stall_timer = self._loop.call_later(STALL_CHECK_S, self._check_stalled)

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        if self._closing:
            return
        self._heard = True
        connection = self._connection
        try:
            connection.receive(data)
            if connection.pings:
                self._check_pings()
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
        """Stop reading: the client does not read our answers."""
        self._paused = True
        if not self._closing:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read and write again."""
        self._paused = False
        if not self._closing:
            self._transport.resume_reading()
        self._flush()

    def connection_lost(self, _: Exception | None) -> None:
        """Cancel the calls of the connection."""
        self._closing = True
        self._stop_timers()
        self._limiter.release(self)
        for stream in list(self._connection.streams.values()):
            stream.close()
            self.abandoned(stream)
        self._calls.budget.disconnect(self._budget)
        if not self.lost.done():
            self.lost.set_result(None)

    # --- events of the state machine ----------------------------------------------------------------------------------

    def opened(self, stream: Stream) -> None:
        """Look up the method of a call; refuse what is no gRPC call or no method of ours."""
        request = stream.request
        method = self._calls.methods.get(request.path)
        if not request.is_call:
            stream.reject(headers.refusal(415))
        elif request.problem:
            stream.end(headers.end(request.problem_code, request.problem))
        elif method is None:
            text = f"there is no method {request.path[:200]} here"
            stream.end(headers.end(StatusCode.UNIMPLEMENTED.value[0], text, (headers.ENCODINGS,)))
        else:
            call = Call(stream, method, self._budget, self._address)
            stream.bind(call)
            if request.timeout_s is not None:
                call.set_deadline(self._loop.call_later(request.timeout_s, self._calls.expire, call))
            if not method.buffers_request:
                self._calls.begin(call)

    def received(self, stream: Stream) -> None:
        """Hand request data to the call."""
        call = stream.call
        assert isinstance(call, Call)
        self._calls.received(call)

    def abandoned(self, stream: Stream) -> None:
        """Cancel a call that its client has reset."""
        call = stream.call
        if isinstance(call, Call):
            self._calls.abandon(call)

    # --- stopping -----------------------------------------------------------------------------------------------------

    def announce_shutdown(self) -> None:
        """Ask the client to close its connection after its last call; new calls are served until then."""
        self._connection.announce_shutdown()

    def close(self) -> None:
        """Flush, send GOAWAY, and close."""
        if not self._connection.going and self._connection.prefaced:
            self._connection.go_away(Code.NO_ERROR)
        self._closing = True
        self._flush()
        self._stop_timers()
        # Half-closed first: closing with unread input would make the kernel discard output that the client has not read.
        self._timer = self._loop.call_later(CLOSING_S, self.abort)
        if not self._transport.is_closing():
            self._ended = True
            self._transport.resume_reading()
            try:
                self._transport.write_eof()
            except OSError:
                self.abort()  # the client has disconnected

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._stall_timer):
            if timer is not None:
                timer.cancel()

    # --- writing, keepalive -------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if not self._ended and (not self._paused or self._closing):
            data = self._connection.take_output()
            if data and not self._transport.is_closing():
                self._written += len(data)
                self._transport.write(data)

    def _check_stalled(self) -> None:
        """End stalled requests."""
        self._stall_timer = self._loop.call_later(STALL_CHECK_S, self._check_stalled)
        self._calls.end_stalled(self._connection)

    def _check_handshake(self) -> None:
        """Abort a connection whose client has not sent its settings."""
        if self._connection.has_settings:
            self._ping_idle()
        else:
            self.abort()

    def _ping_idle(self) -> None:
        """Ping a client that has been idle."""
        self._connection.forgive_resets()
        if self._is_active():
            self._timer = self._loop.call_later(self._keepalive.interval_s, self._ping_idle)
        else:
            if not self._paused:
                self._connection.ping()
            self._timer = self._loop.call_later(self._keepalive.timeout_s, self._check_ping)

    def _check_ping(self) -> None:
        if self._is_active():
            self._timer = self._loop.call_later(self._keepalive.interval_s, self._ping_idle)
        else:
            silent_s = self._keepalive.interval_s + self._keepalive.timeout_s
            log.info("client_gone", peer=self._address, silent_s=silent_s)
            self.abort()

    def _is_active(self) -> bool:
        """Return True if the client has sent or acknowledged something since the last check.

        Acknowledgements count only while output waits here: until then the kernels accept it for a stopped process, too.
        """
        unsent = self._transport.get_write_buffer_size()
        acknowledged = self._written - unsent - _unacknowledged_bytes(self._transport.get_extra_info("socket"))
        active = self._heard or (self._is_behind and acknowledged > self._acknowledged)
        self._heard, self._is_behind, self._acknowledged = False, unsent > 0, acknowledged
        return active

    def _check_pings(self) -> None:
        now = self._loop.time()
        new = self._connection.pings - self._pings_seen
        self._pings_seen = self._connection.pings
        if new <= 0:
            return
        self._strikes = self._strikes + new if now - self._pinged_at < self._keepalive.client_interval_s_min else 0
        self._pinged_at = now
        if self._strikes > PING_STRIKES_MAX:
            raise BrokenProtocolError(Code.ENHANCE_YOUR_CALM, "too_many_pings")
