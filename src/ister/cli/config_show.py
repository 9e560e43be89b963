"""Decide how the configuration in force is told: a table for people, one JSON object for programs, no secrets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ister.cli.config_check import refuse
from ister.cli.display import notice, printable, say, tables
from ister.config import ConfigError, Loaded, advice, load, values

if TYPE_CHECKING:
    from pathlib import Path

    from ister.config.values import Shown


def load_or_refuse(path: Path | None, data_dir: Path | None) -> Loaded:
    """Load what the command line names; every problem is told, and every place that has no effect."""
    try:
        loaded = load(path, data_dir)
    except ConfigError as error:
        refuse(error)
    for warning in advice(loaded):
        if warning.key == "--data-dir":
            notice(f"ister: warning: {warning}")
    return loaded


def show_json(loaded: Loaded) -> None:
    """Write one JSON object."""
    content = {
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
    say(json.dumps(content, separators=(",", ":")))


def show_table(loaded: Loaded) -> None:
    """Write a row for each value."""
    console = tables()
    table = Table(box=SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    for heading in ("Key", "Value", "From"):
        table.add_column(heading, overflow="fold")
    for value in values(loaded):
        origin = value.origin.at(loaded.source)
        style = "dim" if origin == "default" else ""
        table.add_row(*(Text(printable(text), style) for text in (value.key, _text(value.shown), origin)))
    console.print(table)


def _text(shown: Shown) -> str:
    match shown:
        case None:
            return "none"
        case bool():
            return str(shown).lower()
        case list():
            return ", ".join(shown)
    return str(shown)
