"""A proxy before an HTTP server that makes bad weather: resets, delays, truncated answers, 5xx, lost answers.

One request per connection, which is how moto serves. What happens to a request is drawn from a seeded generator.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import struct
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

RESET_NOW = struct.pack("ii", 1, 0)
KINDS = (
    "refused",  # reset before a byte was read
    "half-sent",  # the server sees half of the request, then a reset
    "lost",  # the server acts, the answer is lost
    "slow",  # the answer comes late, but in time
    "hung",  # the server acts, the answer never comes
    "cut",  # the answer ends within its body
    "short",  # the answer is shorter than what was asked for, and says so
    "5xx",  # the server is not asked
    "5xx-after",  # the server acts, the answer says that it did not
)
ERRORS = ((500, "InternalError"), (502, "BadGateway"), (503, "SlowDown"), (429, "TooManyRequests"))


@dataclass
class FaultProxy:
    """`async with FaultProxy(port, rate=0.3, seed=1) as proxy:` then talk to `proxy.port`."""

    target: int
    seed: int = 1
    rate: float = 0.3
    kinds: tuple[str, ...] = KINDS
    slow_s: float = 0.1
    hung_s: float = 5.0
    faults_max: int = 1 << 30
    port: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    async def __aenter__(self) -> Self:
        self._kinds = random.Random(self.seed)  # of its own, so that request n meets the same fault in every run
        self._random = random.Random(self.seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        faulty = self.counts.total() - self.counts["none"] < self.faults_max and self._kinds.random() < self.rate
        kind = self._kinds.choice(self.kinds) if faulty else "none"
        self.counts[kind] += 1
        task = asyncio.ensure_future(self._serve(kind, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            try:
                await self._act(kind, reader, writer)
            finally:
                writer.close()

    async def _act(self, kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if kind == "refused":
            _reset(writer)
            return
        request = await _read_request(reader)
        if kind == "half-sent":
            await self._forward_half(request)
            _reset(writer)
            return
        answer = b"" if kind == "5xx" else await self._forward(request)
        match kind:
            case "lost":
                _reset(writer)
                return
            case "slow":
                await asyncio.sleep(self._random.random() * self.slow_s)
            case "hung":
                await asyncio.sleep(self.hung_s)
                return
            case "5xx" | "5xx-after":
                answer = _error(*self._random.choice(ERRORS))
            case "cut" | "short":
                answer = self._shorten(kind, answer, is_get=request.startswith(b"GET"))
        writer.write(answer)
        await writer.drain()
        if kind == "cut" and self._random.random() < 0.5:
            _reset(writer)

    def _shorten(self, kind: str, answer: bytes, *, is_get: bool) -> bytes:
        head, _, body = answer.partition(b"\r\n\r\n")
        keep = self._random.randrange(len(body) + 1) if body else 0
        if kind == "short" and not is_get:
            return answer
        if kind == "short":
            head = re.sub(rb"(?i)(content-length: )\d+", rb"\g<1>%d" % keep, head)
            return head + b"\r\n\r\n" + body[:keep]
        if not body:
            return head[: self._random.randrange(len(head))]
        return head + b"\r\n\r\n" + body[: min(keep, len(body) - 1)]

    async def _forward(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            writer.write(request)
            await writer.drain()
            return await reader.read()
        finally:
            writer.close()

    async def _forward_half(self, request: bytes) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            writer.write(request[: self._random.randrange(len(request))])
            await writer.drain()
        finally:
            _reset(writer)


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    size = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    return head + (await reader.readexactly(int(size[1])) if size else b"")


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with a reset instead of a farewell."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_NOW)
    writer.transport.abort()


def _error(status: int, code: str) -> bytes:
    body = f"<Error><Code>{code}</Code><Message>bad weather</Message></Error>".encode()
    return b"HTTP/1.1 %d %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (
        status, code.encode(), len(body), body,
    )  # fmt: skip
