"""Say in the words of PyIceberg and of Spark which catalog and which files a configuration means: one lake, two readers.

Credentials of the object store reach Java and executors by their environment alone (`lake_environment`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from ister.config.keys import DATA_DIR
from ister.core.errors import InvalidConfigError

if TYPE_CHECKING:
    from pydantic import SecretStr

    from ister.config.models import Config

ICEBERG = "1.12.0"
SPARK_RUNTIME = f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{ICEBERG}"
SQLITE_DRIVER = "org.xerial:sqlite-jdbc:3.50.3.0"
POSTGRES_DRIVER = "org.postgresql:postgresql:42.7.8"
BUNDLES = {
    "s3": f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG}",
    "gs": f"org.apache.iceberg:iceberg-gcp-bundle:{ICEBERG}",
    "abfss": f"org.apache.iceberg:iceberg-azure-bundle:{ICEBERG}",
}
FILE_IO = {
    "s3": "org.apache.iceberg.aws.s3.S3FileIO",
    "gs": "org.apache.iceberg.gcp.gcs.GCSFileIO",
    "abfss": "org.apache.iceberg.azure.adlsv2.ADLSFileIO",
}
SCHEME_OF = {"s3": "s3", "gcs": "gs", "azblob": "abfss"}
# No namespace has a dot in its name, so no object of a log lies below it.
WAREHOUSE_IN_BUCKET = "lake.warehouse"


def require_shared_catalog(config: Config, who: str) -> None:
    """Refuse the memory catalog for what needs a catalog that several processes see."""
    if config.storage.iceberg_config.catalog.type == "memory":
        raise InvalidConfigError(
            "storage.iceberg_config.catalog.type",
            f"is memory, which lives in one process and is for its tests; {who} needs a catalog to share: use sql",
        )


def warehouse(config: Config) -> str | None:
    """Return where tables are kept, as an address; None where the catalog service decides."""
    catalog, cloud = config.storage.iceberg_config.catalog, config.wal_cloud.cloud
    if catalog.warehouse is not None:
        if "://" in catalog.warehouse or catalog.type == "rest":
            return catalog.warehouse.rstrip("/")
        return f"file://{Path(catalog.warehouse).absolute()}"
    if catalog.type == "rest":
        return None
    root = cloud.root.rstrip("/")
    match cloud.backend:
        case "s3":
            return f"{root}/{WAREHOUSE_IN_BUCKET}"
        case "gcs":
            return f"gs://{root.partition('://')[2]}/{WAREHOUSE_IN_BUCKET}"
        case "azblob" if cloud.account_name is not None:
            container, _, prefix = root.partition("/")
            host = f"{cloud.account_name}.dfs.core.windows.net"
            return f"abfss://{container}@{host}/{prefix}/{WAREHOUSE_IN_BUCKET}".replace(f"{host}//", f"{host}/")
        case "azblob":
            raise InvalidConfigError(
                "storage.iceberg_config.catalog.warehouse",
                "is missing; without wal_cloud.cloud.account_name write abfss://container@account.dfs.core.windows.net/prefix",
            )
    return f"file://{(DATA_DIR / 'warehouse').absolute()}"


def local_warehouse(config: Config) -> Path | None:
    """Return the directory of tables when it is on this machine: what is written there is ours to sync."""
    place = warehouse(config)
    return Path(place.removeprefix("file://")) if place is not None and place.startswith("file://") else None


def file_properties(config: Config) -> dict[str, str]:
    """Return how PyIceberg reaches data files, without secrets: fit to travel to executors."""
    cloud, found = config.wal_cloud.cloud, {}
    match _files(config):
        case "s3" if cloud.backend == "s3":
            found = {
                "s3.endpoint": cloud.endpoint,
                "s3.region": cloud.region,
                "s3.profile-name": cloud.profile,
                "s3.role-arn": cloud.role_arn,
                "s3.anonymous": "true" if cloud.anonymous else None,
                "s3.force-virtual-addressing": "true" if cloud.virtual_host_style else None,
            }
        case "gs" if cloud.backend == "gcs":
            found = {"gcs.service.host": cloud.endpoint, "gcs.project-id": cloud.project}
        case "abfss" if cloud.backend == "azblob":
            found = {"adls.account-name": cloud.account_name}
            if cloud.endpoint is not None and not cloud.endpoint.endswith(".blob.core.windows.net"):
                scheme, _, place = cloud.endpoint.partition("://")
                authority = place.partition("/")[0]
                found |= {"adls.blob-storage-authority": authority, "adls.blob-storage-scheme": scheme}
                found |= {"adls.dfs-storage-authority": authority, "adls.dfs-storage-scheme": scheme}
    return {name: value for name, value in found.items() if value is not None}


def catalog_properties(config: Config) -> tuple[str, dict[str, str]]:
    """Return the catalog's name and its properties for PyIceberg, *secrets in the clear*: for this process alone."""
    catalog, cloud = config.storage.iceberg_config.catalog, config.wal_cloud.cloud
    found = {"type": "in-memory" if catalog.type == "memory" else catalog.type, "warehouse": warehouse(config)}
    match catalog.type:
        case "rest":
            found |= {"uri": catalog.uri, "credential": _shown(catalog.credential), "token": _shown(catalog.token)}
        case "glue":
            found |= {"glue.endpoint": catalog.uri, "glue.region": catalog.region}
        case "sql" if (place := _postgres(config)) is not None:
            login = ""
            if catalog.user is not None:
                login = f"{quote(catalog.user, safe='')}:{quote(_shown(catalog.password) or '', safe='')}@"
            found["uri"] = f"postgresql+psycopg2://{login}{place}"
        case "sql":
            found["uri"] = f"sqlite:///{sqlite_file(config)}"
    if _files(config) == "s3" and cloud.backend == "s3":
        found |= {"s3.access-key-id": _shown(cloud.access_key), "s3.secret-access-key": _shown(cloud.secret_key)}
        found["s3.session-token"] = _shown(cloud.session_token)
    if _files(config) == "abfss" and cloud.backend == "azblob":
        found["adls.account-key"] = _shown(cloud.account_key)
    given = {name: value for name, value in found.items() if value is not None}
    return catalog.name, given | file_properties(config) | _extra(config)


