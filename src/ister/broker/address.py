"""Decide whether an address can be listened on, and say why not in words.

The system says only that it could not: not where, and not what to do about it.
"""

from __future__ import annotations

import errno
import os
import socket

from ister.core.errors import BusyError, InvalidConfigError


class AddressTakenError(BusyError):
    """Another process listens there."""

    def __init__(self, address: str) -> None:
        self.address = address
        super().__init__(f"{address} is taken: another process listens there; stop it, or choose another port")


def refuse_taken(host: str, port: int) -> str:
    """Return the address as clients write it, the sixth version in brackets; AddressTakenError or InvalidConfigError when nobody can listen there."""
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
                raise InvalidConfigError(
                    "host", f"nobody can listen on {address}: {os.strerror(error.errno or 0)}"
                ) from None
    return address
