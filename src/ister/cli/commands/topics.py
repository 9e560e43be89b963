"""`ister topics`: create, set, list, describe and delete topics of a broker; list those of a data directory.

A partitioned topic is all of its partitions.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from ister.cli.commands.config import load_config
from ister.cli.exit_codes import EXIT_CODES, exit_code, reporting
from ister.cli.options import (
    ADMIN,
    AdminOption,
    ConfigOption,
    DataDirOption,
    FirstSettingsArgument,
    OutputOption,
    ReliableOption,
    SettingsArgument,
    TopicArgument,
    YesOption,
    command,
    utf8_text,
)
from ister.cli.output import (
    Output,
    confirm,
    fields_of,
    many,
    megabytes,
    moment,
    notice,
    print_table,
    printable,
    say,
    wire_fields,
    wire_word,
)
from ister.cli.policies import changed, parse_settings, show_policies
from ister.client.channel import Remote
from ister.config import Config
from ister.config.catalog import require_shared_catalog
from ister.core.errors import BusyError, InputError, IsterError, NotFoundError, error_of
from ister.core.names import TopicName
from ister.rpc import danube_admin_pb2 as danube
from ister.rpc import ister_v1_pb2 as ister

if TYPE_CHECKING:
    from ister.offline.topic import TopicSummary

app = typer.Typer(add_completion=False, rich_markup_mode="rich", epilog=EXIT_CODES)


@contextmanager
def policies_not_set(kind: str, name: str) -> Iterator[None]:
    """Add to an error that the topic or namespace exists all the same: one call creates it, another sets its policies."""
    try:
        yield
    except IsterError as error:
        text = f"{name} was made, but not with these policies ({error}); set others with `ister {kind} set {name}`"
        raise error_of(exit_code(error), text) from error


@app.callback(invoke_without_command=True)
@reporting()
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
        _list_offline(file, data_dir, output)
    elif file is not None or data_dir is not None or output is not Output.TABLE:
        raise InputError("an option", f"stands before {context.invoked_subcommand}; write it behind")


@command(app, "list")
def _list(
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
    if file is not None or data_dir is not None:
        _list_offline(file, data_dir, output)
        return
    with Remote.admin(admin) as broker:
        found = list_topics(broker, namespace)
    output.show(found, lambda topics: {"topics": [_fields(topic) for topic in topics]}, _write_list)


@command(app, "create")
def _create(
    topic: TopicArgument,
    settings: FirstSettingsArgument = None,
    *,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=0, max=10_000, help="Make so many partitions.", show_default="none")
    ] = 0,
    reliable: ReliableOption = True,
    schema: Annotated[
        str | None, typer.Option(metavar="SUBJECT", help="Schema of its messages.", parser=utf8_text)
    ] = None,
    admin: AdminOption = ADMIN,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a topic.

    Example: ister topics create /default/orders ack_level=fsync --partitions 4
    """
    words = parse_settings(settings or [])
    TopicName.parse(topic)
    strategy = danube.Reliable if reliable else danube.NonReliable
    with Remote.admin(admin) as broker:
        if partitions:
            request = danube.PartitionedTopicRequest(
                base_name=topic, partitions=partitions, schema_subject=schema, dispatch_strategy=strategy
            )
            broker.change("/danube_admin.TopicAdmin/CreatePartitionedTopic", request, danube.TopicResponse)
        else:
            single = danube.NewTopicRequest(name=topic, schema_subject=schema, dispatch_strategy=strategy)
            broker.change("/danube_admin.TopicAdmin/CreateTopic", single, danube.TopicResponse)
        if words:
            with policies_not_set("topics", topic):
                _set_policies(broker, find_topics(broker, topic), words)
        next_option = "" if reliable else " --non-reliable"
        output.show(
            topic,
            lambda name: _described(broker, _describe_topics(broker, name)),
            lambda name: say(f"Made {name}. Next: ister produce {name} -m hello{next_option}"),
        )


