"""The broker's records in metadata: namespaces, topics and subscriptions.

    <root>/broker/namespaces/<namespace>                       its policies
    <root>/broker/topics/<namespace>/<topic>                   how it dispatches, its policies, its schema
    <root>/broker/subscriptions/<namespace>/<topic>/<name>     its type, its consumers, how it treats failures
    <root>/broker/pipeline                                     the pipeline that is the owner, and its epoch
    <root>/broker/upto/<namespace>/<topic>                     how far the topic's table is

A subscription's name is percent-encoded in its key. Its cursor is not here but beside the log (storage/cursors/saved.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar
from urllib.parse import quote, unquote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ister.config.policies import Policies
from ister.core.dispatch.dispatch import SubscriptionType
from ister.core.dispatch.failure import FailurePolicy  # noqa: TC001  # pydantic reads it at run time
from ister.core.errors import CorruptMetadataError
from ister.core.names import TopicName
from ister.ports.metadata.store import entries
from ister.schemas import TopicSchema

if TYPE_CHECKING:
    from ister.ports.metadata import Entry, Metadata

PAGE = 500


class Record(BaseModel):
    """One value in metadata."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    version: Literal[1] = 1


class NamespaceRecord(Record):
    """A namespace."""

    policies: Policies = Policies()


class TopicRecord(Record):
    """A topic; its log has its own record (storage/generations.py)."""

    reliable: bool
    policies: Policies = Policies()
    topic_schema: TopicSchema = TopicSchema()
    deleting: bool = False
    """True while it is being deleted; the next start completes an interrupted deletion."""
    created_at_ms: int = 0
    """Creation time; 0 if unknown."""


class SubscriptionRecord(Record):
    """A subscription."""

    kind: SubscriptionType = SubscriptionType.EXCLUSIVE
    consumers: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """The filters of each consumer, by its name."""
    failure_policy: FailurePolicy | None = None
    window: int | None = None
    made: bool = True
    """False for settings of a subscription that is not created yet."""


class PipelineRecord(Record):
    """The pipeline that registered last."""

    epoch: int = 0
    name: str = ""


class UptoRecord(Record):
    """The committed offset of a topic's table, as the pipeline of an epoch reported it."""

    generation: int
    epoch: int
    upto: int


R = TypeVar("R", bound=Record)


class Records:
    """The broker's records."""

    def __init__(self, metadata: Metadata, root_prefix: str) -> None:
        self._metadata = metadata
        self._root = f"{root_prefix.rstrip('/')}/broker"

    async def namespaces(self) -> dict[str, NamespaceRecord]:
        """Return every namespace."""
        return await self._load_all("namespaces", NamespaceRecord)

    async def topics(self) -> dict[TopicName, TopicRecord]:
        """Return every topic."""
        return {TopicName.parse(f"/{key}"): one for key, one in (await self._load_all("topics", TopicRecord)).items()}

    async def subscriptions(self) -> dict[TopicName, dict[str, SubscriptionRecord]]:
        """Return every subscription of every topic."""
        found: dict[TopicName, dict[str, SubscriptionRecord]] = {}
        for key, record in (await self._load_all("subscriptions", SubscriptionRecord)).items():
            namespace, topic, name = key.split("/")
            found.setdefault(TopicName(namespace, topic), {})[unquote(name)] = record
        return found

    async def subscription(self, topic: TopicName, name: str) -> SubscriptionRecord | None:
        """Return one subscription, None if there is none."""
        entry = await self._metadata.get(self._subscription_key(topic, name))
        return None if entry is None else _load(entry, SubscriptionRecord)

    async def save_namespace(self, namespace: str, record: NamespaceRecord) -> None:
        """Write a namespace."""
        await self._metadata.put(f"{self._root}/namespaces/{namespace}", _dump(record))

    async def forget_namespace(self, namespace: str) -> None:
        """Remove a namespace."""
        await self._metadata.delete(f"{self._root}/namespaces/{namespace}")

    async def save_topic(self, topic: TopicName, record: TopicRecord) -> None:
        """Write a topic."""
        await self._metadata.put(f"{self._root}/topics{topic}", _dump(record))

    async def forget_topic(self, topic: TopicName) -> None:
        """Remove a topic and its subscriptions."""
        await self.forget_subscriptions(topic)
        await self._metadata.delete(f"{self._root}/upto{topic}")
        await self._metadata.delete(f"{self._root}/topics{topic}")

    async def forget_subscriptions(self, topic: TopicName) -> None:
        """Remove all subscriptions of a topic."""
        prefix = f"{self._root}/subscriptions{topic}/"
        for key in [entry.key async for entry in entries(self._metadata, prefix, PAGE)]:
            await self._metadata.delete(key)

    async def save_subscription(self, topic: TopicName, name: str, record: SubscriptionRecord) -> None:
        """Write a subscription."""
        await self._metadata.put(self._subscription_key(topic, name), _dump(record))

    async def forget_subscription(self, topic: TopicName, name: str) -> None:
        """Remove a subscription."""
        await self._metadata.delete(self._subscription_key(topic, name))

    async def pipeline(self) -> tuple[PipelineRecord, int]:
        """Return the pipeline that registered last, and the version of its record for `save_pipeline`."""
        entry = await self._metadata.get(f"{self._root}/pipeline")
        return (PipelineRecord(), 0) if entry is None else (_load(entry, PipelineRecord), entry.version)

    async def save_pipeline(self, record: PipelineRecord, version: int) -> bool:
        """Write a pipeline unless its record has another version; return True if it is written."""
        return await self._metadata.cas(f"{self._root}/pipeline", _dump(record), version=version) is not None

    async def uptos(self) -> dict[TopicName, UptoRecord]:
        """Return the committed offset of every topic's table."""
        return {TopicName.parse(f"/{key}"): one for key, one in (await self._load_all("upto", UptoRecord)).items()}

    async def save_upto(self, topic: TopicName, record: UptoRecord) -> None:
        """Write the committed offset of a topic's table."""
        await self._metadata.put(f"{self._root}/upto{topic}", _dump(record))

    def _subscription_key(self, topic: TopicName, name: str) -> str:
        return f"{self._root}/subscriptions{topic}/{quote(name, safe='')}"

    async def _load_all(self, folder: str, kind: type[R]) -> dict[str, R]:
        """Return the records of a folder by the rest of their keys."""
        prefix = f"{self._root}/{folder}/"
        return {e.key.removeprefix(prefix): _load(e, kind) async for e in entries(self._metadata, prefix, PAGE)}


def _dump(record: Record) -> bytes:
    return record.model_dump_json(exclude_none=True).encode()


def _load(entry: Entry, kind: type[R]) -> R:
    try:
        return kind.model_validate_json(entry.value)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"]) or "its form"
        raise CorruptMetadataError(entry.key, f"it is not a {kind.__name__} ({place} is wrong)") from None
