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
from ister.cli.output import Output, confirm, many, print_table, printable, say, wire_fields, wire_word
from ister.client.channel import Remote
from ister.core.errors import InputError
from ister.rpc import danube_admin_pb2 as danube
from ister.rpc import ister_v1_pb2 as ister

SubscriptionArgument = Annotated[
    str, typer.Argument(metavar="SUBSCRIPTION", help="The subscription's name.", parser=utf8_text)
]

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
            unsubscribe(broker, name, subscription)
        output.show(
            topics,
            lambda names: {"deleted": [{"topic": name, "subscription": subscription} for name in names]},
            lambda _: say(f"Deleted {subscription} of {topic}."),
        )


def unsubscribe(admin: Remote, topic: str, subscription: str) -> None:
    """Delete a subscription of one topic."""
    request = danube.SubscriptionRequest(topic=topic, subscription=subscription)
    admin.change("/danube_admin.TopicAdmin/Unsubscribe", request, danube.SubscriptionResponse)


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
                _type(found),
                f"{found.cursor}" if reliable else "-",
                f"{found.lag:,}" if reliable else "-",
                f"{found.unacked:,}",
                f"{found.waiting:,}",
                f"{found.window:,}" if reliable else "-",
                f"{sum(consumer.connected for consumer in found.consumers)}/{len(found.consumers)}",
                Text("blocked by a poisoned message", "red") if found.blocked else "",
            )
        )
    numbers = (">Next offset", ">Behind", ">Unacked", ">Waiting", ">Window", ">Connected")
    print_table(("Topic", "Subscription", "Type", *numbers, ""), rows)
    say(f"{many(len(lines), 'subscription')}.")


def _fields(topic: str, found: ister.Subscription) -> object:
    return {
        "topic": topic,
        **wire_fields(found, name="subscription", dispatch=""),
        "type": _type(found),
        "reliable": found.dispatch == ister.DISPATCH_RELIABLE,
        "consumers": [wire_fields(consumer, consumer_id="") for consumer in found.consumers],
    }


def _type(found: ister.Subscription) -> str:
    return wire_word(found, "type").replace("_", "-")
