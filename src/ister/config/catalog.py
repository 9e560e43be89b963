"""Catalog and FileIO properties for PyIceberg and for Spark, from one configuration.

Credentials of the object store reach Java and executors by their environment (`lake_environment`), except an account key of
Azure, for which Java has no variable: it is a catalog setting, set once Java runs, and redacted.
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
# The clouds' own libraries, in the newest version that was tried; Iceberg's classes that call them are in the runtime.
BUNDLES = {
    "s3": f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG}",
    "gs": "org.apache.iceberg:iceberg-gcp-bundle:1.11.0",
    "abfss": "org.apache.iceberg:iceberg-azure-bundle:1.10.0",
}
FILE_IO = {
    "s3": "org.apache.iceberg.aws.s3.S3FileIO",
    "gs": "org.apache.iceberg.gcp.gcs.GCSFileIO",
    "abfss": "org.apache.iceberg.azure.adlsv2.ADLSFileIO",
}
# PyIceberg's own reach no GCS without credentials, and no Azure at all unless adlfs is installed.
# Of ister.lake.files: nothing is written or deleted outside of this directory.
WAREHOUSE_ROOT = "ister.warehouse-root"
STORE_FILES = "ister.lake.files.StoreFileIO"
SCHEME_OF = {"s3": "s3", "gcs": "gs", "azblob": "abfss"}
# No namespace has a dot in its name, so no object of a log lies below it.
WAREHOUSE_IN_BUCKET = "lake.warehouse"


def require_shared_catalog(config: Config, who: str) -> None:
    """Raise InvalidConfigError for the memory catalog, which other processes cannot see."""
    if config.storage.iceberg_config.catalog.type == "memory":
        raise InvalidConfigError(
            "storage.iceberg_config.catalog.type",
            f"is memory, which lives in one process and is for its tests; {who} needs a catalog to share: use sql",
        )


def warehouse(config: Config) -> str | None:
    """Return the location of tables; None where the catalog service chooses it."""
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
    """Return the directory of tables on a local disk, whose files we must fsync; None for a store."""
    place = warehouse(config)
    return Path(place.removeprefix("file://")) if place is not None and place.startswith("file://") else None


def file_properties(config: Config) -> dict[str, str]:
    """Return PyIceberg's FileIO properties without secrets, safe to send to executors."""
    cloud = config.wal_cloud.cloud
    found: dict[str, str | None] = {}
    match _files(config):
        case "file" if (root := local_warehouse(config)) and config.storage.iceberg_config.catalog.type != "rest":
            found = {WAREHOUSE_ROOT: str(root)}
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
            path = cloud.credentials_path
            if cloud.credentials_json is not None and path is None:
                raise InvalidConfigError(
                    "wal_cloud.cloud.credentials_json",
                    "serves objects and no tables, whose library reads a file: "
                    "write it to one, and name that in wal_cloud.cloud.credentials_path instead",
                )
            found = {
                "py-io-impl": STORE_FILES,
                "gcs.service.host": cloud.endpoint,
                "gcs.project-id": cloud.project,
                "gcs.anonymous": "true" if cloud.anonymous else None,
                "gcs.credentials-path": None if path is None else str(path.absolute()),
            }
        case "gs":
            found = {"py-io-impl": STORE_FILES}
        case "abfss":
            found = {"py-io-impl": STORE_FILES, **_azure_account(config)}
    return {name: value for name, value in found.items() if value is not None}


def catalog_properties(config: Config) -> tuple[str, dict[str, str]]:
    """Return the catalog's name and its properties for PyIceberg, *secrets in the clear*: for this process alone."""
    catalog, cloud = config.storage.iceberg_config.catalog, config.wal_cloud.cloud
    found = {"type": "in-memory" if catalog.type == "memory" else catalog.type, "warehouse": warehouse(config)}
    match catalog.type:
        case "rest":
            found |= {
                "uri": catalog.uri,
                "credential": _revealed(catalog.credential),
                "token": _revealed(catalog.token),
            }
        case "glue":
            found |= {"glue.endpoint": catalog.uri, "glue.region": catalog.region or cloud.region}
            if _files(config) == "s3" and cloud.backend == "s3":  # as Java does, by the environment
                found |= {"glue.access-key-id": _revealed(cloud.access_key), "glue.profile-name": cloud.profile}
                found |= {"glue.secret-access-key": _revealed(cloud.secret_key)}
                found |= {"glue.session-token": _revealed(cloud.session_token)}
        case "sql" if (place := _postgres(config)) is not None:
            login = ""
            if catalog.user is not None:
                login = f"{quote(catalog.user, safe='')}:{quote(_revealed(catalog.password) or '', safe='')}@"
            found["uri"] = f"postgresql+psycopg2://{login}{place}"
        case "sql":
            found["uri"] = f"sqlite:///{sqlite_file(config)}"
    if _files(config) == "s3" and cloud.backend == "s3":
        found |= {"s3.access-key-id": _revealed(cloud.access_key), "s3.secret-access-key": _revealed(cloud.secret_key)}
        found["s3.session-token"] = _revealed(cloud.session_token)
    if _files(config) == "abfss" and _is_account_of_store(config):
        found["adls.account-key"] = _revealed(cloud.account_key)
    given = {name: value for name, value in found.items() if value is not None}
    return catalog.name, given | file_properties(config) | _extra(config)


