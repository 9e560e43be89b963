"""Models of the configuration file: every key with its type, default, bounds and meaning.

The tables of docs/config.md and the file that `ister config init` writes are generated from them.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, StringConstraints

from ister.config import validators
from ister.config.broker_models import AdvertisedListeners, Auth, BrokerSection, DispatchSection, Namespaces, Port
from ister.config.keys import (
    DATA_DIR,
    Address,
    Clash,
    FilePath,
    OptionName,
    Secret,
    Section,
    Text,
    note_of,
    setting,
)
from ister.config.lake_models import ObjectStore, Storage
from ister.config.metadata_models import MetadataSection
from ister.config.policies import CompletePolicies
from ister.core import defaults

CREDENTIALS = {
    "access_key",
    "session_token",
    "profile",
    "role_arn",
    "credentials_json",
    "credentials_path",
    "account_key",
}
BACKEND_OF = {"s3": "s3", "gcs": "gcs", "azure": "azblob", "fs": "fs", "memory": "memory"}
"""The backend of each `object_store.type`."""
SAME_KEYS = {
    "storage.iceberg_config.wal.base_path": "wal_cloud.wal.dir",
    "storage.iceberg_config.wal.max_file_size": "wal_cloud.wal.rotation.max_bytes",
    "storage.iceberg_config.wal.sync_mode": "wal_cloud.wal.sync_mode",
    "storage.iceberg_config.object_store.region": "wal_cloud.cloud.region",
    "storage.iceberg_config.object_store.endpoint": "wal_cloud.cloud.endpoint",
    "storage.iceberg_config.object_store.access_key": "wal_cloud.cloud.access_key",
    "storage.iceberg_config.object_store.secret_key": "wal_cloud.cloud.secret_key",
}
"""Keys of `storage.iceberg_config` that are synonyms of keys under `wal_cloud`."""


class FileSync(Section):
    """Fsync of written bytes."""

    interval_ms: int = setting(
        "Milliseconds between two syncs with `sync_mode: periodic`; also how often the checkpoint is written.",
        default=defaults.FSYNC_INTERVAL_MS,
        ge=1,
        le=86_400_000,
    )
    max_batch_bytes: int = setting(
        "The most bytes that one write takes.", default=defaults.WRITE_BYTES_MAX, ge=1024, le=1 << 30
    )


class Rotation(Section):
    """Rotation of log files."""

    max_bytes: int = setting("Size of a log file, in bytes.", default=defaults.LOG_FILE_BYTES_MAX, ge=4096, le=1 << 40)
    max_hours: float | None = setting(
        "Age of a log file, in hours; none: size alone decides.", default=None, example="24", gt=0, le=87_600
    )


class RetentionSection(Section):
    """Deletion of local files, never before the object store has their messages."""

    time_minutes: int = setting(
        "Delete files older than this, in minutes.", default=defaults.RETENTION_MINUTES, ge=1, le=52_560_000
    )
    size_mb: int = setting(
        "Delete the oldest files when a log is larger than this, in MiB.",
        default=defaults.RETENTION_MB,
        ge=1,
        le=1 << 30,
    )
    check_interval_minutes: int = setting(
        "Minutes between two checks.", default=defaults.RETENTION_CHECK_MINUTES, ge=1, le=525_600
    )


class WalSection(Section):
    """The local write-ahead log."""

    dir: FilePath = setting(
        "Directory of all logs; relative to where Ister is started.", default=DATA_DIR / "wal", allowed="a path"
    )
    file_name: Annotated[str, StringConstraints(max_length=64), AfterValidator(validators.file_name)] = setting(
        "Log files are named after it: `wal.log` gives `wal-<number>-<first offset>.log`. A log that exists keeps its name.",
        default=defaults.LOG_FILE_NAME,
        allowed="a plain name with an extension, which is not `tmp` or `aside`",
    )
    cache_capacity: int = setting(
        "Messages of each topic that are cached in memory for readers.",
        default=defaults.CACHE_CAPACITY,
        ge=1,
        le=100_000_000,
    )
    sync_mode: Literal["always", "periodic", "none"] = setting(
        "always: an acknowledgement waits for the disk. periodic: a sync every `interval_ms`. none: at rotation and close.",
        default=defaults.SYNC_MODE,
    )
    file_sync: FileSync = FileSync()
    rotation: Rotation = Rotation()
    retention: RetentionSection = RetentionSection()


class UploaderSection(Section):
    """The task that uploads the log to the object store."""

    enabled: bool = setting("Upload at all; when false, nothing is deleted locally and the log grows.", default=True)
    interval_seconds: int = setting(
        "Seconds between two uploads.", default=defaults.UPLOAD_INTERVAL_S, ge=1, le=31_536_000
    )
    root_prefix: Annotated[Text, AfterValidator(validators.key_prefix)] = setting(
        "What the keys of object descriptors in the metadata store begin with.",
        default=defaults.ROOT_PREFIX,
        allowed="a path that begins with /",
    )
    max_object_mb: int | None = setting(
        "Cap on an object's size, in MiB; objects have at most 16 MiB anyway, so only less has an effect.",
        default=None,
        example="8",
        ge=1,
        le=1 << 20,
    )


class Cloud(Section):
    """The object store."""

    backend: Annotated[Text, AfterValidator(validators.service)] = setting(
        "Which store.", default="fs", allowed="s3, gcs, azblob, fs, memory, or any other OpenDAL service"
    )
    root: Text = setting(
        "Where in the store: bucket and prefix, container and prefix, or a directory.",
        default=f"{DATA_DIR}/objects",
        allowed="s3://bucket/prefix, gcs://bucket/prefix, container/prefix, a directory for fs, any name for memory",
    )
    endpoint: Address | None = setting(
        "Address of the store, when it is not the provider's own.",
        default=None,
        allowed="an http:// or https:// address",
        example="https://s3.us-east-1.amazonaws.com",
        backends=("s3", "gcs", "azblob"),
    )
    region: Text | None = setting("Region of the bucket.", default=None, example="us-east-1", backends=("s3",))
    access_key: Secret | None = setting(
        "Access key; none: from the provider's own environment or identity.",
        default=None,
        example="${AWS_ACCESS_KEY_ID}",
        backends=("s3",),
    )
    secret_key: Secret | None = setting(
        "The secret that belongs to `access_key`.", default=None, example="${AWS_SECRET_ACCESS_KEY}", backends=("s3",)
    )
    session_token: Secret | None = setting(
        "Token of temporary credentials.", default=None, example="${AWS_SESSION_TOKEN}", backends=("s3",)
    )
    profile: Text | None = setting(
        "Profile in the provider's own credentials file.", default=None, example="default", backends=("s3",)
    )
    role_arn: Text | None = setting(
        "Role to take on.", default=None, example="arn:aws:iam::123456789012:role/ister", backends=("s3",)
    )
    anonymous: bool = setting(
        "Send no credentials; for public buckets.", default=False, backends=("s3", "gcs", "azblob")
    )
    virtual_host_style: bool = setting(
        "Put the bucket into the host name rather than the path.", default=False, backends=("s3",)
    )
    project: Text | None = setting("Project of the bucket.", default=None, example="my-gcp-project", backends=("gcs",))
    credentials_json: Secret | None = setting(
        "Credentials as JSON text.", default=None, example="${GCS_CREDENTIALS_JSON}", backends=("gcs",)
    )
    credentials_path: FilePath | None = setting(
        "File with the credentials.", default=None, allowed="a path", example="/path/to/creds.json", backends=("gcs",)
    )
    account_name: Text | None = setting("Name of the account.", default=None, example="myaccount", backends=("azblob",))
    account_key: Secret | None = setting(
        "Key of the account.", default=None, example="${AZURE_ACCOUNT_KEY}", backends=("azblob",)
    )
    options: Annotated[Mapping[OptionName, Secret], Field(max_length=64)] = setting(
        "Passed to OpenDAL as they are, for whatever has no key here.",
        default={},
        allowed="the options of the OpenDAL service, each one value",
    )

    def absolute_root(self) -> str:
        """Return the root, absolute if it is a directory."""
        return str(Path(self.root).absolute()) if self.backend == "fs" else self.root

    def revealed_options(self) -> dict[str, str]:
        """Return all options but backend and root, by our names or OpenDAL's, *secrets in the clear*: for the store."""
        return self.public_options() | self.secret_options()

    def public_options(self) -> dict[str, str]:
        """Return the options that are not secret."""
        given = {name: getattr(self, name) for name in type(self).model_fields.keys() - {"backend", "root", "options"}}
        shown = {
            name: value
            for name, value in given.items()
            if not isinstance(value, SecretStr | None) and value is not False
        }
        return {name: "true" if value is True else str(value) for name, value in shown.items()}

    def secret_options(self) -> dict[str, str]:
        """Return the secret options, *in the clear*; unknown options count as secret."""
        given = {name: getattr(self, name) for name in type(self).model_fields.keys() - {"backend", "root", "options"}}
        secrets = {**self.options, **{name: value for name, value in given.items() if isinstance(value, SecretStr)}}
        return {name: secret.get_secret_value() for name, secret in secrets.items()}

    def _clashes(self) -> Iterator[Clash]:
        given = self._given()
        needs_bucket = self.backend in {"s3", "gcs", "azblob"}
        if needs_bucket and "root" not in given:
            yield Clash("root", "backend", f"is missing; backend {self.backend} needs a bucket or container")
        elif problem := validators.root_problem(self.backend, self.root):
            yield Clash("root", "backend", problem)
        for name in sorted(given):
            belongs = note_of(Cloud.model_fields[name]).backends
            if belongs and self.backend not in belongs and getattr(self, name) is not False:
                home = "put it under options" if self.backend not in validators.BACKENDS else "take it out"
                whose = " or ".join(belongs)
                yield Clash(name, "backend", f"belongs to backend {whose}, but backend is {self.backend}; {home}")
            elif name in self.options:
                yield Clash(name, "options", "stands under options too; keep one of them")
        for name, needed in (
            ("access_key", "secret_key"),
            ("secret_key", "access_key"),
            ("session_token", "access_key"),
            ("account_key", "account_name"),
        ):
            if name in given and needed not in given:
                yield Clash(name, needed, f"needs {needed} too")
        if self.anonymous:
            for name in sorted(given & CREDENTIALS):
                if self.backend in note_of(Cloud.model_fields[name]).backends:
                    yield Clash(name, "anonymous", "contradicts anonymous: true; keep one of them")
        if {"credentials_json", "credentials_path"} <= given:
            yield Clash("credentials_json", "credentials_path", "and credentials_path are both given; keep one of them")


