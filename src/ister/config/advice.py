"""Warnings about a valid configuration, in file order."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ister.config.load import FROM_DATA_DIR
from ister.config.problems import Problem
from ister.config.validators import EVERYWHERE
from ister.config.values import values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ister.config.load import Loaded

UPLOADS_BEFORE_DELETION_MIN = 4
"""Local files should outlive this many upload cycles, to tolerate an outage of the store."""


def advice(loaded: Loaded) -> list[Problem]:
    """Return the warnings."""
    found = [
        Problem(loaded.origin(key).line, key, what)
        for key, what in (
            *_listening(loaded),
            *_levels(loaded),
            *_retention(loaded),
            *_volatile(loaded),
            *_plaintext(loaded),
            *_literal_secrets(loaded),
            *_no_effect(loaded),
        )
    ]
    return sorted(found, key=lambda problem: problem.line)


def _listening(loaded: Loaded) -> Iterator[tuple[str, str]]:
    config = loaded.config
    if _is_loopback(config.broker_host):
        return
    yield (
        "broker_host",
        "everyone who can reach this address may use the broker, as there is no authentication yet; guard it by a firewall",
    )
    if config.broker_host in EVERYWHERE and config.advertised_listeners.broker_url is None:
        yield (
            "broker_host",
            "clients on other machines would be told to connect to their own; give advertised_listeners.broker_url",
        )


def _levels(loaded: Loaded) -> Iterator[tuple[str, str]]:
    if loaded.config.policies.ack_level == "cloud" and not loaded.config.wal_cloud.uploader.enabled:
        yield (
            "policies.ack_level",
            "waits for objects, but wal_cloud.uploader.enabled is false; no producer gets an answer",
        )


def _retention(loaded: Loaded) -> Iterator[tuple[str, str]]:
    uploader, retention = loaded.config.wal_cloud.uploader, loaded.config.wal_cloud.wal.retention
    if not uploader.enabled:
        yield (
            "wal_cloud.uploader.enabled",
            "nothing is uploaded, so nothing is deleted locally and the log grows without end; watch the disk",
        )
    elif retention.time_minutes * 60 < UPLOADS_BEFORE_DELETION_MIN * uploader.interval_seconds:
        yield (
            "wal_cloud.wal.retention.time_minutes",
            f"is less than {UPLOADS_BEFORE_DELETION_MIN} upload intervals of {uploader.interval_seconds:,} s; lengthen it",
        )


def _volatile(loaded: Loaded) -> Iterator[tuple[str, str]]:
    cloud, metadata = loaded.config.wal_cloud.cloud, loaded.config.wal_cloud.metadata
    if cloud.backend == "memory":
        if loaded.config.wal_cloud.uploader.enabled:
            yield (
                "wal_cloud.cloud.backend",
                "objects in memory, and what was deleted from the log, are gone when the process ends; use it for tests only",
            )
    elif metadata.in_memory:
        yield (
            "wal_cloud.metadata.in_memory",
            f"the descriptors of objects in {cloud.backend} are forgotten when the process ends; use SQLite or etcd",
        )


def _plaintext(loaded: Loaded) -> Iterator[tuple[str, str]]:
    cloud, metadata = loaded.config.wal_cloud.cloud, loaded.config.wal_cloud.metadata
    keys = (cloud.access_key, cloud.session_token, cloud.account_key, cloud.credentials_json, cloud.credentials_path)
    if any(key is not None for key in keys) and cloud.endpoint is not None:
        address = urlsplit(cloud.endpoint)
        if address.scheme == "http" and not _is_loopback(address.hostname or ""):
            yield "wal_cloud.cloud.endpoint", "requests and messages travel unencrypted; use https://"
    catalog = loaded.config.storage.iceberg_config.catalog
    if catalog.type == "rest" and (catalog.token is not None or catalog.credential is not None):
        address = urlsplit(catalog.uri or "")
        if address.scheme == "http" and not _is_loopback(address.hostname or ""):
            yield "storage.iceberg_config.catalog.uri", "the catalog's token travels unencrypted; use https://"
    if metadata.etcd_password is not None and metadata.etcd_ca is None and metadata.etcd_cert is None:
        hosts = [endpoint.rpartition(":")[0].strip("[]") for endpoint in metadata.etcd_endpoint or ()]
        if not all(_is_loopback(host) for host in hosts):
            yield "wal_cloud.metadata.etcd_password", "travels unencrypted; give etcd_ca for TLS"


def _literal_secrets(loaded: Loaded) -> Iterator[tuple[str, str]]:
    for value in values(loaded):
        if value.is_secret and value.origin.kind == "file":
            yield value.key, "is a secret written into the file; take it from the environment with ${NAME}"


def _no_effect(loaded: Loaded) -> Iterator[tuple[str, str]]:
    if loaded.data_dir is not None and FROM_DATA_DIR not in loaded.given.values():
        yield "--data-dir", "has no effect: the file gives every place itself; take one of them out"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