def spark_catalog_conf(config: Config) -> dict[str, str]:
    """Return Spark's settings for the same catalog, *secrets in the clear*: the catalog's, and an account key of Azure."""
    require_shared_catalog(config, "Spark")
    catalog, cloud = config.storage.iceberg_config.catalog, config.wal_cloud.cloud
    # Others commit to the same tables: a cached table would be stale.
    found = {"type": catalog.type, "warehouse": warehouse(config), "cache-enabled": "false"}
    match catalog.type:
        case "rest":
            found |= {
                "uri": catalog.uri,
                "credential": _revealed(catalog.credential),
                "token": _revealed(catalog.token),
            }
        case "glue":
            found |= {"glue.endpoint": catalog.uri, "client.region": catalog.region or cloud.region}
        case _:
            found |= {"type": "jdbc", "jdbc.schema-version": "V1"}
            if (place := _postgres(config)) is not None:
                found |= {"uri": f"jdbc:postgresql://{place}", "jdbc.user": catalog.user}
                found["jdbc.password"] = _revealed(catalog.password)
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
        found["gcs.no-auth"] = "true" if cloud.anonymous else None
    if kind == "abfss" and _is_account_of_store(config):
        found |= _azure_for_java(config)
    prefix = f"spark.sql.catalog.{catalog.name}"
    given = {name: value for name, value in found.items() if value is not None} | _extra(config)
    return {prefix: "org.apache.iceberg.spark.SparkCatalog"} | {f"{prefix}.{k}": v for k, v in given.items()}


def spark_packages(config: Config) -> list[str]:
    """Return the Maven coordinates of the packages that Spark needs."""
    found = [SPARK_RUNTIME]
    if config.storage.iceberg_config.catalog.type == "sql":
        found.append(SQLITE_DRIVER if _postgres(config) is None else POSTGRES_DRIVER)
    kinds = [_files(config), "s3" if config.storage.iceberg_config.catalog.type == "glue" else ""]
    return found + [bundle for kind, bundle in BUNDLES.items() if kind in kinds]


def lake_environment(config: Config) -> dict[str, str]:
    """Return the environment variables of Java and executors for the object store, *secrets in the clear*.

    GCS accepts a file only (`credentials_path`). For an account key of Azure there is no variable: Java has it from the
    catalog settings.
    """
    cloud, kind = config.wal_cloud.cloud, _files(config)
    found: dict[str, str | None] = {}
    if kind == "s3" and cloud.backend == "s3":
        found = {
            "AWS_ACCESS_KEY_ID": _revealed(cloud.access_key),
            "AWS_SECRET_ACCESS_KEY": _revealed(cloud.secret_key),
            "AWS_SESSION_TOKEN": _revealed(cloud.session_token),
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
    """Return the scheme of data files: the warehouse's, or the object store's where a service chooses the location."""
    place = warehouse(config) or ""
    return place.partition("://")[0] if "://" in place else SCHEME_OF.get(config.wal_cloud.cloud.backend, "file")


def _azure_host(config: Config) -> str:
    """Return the host of the warehouse's location, `account.dfs.core.windows.net`; empty when there is none."""
    return (warehouse(config) or "").partition("@")[2].partition("/")[0]


def _is_account_of_store(config: Config) -> bool:
    """Return True if the object store's account also has the tables."""
    cloud, account = config.wal_cloud.cloud, _azure_host(config).partition(".")[0]
    return cloud.backend == "azblob" and (not account or cloud.account_name in {None, account})


def _azure_for_java(config: Config) -> dict[str, str | None]:
    """Return the account's key, if there is one, and the endpoint of an emulator."""
    cloud, account = config.wal_cloud.cloud, _azure_account(config)["adls.account-name"]
    found: dict[str, str | None] = {}
    if account is not None and cloud.account_key is not None:
        found["adls.auth.shared-key.account.name"] = account
        found["adls.auth.shared-key.account.key"] = _revealed(cloud.account_key)
    if cloud.endpoint is not None and not cloud.endpoint.partition("://")[2].startswith(f"{account}."):
        found[f"adls.connection-string.{_azure_host(config)}"] = cloud.endpoint
    return found


def _azure_account(config: Config) -> dict[str, str | None]:
    """Return the account of the tables, and its endpoint if it is not Azure's usual one."""
    cloud = config.wal_cloud.cloud
    named, _, zone = _azure_host(config).partition(".")
    account = named or cloud.account_name
    found = {"adls.account-name": account}
    if _is_account_of_store(config) and cloud.endpoint is not None:
        scheme, _, place = cloud.endpoint.partition("://")
        authority = place.partition("/")[0]
        # The library puts the account before what begins with a dot, and into the path where there is none.
        if authority.startswith(f"{account}."):
            authority = authority.removeprefix(str(account))
        found |= {"adls.blob-storage-scheme": scheme, "adls.dfs-storage-scheme": scheme}
    elif zone:
        authority = f".{zone.replace('dfs.', 'blob.', 1)}"
    else:
        return found
    return found | {
        "adls.blob-storage-authority": authority,
        "adls.dfs-storage-authority": authority.replace(".blob.", ".dfs.", 1),
    }


def _extra(config: Config) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in config.storage.iceberg_config.catalog.properties.items()}


def _revealed(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
