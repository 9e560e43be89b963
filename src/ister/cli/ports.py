"""Ports for a server that is stopped and started again at the same address, as in the demo and the tests."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST, _LAST = 10_000, 32_767


def steady_ports() -> range:
    """Return those that the machine gives to no connection by itself.

    A port that it does give may be gone when its server comes back: to any other connection, or to that of a client which
    tries to reach the server, gets this very port for its own side, and so is connected to itself.
    """
    with suppress(OSError, ValueError):  # not Linux, or not to be read: then what most machines have
        first = int(_RANGE.read_text().split()[0])
        return range(_FIRST, first) if first > 2 * _FIRST else range(_FIRST, _LAST + 1)
    return range(_FIRST, _LAST + 1)


def free_ports(count: int, among: range | None = None) -> list[int]:
    """Choose ports of loopback that nobody listens on; all are held until the last is found, so they differ."""
    among = steady_ports() if among is None else among
    with ExitStack() as held:
        found: list[int] = []
        for port in random.sample(among, len(among)):
            if len(found) == count:
                break
            with suppress(OSError):  # taken
                held.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
        return found
