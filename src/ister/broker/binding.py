"""Attach services to grpc.aio: bytes in, the handler's message or stream out, errors as statuses.

A call costs what grpc.aio costs, and little more: what a method needs is decided when it is bound. Decoding is done here
and not by grpc, which answers undecodable bytes with UNKNOWN and the text of an exception.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection

from ister.broker.address import AddressTakenError, refuse_taken
from ister.broker.health import Health
from ister.broker.service import ServerStream, Unary, wants_call
from ister.broker.status import INTERNAL_TEXT, status_of
from ister.core.errors import InvalidRequestError, IsterError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any, NoReturn, TypeAlias

    from google.protobuf.message import Message

    from ister.broker.service import Service

    _Context: TypeAlias = grpc.aio.ServicerContext[bytes, bytes]

MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""What every official client can receive; a message that is larger could be stored and never be consumed."""
REFUSED_MULTIPLE: Final = 4
"""Up to how many times the limit a request is read, to be refused as wrong. What is beyond that grpc refuses by itself, as
RESOURCE_EXHAUSTED, which clients take for "try again"."""
PING_INTERVAL_MS_MIN: Final = 500
"""How often a client may ping, whether it has calls or not; grpc's own five minutes would cut off careful clients."""
STOPPING: Final = "the broker is stopping; look the topic up again and retry"

log = structlog.get_logger()


