"""Policies on the command line: KEY=VALUE words, and the table of values with their origin."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.text import Text

from ister.cli.output import print_table, printable, value_text
from ister.config.policies import Policies
from ister.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def parse_settings(words: Sequence[str]) -> dict[str, str]:
    """Parse KEY=VALUE words."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise InputError(word, "has no value; write it like ack_level=fsync")
        if key in found:
            raise InputError(word, "is given twice; keep one of them")
        found[key] = value
    Policies().changed(found)  # a wrong key or value is reported before any request
    return found


def changed(own: str, words: Mapping[str, str]) -> str:
    """Return the JSON of policies with these keys changed."""
    return Policies.parse(own).changed(words).to_json()


def show_policies(effective: str, levels: Mapping[str, str]) -> None:
    """Write a row for each key; `levels` has the policies of each level by its name, the highest first."""
    set_by = {name: json.loads(text) for name, text in levels.items()}
    rows = []
    for key, value in json.loads(effective).items():
        by = next((name for name, policies in set_by.items() if policies.get(key) is not None), "broker")
        style = "dim" if by == "broker" else ""
        rows.append([Text(text, style) for text in (printable(str(key)), value_text(value), by)])
    print_table(("Policy", "Value", "Set by"), rows)


def brief(policies: Mapping[str, object]) -> str:
    """Return policies in one line."""
    return ", ".join(f"{key}={value_text(value)}" for key, value in policies.items()) or "-"
