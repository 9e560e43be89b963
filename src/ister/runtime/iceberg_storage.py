"""IcebergStorage for programs: files, stores, catalog and Spark, assembled from a configuration.

The pipeline's gRPC service listens on loopback, with the same handlers as in `ister serve`, and the pipeline runs as the
same supervised child process. Clients of the Danube protocol are not served.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ister.broker.registry.store import SchemaStore
from ister.broker.services.ister_storage import IsterStorage
from ister.broker.status import status_of
from ister.broker.topics.broker import Broker
from ister.broker.topics.records import Records, SubscriptionRecord
from ister.config import load
from ister.config.catalog import require_shared_catalog
from ister.core.errors import InvalidConfigError, PreconditionError
from ister.runtime.compose import open_stores, topics_config
from ister.runtime.pipeline_child import PipelineChild, child_arguments
from ister.runtime.serve import broker_settings
from ister.storage.factory import WalStorageFactory
from ister.storage.iceberg.storage import IcebergStorage as TopicsOnTables
from ister.storage.iceberg.storage import Parts, Served
from ister.transport.server import serve as bind

if TYPE_CHECKING:
    from ister.broker.topics.topic import Topic
    from ister.config import Config, Loaded
    from ister.core.dispatch.shared_reader import Limits
    from ister.core.names import TopicName
    from ister.lake.topic_table import TableReads
    from ister.ports.metadata import Metadata
    from ister.storage.iceberg.storage import TopicHost

HOST = "127.0.0.1"
GRACE_S = 2.0


class IcebergStorage(TopicsOnTables):
    """Storage of many topics on log and Iceberg tables, from a configuration.

    `config` is what `ister.config.load` returned, or a YAML file, or None for the defaults; `data_dir` is the directory for
    what the file gives no path. Another `pipeline` replaces the child process on Spark.
    """

    def __init__(
        self,
        config: Loaded | Path | str | None = None,
        *,
        data_dir: Path | str | None = None,
        pipeline: TopicHost | None = None,
        drain_timeout_s: float = 30.0,
        limits: Limits | None = None,
    ) -> None:
        """Read and check the configuration; everything else is opened at the first use."""
        loaded = _loaded(config, data_dir)
        _refuse(loaded, has_pipeline=pipeline is not None)

        async def compose(stack: AsyncExitStack) -> Parts:
            return await _compose(loaded, pipeline, stack)

        super().__init__(compose, drain_timeout_s=drain_timeout_s, limits=limits)


def _loaded(config: Loaded | Path | str | None, data_dir: Path | str | None) -> Loaded:
    if config is None or isinstance(config, Path | str):
        return load(None if config is None else Path(config), None if data_dir is None else Path(data_dir))
    if data_dir is not None:
        raise InvalidConfigError("data_dir", "belongs to what is loaded; give it to ister.config.load")
    return config


def _refuse(loaded: Loaded, *, has_pipeline: bool) -> None:
    require_shared_catalog(loaded.config, "IcebergStorage")
    if not has_pipeline and loaded.source and not Path(loaded.source).is_file():
        raise InvalidConfigError(
            "config",
            f"was not read from a file ({loaded.source}), so the pipeline's process could not read it; write one",
        )


async def _compose(loaded: Loaded, pipeline: TopicHost | None, stack: AsyncExitStack) -> Parts:
    """Open the stores of a configuration; the table is always read, whatever `storage.type` is."""
    storage = loaded.config.storage.model_copy(update={"type": "iceberg"})
    config = loaded.config.model_copy(update={"storage": storage})
    store, metadata, reads = await stack.enter_async_context(open_stores(config))
    assert reads is not None, "its type is iceberg"
    topics = WalStorageFactory(topics_config(config), store=store, metadata=metadata, tables=reads.table)

    async def table_bytes(topic: TopicName, generation: int) -> int:
        return await asyncio.to_thread(_table_bytes, reads, topic, generation)

    return Parts(topics, pipeline or ChildPipeline(loaded, config, metadata), table_bytes)


def _table_bytes(reads: TableReads, topic: TopicName, generation: int) -> int:
    """Return the size of a table's files; partitions of a topic share a table."""
    table = reads.lake.find(topic, generation)
    snapshot = None if table is None else table.snapshot
    if snapshot is None or snapshot.summary is None:
        return 0
    return int(snapshot.summary["total-files-size"] or 0)


