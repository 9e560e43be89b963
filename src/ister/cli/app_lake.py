"""Decide which commands run the pipeline or look at the lake, and what they take."""

from typing import Annotated

import typer

from ister.cli.exits import EXIT_CODES, reporting
from ister.cli.logs import LogFormat, show_server_events
from ister.cli.options import BROKER, BrokerOption, ConfigOption, DataDirOption

pipeline = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


def add_lake_commands(app: typer.Typer) -> None:
    """Add everything of this module to the command line."""
    app.add_typer(
        pipeline,
        name="pipeline",
        help="Run the pipeline from topics to tables, and see where it is.",
        epilog=EXIT_CODES,
    )


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
