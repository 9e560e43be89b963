"""Command output: text or JSON on stdout, notices and progress bars on stderr, and text that is safe for a terminal."""

from __future__ import annotations

import json
import re
import shutil
import sys
from base64 import b64encode
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Literal, TypeVar

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ister.cli import stdin
from ister.core.errors import InputError, IsterError
from ister.core.names import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from _typeshed import DataclassInstance
    from google.protobuf.message import Message

    from ister.core.message import StreamMessage

PIPE_COLUMNS = 200
"""The width of a table when stdout is not a terminal."""
PREVIEW_COLUMNS_MIN = 24
OFFSET_COLUMNS = 12 + 27 + 2
"""The width of what `offset_line` writes before the message's columns."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MESSAGE = "{} {} {:>5} {:>8} {}"
_PRODUCER_COLUMNS = 16
_KEY_COLUMNS = 12
_COLUMNS_BEFORE_PREVIEW = _PRODUCER_COLUMNS + _KEY_COLUMNS + 5 + 8 + 4
_DUMP_BYTES = 16

T = TypeVar("T")


class Output(Enum):
    """The form of a command's result."""

    TABLE = "table"
    JSON = "json"

    def show(self, report: T, fields: Callable[[T], object], write: Callable[[T], None]) -> None:
        """Write a report to stdout: `fields` of it as one line of JSON, or as the text that `write` writes."""
        if self is Output.JSON:
            say(to_json(fields(report)))
        else:
            write(report)

    def show_heading(self, line: str) -> None:
        """Write the heading of lines that follow; JSON has none."""
        if self is not Output.JSON:
            say(line)


def to_json(content: object) -> str:
    """Return compact JSON; names of topics and enumerations are their text, and an error has its kind and text."""
    return json.dumps(content, separators=(",", ":"), default=_json_default)


def _json_default(value: object) -> object:
    match value:
        case Enum():
            return value.value
        case IsterError():
            return {"kind": type(value).__name__, "what": str(value)}
        case TopicName():
            return str(value)
    raise TypeError(f"no JSON form of {type(value).__name__}")


def fields_of(report: DataclassInstance, **names: str) -> dict[str, object]:
    """Return the fields of a dataclass for JSON; `names` has other names for some, "" leaves a field out."""
    found = {names.get(field.name, field.name): getattr(report, field.name) for field in fields(report)}
    found.pop("", None)
    return found


def wire_fields(message: Message, **names: str) -> dict[str, object]:
    """Return the fields of a protobuf message for JSON, as `fields_of` does; what is not set is None."""
    found: dict[str, object] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.has_presence and not message.HasField(field.name):
            value = None
        elif field.is_repeated:
            value = [wire_fields(one) for one in value] if field.message_type else list(value)
        elif field.message_type:
            value = wire_fields(value)
        elif field.enum_type:
            value = wire_word(message, field.name)
        found[names.get(field.name, field.name)] = value
    found.pop("", None)
    return found


def wire_word(message: Message, name: str) -> str:
    """Return the value of an enum field in lower case without its prefix: `fsync` for ACK_LEVEL_FSYNC."""
    enum = message.DESCRIPTOR.fields_by_name[name].enum_type
    assert enum is not None, "it is an enum field"
    number = getattr(message, name)
    if number not in enum.values_by_number:
        return str(number)  # of a newer broker
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper()
    return enum.values_by_number[number].name.removeprefix(f"{prefix}_").lower()


def say(line: str = "") -> None:
    """Write one line of a result."""
    sys.stdout.write(line + "\n")


def notice(line: str) -> None:
    """Write one line about a result to stderr."""
    sys.stdout.flush()
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def confirm(what: str) -> None:
    """Ask the user to confirm a destructive action; raise InputError unless the answer is yes."""
    if not sys.stdin.isatty():
        raise InputError("this", "cannot be undone, and nobody is here to ask; give --yes")
    notice(f"{printable(what)} Go on? [y/N]")
    if stdin.answer().strip().lower() not in {"y", "yes"}:
        raise InputError("nothing", "was deleted")


# --- tables and progress bars -----------------------------------------------------------------------------------------


def tables() -> Console:
    """Return the console for tables."""
    console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPE_COLUMNS
    return console


def grid(headings: Sequence[str], rows: Iterable[Sequence[Text | str]], *, on_terminal: bool) -> Table:
    """Return a table; the heading of a column may begin with its alignment, `<` or `>`, and a str cell is escaped."""
    table = Table(box=SIMPLE_HEAD if on_terminal else None, pad_edge=False)
    for heading in headings:
        justify: Literal["left", "right"] = "right" if heading.startswith(">") else "left"
        table.add_column(heading[heading[:1] in {"<", ">"} :], justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in row))
    return table


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Text | str]]) -> None:
    """Write a table, as `grid` builds it."""
    console = tables()
    console.print(grid(headings, rows, on_terminal=console.is_terminal))


def bars() -> Progress:
    """Return progress bars on stderr, which are disabled when it is not a terminal."""
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


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[..., None]]:
    """Show a progress bar; the function takes the completed and the total amount, and optionally a new description."""
    with bars() as progress:
        task = progress.add_task(description, total=None)

        def show(done: int, total: int, what: str = description) -> None:
            progress.update(task, description=what, completed=done, total=total)

        yield show


