"""Ask before something is lost; where nobody can answer, --yes must be given."""

from __future__ import annotations

import sys

from ister.cli import stdin
from ister.cli.display import notice, printable
from ister.cli.exits import InputError


def confirm(what: str) -> None:
    """Ask; InputError unless the answer is yes."""
    if not sys.stdin.isatty():
        raise InputError("this", "cannot be undone, and nobody is here to ask; give --yes")
    notice(f"{printable(what)} Go on? [y/N]")
    if stdin.answer().strip().lower() not in {"y", "yes"}:
        raise InputError("nothing", "was deleted")
