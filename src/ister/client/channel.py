"""gRPC channels to a broker: calls with a deadline, and the one table of status codes to error families."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar, cast

import grpc
from grpc import StatusCode

from ister.config.validators import listener
from ister.core.defaults import ADMIN_PORT
from ister.core.errors import (
    AlreadyExistsError,
    BusyError,
    ClientError,
    CorruptError,
    DeniedError,
    InputError,
    InvalidRequestError,
    IsterError,
    LevelNotReachedError,
    NotFoundError,
    PreconditionError,
    UnknownOutcomeError,
    UnsupportedError,
)
from ister.core.wire_keys import OFFSET_KEY, PENDING_LEVEL_KEY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from google.protobuf.message import Message

TIMEOUT_S = 60.0
"""Deadline of a unary call; with ack level cloud a producer waits up to 30 s by default, and a sync or an upload is slow."""

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # a broker may be configured for large messages
    ("grpc.initial_reconnect_backoff_ms", 200),  # gRPC's own back-off reaches two minutes
    ("grpc.max_reconnect_backoff_ms", 2000),
)

_FAMILIES: dict[StatusCode, type[IsterError]] = {
    StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    StatusCode.NOT_FOUND: NotFoundError,
    StatusCode.ALREADY_EXISTS: AlreadyExistsError,
    StatusCode.FAILED_PRECONDITION: PreconditionError,
    StatusCode.PERMISSION_DENIED: DeniedError,
    StatusCode.UNAUTHENTICATED: DeniedError,
    StatusCode.UNIMPLEMENTED: UnsupportedError,
    StatusCode.OUT_OF_RANGE: ClientError,
    StatusCode.RESOURCE_EXHAUSTED: BusyError,
    StatusCode.UNAVAILABLE: BusyError,
    StatusCode.DATA_LOSS: CorruptError,
}
_NOT_CONNECTED = re.compile(r"failed to connect|resol|Socket closed|Connection reset", re.IGNORECASE)
_CAUSES = {
    "refused": "connection refused",
    "not found": "no such host",
    "resol": "no such host",
    "unreachable": "network is unreachable",
    "no route": "no route to host",
    "timed out": "it timed out",
    "timeout": "it timed out",
}
"""Parts of gRPC's error texts, and the cause that we report."""

Answer = TypeVar("Answer", bound="Message")
Metadata = tuple[tuple[str, str], ...]


class Status(NamedTuple):
    """The status of a failed call."""

    code: StatusCode
    text: str
    trailing: Mapping[str, str]

    @property
    def reason(self) -> str:
        """Return the broker's text, or that it gave none."""
        return self.text or "no reason"

    @property
    def is_refusal(self) -> bool:
        """Return True if the broker refused the call, and did nothing of it."""
        return issubclass(_FAMILIES.get(self.code, IsterError), ClientError)

    @property
    def is_retriable(self) -> bool:
        """Return True if a call that may be repeated should be."""
        waits = {StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED}
        return self.code in waits or _FAMILIES.get(self.code) is BusyError


class BrokerUnreachableError(BusyError):
    """No broker answers at that address."""

    def __init__(self, url: str, option: str, cause: str) -> None:
        self.url = url
        self.option = option
        self.cause = cause
        super().__init__(
            f"no broker answers at {url} ({cause}); start one with `ister serve`, or say where it is with {option} URL"
        )


class NoAnswerError(BusyError):
    """The broker did not answer a call that changes nothing."""

    def __init__(self, url: str, cause: str) -> None:
        self.url = url
        self.cause = cause
        super().__init__(f"the broker at {url} did not answer ({cause}); look at its log, then try again")


class ChangeUnknownError(UnknownOutcomeError):
    """A change may or may not have happened."""

    def __init__(self, url: str, code: StatusCode, cause: str) -> None:
        self.url = url
        self.code = code
        self.cause = cause
        super().__init__(
            f"the broker at {url} did not say whether it did that ({cause}); look before you do it once more"
        )


class StoredError(LevelNotReachedError):
    """A message is stored, and did not reach its topic's ack level in time."""

    def __init__(self, text: str, trailing: Mapping[str, str]) -> None:
        self.level = trailing[PENDING_LEVEL_KEY]
        super().__init__("", int(trailing[OFFSET_KEY]) + 1, text)


