"""A bare gRPC client for loopback: just enough HTTP/2 to call, and to receive a stream. Imports nothing of ister.

For latency benchmarks at a thousand messages a second: grpc.aio's client uses more CPU than the server and would dominate
the result. No flow control: windows have the maximum size, and a run is short.
"""

from __future__ import annotations

import asyncio
import socket
from struct import Struct
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD = Struct(">BHBBI")
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1
WIDE = 2**31 - 1
GREETING = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + HEAD.pack(0, 12, SETTINGS, 0, 0) + b"\x00\x01" + (0).to_bytes(4) + b"\x00\x04" + WIDE.to_bytes(4)
    + HEAD.pack(0, 4, 8, 0, 0) + (WIDE - 65_535).to_bytes(4)
)  # fmt: skip
"""No dynamic header table; windows of maximum size."""


class Wire(asyncio.Protocol):
    """One connection. `wire = await Wire.connect("127.0.0.1:6650")`."""

    def __init__(self) -> None:
        self._rest = b""
        self._next = 1
        self._answers: dict[int, tuple[bytearray, asyncio.Future[bytes]]] = {}
        self._streams: dict[int, tuple[bytearray, Callable[[bytes], None]]] = {}
        self._blocks: dict[str, bytes] = {}
        self._loop = asyncio.get_running_loop()
        self.ended = self._loop.create_future()

    @classmethod
    async def connect(cls, target: str) -> Self:
        host, _, port = target.rpartition(":")
        _, wire = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        return wire

    def call(self, path: str, message: bytes) -> asyncio.Future[bytes]:
        """Send a request, and return a future of the response."""
        answer = self._loop.create_future()
        self._answers[self._ask(path, message)] = (bytearray(), answer)
        return answer

    def receive(self, path: str, message: bytes, take: Callable[[bytes], None]) -> None:
        """Open a stream, and call `take` with each message on arrival."""
        self._streams[self._ask(path, message)] = (bytearray(), take)

    def close(self) -> None:
        self._transport.close()

    def _ask(self, path: str, message: bytes) -> int:
        number, self._next = self._next, self._next + 2
        block = self._blocks.get(path)
        if block is None:
            block = self._blocks[path] = b"\x83\x86" + b"".join(
                name + bytes([len(value)]) + value
                for name, value in (
                    (b"\x04", path.encode()),
                    (b"\x01", b"localhost"),
                    (b"\x00\x02te", b"trailers"),
                    (b"\x0f\x10", b"application/grpc"),
                )
            )
        self._transport.write(
            b"".join(
                (
                    HEAD.pack(0, len(block), HEADERS, END_HEADERS, number),
                    block,
                    HEAD.pack(0, len(message) + 5, DATA, END_STREAM, number),
                    len(message).to_bytes(5),
                    message,
                )
            )
        )
        return number

    # --- receiving ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport) -> None:
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.write(GREETING)

    def connection_lost(self, error: Exception | None) -> None:
        lost = ConnectionError(f"the connection has ended: {error}")
        for _, answer in self._answers.values():
            if not answer.done():
                answer.set_exception(lost)
        if not self.ended.done():
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        at = 0
        while len(data) - at >= HEAD.size:
            high, low, kind, flags, number = HEAD.unpack_from(data, at)
            start, stop = at + HEAD.size, at + HEAD.size + (high << 16 | low)
            if stop > len(data):
                break
            self._take(kind, flags, number, data[start:stop])
            at = stop
        self._rest = data[at:]

    def _take(self, kind: int, flags: int, number: int, body: bytes) -> None:
        if kind == DATA:
            self._take_data(number, body)
        elif kind == SETTINGS and not flags & ACK:
            self._transport.write(HEAD.pack(0, 0, SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self._transport.write(HEAD.pack(0, len(body), PING, ACK, 0) + body)
        elif kind == GOAWAY:
            self._transport.close()
        if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
            self._end(number)

    def _take_data(self, number: int, body: bytes) -> None:
        if number in self._answers:
            self._answers[number][0].extend(body)
            return
        held, take = self._streams[number]
        held += body
        while len(held) >= 5 and len(held) >= 5 + (size := int.from_bytes(held[1:5])):
            message = bytes(held[5 : 5 + size])
            del held[: 5 + size]
            take(message)

    def _end(self, number: int) -> None:
        if number in self._answers:
            held, answer = self._answers.pop(number)
            if answer.done():
                return
            if len(held) < 5:
                answer.set_exception(RuntimeError("the call was refused"))  # a successful call has a message
            else:
                answer.set_result(bytes(held[5:]))
        elif self._streams.pop(number, None) and not self.ended.done():
            self.ended.set_exception(RuntimeError("the stream was ended by the server"))