@command(app, "set")
def _set(
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
    words = parse_settings(settings)
    with Remote.admin(admin) as broker:
        found = find_topics(broker, topic)
        _set_policies(broker, found, words)
        output.show(
            topic,
            lambda name: _described(broker, _describe_topics(broker, name)),
            lambda _: _write_policies(broker, found[0].name),
        )


@command(app, "describe")
def _describe(topic: TopicArgument, *, admin: AdminOption = ADMIN, output: OutputOption = Output.TABLE) -> None:
    """Show everything about a topic.

    Example: ister topics describe /default/orders
    """
    with Remote.admin(admin) as broker:
        output.show(
            _describe_topics(broker, topic),
            lambda topics: _described(broker, topics),
            lambda topics: _write_topics(broker, topics),
        )


@command(app, "delete")
def _delete(
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
    with Remote.admin(admin) as broker:
        found = find_topics(broker, topic)
        table = TopicTable(load_config(file, data_dir).config, topic, found) if purge else None
        if not yes:
            lost = _what_is_lost(topic, found)
            confirm(lost if table is None else f"{lost} {table.what_is_lost()}")
        broker.change("/danube_admin.TopicAdmin/DeleteTopic", danube.TopicRequest(name=topic), danube.TopicResponse)
        if table is not None:
            table.drop()
        output.show(
            found,
            lambda topics: {"deleted": [{"topic": one.name} for one in topics]},
            lambda _: say(f"Deleted {topic}."),
        )


# --- a data directory -------------------------------------------------------------------------------------------------


def _list_offline(file: Path | None, data_dir: Path | None, output: Output) -> None:
    from ister.offline.topic import list_topics as list_offline

    found = list_offline(load_config(file, data_dir).config)
    output.show(found, lambda topics: {"topics": [fields_of(one) for one in topics]}, _write_summaries)


def _write_summaries(topics: "Sequence[TopicSummary]") -> None:
    if not topics:
        say("There are no topics yet.")
        return
    rows = [
        (
            str(one.topic),
            f"{one.generation}",
            f"{one.start}",
            f"{one.uploaded}",
            f"{one.log_files:,}",
            megabytes(one.log_bytes),
            "" if one.in_metadata else Text("not in metadata", "yellow"),
        )
        for one in topics
    ]
    print_table(("Topic", ">Generation", ">From offset", ">Uploaded below", ">Log files", ">Log size", ""), rows)
    say(f"{many(len(topics), 'topic')}. Next: ister tiers {topics[0].topic}")


# --- a broker ---------------------------------------------------------------------------------------------------------


def list_topics(admin: Remote, namespace: str | None) -> Sequence[ister.TopicDetail]:
    """Return the topics of a namespace, or all."""
    request = ister.ListTopicDetailsRequest(namespace=namespace or "")
    return admin.ask("/ister.v1.Admin/ListTopics", request, ister.ListTopicDetailsResponse).topics


def find_topics(admin: Remote, topic: str) -> list[ister.TopicDetail]:
    """Return a topic, or all partitions of one in their order; raise NotFoundError when there is neither."""
    name = TopicName.parse(topic)
    found = [
        one
        for one in list_topics(admin, name.namespace)
        if topic in {one.name, one.partition.base if one.HasField("partition") else ""}
    ]
    if not found:
        raise NotFoundError(f"there is no topic {topic}; `ister topics list` names what there is")
    return sorted(found, key=lambda one: one.partition.number)


def _describe_topics(admin: Remote, topic: str) -> list[ister.TopicDetail]:
    """Return the same with the sizes of objects, which the broker has to count."""
    requests = [ister.DescribeTopicRequest(topic=one.name) for one in find_topics(admin, topic)]
    return [
        admin.ask("/ister.v1.Admin/DescribeTopic", request, ister.DescribeTopicResponse).topic for request in requests
    ]


def _set_policies(admin: Remote, topics: Sequence[ister.TopicDetail], words: Mapping[str, str]) -> None:
    for topic in topics:
        own = _policies(admin, topic.name).policies
        admin.change(
            "/ister.v1.Admin/SetTopicPolicies",
            ister.SetTopicPoliciesRequest(topic=topic.name, policies=changed(own or "{}", words)),
            ister.SetTopicPoliciesResponse,
        )


def _policies(admin: Remote, topic: str) -> ister.GetTopicPoliciesResponse:
    request = ister.GetTopicPoliciesRequest(topic=topic)
    return admin.ask("/ister.v1.Admin/GetTopicPolicies", request, ister.GetTopicPoliciesResponse)


def _what_is_lost(topic: str, found: Sequence[ister.TopicDetail]) -> str:
    messages = sum(one.offsets.next - one.offsets.start for one in found)
    names = {name for one in found for name in one.subscriptions}
    parts = f", {many(len(found), 'partition')}" if found[0].name != topic else ""
    return f"{topic} will be gone{parts}: {many(messages, 'message')}, {many(len(names), 'subscription')}."


class TableNotDroppedError(BusyError):
    """The topic is deleted, and its table is not."""

    def __init__(self, topic: str, table: str, cause: str) -> None:
        self.topic = topic
        self.table = table
        self.cause = cause
        super().__init__(
            f'{topic} is deleted, but its table {table} is not ({cause}); drop it with `ister sql "DROP TABLE {table} PURGE"`'
        )


class TopicTable:
    """The table of a topic that is deleted with it (--purge).

    The table is looked up before anything is deleted, so that the whole command can be refused, and dropped after the
    topic, so that nothing appends to it.
    """

    def __init__(self, config: Config, topic: str, found: Sequence[ister.TopicDetail]) -> None:
        from ister.core.table.names import base_of
        from ister.lake.repair import find_table
        from ister.runtime.compose import open_catalog

        require_shared_catalog(config, "--purge")
        self._config = config
        self._topic = topic
        self.name = ""
        with open_catalog(config) as catalog:
            if catalog is not None:
                table = find_table(catalog, base_of(TopicName.parse(topic)), max(one.generation for one in found))
                self.name = "" if table is None else ".".join(table.name())

    def what_is_lost(self) -> str:
        """Return the sentence about the table in the question to the user."""
        return f"So will be its table {self.name}." if self.name else "It has no table."

    def drop(self) -> None:
        """Drop the table with all its files."""
        from pyiceberg.exceptions import NoSuchTableError

        from ister.runtime.compose import open_catalog

        if not self.name:
            notice(f"ister: {self._topic} has no table")
            return
        try:
            with open_catalog(self._config) as catalog:
                assert catalog is not None, "it was there"
                catalog.purge_table(self.name)
        except NoSuchTableError:
            return
        except Exception as error:
            raise TableNotDroppedError(self._topic, self.name, f"{type(error).__name__}: {error}") from error


# --- output -----------------------------------------------------------------------------------------------------------


def _write_list(topics: Sequence[ister.TopicDetail]) -> None:
    if not topics:
        say("There are no topics yet. Next: ister topics create /default/orders")
        return
    rows = []
    for topic in topics:
        reliable, offsets = topic.dispatch == ister.DISPATCH_RELIABLE, topic.offsets
        rows.append(
            (
                topic.name,
                "reliable" if reliable else "non-reliable",
                wire_word(topic, "level"),
                f"{offsets.start}" if reliable else "-",
                f"{offsets.next}" if reliable else "-",
                f"{offsets.cloud_stop}" if offsets.HasField("cloud_stop") else "-",
                f"{topic.producers:,}",
                f"{topic.consumers:,}",
                f"{len(topic.subscriptions):,}",
                Text(printable(topic.trouble), "red"),
            )
        )
    numbers = (">From offset", ">Next offset", ">Uploaded below", ">Producers", ">Consumers", ">Subscriptions")
    print_table(("Topic", "Delivery", "Level", *numbers, ""), rows)
    say(f"{many(len(topics), 'topic')}. Next: ister topics describe {printable(topics[0].name)}")


def _write_topics(admin: Remote, topics: Sequence[ister.TopicDetail]) -> None:
    for topic in topics:
        _write_topic(topic)
    _write_policies(admin, topics[0].name)


def _write_policies(admin: Remote, topic: str) -> None:
    policies, namespace = _policies(admin, topic), TopicName.parse(topic).namespace
    request = ister.GetNamespacePoliciesRequest(namespace=namespace)
    above = admin.ask("/ister.v1.Admin/GetNamespacePolicies", request, ister.GetNamespacePoliciesResponse)
    show_policies(policies.effective, {"topic": policies.policies or "{}", "namespace": above.policies or "{}"})


def _described(admin: Remote, topics: Sequence[ister.TopicDetail]) -> object:
    return {
        "topics": [
            _fields(topic) | {"effective_policies": json.loads(_policies(admin, topic.name).effective)}
            for topic in topics
        ]
    }


def _write_topic(topic: ister.TopicDetail) -> None:
    offsets = topic.offsets
    reliable = topic.dispatch == ister.DISPATCH_RELIABLE
    lines = {"delivery": "reliable" if reliable else "non-reliable: nothing is stored"}
    if reliable:
        lines["acknowledged"] = f"at level {wire_word(topic, 'level')}"
        lines["messages"] = f"{many(offsets.next - offsets.start, 'message')}, [{offsets.start}, {offsets.next})"
        lines["synced"] = f"below offset {offsets.synced}"
        start = f" from offset {offsets.log_start}" if offsets.HasField("log_start") else ""
        lines["log"] = f"{megabytes(topic.log_bytes)}{start}"
        held = f", [{offsets.cloud_start}, {offsets.cloud_stop})" if offsets.HasField("cloud_stop") else ""
        lines["objects"] = f"{megabytes(topic.cloud_bytes)}{held}"
        lines["generation"] = f"{topic.generation}"
    if topic.HasField("schema"):
        schema = topic.schema
        lines["schema"] = f"{schema.subject}, version {schema.latest_version} ({schema.schema_type})"
    lines["producers"] = f"{topic.producers:,}"
    lines["consumers"] = f"{topic.consumers:,}"
    lines["subscriptions"] = ", ".join(topic.subscriptions) or "none"
    if topic.created_at_ms:
        lines["created"] = moment(topic.created_at_ms * 1000)
    if topic.trouble:
        lines["trouble"] = topic.trouble
    say(printable(topic.name))
    for name, text in lines.items():
        say(f"  {name:14} {printable(text)}")
    say()


def _fields(topic: ister.TopicDetail) -> dict[str, object]:
    schema = wire_fields(
        topic.schema, schema_id="id", latest_version="version", schema_type="type", validation_policy="validation"
    )
    return {
        **wire_fields(topic, name="topic", dispatch="", offsets=""),
        **wire_fields(topic.offsets, lake_upto=""),
        "reliable": topic.dispatch == ister.DISPATCH_RELIABLE,
        "policies": json.loads(topic.policies or "{}"),
        "schema": schema if topic.HasField("schema") else None,
        "trouble": topic.trouble or None,
    }
