"""Decide how one message of a topic is written: as an aligned line for people, or as a JSON object with every field."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ister.cli import message_lines
from ister.cli.display import moment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ister.core.message import StreamMessage

_LINE = "{:>12} {:27} {}"
_COLUMNS = 12 + 27 + 2


@dataclass(frozen=True, slots=True)
class MessageLines:
    """A heading, and how a message becomes lines."""

    heading: tuple[str, ...]
    lines: Callable[[StreamMessage], Iterator[str]]


def table() -> MessageLines:
    """One aligned line a message."""
    columns = message_lines.preview_columns(_COLUMNS)

    def lines(message: StreamMessage) -> Iterator[str]:
        yield _line(message, columns)

    return MessageLines((_heading(),), lines)


def table_with_payloads() -> MessageLines:
    """One aligned line a message, its payload below it in hexadecimal and as text."""

    def lines(message: StreamMessage) -> Iterator[str]:
        yield _line(message, message_lines.PREVIEW_COLUMNS_MIN)
        yield from message_lines.hexadecimal(message.payload)

    return MessageLines((_heading(),), lines)


def json_lines() -> MessageLines:
    """One JSON object a message."""

    def lines(message: StreamMessage) -> Iterator[str]:
        fields = {
            "offset": message.offset,
            "append_time_us": message.append_time_us,
            **message_lines.fields(message),
        }
        yield json.dumps(fields, separators=(",", ":"))

    return MessageLines((), lines)


def _heading() -> str:
    return _LINE.format("OFFSET", "APPENDED (UTC)", message_lines.heading())


def _line(message: StreamMessage, columns: int) -> str:
    rest = message_lines.columns(message, columns)
    return _LINE.format(message.offset, moment(message.append_time_us), rest).rstrip()
