"""A broker process: its components, assembled from a configuration, and its life until SIGTERM."""

from __future__ import annotations

import asyncio
import os
import resource
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from ister.broker.server import Listening, Ports
from ister.broker.server import serve as run_broker
from ister.broker.settings import BrokerSettings
from ister.config import advice
from ister.config.environment import TOKEN_VARIABLE
from ister.core.errors import InvalidConfigError
from ister.runtime.compose import open_metadata, open_stores, open_tables, require_usable, topics_config
from ister.runtime.identity import claim_directory
from ister.storage.factory import WalStorageFactory
from ister.storage.lake_factory import LakeConfig, LakeStorageFactory

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.config import Config, Loaded
    from ister.runtime.pipeline_child import PipelineChild

FILES_MAX = 1 << 20
"""No broker needs more open files; some systems allow a thousand times as many, which makes child processes slow."""


def serve(
    loaded: Loaded, ready: Callable[[Listening], None], warn: Callable[[str], None], child: PipelineChild | None
) -> None:
    """Serve until SIGTERM or SIGINT; the child, if there is one, runs as long as the broker does."""
    require_usable(loaded)
    _prepare(loaded, warn)
    asyncio.run(_serve(loaded.config, ready, child))


def serve_read_only(loaded: Loaded, ready: Callable[[Listening], None], warn: Callable[[str], None]) -> None:
    """Serve subscriptions from the tables until SIGTERM or SIGINT; nothing on this machine's disk is opened."""
    require_usable(loaded)
    require_shared(loaded.config)
    _prepare(loaded, warn)
    asyncio.run(_serve_read_only(loaded.config, ready))


def _prepare(loaded: Loaded, warn: Callable[[str], None]) -> None:
    for warning in advice(loaded):
        warn(str(warning))
    raise_open_files()


def require_shared(config: Config) -> None:
    """Refuse read-only mode where no other broker could own the topics, or no table is read."""
    if config.wal_cloud.metadata.kind != "etcd":
        raise InvalidConfigError(
            "wal_cloud.metadata.etcd_endpoint",
            "is missing; --read-only needs the metadata of the broker that owns the topics, and only etcd can be shared: "
            "set it to the endpoints that the owner uses",
        )
    if config.storage.type != "iceberg":
        raise InvalidConfigError(
            "storage.type",
            f"is {config.storage.type}; --read-only serves from the tables alone: set it to iceberg, here and at the owner",
        )


async def _serve_read_only(config: Config, ready: Callable[[Listening], None]) -> None:
    async with AsyncExitStack() as stack:
        metadata = await open_metadata(config, read_only=False)
        stack.push_async_callback(metadata.close)
        reads = open_tables(config)
        assert reads is not None, "require_shared insists on it"
        stack.callback(reads.close)
        lake = LakeConfig(
            config.wal_cloud.uploader.root_prefix, config.storage.iceberg_config.reader.poll_interval_ms / 1000
        )
        await run_broker(
            replace(broker_settings(config), auto_create_topics=False),
            ports(config),
            factory=LakeStorageFactory(lake, metadata=metadata, tables=reads.table),
            metadata=metadata,
            ready=ready,
            table_reads=reads.seen,
            shares_subscriptions=True,
        )


async def _serve(config: Config, ready: Callable[[Listening], None], child: PipelineChild | None) -> None:
    def listening(where: Listening) -> None:
        if child is not None:
            child.begin(where.broker_url, where.has_pipeline)
        ready(where)

    async with AsyncExitStack() as stack:
        if child is not None:
            stack.push_async_callback(child.end)
        store, metadata, reads = await stack.enter_async_context(open_stores(config))
        await claim_directory(metadata, config)
        factory = WalStorageFactory(
            topics_config(config), store=store, metadata=metadata, tables=None if reads is None else reads.table
        )
        await run_broker(
            broker_settings(config),
            ports(config),
            factory=factory,
            metadata=metadata,
            ready=listening,
            draining=(lambda: None) if child is None else child.terminate,
            pipeline_token=os.environ.get(TOKEN_VARIABLE) if child is None else child.token,
            table_reads=None if reads is None else reads.seen,
            shares_subscriptions=reads is not None and config.wal_cloud.metadata.kind == "etcd",
        )


def broker_settings(config: Config) -> BrokerSettings:
    """Return the settings of the broker."""
    broker, advertised = config.broker, config.advertised_listeners
    return BrokerSettings(
        cluster_name=config.cluster_name,
        broker_url=advertised.broker_url,
        connect_url=advertised.connect_url,
        auto_create_topics=config.auto_create_topics,
        bootstrap_namespaces=config.bootstrap_namespaces,
        policies=config.policy_defaults(),
        max_unacked_messages=config.dispatch.max_unacked_messages,
        consumer_grace_s=broker.consumer_grace_ms / 1000,
        consumer_expiry_s=broker.consumer_expiry_ms / 1000,
        producer_expiry_s=broker.producer_expiry_ms / 1000,
        volatile_subscription_expiry_s=broker.volatile_subscription_expiry_ms / 1000,
        cursor_interval_s=broker.cursor_interval_ms / 1000,
        non_reliable_queue=broker.non_reliable_queue,
    )


def ports(config: Config) -> Ports:
    """Return the addresses that the broker listens on, and the limits of its connections."""
    return Ports(
        host=config.broker_host,
        broker=config.broker_port,
        admin=config.admin_port,
        metrics=config.prom_port,
        message_bytes_max=config.broker.message_bytes_max,
        keepalive_s=config.broker.keepalive_interval_ms / 1000,
        keepalive_timeout_s=config.broker.keepalive_timeout_ms / 1000,
        drain_timeout_s=config.broker.drain_timeout_ms / 1000,
    )


def raise_open_files() -> None:
    """Raise the soft limit of open files to the hard one: each topic has some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