class Channel:
    """A gRPC channel to one broker; `error_for` returns the error to raise for a failed call. Use it as a context."""

    def __init__(self, target: str, error_for: Callable[[Status], IsterError], *, answer_bytes_max: int = -1) -> None:
        options = {**dict(CHANNEL_OPTIONS), "grpc.max_receive_message_length": answer_bytes_max}
        self._channel = grpc.insecure_channel(target, options=tuple(options.items()))
        self._error_for = error_for

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel and cancel its calls."""
        self._channel.close()

    def call(
        self, method: str, request: Message, answer: type[Answer], metadata: Metadata = ()
    ) -> tuple[Answer, dict[str, str]]:
        """Call a unary method; return the answer and the trailing metadata."""
        try:
            found, call = self.unary(method, answer).with_call(request, timeout=TIMEOUT_S, metadata=metadata)
        except grpc.RpcError as error:
            raise self._error(error) from None
        return found, _trailing(call)

    def wait(self, future: grpc.Future[Answer]) -> Answer:
        """Return the answer to a call of `unary` that was started."""
        try:
            return future.result()
        except grpc.RpcError as error:
            raise self._error(error) from None

    def stream(self, method: str, request: Message, answer: type[Answer], metadata: Metadata = ()) -> Iterator[Answer]:
        """Call a server-streaming method without a deadline; yield its answers."""
        call: grpc.UnaryStreamMultiCallable[Message, Answer] = self._channel.unary_stream(
            method, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
        )
        try:
            yield from call(request, metadata=metadata)
        except grpc.RpcError as error:
            raise self._error(error) from None

    def unary(self, method: str, answer: type[Answer]) -> grpc.UnaryUnaryMultiCallable[Message, Answer]:
        """Return a method to start many calls of."""
        return self._channel.unary_unary(
            method, request_serializer=lambda given: given.SerializeToString(), response_deserializer=answer.FromString
        )

    def _error(self, error: grpc.RpcError) -> IsterError:
        call = cast("grpc.Call", error)  # what a call raises is one, and is typed as neither
        status = Status(call.code(), call.details() or "", _trailing(call))
        if PENDING_LEVEL_KEY in status.trailing:
            return StoredError(status.text, status.trailing)
        return self._error_for(status)


class Remote(Channel):
    """One port of a broker for commands; `option` is the option that gives its address."""

    def __init__(self, url: str, option: str) -> None:
        self.url = url
        super().__init__(target_of(url, option), lambda status: error_of(status.code, status.text, url, option))

    @classmethod
    def admin(cls, url: str) -> Self:
        """Return the administration port of a broker."""
        return cls(url, "--admin")

    @classmethod
    def broker(cls, url: str) -> Self:
        """Return the client port of a broker."""
        return cls(url, "--broker")

    def ask(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        """Call a method that changes nothing."""
        try:
            return self.change(method, request, answer)
        except ChangeUnknownError as error:
            raise NoAnswerError(self.url, error.cause) from error

    def change(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        """Call a method that changes something."""
        return self.call(method, request, answer)[0]


class AsyncRemote:
    """The client port of a broker, with asynchronous calls. Use it as an asynchronous context."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._channel = grpc.aio.insecure_channel(target_of(url, "--broker"), options=CHANNEL_OPTIONS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channel and cancel its calls."""
        await self._channel.close()

    async def call(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        """Call a unary method."""
        call = self._channel.unary_unary(
            method, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
        )
        try:
            found: Answer = await call(request, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise self._error(error) from error
        return found

    async def stream(self, method: str, request: Message, answer: type[Answer]) -> AsyncIterator[Answer]:
        """Call a server-streaming method without a deadline; yield its answers."""
        call = self._channel.unary_stream(
            method, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
        )
        try:
            async for found in call(request):
                yield found
        except grpc.aio.AioRpcError as error:
            raise self._error(error) from error

    def _error(self, error: grpc.aio.AioRpcError) -> IsterError:
        return error_of(error.code(), error.details() or "", self._url, "--broker")


def _trailing(call: grpc.Call) -> dict[str, str]:
    return {key: str(value) for key, value in call.trailing_metadata() or ()}


def target_of(url: str, option: str) -> str:
    """Return host and port of a URL, as a gRPC target."""
    try:
        scheme, _, target = listener(url).partition("://")
    except ValueError as error:
        raise InputError(f"{option} {url}", str(error)) from None
    if scheme == "https":
        raise InputError(f"{option} {url}", "asks for TLS, which comes in a later release; use http://")
    return target


def beside(broker: str) -> str:
    """Return the administration URL of a broker that uses the default port for it."""
    host = target_of(broker, "--broker").rpartition(":")[0]
    return f"http://{host}:{ADMIN_PORT}"


def error_of(code: StatusCode, text: str, url: str, option: str) -> IsterError:
    """Return the error for a broker's status."""
    if code is StatusCode.UNAVAILABLE and _NOT_CONNECTED.search(text):
        cause = next((words for part, words in _CAUSES.items() if part in text.lower()), "the connection broke")
        return BrokerUnreachableError(url, option, cause)
    family = _FAMILIES.get(code)
    if family is None:
        return ChangeUnknownError(url, code, text or code.name.lower().replace("_", " "))
    if family is UnsupportedError:
        return UnsupportedError(f"the broker at {url} does not offer this ({text or 'unimplemented'}); is it Ister's?")
    return family(text or f"the broker at {url} answered {code.name}")
