"""Ask a broker over the network, and say in our words what went wrong: whose fault it is, and what now."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Self, TypeVar, cast

import grpc
from grpc import StatusCode

from ister.cli.exits import InputError
from ister.cli.options import ADMIN_PORT
from ister.config.forms import listener
from ister.core.errors import (
    AlreadyExistsError,
    BusyError,
    ClientError,
    CorruptError,
    DeniedError,
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
    from collections.abc import Mapping
    from types import TracebackType

    from google.protobuf.message import Message

TIMEOUT_S = 60.0
"""How long an answer may take; with level cloud a producer waits up to 30 s by default."""

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # a broker may be set to take large messages
    ("grpc.initial_reconnect_backoff_ms", 200),
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
"""What gRPC's words hold, and what we say."""

Answer = TypeVar("Answer", bound="Message")


class BrokerUnreachableError(BusyError):
    """Nobody answers at that address."""

    def __init__(self, url: str, option: str, cause: str) -> None:
        self.url = url
        self.option = option
        self.cause = cause
        super().__init__(
            f"no broker answers at {url} ({cause}); start one with `ister serve`, or say where it is with {option} URL"
        )


class NoAnswerError(BusyError):
    """The broker took a question and did not answer it."""

    def __init__(self, url: str, cause: str) -> None:
        self.url = url
        self.cause = cause
        super().__init__(f"the broker at {url} did not answer ({cause}); look at its log, then try again")


class ChangeUnknownError(UnknownOutcomeError):
    """The broker took a change and did not say what came of it."""

    def __init__(self, url: str, code: StatusCode, cause: str) -> None:
        self.url = url
        self.code = code
        self.cause = cause
        super().__init__(
            f"the broker at {url} did not say whether it did that ({cause}); look before you do it once more"
        )


class StoredError(LevelNotReachedError):
    """A message is stored, and did not reach its topic's level in time."""

    def __init__(self, text: str, trailing: Mapping[str, str]) -> None:
        self.level = trailing[PENDING_LEVEL_KEY]
        super().__init__("", int(trailing[OFFSET_KEY]) + 1, text)


class Remote:
    """One port of a broker; `option` is how its address is given. Use it as a context."""

    def __init__(self, url: str, option: str) -> None:
        self.url = url
        self._option = option
        self._channel = grpc.insecure_channel(target_of(url, option), options=CHANNEL_OPTIONS)

    @classmethod
    def admin(cls, url: str) -> Self:
        """Return the port where a broker is administered."""
        return cls(url, "--admin")

    @classmethod
    def broker(cls, url: str) -> Self:
        """Return the port of a broker's clients."""
        return cls(url, "--broker")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def ask(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        """Ask something that changes nothing."""
        try:
            return self.change(method, request, answer)
        except ChangeUnknownError as error:
            raise NoAnswerError(self.url, error.cause) from error

    def change(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        """Ask for a change."""
        return self.change_told(method, request, answer)[0]

    def change_told(
        self, method: str, request: Message, answer: type[Answer], metadata: tuple[tuple[str, str], ...] = ()
    ) -> tuple[Answer, dict[str, str]]:
        """Ask for a change; returns the trailing metadata, too."""
        send = self._channel.unary_unary(
            method, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
        )
        try:
            found, call = send.with_call(request, timeout=TIMEOUT_S, metadata=metadata)
        except grpc.RpcError as error:
            call = cast("grpc.Call", error)  # what a call raises is one, and is typed as neither
            trailing = trailing_of(call)
            if PENDING_LEVEL_KEY in trailing:
                raise StoredError(call.details() or "", trailing) from error
            raise error_of(call.code(), call.details() or "", self.url, self._option) from error
        return found, trailing_of(call)


def trailing_of(call: grpc.Call) -> dict[str, str]:
    """Return the trailing metadata of a call."""
    return {key: str(value) for key, value in call.trailing_metadata() or ()}


def target_of(url: str, option: str) -> str:
    """Return host and port of an address as gRPC takes them."""
    try:
        scheme, _, target = listener(url).partition("://")
    except ValueError as error:
        raise InputError(f"{option} {url}", str(error)) from None
    if scheme == "https":
        raise InputError(f"{option} {url}", "asks for TLS, which comes in a later release; use http://")
    return target


def beside(broker: str) -> str:
    """Return where a broker is administered that has the usual port for it."""
    host = target_of(broker, "--broker").rpartition(":")[0]
    return f"http://{host}:{ADMIN_PORT}"


def error_of(code: StatusCode, text: str, url: str, option: str) -> IsterError:
    """Return the error of ours that a broker's status means."""
    if code is StatusCode.UNAVAILABLE and _NOT_CONNECTED.search(text):
        cause = next((words for part, words in _CAUSES.items() if part in text.lower()), "the connection broke")
        return BrokerUnreachableError(url, option, cause)
    family = _FAMILIES.get(code)
    if family is None:
        return ChangeUnknownError(url, code, text or code.name.lower().replace("_", " "))
    if family is UnsupportedError:
        return UnsupportedError(f"the broker at {url} does not offer this ({text or 'unimplemented'}); is it Ister's?")
    return family(text or f"the broker at {url} answered {code.name}")
