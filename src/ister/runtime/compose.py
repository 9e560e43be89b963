"""Ports and options from a configuration, and the check that a broker could start with it."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ister.cloud import Retention, UploadOptions
from ister.config import ConfigError, Problem
from ister.config.catalog import catalog_properties, local_warehouse, require_shared_catalog, sqlite_file
from ister.core.errors import InputError, InvalidConfigError
from ister.ports.files.files import OsFiles
from ister.ports.metadata import MemoryMetadata, SqliteMetadata
from ister.ports.objects import RetryOptions, StoreSettings
from ister.ports.objects import open_store as open_objects
from ister.storage.factory import TopicsConfig
from ister.wal import WalConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from pyiceberg.catalog import Catalog

    from ister.config import Config, Loaded
    from ister.lake.topic_table import TableReads
    from ister.ports.metadata import Metadata
    from ister.ports.objects import CloudStore


class Stores(NamedTuple):
    """The object store, the metadata, and the readers of tables, None where tables are not read."""

    objects: CloudStore
    metadata: Metadata
    tables: TableReads | None


@asynccontextmanager
async def open_stores(
    config: Config, *, read_only: bool = False, retry: RetryOptions | None = None
) -> AsyncIterator[Stores]:
    """Open the stores of a configuration."""
    async with AsyncExitStack() as stack:
        objects = open_store(config, retry=retry)
        stack.push_async_callback(objects.close)
        metadata = await open_metadata(config, read_only=read_only)
        stack.push_async_callback(metadata.close)
        tables = open_tables(config)
        if tables is not None:
            stack.callback(tables.close)
        yield Stores(objects, metadata, tables)


def open_store(config: Config, *, retry: RetryOptions | None = None) -> CloudStore:
    """Return the object store; makes no request yet."""
    cloud = config.wal_cloud.cloud
    return open_objects(StoreSettings(cloud.backend, cloud.root, cloud.revealed_options()), retry=retry)


async def open_metadata(config: Config, *, read_only: bool) -> Metadata:
    """Open the metadata store.

    Read-only: a missing SQLite file is not created, and metadata in memory is refused. For writing: a SQLite file has one
    writer (LockedError names it); etcd has no such lock.
    """
    metadata = config.wal_cloud.metadata
    match metadata.kind:
        case "memory" if read_only:
            raise InputError(
                "metadata.in_memory",
                "keeps metadata in the memory of the broker, where no other process can read it; use SQLite or etcd",
            )
        case "memory":
            return MemoryMetadata()
        case "sqlite":
            path = metadata.sqlite_file
            if not read_only:
                OsFiles().make_directory(path.parent)
            elif not path.exists():
                raise InputError(
                    str(path),
                    "does not exist, so no topic is known; check --data-dir or --config, and if the metadata was lost, "
                    "run `ister objects rebuild`",
                )
            return await SqliteMetadata.open(path, read_only)
        case "etcd":
            from ister.ports.metadata.etcd import EtcdMetadata  # noqa: PLC0415  # gRPC costs half a second

            return await EtcdMetadata.open(
                metadata.etcd_endpoint or (),
                ca=metadata.etcd_ca,
                cert=metadata.etcd_cert,
                key=metadata.etcd_key,
                user=metadata.etcd_user,
                password=None if metadata.etcd_password is None else metadata.etcd_password.get_secret_value(),
                root=config.wal_cloud.uploader.root_prefix,
                read_only=read_only,
            )


def open_tables(config: Config) -> TableReads | None:
    """Return the readers of tables, None where they are not read; makes no request to the catalog yet."""
    if config.storage.type != "iceberg":
        return None
    require_shared_catalog(config, "storage.type iceberg")
    from ister.lake.catalog import LazyLakeCatalog  # noqa: PLC0415  # a second, and only this storage type needs it
    from ister.lake.topic_table import ReaderOptions, TableReads  # noqa: PLC0415  # the same

    reader = config.storage.iceberg_config.reader
    options = ReaderOptions(
        reader.poll_interval_ms / 1000, reader.max_concurrent_reads, reader.prefetch_size, reader.on_missing
    )
    return TableReads(LazyLakeCatalog(*catalog_properties(config)), options)


@contextmanager
def open_catalog(config: Config) -> Iterator[Catalog | None]:
    """Open the catalog to read tables; None when its SQLite file does not exist, which is not created."""
    from ister.lake.catalog import LakeCatalog  # noqa: PLC0415  # as above

    file = sqlite_file(config)
    if file is not None and not file.exists():
        yield None
        return
    lake = LakeCatalog.open(*catalog_properties(config))
    try:
        yield lake.catalog
    finally:
        lake.close()


def topics_config(config: Config) -> TopicsConfig:
    """Return the settings that all topics share."""
    wal, uploader = config.wal_cloud.wal, config.wal_cloud.uploader
    object_retention_minutes = config.storage.iceberg_config.reader.object_retention_minutes
    return TopicsConfig(
        wal=WalConfig(
            dir=wal.dir,
            file_name=wal.file_name,
            cache_capacity=wal.cache_capacity,
            fsync_interval_ms=wal.file_sync.interval_ms,
            max_batch_bytes=wal.file_sync.max_batch_bytes,
            max_bytes=wal.rotation.max_bytes,
            max_hours=wal.rotation.max_hours,
            sync_mode=wal.sync_mode,
        ),
        upload=UploadOptions(
            enabled=uploader.enabled,
            interval_s=float(uploader.interval_seconds),
            max_object_mb=uploader.max_object_mb,
        ),
        retention=Retention(**dict(wal.retention)),
        root_prefix=uploader.root_prefix,
        cloud_timeout_s=config.policies.ack_timeout_ms / 1000,
        drain_timeout_s=config.broker.drain_timeout_ms / 1000,
        object_retention_s=None if object_retention_minutes is None else object_retention_minutes * 60.0,
    )


def require_usable(loaded: Loaded) -> None:
    """Refuse a configuration that a broker could not start with, as far as that is known without a request to any service.

    `ister config check` and `ister serve` both call it, so that neither accepts what the other refuses. ConfigError has every
    problem, with its line.
    """
    config = loaded.config
    checks: tuple[Callable[[], object], ...] = (
        lambda: require_shared_catalog(config, "ister serve"),
        lambda: catalog_properties(config),
        lambda: open_store(config),
        lambda: topics_config(config),
        lambda: _require_host(config.broker_host),
        lambda: _require_paths(config),
    )
    problems = []
    for check in checks:
        try:
            check()
        except InvalidConfigError as error:
            problems.append(Problem(loaded.origin(error.setting).line, error.setting, error.reason))
    if problems:
        raise ConfigError(loaded.source or "the defaults", problems)


def _require_host(host: str) -> None:
    try:
        socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidConfigError(
            "broker_host", f"is not known on this machine ({error.strerror}); check its spelling"
        ) from None


def _require_paths(config: Config) -> None:
    """Refuse directories that are files, files that are directories, and certificates that do not exist."""
    wal_cloud, metadata = config.wal_cloud, config.wal_cloud.metadata
    directories = [("wal_cloud.wal.dir", wal_cloud.wal.dir)]
    if wal_cloud.cloud.backend == "fs":
        directories.append(("wal_cloud.cloud.root", Path(wal_cloud.cloud.root)))
    if (warehouse := local_warehouse(config)) is not None:
        directories.append(("storage.iceberg_config.catalog.warehouse", warehouse))
    created = []
    if metadata.kind == "sqlite":
        created.append(("wal_cloud.metadata.sqlite_path", metadata.sqlite_file))
    if (file := sqlite_file(config)) is not None:
        created.append(("storage.iceberg_config.catalog.uri", file))
    for setting, path in directories + [(setting, path.parent) for setting, path in created]:
        existing = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
        if not existing.is_dir():
            raise InvalidConfigError(
                setting, f"leads through {existing}, which is not a directory; choose another place"
            )
    for setting, path in created:
        if path.is_dir():
            raise InvalidConfigError(setting, f"is {path}, which is a directory; give the path of a file")
    needed = [(f"wal_cloud.metadata.{name}", getattr(metadata, name)) for name in ("etcd_ca", "etcd_cert", "etcd_key")]
    needed.append(("wal_cloud.cloud.credentials_path", wal_cloud.cloud.credentials_path))
    for setting, path in needed:
        if path is not None and not path.is_file():
            raise InvalidConfigError(setting, f"is {path}, and there is no such file; check the path")


def missing_store(config: Config) -> str:
    """Return why an object store cannot be listed, or "": an unmounted disk is not a store without objects."""
    cloud = config.wal_cloud.cloud
    if cloud.backend == "memory":
        return "it is in the memory of the broker, where no other process can read it"
    if cloud.backend == "fs" and not Path(cloud.root).is_dir():
        return "there is no such directory"
    return ""
