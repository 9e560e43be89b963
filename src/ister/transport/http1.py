"""Minimal HTTP/1.1 server for probes and scrapes: GET and HEAD of a few paths, one request per connection.

Everything is bounded: oversized, slow or invalid requests get an error status, and idle connections give way to new ones.
With one request per connection, request bodies need not be parsed.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import TypeAlias

    Routes: TypeAlias = Mapping[str, Callable[["Request"], Awaitable["Response"]]]
    """Handlers by path."""

log = structlog.get_logger()

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
LINGER_S = 1.0
"""Time to read on after the response: closing with unread input would make the kernel discard it."""
LINGER_BYTES = 1024 * 1024

_REQUEST_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S+) HTTP/(\d)\.\d", re.ASCII)
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*)", re.ASCII)
_ORIGIN = re.compile(r"(?:https?://[^/?#]*)?(/[^?#]*)?(?:[?#].*)?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits of a client."""

    head_bytes: int = 8192
    head_s: float = 5.0
    """Timeout of receiving a request."""
    answer_s: float = 10.0
    """Timeout of making and sending the response; Prometheus' default scrape timeout."""
    connections: int = 64


@dataclass(frozen=True, slots=True)
class Request:
    """A request; the names of headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """A response."""

    status: HTTPStatus
    content_type: str
    body: Sequence[bytes]
    headers: tuple[str, ...] = ()


class BadRequestError(Exception):
    """An invalid request, with its status."""

    def __init__(self, status: HTTPStatus) -> None:
        self.status = status
        super().__init__(status.phrase)


def parse_head(head: bytes) -> Request:
    """Return the parsed request line and headers; raise BadRequestError if they are invalid."""
    line, *rest = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise BadRequestError(HTTPStatus.BAD_REQUEST)
    method, target, version = match.groups()
    if version != "1":
        raise BadRequestError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
    place = _ORIGIN.fullmatch(target)
    if place is None:
        raise BadRequestError(HTTPStatus.BAD_REQUEST)
    headers: dict[str, str] = {}
    for text in rest:
        header = _HEADER.fullmatch(text)
        if header is None:
            raise BadRequestError(HTTPStatus.BAD_REQUEST)
        name, value = header[1].lower(), header[2].strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return Request(method, place[1] or "/", headers)


class HttpServer:
    """A server of a few paths."""

    def __init__(self, routes: Routes, limits: HttpLimits | None = None) -> None:
        self.port = 0
        """The bound port, after `start`."""
        self._routes = routes
        self._limits = limits or HttpLimits()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._idle: dict[asyncio.Task[None], None] = {}
        """Connections that wait for a request or for the client's close, oldest first."""
        self._stopping = False

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one. Raises OSError if the port is taken."""
        self._server = await asyncio.start_server(
            self._serve, host, port, limit=self._limits.head_bytes, backlog=self._limits.connections
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port, finish the responses in progress, and drop idle connections."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        for task in self._idle:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=LINGER_S)
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        if self._server is not None:
            await self._server.wait_closed()

    # --- one connection -----------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is a task"
        writer.transport.set_write_buffer_limits(0)  # drain then means that the kernel has it all
        if self._stopping or (len(self._connections) >= self._limits.connections and not self._evict_idle()):
            refusal = _plain(HTTPStatus.SERVICE_UNAVAILABLE)
            writer.writelines([_head(refusal), *refusal.body])
            writer.close()
            return
        self._connections.add(task)
        try:
            await self._handle(task, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # The client disconnected, timed out or was evicted. CancelledError is not re-raised: this is the root of the task.
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            self._idle.pop(task, None)
            writer.close()

    def _evict_idle(self) -> bool:
        """Drop the connection that has been idle longest; return False if none is idle."""
        oldest = next(iter(self._idle), None)
        if oldest is None:
            return False
        del self._idle[oldest]
        return oldest.cancel()

    async def _handle(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        request, refusal = None, HTTPStatus.BAD_REQUEST
        self._idle[task] = None
        try:
            async with asyncio.timeout(self._limits.head_s):
                request = parse_head(await reader.readuntil(b"\r\n\r\n"))
        except BadRequestError as error:
            refusal = error.status
        except asyncio.LimitOverrunError:
            refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        except TimeoutError:
            refusal = HTTPStatus.REQUEST_TIMEOUT
        del self._idle[task]
        async with asyncio.timeout(self._limits.answer_s):
            response = _plain(refusal) if request is None else await self._answer(request)
            writer.write(_head(response))
            for piece in response.body if request is None or request.method != "HEAD" else ():
                writer.write(piece)
                await writer.drain()
            await writer.drain()
        self._idle[task] = None
        await _linger(reader, writer)

    async def _answer(self, request: Request) -> Response:
        answer = self._routes.get(request.path)
        if answer is None:
            return _plain(HTTPStatus.NOT_FOUND, f"not found; there are {', '.join(sorted(self._routes))}\n")
        if request.method not in {"GET", "HEAD"}:
            return replace(_plain(HTTPStatus.METHOD_NOT_ALLOWED), headers=("Allow: GET, HEAD",))
        try:
            return await answer(request)
        except Exception:  # the root of a request
            log.exception("http_failed", path=request.path)
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR)


def _plain(status: HTTPStatus, text: str = "") -> Response:
    return Response(status, TEXT, [(text or f"{status.phrase.lower()}\n").encode()])


def _head(response: Response) -> bytes:
    status = response.status
    lines = (
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Date: {formatdate(usegmt=True)}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {sum(map(len, response.body))}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *response.headers,
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Wait a moment for the client to read the response and close."""
    writer.write_eof()
    left = LINGER_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while left > 0 and (data := await reader.read(65536)):
                left -= len(data)
