"""TopicHost: the open topics of an IcebergStorage and the pipeline that writes their tables.

`ister.runtime.iceberg_storage` implements it with a broker on loopback and a Spark child process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from ister.core.defaults import ACK_TIMEOUT_MS

if TYPE_CHECKING:
    from ister.core.names import TopicName
    from ister.storage.factory import WalStorageFactory
    from ister.storage.wal_storage import WalStorage


class Served(NamedTuple):
    """An open topic, and its policies for the table."""

    storage: WalStorage
    has_table: bool = True
    waits_for_table: bool = False
    """Level lake: an append waits for the table."""
    table_timeout_s: float = ACK_TIMEOUT_MS / 1000

    @property
    def generation(self) -> int:
        """The topic's generation."""
        return self.storage.generation


class TopicHost(Protocol):
    """Opens all topics, and has their messages written to their tables, each once.

    It reports how far a table is to the topic's storage, too (`WalStorage.table_reached`).
    """

    async def start(self, topics: WalStorageFactory) -> None:
        """Open every topic, and start the pipeline; after an error nothing is left open."""
        ...

    def find(self, topic: TopicName) -> Served | None:
        """Return a topic, None if it does not exist; raises its problem."""
        ...

    async def host(self, topic: TopicName) -> Served:
        """Return a topic, created if necessary."""
        ...

    async def remove(self, topic: TopicName) -> None:
        """Delete a topic with its messages; its table stays."""
        ...

    async def subscribed(self, topic: TopicName, subscription: str) -> None:
        """Record a subscription durably, so that its cursor is not deleted as a leftover. Idempotent."""
        ...

    def wake(self, topic: TopicName, generation: int, upto: int) -> None:
        """Request a commit of everything below `upto` soon; returns at once."""
        ...

    def upto(self, topic: TopicName, generation: int) -> int | None:
        """Return the offset below which the table holds everything; None if it is unknown."""
        ...

    async def wait_upto(self, topic: TopicName, generation: int, upto: int, timeout_s: float) -> None:
        """Wake the pipeline, and return once the table holds everything below `upto`; NotYetInTierError after a timeout."""
        ...

    async def stop(self) -> None:
        """Stop the pipeline, and close every topic."""
        ...
