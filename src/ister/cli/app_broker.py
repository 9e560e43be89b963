"""Decide which commands run a broker or ask one, and what they take; each does its work in a module of its own."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from ister.cli.display import say
from ister.cli.exits import EXIT_CODES, InputError, reporting
from ister.cli.logs import LogFormat, show_server_events
from ister.cli.options import (
    ADMIN,
    BROKER,
    AdminOption,
    BrokerOption,
    ConfigOption,
    DataDirOption,
    Output,
    OutputOption,
    SettingsArgument,
    TopicArgument,
    YesOption,
)

topics = typer.Typer(rich_markup_mode="rich")
namespaces = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
subscriptions = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


class SubscriptionKind(Enum):
    """How a subscription shares its messages out."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    FAILOVER = "failover"
    KEY_SHARED = "key-shared"


class Delivered(Enum):
    """How received messages are written."""

    TABLE = "table"
    JSON = "json"
    PAYLOAD = "payload"


SubscriptionArgument = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="The subscription's name.")]
NamespaceArgument = Annotated[str, typer.Argument(metavar="NAMESPACE", help="A namespace, like default.")]
Reliable = Annotated[
    bool, typer.Option("--reliable/--non-reliable", help="Store messages, or only pass them on.")
]  # fmt: skip


def add_broker_commands(app: typer.Typer) -> None:
    """Add everything of this module to the command line."""
    app.command("serve", epilog=EXIT_CODES)(_serve)
    app.command("produce", epilog=EXIT_CODES)(_produce)
    app.command("consume", epilog=EXIT_CODES)(_consume)
    app.add_typer(topics, name="topics", epilog=EXIT_CODES)
    app.add_typer(
        namespaces, name="namespaces", help="List, make and set namespaces, by asking the broker.", epilog=EXIT_CODES
    )
    app.add_typer(
        subscriptions, name="subscriptions", help="List, move and end subscriptions, by asking the broker.",
        epilog=EXIT_CODES,
    )  # fmt: skip


def _serve(
    *,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
    log_format: Annotated[
        LogFormat, typer.Option(help="How log events are written to stderr; auto is text on a terminal.")
    ] = LogFormat.AUTO,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log warnings only.")] = False,
    pipeline: Annotated[
        bool, typer.Option("--pipeline/--no-pipeline", help="Run the pipeline to the tables beside it, too.")
    ] = True,
    read_only: Annotated[
        bool,
        typer.Option(
            "--read-only", help="Only serve subscriptions, from the tables alone; needs etcd, and storage.type iceberg."
        ),
    ] = False,
) -> None:
    """Run the broker, and the pipeline to the tables.

    Until SIGTERM or Ctrl-C, which let it finish what it has begun. It listens on this machine only unless the configuration says otherwise. With -o json it writes one line as soon as
    it can be used, with its addresses.

    Example: ister serve --data-dir /var/lib/ister
    """
    from ister.cli.config_show import load_or_refuse  # noqa: PLC0415  # see demo
    from ister.cli.serve import serve, serve_readers, show_json, show_reader_table, show_table  # noqa: PLC0415  # see demo
    from ister.cli.supervise import PipelineChild, child_arguments  # noqa: PLC0415  # see demo

    with reporting():
        show_server_events(log_format, everything=not quiet)
        loaded = load_or_refuse(file, data_dir)
        if read_only:
            serve_readers(loaded, show_json if output is Output.JSON else show_reader_table)
            return
        told = child_arguments(file, data_dir, log_format, prom_port=loaded.config.prom_port, quiet=quiet)
        serve(loaded, show_json if output is Output.JSON else show_table, PipelineChild(told) if pipeline else None)


