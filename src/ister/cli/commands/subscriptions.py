"""`ister subscriptions`: list, move and delete subscriptions of a broker."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from ister.cli.commands.topics import find_topics
from ister.cli.options import (
    ADMIN,
    AdminOption,
    OutputOption,
    Position,
    TopicArgument,
    YesOption,
    command,
    command_group,
    parse_position,
    utf8_text,
)
from ister.cli.output import Output, confirm, many, print_table, printable, say
from ister.client.channel import Remote
from ister.core.errors import InputError
from ister.rpc import danube_admin_pb2 as danube
from ister.rpc import ister_v1_pb2 as ister

SubscriptionArgument = Annotated[
    str, typer.Argument(metavar="SUBSCRIPTION", help="The subscription's name.", parser=utf8_text)
]

_TYPES = {
    ister.SUBSCRIPTION_TYPE_EXCLUSIVE: "exclusive",
    ister.SUBSCRIPTION_TYPE_SHARED: "shared",
    ister.SUBSCRIPTION_TYPE_FAILOVER: "failover",
    ister.SUBSCRIPTION_TYPE_KEY_SHARED: "key-shared",
}
_BACKOFFS = {ister.BACKOFF_FIXED: "fixed", ister.BACKOFF_EXPONENTIAL: "exponential"}
_POISONS = {ister.POISON_DEAD_LETTER: "dead_letter", ister.POISON_BLOCK: "block", ister.POISON_DROP: "drop"}

app = command_group("List, move and end subscriptions, by asking the broker.")


@command(app, "list")
def _list(topic: TopicArgument, *, admin: AdminOption = ADMIN, output: OutputOption = Output.TABLE) -> None:
    """List the subscriptions of a topic, and how far each is.

    Example: ister subscriptions list /default/orders
    """
    with Remote.admin(admin) as broker:
        found = []
        for one in find_topics(broker, topic):
            request = ister.DescribeSubscriptionsRequest(topic=one.name)
            answer = broker.ask("/ister.v1.Admin/DescribeSubscriptions", request, ister.DescribeSubscriptionsResponse)
            found += [(one.name, subscription) for subscription in answer.subscriptions]
        output.show(
            found,
            lambda lines: {"subscriptions": [_fields(*line) for line in lines]},
            lambda lines: _write_list(topic, lines),
        )


@command(app, "reset")
def _reset(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    *,
    to: Annotated[str, typer.Option("--to", metavar="PLACE", help="earliest, latest, an offset or a time.")],
    admin: AdminOption = ADMIN,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move a subscription: what lies behind that place comes (again), what lies before it does not.

    Example: ister subscriptions reset /default/orders billing --to 2026-01-31T18:00:00Z
    """
    position = parse_position(to, "--to")
    with Remote.admin(admin) as broker:
        topics = find_topics(broker, topic)
        if position.kind == "offset" and len(topics) > 1:
            raise InputError(
                f"--to {position.value}", f"means another message in each partition; reset {topics[0].name} alone"
            )
        moved = [(one.name, reset_cursor(broker, one.name, subscription, position)) for one in topics]

    def fields(_: object) -> object:
        return {
            "subscriptions": [
                {"topic": name, "subscription": subscription, "cursor": one.cursor, "previous": one.previous}
                for name, one in moved
            ]
        }

    def write(_: object) -> None:
        for name, one in moved:
            where = f"{printable(subscription)} of {printable(name)}"
            say(f"{where} goes on at offset {one.cursor}; it was at {one.previous}.")

    output.show(moved, fields, write)


@command(app, "delete")
def _delete(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    *,
    yes: YesOption = False,
    admin: AdminOption = ADMIN,
    output: OutputOption = Output.TABLE,
) -> None:
    """End a subscription and forget how far it was; nobody may be connected to it.

    Example: ister subscriptions delete /default/orders billing
    """
    with Remote.admin(admin) as broker:
        if not yes:
            confirm(f"Subscription {subscription} of {topic} and its progress will be gone.")
        topics = [one.name for one in find_topics(broker, topic)]
        for name in topics:
            request = danube.SubscriptionRequest(topic=name, subscription=subscription)
            broker.change("/danube_admin.TopicAdmin/Unsubscribe", request, danube.SubscriptionResponse)
        output.show(
            topics,
            lambda names: {"deleted": [{"topic": name, "subscription": subscription} for name in names]},
            lambda _: say(f"Deleted {subscription} of {topic}."),
        )


def reset_cursor(admin: Remote, topic: str, subscription: str, position: Position) -> ister.ResetCursorResponse:
    """Move a subscription of one topic."""
    request = ister.ResetCursorRequest(topic=topic, subscription=subscription)
    match position.kind:
        case "earliest":
            request.earliest = True
        case "latest":
            request.latest = True
        case "offset":
            request.offset = position.value
        case "time":
            request.time_ms = position.value
    return admin.change("/ister.v1.Admin/ResetCursor", request, ister.ResetCursorResponse)


def _write_list(topic: str, lines: Sequence[tuple[str, ister.Subscription]]) -> None:
    if not lines:
        say(f"{printable(topic)} has no subscriptions. Next: ister consume {printable(topic)} --subscription NAME")
        return
    rows = []
    for name, found in lines:
        reliable = found.dispatch == ister.DISPATCH_RELIABLE
        rows.append(
            (
                name,
                found.name,
                _TYPES.get(found.type, str(found.type)),
                f"{found.cursor}" if reliable else "-",
                f"{found.lag:,}" if reliable else "-",
                f"{found.unacked:,}",
                f"{found.waiting:,}",
                f"{found.window:,}" if reliable else "-",
                f"{sum(consumer.connected for consumer in found.consumers)}/{len(found.consumers)}",
                Text("blocked by a poisoned message", "red") if found.blocked else "",
            )
        )
    print_table(
        (
            "Topic",
            "Subscription",
            "Type",
            ">Next offset",
            ">Behind",
            ">Unacked",
            ">Waiting",
            ">Window",
            ">Connected",
            "",
        ),
        rows,
    )
    say(f"{many(len(lines), 'subscription')}.")


def _fields(topic: str, found: ister.Subscription) -> object:
    policy = found.failure_policy
    return {
        "topic": topic,
        "subscription": found.name,
        "type": _TYPES.get(found.type, str(found.type)),
        "reliable": found.dispatch == ister.DISPATCH_RELIABLE,
        "cursor": found.cursor,
        "durable_cursor": found.durable_cursor,
        "lag": found.lag,
        "unacked": found.unacked,
        "waiting": found.waiting,
        "redelivered": found.redelivered,
        "window": found.window,
        "blocked": found.blocked,
        "failure_policy": {
            "max_redelivery_count": policy.max_redelivery_count,
            "ack_timeout_ms": policy.ack_timeout_ms,
            "base_redelivery_delay_ms": policy.base_redelivery_delay_ms,
            "max_redelivery_delay_ms": policy.max_redelivery_delay_ms,
            "backoff": _BACKOFFS.get(policy.backoff, str(policy.backoff)),
            "poison": _POISONS.get(policy.poison, str(policy.poison)),
            "dead_letter_topic": policy.dead_letter_topic if policy.HasField("dead_letter_topic") else None,
        }
        if found.HasField("failure_policy")
        else None,
        "consumers": [
            {
                "name": consumer.name,
                "connected": consumer.connected,
                "active": consumer.active,
                "unacked": consumer.unacked,
                "key_filters": list(consumer.key_filters),
            }
            for consumer in found.consumers
        ],
    }
