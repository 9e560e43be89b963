"""Decide how policies are set from words and shown: each key with its value and who says so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ister.cli.display import printable, tables
from ister.cli.exits import InputError
from ister.config.policies import Policies

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def parse_settings(words: Sequence[str]) -> dict[str, str]:
    """Read KEY=VALUE words."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise InputError(word, "has no value; write it like ack_level=fsync")
        if key in found:
            raise InputError(word, "is given twice; keep one of them")
        found[key] = value
    Policies().changed(found)  # a wrong key or value is told before anyone is asked
    return found


def changed(own: str, words: Mapping[str, str]) -> str:
    """Return policies in JSON with these keys changed."""
    return Policies.parse(own).changed(words).to_json()


def show_policies(effective: str, said: Mapping[str, str]) -> None:
    """Write a row for each key; `said` has the policies of each level by its name, the highest first."""
    console = tables()
    table = Table(box=SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    for heading in ("Policy", "Value", "Set by"):
        table.add_column(heading, overflow="fold")
    levels = {name: json.loads(text) for name, text in said.items()}
    for key, value in json.loads(effective).items():
        by = next((name for name, policies in levels.items() if policies.get(key) is not None), "broker")
        style = "dim" if by == "broker" else ""
        table.add_row(*(Text(text, style) for text in (printable(str(key)), shown(value), by)))
    console.print(table)


def brief(policies: str) -> str:
    """Return policies in one line."""
    return ", ".join(f"{key}={shown(value)}" for key, value in json.loads(policies or "{}").items()) or "-"


def shown(value: object) -> str:
    """Return a value as it would be typed."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
    return printable(str(value))
