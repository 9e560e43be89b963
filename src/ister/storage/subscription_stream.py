"""One subscription's messages, from its durable cursor on; what was acknowledged never comes again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ister.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from types import TracebackType
    from typing import Self

    from ister.core.message import StreamMessage
    from ister.storage.fanout import FanoutReader
    from ister.storage.wal_storage import WalStorage


class SubscriptionStream:
    """An endless stream of messages, in order; `async for message in stream`, then `await stream.ack(message.offset)`.

    To acknowledge an offset is to acknowledge everything up to it, as one who reads in order does. A stream that is
    opened again, after whatever end, begins behind the last acknowledgement that returned, or later, behind one that was
    cut off.
    """

    def __init__(
        self,
        storage: WalStorage,
        reader: FanoutReader,
        subscription: str,
        gone: Callable[[SubscriptionStream], Awaitable[None]],
    ) -> None:
        """Use `IcebergStorage.create_subscription_stream`."""
        self.subscription = subscription
        self._storage = storage
        self._reader = reader
        self._delivered = self._cursor = reader.next_offset
        self._ready: Iterator[StreamMessage] = iter(())
        self._gone = gone

    @property
    def cursor(self) -> int:
        """The offset behind the last one that was acknowledged durably."""
        return self._cursor

    def __aiter__(self) -> SubscriptionStream:
        return self

    async def __anext__(self) -> StreamMessage:
        message = next(self._ready, None)
        if message is None:
            self._ready = iter(await self._reader.read())
            message = next(self._ready)
        self._delivered = message.offset + 1
        return message

    async def read(self) -> list[StreamMessage]:
        """Return the next messages, at least one; waits for some."""
        messages = list(self._ready) or await self._reader.read()
        self._delivered = messages[-1].offset + 1
        return messages

    async def ack(self, offset: int) -> int:
        """Acknowledge everything up to an offset, it included; returns the cursor once that is durable.

        InvalidRequestError for what was not delivered yet.
        """
        if offset >= self._delivered:
            raise InvalidRequestError(
                f"subscription {self.subscription} cannot acknowledge offset {offset}: "
                f"it was given messages below {self._delivered} only"
            )
        self._cursor = await self._storage.ack_checkpoint(self.subscription, offset + 1)
        return self._cursor

    async def close(self) -> None:
        """End it; what was not acknowledged comes again, to the next stream of this subscription."""
        await self._reader.close()
        await self._gone(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()
