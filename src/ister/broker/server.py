"""The broker process: recover every topic, listen, drain at a signal.

The metrics port opens first, so that a slow recovery can be observed. The gRPC ports open last, when every topic is open:
clients give up at NOT_FOUND.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from ister.broker.cluster.read_only import TopicSync, for_readers
from ister.broker.cluster.subscription_leases import Leased, announce_owner, owner_of
from ister.broker.metrics.exposition import Metrics
from ister.broker.metrics.health import Dependencies, Readiness, probes_of, routes
from ister.broker.process import GcTuning, LoopLag, map_large_buffers
from ister.broker.registry.store import SchemaStore
from ister.broker.registry.validation import Validation
from ister.broker.services.broker_admin import BrokerAdmin
from ister.broker.services.consumer import ConsumerService
from ister.broker.services.discovery import Discovery
from ister.broker.services.ister_admin import IsterAdmin
from ister.broker.services.ister_storage import IsterStorage
from ister.broker.services.namespace_admin import NamespaceAdmin
from ister.broker.services.producer import ProducerService
from ister.broker.services.schema_registry import SchemaRegistry
from ister.broker.services.storage import StorageService
from ister.broker.services.topic_admin import TopicAdmin
from ister.broker.status import status_of
from ister.broker.topics.broker import Broker
from ister.broker.topics.ownership import SubscriptionOwnership
from ister.broker.topics.records import Records
from ister.config.validators import reachable_host
from ister.transport.http1 import HttpServer
from ister.transport.server import serve as bind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from ister.broker.settings import BrokerSettings
    from ister.broker.topics.topic import Topic
    from ister.lake.topic_table import ReadCounters
    from ister.ports.metadata import Metadata
    from ister.storage.factory import WalStorageFactory
    from ister.storage.lake_factory import LakeStorageFactory
    from ister.transport.server import Server
    from ister.transport.service import Service

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports, 0 for a free one, None for no metrics; and the limits of their connections."""

    host: str
    broker: int
    admin: int
    metrics: int | None
    message_bytes_max: int
    keepalive_s: float
    keepalive_timeout_s: float
    drain_timeout_s: float


@dataclass(frozen=True, slots=True)
class Listening:
    """The addresses of a broker, and the result of its recovery."""

    broker_url: str
    admin_url: str
    metrics_url: str | None
    topics: int
    problems: Mapping[str, str]
    has_pipeline: Callable[[], bool]
    """Returns True while a pipeline is registered."""


