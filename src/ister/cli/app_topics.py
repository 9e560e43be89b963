"""Decide which commands make, set and delete topics and namespaces, and what they take; they ask the broker."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ister.cli.display import say
from ister.cli.exits import EXIT_CODES, InputError, error_of, exit_code, reporting
from ister.cli.options import (
    ADMIN,
    AdminOption,
    ConfigOption,
    DataDirOption,
    Output,
    OutputOption,
    SettingsArgument,
    TopicArgument,
    YesOption,
    utf8_text,
)
from ister.core.errors import IsterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ister.cli.topics_purge import TopicTable
    from ister.rpc.ister_v1_pb2 import TopicDetail

topics = typer.Typer(rich_markup_mode="rich")
namespaces = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

NamespaceArgument = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="A namespace, like default.", parser=utf8_text)
]
FirstSettings = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Policies, like ack_level=fsync.", parser=utf8_text)
]
Reliable = Annotated[
    bool, typer.Option("--reliable/--non-reliable", help="Store messages, or only pass them on.")
]  # fmt: skip


@contextmanager
def made_already(kind: str, name: str) -> Iterator[None]:
    """Say of a failure that what was to get these policies is there all the same: two calls make it, and set them."""
    try:
        yield
    except IsterError as error:
        told = f"{name} was made, but not with these policies ({error}); set others with `ister {kind} set {name}`"
        raise error_of(exit_code(error), told) from error


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
        str | None, typer.Option("--namespace", "-n", help="Only this one.", show_default="all", parser=utf8_text)
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
        from ister.cli import remote, topics_remote  # noqa: PLC0415  # gRPC takes its time; --help must not wait

        with remote.Remote.admin(admin) as broker:
            found = topics_remote.list_topics(broker, namespace)
        (topics_remote.show_list_json if output is Output.JSON else topics_remote.show_list)(found)


@topics.command("create", epilog=EXIT_CODES)
def _topics_create(
    topic: TopicArgument,
    settings: FirstSettings = None,
    *,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=0, max=10_000, help="Make so many partitions.", show_default="none")
    ] = 0,
    reliable: Reliable = True,
    schema: Annotated[
        str | None, typer.Option(metavar="SUBJECT", help="Schema of its messages.", parser=utf8_text)
    ] = None,
    admin: AdminOption = ADMIN,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a topic.

    Example: ister topics create /default/orders ack_level=fsync --partitions 4
    """
    from ister.cli import policy_lines, remote, topics_remote  # noqa: PLC0415  # gRPC takes its time; --help must not wait

    with reporting():
        words = policy_lines.parse_settings(settings or [])
        with remote.Remote.admin(admin) as broker:
            topics_remote.create_topic(broker, topic, partitions=partitions, reliable=reliable, subject=schema)
            if words:
                with made_already("topics", topic):
                    topics_remote.set_policies(broker, topics_remote.find_topics(broker, topic), words)
            if output is Output.JSON:
                topics_remote.show_topics_json(broker, topics_remote.describe_topics(broker, topic))
                return
        say(f"Made {topic}. Next: ister produce {topic} -m hello{'' if reliable else ' --non-reliable'}")


@topics.command("set", epilog=EXIT_CODES)
def _topics_set(
    topic: TopicArgument,
    settings: SettingsArgument,
    *,
    admin: AdminOption = ADMIN,
    output: OutputOption = Output.TABLE,
) -> None:
    """Set policies of a topic; they win over its namespace's.

    ack_level, ack_timeout_ms, retention_policy, retention_period_s, start_position, lake, and Danube's limits (max_...).
    docs/config.md says what each does, under policies.

    Example: ister topics set /default/orders ack_level=fsync start_position=earliest
    """
    from ister.cli import policy_lines, remote, topics_remote  # noqa: PLC0415  # gRPC takes its time; --help must not wait

    with reporting():
        words = policy_lines.parse_settings(settings)
        with remote.Remote.admin(admin) as broker:
            found = topics_remote.find_topics(broker, topic)
            topics_remote.set_policies(broker, found, words)
            if output is Output.JSON:
                topics_remote.show_topics_json(broker, topics_remote.describe_topics(broker, topic))
            else:
                topics_remote.show_topic_policies(broker, found[0].name)


