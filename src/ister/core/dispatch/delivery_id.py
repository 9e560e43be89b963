"""Delivery ids: which generation of a topic, and which replay of it, an acknowledgement refers to. Pure.

Clients echo the MsgID of a delivered message unchanged in Ack and Nack, and do nothing else with its broker_addr. So the
address of a delivered message ends with a fragment: `http://host:6650#<generation>.<replay>`. Offsets alone would also fit
the messages of another topic that was created under the same name after this one was deleted. The id says nothing of the
single hand-out, so that a message that is delivered again has the same MsgID.
"""

from __future__ import annotations

from typing import NamedTuple

DIGITS_MAX = 20


class DeliveryId(NamedTuple):
    """A topic's generation, and when its subscription was last reset: 0, not since the broker started."""

    generation: int
    replay: int


def with_delivery_id(address: str, delivery: DeliveryId) -> str:
    """Return the broker_addr of a delivered message."""
    return f"{address}#{delivery[0]}.{delivery[1]}"


def split_delivery_id(address: str) -> tuple[str, DeliveryId | None]:
    """Return the producer's broker_addr, and the delivery id that follows it; None when there is none."""
    before, mark, fragment = address.rpartition("#")
    generation, _, replay = fragment.partition(".")
    if not (mark and _is_number(generation) and _is_number(replay)):
        return address, None
    return before, DeliveryId(int(generation), int(replay))


def _is_number(text: str) -> bool:
    return 0 < len(text) <= DIGITS_MAX and text.isascii() and text.isdecimal()
