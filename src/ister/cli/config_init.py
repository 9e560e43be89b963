"""Decide where a configuration to start from is written; never over another file unasked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from ister.cli.display import printable, say
from ister.cli.exits import InputError
from ister.config.starter import starter

STDOUT = Path("-")


def write_starter(path: Path, mode: Literal["x", "w"]) -> None:
    """Write the file, or print it for `-`; mode x refuses to replace a file."""
    text = starter()
    if path == STDOUT:
        sys.stdout.write(text)
        return
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(str(path), "exists already; give --force to replace it") from None
    say(f"Wrote {printable(str(path))}. Next: ister config check {printable(str(path))}")