def _produce(
    topic: TopicArgument,
    *,
    message: Annotated[list[str] | None, typer.Option("--message", "-m", metavar="TEXT", help="Send this.")] = None,
    files: Annotated[
        list[Path] | None, typer.Option("--file", "-f", metavar="FILE", help="Send this file, whole.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Routing key of the messages.")] = None,
    attribute: Annotated[
        list[str] | None, typer.Option("--attribute", "-a", metavar="NAME=VALUE", help="An attribute of the messages.")
    ] = None,
    producer: Annotated[
        str, typer.Option(metavar="NAME", help="Producer's name.", show_default="of this process")
    ] = "",
    reliable: Reliable = True,
    broker: BrokerOption = BROKER,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send messages to a topic.

    Sends what -m and -f give, or else the lines of stdin. A topic that is not there is made, unless the broker is set not to.

    Example: ister produce /default/orders -m 'one order' -k customer-7
    """
    from ister.cli import produce  # noqa: PLC0415  # gRPC takes its time; --help must not wait

    with reporting():
        sending = produce.Sending(
            topic=topic,
            reliable=reliable,
            key=key,
            attributes=produce.parse_attributes(attribute or []),
            producer=producer,
        )
        sent = produce.produce(broker, sending, produce.payloads(message or [], files or []))
        (produce.show_json if output is Output.JSON else produce.show_table)(sending, sent)


def _consume(
    topic: TopicArgument,
    *,
    subscription: Annotated[
        str | None,
        typer.Option("--subscription", "-s", metavar="NAME", help="Its name.", show_default="one that ends with us"),
    ] = None,
    kind: Annotated[
        SubscriptionKind, typer.Option("--type", "-t", metavar="TYPE", help="exclusive, shared, failover, key-shared.")
    ] = SubscriptionKind.EXCLUSIVE,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="PLACE", help="earliest, latest, OFFSET or TIME.", show_default=False),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for more, or end at the end.")] = True,
    idle: Annotated[
        float, typer.Option(min=0.1, max=3600, metavar="SECONDS", help="The end: so long nothing came.")
    ] = 2.0,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, metavar="N", help="End after so many.", show_default=False)
    ] = None,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Acknowledge what was written.")] = True,
    broker: BrokerOption = BROKER,
    admin: Annotated[
        str | None,
        typer.Option(
            "--admin",
            envvar="ISTER_ADMIN",
            show_envvar=False,
            metavar="URL",
            help="For --from.",
            show_default="beside it",
        ),
    ] = None,
    output: Annotated[
        Delivered, typer.Option("--output", "-o", metavar="HOW", help="table, json, payload.")
    ] = Delivered.TABLE,
) -> None:
    """Receive messages of a topic.

    A time is like 2026-01-31T18:00:00Z. --from moves the subscription, for everyone who uses it.

    Example: ister consume /default/orders --from earliest
    """
    from ister.cli import consume, consume_lines, positions, remote  # noqa: PLC0415  # see produce

    with reporting():
        consuming = consume.Consuming(
            topic=topic,
            broker=broker,
            admin=admin or remote.beside(broker),
            subscription=subscription,
            kind=list(SubscriptionKind).index(kind),
            start=None if start is None else positions.parse_position(start, "--from"),
            count=count,
            idle_s=None if follow else idle,
            ack=ack,
        )
        consume.consume(
            consuming,
            {
                Delivered.TABLE: lambda partitioned: consume_lines.table(partitioned=partitioned),
                Delivered.JSON: lambda _: consume_lines.json_lines(),
                Delivered.PAYLOAD: lambda _: consume_lines.bare_payloads(),
            }[output],
        )


# --- topics -----------------------------------------------------------------------------------------------------------


@topics.callback(invoke_without_command=True)
def _topics(
    context: typer.Context,
    *,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List, make, set, describe and delete topics.

    The commands ask the broker. Without one, the topics of a data directory are listed: no broker is needed for that.

    Example: ister topics --data-dir /var/lib/ister
    """
    if context.invoked_subcommand is None:
        with reporting():
            _list_offline(file, data_dir, output)
    elif file is not None or data_dir is not None or output is not Output.TABLE:
        with reporting():
            raise InputError("an option", f"stands before {context.invoked_subcommand}; write it behind")


def _list_offline(file: Path | None, data_dir: Path | None, output: Output) -> None:
    from ister.cli.config_show import load_or_refuse  # noqa: PLC0415  # see demo
    from ister.cli.topics import list_topics, show_json, show_table  # noqa: PLC0415  # see demo

    lines = list_topics(load_or_refuse(file, data_dir).config)
    if output is Output.JSON:
        show_json(lines)
    else:
        show_table(lines)


@topics.command("list", epilog=EXIT_CODES)
def _topics_list(
    *,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Only this one.", show_default="all")
    ] = None,
    admin: AdminOption = ADMIN,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the topics of a running broker.

    With --config or --data-dir, that data directory is read instead, and no broker is asked.

    Example: ister topics list --namespace default
    """
    with reporting():
        if file is not None or data_dir is not None:
            _list_offline(file, data_dir, output)
            return
        from ister.cli import remote, topics_remote  # noqa: PLC0415  # see produce

        with remote.Remote.admin(admin) as broker:
            found = topics_remote.list_topics(broker, namespace)
        (topics_remote.show_list_json if output is Output.JSON else topics_remote.show_list)(found)


@topics.command("create", epilog=EXIT_CODES)
def _topics_create(
    topic: TopicArgument,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Policies, like ack_level=fsync.")
    ] = None,
    *,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=0, max=10_000, help="Make so many partitions.", show_default="none")
    ] = 0,
    reliable: Reliable = True,
    schema: Annotated[str | None, typer.Option(metavar="SUBJECT", help="Schema of its messages.")] = None,
    admin: AdminOption = ADMIN,
) -> None:
    """Make a topic.

    Example: ister topics create /default/orders ack_level=fsync --partitions 4
    """
    from ister.cli import policy_lines, remote, topics_remote  # noqa: PLC0415  # see produce

    with reporting():
        words = policy_lines.parse_settings(settings or [])
        with remote.Remote.admin(admin) as broker:
            topics_remote.create_topic(broker, topic, partitions=partitions, reliable=reliable, subject=schema)
            if words:
                topics_remote.set_policies(broker, topics_remote.find_topics(broker, topic), words)
        say(f"Made {topic}. Next: ister produce {topic} -m hello{'' if reliable else ' --non-reliable'}")


@topics.command("set", epilog=EXIT_CODES)
def _topics_set(topic: TopicArgument, settings: SettingsArgument, *, admin: AdminOption = ADMIN) -> None:
    """Set policies of a topic; they win over its namespace's.

    ack_level, ack_timeout_ms, retention_policy, retention_period_s, start_position, lake, and Danube's limits (max_...).
    docs/config.md says what each does, under policies.

    Example: ister topics set /default/orders ack_level=fsync start_position=earliest
    """
    from ister.cli import policy_lines, remote, topics_remote  # noqa: PLC0415  # see produce

    with reporting():
        words = policy_lines.parse_settings(settings)
        with remote.Remote.admin(admin) as broker:
            found = topics_remote.find_topics(broker, topic)
            topics_remote.set_policies(broker, found, words)
            topics_remote.show_topic_policies(broker, found[0].name)


@topics.command("describe", epilog=EXIT_CODES)
def _topics_describe(topic: TopicArgument, *, admin: AdminOption = ADMIN, output: OutputOption = Output.TABLE) -> None:
    """Show everything about a topic.

    Example: ister topics describe /default/orders
    """
    from ister.cli import remote, topics_remote  # noqa: PLC0415  # see produce

    with reporting(), remote.Remote.admin(admin) as broker:
        found = topics_remote.describe_topics(broker, topic)
        (topics_remote.show_topics_json if output is Output.JSON else topics_remote.show_topics)(broker, found)


@topics.command("delete", epilog=EXIT_CODES)
def _topics_delete(topic: TopicArgument, *, yes: YesOption = False, admin: AdminOption = ADMIN) -> None:
    """Delete a topic with everything in it.

    All its messages, partitions and subscriptions are gone then.

    Example: ister topics delete /default/orders
    """
    from ister.cli import confirm, remote, topics_remote  # noqa: PLC0415  # see produce

    with reporting(), remote.Remote.admin(admin) as broker:
        found = topics_remote.find_topics(broker, topic)
        if not yes:
            confirm.confirm(topics_remote.what_is_lost(topic, found))
        topics_remote.delete_topic(broker, topic)
        say(f"Deleted {topic}.")


# --- namespaces -------------------------------------------------------------------------------------------------------


@namespaces.command("list", epilog=EXIT_CODES)
def _namespaces_list(*, admin: AdminOption = ADMIN, output: OutputOption = Output.TABLE) -> None:
    """List the namespaces.

    Example: ister namespaces list
    """
    from ister.cli import namespaces as found  # noqa: PLC0415  # see produce
    from ister.cli import remote  # noqa: PLC0415  # see produce

    with reporting(), remote.Remote.admin(admin) as broker:
        lines = found.list_namespaces(broker)
        (found.show_list_json if output is Output.JSON else found.show_list)(lines)


@namespaces.command("create", epilog=EXIT_CODES)
def _namespaces_create(
    namespace: NamespaceArgument,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Policies, like ack_level=fsync.")
    ] = None,
    *,
    admin: AdminOption = ADMIN,
) -> None:
    """Make a namespace.

    Example: ister namespaces create shop start_position=earliest
    """
    from ister.cli import namespaces as found  # noqa: PLC0415  # see produce
    from ister.cli import policy_lines, remote  # noqa: PLC0415  # see produce

    with reporting():
        words = policy_lines.parse_settings(settings or [])
        with remote.Remote.admin(admin) as broker:
            found.create_namespace(broker, namespace)
            if words:
                found.set_policies(broker, namespace, words)
        say(f"Made {namespace}. Next: ister topics create /{namespace}/orders")


@namespaces.command("set", epilog=EXIT_CODES)
def _namespaces_set(namespace: NamespaceArgument, settings: SettingsArgument, *, admin: AdminOption = ADMIN) -> None:
    """Set policies of a namespace, for all of its topics that do not say otherwise.

    The keys are those of `ister topics set`.

    Example: ister namespaces set shop ack_level=fsync max_message_size=1000000
    """
    from ister.cli import namespaces as found  # noqa: PLC0415  # see produce
    from ister.cli import policy_lines, remote  # noqa: PLC0415  # see produce

    with reporting():
        words = policy_lines.parse_settings(settings)
        with remote.Remote.admin(admin) as broker:
            found.set_policies(broker, namespace, words)
            found.show_namespace(broker, namespace)


# --- subscriptions ----------------------------------------------------------------------------------------------------


@subscriptions.command("list", epilog=EXIT_CODES)
def _subscriptions_list(
    topic: TopicArgument, *, admin: AdminOption = ADMIN, output: OutputOption = Output.TABLE
) -> None:
    """List the subscriptions of a topic, and how far each is.

    Example: ister subscriptions list /default/orders
    """
    from ister.cli import remote  # noqa: PLC0415  # see produce
    from ister.cli import subscriptions as found  # noqa: PLC0415  # see produce

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
    from ister.cli import positions, remote  # noqa: PLC0415  # see produce
    from ister.cli import subscriptions as found  # noqa: PLC0415  # see produce

    with reporting():
        place = positions.parse_position(to, "--to")
        with remote.Remote.admin(admin) as broker:
            moved = found.reset_subscription(broker, topic, subscription, place)
        (found.show_moved_json if output is Output.JSON else found.show_moved)(moved)


@subscriptions.command("delete", epilog=EXIT_CODES)
def _subscriptions_delete(
    topic: TopicArgument, subscription: SubscriptionArgument, *, yes: YesOption = False, admin: AdminOption = ADMIN
) -> None:
    """End a subscription and forget how far it was; nobody may be connected to it.

    Example: ister subscriptions delete /default/orders billing
    """
    from ister.cli import confirm, remote  # noqa: PLC0415  # see produce
    from ister.cli import subscriptions as found  # noqa: PLC0415  # see produce

    with reporting(), remote.Remote.admin(admin) as broker:
        if not yes:
            confirm.confirm(f"Subscription {subscription} of {topic} and its progress will be gone.")
        found.delete_subscription(broker, topic, subscription)
        say(f"Deleted {subscription} of {topic}.")
