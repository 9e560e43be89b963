"""Attach services to a port: gRPC over an HTTP/2 of our own (http2/), on asyncio.

grpc.aio served this before, at half a millisecond of CPU a call; docs/adr/0021 has the measurements.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from ister.broker.address import AddressTakenError, refuse_taken
from ister.broker.calls import Calls
from ister.broker.health import Health
from ister.broker.peer import CLOSING_S, Door, Peer, Pings
from ister.broker.reflection import reflection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ister.broker.service import Service

MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""What every official client can receive; a message that is larger could be stored and never be consumed."""
PING_INTERVAL_MS_MIN: Final = 500
"""How often a client may ping, whether it has calls or not; gRPC's own five minutes would cut off careful clients."""
BACKLOG: Final = 1024
"""Connections that may wait to be accepted: all clients of a broker that was restarted come at once."""
CONNECTIONS_MIN: Final = 16
"""What a port takes however few descriptors there are."""
SETTLING_S: Final = 0.15
"""For how long calls are answered with "come again" before connections are closed: a client that was told so waits, and has
nothing on the wire when its connection ends. Clients take a call that was cut off for failed, and tell their users."""
LEAVING_S: Final = 0.25
"""How long a client may take to close its connection itself, once it was asked to."""

log = structlog.get_logger()


class Server:
    """A server that is listening."""

    def __init__(
        self, port: int, listening: list[asyncio.Server], health: Health, calls: Calls, peers: set[Peer]
    ) -> None:
        self.port = port
        self._listening = listening
        self._health = health
        self._calls = calls
        self._peers = peers

    def drain(self) -> None:
        """Say to whoever asks for its health that this broker is about to stop; calls are still served."""
        self._health.drain()

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, end every stream, and give the other calls `grace_s` to end."""
        for one in self._listening:
            one.close()
        self._calls.end_streams()
        began = asyncio.get_running_loop().time()
        await self._calls.end_others(grace_s)
        spent = asyncio.get_running_loop().time() - began
        if self._peers:
            await asyncio.sleep(min(SETTLING_S, grace_s) - spent)
        await self._let_leave(min(LEAVING_S, grace_s), Peer.ask_to_leave)
        await self._let_leave(CLOSING_S, Peer.close)
        for peer in list(self._peers):
            peer.abort()
        await self._calls.finish(grace_s)

    async def _let_leave(self, timeout_s: float, tell: Callable[[Peer], None]) -> None:
        """Tell every client the same, and wait until they have gone."""
        lost = [peer.lost for peer in self._peers]
        for peer in list(self._peers):
            tell(peer)
        if lost:
            await asyncio.wait(lost, timeout=timeout_s)


async def serve(
    services: Sequence[Service],
    *,
    host: str,
    port: int,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    keepalive_s: float = 20.0,
    keepalive_timeout_s: float = 10.0,
    connections_max: int | None = None,
    rpcs: dict[tuple[str, str], int] | None = None,
) -> Server:
    """Listen, and serve these services with health and reflection; port 0 takes any that is free.

    A peer that does not answer a ping within the timeout is taken for gone, and its calls are cancelled. `rpcs` counts
    the calls that have ended, by method and status code. Who comes when there are `connections_max` is turned away; unless
    it is said, that is a quarter of the descriptors that the process may have.
    """
    health = Health(service.name for service in services)
    calls = Calls(message_bytes_max, {} if rpcs is None else rpcs)
    standard = [health.service]
    standard.append(reflection([service.name for service in (*services, health.service)]))
    for service in (*services, *standard):
        for method in service.methods:
            calls.bind(f"{service.name}/{method.name}", method)
    peers: set[Peer] = set()
    pings = Pings(keepalive_s, keepalive_timeout_s, PING_INTERVAL_MS_MIN / 1000)
    address = refuse_taken(host, port)
    loop = asyncio.get_running_loop()
    door = Door(_spare_descriptors() if connections_max is None else connections_max)
    accept = partial(Peer, calls, pings, door, peers)
    listening = [await loop.create_server(accept, sock=sock, backlog=BACKLOG) for sock in _sockets(host, port, address)]
    bound_port = listening[0].sockets[0].getsockname()[1]
    log.info("listening", address=address, port=bound_port)
    return Server(bound_port, listening, health, calls, peers)


def _spare_descriptors() -> int:
    """Return how many connections a port takes: there are two, and half of the descriptors are for them."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else max(CONNECTIONS_MIN, soft // 4)


def _sockets(host: str, port: int, address: str) -> list[socket.socket]:
    """Return a listening socket for each address that a host has, all on one port."""
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
                raise AddressTakenError(address) from None  # since we looked
            raise
    return sockets
