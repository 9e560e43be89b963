"""Open topics that another broker owns, to be read from their tables; finds them in metadata and claims nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from ister.core.errors import IsterError, LogClosedError, PreconditionError, UnknownTopicError
from ister.core.names import TopicName
from ister.storage.lake_storage import LakeStorage
from ister.storage.progress import progress_root
from ister.storage.registry import TopicRegistry

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.ports.metadata import Metadata
    from ister.storage.table_tier import TopicTable

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LakeConfig:
    """Where metadata has the topics, and how often the catalog is asked for what is new."""

    root_prefix: str
    poll_interval_s: float = 1.0


class LakeStorageFactory:
    """The topics of a broker that only reads, each as it was when it was asked for: `generations` tells what changed."""

    sync_seconds = None
    """It syncs nothing."""

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
        """Return every topic; nothing is opened yet."""
        return await self.topics()

    async def topics(self) -> list[TopicName]:
        """Return every topic that there is."""
        return sorted([*await self.generations(), *self.problems])

    async def generations(self) -> dict[TopicName, int]:
        """Return the generation of every topic that there is now; `problems` says what is wrong with the others."""
        damaged: dict[TopicName, IsterError] = {}
        known = await self._registry.all(damaged)
        self.problems = damaged
        return {topic: record.generation for topic, record in known.items() if not record.deleted}

    async def for_topic(self, topic: str | TopicName) -> LakeStorage:
        """Return a topic's storage, of the generation that it has now; one of an earlier generation is closed."""
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
        """Let go of a topic that is gone, or that is another one now; its readers end."""
        opened = self._open.pop(topic, None)
        if opened is not None:
            try:
                await opened.close()
            except IsterError as error:
                log.warning("topic_not_closed", topic=str(topic), cause=str(error))

    async def delete_topic(self, topic: str | TopicName, *, in_background: bool = False) -> None:
        """Refuse it: the owner deletes."""
        del in_background
        raise PreconditionError(f"this broker only reads; ask the broker that owns topic {topic} to delete it")

    async def check_store(self) -> None:
        """Do nothing: objects are the owner's."""

    async def shutdown(self, drain_timeout_s: float | None = None) -> None:
        """Close every topic."""
        del drain_timeout_s
        self._closing = True
        await asyncio.gather(*(self.close_topic(topic) for topic in list(self._open)))
