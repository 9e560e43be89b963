"""Decide how a delivered message is written: as an aligned line, as a JSON object, or as its bare payload."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ister.cli import message_lines
from ister.cli.display import moment
from ister.core.delivery_id import split_delivery_id
from ister.core.message import MsgID, StreamMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from danube.proto.DanubeApi_pb2 import StreamMessage as Delivered

_LINE = "{:>12} {:27} {}"
_COLUMNS = 12 + 27 + 2


@dataclass(frozen=True, slots=True)
class DeliveredLines:
    """A heading, and how one message is written."""

    heading: str
    write: Callable[[StreamMessage], None]


def table(*, partitioned: bool) -> DeliveredLines:
    """One aligned line a message; a partition's number stands before its offset."""
    columns = message_lines.preview_columns(_COLUMNS)

    def write(message: StreamMessage) -> None:
        offset = f"{message.msg_id.topic_name.rpartition('-part-')[2]}/" if partitioned else ""
        rest = message_lines.columns(message, columns)
        line = _LINE.format(f"{offset}{message.offset}", moment(message.publish_time * 1000), rest)
        sys.stdout.write(f"{line.rstrip()}\n")

    return DeliveredLines(_LINE.format("OFFSET", "PUBLISHED (UTC)", message_lines.heading()), write)


def json_lines() -> DeliveredLines:
    """One JSON object a message."""

    def write(message: StreamMessage) -> None:
        fields = {
            "topic": message.msg_id.topic_name,
            "offset": message.offset,
            "subscription": message.subscription_name,
            **message_lines.fields(message),
        }
        sys.stdout.write(json.dumps(fields, separators=(",", ":")) + "\n")

    return DeliveredLines("", write)


def bare_payloads() -> DeliveredLines:
    """Each payload as it is, and a new line."""

    def write(message: StreamMessage) -> None:
        sys.stdout.flush()
        sys.stdout.buffer.write(message.payload + b"\n")

    return DeliveredLines("", write)


def from_wire(message: Delivered) -> StreamMessage:
    """Return a delivered message as ours; when it was appended does not travel, and the delivery is no part of it."""
    found = message.msg_id
    address, _ = split_delivery_id(found.broker_addr)
    return StreamMessage(
        message.payload,
        MsgID(found.producer_id, found.topic_name, address, found.topic_offset),
        message.request_id,
        message.publish_time,
        message.producer_name,
        message.subscription_name,
        dict(message.attributes),
        message.schema_id if message.HasField("schema_id") else None,
        message.schema_version if message.HasField("schema_version") else None,
        message.routing_key if message.HasField("routing_key") else None,
    )