class Serving:
    """A broker with its ports; metrics and probes read its attributes."""

    def __init__(
        self,
        broker: Broker,
        ports: Ports,
        producing: ProducerService,
        validation: Validation,
        dependencies: Dependencies,
        table_reads: ReadCounters | None = None,
        topic_sync: TopicSync | None = None,
    ) -> None:
        self.broker = broker
        self.cluster_name = broker.settings.cluster_name
        self.rpcs: dict[tuple[str, str], int] = {}
        self.sync_seconds = broker.factory.sync_seconds
        self.send_ms = producing.send_ms
        self.schema_checks = validation.counters
        self.table_reads = table_reads
        self._ports = ports
        self._dependencies = dependencies
        self._topic_sync = topic_sync
        self._missing: list[str] = ["recovery"]
        self._servers: list[Server] = []

    def topics(self) -> Iterable[Topic]:
        """Return every topic."""
        return list(self.broker.topics.values())

    def readiness(self) -> Readiness:
        """Return whether clients should connect, and what fails."""
        topics = self.broker.topics.values()
        problems = {topic.name: topic.problem for topic in topics if topic.problem is not None}
        stopped = {topic.name: error for topic in topics if (error := topic.upload_problem) is not None}
        degraded = {*self._dependencies.failing, *(["uploads"] if stopped else [])}
        return Readiness(
            missing=tuple(self._missing),
            draining=self.broker.topics.draining,
            topics=len(topics) - len(problems),
            problems=problems,
            degraded=sorted(degraded),
            uploads_stopped=stopped,
        )

    async def run(
        self,
        services: tuple[list[Service], list[Service]],
        ready: Callable[[Listening], None],
        draining: Callable[[], None],
        announce: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """Serve until SIGTERM or SIGINT, then drain; `announce` is called with the broker's URL once the ports are open."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        ports = self._ports
        async with AsyncExitStack() as stack:
            lag = LoopLag()
            lag.start()
            stack.callback(lag.stop)
            metrics_url = None
            if ports.metrics is not None:
                metrics = Metrics(self, lag)
                http = HttpServer(routes(self, metrics))
                await http.start(ports.host, ports.metrics)
                stack.push_async_callback(http.stop)
                metrics_url = f"http://{reachable_host(ports.host)}:{http.port}"
            map_large_buffers()
            gc_tuning = GcTuning()
            stack.callback(gc_tuning.stop)
            gc_tuning.pause()
            self._dependencies.start()
            stack.push_async_callback(self._dependencies.stop)
            if self._topic_sync is not None:
                await self._topic_sync.start()
            await self.broker.start()
            self._missing = ["ports"]
            try:
                url = await self._listen(services[0], ports.broker)
                self.broker.set_addresses(url)
                admin_url = await self._listen(services[1], ports.admin)
                if announce is not None:
                    await announce(self.broker.url)
                self._missing = []
                gc_tuning.start()
                topics = self.broker.topics.values()
                problems = {topic.text: str(topic.problem) for topic in topics if topic.problem is not None}
                self.broker.set_addresses(url, admin_url, metrics_url or "")
                has_pipeline = self.broker.pipelines.has_owner
                ready(Listening(self.broker.url, admin_url, metrics_url, len(topics), problems, has_pipeline))
                await stop.wait()
                log.info("broker_draining")
                draining()
            finally:
                await self._drain()

    async def _listen(self, services: list[Service], port: int) -> str:
        """Open a port; return its URL."""
        ports = self._ports
        server = await bind(
            services,
            host=ports.host,
            port=port,
            describe_error=status_of,
            message_bytes_max=ports.message_bytes_max,
            keepalive_s=ports.keepalive_s,
            keepalive_timeout_s=ports.keepalive_timeout_s,
            rpcs=self.rpcs,
        )
        self._servers.append(server)
        return f"http://{reachable_host(ports.host)}:{server.port}"

    async def _drain(self) -> None:
        """Stop the servers, then sync everything, then upload what time allows."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.broker.topics.begin_drain()
        if self._topic_sync is not None:
            await self._topic_sync.stop()
        grace_s = self._ports.drain_timeout_s / 5
        # Calls that wait for a table are answered before calls are cancelled: clients retry cancelled ones.
        ending = loop.call_later(grace_s / 2, self.broker.pipelines.end)
        for server in self._servers:
            server.drain()
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))
        ending.cancel()
        left_s = self._ports.drain_timeout_s - (loop.time() - began)
        await self.broker.drain(left_s)
        log.info("broker_stopped", seconds=round(loop.time() - began, 3))


async def serve(
    settings: BrokerSettings,
    ports: Ports,
    *,
    factory: WalStorageFactory | LakeStorageFactory,
    metadata: Metadata,
    ready: Callable[[Listening], None],
    draining: Callable[[], None] = lambda: None,
    pipeline_token: str | None = None,
    table_reads: ReadCounters | None = None,
    shares_subscriptions: bool = False,
) -> None:
    """Run a broker over this storage until a signal; a pipeline with the token may read log files.

    With `shares_subscriptions` other brokers on the same metadata may serve subscriptions too, each under its leases.
    """
    root = factory.config.root_prefix
    schemas = SchemaStore(metadata, root)
    await schemas.load()
    ownership = partial(Leased, metadata=metadata) if shares_subscriptions else SubscriptionOwnership
    broker = Broker(settings, factory, Records(metadata, root), schemas, ownership=ownership)
    topic_sync = TopicSync(broker, factory) if factory.read_only else None
    registry = SchemaRegistry(schemas, broker)
    validation = Validation(schemas)
    producing = ProducerService(broker, validation)
    data = [
        *producing.services(),
        *ConsumerService(broker).services(),
        *Discovery(broker).services(),
        *StorageService(broker).services(),
        registry.service(),
        *IsterStorage(broker, token=pipeline_token).services(),
    ]
    admin = [
        *TopicAdmin(broker).services(),
        *NamespaceAdmin(broker).services(),
        *BrokerAdmin(broker).services(),
        *IsterAdmin(broker).services(),
        registry.service(),
    ]
    if topic_sync is not None:

        async def refresh() -> None:
            await schemas.load()
            await topic_sync.refresh()

        owner = partial(owner_of, metadata, root)
        data, admin = ([for_readers(service, refresh, owner) for service in services] for services in (data, admin))
    dependencies = Dependencies(probes_of(metadata, factory))
    announce = None
    if shares_subscriptions and topic_sync is None:
        announce = partial(announce_owner, metadata, root)
    await Serving(broker, ports, producing, validation, dependencies, table_reads, topic_sync).run(
        (data, admin), ready, draining, announce
    )
