"""Decide what a dead letter says: the message as it was, and in attributes where it came from and why it is here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ister.broker import ids
from ister.core.failure import Poison
from ister.core.message import MsgID, StreamMessage

if TYPE_CHECKING:
    from ister.core.dispatch import DeadLetter
    from ister.core.failure import FailurePolicy

ADDRESS_BYTES_MAX = 255
REASON_BYTES_MAX = 512
"""With these, all that a letter has beside the message fits into what clients take beyond the largest message."""
POLICY_NAMES = {Poison.DEAD_LETTER: "dead_letter", Poison.DROP: "drop", Poison.BLOCK: "block"}


def letter_message(
    topic: str, subscription: str, letter: DeadLetter, policy: FailurePolicy, target: str
) -> StreamMessage:
    """Return the message to publish; producer, key, schema and payload stay those of the original."""
    original = letter.message
    attributes = {
        **original.attributes,
        "x-original-topic": topic,
        "x-original-subscription": subscription,
        "x-original-topic-offset": str(original.offset),
        "x-original-producer-id": str(original.msg_id.producer_id),
        "x-original-broker-addr": _cut(original.msg_id.broker_addr, ADDRESS_BYTES_MAX),
        "x-poison-policy": POLICY_NAMES[policy.poison],
        "x-delivery-attempt": str(letter.attempt),
    }
    if letter.reason:
        attributes["x-failure-reason"] = _cut(letter.reason, REASON_BYTES_MAX)
    producer = ids.producer_id(target, original.producer_name)
    return original._replace(
        msg_id=MsgID(producer, target, original.msg_id.broker_addr), attributes=attributes, append_time_us=0
    )


def _cut(text: str, bytes_max: int) -> str:
    return text.encode()[:bytes_max].decode(errors="ignore")
