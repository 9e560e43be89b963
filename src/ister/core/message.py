"""Messages: the fields of the wire contract, and the append time that the log adds.

Named tuples, not dataclasses: the log builds and takes apart hundreds of thousands of them a second, and a tuple is
what Python builds and takes apart fastest (docs/performance.md has the numbers).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_ATTRIBUTES: Mapping[str, str] = MappingProxyType({})


class MsgID(NamedTuple):
    """Who sent it, to which topic, through which broker, and the offset the log gave it."""

    producer_id: int = 0
    topic_name: str = ""
    broker_addr: str = ""
    topic_offset: int = 0


class StreamMessage(NamedTuple):
    """One message, with every field of the wire contract.

    `publish_time` is the client's clock in milliseconds and proves nothing. `append_time_us` is the broker's clock in
    microseconds, 0 until the log stamps it, and never decreases within a topic. None and empty stay different.
    `msg_id.topic_name` and `subscription_name` are not stored: the first is the log's, the second the delivery's.
    """

    payload: bytes
    msg_id: MsgID = MsgID()
    request_id: int = 0
    publish_time: int = 0
    producer_name: str = ""
    subscription_name: str = ""
    attributes: Mapping[str, str] = NO_ATTRIBUTES
    schema_id: int | None = None
    schema_version: int | None = None
    routing_key: str | None = None
    append_time_us: int = 0

    @property
    def offset(self) -> int:
        """The offset the log gave it."""
        return self.msg_id.topic_offset
