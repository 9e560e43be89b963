"""Read-only topics: opened from their tables, found in metadata; claims nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import structlog

from ister.core.errors import IsterError, LogClosedError, PreconditionError, UnknownTopicError
from ister.core.names import TopicName
from ister.storage.cursors.metadata import progress_root
from ister.storage.generations import TopicRegistry
from ister.storage.lake_storage import LakeStorage

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.ports.metadata import Metadata
    from ister.storage.tiered_reader import TopicTable

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LakeConfig:
    """The root of the topics in metadata, and the poll interval of the catalog."""

    root_prefix: str
    poll_interval_s: float


class LakeStorageFactory:
    """The topics of a read-only broker; `generations` shows which were created or deleted."""

    read_only: Literal[True] = True
    sync_seconds = None
    """No log is synced."""

    def __init__(
        self, config: LakeConfig, *, metadata: Metadata, tables: Callable[[TopicName, int], TopicTable]
    ) -> None:
        self.config = config
        self.problems: dict[TopicName, IsterError] = {}
        self._metadata = metadata
        self._tables = tables
        self._registry = TopicRegistry(metadata, config.root_prefix)
        self._open: dict[TopicName, LakeStorage] = {}
        self._closing = False

    async def start(self) -> list[TopicName]:
        """Return every topic; opens none."""
        return await self.topics()

    async def topics(self) -> list[TopicName]:
        """Return every topic."""
        return sorted([*await self.generations(), *self.problems])

    async def generations(self) -> dict[TopicName, int]:
        """Return the generation of every topic; `problems` has the topics whose records are damaged."""
        damaged: dict[TopicName, IsterError] = {}
        known = await self._registry.all(damaged)
        self.problems = damaged
        return {topic: record.generation for topic, record in known.items() if not record.deleted}

    async def for_topic(self, topic: str | TopicName) -> LakeStorage:
        """Return a topic's storage, of its current generation; one of an earlier generation is closed."""
        name = topic if isinstance(topic, TopicName) else TopicName.parse(topic)
        record = await self._registry.get(name)
        if self._closing:
            raise LogClosedError(str(name))
        opened = self._open.get(name)
        if opened is not None and (record is None or record.deleted or record.generation != opened.generation):
            await self.close_topic(name)
            opened = None
        if record is None or record.deleted:
            raise UnknownTopicError(str(name), self._metadata.name)
        if opened is None:
            opened = self._open[name] = LakeStorage(
                self._metadata, progress_root(self.config.root_prefix), name, record.generation, self._tables(name, record.generation),
                poll_interval_s=self.config.poll_interval_s,
            )  # fmt: skip
        return opened

    async def close_topic(self, topic: TopicName) -> None:
        """Close a topic that was deleted or re-created; its readers end."""
        opened = self._open.pop(topic, None)
        if opened is not None:
            try:
                await opened.close()
            except IsterError as error:
                log.warning("topic_not_closed", topic=str(topic), cause=str(error))

    async def delete_topic(self, topic: str | TopicName, *, in_background: bool = False) -> None:
        """Refuse it: only the owner deletes."""
        del in_background
        raise PreconditionError(f"this broker only reads; ask the broker that owns topic {topic} to delete it")

    async def check_store(self) -> None:
        """Do nothing: a read-only broker uses no objects."""

    async def shutdown(self, drain_timeout_s: float | None = None) -> None:
        """Close every topic."""
        del drain_timeout_s
        self._closing = True
        await asyncio.gather(*(self.close_topic(topic) for topic in list(self._open)))
