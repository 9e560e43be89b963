"""Connections to an etcd cluster: member selection, timeouts, authentication, error mapping.

A call that changes something goes out once. It is tried again only when etcd certainly did not do it: nothing was sent,
or the member reported that it refused.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, NamedTuple

import grpc
from aetcd import rpc

from ister.core.errors import (
    InvalidConfigError,
    InvalidMessageError,
    MetadataUnavailableError,
    MetadataUnknownError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import TypeVar

    T = TypeVar("T")

PORT = 2379
CONNECT_LOOK_S = 0.01
RETRY_PAUSE_S = 0.05
_ENDPOINT = re.compile(r"(?:(https?)://)?([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(?::(\d{1,5}))?/?")

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # an HTTP proxy does not reach etcd
    ("grpc.enable_retries", 0),  # we decide what may be retried
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # the timeout of a connection attempt
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 10_000),  # a dead peer ends a watch; etcd refuses less than 5 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.max_receive_message_length", -1),  # pages of large values
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)
# Refused before anything was proposed to the other members (etcd api/v3rpc/rpctypes/error.go).
_NOT_DONE = re.compile(r"no leader|failed to connect to all addresses|not capable|not supported for learner")
_TOKEN_OLD = re.compile(r"invalid auth token|revision of auth store is old")


class Login:
    """User and password; the repr is empty."""

    __slots__ = ("_password", "_user")

    def __init__(self, user: str, password: str) -> None:
        self._user = user
        self._password = password

    def __repr__(self) -> str:
        return "Login(***)"

    def request(self) -> rpc.AuthenticateRequest:
        """Return the request for a token."""
        return rpc.AuthenticateRequest(name=self._user, password=self._password)


class Member(NamedTuple):
    """A connection to one member of the cluster."""

    channel: grpc.aio.Channel
    kv: rpc.KVStub
    lease: rpc.LeaseStub
    watch: rpc.WatchStub
    auth: rpc.AuthStub


class Call(NamedTuple):
    """The target of a request: member, token and timeout."""

    member: Member
    metadata: tuple[tuple[str, str], ...]
    timeout_s: float

    async def send(self, method: Callable[..., Awaitable[T]], request: object) -> T:
        """Call a method of the member."""
        return await method(request, metadata=self.metadata, timeout=self.timeout_s)


class Cluster:
    """Members of one cluster. One is used until it fails; then the next reachable one."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        tls: grpc.ChannelCredentials | None,
        login: Login | None,
        timeout_s: float,
    ) -> None:
        self.name = f"etcd {','.join(addresses)}"
        self.closed = False
        self._members = [_connect(address, tls) for address in addresses]
        self._asked = 0
        self._login = login
        self._token = ""
        self._authenticating = asyncio.Lock()
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()

    async def read(self, action: str, send: Callable[[Call], Awaitable[T]], *, timeout_s: float | None = None) -> T:
        """Send a read, to every member if need be. Errors about leases and compaction are the caller's."""
        return await self._call(action, send, timeout_s or self._timeout_s, changes=False)

    async def change(self, action: str, send: Callable[[Call], Awaitable[T]]) -> T:
        """Send a change, at most once."""
        return await self._call(action, send, self._timeout_s, changes=True)

    async def stream(self, action: str) -> Call:
        """Return the target for a stream."""
        deadline = self._loop.time() + self._timeout_s
        member = await self._reachable(action, deadline)
        return Call(member, await self._metadata(action, member, deadline), self._timeout_s)

    def avoid(self) -> None:
        """Use another member next time."""
        self._asked = (self._asked + 1) % len(self._members)

    def forget_token(self) -> None:
        """Authenticate again next time."""
        self._token = ""

    async def close(self) -> None:
        """Close every connection; pending calls fail."""
        self.closed = True
        for member in self._members:
            await member.channel.close()

    async def _call(self, action: str, send: Callable[[Call], Awaitable[T]], timeout_s: float, *, changes: bool) -> T:
        deadline = self._loop.time() + timeout_s
        tries = 0
        while True:
            member = await self._reachable(action, deadline)
            metadata = await self._metadata(action, member, deadline)
            tries += 1
            left = max(deadline - self._loop.time(), 0.001)
            if not changes:
                left /= max(len(self._members) + 1 - tries, 1)
            try:
                return await send(Call(member, metadata, left))
            except grpc.aio.AioRpcError as error:
                self._map_error(action, error, changes=changes)
                if self._loop.time() + RETRY_PAUSE_S >= deadline:
                    raise MetadataUnavailableError(self.name, action, _cause(error)) from None
                await asyncio.sleep(RETRY_PAUSE_S)
            except asyncio.CancelledError:
                if self.closed and not _cancelled():
                    kind = MetadataUnknownError if changes else MetadataUnavailableError
                    raise kind(self.name, action, "it was closed meanwhile") from None
                raise

    def _map_error(self, action: str, error: grpc.aio.AioRpcError, *, changes: bool) -> None:
        """Raise our error for a failed call, or return if it may be retried."""
        code, details = error.code(), error.details() or ""
        match code:
            case grpc.StatusCode.NOT_FOUND | grpc.StatusCode.OUT_OF_RANGE:
                raise error
            case _ if self._login and _TOKEN_OLD.search(details):
                self.forget_token()
                return
            case grpc.StatusCode.PERMISSION_DENIED | grpc.StatusCode.UNAUTHENTICATED:
                raise InvalidConfigError("metadata", f"{self.name} does not let us {action}: {details}") from None
            case grpc.StatusCode.INVALID_ARGUMENT if "too large" in details:
                raise InvalidMessageError("metadata value", f"is too large for etcd: {action}") from None
            case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.FAILED_PRECONDITION:
                raise InvalidConfigError("metadata", f"{self.name} refused to {action}: {details}") from None
            case grpc.StatusCode.RESOURCE_EXHAUSTED:  # etcd is full or busy, and did nothing
                raise MetadataUnavailableError(self.name, action, _cause(error)) from None
            case _:
                self.avoid()
                not_done = code is grpc.StatusCode.UNAVAILABLE and _NOT_DONE.search(details)
                if changes and not not_done:
                    raise MetadataUnknownError(self.name, action, _cause(error)) from None

    async def _reachable(self, action: str, deadline: float) -> Member:
        """Return a connected member.

        Polled, because a cancelled wait for a change of state leaks inside gRPC.
        """
        while not self.closed:
            count = len(self._members)
            for index in range(self._asked, self._asked + count):
                member = self._members[index % count]
                if member.channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
                    self._asked = index % count
                    return member
            if self._loop.time() >= deadline:
                raise MetadataUnavailableError(self.name, action, "no member of the cluster can be reached")
            await asyncio.sleep(CONNECT_LOOK_S)
        raise MetadataUnavailableError(self.name, action, "it is closed")

    async def _metadata(self, action: str, member: Member, deadline: float) -> tuple[tuple[str, str], ...]:
        # A member that is partitioned from the others fails at once, instead of waiting.
        led = ("hasleader", "true")
        if self._login is None:
            return (led,)
        async with self._authenticating:
            if not self._token:
                left = max(deadline - self._loop.time(), 0.001)
                try:
                    answer = await member.auth.Authenticate(self._login.request(), timeout=left)
                except grpc.aio.AioRpcError as error:
                    self._map_error("prove who we are", error, changes=False)
                    raise MetadataUnavailableError(self.name, action, _cause(error)) from None
                self._token = answer.token
            return led, ("token", self._token)


