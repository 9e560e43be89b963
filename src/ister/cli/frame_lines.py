"""Decide how one frame is written: as an aligned line for people, or as a JSON object with every field."""

from __future__ import annotations

import json
import shutil
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ister.cli.display import fill, moment, preview, printable
from ister.core.frame import Frame, Marker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ister.core.message import StreamMessage

_HEADINGS = ("BYTE", "OFFSET", "LENGTH", "CRC", "KIND", "APPENDED (UTC)", "PRODUCER", "KEY", "ATTRS", "SIZE", "PAYLOAD")
_LINE = "{:>11} {:>12} {:>8} {:8} {:7} {:27} {} {} {:>5} {:>8} {}"
_PRODUCER_COLUMNS = 16
_KEY_COLUMNS = 12
_COLUMNS_BEFORE_PREVIEW = 11 + 12 + 8 + 8 + 7 + 27 + _PRODUCER_COLUMNS + _KEY_COLUMNS + 5 + 8 + 10
_PREVIEW_COLUMNS_MIN = 24
_DUMP_BYTES = 16


@dataclass(frozen=True, slots=True)
class FrameLines:
    """A heading, and how a frame becomes lines."""

    heading: tuple[str, ...]
    lines: Callable[[Frame], Iterator[str]]


def table() -> FrameLines:
    """One aligned line a frame."""
    columns = max(_PREVIEW_COLUMNS_MIN, shutil.get_terminal_size((160, 24)).columns - _COLUMNS_BEFORE_PREVIEW)

    def lines(frame: Frame) -> Iterator[str]:
        yield _line(frame, columns)

    return FrameLines((_heading(),), lines)


def table_with_payloads() -> FrameLines:
    """One aligned line a frame, its payload below it in hexadecimal and as text."""

    def lines(frame: Frame) -> Iterator[str]:
        yield _line(frame, _PREVIEW_COLUMNS_MIN)
        if not isinstance(frame.content, Marker):
            yield from _hexadecimal(frame.content.payload)

    return FrameLines((_heading(),), lines)


def json_lines() -> FrameLines:
    """One JSON object a frame."""

    def lines(frame: Frame) -> Iterator[str]:
        yield json.dumps(_fields(frame), separators=(",", ":"))

    return FrameLines((), lines)


def _heading() -> str:
    byte, offset, length, crc, kind, time, producer, key, attributes, size, payload = _HEADINGS
    return _LINE.format(
        byte, offset, length, crc, kind, time, fill(producer, _PRODUCER_COLUMNS), fill(key, _KEY_COLUMNS),
        attributes, size, payload,
    )  # fmt: skip


def _line(frame: Frame, columns: int) -> str:
    content = frame.content
    if isinstance(content, Marker):
        line = _LINE.format(
            frame.at, frame.offset, frame.length, f"{frame.crc:08x}", "marker", "", fill("", _PRODUCER_COLUMNS),
            fill("", _KEY_COLUMNS), "", "", f"synced: below offset {content.synced_offset}, byte {content.synced_pos}",
        )  # fmt: skip
    else:
        line = _LINE.format(
            frame.at, frame.offset, frame.length, f"{frame.crc:08x}", "message", moment(content.append_time_us),
            fill(_producer(content), _PRODUCER_COLUMNS), fill(_key(content), _KEY_COLUMNS),
            len(content.attributes), len(content.payload), preview(content.payload, columns),
        )  # fmt: skip
    return line.rstrip()


def _producer(message: StreamMessage) -> str:
    return printable(message.producer_name) or f"#{message.msg_id.producer_id}"


def _key(message: StreamMessage) -> str:
    """Show an absent key as `-` and an empty one as two quotes: they are not the same."""
    if message.routing_key is None:
        return "-"
    return printable(message.routing_key) or '""'


def _hexadecimal(data: bytes) -> Iterator[str]:
    for at in range(0, len(data), _DUMP_BYTES):
        part = data[at : at + _DUMP_BYTES]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        yield f"    {at:08x}  {part.hex(' '):{3 * _DUMP_BYTES - 1}}  |{text}|"


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
    fields |= {
        "kind": "message",
        "append_time_us": content.append_time_us,
        "publish_time": content.publish_time,
        "producer_id": content.msg_id.producer_id,
        "producer_name": content.producer_name,
        "broker_addr": content.msg_id.broker_addr,
        "request_id": content.request_id,
        "routing_key": content.routing_key,
        "attributes": dict(content.attributes),
        "schema_id": content.schema_id,
        "schema_version": content.schema_version,
        "payload": b64encode(content.payload).decode("ascii"),
    }
    return fields
