"""What IcebergStorage asks of whoever carries its topics to their tables; `ister.library` answers with a child on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from ister.core.errors import UnknownOutcomeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ister.core.names import TopicName
    from ister.storage.factory import WalStorageFactory
    from ister.storage.wal_storage import WalStorage


class Behind(NamedTuple):
    """A topic whose table does not hold everything: it ends at `upto`, the log at `next_offset`."""

    topic: str
    upto: int
    next_offset: int


class NotInTableError(UnknownOutcomeError):
    """Messages are in the log, but not yet in their tables."""

    def __init__(self, behind: Sequence[Behind], timeout_s: float) -> None:
        self.behind = tuple(behind)
        told = "; ".join(f"{topic} has messages [{upto}, {stop}) only in the log" for topic, upto, stop in behind)
        super().__init__(
            f"after {timeout_s:g} s not everything is in the tables: {told}. Nothing is lost, do not store it again: "
            "the pipeline carries it on, or goes on with it when the storage is opened next"
        )


class Served(NamedTuple):
    """A topic that is open, and what its policies say of the table."""

    storage: WalStorage
    has_table: bool = True
    waits_for_table: bool = False
    """Level lake: stored means, in the table."""
    table_timeout_s: float = 30.0

    @property
    def generation(self) -> int:
        """What tells the topic from a deleted one of its name."""
        objects = self.storage.objects
        assert objects is not None, "every topic of a factory has objects, if only none yet"
        return objects.reader.catalog.generation


class PipelinePort(Protocol):
    """Whoever has the topics open, and carries what is stored in them to their tables, each message once.

    It opens all topics in `start` and closes them in `stop`. How far a table is, it also tells the topic's storage
    (`WalStorage.table_reached`).
    """

    async def start(self, topics: WalStorageFactory) -> None:
        """Open every topic that there is, and begin to carry; after an error nothing is left open."""
        ...

    def find(self, topic: TopicName) -> Served | None:
        """Return a topic that is there; raises what is wrong with it."""
        ...

    async def host(self, topic: TopicName) -> Served:
        """Return a topic, made if it is not there."""
        ...

    async def remove(self, topic: TopicName) -> None:
        """Delete a topic with its messages; its table stays."""
        ...

    async def subscribed(self, topic: TopicName, subscription: str) -> None:
        """Note durably that a subscription is wanted, so that nobody takes its cursor for a leftover. Can be done again."""
        ...

    def wake(self, topic: TopicName, generation: int, upto: int) -> None:
        """Ask for everything below `upto` to be carried soon; returns at once."""
        ...

    def upto(self, topic: TopicName, generation: int) -> int | None:
        """Return below which offset the table holds everything; None when nobody has said yet."""
        ...

    async def wait_upto(self, topic: TopicName, generation: int, upto: int, timeout_s: float) -> bool:
        """Wake the pipeline, and tell whether the table holds everything below `upto` in time."""
        ...

    async def stop(self) -> None:
        """Carry no more, and close every topic."""
        ...
