"""Decide which commands look at subscriptions, move and end them, and what they take; they ask the broker."""

from typing import Annotated

import typer

from ister.cli.display import say
from ister.cli.exits import EXIT_CODES, reporting
from ister.cli.options import ADMIN, AdminOption, Output, OutputOption, TopicArgument, YesOption, utf8_text

subscriptions = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

SubscriptionArgument = Annotated[
    str, typer.Argument(metavar="SUBSCRIPTION", help="The subscription's name.", parser=utf8_text)
]


@subscriptions.command("list", epilog=EXIT_CODES)
def _subscriptions_list(
    topic: TopicArgument, *, admin: AdminOption = ADMIN, output: OutputOption = Output.TABLE
) -> None:
    """List the subscriptions of a topic, and how far each is.

    Example: ister subscriptions list /default/orders
    """
    from ister.cli import remote  # noqa: PLC0415  # gRPC takes its time; --help must not wait
    from ister.cli import subscriptions as found  # noqa: PLC0415  # gRPC takes its time; --help must not wait

    with reporting():
        with remote.Remote.admin(admin) as broker:
            lines = found.list_subscriptions(broker, topic)
        if output is Output.JSON:
            found.show_list_json(lines)
        else:
            found.show_list(topic, lines)


@subscriptions.command("reset", epilog=EXIT_CODES)
def _subscriptions_reset(
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
    from ister.cli import positions, remote  # noqa: PLC0415  # gRPC takes its time; --help must not wait
    from ister.cli import subscriptions as found  # noqa: PLC0415  # gRPC takes its time; --help must not wait

    with reporting():
        place = positions.parse_position(to, "--to")
        with remote.Remote.admin(admin) as broker:
            moved = found.reset_subscription(broker, topic, subscription, place)
        (found.show_moved_json if output is Output.JSON else found.show_moved)(moved)


@subscriptions.command("delete", epilog=EXIT_CODES)
def _subscriptions_delete(
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
    from ister.cli import confirm, remote  # noqa: PLC0415  # gRPC takes its time; --help must not wait
    from ister.cli import subscriptions as found  # noqa: PLC0415  # gRPC takes its time; --help must not wait

    with reporting(), remote.Remote.admin(admin) as broker:
        if not yes:
            confirm.confirm(f"Subscription {subscription} of {topic} and its progress will be gone.")
        topics = found.delete_subscription(broker, topic, subscription)
        if output is Output.JSON:
            found.show_deleted_json(topics, subscription)
        else:
            say(f"Deleted {subscription} of {topic}.")
