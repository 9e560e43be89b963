"""Decide how one message is written: as an aligned line for people, or as a JSON object with every field."""

from __future__ import annotations

import json
import shutil
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ister.cli.display import fill, moment, preview, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ister.core.message import StreamMessage

_LINE = "{:>12} {:27} {} {} {:>5} {:>8} {}"
_PRODUCER_COLUMNS = 16
_KEY_COLUMNS = 12
_COLUMNS_BEFORE_PREVIEW = 12 + 27 + _PRODUCER_COLUMNS + _KEY_COLUMNS + 5 + 8 + 6
_PREVIEW_COLUMNS_MIN = 24
_DUMP_BYTES = 16


@dataclass(frozen=True, slots=True)
class MessageLines:
    """A heading, and how a message becomes lines."""

    heading: tuple[str, ...]
    lines: Callable[[StreamMessage], Iterator[str]]


def table() -> MessageLines:
    """One aligned line a message."""
    columns = max(_PREVIEW_COLUMNS_MIN, shutil.get_terminal_size((160, 24)).columns - _COLUMNS_BEFORE_PREVIEW)

    def lines(message: StreamMessage) -> Iterator[str]:
        yield _line(message, columns)

    return MessageLines((_heading(),), lines)


def table_with_payloads() -> MessageLines:
    """One aligned line a message, its payload below it in hexadecimal and as text."""

    def lines(message: StreamMessage) -> Iterator[str]:
        yield _line(message, _PREVIEW_COLUMNS_MIN)
        data = message.payload
        for at in range(0, len(data), _DUMP_BYTES):
            part = data[at : at + _DUMP_BYTES]
            text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
            yield f"    {at:08x}  {part.hex(' '):{3 * _DUMP_BYTES - 1}}  |{text}|"

    return MessageLines((_heading(),), lines)


def json_lines() -> MessageLines:
    """One JSON object a message."""

    def lines(message: StreamMessage) -> Iterator[str]:
        yield json.dumps(_fields(message), separators=(",", ":"))

    return MessageLines((), lines)


def _heading() -> str:
    return _LINE.format(
        "OFFSET", "APPENDED (UTC)", fill("PRODUCER", _PRODUCER_COLUMNS), fill("KEY", _KEY_COLUMNS), "ATTRS", "SIZE",
        "PAYLOAD",
    )  # fmt: skip


def _line(message: StreamMessage, columns: int) -> str:
    # An absent key is `-` and an empty one two quotes: they are not the same.
    key = "-" if message.routing_key is None else printable(message.routing_key) or '""'
    producer = printable(message.producer_name) or f"#{message.msg_id.producer_id}"
    return _LINE.format(
        message.offset, moment(message.append_time_us), fill(producer, _PRODUCER_COLUMNS), fill(key, _KEY_COLUMNS),
        len(message.attributes), len(message.payload), preview(message.payload, columns),
    ).rstrip()  # fmt: skip


def _fields(message: StreamMessage) -> dict[str, object]:
    return {
        "offset": message.offset,
        "append_time_us": message.append_time_us,
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
