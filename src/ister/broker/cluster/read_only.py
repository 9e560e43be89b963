"""Services of a read-only broker: methods refused, answered from the cache, or after a refresh from metadata.

`broker.methods.METHODS` says which; the default is to refuse.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, cast

from ister.broker.methods import METHODS, ReadOnly
from ister.core.ownership.subscriptions import read_only_error
from ister.transport.service import Prompt, ServerStream, Service, Unary, wants_call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from google.protobuf.message import Message

    from ister.transport.service import Call, Method

Owner: TypeAlias = "Callable[[], Awaitable[str | None]]"
"""Returns the address of the broker that owns the topics, if known."""


def for_readers(service: Service, refresh: Callable[[], Awaitable[None]], owner: Owner) -> Service:
    """Return the service of a read-only broker; `refresh` updates its topics from metadata."""
    return replace(service, methods=tuple(_method(service.name, method, refresh, owner) for method in service.methods))


def _method(service: str, method: Method, refresh: Callable[[], Awaitable[None]], owner: Owner) -> Method:
    rule = METHODS[f"{service}/{method.name}"].read_only
    if rule is ReadOnly.CACHED:
        return method
    assert not isinstance(method, Prompt), "a prompt method cannot refresh or look up the owner: that waits"

    async def refuse_call(request: Message) -> Message:
        del request
        raise read_only_error(await owner())

    async def refuse_stream(request: Message, call: Call) -> AsyncIterator[Message]:
        del call
        yield await refuse_call(request)

    if isinstance(method, ServerStream):
        return replace(method, handler=refuse_stream)
    assert isinstance(method, Unary), "the broker has no bidirectional streams of its own"
    if rule is ReadOnly.REFUSED:
        return replace(method, handler=refuse_call, finishes=False)
    assert not wants_call(method.handler), "none of these takes the call"
    handler = cast("Callable[[Message], Awaitable[Message]]", method.handler)

    async def refreshed(request: Message) -> Message:
        await refresh()
        return await handler(request)

    return replace(method, handler=refreshed)
