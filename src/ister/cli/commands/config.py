"""`ister config`: write, check and show a configuration."""

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.text import Text

from ister.cli.exit_codes import exit_code
from ister.cli.options import ConfigOption, OutputOption, command, command_group, directory
from ister.cli.output import Output, many, notice, print_table, printable, say, value_text
from ister.config import ConfigError, Loaded, advice, load, values
from ister.config.reference import starter
from ister.core.errors import InputError

STDOUT = Path("-")

app = command_group("Write, check and show a configuration, but no secrets.")


def load_config(path: Path | None, data_dir: Path | None) -> Loaded:
    """Load the configuration that a command names; report every problem and exit, and warn of an ignored --data-dir."""
    try:
        loaded = load(path, data_dir)
    except ConfigError as error:
        _refuse(error)
    for warning in advice(loaded):
        if warning.key == "--data-dir":
            notice(f"ister: warning: {warning}")
    return loaded


@command(app, "init")
def _init(
    path: Annotated[Path, typer.Argument(help="The new file; - prints it.")] = Path("ister.yml"),
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a configuration with every key, its default and what it does.

    Example: ister config init ister.yml
    """
    if path == STDOUT:
        sys.stdout.write(starter())
        return
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(starter())
    except FileExistsError:
        raise InputError(str(path), "exists already; give --force to replace it") from None
    say(f"Wrote {printable(str(path))}. Next: ister config check {printable(str(path))}")


@command(app, "check")
def _check(file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration, in YAML.")]) -> None:
    """Check a configuration: all problems at once, one line each.

    Example: ister config check ister.yml
    """
    from ister.runtime.compose import require_usable

    try:
        loaded = load(file)
        require_usable(loaded)
    except ConfigError as error:
        _refuse(error)
    source = printable(loaded.source)
    warnings = advice(loaded)
    for warning in warnings:
        place = f"{source}:{warning.line}" if warning.line else source
        notice(f"{place}: warning: {printable(str(warning))}")
    say(f"{source}: OK, {many(len(warnings), 'warning')}" if warnings else f"{source}: OK")


@command(app, "show")
def _show(
    *,
    file: ConfigOption = None,
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
    output.show(load_config(file, data_dir), _fields, _write)


def _fields(loaded: Loaded) -> object:
    return {
        "file": loaded.source or None,
        "values": [
            {
                "key": value.key,
                "value": value.shown,
                "secret": value.is_secret,
                "from": value.origin.kind,
                "line": value.origin.line or None,
                "variables": list(value.origin.variables),
            }
            for value in values(loaded)
        ],
    }


def _write(loaded: Loaded) -> None:
    rows = []
    for value in values(loaded):
        origin = value.origin.at(loaded.source)
        style = "dim" if origin == "default" else ""
        rows.append([Text(text, style) for text in (printable(value.key), value_text(value.shown), printable(origin))])
    print_table(("Key", "Value", "From"), rows)


def _refuse(error: ConfigError) -> NoReturn:
    for line in error.lines:
        notice(printable(line))
    raise typer.Exit(exit_code(error))