def spark_catalog_conf(config: Config) -> dict[str, str]:
    """Return Spark's settings for the same catalog; they hold the catalog's secrets and none of the object store's."""
    require_shared_catalog(config, "Spark")
    catalog, cloud = config.storage.iceberg_config.catalog, config.wal_cloud.cloud
    # Others commit to the same tables: a cached table would be an old one.
    found = {"type": catalog.type, "warehouse": warehouse(config), "cache-enabled": "false"}
    match catalog.type:
        case "rest":
            found |= {"uri": catalog.uri, "credential": _shown(catalog.credential), "token": _shown(catalog.token)}
        case "glue":
            found |= {"glue.endpoint": catalog.uri, "client.region": catalog.region or cloud.region}
        case _:
            found |= {"type": "jdbc", "jdbc.schema-version": "V1"}
            if (place := _postgres(config)) is not None:
                found |= {"uri": f"jdbc:postgresql://{place}", "jdbc.user": catalog.user}
                found["jdbc.password"] = _shown(catalog.password)
            else:
                found["uri"] = f"jdbc:sqlite:file:{quote(str(sqlite_file(config)))}"
    kind = _files(config)
    if kind in FILE_IO:
        found["io-impl"] = FILE_IO[kind]
    if kind == "s3" and cloud.backend == "s3":
        found |= {"s3.endpoint": cloud.endpoint, "client.region": found.get("client.region") or cloud.region}
        found["s3.path-style-access"] = "false" if cloud.virtual_host_style else "true"
    if kind == "gs" and cloud.backend == "gcs":
        found |= {"gcs.service.host": cloud.endpoint, "gcs.project-id": cloud.project}
    prefix = f"spark.sql.catalog.{catalog.name}"
    given = {name: value for name, value in found.items() if value is not None} | _extra(config)
    return {prefix: "org.apache.iceberg.spark.SparkCatalog"} | {f"{prefix}.{k}": v for k, v in given.items()}


def spark_packages(config: Config) -> list[str]:
    """Return the Maven coordinates of what Spark needs for this lake."""
    found = [SPARK_RUNTIME]
    if config.storage.iceberg_config.catalog.type == "sql":
        found.append(SQLITE_DRIVER if _postgres(config) is None else POSTGRES_DRIVER)
    kinds = [_files(config), "s3" if config.storage.iceberg_config.catalog.type == "glue" else ""]
    return found + [bundle for kind, bundle in BUNDLES.items() if kind in kinds]


def lake_environment(config: Config) -> dict[str, str]:
    """Return the variables by which Java and executors reach the object store, *secrets in the clear*.

    GCS takes a file alone (`credentials_path`). For an account key of Azure there is no variable: Java goes by the
    machine's identity there.
    """
    cloud, kind = config.wal_cloud.cloud, _files(config)
    found: dict[str, str | None] = {}
    if kind == "s3" and cloud.backend == "s3":
        found = {
            "AWS_ACCESS_KEY_ID": _shown(cloud.access_key),
            "AWS_SECRET_ACCESS_KEY": _shown(cloud.secret_key),
            "AWS_SESSION_TOKEN": _shown(cloud.session_token),
            "AWS_REGION": cloud.region,
            "AWS_PROFILE": cloud.profile,
        }
    elif kind == "gs" and cloud.credentials_path is not None:
        found = {"GOOGLE_APPLICATION_CREDENTIALS": str(cloud.credentials_path.absolute())}
    return {name: value for name, value in found.items() if value is not None}


def sqlite_file(config: Config) -> Path | None:
    """Return the file of a SQLite catalog; None for any other."""
    catalog = config.storage.iceberg_config.catalog
    if catalog.type != "sql" or _postgres(config) is not None:
        return None
    given = DATA_DIR / "catalog.db" if catalog.uri is None else Path(catalog.uri.removeprefix("sqlite:///"))
    return given.absolute()


def _postgres(config: Config) -> str | None:
    uri = config.storage.iceberg_config.catalog.uri
    return uri.removeprefix("postgresql://") if uri is not None and uri.startswith("postgresql://") else None


def _files(config: Config) -> str:
    """Return the scheme of data files: the warehouse's, or the object store's where a service has the warehouse."""
    place = warehouse(config) or ""
    return place.partition("://")[0] if "://" in place else SCHEME_OF.get(config.wal_cloud.cloud.backend, "file")


def _extra(config: Config) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in config.storage.iceberg_config.catalog.properties.items()}


def _shown(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
