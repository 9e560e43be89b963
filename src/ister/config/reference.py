"""The reference of every key, generated from the models: docs/config.md and the starter file."""

from __future__ import annotations

from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from ister.config.keys import note_of
from ister.config.models import Config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

PLACES = {
    "wal_cloud.wal.dir",
    "wal_cloud.cloud.root",
    "wal_cloud.metadata.sqlite_path",
    "storage.iceberg_config.catalog.uri",
    "storage.iceberg_config.catalog.warehouse",
}
"""The keys whose defaults depend on --data-dir."""

_STARTER_HEAD = """\
# Configuration of Ister, with every key. A line that begins with "# key:" is optional: take out the "# " to set it.
#
# ister config check FILE           is it right?
# ister config show --config FILE   what is in force, and where does each value come from?
#
# "${NAME}" in a value is taken from the environment; write secrets that way.
"""

_HEAD = """\
# Configuration

One YAML file. Everything in it is optional: without a file the broker listens on this machine only, and Ister keeps its
log, its objects, its metadata and its tables below `./danube-data`. This page is made from the code by `python -m ister.config > docs/config.md`; do not edit it.

```
ister config init ister.yml              # write a file with every key, its default and what it does
ister config check ister.yml             # is it right? all problems at once, one line each; exit code 2 if not
ister config show --config ister.yml     # what is in force, and where does each value come from? (-o json)
```

## Where a value comes from

1. **The file.** A key that it sets counts. A relative path is relative to the directory that Ister is started in.
2. **The environment**, where the file asks for it. `${NAME}` works anywhere in any value, also in numbers and in
   true or false: `interval_seconds: "${UPLOAD_EVERY}"`. Several may stand in one value. It does not work in keys. A
   variable that is not set is an error; what a variable holds is not searched for further ones. Write `$${` for the
   characters `${`. No variable is read that the file does not name (the libraries of S3, GCS and Azure may look for
   their own credentials).
3. **`--data-dir D`.** Places that the file does not give are below D: the log in `D/wal`, objects in `D/objects` (with
   backend `fs`), metadata in `D/metadata.db` (without etcd and `in_memory`), the catalog of tables in `D/catalog.db`
   (with catalog `sql`), and the tables in `D/warehouse` (unless the object store has a bucket for them).
4. **The default.** Without `--data-dir`, D is the directory that `wal.dir` lies in, so `./danube-data` when the file
   does not set it.

## What is refused

Keys that are not listed here (the message names the nearest one), keys that stand twice, values outside their bounds,
keys that contradict each other, tags (`!!x`), anchors and aliases (`&x`, `*x`), a second document, more than 1 MiB,
5,000 values or 16 levels. All problems are reported at once, as `FILE:LINE: key: problem; what to do`. No message
repeats a value.

`ister config check` and `ister serve` make the same checks: also whether directories and files can be what the
file says, whether the host is known on this machine, and whether OpenDAL has the store and everything that it
needs. Neither asks a service. A local directory of tables, or of a SQLite catalog, must not have `%`, `#` or `?` in
its path: they stand for something else in a URI. `catalog.properties` must not hold what has a key of its own.

`storage.iceberg_config` speaks of the log (`wal`) and the object store (`object_store`) by its own names. They are the
same settings as those under `wal_cloud`: give them in either place; in both, they must say the same.

`storage.iceberg_config` says where tables are written, whatever `storage.type` is. With `type: iceberg` they are read
back too, and the subscriptions' cursors move into metadata when a topic is opened; with `wal_cloud` they move back.

Secrets (`access_key`, `secret_key`, `session_token`, `credentials_json`, `account_key`, `etcd_password`, the catalog's
`password`, `credential` and `token`, and options and properties whose name has key, secret, token, pass, credential,
sas, auth, connection_string or delegation in it) are shown as `***` everywhere. Take them from the environment; `ister config check` warns about secrets in the file.

An empty value (`key:`, `key: null` or `key: none`) means none where none is allowed, and is an error elsewhere. An empty
section means its defaults. Numbers may be written with `_`: `10_485_760`.
"""

