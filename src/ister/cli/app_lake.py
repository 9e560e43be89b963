"""Decide which commands run the pipeline or look at the lake, and what they take."""

from pathlib import Path
from typing import Annotated

import typer

from ister.cli.exits import EXIT_CODES, leave_with, reporting
from ister.cli.logs import LogFormat, show_server_events
from ister.cli.options import (
    BROKER,
    BrokerOption,
    ConfigOption,
    DataDirOption,
    Output,
    OutputOption,
    TopicArgument,
    YesOption,
    utf8_text,
)

pipeline = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
lake = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

TablesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TABLE|TOPIC", help="Like default.orders, or /default/orders.", show_default="all", parser=utf8_text
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]


def add_lake_commands(app: typer.Typer) -> None:
    """Add everything of this module to the command line."""
    app.add_typer(
        pipeline,
        name="pipeline",
        help="Run the pipeline from topics to tables, and see where it is.",
        epilog=EXIT_CODES,
    )
    app.add_typer(lake, name="lake", help="Keep tables small and quick, and mend them.", epilog=EXIT_CODES)
    app.command("sql", epilog=EXIT_CODES)(_sql)


@pipeline.command("run", epilog=EXIT_CODES)
def _run(
    *,
    master: Annotated[
        str, typer.Option(metavar="URL", help="Spark's master: local[*], spark://host:7077, yarn, k8s://….")
    ] = "local[*]",
    once: Annotated[bool, typer.Option("--once", help="Carry what is there now, and end.")] = False,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topics", metavar="PATTERN", help="Only these; * stands for anything.", show_default="all"),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Where to tell metrics, on this machine.", show_default="nowhere"),
    ] = None,
    broker: BrokerOption = BROKER,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    log_format: Annotated[
        LogFormat, typer.Option(help="How log events are written to stderr; auto is text on a terminal.")
    ] = LogFormat.AUTO,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log warnings only.")] = False,
) -> None:
    """Carry topics to their tables, exactly once.

    Until SIGTERM or Ctrl-C; it may also be killed at any moment, since the tables are its checkpoint. `ister serve` runs one
    itself; run another for a cluster, with `ister serve --no-pipeline`. The newest one is the owner, and others stop.

    Example: ister pipeline run --once
    """
    from ister.cli.config_show import load_or_refuse  # noqa: PLC0415  # see demo
    from ister.cli.pipeline import RunOptions, run  # noqa: PLC0415  # Spark takes its time; --help must not wait

    with reporting():
        show_server_events(log_format, everything=not quiet)
        run(
            load_or_refuse(file, data_dir),
            RunOptions(broker, master, once, tuple(topics or ()), metrics_port),
        )


