"""Decide which commands there are and what they take; each does its work in a module of its own."""

import io
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from ister import __version__
from ister.cli.display import say
from ister.cli.exits import EXIT_CODES, leave_with, reporting
from ister.cli.logs import show_everything, show_warnings

app = typer.Typer(
    name="ister",
    help="Ister: a durable message log. Start with [bold]ister demo[/bold].",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
wal = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
app.add_typer(
    wal, name="wal", help="Look into a log's files. Reads only; safe while the log is in use.", epilog=EXIT_CODES
)


class Output(Enum):
    """For whom the result is."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="A table for people, or JSON for programs.")]


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
    messages: Annotated[int, typer.Option(min=100, max=10_000_000, help="How many messages to store.")] = 200_000,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Keep the log in this new or empty directory.", show_default="temporary"),
    ] = None,
) -> None:
    """See it work: produce, kill -9, recover, replay, tail."""
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