# --- text -------------------------------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """Escape what could move the cursor, change colours, turn the writing direction or not be encoded."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def preview(data: bytes, columns: int) -> str:
    """Return the beginning of some bytes as text in at most `columns` columns."""
    head = data[: 4 * columns]  # a character has at most four bytes, so one that is cut lies outside
    text = printable(head.decode("utf-8", "backslashreplace"))
    return text if cell_len(text) <= columns and len(head) == len(data) else f"{shorten(text, columns - 1)}…"


def shorten(text: str, columns: int) -> str:
    """Cut text to at most `columns` columns."""
    return text if cell_len(text) <= columns else set_cell_size(text, columns)


def fill(text: str, columns: int) -> str:
    """Make text exactly `columns` columns wide, marking a cut."""
    return set_cell_size(text, columns) if cell_len(text) <= columns else f"{set_cell_size(text, columns - 1)}…"


def moment(time_us: int) -> str:
    """Return microseconds since 1970 as UTC, or unchanged when no calendar has that day."""
    try:
        return (_EPOCH + timedelta(microseconds=time_us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except OverflowError:
        return f"{time_us} µs"


def many(number: int, thing: str) -> str:
    """Return `1 file`, `2 files`, `1,000 files`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def megabytes(size: int) -> str:
    """Return a human-readable size; exact below a kilobyte."""
    if size < 1000:
        return many(size, "byte")
    return f"{size / 1000:.1f} kB" if size < 1_000_000 else f"{size / 1_000_000:.1f} MB"


def value_text(value: object) -> str:
    """Return a setting's value as a user would type it."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case list():
            return printable(", ".join(value))
    return printable(str(value))


# --- messages ---------------------------------------------------------------------------------------------------------


def item_lines(
    output: Output,
    fields: Callable[[T], object],
    line: Callable[[T, int], str],
    payload_of: Callable[[T], bytes],
    *,
    columns_before: int,
    payload: bool,
) -> Callable[[T], Iterator[str]]:
    """Return how a frame or a message is written: as JSON, or as an aligned line, with its payload below on request.

    `line` takes the item and the columns of the payload's preview; the item's own columns before the message's are
    `columns_before` wide.
    """
    columns = PREVIEW_COLUMNS_MIN if payload else preview_columns(columns_before)

    def lines(item: T) -> Iterator[str]:
        if output is Output.JSON:
            yield to_json(fields(item))
            return
        yield line(item, columns).rstrip()
        if payload:
            yield from hexadecimal(payload_of(item))

    return lines


def offset_line(offset: str, time: str, rest: str) -> str:
    """Return the line of a message: its offset, a time, and its other columns."""
    return f"{offset:>12} {time:27} {rest}".rstrip()


def preview_columns(before: int) -> int:
    """Return the width of a payload's preview behind `before` columns and the message's other columns."""
    columns = shutil.get_terminal_size((160, 24)).columns - before - _COLUMNS_BEFORE_PREVIEW
    return max(PREVIEW_COLUMNS_MIN, columns)


def message_heading() -> str:
    """Return the headings of a message's columns."""
    return _MESSAGE.format(fill("PRODUCER", _PRODUCER_COLUMNS), fill("KEY", _KEY_COLUMNS), "ATTRS", "SIZE", "PAYLOAD")


def message_columns(message: StreamMessage, columns: int) -> str:
    """Return producer, key, number of attributes, size and a preview of the payload in `columns` columns."""
    key = message.routing_key
    return _MESSAGE.format(
        fill(printable(message.producer_name) or f"#{message.msg_id.producer_id}", _PRODUCER_COLUMNS),
        fill("-" if key is None else printable(key) or '""', _KEY_COLUMNS),  # an empty key is not an absent one
        len(message.attributes),
        len(message.payload),
        preview(message.payload, columns),
    )


def no_message_columns(text: str) -> str:
    """Return the columns of a line that has no message, with a text in place of the payload."""
    return _MESSAGE.format(fill("", _PRODUCER_COLUMNS), fill("", _KEY_COLUMNS), "", "", text)


def message_fields(message: StreamMessage) -> dict[str, object]:
    """Return the JSON form of a message, without its offset and append time."""
    return {
        "publish_time": message.publish_time,
        "producer_id": message.msg_id.producer_id,
        "producer_name": message.producer_name,
        "broker_addr": message.msg_id.broker_addr,
        "request_id": message.request_id,
        "routing_key": message.routing_key,
        "attributes": dict(message.attributes),
        "schema_id": message.schema_id,
        "schema_version": message.schema_version,
        "payload": b64encode(message.payload).decode("ascii"),
    }


def hexadecimal(data: bytes) -> Iterator[str]:
    """Yield a hex dump, sixteen bytes a line."""
    for at in range(0, len(data), _DUMP_BYTES):
        part = data[at : at + _DUMP_BYTES]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        yield f"    {at:08x}  {part.hex(' '):{3 * _DUMP_BYTES - 1}}  |{text}|"
