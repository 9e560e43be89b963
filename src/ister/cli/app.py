"""The `ister` command line: a table of commands, each imported when it is run, so that `--help` does not wait for them."""

import io
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from ister._version import __version__
from ister.cli.exit_codes import EXIT_CODES
from ister.cli.logs import show_everything, show_warnings
from ister.cli.output import say

COMMANDS = {
    "demo": "See it work: nothing is lost.",
    "serve": "Run the broker, and the pipeline to the tables.",
    "produce": "Send messages to a topic.",
    "consume": "Receive messages of a topic.",
    "topics": "List, make, set, describe and delete topics.",
    "namespaces": "List, make and set namespaces, by asking the broker.",
    "subscriptions": "List, move and end subscriptions, by asking the broker.",
    "pipeline": "Run the pipeline from topics to tables, and see where it is.",
    "lake": "Maintain, repair and relocate tables.",
    "sql": "Ask the lake in SQL.",
    "tiers": "Show what each tier holds of a topic, and what waits.",
    "read": "Read messages from whichever tier has them.",
    "objects": "Check objects, or get lost metadata back from them.",
    "wal": "Look into a log's files; safe while it is in use.",
    "adopt": "Make a copied data directory one of its own.",
    "config": "Write, check and show a configuration, but no secrets.",
}
"""Each command, in the module of its name in ister.cli.commands, and the first line of its help."""


app = typer.Typer(
    name="ister",
    help="A broker with durable topics that are Iceberg tables. Try [bold]ister demo[/bold].",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


class LazyCommand(TyperCommand):
    """A command, or a group of them, whose module is imported when it is run."""

    def make_context(self, *arguments: Any, **extra: Any) -> Any:
        """Import the command, and return its context."""
        return get_command(import_module(f"ister.cli.commands.{self.name}").app).make_context(*arguments, **extra)


for _name, _help in COMMANDS.items():
    app.command(_name, cls=LazyCommand, help=_help)(lambda: None)


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
