"""Decide how a configuration is judged: one line a problem, one line a warning, and a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import typer

from ister.cli.compose import require_usable
from ister.cli.display import many, notice, printable, say
from ister.cli.exits import exit_code
from ister.config import ConfigError, advice, load

if TYPE_CHECKING:
    from pathlib import Path


def check_file(path: Path) -> None:
    """Judge a file; leaves with the exit code of a bad request when it is refused."""
    try:
        loaded = load(path)
        require_usable(loaded)
    except ConfigError as error:
        refuse(error)
    source = printable(loaded.source)
    warnings = advice(loaded)
    for warning in warnings:
        place = f"{source}:{warning.line}" if warning.line else source
        notice(f"{place}: warning: {printable(str(warning))}")
    say(f"{source}: OK, {many(len(warnings), 'warning')}" if warnings else f"{source}: OK")


def refuse(error: ConfigError) -> NoReturn:
    """Name every problem on stderr and leave."""
    for line in error.lines:
        notice(printable(line))
    raise typer.Exit(exit_code(error))
