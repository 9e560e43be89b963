"""What a service is, whatever carries it: names, handlers, and the types that go in and out.

A handler is an async function from one message to one message, or to a stream of them; where it never waits, a plain one.
It raises the errors of core/errors.py and knows no transport; a binding attaches it to one (binding.py, and status.py for
the errors).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, Protocol, TypeAlias

from google.protobuf.message import Message

_PLACED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class Call(Protocol):
    """What a handler may know of the call that it answers; it gets one only if it takes a second argument."""

    @property
    def peer(self) -> str:
        """Who calls, for logs: nothing may depend on its form."""

    def header(self, key: str) -> str | None:
        """Return one value of the request's metadata, None when there is none of that key."""

    def trail(self, key: str, value: str) -> None:
        """Send this behind the answer; clients that do not know the key never see it."""

    @property
    def cancelled(self) -> bool:
        """Whether the client has gone."""

    def when_sent(self, done: Callable[[], None]) -> None:
        """Call `done` once all that was sent so far has left for the client; never, if the call ends before."""


UnaryHandler: TypeAlias = Callable[[Any], Awaitable[Message]] | Callable[[Any, Call], Awaitable[Message]]
StreamHandler: TypeAlias = (
    Callable[[Any], AsyncIterator[Message | bytes]] | Callable[[Any, Call], AsyncIterator[Message | bytes]]
)


@dataclass(frozen=True, slots=True)
class Unary:
    """A method with one answer.

    A client that goes away cancels its handler, at any await. With `finishes` the handler runs to its end all the same:
    for one that takes several steps, of which no half may remain. A request is small unless it is said to be `large`: one
    that has a client's data in it, and may be as long as a message.
    """

    name: str
    handler: UnaryHandler
    request: type[Message]
    response: type[Message]
    finishes: bool = False
    large: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """A method with one answer that never waits: its handler is a plain function, run where the request is read.

    It costs no task. For what is called once for each message.
    """

    name: str
    handler: Callable[[Any], Message]
    request: type[Message]
    response: type[Message]


@dataclass(frozen=True, slots=True)
class ServerStream:
    """A method whose answer is a stream: messages, or the bytes of messages that are encoded already.

    When the client goes away, or the server stops, the handler is cancelled where it waits, and closed if it can be.
    """

    name: str
    handler: StreamHandler
    request: type[Message]
    response: type[Message]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A method with one answer to each of the client's messages, in their order, until the client ends."""

    name: str
    handler: Callable[[Any], Awaitable[Message]]
    request: type[Message]
    response: type[Message]


Method: TypeAlias = Unary | Prompt | ServerStream | Exchange


@dataclass(frozen=True, slots=True)
class Service:
    """A service by its full name, `package.Service`, and its methods."""

    name: str
    methods: tuple[Method, ...]


def wants_call(handler: UnaryHandler | StreamHandler) -> bool:
    """Tell whether a handler takes the call beside the request; asked once, when it is bound."""
    placed = [one for one in signature(handler).parameters.values() if one.kind in _PLACED]
    return sum(one.default is Parameter.empty for one in placed) > 1