def parse_endpoints(endpoints: Sequence[str] | str, *, tls: bool) -> tuple[list[str], bool]:
    """Return the addresses, and True for TLS; raise InvalidConfigError without repeating secrets."""
    texts = endpoints.split(",") if isinstance(endpoints, str) else list(endpoints)
    addresses, schemes = [], set()
    for text in texts:
        found = _ENDPOINT.fullmatch(text.strip())
        if found is None:
            hint = "; user and password have settings of their own" if "@" in text else f": {text[:80]!r}"
            raise InvalidConfigError("metadata endpoints", f"expected host:port or https://host:port{hint}")
        schemes.add(found[1] or ("https" if tls else "http"))
        addresses.append(f"{found[2]}:{found[3] or PORT}")
    if not addresses:
        raise InvalidConfigError("metadata endpoints", "there is none")
    if len(schemes) > 1 or (tls and "http" in schemes):
        raise InvalidConfigError("metadata endpoints", "some are to be asked with TLS and some without")
    return addresses, "https" in schemes


def _connect(address: str, tls: grpc.ChannelCredentials | None) -> Member:
    if tls is None:
        channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
    else:
        channel = grpc.aio.secure_channel(address, tls, options=_OPTIONS)
    return Member(channel, rpc.KVStub(channel), rpc.LeaseStub(channel), rpc.WatchStub(channel), rpc.AuthStub(channel))


def _cause(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {error.details()}"


def _cancelled() -> bool:
    """Return True if our own task is being cancelled, and not only a call inside it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