class ChildPipeline:
    """Topics in a broker that only the pipeline connects to, and `ister pipeline run` as a child; a TopicHost."""

    def __init__(self, loaded: Loaded, config: Config, metadata: Metadata) -> None:
        from ister.pipeline.plan import Choice  # noqa: PLC0415  # seconds, and only a child needs it

        self._config = config
        self._metadata = metadata
        file = Path(loaded.source) if loaded.source else None
        self._child = PipelineChild(child_arguments(file, loaded.data_dir, "auto", prom_port=None, quiet=True))
        self._choice = Choice((), config.storage.iceberg_config.writer.exclude)
        self._hosting: Broker | None = None
        self._stack = AsyncExitStack()

    async def start(self, topics: WalStorageFactory) -> None:
        """Open every topic, listen on loopback, and start the child."""
        root = topics.config.root_prefix
        async with AsyncExitStack() as stack:
            schemas = SchemaStore(self._metadata, root)
            await schemas.load()
            broker = Broker(broker_settings(self._config), topics, Records(self._metadata, root), schemas)
            stack.push_async_callback(broker.drain, topics.config.drain_timeout_s)
            await broker.start()
            services = IsterStorage(broker, token=self._child.token).services()
            settings = self._config.broker
            server = await bind(
                services,
                host=HOST,
                port=0,
                describe_error=status_of,
                message_bytes_max=settings.message_bytes_max,
                keepalive_s=settings.keepalive_interval_ms / 1000,
                keepalive_timeout_s=settings.keepalive_timeout_ms / 1000,
            )
            stack.push_async_callback(server.stop, GRACE_S)
            stack.callback(broker.pipelines.end)
            stack.push_async_callback(self._child.end)
            self._child.begin(f"http://{HOST}:{server.port}", broker.pipelines.has_owner)
            self._stack = stack.pop_all()
        self._hosting = broker

    def find(self, topic: TopicName) -> Served | None:
        """Return a topic, None when it does not exist."""
        found = self._broker.topics.get(str(topic))
        return None if found is None else self._served(found)

    async def host(self, topic: TopicName) -> Served:
        """Return a topic; create it and its namespace if they do not exist."""
        broker = self._broker
        if topic.namespace not in broker.namespaces:
            await broker.namespaces.create(topic.namespace)
        async with broker.topics.changing(topic):
            pass  # wait for a concurrent creation or deletion
        found = broker.topics.get(str(topic))
        return self._served(found or await broker.create_topic(topic, reliable=True))

    async def remove(self, topic: TopicName) -> None:
        """Delete a topic with its messages and subscriptions."""
        await self._broker.delete_topic(topic)

    async def subscribed(self, topic: TopicName, subscription: str) -> None:
        """Save the subscription's record: a broker deletes cursors of subscriptions that have none."""
        broker = self._broker
        async with broker.topics.changing(topic):
            hosted = broker.topics.find(str(topic))
            if subscription not in hosted.subscriptions and not hosted.closing:
                await broker.records.save_subscription(topic, subscription, SubscriptionRecord())

    def upto(self, topic: TopicName, generation: int) -> int | None:
        """Return the offset below which the table holds everything, as the child reported it."""
        return self._broker.pipelines.upto(topic, generation)

    async def wait_upto(self, topic: TopicName, generation: int, upto: int, timeout_s: float) -> None:
        """Wake the child, and return once the table holds everything below `upto`; NotYetInTierError after a timeout."""
        await self._broker.pipelines.wait_upto(topic, generation, upto, timeout_s)

    async def stop(self) -> None:
        """End the child, close the server, and close every topic."""
        await self._stack.aclose()

    @property
    def _broker(self) -> Broker:
        assert self._hosting is not None, "it was started"
        return self._hosting

    def _served(self, topic: Topic) -> Served:
        policies = topic.policies
        if not topic.reliable:
            raise PreconditionError(f"topic {topic.text} is not reliable: its messages are not stored")
        return Served(
            topic.storage,
            has_table=policies.lake and self._choice.takes(topic.text),
            waits_for_table=policies.ack_level == "lake",
            table_timeout_s=policies.ack_timeout_ms / 1000,
        )
