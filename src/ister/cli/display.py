"""Decide how things look to people: text from a log is never trusted with the terminal, bars appear only on one."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

PIPE_COLUMNS = 200
"""How wide a table is where there is no terminal to ask."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def say(line: str = "") -> None:
    """Write one line of result."""
    sys.stdout.write(line + "\n")


def notice(line: str) -> None:
    """Write one line about the result to stderr."""
    sys.stdout.flush()
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def tables() -> Console:
    """Return where tables are printed."""
    console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False)
    return (
        console
        if console.is_terminal
        else Console(file=sys.stdout, markup=False, highlight=False, emoji=False, width=PIPE_COLUMNS)
    )


def bars() -> Progress:
    """Return progress bars for stderr, which do nothing where it is not a terminal."""
    console = Console(file=sys.stderr)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def printable(text: str) -> str:
    """Escape whatever could move the cursor, change colours, turn the writing direction or not be encoded."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def preview(data: bytes, columns: int) -> str:
    """Show the beginning of some bytes as text in at most so many columns."""
    head = data[: 4 * columns]  # a character has at most four bytes, so one that is cut lies outside
    text = printable(head.decode("utf-8", "backslashreplace"))
    return text if cell_len(text) <= columns and len(head) == len(data) else f"{shorten(text, columns - 1)}…"


def shorten(text: str, columns: int) -> str:
    """Cut text to so many columns; it may be shorter."""
    return text if cell_len(text) <= columns else set_cell_size(text, columns)


def fill(text: str, columns: int) -> str:
    """Make text exactly so many columns wide, marking a cut."""
    return set_cell_size(text, columns) if cell_len(text) <= columns else f"{set_cell_size(text, columns - 1)}…"


def moment(time_us: int) -> str:
    """Show microseconds since 1970 as UTC, or as they are when no calendar has that day."""
    try:
        return (_EPOCH + timedelta(microseconds=time_us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except OverflowError:
        return f"{time_us} µs"


def many(number: int, thing: str) -> str:
    """Return `1 file`, `2 files`, `1,000 files`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def megabytes(size: int) -> str:
    """Return a size that people can read; exact below a kilobyte."""
    if size < 1000:
        return many(size, "byte")
    return f"{size / 1000:.1f} kB" if size < 1_000_000 else f"{size / 1_000_000:.1f} MB"
