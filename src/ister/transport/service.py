"""Description of a gRPC service, independent of the transport: names, handlers, message types.

A handler is an async function from one message to one message or to a stream of them; a plain function if it never waits.
It raises the errors of core/errors.py; the server maps them to status codes (DescribeError).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, Final, Protocol, TypeAlias

from google.protobuf.message import Message
from grpc import StatusCode

INTERNAL_TEXT: Final = "internal error: this is a bug in the broker, whose log says more"

DescribeError: TypeAlias = Callable[[Exception], tuple[StatusCode, str]]
"""Returns the status code and the text that a client gets for an error."""

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class Call(Protocol):
    """The call, for handlers with a second parameter."""

    @property
    def peer(self) -> str:
        """The client's address, for logs; its format is not stable."""

    def header(self, key: str) -> str | None:
        """Return one value of the request's metadata, None if absent."""

    def trail(self, key: str, value: str) -> None:
        """Add trailing metadata to the response."""

    @property
    def cancelled(self) -> bool:
        """Whether the client has disconnected or cancelled."""

    def when_sent(self, done: Callable[[], None]) -> None:
        """Call `done` once all that was sent so far has left the send buffer; never if the call ends before."""


UnaryHandler: TypeAlias = Callable[[Any], Awaitable[Message]] | Callable[[Any, Call], Awaitable[Message]]
StreamHandler: TypeAlias = (
    Callable[[Any], AsyncIterator[Message | bytes]] | Callable[[Any, Call], AsyncIterator[Message | bytes]]
)


@dataclass(frozen=True, slots=True)
class Unary:
    """A method with one response.

    A client that disconnects cancels the handler, at any await. With `finishes` the handler runs to its end nevertheless:
    for several steps that must not remain half done. `large` requests contain client data, and may be as large as a
    message; others are limited to 64 KiB.
    """

    name: str
    handler: UnaryHandler
    request: type[Message]
    response: type[Message]
    finishes: bool = False
    large: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """A method with one response whose handler never waits: a plain function, run without a task.

    For methods that are called for each message.
    """

    name: str
    handler: Callable[[Any], Message]
    request: type[Message]
    response: type[Message]


@dataclass(frozen=True, slots=True)
class ServerStream:
    """A method with a stream of responses: messages, or encoded messages as bytes.

    When the client disconnects or the server stops, the handler is cancelled at its await, and its generator closed.
    """

    name: str
    handler: StreamHandler
    request: type[Message]
    response: type[Message]


@dataclass(frozen=True, slots=True)
class BidirectionalStream:
    """A bidirectional stream with one response to each request, in order."""

    name: str
    handler: Callable[[Any], Awaitable[Message]]
    request: type[Message]
    response: type[Message]


Method: TypeAlias = Unary | Prompt | ServerStream | BidirectionalStream


@dataclass(frozen=True, slots=True)
class Service:
    """A service with its full name, `package.Service`."""

    name: str
    methods: tuple[Method, ...]


def wants_call(handler: UnaryHandler | StreamHandler) -> bool:
    """Return True if a handler takes the call as its second argument."""
    positional = [one for one in signature(handler).parameters.values() if one.kind in _POSITIONAL]
    return sum(one.default is Parameter.empty for one in positional) > 1
