"""One subscription's messages, from its durable cursor on; acknowledged ones are not delivered again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ister.core.errors import InvalidRequestError
from ister.core.reader import Batches

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType
    from typing import Self

    from ister.core.message import StreamMessage
    from ister.storage.iceberg.fanout import FanoutReader
    from ister.storage.wal_storage import WalStorage


class SubscriptionStream(Batches):
    """An endless stream of messages, in order; `async for message in stream`, then `await stream.ack(message.offset)`.

    Acknowledgements are cumulative. A stream that is opened again begins after the last acknowledgement that returned, or
    after a later one that was cancelled.
    """

    def __init__(
        self,
        storage: WalStorage,
        reader: FanoutReader,
        subscription: str,
        on_close: Callable[[SubscriptionStream], Awaitable[None]],
    ) -> None:
        """Use `IcebergStorage.create_subscription_stream`."""
        super().__init__()
        self.subscription = subscription
        self._storage = storage
        self._reader = reader
        self._delivered = self._cursor = reader.next_offset
        self._on_close = on_close

    @property
    def cursor(self) -> int:
        """The offset after the last one that was acknowledged durably."""
        return self._cursor

    async def __anext__(self) -> StreamMessage:
        message = await super().__anext__()
        self._delivered = message.offset + 1
        return message

    async def read(self) -> list[StreamMessage]:
        """Return the next messages, at least one; waits for some."""
        messages = await super().read()
        self._delivered = messages[-1].offset + 1
        return messages

    async def _read(self) -> list[StreamMessage]:
        return await self._reader.read()

    async def ack(self, offset: int) -> int:
        """Acknowledge all offsets up to and including this one; returns the cursor once that is durable.

        InvalidRequestError if it was not delivered yet.
        """
        if offset >= self._delivered:
            raise InvalidRequestError(
                f"subscription {self.subscription} cannot acknowledge offset {offset}: "
                f"it was given messages below {self._delivered} only"
            )
        self._cursor = await self._storage.ack_checkpoint(self.subscription, offset + 1)
        return self._cursor

    async def close(self) -> None:
        """End it; the subscription's next stream delivers again what was not acknowledged."""
        await self._reader.close()
        await self._on_close(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()
