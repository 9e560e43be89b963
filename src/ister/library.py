"""IcebergStorage for programs: real files, stores, catalog and Spark are put together here, from a configuration.

The pipeline's contract is served on loopback, by the same handlers as in `ister serve`, and the pipeline runs as the same
supervised child. Clients of the Danube protocol are not served.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ister.broker.binding import serve as bind
from ister.broker.broker import Broker
from ister.broker.pipelines import NotInLakeError
from ister.broker.records import Records, SubscriptionRecord
from ister.broker.schema_store import SchemaStore
from ister.broker.v1_storage import V1Storage
from ister.cli.compose import open_metadata, open_store, open_tables, topics_config
from ister.cli.logs import LogFormat
from ister.cli.serve import broker_settings
from ister.cli.supervise import PipelineChild, child_arguments
from ister.config import load
from ister.config.lake import require_shared_catalog
from ister.core.errors import InvalidConfigError, PreconditionError
from ister.storage.factory import WalStorageFactory
from ister.storage.iceberg import IcebergStorage as TopicsOnTables
from ister.storage.iceberg import Parts
from ister.storage.pipeline_port import Served

if TYPE_CHECKING:
    from ister.broker.topic import Topic
    from ister.config import Config, Loaded
    from ister.core.fanout import Limits
    from ister.core.names import TopicName
    from ister.lake.topic_table import TableReads
    from ister.ports.metadata import Metadata
    from ister.storage.pipeline_port import PipelinePort

HOST = "127.0.0.1"
GRACE_S = 2.0


class IcebergStorage(TopicsOnTables):
    """Storage of many topics on log and Iceberg tables, as a configuration asks.

    `config` is what `ister.config.load` returned, or a YAML file, or None for the defaults; `data_dir` says where what
    the file gives no place is kept. Another `pipeline` takes the place of the child on Spark.
    """

    def __init__(
        self,
        config: Loaded | Path | str | None = None,
        *,
        data_dir: Path | str | None = None,
        pipeline: PipelinePort | None = None,
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


async def _compose(loaded: Loaded, pipeline: PipelinePort | None, stack: AsyncExitStack) -> Parts:
    """Open what a configuration asks for; here the table is always read back, whatever `storage.type` says."""
    storage = loaded.config.storage.model_copy(update={"type": "iceberg"})
    config = loaded.config.model_copy(update={"storage": storage})
    store = open_store(config)
    stack.push_async_callback(store.close)
    metadata = await open_metadata(config, read_only=False)
    stack.push_async_callback(metadata.close)
    reads = open_tables(config)
    assert reads is not None, "the type says so"
    stack.callback(reads.close)
    topics = WalStorageFactory(topics_config(config), store=store, metadata=metadata, tables=reads.table)

    async def table_bytes(topic: TopicName, generation: int) -> int:
        return await asyncio.to_thread(_table_bytes, reads, topic, generation)

    return Parts(topics, pipeline or ChildPipeline(loaded, config, metadata), table_bytes)


def _table_bytes(reads: TableReads, topic: TopicName, generation: int) -> int:
    """Return how many bytes the files of a table have; partitions of a topic share one."""
    table = reads.lake.find(topic, generation)
    snapshot = None if table is None else table.snapshot
    if snapshot is None or snapshot.summary is None:
        return 0
    return int(snapshot.summary["total-files-size"] or 0)


class ChildPipeline:
    """Topics in a broker that only the pipeline speaks to, and `ister pipeline run` as a child; a PipelinePort."""

    def __init__(self, loaded: Loaded, config: Config, metadata: Metadata) -> None:
        from ister.pipeline.plan import Choice  # noqa: PLC0415  # it brings what tasks need; seconds, for the child alone

        self._config = config
        self._metadata = metadata
        file = Path(loaded.source) if loaded.source else None
        self._child = PipelineChild(child_arguments(file, loaded.data_dir, LogFormat.AUTO, prom_port=None, quiet=True))
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
            services = V1Storage(broker, token=self._child.token).services()
            server = await bind(services, host=HOST, port=0)
            stack.push_async_callback(server.stop, GRACE_S)
            stack.callback(broker.pipelines.end)
            stack.push_async_callback(self._child.end)
            self._child.begin(f"http://{HOST}:{server.port}", broker.pipelines.has_owner)
            self._stack = stack.pop_all()
        self._hosting = broker

    def find(self, topic: TopicName) -> Served | None:
        """Return a topic that is there."""
        found = self._broker.topics.get(str(topic))
        return None if found is None else self._served(found)

    async def host(self, topic: TopicName) -> Served:
        """Return a topic, made with its namespace if it is not there."""
        broker = self._broker
        if topic.namespace not in broker.namespaces:
            await broker.create_namespace(topic.namespace)
        async with broker.changing(topic):
            pass  # whoever makes or deletes it ends first
        found = broker.topics.get(str(topic))
        return self._served(found or await broker.create_topic(topic, reliable=True))

    async def remove(self, topic: TopicName) -> None:
        """Delete a topic with its messages and subscriptions."""
        await self._broker.delete_topic(topic)

    async def subscribed(self, topic: TopicName, subscription: str) -> None:
        """Write the subscription down as a broker does, which forgets cursors of those that it does not know."""
        broker = self._broker
        async with broker.changing(topic):
            hosted = broker.topic(str(topic))
            if subscription not in hosted.subscriptions and not hosted.closing:
                await broker.records.save_subscription(topic, subscription, SubscriptionRecord())

    def wake(self, topic: TopicName, generation: int, upto: int) -> None:
        """Ask for everything below `upto` to be carried soon."""
        self._broker.pipelines.wakeups.wake(str(topic), generation, upto)

    def upto(self, topic: TopicName, generation: int) -> int | None:
        """Return below which offset the table holds everything, as the child has said."""
        return self._broker.pipelines.upto(topic, generation)

    async def wait_upto(self, topic: TopicName, generation: int, upto: int, timeout_s: float) -> bool:
        """Wake the child, and tell whether the table holds everything below `upto` in time."""
        try:
            await self._broker.pipelines.wait_upto(topic, generation, upto, timeout_s)
        except NotInLakeError:
            return False
        return True

    async def stop(self) -> None:
        """End the child, listen no more, and close every topic."""
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
