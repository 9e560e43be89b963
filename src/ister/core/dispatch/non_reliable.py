"""Dispatch of a non-reliable topic: nothing is stored; a message that no consumer can take is dropped. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ister.core.dispatch.consumers import Consumer
from ister.core.dispatch.dispatch import SubscriptionType
from ister.core.dispatch.key_shared import Ring

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class NonReliableDispatch:
    """Chooses a consumer for each message among those that are connected, in join order."""

    def __init__(self, kind: SubscriptionType) -> None:
        self.kind = kind
        self._connected: list[int] = []
        self._members: dict[int, Consumer] = {}
        self._ring = Ring()
        self._turn = 0

    @property
    def connected(self) -> Sequence[int]:
        """The ids of the connected consumers."""
        return self._connected

    def connect(self, consumer: int, filters: Sequence[str] = ()) -> None:
        """Add a consumer at the end."""
        assert consumer not in self._members, "it disconnects first"
        self._connected.append(consumer)
        member = Consumer(consumer, len(self._connected), 0.0, 0.0, tuple(filters), connected=True)
        self._members[consumer] = member
        self._ring.add(member)

    def disconnect(self, consumer: int) -> None:
        """Remove a consumer."""
        member = self._members.pop(consumer, None)
        if member is None:
            return
        place = self._connected.index(consumer)
        del self._connected[place]
        self._turn -= place < self._turn
        self._ring.remove(member)

    def choose(self, key: str, has_room: Callable[[int], bool]) -> int | None:
        """Return the consumer of a message with this key, None if it is dropped."""
        if not self._connected:
            return None
        match self.kind:
            case SubscriptionType.SHARED:
                for step in range(len(self._connected)):
                    place = (self._turn + step) % len(self._connected)
                    if has_room(self._connected[place]):
                        self._turn = place + 1
                        return self._connected[place]
                return None
            case SubscriptionType.KEY_SHARED:
                owner = self._ring.owner(key)
                return owner.id if owner is not None and has_room(owner.id) else None
            case _:
                first = self._connected[0]
                return first if has_room(first) else None
