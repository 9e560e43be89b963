"""Models of `storage`: catalog, pipeline, table reads and maintenance.

`wal` and `object_store` are synonyms of keys under `wal_cloud`; where both are set, they must be equal.
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from ister.config import validators
from ister.config.keys import (
    Address,
    Clash,
    FilePath,
    Milliseconds,
    OptionName,
    Secret,
    Section,
    Text,
    note_of,
    setting,
)
from ister.core.table.maintenance import GRACE_MS_MAX

FileBytes = Annotated[int, Field(ge=1 << 20, le=1 << 32)]
Patterns = Annotated[
    tuple[Annotated[Text, AfterValidator(validators.topic_pattern)], ...],
    Field(max_length=1000),
    BeforeValidator(validators.split_words),
]


KEY_OF_PROPERTY = {
    "type": "type",
    "catalog-impl": "type",
    "py-catalog-impl": "type",
    "uri": "uri",
    "glue.endpoint": "uri",
    "warehouse": "warehouse",
    "glue.region": "region",
    "jdbc.user": "user",
    "jdbc.password": "password",
    "credential": "credential",
    "token": "token",
}
"""Properties of Iceberg catalogs that have a key of their own, in lower case: Spark ignores case."""


class Catalog(Section):
    """The Iceberg catalog of the tables."""

    type: Literal["rest", "glue", "sql", "memory"] = setting(
        "rest: a catalog service. glue: AWS. sql: SQLite or PostgreSQL. memory: forgotten with the process, for tests.",
        default="sql",
    )
    uri: Annotated[Text, AfterValidator(validators.catalog_uri)] | None = setting(
        "Where the catalog is; with sql and none: the SQLite file `catalog.db` beside `wal.dir`.",
        default=None,
        allowed="http(s)://… with rest and glue; sqlite:///relative/file, sqlite:////absolute/file or "
        "postgresql://host:port/database with sql",
        example="sqlite:///danube-data/catalog.db",
    )
    name: Annotated[Text, AfterValidator(validators.catalog_name)] = setting(
        "Name of the catalog in SQL, and in the catalog's own database.",
        default="ister",
        allowed="letters, digits and _, a letter first",
    )
    warehouse: Annotated[Text, AfterValidator(validators.warehouse)] | None = setting(
        "Location of tables, as `warehouse/namespace/table`; none: with rest, the service chooses it; in the "
        "bucket of the object store; or the directory `warehouse` beside `wal.dir`.",
        default=None,
        allowed="a directory, s3://bucket/prefix, gs://bucket/prefix, "
        "abfss://container@account.dfs.core.windows.net/prefix; with rest also a name",
        example="./danube-data/warehouse",
    )
    region: Text | None = setting(
        "AWS region of the catalog; none: the environment's.", default=None, example="us-east-1", backends=("glue",)
    )
    user: Text | None = setting("User of the database.", default=None, example="ister", backends=("sql",))
    password: Secret | None = setting(
        "The password that belongs to `user`.", default=None, example="${CATALOG_PASSWORD}", backends=("sql",)
    )
    credential: Secret | None = setting(
        "OAuth2 client as `id:secret`, exchanged for a token.",
        default=None,
        example="${CATALOG_CREDENTIAL}",
        backends=("rest",),
    )
    token: Secret | None = setting("A token as it is.", default=None, example="${CATALOG_TOKEN}", backends=("rest",))
    properties: Annotated[Mapping[OptionName, Secret], Field(max_length=64)] = setting(
        "Passed to the catalog as they are, in PyIceberg and in Spark, for whatever has no key here.",
        default={},
        allowed="properties of Iceberg catalogs, each one value",
    )

    def _clashes(self) -> Iterator[Clash]:
        given = self._given()
        if self.type == "rest" and "uri" not in given:
            yield Clash("uri", "type", "is missing; a rest catalog has an address like http://host:8181")
        if "uri" in given and (problem := validators.catalog_uri_problem(self.type, self.uri or "")):
            yield Clash("uri", "type", problem)
        for name in sorted(given):
            belongs = note_of(Catalog.model_fields[name]).backends
            if belongs and self.type not in belongs:
                yield Clash(name, "type", f"belongs to catalog {belongs[0]}, but type is {self.type}; take it out")
        if ("user" in given) != ("password" in given):
            name, needed = ("user", "password") if "user" in given else ("password", "user")
            yield Clash(name, needed, f"needs {needed} too")
        elif "user" in given and not (self.uri or "").startswith("postgresql://"):
            yield Clash("user", "uri", "belongs to a PostgreSQL catalog; SQLite has no users; take it out")
        for name in sorted(self.properties):
            if key := KEY_OF_PROPERTY.get(name.lower()):
                yield Clash("properties", key, f"must not hold {name}, which has a key of its own: set {key} instead")
        if {"credential", "token"} <= given:
            yield Clash("credential", "token", "and token are both given; keep one of them")


class ObjectStore(Section):
    """The object store: synonyms of keys of `wal_cloud.cloud`, which has more; none: the values there."""

    type: Literal["s3", "gcs", "azure", "fs", "memory"] | None = setting(
        "Which store; the same as `wal_cloud.cloud.backend`, where azure is azblob.",
        default=None,
        allowed="s3, gcs, azure, fs, memory",
        example="s3",
    )
    bucket: Annotated[Text, AfterValidator(validators.bucket)] | None = setting(
        "Bucket or container; the first part of `wal_cloud.cloud.root`.",
        default=None,
        example="danube-data",
        backends=("s3", "gcs", "azure"),
    )
    root: Text | None = setting(
        "Prefix in the bucket, or the directory of an fs store; the rest of `wal_cloud.cloud.root`.",
        default=None,
        allowed="a path",
        example="prefix",
    )
    region: Text | None = setting("The same as `wal_cloud.cloud.region`.", default=None, example="us-west-2")
    endpoint: Address | None = setting(
        "The same as `wal_cloud.cloud.endpoint`.",
        default=None,
        allowed="an http:// or https:// address",
        example="http://127.0.0.1:9000",
    )
    access_key: Secret | None = setting(
        "The same as `wal_cloud.cloud.access_key`.", default=None, example="${AWS_ACCESS_KEY_ID}"
    )
    secret_key: Secret | None = setting(
        "The same as `wal_cloud.cloud.secret_key`.", default=None, example="${AWS_SECRET_ACCESS_KEY}"
    )

    def _clashes(self) -> Iterator[Clash]:
        given = self._given()
        for name in sorted(given & {"bucket", "root"}):
            if "type" not in given:
                yield Clash(name, "type", "needs type too")
        if self.type in {"s3", "gcs", "azure"} and "bucket" not in given:
            yield Clash("bucket", "type", f"is missing; {self.type} needs a bucket or container")
        if self.type in {"fs", "memory"} and "bucket" in given:
            yield Clash("bucket", "type", f"belongs to s3, gcs or azure, but type is {self.type}; take it out")


class LakeWal(Section):
    """The log: synonyms of keys of `wal_cloud.wal`; none: the values there."""

    base_path: FilePath | None = setting(
        "The same as `wal_cloud.wal.dir`.", default=None, allowed="a path", example="/var/lib/danube/wal"
    )
    max_file_size: int | None = setting(
        "The same as `wal_cloud.wal.rotation.max_bytes`.", default=None, example="67108864", ge=4096, le=1 << 40
    )
    sync_mode: Literal["always", "periodic", "none"] | None = setting(
        "The same as `wal_cloud.wal.sync_mode`.", default=None, allowed="always, periodic, none", example="periodic"
    )


class Writer(Section):
    """The pipeline that appends messages to their tables."""

    batch_size: int = setting(
        "Messages that may wait in all topics together before a micro-batch begins early.",
        default=1000,
        ge=1,
        le=1 << 31,
    )
    flush_interval_ms: Milliseconds = setting("Milliseconds between two micro-batches.", default=5000)
    max_memory_bytes: int = setting(
        "Bytes that may wait in all topics together before a micro-batch begins early.",
        default=134_217_728,
        ge=1 << 20,
        le=1 << 40,
    )
    min_commit_interval_ms: Milliseconds = setting(
        "Least milliseconds between two micro-batches: each one commits a snapshot to every table that it appends to.",
        default=1000,
    )
    # A task holds some seven times its split (450 MB for 64 MiB), and two run beside each other on a small machine.
    target_file_bytes: FileBytes = setting(
        "Bytes of log that one Parquet file is made from, at most, and so what one task reads; compaction makes larger "
        "files. A worker's memory is several times this.",
        default=67_108_864,
    )
    exclude: Patterns = setting(
        "Topics that get no table, beside those whose policy says `lake: false`; * stands for anything.",
        default=(),
        allowed="patterns of topic names like /default/orders or /default/*, with commas between them or as a list",
        example="/default/debug-*",
    )

    def excludes(self, topic: str) -> bool:
        """Return True if a topic like `/default/orders` gets no table."""
        return any(fnmatchcase(topic, pattern) for pattern in self.exclude)


class ReaderSection(Section):
    """Reads of messages from their tables."""

    poll_interval_ms: Milliseconds = setting(
        "Milliseconds between two polls of the catalog for a new snapshot.", default=1000
    )
    max_concurrent_reads: int = setting("Data files read at the same time.", default=10, ge=1, le=1000)
    prefetch_size: int = setting("Batches read ahead of the consumer.", default=5, ge=1, le=1000)
    on_missing: Literal["fail", "skip"] = setting(
        "What a reader does when the table lacks an offset that it should hold. fail: stop there with an error. skip: continue "
        "after it, with a warning.",
        default="fail",
    )
    object_retention_minutes: int | None = setting(
        "Minutes that an object stays after its table was checked to hold its rows; none: for ever. Only with "
        "`storage.type: iceberg`.",
        default=None,
        allowed="a whole number, from 1 to 52,560,000",
        example="1440",
        ge=1,
        le=52_560_000,
    )


class Maintenance(Section):
    """Scheduled maintenance of tables; `ister lake` runs the same procedures on demand."""

    enabled: bool = setting(
        "Maintain tables on a schedule; when false, they become slower with every micro-batch.", default=True
    )
    interval_minutes: int = setting("Minutes between two rounds.", default=10, ge=1, le=525_600)
    target_file_bytes: FileBytes = setting(
        "Size of the Parquet files that compaction makes.",
        default=134_217_728,
    )
    keep_snapshots: int = setting(
        "Snapshots of a table that maintenance retains at least, whatever their age; more make every commit slower, and so the "
        "pipeline itself keeps 90 to 96.",
        default=50,
        ge=1,
        le=90,
    )
    file_grace_minutes: int = setting(
        "Minutes that a data file stays after it left its table, so that queries that began before can finish. So do the "
        "snapshots around every compaction, which make every commit slower.",
        default=60,
        ge=1,
        le=GRACE_MS_MAX // 60_000,
    )
    orphan_hours: int = setting(
        "Hours after which a file that belongs to no table counts as left over; a commit under way is younger.",
        default=24,
        ge=24,
        le=87_600,
    )


class IcebergConfig(Section):
    """Iceberg tables."""

    catalog: Catalog = Catalog()
    object_store: ObjectStore = ObjectStore()
    wal: LakeWal = LakeWal()
    writer: Writer = Writer()
    reader: ReaderSection = ReaderSection()
    maintenance: Maintenance = Maintenance()


class Storage(Section):
    """The last tier of messages, and whether it is read."""

    type: Literal["wal_cloud", "iceberg"] = setting(
        "wal_cloud: tables are written, and not read back. iceberg: a topic's table is read too, behind log and objects, "
        "and subscriptions' cursors are stored in metadata.",
        default="wal_cloud",
    )
    iceberg_config: IcebergConfig = IcebergConfig()

    def _clashes(self) -> Iterator[Clash]:
        if self.type == "wal_cloud" and self.iceberg_config.reader.object_retention_minutes is not None:
            yield Clash(
                "iceberg_config.reader.object_retention_minutes",
                "type",
                "needs storage.type iceberg: under wal_cloud nobody could read what was deleted; take one of them out",
            )
