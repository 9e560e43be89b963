"""Decide which commands there are and what they take; each does its work in a module of its own."""

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from ister import __version__
from ister.cli.app_broker import add_broker_commands
from ister.cli.app_lake import add_lake_commands
from ister.cli.display import say
from ister.cli.exits import EXIT_CODES, leave_with, reporting
from ister.cli.logs import show_everything, show_warnings
from ister.cli.options import ConfigOption, DataDirOption, Output, OutputOption, TopicArgument, directory, utf8_text

app = typer.Typer(
    name="ister",
    help="Ister: a broker with durable topics, for Danube's clients. Start with [bold]ister demo[/bold].",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
add_broker_commands(app)
add_lake_commands(app)
wal = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
app.add_typer(wal, name="wal", help="Look into a log's files; safe while it is in use.", epilog=EXIT_CODES)
config = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
app.add_typer(
    config,
    name="config",
    help="Write, check and show a configuration, but no secrets.",
    epilog=EXIT_CODES,
)
objects = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
app.add_typer(
    objects,
    name="objects",
    help="Check objects, or get lost metadata back from them.",
    epilog=EXIT_CODES,
)


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that is not Unicode gets escapes, not a crash
    app()


def _print_version(wanted: bool) -> None:  # noqa: FBT001  # typer calls it so
    if wanted:
        say(f"ister {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every log event, not only warnings.")] = False,
    version: Annotated[  # noqa: ARG001  # its callback does the work
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if verbose:
        show_everything()
    else:
        show_warnings()


@app.command("demo", epilog=EXIT_CODES)
def _demo(
    *,
    messages: Annotated[int, typer.Option(min=100, max=1_000_000, help="How many messages to send.")] = 2_000,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Keep everything in this new or empty directory.", show_default="temporary"),
    ] = None,
) -> None:
    """See it work: nothing is lost.

    A broker, official clients, kill -9 in the middle of it, and in the end a lost log.
    """
    from ister.cli.demo import run_demo  # noqa: PLC0415  # the log takes a second to import; --help must not wait

    with reporting():
        run_demo(directory, messages)


@wal.command("dump", epilog=EXIT_CODES)
def _dump(
    file: Annotated[Path, typer.Argument(help="A log file, like wal-0000000001-00000000000000000000.log.")],
    *,
    output: OutputOption = Output.TABLE,
    start: Annotated[int, typer.Option("--from", min=0, metavar="OFFSET", help="Begin at this offset.")] = 0,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after so many frames.", show_default="all")
    ] = None,
    payload: Annotated[bool, typer.Option("--payload", help="Show whole payloads (JSON always has them).")] = False,
) -> None:
    """Show a log file frame by frame."""
    from ister.cli import frame_lines  # noqa: PLC0415  # see demo
    from ister.cli.dump import dump_file  # noqa: PLC0415  # see demo

    with reporting():
        if output is Output.JSON:
            dump_file(file, frame_lines.json_lines(), start, limit)
        elif payload:
            dump_file(file, frame_lines.table_with_payloads(), start, limit)
        else:
            dump_file(file, frame_lines.table(), start, limit)


@wal.command("verify", epilog=EXIT_CODES)
def _verify(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of one log.")],
    *,
    output: OutputOption = Output.TABLE,
    file_name: Annotated[str, typer.Option(help="The file_name that the log is configured with.")] = "wal.log",
) -> None:
    """Check every file of a log, byte by byte."""
    from ister.cli.verify import verify_with_bar  # noqa: PLC0415  # see demo
    from ister.cli.verify_lines import show_json, show_table  # noqa: PLC0415  # see demo

    with reporting():
        report = verify_with_bar(directory, file_name)
        if output is Output.JSON:
            show_json(report)
        else:
            show_table(report)
        leave_with(report.problems)


