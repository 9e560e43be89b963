"""Decide how one frame is written: as an aligned line for people, or as a JSON object with every field."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ister.cli import message_lines
from ister.cli.display import moment
from ister.core.frame import Frame, Marker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LINE = "{:>11} {:>12} {:>8} {:8} {:7} {:27} {}"
_COLUMNS = 11 + 12 + 8 + 8 + 7 + 27 + 6


@dataclass(frozen=True, slots=True)
class FrameLines:
    """A heading, and how a frame becomes lines."""

    heading: tuple[str, ...]
    lines: Callable[[Frame], Iterator[str]]


def table() -> FrameLines:
    """One aligned line a frame."""
    columns = message_lines.preview_columns(_COLUMNS)

    def lines(frame: Frame) -> Iterator[str]:
        yield _line(frame, columns)

    return FrameLines((_heading(),), lines)


def table_with_payloads() -> FrameLines:
    """One aligned line a frame, its payload below it in hexadecimal and as text."""

    def lines(frame: Frame) -> Iterator[str]:
        yield _line(frame, message_lines.PREVIEW_COLUMNS_MIN)
        if not isinstance(frame.content, Marker):
            yield from message_lines.hexadecimal(frame.content.payload)

    return FrameLines((_heading(),), lines)


def json_lines() -> FrameLines:
    """One JSON object a frame."""

    def lines(frame: Frame) -> Iterator[str]:
        yield json.dumps(_fields(frame), separators=(",", ":"))

    return FrameLines((), lines)


def _heading() -> str:
    return _LINE.format("BYTE", "OFFSET", "LENGTH", "CRC", "KIND", "APPENDED (UTC)", message_lines.heading())


def _line(frame: Frame, columns: int) -> str:
    content = frame.content
    if isinstance(content, Marker):
        synced = f"synced: below offset {content.synced_offset}, byte {content.synced_pos}"
        kind, time, rest = "marker", "", message_lines.no_columns(synced)
    else:
        kind, time, rest = "message", moment(content.append_time_us), message_lines.columns(content, columns)
    return _LINE.format(frame.at, frame.offset, frame.length, f"{frame.crc:08x}", kind, time, rest).rstrip()


def _fields(frame: Frame) -> dict[str, object]:
    fields: dict[str, object] = {
        "byte": frame.at,
        "offset": frame.offset,
        "length": frame.length,
        "crc": frame.crc,
    }
    content = frame.content
    if isinstance(content, Marker):
        fields |= {
            "kind": "marker",
            "nonce": content.nonce,
            "own_byte": content.at,
            "synced_offset": content.synced_offset,
            "synced_byte": content.synced_pos,
        }
        return fields
    return fields | {
        "kind": "message",
        "append_time_us": content.append_time_us,
        **message_lines.fields(content),
    }
