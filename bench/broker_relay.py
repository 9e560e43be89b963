"""Floor for end-to-end latency: a process that forwards bytes over TCP between two others. Imports nothing of ister.

Run by bench/broker_e2e.py as a process of its own; prints its port. The connection that first
sends "C" is the consumer; messages of others are forwarded to it, and each is answered with a byte.
"""

from __future__ import annotations

import asyncio
import signal
import socket


class Relay(asyncio.Protocol):
    """One connection."""

    consumer: asyncio.Transport | None = None

    def connection_made(self, transport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = transport
        self._consumes = False

    def data_received(self, data: bytes) -> None:
        if self._consumes:
            return  # an acknowledgement
        if data == b"C":
            self._consumes, Relay.consumer = True, self._transport
            self._transport.write(b"C")
            return
        assert Relay.consumer is not None, "the consumer comes first"
        self._transport.write(b"k")
        Relay.consumer.write(data)


async def main() -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    server = await loop.create_server(Relay, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await stopping.wait()


if __name__ == "__main__":
    asyncio.run(main())