@topics.command("describe", epilog=EXIT_CODES)
def _topics_describe(topic: TopicArgument, *, admin: AdminOption = ADMIN, output: OutputOption = Output.TABLE) -> None:
    """Show everything about a topic.

    Example: ister topics describe /default/orders
    """
    from ister.cli import remote, topics_remote  # noqa: PLC0415  # gRPC takes its time; --help must not wait

    with reporting(), remote.Remote.admin(admin) as broker:
        found = topics_remote.describe_topics(broker, topic)
        (topics_remote.show_topics_json if output is Output.JSON else topics_remote.show_topics)(broker, found)


def _table_of(file: Path | None, data_dir: Path | None, topic: str, found: "Sequence[TopicDetail]") -> "TopicTable":
    from ister.cli.config_show import load_or_refuse  # noqa: PLC0415  # seconds, which only --purge need spend
    from ister.cli.topics_purge import TopicTable  # noqa: PLC0415  # the same

    return TopicTable(load_or_refuse(file, data_dir).config, topic, found)


@topics.command("delete", epilog=EXIT_CODES)
def _topics_delete(
    topic: TopicArgument,
    *,
    purge: Annotated[bool, typer.Option("--purge", help="Drop its table, too, with all its files.")] = False,
    yes: YesOption = False,
    admin: AdminOption = ADMIN,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a topic with everything in it.

    All its messages, partitions and subscriptions are gone then. Its table stays, unless --purge is given; --config and
    --data-dir say where the catalog is.

    Example: ister topics delete /default/orders
    """
    from ister.cli import confirm, remote, topics_remote  # noqa: PLC0415  # gRPC takes its time; --help must not wait

    with reporting(), remote.Remote.admin(admin) as broker:
        found = topics_remote.find_topics(broker, topic)
        table = _table_of(file, data_dir, topic, found) if purge else None
        if not yes:
            lost = topics_remote.what_is_lost(topic, found)
            confirm.confirm(lost if table is None else f"{lost} {table.what_is_lost()}")
        topics_remote.delete_topic(broker, topic)
        if table is not None:
            table.drop()
        if output is Output.JSON:
            topics_remote.show_deleted_json(found)
        else:
            say(f"Deleted {topic}.")


# --- namespaces -------------------------------------------------------------------------------------------------------


@namespaces.command("list", epilog=EXIT_CODES)
def _namespaces_list(*, admin: AdminOption = ADMIN, output: OutputOption = Output.TABLE) -> None:
    """List the namespaces.

    Example: ister namespaces list
    """
    from ister.cli import namespaces as found  # noqa: PLC0415  # gRPC takes its time; --help must not wait
    from ister.cli import remote  # noqa: PLC0415  # gRPC takes its time; --help must not wait

    with reporting(), remote.Remote.admin(admin) as broker:
        lines = found.list_namespaces(broker)
        (found.show_list_json if output is Output.JSON else found.show_list)(lines)


@namespaces.command("create", epilog=EXIT_CODES)
def _namespaces_create(
    namespace: NamespaceArgument,
    settings: FirstSettings = None,
    *,
    admin: AdminOption = ADMIN,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a namespace.

    Example: ister namespaces create shop start_position=earliest
    """
    from ister.cli import namespaces as found  # noqa: PLC0415  # gRPC takes its time; --help must not wait
    from ister.cli import policy_lines, remote  # noqa: PLC0415  # gRPC takes its time; --help must not wait

    with reporting():
        words = policy_lines.parse_settings(settings or [])
        with remote.Remote.admin(admin) as broker:
            found.create_namespace(broker, namespace)
            if words:
                with made_already("namespaces", namespace):
                    found.set_policies(broker, namespace, words)
            if output is Output.JSON:
                found.show_namespace_json(broker, namespace)
                return
        say(f"Made {namespace}. Next: ister topics create /{namespace}/orders")


@namespaces.command("set", epilog=EXIT_CODES)
def _namespaces_set(
    namespace: NamespaceArgument,
    settings: SettingsArgument,
    *,
    admin: AdminOption = ADMIN,
    output: OutputOption = Output.TABLE,
) -> None:
    """Set policies of a namespace, for all of its topics that do not say otherwise.

    The keys are those of `ister topics set`.

    Example: ister namespaces set shop ack_level=fsync max_message_size=1000000
    """
    from ister.cli import namespaces as found  # noqa: PLC0415  # gRPC takes its time; --help must not wait
    from ister.cli import policy_lines, remote  # noqa: PLC0415  # gRPC takes its time; --help must not wait

    with reporting():
        words = policy_lines.parse_settings(settings)
        with remote.Remote.admin(admin) as broker:
            found.set_policies(broker, namespace, words)
            (found.show_namespace_json if output is Output.JSON else found.show_namespace)(broker, namespace)
