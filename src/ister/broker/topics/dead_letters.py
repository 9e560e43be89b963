"""The dead-letter message: the original, plus attributes for source topic, offset, subscription and reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ister.broker.topics import ids
from ister.core.dispatch.failure import Poison
from ister.core.errors import UnknownOutcomeError
from ister.core.message import MsgID, StreamMessage

if TYPE_CHECKING:
    from ister.broker.topics.topic import Topic
    from ister.core.dispatch.dispatch import DeadLetter
    from ister.core.dispatch.failure import FailurePolicy

ADDRESS_BYTES_MAX = 255
REASON_BYTES_MAX = 512
"""Within these limits the added attributes fit into what clients accept beyond the largest message."""
POLICY_NAMES = {Poison.DEAD_LETTER: "dead_letter", Poison.DROP: "drop", Poison.BLOCK: "block"}
SOURCE_ATTRIBUTES = ("x-original-topic", "x-original-subscription", "x-original-topic-offset")


class UnknownDeadLetterError(UnknownOutcomeError):
    """A dead letter may or may not be in its topic, at `start` or behind; check before it is stored again."""

    def __init__(self, target: str, start: int, cause: str) -> None:
        self.target = target
        self.start = start
        self.cause = cause
        super().__init__(f"a dead letter may or may not be in topic {target}, at offset {start} or behind: {cause}")


async def is_stored(target: Topic, start: int, letter: StreamMessage) -> bool:
    """Return True if a topic has a dead letter already at or after `start`."""
    start, stop = max(start, target.start_offset), target.next_offset
    reader = await target.read_from(start)
    try:
        while start < stop:
            for message in await reader.read():
                start = message.offset + 1
                same = [message.attributes.get(key) == letter.attributes[key] for key in SOURCE_ATTRIBUTES]
                if all(same) and message.payload == letter.payload:
                    return True
    finally:
        await reader.close()
    return False


def dead_letter_message(
    topic: str, subscription: str, letter: DeadLetter, policy: FailurePolicy, target: str
) -> StreamMessage:
    """Return the message to publish, with producer, key, schema and payload of the original."""
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
