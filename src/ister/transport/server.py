"""gRPC server on asyncio: binds services to a port, stops gracefully.

HTTP/2 is our own (http2/): grpc.aio costs half a millisecond of CPU a call (docs/adr/0021).
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from ister.core.errors import BusyError, InvalidConfigError
from ister.transport.call import Calls
from ister.transport.connection import CLOSING_S, ConnectionLimiter, Keepalive, ServerConnection
from ister.transport.standard_services import Health, reflection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ister.transport.service import DescribeError, Service

PING_INTERVAL_MS_MIN: Final = 500
"""Minimum interval of a client's pings, with or without calls; gRPC's default of five minutes breaks common clients."""
BACKLOG: Final = 1024
"""Connections that may wait for accept: after a restart all clients reconnect at once."""
CONNECTIONS_MIN: Final = 16
"""Minimum of the connection limit, however low the descriptor limit is."""
SETTLING_S: Final = 0.15
"""How long calls are answered with UNAVAILABLE before connections are closed: a client that got it backs off, and has no
call in flight when its connection ends. Clients report a call that was cut off as failed to their users."""
LEAVING_S: Final = 0.25
"""Time for a client to close its connection after GOAWAY."""

log = structlog.get_logger()


class AddressTakenError(BusyError):
    """Another process listens on the address."""

    def __init__(self, address: str) -> None:
        self.address = address
        super().__init__(f"{address} is taken: another process listens there; stop it, or choose another port")


class Server:
    """A listening server."""

    def __init__(
        self, port: int, listening: list[asyncio.Server], health: Health, calls: Calls, limiter: ConnectionLimiter
    ) -> None:
        self.port = port
        self._listening = listening
        self._health = health
        self._calls = calls
        self._connections = limiter.connections

    def drain(self) -> None:
        """Report NOT_SERVING to health checks; calls are still served."""
        self._health.drain()

    async def stop(self, grace_s: float) -> None:
        """Stop accepting calls, end every stream, and give the other calls `grace_s` to end."""
        for one in self._listening:
            one.close()
        self._calls.end_streams()
        began = asyncio.get_running_loop().time()
        await self._calls.end_others(grace_s)
        spent = asyncio.get_running_loop().time() - began
        if self._connections:
            await asyncio.sleep(min(SETTLING_S, grace_s) - spent)
        await self._close_all(min(LEAVING_S, grace_s), ServerConnection.announce_shutdown)
        await self._close_all(CLOSING_S, ServerConnection.close)
        for connection in list(self._connections):
            connection.abort()
        await self._calls.finish(grace_s)

    async def _close_all(self, timeout_s: float, close: Callable[[ServerConnection], None]) -> None:
        """Close every connection in this way, and wait until they are lost."""
        lost = [connection.lost for connection in self._connections]
        for connection in list(self._connections):
            close(connection)
        if lost:
            await asyncio.wait(lost, timeout=timeout_s)


async def serve(
    services: Sequence[Service],
    *,
    host: str,
    port: int,
    describe_error: DescribeError,
    message_bytes_max: int,
    keepalive_s: float,
    keepalive_timeout_s: float,
    connections_max: int | None = None,
    rpcs: dict[tuple[str, str], int] | None = None,
) -> Server:
    """Listen, and serve these services with health and reflection; port 0 takes a free port.

    A client that does not answer a ping within the timeout is disconnected, and its calls are cancelled. `rpcs` counts
    ended calls by method and status code. `connections_max` defaults to a quarter of the process's file descriptors.
    """
    health = Health(service.name for service in services)
    calls = Calls(message_bytes_max, {} if rpcs is None else rpcs, describe_error)
    described = (*services, health.service)
    for service in (*described, reflection(service.name for service in described)):
        for method in service.methods:
            calls.bind(f"{service.name}/{method.name}", method)
    keepalive = Keepalive(keepalive_s, keepalive_timeout_s, PING_INTERVAL_MS_MIN / 1000)
    address = refuse_taken(host, port)
    loop = asyncio.get_running_loop()
    limiter = ConnectionLimiter(_default_connections_max() if connections_max is None else connections_max)
    accept = partial(ServerConnection, calls, keepalive, limiter)
    listening = [await loop.create_server(accept, sock=sock, backlog=BACKLOG) for sock in _sockets(host, port, address)]
    bound_port = listening[0].sockets[0].getsockname()[1]
    log.info("listening", address=address, port=bound_port)
    return Server(bound_port, listening, health, calls, limiter)


def refuse_taken(host: str, port: int) -> str:
    """Return `host:port`, IPv6 in brackets; raise AddressTakenError or InvalidConfigError if it cannot be bound.

    The system's own error names neither the address nor a remedy.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidConfigError("host", f"{host!r} is no address of this machine ({error.strerror})") from None
    for family, kind, protocol, _, place in found:
        with socket.socket(family, kind, protocol) as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ours: old connections do not count
            try:
                attempt.bind(place)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise AddressTakenError(address) from None
                reason = os.strerror(error.errno or 0)
                raise InvalidConfigError("host", f"nobody can listen on {address}: {reason}") from None
    return address


def _default_connections_max() -> int:
    """Return a quarter of the file descriptors: half of them are for connections, and there are two ports."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else max(CONNECTIONS_MIN, soft // 4)


def _sockets(host: str, port: int, address: str) -> list[socket.socket]:
    """Return a listening socket for each address of a host, all on one port."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    for family, _, _, _, place in dict.fromkeys(found):
        both = family == socket.AF_INET6 and place[0] == "::" and socket.has_dualstack_ipv6()
        wanted = (place[0], port or (sockets[0].getsockname()[1] if sockets else 0))
        try:
            sockets.append(socket.create_server(wanted, family=family, backlog=BACKLOG, dualstack_ipv6=both))
        except OSError as error:
            for one in sockets:
                one.close()
            if error.errno == errno.EADDRINUSE:
                raise AddressTakenError(address) from None  # bound after the check
            raise
    return sockets
