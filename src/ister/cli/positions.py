"""Decide what a place in a topic means as people type it: earliest, latest, an offset, or a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from ister.cli.exits import InputError
from ister.rpc.ister_v1_pb2 import ResetCursorRequest, ResetCursorResponse

if TYPE_CHECKING:
    from ister.cli.remote import Remote

OFFSET_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Position:
    """A place; `value` is the offset, or milliseconds since 1970."""

    kind: Literal["earliest", "latest", "offset", "time"]
    value: int = 0


def parse_position(text: str, option: str) -> Position:
    """Read a place; a time without a zone is UTC, as the tables show it."""
    match text:
        case "earliest" | "latest":
            return Position(text)
    if text.isascii() and text.isdecimal():
        if len(text) > 19 or int(text) > OFFSET_MAX:
            raise InputError(f"{option} {text}", "is larger than any offset; give a lower one")
        return Position("offset", int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"{option} {text}", "is no place; give earliest, latest, an offset, or a time like 2026-01-31T18:00:00Z"
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    time_ms = int(moment.timestamp() * 1000)
    if time_ms < 0:
        raise InputError(f"{option} {text}", "lies before 1970; give a later time, or earliest")
    return Position("time", time_ms)


def reset_cursor(admin: Remote, topic: str, subscription: str, place: Position) -> ResetCursorResponse:
    """Move a subscription of one topic."""
    request = ResetCursorRequest(topic=topic, subscription=subscription)
    match place.kind:
        case "earliest":
            request.earliest = True
        case "latest":
            request.latest = True
        case "offset":
            request.offset = place.value
        case "time":
            request.time_ms = place.value
    return admin.change("/ister.v1.Admin/ResetCursor", request, ResetCursorResponse)
