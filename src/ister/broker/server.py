"""Serve: recover every topic, listen, and when told to stop, drain.

The order matters. The port for probes answers first, so that a slow recovery can be watched. Clients are let in last, when
every topic is there: a client that is told "not found" gives up.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import structlog

from ister.broker.admin_brokers import AdminBrokers
from ister.broker.admin_namespaces import AdminNamespaces
from ister.broker.admin_topics import AdminTopics
from ister.broker.binding import serve as bind
from ister.broker.broker import Broker
from ister.broker.collecting import Collecting
from ister.broker.consuming import Consuming
from ister.broker.dependencies import Dependencies, probes_of
from ister.broker.discovery import Discovery
from ister.broker.holders import announce_owner, owner_of
from ister.broker.http import HttpServer, routes
from ister.broker.lag import LoopLag
from ister.broker.memory import map_large_buffers
from ister.broker.metrics import Metrics
from ister.broker.producing import Producing
from ister.broker.read_only import for_readers
from ister.broker.records import Records
from ister.broker.schema_store import SchemaStore
from ister.broker.schemas import SchemaRegistry
from ister.broker.storage_service import StorageService
from ister.broker.v1_admin import V1Admin
from ister.broker.v1_storage import V1Storage
from ister.broker.validation import Validation
from ister.broker.views import Readiness
from ister.config.forms import reachable_host

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from ister.broker.binding import Server
    from ister.broker.service import Service
    from ister.broker.settings import BrokerSettings
    from ister.broker.topic import Topic
    from ister.broker.views import TableCounters
    from ister.ports.metadata import Metadata
    from ister.storage.factory import WalStorageFactory
    from ister.storage.lake_factory import LakeStorageFactory

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where to listen; 0 takes any port that is free, None for metrics: nowhere."""

    host: str = "127.0.0.1"
    broker: int = 6650
    admin: int = 50051
    metrics: int | None = 9040
    message_bytes_max: int = 4 * 1024 * 1024 - 4096
    keepalive_s: float = 30.0
    keepalive_timeout_s: float = 10.0
    drain_timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a broker listens, and what it found."""

    broker_url: str
    admin_url: str
    metrics_url: str | None
    topics: int
    problems: Mapping[str, str] = field(default_factory=dict)
    has_pipeline: Callable[[], bool] = lambda: False
    """Tells whether a pipeline is at work now."""


class Serving:
    """A broker with its ports: starting, serving, draining."""

    def __init__(
        self,
        broker: Broker,
        ports: Ports,
        producing: Producing,
        validation: Validation,
        dependencies: Dependencies,
        table_reads: TableCounters | None = None,
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
        self._missing: list[str] = ["recovery"]
        self._data: Server | None = None
        self._admin: Server | None = None

    # --- what metrics and probes ask (views.BrokerView) ---------------------------------------------------------------

    def topics(self) -> Iterable[Topic]:
        """Return every topic."""
        return list(self.broker.topics.values())

    def readiness(self) -> Readiness:
        """Tell whether clients should come here."""
        topics = self.broker.topics.values()
        problems = {topic.name: topic.problem for topic in topics if topic.problem is not None}
        stopped = {topic.name: error for topic in topics if (error := topic.upload_problem) is not None}
        degraded = {*self._dependencies.failing, *(["uploads"] if stopped else [])}
        return Readiness(
            missing=tuple(self._missing),
            draining=self.broker.draining,
            topics=len(topics) - len(problems),
            problems=problems,
            degraded=sorted(degraded),
            uploads_stopped=stopped,
        )

    # --- running ------------------------------------------------------------------------------------------------------

    async def run(
        self,
        services: tuple[list[Service], list[Service]],
        ready: Callable[[Listening], None],
        draining: Callable[[], None],
        announce: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """Serve until SIGTERM or SIGINT, then drain; `announce` is told the address once there is one."""
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
            collecting = Collecting()
            stack.callback(collecting.stop)
            collecting.pause()
            self._dependencies.start()
            stack.push_async_callback(self._dependencies.stop)
            await self.broker.start()
            self._missing = ["ports"]
            try:
                self._data = await self._listen(services[0], ports.broker)
                self.broker.url = self.broker.url or f"http://{reachable_host(ports.host)}:{self._data.port}"
                self._admin = await self._listen(services[1], ports.admin)
                if announce is not None:
                    await announce(self.broker.url)
                self._missing = []
                collecting.start()
                topics = self.broker.topics.values()
                problems = {topic.text: str(topic.problem) for topic in topics if topic.problem is not None}
                admin_url = f"http://{reachable_host(ports.host)}:{self._admin.port}"
                self.broker.admin_url, self.broker.metrics_url = admin_url, metrics_url or ""
                has_pipeline = self.broker.pipelines.has_owner
                ready(Listening(self.broker.url, admin_url, metrics_url, len(topics), problems, has_pipeline))
                await stop.wait()
                log.info("broker_draining")
                draining()
            finally:
                await self._drain()

    async def _listen(self, services: list[Service], port: int) -> Server:
        ports = self._ports
        return await bind(
            services,
            host=ports.host,
            port=port,
            message_bytes_max=ports.message_bytes_max,
            keepalive_s=ports.keepalive_s,
            keepalive_timeout_s=ports.keepalive_timeout_s,
            rpcs=self.rpcs,
        )

    async def _drain(self) -> None:
        """Stop taking, then make everything durable, then carry away what time allows."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.broker.draining = True
        grace_s = self._ports.drain_timeout_s / 5
        # Whoever waits for a table is answered before calls are cut off: a client sends again what was cut off.
        ending = loop.call_later(grace_s / 2, self.broker.pipelines.end)
        servers = [server for server in (self._data, self._admin) if server is not None]
        for server in servers:
            server.drain()
        await asyncio.gather(*(server.stop(grace_s) for server in servers))
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
    table_reads: TableCounters | None = None,
    shares_subscriptions: bool = False,
) -> None:
    """Run a broker over this storage until it is told to stop; a pipeline that has the token is told of files.

    With `shares_subscriptions` other brokers on the same metadata may serve them too, each the ones that it holds.
    """
    root = factory.config.root_prefix
    schemas = SchemaStore(metadata, root)
    await schemas.load()
    broker = Broker(
        settings, factory, Records(metadata, root), schemas, shared=metadata if shares_subscriptions else None
    )
    registry = SchemaRegistry(schemas, broker)
    validation = Validation(schemas)
    producing = Producing(broker, validation)
    data = [
        producing.service(),
        Consuming(broker).service(),
        *Discovery(broker).services(),
        *StorageService(broker).services(),
        registry.service(),
        *V1Storage(broker, token=pipeline_token).services(),
    ]
    admin = [
        *AdminTopics(broker).services(),
        *AdminNamespaces(broker).services(),
        *AdminBrokers(broker).services(),
        *V1Admin(broker).services(),
        registry.service(),
    ]
    following = broker.following
    if following is not None:

        async def look() -> None:
            await schemas.load()
            await following.refresh()

        owner = partial(owner_of, metadata, root)
        data, admin = ([for_readers(service, look, owner) for service in services] for services in (data, admin))
    dependencies = Dependencies(probes_of(metadata, factory))
    announce = None
    if shares_subscriptions and following is None:
        announce = partial(announce_owner, metadata, root)
    await Serving(broker, ports, producing, validation, dependencies, table_reads).run(
        (data, admin), ready, draining, announce
    )