class Server:
    """A server that is listening."""

    def __init__(self, server: grpc.aio.Server, port: int, health: Health, calls: _Calls) -> None:
        self.port = port
        self._server = server
        self._health = health
        self._calls = calls

    def drain(self) -> None:
        """Say to whoever asks for its health that this broker is about to stop; calls are still served."""
        self._health.drain()

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, end every stream, and give the other calls `grace_s` to end."""
        stopped = asyncio.ensure_future(self._server.stop(grace_s))  # runs before the streams do: nobody comes back
        self._calls.end_streams()
        await stopped
        await self._calls.finish(grace_s)


async def serve(
    services: Sequence[Service],
    *,
    host: str,
    port: int,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    keepalive_s: float = 20.0,
    keepalive_timeout_s: float = 10.0,
    rpcs: dict[tuple[str, str], int] | None = None,
) -> Server:
    """Listen, and serve these services with health and reflection; port 0 takes any that is free.

    A peer that does not answer a ping within the timeout is taken for gone, and its calls are cancelled. `rpcs` counts
    the calls that have ended, by method and status code.
    """
    health = Health(service.name for service in services)
    calls = _Calls(message_bytes_max, {} if rpcs is None else rpcs)
    bound = {
        f"/{service.name}/{method.name}": calls.bind(f"{service.name}/{method.name}", method)
        for service in (*services, health.service)
        for method in service.methods
    }
    server = grpc.aio.server(
        handlers=(_Methods(bound),),
        options=(
            ("grpc.so_reuseport", 0),  # a second broker on this port must fail, not share it
            ("grpc.max_receive_message_length", REFUSED_MULTIPLE * message_bytes_max),
            ("grpc.keepalive_time_ms", int(keepalive_s * 1000)),
            ("grpc.keepalive_timeout_ms", int(keepalive_timeout_s * 1000)),
            ("grpc.http2.ping_timeout_ms", int(keepalive_timeout_s * 1000)),  # else grpc 1.85 waits 60 s for a pong
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS_MIN),
        ),
    )
    names = [service.name for service in (*services, health.service)]
    reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
    address = refuse_taken(host, port)
    try:
        bound_port = server.add_insecure_port(address)
    except RuntimeError:
        raise AddressTakenError(address) from None  # since we looked
    await server.start()
    log.info("listening", address=address, port=bound_port)
    return Server(server, bound_port, health, calls)


class _Methods(grpc.GenericRpcHandler):
    """Finds a method by its path: one look-up for all services."""

    def __init__(self, methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]]) -> None:
        self._methods = methods

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._methods.get(handler_call_details.method)


class _Call:
    """A Call over a grpc context."""

    __slots__ = ("_context", "_trail")

    def __init__(self, context: _Context) -> None:
        self._context = context
        self._trail: tuple[tuple[str, str], ...] = ()

    @property
    def peer(self) -> str:
        return self._context.peer()

    def header(self, key: str) -> str | None:
        for name, value in self._context.invocation_metadata() or ():
            if name == key:
                return value if isinstance(value, str) else value.decode(errors="replace")
        return None

    def trail(self, key: str, value: str) -> None:
        self._trail = (*self._trail, (key, value))
        self._context.set_trailing_metadata(self._trail)

    @property
    def cancelled(self) -> bool:
        return self._context.cancelled()


class _Calls:
    """Makes grpc's handlers of ours, and knows which calls are under way where that matters."""

    def __init__(self, message_bytes_max: int, rpcs: dict[tuple[str, str], int]) -> None:
        self._limit = message_bytes_max
        self._rpcs = rpcs
        self._streams: set[asyncio.Task[Any]] = set()
        self._finishing: set[asyncio.Task[Message]] = set()
        self._stopping = False

    def bind(self, name: str, method: Unary | ServerStream) -> grpc.RpcMethodHandler[bytes, bytes]:
        match method:
            case Unary():
                return grpc.unary_unary_rpc_method_handler(self._unary(name, method))
            case ServerStream():
                return grpc.unary_stream_rpc_method_handler(self._stream(name, method))

    def end_streams(self) -> None:
        self._stopping = True
        for task in self._streams:
            task.cancel()

    async def finish(self, timeout_s: float) -> None:
        """Wait for the calls that go on without their clients; what takes longer is cancelled, and said."""
        if self._finishing:
            _, late = await asyncio.wait(self._finishing, timeout=timeout_s)
            for task in late:
                log.warning("call_cut_short", call=task.get_name())
                task.cancel()

    def _unary(self, name: str, method: Unary) -> Callable[[bytes, _Context], Coroutine[Any, Any, bytes]]:
        decode = _decoder(method.request, self._limit)
        with_call = wants_call(method.handler)
        handler: Any = self._finisher(name, method.handler) if method.finishes else method.handler
        rpcs, ok = self._rpcs, (f"/{name}", "OK")
        rpcs.setdefault(ok, 0)

        async def answer(data: bytes, context: _Context) -> bytes:
            try:
                request = decode(data)
                response = await (handler(request, _Call(context)) if with_call else handler(request))
                answered: bytes = response.SerializeToString()
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # the root of a call
                data = b""  # not kept by the traceback of the answer, which lives until the next collection
                await self._fail(name, context, error)
            rpcs[ok] += 1
            return answered

        return answer

    def _finisher(self, name: str, handler: Any) -> Callable[..., Coroutine[Any, Any, Message]]:
        """Let a handler run to its end when its client goes away."""

        async def finish(*arguments: object) -> Message:
            task = asyncio.create_task(handler(*arguments), name=name)
            self._finishing.add(task)
            task.add_done_callback(self._finishing.discard)
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                task.add_done_callback(_report_abandoned)
                raise

        return finish

    def _stream(self, name: str, method: ServerStream) -> Callable[[bytes, _Context], Coroutine[Any, Any, None]]:
        decode = _decoder(method.request, self._limit)
        with_call = wants_call(method.handler)
        handler: Any = method.handler

        async def send(data: bytes, context: _Context) -> None:
            request = decode(data)
            items = handler(request, _Call(context)) if with_call else handler(request)
            try:
                write = context.write
                async for item in items:
                    await write(item if type(item) is bytes else item.SerializeToString())
            finally:
                # Not left to the collector: whoever waits behind this consumer must not wait for that.
                if hasattr(items, "aclose"):
                    await items.aclose()

        async def stream(data: bytes, context: _Context) -> None:
            task = asyncio.current_task()
            assert task is not None, "grpc runs every call in a task"
            self._streams.add(task)
            try:
                await send(data, context)
                self._count(name, "OK")
            except asyncio.CancelledError as error:
                if self._stopping:
                    self._count(name, grpc.StatusCode.UNAVAILABLE.name)
                    await context.abort(grpc.StatusCode.UNAVAILABLE, STOPPING)
                await self._fail(name, context, error)
            except Exception as error:  # noqa: BLE001  # the root of a call
                await self._fail(name, context, error)
            finally:
                self._streams.discard(task)

        return stream

    async def _fail(self, name: str, context: _Context, error: BaseException) -> NoReturn:
        """Answer with an error; the call's own cancellation is passed on, because nobody is there to be answered."""
        if isinstance(error, Exception):
            code, text = status_of(error)
            if isinstance(error, IsterError):
                error.__traceback__ = None  # it holds what was sent; an expected error needs none
        else:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self._count(name, grpc.StatusCode.CANCELLED.name)
                raise error
            # Something that the handler waited for was cancelled. grpc would never answer this call.
            code, text = grpc.StatusCode.INTERNAL, INTERNAL_TEXT
        self._count(name, code.name)
        if text is INTERNAL_TEXT:
            log.error("call_failed", call=name, exc_info=error)
        await context.abort(code, text)

    def _count(self, name: str, code: str) -> None:
        key = (f"/{name}", code)
        self._rpcs[key] = self._rpcs.get(key, 0) + 1


def _decoder(kind: type[Message], limit: int) -> Callable[[bytes], Message]:
    parse, name = kind.FromString, kind.DESCRIPTOR.full_name

    def decode(data: bytes) -> Message:
        if len(data) > limit:
            raise InvalidRequestError(f"this {name} has {len(data)} bytes; the broker takes at most {limit}")
        try:
            return parse(data)
        except DecodeError:
            raise InvalidRequestError(f"these {len(data)} bytes are not a {name}") from None

    return decode


def _report_abandoned(task: asyncio.Task[Message]) -> None:
    """Say how a call ended whose client did not wait for it, if it ended badly."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error("call_failed", call=task.get_name(), exc_info=error)