class WalCloud(Section):
    """The log, the uploader, the object store and the metadata."""

    wal: WalSection = WalSection()
    uploader: UploaderSection = UploaderSection()
    cloud: Cloud = Cloud()
    metadata: MetadataSection = MetadataSection()


class Config(Section):
    """Addresses of the broker, and its initial state."""

    cluster_name: Text = setting(
        "Name of the cluster: a label of the metric `ister_broker_info`, and a field of the event `broker_recovered`.",
        default="ister",
    )
    broker_host: Annotated[Text, AfterValidator(validators.listen_host)] = setting(
        "Name or address to listen on, for clients, administration and metrics alike; 0.0.0.0: all of this machine's.",
        default="127.0.0.1",
        allowed="a host name or an IP address",
    )
    broker_port: Port = setting("Port for clients; 0: any that is free.", default=defaults.BROKER_PORT)
    admin_port: Port = setting("Port for administration; 0: any that is free.", default=defaults.ADMIN_PORT)
    prom_port: Annotated[Port | None, BeforeValidator(validators.none_word)] = setting(
        "Port for metrics and health; 0: any that is free; none: off.",
        default=9040,
        allowed="a whole number, from 0 to 65,535, or none",
    )
    bootstrap_namespaces: Namespaces = setting(
        "Namespaces that are made at the start, beside `default` and `system`.",
        default=("default",),
        allowed="names, with commas between them or as a list",
    )
    auto_create_topics: bool = setting("Make a topic when a producer names one that is not there.", default=True)
    advertised_listeners: AdvertisedListeners = AdvertisedListeners()
    auth: Auth = Auth()
    dispatch: DispatchSection = DispatchSection()
    broker: BrokerSection = BrokerSection()
    policies: CompletePolicies = CompletePolicies()
    wal_cloud: WalCloud = WalCloud()
    storage: Storage = Storage()

    def _clashes(self) -> Iterator[Clash]:
        for one, two in (("admin_port", "broker_port"), ("prom_port", "broker_port"), ("prom_port", "admin_port")):
            if getattr(self, one) and getattr(self, one) == getattr(self, two):
                yield Clash(one, two, f"is also {two}; give each its own port, or 0 for any that is free")
        for key, other in SAME_KEYS.items():
            mine, theirs = _value(self, key), _value(self, other)
            if mine is not None and theirs is not None and mine != theirs and _is_given(self, other):
                yield Clash(key, other, f"contradicts {other}, which is the same setting; keep one of them")
        store, cloud = self.storage.iceberg_config.object_store, self.wal_cloud.cloud
        place, other = "storage.iceberg_config.object_store", "wal_cloud.cloud"
        if store.type is None:
            return
        if "backend" in cloud.model_fields_set and BACKEND_OF[store.type] != cloud.backend:
            yield Clash(
                f"{place}.type", f"{other}.backend", f"contradicts {other}.backend; there is one object store, keep one"
            )
        elif "root" in cloud.model_fields_set and not _same_root(store, cloud.root):
            key = "root" if store.bucket is None else "bucket"
            yield Clash(
                f"{place}.{key}", f"{other}.root", f"contradicts {other}.root; there is one object store, keep one"
            )

    def policy_defaults(self) -> CompletePolicies:
        """Return the policies of a topic without policies of its own or of its namespace."""
        level = self.policies.ack_level or ("fsync" if self.wal_cloud.wal.sync_mode == "always" else "wal")
        return self.policies.model_copy(update={"ack_level": level})


def store_root(kind: str, bucket: str, root: str) -> str:
    """Return `wal_cloud.cloud.root` for a bucket and a prefix, or a directory."""
    if kind in {"fs", "memory"}:
        return root
    scheme = {"s3": "s3://", "gcs": "gcs://"}.get(kind, "")
    return f"{scheme}{bucket}/{root.strip('/')}".rstrip("/")


def _same_root(store: ObjectStore, root: str) -> bool:
    if store.bucket is None:
        return store.root is None or Path(store.root) == Path(root)
    given = root.replace("gs://", "gcs://", 1) if root.startswith("gs://") else root
    whole = store_root(store.type or "", store.bucket, store.root or "")
    if store.root is None:
        return f"{given.rstrip('/')}/".startswith(f"{whole}/")
    return given.rstrip("/") == whole


def _value(config: Config, key: str) -> object:
    found: object = config
    for part in key.split("."):
        found = getattr(found, part)
    return found


def _is_given(config: Config, key: str) -> bool:
    section, _, name = key.rpartition(".")
    found = _value(config, section)
    return isinstance(found, Section) and name in found.model_fields_set