@pipeline.command("status", epilog=EXIT_CODES)
def _status(
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Draw it anew each second, until Ctrl-C.")] = False,
    broker: BrokerOption = BROKER,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show how far each topic's table is.

    Asks the broker and the catalog, and reads what a pipeline on this data directory wrote last; starts no Spark.

    Example: ister pipeline status --watch
    """
    import time  # noqa: PLC0415  # see demo

    from ister.cli import pipeline_status as status  # noqa: PLC0415  # see demo
    from ister.cli.config_show import load_or_refuse  # noqa: PLC0415  # see demo
    from ister.cli.lake import looking_at  # noqa: PLC0415  # see demo
    from ister.cli.remote import Remote  # noqa: PLC0415  # see demo
    from ister.config.lake import require_shared_catalog  # noqa: PLC0415  # see demo

    with reporting():
        loaded = load_or_refuse(file, data_dir)
        require_shared_catalog(loaded.config, "ister pipeline")

        def see() -> status.Report:
            with looking_at(loaded.config) as catalog:
                return status.look(remote, catalog, loaded)

        with Remote.broker(broker) as remote:
            if watch:
                status.watch(see, time.sleep, status.show_json if output is Output.JSON else None)
            elif output is Output.JSON:
                status.show_json(see())
            else:
                status.show_table(see())


@lake.command("compact", epilog=EXIT_CODES)
def _compact(
    which: TablesArgument = None,
    *,
    dry_run: DryRunOption = False,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Rewrite small files into large ones, sorted.

    The pipeline does this by itself every few minutes. Safe beside it.

    Example: ister lake compact default.orders --dry-run
    """
    _maintain("compact", which, file, data_dir, output, dry_run=dry_run)


@lake.command("expire", epilog=EXIT_CODES)
def _expire(
    which: TablesArgument = None,
    *,
    dry_run: DryRunOption = False,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let old snapshots go, and the files that only they have.

    A file stays for an hour after it left its table (file_grace_minutes), so that queries finish.

    Example: ister lake expire /default/orders
    """
    _maintain("expire", which, file, data_dir, output, dry_run=dry_run)


@lake.command("orphans", epilog=EXIT_CODES)
def _orphans(
    which: TablesArgument = None,
    *,
    dry_run: DryRunOption = False,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete files that no table refers to.

    Killed processes leave them. Younger than a day they stay (orphan_hours): a commit under way has files, too.

    Example: ister lake orphans --dry-run
    """
    _maintain("orphans", which, file, data_dir, output, dry_run=dry_run)


@lake.command("manifests", epilog=EXIT_CODES)
def _manifests(
    which: TablesArgument = None,
    *,
    dry_run: DryRunOption = False,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Rewrite the lists of files, so that queries plan quickly.

    The pipeline merges them as it commits; this is for tables that others write to.

    Example: ister lake manifests default.orders
    """
    _maintain("manifests", which, file, data_dir, output, dry_run=dry_run)


def _maintain(
    procedure: str, which: list[str] | None, file: Path | None, data_dir: Path | None, output: Output, *, dry_run: bool
) -> None:
    from ister.cli.config_show import load_or_refuse  # noqa: PLC0415  # see demo
    from ister.cli.lake import maintain  # noqa: PLC0415  # see demo
    from ister.cli.lake_lines import show_maintained, show_maintained_json  # noqa: PLC0415  # see demo
    from ister.core.upkeep import Procedure  # noqa: PLC0415  # see demo

    with reporting():
        done = maintain(load_or_refuse(file, data_dir).config, Procedure(procedure), which or [], dry_run=dry_run)
        if output is Output.JSON:
            show_maintained_json(done)
        else:
            show_maintained(done, dry_run=dry_run)
        leave_with(done.problems)


@lake.command("repair", epilog=EXIT_CODES)
def _repair(
    topic: TopicArgument,
    *,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    broker: BrokerOption = BROKER,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Mend a table that was rolled back, emptied or written to by others.

    Reads which offsets it holds, cuts it where they have a hole or come twice, and lets the pipeline append the rest from log
    or objects. Refused when those no longer have it. Safe beside a pipeline.

    Example: ister lake repair /default/orders --dry-run
    """
    from ister.cli.config_show import load_or_refuse  # noqa: PLC0415  # see demo
    from ister.cli.confirm import confirm  # noqa: PLC0415  # see demo
    from ister.cli.lake import looking_at, repair  # noqa: PLC0415  # see demo
    from ister.cli.lake_lines import show_repaired, show_repaired_json  # noqa: PLC0415  # see demo
    from ister.cli.remote import Remote  # noqa: PLC0415  # see demo
    from ister.config.lake import require_shared_catalog  # noqa: PLC0415  # see demo
    from ister.pipeline.plan import Choice  # noqa: PLC0415  # see demo

    with reporting():
        config = load_or_refuse(file, data_dir).config
        require_shared_catalog(config, "ister lake repair")
        choice = Choice((), config.storage.iceberg_config.writer.exclude)
        with Remote.broker(broker) as remote, looking_at(config) as catalog:
            agreed = (lambda _: None) if yes else confirm
            done = repair(remote, catalog, topic, dry_run=dry_run, ask=agreed, choice=choice)
        if output is Output.JSON:
            show_repaired_json(done)
        else:
            show_repaired(done)


def _sql(
    statement: Annotated[
        str, typer.Argument(metavar="STATEMENT", help="One statement of Spark's SQL.", parser=utf8_text)
    ],
    *,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Rows to show at most.")] = 100,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Ask the lake in SQL.

    A topic's table is namespace.topic, in lower case with - as _. JSON has one object a line, bytes in base64.

    Example: ister sql "SELECT count(*), max(topic_offset) FROM default.orders"
    """
    from ister.cli.config_show import load_or_refuse  # noqa: PLC0415  # see demo
    from ister.cli.sql import ask, show_json, show_table  # noqa: PLC0415  # see demo

    with reporting():
        answer = ask(load_or_refuse(file, data_dir).config, statement, limit)
        (show_json if output is Output.JSON else show_table)(answer, limit)
