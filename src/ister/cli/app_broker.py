"""Decide which commands run a broker, send and receive, and what they take; each does its work in a module of its own."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from ister.cli.app_subscriptions import subscriptions
from ister.cli.app_topics import Reliable, namespaces, topics
from ister.cli.exits import EXIT_CODES, reporting
from ister.cli.logs import LogFormat, show_server_events
from ister.cli.options import (
    BROKER,
    BrokerOption,
    ConfigOption,
    DataDirOption,
    Output,
    OutputOption,
    TopicArgument,
    utf8_text,
)


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


def add_broker_commands(app: typer.Typer) -> None:
    """Add these commands, and those that ask a broker about itself, to the command line."""
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
    from ister.cli.supervise import GRACE_S, PipelineChild, child_arguments  # noqa: PLC0415  # see demo

    with reporting():
        show_server_events(log_format, everything=not quiet)
        loaded = load_or_refuse(file, data_dir)
        if read_only:
            serve_readers(loaded, show_json if output is Output.JSON else show_reader_table)
            return
        told = child_arguments(file, data_dir, log_format, prom_port=loaded.config.prom_port, quiet=quiet)
        grace_s = min(GRACE_S, loaded.config.broker.drain_timeout_ms / 1000)
        child = PipelineChild(told, grace_s=grace_s) if pipeline else None
        serve(loaded, show_json if output is Output.JSON else show_table, child)


def _produce(
    topic: TopicArgument,
    *,
    message: Annotated[list[str] | None, typer.Option("--message", "-m", metavar="TEXT", help="Send this.")] = None,
    files: Annotated[
        list[Path] | None, typer.Option("--file", "-f", metavar="FILE", help="Send this file, whole.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Routing key of the messages.", parser=utf8_text)
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option("--attribute", "-a", metavar="NAME=VALUE", help="An attribute of the messages.", parser=utf8_text),
    ] = None,
    producer: Annotated[
        str, typer.Option(metavar="NAME", help="Producer's name.", show_default="of this process", parser=utf8_text)
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
        typer.Option(
            "--subscription",
            "-s",
            metavar="NAME",
            help="Its name.",
            show_default="one that ends with us",
            parser=utf8_text,
        ),
    ] = None,
    kind: Annotated[
        SubscriptionKind, typer.Option("--type", "-t", metavar="TYPE", help="exclusive, shared, failover, key-shared.")
    ] = SubscriptionKind.EXCLUSIVE,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="PLACE", help="earliest, latest, OFFSET or TIME.", show_default=False),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for more, or end after a silence.")] = True,
    idle: Annotated[float, typer.Option(min=0.1, max=3600, metavar="SECONDS", help="How long that silence is.")] = 2.0,
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

    A time is like 2026-01-31T18:00:00Z. --from moves the subscription, for everyone who uses it. A broker does not say
    where a topic ends: --no-follow ends when nothing has come for --idle seconds.

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
