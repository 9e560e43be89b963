"""Decide what a broker that only reads answers: what is not listed here is refused, so that a new call is at first, too.

Calls that ask for topics look at metadata first, because others make and delete them. The rest go on with what is known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn, TypeAlias, cast

from ister.broker.service import Exchange, Prompt, ServerStream, Service, wants_call
from ister.core.errors import PreconditionError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from google.protobuf.message import Message

    from ister.broker.service import Call, Method

AT_ONCE = frozenset({
    "danube.ConsumerService/ReceiveMessages",
    "danube.ConsumerService/Ack",
    "danube.ConsumerService/Nack",
    "danube.HealthCheck/HealthCheck",
    "danube_admin.BrokerAdmin/ListBrokers",
    "danube_admin.BrokerAdmin/GetLeaderBroker",
})  # fmt: skip
"""What is answered from what is known."""

AFTER_A_LOOK = frozenset({
    "danube.ConsumerService/Subscribe",
    "danube.Discovery/TopicLookup",
    "danube.Discovery/TopicPartitions",
    "danube_schema.SchemaRegistry/GetSchema",
    "danube_schema.SchemaRegistry/GetLatestSchema",
    "danube_schema.SchemaRegistry/ListVersions",
    "danube_schema.SchemaRegistry/CheckCompatibility",
    "danube_schema.SchemaRegistry/GetTopicSchemaConfig",
    "danube_schema.SchemaRegistry/ListSubjects",
    "danube_admin.TopicAdmin/DescribeTopic",
    "danube_admin.TopicAdmin/ListNamespaceTopics",
    "danube_admin.TopicAdmin/ListBrokerTopics",
    "danube_admin.TopicAdmin/ListSubscriptions",
    "danube_admin.TopicAdmin/Unsubscribe",
    "danube_admin.TopicAdmin/SetSubscriptionFailurePolicy",
    "danube_admin.TopicAdmin/GetSubscriptionFailurePolicy",
    "danube_admin.TopicAdmin/SetSubscriptionDispatchConfig",
    "danube_admin.TopicAdmin/GetSubscriptionDispatchConfig",
    "danube_admin.NamespaceAdmin/GetNamespaceTopics",
    "danube_admin.NamespaceAdmin/GetNamespacePolicies",
    "danube_admin.BrokerAdmin/ListNamespaces",
    "ister.v1.Admin/ResetCursor",
    "ister.v1.Admin/GetTopicPolicies",
    "ister.v1.Admin/GetNamespacePolicies",
    "ister.v1.Admin/DescribeSubscription",
    "ister.v1.Admin/DescribeSubscriptions",
    "ister.v1.Admin/DescribeTopic",
    "ister.v1.Admin/ListTopics",
})  # fmt: skip
"""What is answered once metadata was looked at; what changes here is a subscription, which is then held."""


Owner: TypeAlias = "Callable[[], Awaitable[str | None]]"
"""Finds the address of the broker that owns the topics, if that is known."""


def for_readers(service: Service, look: Callable[[], Awaitable[None]], owner: Owner) -> Service:
    """Return a service as a broker has it that only reads; `look` brings what is known of topics up to date."""
    return replace(service, methods=tuple(_method(service.name, method, look, owner) for method in service.methods))


def _method(service: str, method: Method, look: Callable[[], Awaitable[None]], owner: Owner) -> Method:
    name = f"{service}/{method.name}"
    if name in AT_ONCE:
        return method
    assert not isinstance(method, Prompt), "whoever must look first, or ask for the owner, waits"

    async def refuse_call(request: Message) -> Message:
        del request
        refuse(await owner())

    async def refuse_stream(request: Message, call: Call) -> AsyncIterator[Message]:
        del call
        yield await refuse_call(request)

    if isinstance(method, ServerStream):
        return replace(method, handler=refuse_stream)
    if isinstance(method, Exchange):
        return replace(method, handler=refuse_call)
    if name not in AFTER_A_LOOK:
        return replace(method, handler=refuse_call, finishes=False)
    assert not wants_call(method.handler), "none of these asks who calls"
    handler = cast("Callable[[Message], Awaitable[Message]]", method.handler)

    async def looked(request: Message) -> Message:
        await look()
        return await handler(request)

    return replace(method, handler=looked)


def refuse(owner: str | None = None) -> NoReturn:
    """Say what this broker is, and whom to ask."""
    where = "" if owner is None else f", {owner},"
    raise PreconditionError(
        f"this broker only reads (ister serve --read-only); produce to the broker that owns the topic{where} "
        "and change topics there"
    )