_EXAMPLES = (
    (
        "A broker for other machines",
        """\
cluster_name: "orders"
broker_host: "0.0.0.0"
advertised_listeners:
  broker_url: "http://broker-1.example.com:6650"   # what clients are told to connect to
bootstrap_namespaces: ["default", "shop"]
auto_create_topics: false
policies:                                          # a namespace's or a topic's own policies win
  ack_level: "fsync"
  max_message_size: 1_000_000
""",
    ),
    (
        "Amazon S3",
        """\
wal_cloud:
  cloud:
    backend: "s3"
    root: "s3://my-bucket/prefix"
    region: "us-east-1"
    endpoint: "https://s3.us-east-1.amazonaws.com"   # optional
    access_key: "${AWS_ACCESS_KEY_ID}"               # or leave both out: environment, profile, identity
    secret_key: "${AWS_SECRET_ACCESS_KEY}"
""",
    ),
    (
        "MinIO and other stores that speak S3",
        """\
wal_cloud:
  cloud:
    backend: "s3"
    root: "s3://danube-messages/cluster-data"
    region: "us-east-1"
    endpoint: "http://127.0.0.1:9000"
    access_key: "${MINIO_ACCESS_KEY}"
    secret_key: "${MINIO_SECRET_KEY}"
    virtual_host_style: false
""",
    ),
    (
        "Google Cloud Storage",
        """\
wal_cloud:
  cloud:
    backend: "gcs"
    root: "gcs://my-bucket/prefix"
    project: "my-gcp-project"
    credentials_path: "/path/to/creds.json"   # or credentials_json: "${GCS_CREDENTIALS_JSON}"
""",
    ),
    (
        "Azure Blob Storage",
        """\
wal_cloud:
  cloud:
    backend: "azblob"
    root: "my-container/prefix"               # container[/prefix]
    endpoint: "https://myaccount.blob.core.windows.net"
    account_name: "myaccount"
    account_key: "${AZURE_ACCOUNT_KEY}"
""",
    ),
    (
        "A local directory",
        """\
wal_cloud:
  cloud:
    backend: "fs"
    root: "./object_root"
""",
    ),
    (
        "Memory, for tests",
        """\
wal_cloud:
  cloud:
    backend: "memory"
    root: "mem-prefix"
  metadata:
    in_memory: true
""",
    ),
    (
        "Any other service of OpenDAL",
        """\
wal_cloud:
  cloud:
    backend: "oss"                            # it must be able to store an object only if there is none of that name
    root: "/danube"
    options:                                  # as OpenDAL names them
      bucket: "my-bucket"
      endpoint: "https://oss-eu-central-1.aliyuncs.com"
      access_key_id: "${OSS_ACCESS_KEY_ID}"
      access_key_secret: "${OSS_ACCESS_KEY_SECRET}"
""",
    ),
    (
        "Metadata in etcd, with TLS",
        """\
wal_cloud:
  metadata:
    etcd_endpoint: ["etcd-1:2379", "etcd-2:2379", "etcd-3:2379"]   # or "etcd-1:2379,etcd-2:2379"
    etcd_ca: "/etc/ister/ca.pem"
    etcd_cert: "/etc/ister/client.pem"
    etcd_key: "/etc/ister/client.key"
    etcd_user: "ister"
    etcd_password: "${ETCD_PASSWORD}"
""",
    ),
    (
        "Tables in a REST catalog, on S3",
        """\
storage:
  type: iceberg
  iceberg_config:
    catalog:
      type: rest
      uri: "http://localhost:8181"
    object_store:
      type: s3
      bucket: "danube-data"
      region: "us-west-2"
    wal:
      base_path: "/var/lib/danube/wal"
      max_file_size: 67108864  # 64MB
      sync_mode: periodic
    writer:
      batch_size: 1000
      flush_interval_ms: 5000
      max_memory_bytes: 134217728  # 128MB
    reader:
      poll_interval_ms: 1000
      max_concurrent_reads: 10
      prefetch_size: 5
""",
    ),
    (
        "Tables in a PostgreSQL catalog, on this machine",
        """\
storage:
  iceberg_config:
    catalog:
      type: sql
      uri: "postgresql://127.0.0.1:5432/lake"
      user: "ister"
      password: "${CATALOG_PASSWORD}"
      warehouse: "/srv/warehouse"
    writer:
      exclude: ["/default/debug-*"]           # topics without a table
    maintenance:
      target_file_bytes: 268435456
""",
    ),
    (
        "Objects that go once their table holds the messages",
        """\
storage:
  type: iceberg                               # readers go on in the table
  iceberg_config:
    reader:
      object_retention_minutes: 1440          # a day after the table was checked to hold them
""",
    ),
    (
        "Tables in AWS Glue",
        """\
storage:
  iceberg_config:
    catalog:
      type: glue
      region: "eu-central-1"
      warehouse: "s3://my-bucket/tables"
    object_store:
      type: s3
      bucket: "my-bucket"
      root: "log"
      region: "eu-central-1"
""",
    ),
)


class KeyDoc(NamedTuple):
    """One key: its default and an example as YAML (empty: none), its meaning and its allowed values."""

    name: str
    path: str
    default: str
    example: str
    what: str
    allowed: str


