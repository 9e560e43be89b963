"""Put a broker together as the configuration asks, run it until it is told to stop, and say where it listens."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shlex
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from ister import __version__
from ister.broker.server import Listening, Ports
from ister.broker.server import serve as run_broker
from ister.broker.settings import BrokerSettings
from ister.cli.compose import open_metadata, open_store, open_tables, require_usable, topics_config
from ister.cli.display import many, notice, printable, say
from ister.cli.options import ADMIN, BROKER
from ister.config import EtcdMetadata, advice
from ister.core.errors import InvalidConfigError
from ister.core.tokens import TOKEN_VARIABLE
from ister.storage.factory import WalStorageFactory
from ister.storage.lake_factory import LakeConfig, LakeStorageFactory

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.cli.supervise import PipelineChild
    from ister.config import Config, Loaded

FILES_MAX = 1 << 20
"""No broker needs more open files; some systems allow a thousand times as many, which makes other programs slow."""


def serve(loaded: Loaded, ready: Callable[[Loaded, Listening, float], None], child: PipelineChild | None) -> None:
    """Serve until SIGTERM or SIGINT; the child, if there is one, runs as long as the broker does."""
    began = time.monotonic()
    require_usable(loaded)
    for warning in advice(loaded):
        notice(f"ister: warning: {printable(str(warning))}")
    raise_open_files()
    asyncio.run(_serve(loaded.config, lambda listening: ready(loaded, listening, time.monotonic() - began), child))


def serve_readers(loaded: Loaded, ready: Callable[[Loaded, Listening, float], None]) -> None:
    """Serve subscriptions from the tables until SIGTERM or SIGINT; nothing on this machine's disk is opened."""
    began = time.monotonic()
    require_usable(loaded)
    require_shared(loaded.config)
    for warning in advice(loaded):
        notice(f"ister: warning: {printable(str(warning))}")
    raise_open_files()
    asyncio.run(_serve_readers(loaded.config, lambda listening: ready(loaded, listening, time.monotonic() - began)))


def require_shared(config: Config) -> None:
    """Refuse to read only where no other broker could own the topics, or no table is read."""
    if not isinstance(config.wal_cloud.metadata.store, EtcdMetadata):
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


async def _serve_readers(config: Config, ready: Callable[[Listening], None]) -> None:
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
        store = open_store(config)
        stack.push_async_callback(store.close)
        metadata = await open_metadata(config, read_only=False)
        stack.push_async_callback(metadata.close)
        reads = open_tables(config)
        if reads is not None:
            stack.callback(reads.close)
        factory = WalStorageFactory(
            topics_config(config), store=store, metadata=metadata, tables=None if reads is None else reads.table
        )
        await run_broker(
            broker_settings(config),
            ports(config),
            factory=factory,
            metadata=metadata,
            ready=listening,
            draining=(lambda: None) if child is None else child.tell_end,
            pipeline_token=os.environ.get(TOKEN_VARIABLE) if child is None else child.token,
            table_reads=None if reads is None else reads.seen,
            shares_subscriptions=reads is not None and isinstance(config.wal_cloud.metadata.store, EtcdMetadata),
        )


def broker_settings(config: Config) -> BrokerSettings:
    """Return how the broker behaves."""
    broker, told = config.broker, config.advertised_listeners
    return BrokerSettings(
        cluster_name=config.cluster_name,
        broker_url=told.broker_url,
        connect_url=told.connect_url,
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
    """Return where the broker listens, and what it takes there."""
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
    """Let this process open as many files as it may: each topic has some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def show_table(loaded: Loaded, listening: Listening, seconds: float) -> None:
    """Say what listens where, and what to try."""
    for topic, problem in listening.problems.items():
        notice(f"ister: warning: {topic} cannot be used: {printable(problem)}")
    data = shlex.quote(printable(str(loaded.home)))
    say(f"Ister {__version__} is ready after {seconds:.1f} s, with {many(listening.topics, 'topic')} in {data}.")
    say()
    _show_addresses(listening)
    broker = "" if listening.broker_url == BROKER else f" --broker {listening.broker_url}"
    admin = "" if listening.admin_url == ADMIN else f" --admin {listening.admin_url}"
    say("Try it from another terminal:")
    say(f"  ister produce /default/hello -m 'Hello, Danube'{broker}")
    say(f"  ister consume /default/hello --from earliest{broker}{admin}")
    say(f"  ister topics list{admin}")
    say("Ctrl-C stops it; what was acknowledged is kept.")
    sys.stdout.flush()


def show_reader_table(loaded: Loaded, listening: Listening, seconds: float) -> None:
    """Say what listens where, of a broker that only reads."""
    del loaded
    topics = many(listening.topics, "topic")
    say(f"Ister {__version__} is ready after {seconds:.1f} s, with {topics}: read-only, from the lake.")
    say()
    _show_addresses(listening)
    admin = "" if listening.admin_url == ADMIN else f" --admin {listening.admin_url}"
    say("Subscribe here; produce to the broker that owns the topics.")
    say(f"  ister topics list{admin}")
    say("Ctrl-C stops it; its subscriptions go on at another broker.")
    sys.stdout.flush()


def _show_addresses(listening: Listening) -> None:
    say(f"  clients         {listening.broker_url}")
    say(f"  administration  {listening.admin_url}")
    say(f"  metrics         {listening.metrics_url + '/metrics' if listening.metrics_url else 'off'}")
    say()


def show_json(loaded: Loaded, listening: Listening, seconds: float) -> None:
    """Write one JSON object as soon as it can be used: a program that started it waits for this line."""
    content = {
        "version": __version__,
        "pid": os.getpid(),
        "data_dir": str(loaded.home),
        "broker_url": listening.broker_url,
        "admin_url": listening.admin_url,
        "metrics_url": listening.metrics_url,
        "topics": listening.topics,
        "problems": dict(listening.problems),
        "seconds": round(seconds, 3),
    }
    say(json.dumps(content, separators=(",", ":")))
    sys.stdout.flush()
