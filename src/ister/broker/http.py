"""Answer probes and scrapes over HTTP: GET and HEAD of a few paths, one request a connection, everything bounded.

Whoever sends too much, too slowly or nonsense gets a status and is gone; whoever holds a connection without asking
gives way to the next. One request a connection means that a body, which nobody needs here, is never parsed.
"""

from __future__ import annotations

import asyncio
import json
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

    from ister.broker.metrics import Metrics
    from ister.broker.views import BrokerView, Readiness
    from ister.core.errors import IsterError
    from ister.core.names import TopicName

    Answers: TypeAlias = Mapping[str, Callable[["Request"], Awaitable["Response"]]]
    """Who answers, by path."""

log = structlog.get_logger()

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
PROBLEMS_SHOWN = 20
LINGER_S = 1.0
"""How long we read on after the answer: closing with unread bytes would make the kernel take the answer back."""
LINGER_BYTES = 1024 * 1024

_REQUEST_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S+) HTTP/(\d)\.\d", re.ASCII)
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*)", re.ASCII)
_ORIGIN = re.compile(r"(?:https?://[^/?#]*)?(/[^?#]*)?(?:[?#].*)?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What a client may take."""

    head_bytes: int = 8192
    head_s: float = 5.0
    """How long a request may take to arrive."""
    answer_s: float = 10.0
    """How long the answer may take to be made and read; as long as a scrape takes at most."""
    connections: int = 64


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked; the names of headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """What is answered."""

    status: HTTPStatus
    content_type: str
    body: Sequence[bytes]
    headers: tuple[str, ...] = ()


class BadRequestError(Exception):
    """A request that cannot be understood, and the status that says so."""

    def __init__(self, status: HTTPStatus) -> None:
        self.status = status
        super().__init__(status.phrase)


def routes(broker: BrokerView, metrics: Metrics) -> Answers:
    """Return what a broker answers, by path."""

    async def scrape(request: Request) -> Response:
        page = await metrics.page(request.headers.get("accept", ""))
        return Response(HTTPStatus.OK, page.content_type, page.pieces)

    async def health(_: Request) -> Response:
        return Response(HTTPStatus.OK, TEXT, [b"ok\n"])  # that it is answered says that the event loop turns

    async def ready(_: Request) -> Response:
        return readiness_response(broker.readiness())

    return {"/metrics": scrape, "/healthz": health, "/readyz": ready}


def readiness_response(state: Readiness) -> Response:
    """Say whether clients should come, and what is in the way.

    Of a problem only its class is shown: its text may name files, and is in the log (`topic_not_opened`).
    """
    word = "draining" if state.draining else "ready" if state.ready else "starting" if state.missing else "broken"
    body = {
        "status": word,
        "missing": list(state.missing),
        "topics": state.topics,
        "topics_with_problems": len(state.problems),
        "problems": _problems(state.problems),
        "degraded": list(state.degraded),
        "uploads_stopped": _problems(state.uploads_stopped),
    }
    status = HTTPStatus.OK if state.ready else HTTPStatus.SERVICE_UNAVAILABLE
    return Response(status, JSON, [json.dumps(body).encode() + b"\n"])


def _problems(found: Mapping[TopicName, IsterError]) -> list[dict[str, str]]:
    return [
        {"topic": str(topic), "problem": type(error).__name__}
        for topic, error in sorted(found.items())[:PROBLEMS_SHOWN]
    ]


def parse_head(head: bytes) -> Request:
    """Understand a request's line and headers; BadRequestError says which status is due otherwise."""
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
    """A server of some paths; `start` opens its port, `stop` closes it."""

    def __init__(self, answers: Answers, limits: HttpLimits | None = None) -> None:
        self.port = 0
        """The port that it listens on, once it was started."""
        self._answers = answers
        self._limits = limits or HttpLimits()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._idle: dict[asyncio.Task[None], None] = {}
        """Those that wait for a request, or for the client to go; the oldest first."""
        self._stopping = False

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one. OSError when the port is taken."""
        self._server = await asyncio.start_server(
            self._serve, host, port, limit=self._limits.head_bytes, backlog=self._limits.connections
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Listen no more, let answers that are under way come to their end, and drop everyone else."""
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
        if self._stopping or (len(self._connections) >= self._limits.connections and not self._make_room()):
            refusal = _plain(HTTPStatus.SERVICE_UNAVAILABLE)
            writer.writelines([_head(refusal), *refusal.body])
            writer.close()
            return
        self._connections.add(task)
        try:
            await self._converse(task, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # Whoever goes away in the middle, does not read in time or has to give way gets nothing more. A cancelled
            # connection has nobody above it who would have to know.
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            self._idle.pop(task, None)
            writer.close()

    def _make_room(self) -> bool:
        """Drop the connection that has been idle longest; False when all are being answered."""
        oldest = next(iter(self._idle), None)
        if oldest is None:
            return False
        del self._idle[oldest]
        return oldest.cancel()

    async def _converse(
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
        answer = self._answers.get(request.path)
        if answer is None:
            return _plain(HTTPStatus.NOT_FOUND, f"not found; there are {', '.join(sorted(self._answers))}\n")
        if request.method not in {"GET", "HEAD"}:
            return replace(_plain(HTTPStatus.METHOD_NOT_ALLOWED), headers=("Allow: GET, HEAD",))
        try:
            return await answer(request)
        except Exception:  # the root of a request: whatever is wrong with one answer must not silence the others
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
    """Wait until the client has taken the answer and gone, for a moment."""
    writer.write_eof()
    left = LINGER_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while left > 0 and (data := await reader.read(65536)):
                left -= len(data)
