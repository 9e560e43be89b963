"""Model of the metadata section."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from ister.config import validators
from ister.config.keys import DATA_DIR, Clash, FilePath, Secret, Section, Text, setting


class MetadataSection(Section):
    """The store of topic records and object descriptors: SQLite, unless etcd or memory is selected."""

    etcd_endpoint: (
        Annotated[
            tuple[Annotated[Text, AfterValidator(validators.host_port)], ...],
            Field(min_length=1, max_length=32),
            BeforeValidator(validators.split_endpoints),
        ]
        | None
    ) = setting(
        "Use etcd at these endpoints.",
        default=None,
        allowed="host:port, several with commas, or a list",
        example="127.0.0.1:2379",
    )
    in_memory: bool = setting("Keep metadata in memory only; for tests.", default=False)
    sqlite_path: FilePath | None = setting(
        "File of the SQLite store; none: `metadata.db` beside `wal.dir`.",
        default=None,
        allowed="a path",
        example="./danube-data/metadata.db",
    )
    etcd_ca: FilePath | None = setting(
        "Certificate authority of etcd (PEM); switches TLS on.",
        default=None,
        allowed="a path",
        example="/etc/ister/ca.pem",
    )
    etcd_cert: FilePath | None = setting(
        "Our certificate for etcd (PEM).", default=None, allowed="a path", example="/etc/ister/client.pem"
    )
    etcd_key: FilePath | None = setting(
        "The private key that belongs to `etcd_cert` (PEM).",
        default=None,
        allowed="a path",
        example="/etc/ister/client.key",
    )
    etcd_user: Text | None = setting("User name for etcd.", default=None, example="ister")
    etcd_password: Secret | None = setting("Password for etcd.", default=None, example="${ETCD_PASSWORD}")

    @property
    def kind(self) -> Literal["etcd", "memory", "sqlite"]:
        """The store that these keys select."""
        return "etcd" if self.etcd_endpoint is not None else "memory" if self.in_memory else "sqlite"

    @property
    def sqlite_file(self) -> Path:
        """The file of the SQLite store."""
        return self.sqlite_path or DATA_DIR / "metadata.db"

    def _clashes(self) -> Iterator[Clash]:
        given = self._given()
        etcd = "etcd_endpoint" in given
        if self.in_memory and etcd:
            yield Clash("in_memory", "etcd_endpoint", "contradicts etcd_endpoint; keep one of them")
        if "sqlite_path" in given and etcd:
            yield Clash("sqlite_path", "etcd_endpoint", "contradicts etcd_endpoint; keep one of them")
        if "sqlite_path" in given and self.in_memory:
            yield Clash("sqlite_path", "in_memory", "contradicts in_memory: true; keep one of them")
        if self.sqlite_path is not None and self.sqlite_path.name.startswith(":"):
            yield Clash("sqlite_path", "in_memory", "must be a path; for metadata in memory write in_memory: true")
        for name in sorted(given - {"etcd_endpoint"}):
            if name.startswith("etcd_") and not etcd:
                yield Clash(name, "etcd_endpoint", "needs etcd_endpoint too")
        for one, other in (("etcd_cert", "etcd_key"), ("etcd_user", "etcd_password")):
            if (one in given) != (other in given):
                name, needed = (one, other) if one in given else (other, one)
                yield Clash(name, needed, f"needs {needed} too")
