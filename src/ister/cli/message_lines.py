"""Decide how a message's own parts are written, wherever it was found: in a frame, in a topic, or on its way from a broker."""

from __future__ import annotations

import shutil
from base64 import b64encode
from typing import TYPE_CHECKING

from ister.cli.display import fill, preview, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ister.core.message import StreamMessage

_LINE = "{} {} {:>5} {:>8} {}"
_PRODUCER_COLUMNS = 16
_KEY_COLUMNS = 12
_COLUMNS_BEFORE_PREVIEW = _PRODUCER_COLUMNS + _KEY_COLUMNS + 5 + 8 + 4
_DUMP_BYTES = 16

PREVIEW_COLUMNS_MIN = 24


def preview_columns(before: int) -> int:
    """Return how wide a payload's preview may be, behind so many columns of the line's own and the message's other parts."""
    columns = shutil.get_terminal_size((160, 24)).columns - before - _COLUMNS_BEFORE_PREVIEW
    return max(PREVIEW_COLUMNS_MIN, columns)


def heading() -> str:
    """Return the headings of a message's columns."""
    return _LINE.format(fill("PRODUCER", _PRODUCER_COLUMNS), fill("KEY", _KEY_COLUMNS), "ATTRS", "SIZE", "PAYLOAD")


def columns(message: StreamMessage, preview_columns: int) -> str:
    """Return who sent it, its key, how many attributes and bytes it has, and how it begins."""
    return _LINE.format(
        fill(_producer(message), _PRODUCER_COLUMNS),
        fill(_key(message), _KEY_COLUMNS),
        len(message.attributes),
        len(message.payload),
        preview(message.payload, preview_columns),
    )


def no_columns(text: str) -> str:
    """Return a line's end where there is no message, with a text in place of the payload."""
    return _LINE.format(fill("", _PRODUCER_COLUMNS), fill("", _KEY_COLUMNS), "", "", text)


def hexadecimal(data: bytes) -> Iterator[str]:
    """Give a payload in hexadecimal and as text, sixteen bytes a line."""
    for at in range(0, len(data), _DUMP_BYTES):
        part = data[at : at + _DUMP_BYTES]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        yield f"    {at:08x}  {part.hex(' '):{3 * _DUMP_BYTES - 1}}  |{text}|"


def fields(message: StreamMessage) -> dict[str, object]:
    """Return what JSON says of a message beside its offset and when it was appended."""
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


def _producer(message: StreamMessage) -> str:
    return printable(message.producer_name) or f"#{message.msg_id.producer_id}"


def _key(message: StreamMessage) -> str:
    """Show an absent key as `-` and an empty one as two quotes: they are not the same."""
    if message.routing_key is None:
        return "-"
    return printable(message.routing_key) or '""'