@config.command("init", epilog=EXIT_CODES)
def _config_init(
    path: Annotated[Path, typer.Argument(help="The new file; - prints it.")] = Path("ister.yml"),
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a configuration with every key, its default and what it does.

    Example: ister config init ister.yml
    """
    from ister.cli.config_init import write_starter  # noqa: PLC0415  # see demo

    with reporting():
        write_starter(path, "w" if force else "x")


@config.command("check", epilog=EXIT_CODES)
def _config_check(file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration, in YAML.")]) -> None:
    """Check a configuration: all problems at once, one line each.

    Example: ister config check ister.yml
    """
    from ister.cli.config_check import check_file  # noqa: PLC0415  # see demo

    with reporting():
        check_file(file)


@config.command("show", epilog=EXIT_CODES)
def _config_show(
    *,
    file: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="The configuration.", show_default="none")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory for what the file gives no place.",
            show_default="./danube-data",
            parser=directory,
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the values in force and where each came from.

    Example: ister config show --config ister.yml --data-dir /var/lib/ister
    """
    from ister.cli.config_show import load_or_refuse, show_json, show_table  # noqa: PLC0415  # see demo

    with reporting():
        loaded = load_or_refuse(file, data_dir)
        if output is Output.JSON:
            show_json(loaded)
        else:
            show_table(loaded)


@app.command("tiers", epilog=EXIT_CODES)
def _tiers(
    topic: TopicArgument,
    *,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what each tier holds of a topic, and what waits.

    Reads only; safe beside a running broker.

    Example: ister tiers /default/orders --data-dir /var/lib/ister
    """
    from ister.cli.config_show import load_or_refuse  # noqa: PLC0415  # see demo
    from ister.cli.tiers import report_tiers  # noqa: PLC0415  # see demo
    from ister.cli.tiers_lines import show_json, show_table  # noqa: PLC0415  # see demo

    with reporting():
        report = report_tiers(load_or_refuse(file, data_dir).config, topic)
        if output is Output.JSON:
            show_json(report)
        else:
            show_table(report)
        leave_with(report.problems)


@app.command("read", epilog=EXIT_CODES)
def _read(
    topic: TopicArgument,
    *,
    start: Annotated[
        int | None, typer.Option("--from", min=0, metavar="N", help="Begin here.", show_default="the oldest")
    ] = None,
    stop: Annotated[
        int | None,
        typer.Option("--to", min=0, metavar="M", help="Stop before.", show_default="the end now"),
    ] = None,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
    payload: Annotated[bool, typer.Option("--payload", help="Show whole payloads (JSON has them).")] = False,
) -> None:
    """Read messages from whichever tier has them.

    Reads only; safe beside a running broker.

    Example: ister read /default/orders --from 1000 --to 1100
    """
    from ister.cli import read_lines  # noqa: PLC0415  # see demo
    from ister.cli.config_show import load_or_refuse  # noqa: PLC0415  # see demo
    from ister.cli.read import read_topic  # noqa: PLC0415  # see demo

    with reporting():
        config = load_or_refuse(file, data_dir).config
        if output is Output.JSON:
            read_topic(config, topic, start, stop, read_lines.json_lines())
        elif payload:
            read_topic(config, topic, start, stop, read_lines.table_with_payloads())
        else:
            read_topic(config, topic, start, stop, read_lines.table())


@objects.command("verify", epilog=EXIT_CODES)
def _objects_verify(
    topic: TopicArgument,
    *,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Read every object of a topic back and check it.

    Reads only; safe beside a running broker.

    Example: ister objects verify /default/orders --config ister.yml
    """
    from ister.cli.config_show import load_or_refuse  # noqa: PLC0415  # see demo
    from ister.cli.objects_lines import show_verified, show_verified_json  # noqa: PLC0415  # see demo
    from ister.cli.objects_verify import verify_with_bar  # noqa: PLC0415  # see demo

    with reporting():
        report = verify_with_bar(load_or_refuse(file, data_dir).config, topic)
        if output is Output.JSON:
            show_verified_json(report)
        else:
            show_verified(report)
        leave_with(report.problems)


@objects.command("rebuild", epilog=EXIT_CODES)
def _objects_rebuild(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", help="Only these topics.", show_default="all", parser=utf8_text),
    ] = None,
    *,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and check everything, write nothing.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Get lost metadata back from the objects themselves.

    Stop the broker first. Refused while metadata describes any object: of these topics, or of any if none is named.

    Example: ister objects rebuild --dry-run
    """
    from ister.cli.config_show import load_or_refuse  # noqa: PLC0415  # see demo
    from ister.cli.objects_lines import show_rebuilt, show_rebuilt_json  # noqa: PLC0415  # see demo
    from ister.cli.objects_rebuild import rebuild_with_bar  # noqa: PLC0415  # see demo

    with reporting():
        report = rebuild_with_bar(load_or_refuse(file, data_dir).config, topics or [], dry_run=dry_run)
        if output is Output.JSON:
            show_rebuilt_json(report)
        else:
            show_rebuilt(report)
        leave_with(report.problems)