class SectionDoc(NamedTuple):
    """One section; `inner` are its subsections."""

    path: str
    what: str
    keys: tuple[KeyDoc, ...]
    inner: tuple[SectionDoc, ...]


def reference() -> str:
    """Return the text of docs/config.md."""
    parts = [_HEAD, "## Keys\n"]
    parts += ["\n".join(_table(section)) + "\n" for section in every_section(whole_file()) if section.keys]
    parts.append("## Examples\n")
    parts += [f"### {title}\n\n```yaml\n{text}```\n" for title, text in _EXAMPLES]
    return "\n".join(parts)


def _table(section: SectionDoc) -> Iterator[str]:
    yield f"### `{section.path}`" if section.path else "### At the top of the file"
    yield ""
    yield section.what
    yield ""
    yield "| key | default | what it does | allowed |"
    yield "|---|---|---|---|"
    for key in section.keys:
        yield f"| `{key.name}` | {_default(key)} | {key.what} | {key.allowed} |"


def _default(key: KeyDoc) -> str:
    if key.path in PLACES:
        return f"`{key.default or key.example}`, or below `--data-dir`"
    return f"`{key.default}`" if key.default else "none"


def starter() -> str:
    """Return a configuration to start from: every key with its default and its meaning."""
    lines = [_STARTER_HEAD]
    file = whole_file()
    for key in file.keys:
        lines += _starter_key(key, "")
    for section in file.inner:
        lines += ["", *_starter_section(section, "")]
    return "\n".join(lines).rstrip("\n") + "\n"


def _starter_section(section: SectionDoc, indent: str) -> list[str]:
    name = section.path.rpartition(".")[2]
    lines = [f"{indent}# {section.what}", f"{indent}{name}:"]
    for key in section.keys:
        lines += _starter_key(key, f"{indent}  ")
    for inner in section.inner:
        lines += ["", *_starter_section(inner, f"{indent}  ")]
    return lines


def _starter_key(key: KeyDoc, indent: str) -> list[str]:
    about = f"{indent}# {key.what} ({key.allowed})"
    if key.name in {"options", "properties"}:
        return [about, f"{indent}# {key.name}:", f"{indent}#   name: value"]
    # A path is commented out, so that --data-dir sets it.
    if key.path in PLACES or not key.default or key.allowed.endswith("; with s3"):
        return [about, f"{indent}# {key.name}: {key.default or key.example}"]
    return [about, f"{indent}{key.name}: {key.default}"]


def whole_file() -> SectionDoc:
    """Return the documentation of every key."""
    return _section_doc(Config, "")


def every_section(section: SectionDoc) -> Iterator[SectionDoc]:
    """Yield a section and all its subsections, in file order."""
    yield section
    for inner in section.inner:
        yield from every_section(inner)


def _section_doc(model: type[BaseModel], path: str) -> SectionDoc:
    keys, inner = [], []
    for name, field in model.model_fields.items():
        below = f"{path}.{name}".lstrip(".")
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            inner.append(_section_doc(field.annotation, below))
        else:
            keys.append(_key_doc(name, below, field))
    return SectionDoc(path, (model.__doc__ or "").strip(), tuple(keys), tuple(inner))


def _key_doc(name: str, path: str, field: FieldInfo) -> KeyDoc:
    note = note_of(field)
    allowed = note.allowed or _allowed(field)
    if note.backends:
        allowed = f"{allowed}; with {', '.join(note.backends)}"
    return KeyDoc(name, path, _yaml(field.default), _example(note.example), field.description or "", allowed)


def _allowed(field: FieldInfo) -> str:
    kind = next(part for part in (get_args(field.annotation) or (field.annotation,)) if part is not NoneType)
    if get_origin(field.annotation) is Literal:
        return ", ".join(get_args(field.annotation))
    if kind is bool:
        return "true, false"
    if kind in {int, float}:
        low = next((f"from {rule.ge:,}" for rule in field.metadata if hasattr(rule, "ge")), "")
        low = low or next((f"more than {rule.gt:,}, up" for rule in field.metadata if hasattr(rule, "gt")), "")
        high = next(f"to {rule.le:,}" for rule in field.metadata if hasattr(rule, "le"))
        return f"{'a whole number' if kind is int else 'a number'}, {low} {high}"
    return "text"


def _example(text: str) -> str:
    return text if text.isdigit() or not text else f'"{text}"'


def _yaml(value: object) -> str:
    match value:
        case None | {}:
            return ""
        case tuple():
            return f"[{', '.join(_yaml(item) for item in value)}]"
        case bool():
            return "true" if value else "false"
        case Path():
            return f'"./{value}"'
        case str():
            return f'"./{value}"' if value.startswith("danube-data/") else f'"{value}"'
    return str(value)
