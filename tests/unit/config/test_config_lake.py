"""The lake's part of the configuration: its document's file, one setting under two names, and what PyIceberg and Spark are told."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from pydantic import ValidationError

from ister.config import Config, advice, load, values
from ister.config.catalog import (
    POSTGRES_DRIVER,
    SPARK_RUNTIME,
    SQLITE_DRIVER,
    catalog_properties,
    file_properties,
    lake_environment,
    local_warehouse,
    require_shared_catalog,
    spark_catalog_conf,
    spark_packages,
    sqlite_file,
    warehouse,
)
from ister.config.lake_models import IcebergConfig, Maintenance, ReaderSection, Writer
from ister.core.errors import InvalidConfigError
from ister.pipeline.session import HIDDEN
from parts.config import DATA, problems, read, section

LAKE = "storage.iceberg_config"
TYPES = ("wal_cloud", "iceberg")
S3 = (
    "type: s3\nbucket: b\nroot: p\nregion: r\nendpoint: http://127.0.0.1:9000\naccess_key: ${ID}\nsecret_key: ${SECRET}"
)
KEYS = {"ID": "the-id", "SECRET": "the-secret"}


def lake(text, environ=None):
    return read(section(LAKE, text), environ).config


# --- the document -----------------------------------------------------------------------------------------------------


def test_the_documents_own_file_is_read_as_it_is():
    config = load(DATA / "spec_iceberg.yml", None, {}).config
    found = config.storage.iceberg_config
    assert (config.storage.type, found.catalog.type, found.catalog.uri) == ("iceberg", "rest", "http://localhost:8181")
    assert (found.writer, found.reader) == (Writer(), ReaderSection())
    assert (config.wal_cloud.cloud.backend, config.wal_cloud.cloud.root) == ("s3", "s3://danube-data")
    assert config.wal_cloud.cloud.region == "us-west-2"
    assert (config.wal_cloud.wal.dir, config.wal_cloud.wal.sync_mode) == (Path("/var/lib/danube/wal"), "periodic")
    assert config.wal_cloud.wal.rotation.max_bytes == 67108864
    assert config.wal_cloud.metadata.sqlite_path == Path("/var/lib/danube/metadata.db"), "beside the log"


def test_every_default_is_the_documents():
    writer, reader = Writer(), ReaderSection()
    assert (writer.batch_size, writer.flush_interval_ms, writer.max_memory_bytes) == (1000, 5000, 134217728)
    assert (reader.poll_interval_ms, reader.max_concurrent_reads, reader.prefetch_size) == (1000, 10, 5)


def test_our_own_keys_have_the_designs_defaults():
    assert Writer().min_commit_interval_ms == 1000
    assert (Maintenance().file_grace_minutes, Maintenance().orphan_hours) == (60, 24)
    assert Maintenance().keep_snapshots <= 100
    assert Maintenance().enabled


# --- places -----------------------------------------------------------------------------------------------------------


def test_without_a_file_the_catalog_and_the_tables_are_in_the_data_directory():
    config = load(None, Path("/data"), {}).config
    assert sqlite_file(config) == Path("/data/catalog.db")
    assert (warehouse(config), local_warehouse(config)) == ("file:///data/warehouse", Path("/data/warehouse"))
    assert catalog_properties(config) == (
        "ister",
        {
            "type": "sql",
            "uri": "sqlite:////data/catalog.db",
            "warehouse": "file:///data/warehouse",
            "ister.warehouse-root": "/data/warehouse",
        },
    )


def test_a_configuration_that_a_program_builds_has_the_same_places():
    here = Path.cwd() / "danube-data"
    assert (sqlite_file(Config()), local_warehouse(Config())) == (here / "catalog.db", here / "warehouse")


def test_relative_places_become_absolute_since_java_starts_elsewhere():
    config = lake("catalog: {uri: 'sqlite:///a/c.db', warehouse: w}")
    assert sqlite_file(config) == Path.cwd() / "a" / "c.db"
    assert warehouse(config) == f"file://{Path.cwd()}/w"


def test_a_directory_that_only_looks_like_a_home_is_taken():
    config = read(section("wal_cloud.wal", "dir: ./~x/wal")).config
    assert sqlite_file(config) == Path.cwd() / "~x" / "catalog.db"


@pytest.mark.parametrize(
    ("store", "place"),
    [
        ("type: s3\nbucket: b\nroot: p", "s3://b/p/lake.warehouse"),
        ("type: s3\nbucket: b", "s3://b/lake.warehouse"),
        ("type: gcs\nbucket: b\nroot: p", "gs://b/p/lake.warehouse"),
        ("type: fs\nroot: /o/objects", f"file://{Path.cwd()}/danube-data/warehouse"),
    ],
)
def test_tables_lie_in_the_bucket_where_there_is_one(store, place):
    assert warehouse(read(section(f"{LAKE}.object_store", store)).config) == place


def test_tables_lie_in_the_container_of_the_azure_account():
    text = "backend: azblob\nroot: c/p\naccount_name: me"
    assert warehouse(read(section("wal_cloud.cloud", text)).config) == (
        "abfss://c@me.dfs.core.windows.net/p/lake.warehouse"
    )
    assert warehouse(read(section("wal_cloud.cloud", text.replace("c/p", "c"))).config) == (
        "abfss://c@me.dfs.core.windows.net/lake.warehouse"
    )
    with pytest.raises(InvalidConfigError, match="warehouse: is missing"):
        warehouse(read(section("wal_cloud.cloud", "backend: azblob\nroot: c")).config)


def test_a_rest_service_has_the_warehouse_unless_it_is_named():
    assert warehouse(lake("catalog: {type: rest, uri: 'http://h'}")) is None
    assert warehouse(lake("catalog: {type: rest, uri: 'http://h', warehouse: prod}")) == "prod"


# --- one setting, two names -------------------------------------------------------------------------------------------


def test_a_value_given_in_the_lakes_section_is_shown_with_its_line_in_both_places():
    loaded = read(section(f"{LAKE}.wal", "base_path: /w"))
    origins = {value.key: value.origin.at("f.yml") for value in values(loaded)}
    assert origins["wal_cloud.wal.dir"] == origins[f"{LAKE}.wal.base_path"] == "f.yml:4"


@pytest.mark.parametrize(
    ("lakes", "ours", "told"),
    [
        ("wal: {base_path: /a}", "wal: {dir: /b}", "wal.base_path: contradicts wal_cloud.wal.dir"),
        ("wal: {max_file_size: 4096}", "wal: {rotation: {max_bytes: 4097}}", "wal.max_file_size: contradicts wal_cloud.wal.rotation.max_bytes"),
        ("wal: {sync_mode: none}", "wal: {sync_mode: always}", "wal.sync_mode: contradicts wal_cloud.wal.sync_mode"),
        ("object_store: {type: s3, bucket: a}", "cloud: {backend: gcs, root: 'gs://a'}", "object_store.type: contradicts wal_cloud.cloud.backend"),
        ("object_store: {type: s3, bucket: a}", "cloud: {backend: s3, root: 's3://b'}", "object_store.bucket: contradicts wal_cloud.cloud.root"),
        ("object_store: {type: s3, bucket: a, root: x}", "cloud: {backend: s3, root: 's3://a/y'}", "object_store.bucket: contradicts wal_cloud.cloud.root"),
        ("object_store: {type: fs, root: x}", "cloud: {root: y}", "object_store.root: contradicts wal_cloud.cloud.root"),
        ("object_store: {region: x}", "cloud: {backend: s3, root: 's3://a', region: y}", "object_store.region: contradicts wal_cloud.cloud.region"),
    ],
)  # fmt: skip
def test_a_contradiction_is_refused_with_both_places(lakes, ours, told):
    [problem] = problems(f"storage:\n  iceberg_config:\n    {lakes}\nwal_cloud:\n  {ours}\n")
    assert problem.startswith(f"f.yml:3: {LAKE}.{told}")
    assert problem.endswith("is in line 5)")


@pytest.mark.parametrize(
    ("lakes", "ours"),
    [
        ("wal: {base_path: /a}", "wal: {dir: /a}"),
        ("wal: {max_file_size: 4_096}", "wal: {rotation: {max_bytes: 4096}}"),
        ("object_store: {type: gcs, bucket: a}", "cloud: {backend: gcs, root: 'gs://a/prefix'}"),
        ("object_store: {type: gcs, bucket: a, root: p}", "cloud: {backend: gcs, root: 'gs://a/p/'}"),
        ("object_store: {type: azure, bucket: a}", "cloud: {backend: azblob, root: a, account_name: n}"),
        ("object_store: {region: y}", "cloud: {backend: s3, root: 's3://a', region: y}"),
    ],
)
def test_the_same_said_twice_is_no_contradiction(lakes, ours):
    read(f"storage:\n  iceberg_config:\n    {lakes}\nwal_cloud:\n  {ours}\n")


def test_a_program_that_contradicts_itself_is_refused_too():
    with pytest.raises(ValidationError, match="contradicts"):
        Config.model_validate(
            {"wal_cloud": {"wal": {"dir": "a"}}, "storage": {"iceberg_config": {"wal": {"base_path": "b"}}}}
        )


# --- the type ---------------------------------------------------------------------------------------------------------


def test_unless_a_file_says_otherwise_tables_are_written_and_not_read_back():
    for config in (Config(), load(None, None, {}).config, lake("catalog: {type: memory}")):
        assert config.storage.type == "wal_cloud"


def test_tables_are_described_in_the_same_words_under_both_types():
    texts = [f"storage:\n  type: {kind}\n  iceberg_config:\n    writer: {{batch_size: 7}}\n" for kind in TYPES]
    assert [read(text).config.storage.iceberg_config.writer.batch_size for text in texts] == [7, 7]


def test_a_reader_fails_where_rows_are_missing_and_objects_stay_for_ever():
    assert (ReaderSection().on_missing, ReaderSection().object_retention_minutes) == ("fail", None)


def test_objects_may_go_behind_a_table_that_is_read():
    text = "storage:\n  type: iceberg\n  iceberg_config:\n    reader: {object_retention_minutes: 1, on_missing: skip}\n"
    reader = read(text).config.storage.iceberg_config.reader
    assert (reader.object_retention_minutes, reader.on_missing) == (1, "skip")


def test_objects_may_not_go_behind_a_table_that_nobody_reads():
    kept = "  iceberg_config:\n    reader:\n      object_retention_minutes: 60\n"
    [problem] = problems(f"storage:\n  type: wal_cloud\n{kept}")
    assert problem.startswith(f"f.yml:5: {LAKE}.reader.object_retention_minutes: needs storage.type iceberg")
    assert problem.endswith("(type is in line 2)")
    [problem] = problems(f"storage:\n{kept}")
    assert problem.startswith(f"f.yml:4: {LAKE}.reader.object_retention_minutes: needs storage.type iceberg")


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "line", "told"),
    [
        ("storage", "type: local", "must be one of wal_cloud or iceberg"),
        (f"{LAKE}.reader", "on_missing: guess", "must be one of fail or skip"),
        (f"{LAKE}.reader", "object_retention_minutes: 0", "must be at least 1"),
        (f"{LAKE}.maintenance", "orphan_hours: 23", "must be at least 24"),
        (f"{LAKE}.writer", "exclude: [default/x]", "must be /namespace/topic"),
        (f"{LAKE}.writer", "max_memory_bytes: 1", "must be at least 1,048,576"),
        (f"{LAKE}.object_store", "access_key: ${ID}", "belongs to backend s3, but backend is fs"),
        (f"{LAKE}.object_store", "bucket: b", "needs type too"),
        (f"{LAKE}.object_store", "endpoint: minio:9000", "must begin with http://"),
        (f"{LAKE}.catalog", "type: hive", "must be one of rest, glue, sql or memory"),
        (f"{LAKE}.catalog", "name: spark_catalog", "and not spark_catalog"),
        (f"{LAKE}.catalog", "uri: http://u:p@h", "must not hold a user or a password"),
        (f"{LAKE}.catalog", "uri: mysql://h/d", "must be sqlite:///file or postgresql://host:port/database"),
        (f"{LAKE}.catalog", "uri: sqlite://", "must name a file"),
        (f"{LAKE}.catalog", "uri: postgresql://h", "must be like postgresql://host:port/database"),
        (f"{LAKE}.catalog", "warehouse: hdfs://h/w", "must be a directory"),
        (f"{LAKE}.catalog", "token: ${ID}", "belongs to catalog rest, but type is sql"),
    ],
)
def test_a_bad_value_is_refused_with_its_line_and_a_reason(path, line, told):
    [problem] = problems(section(path, line), KEYS)
    assert problem.startswith(f"f.yml:{path.count('.') + 2}: {path}.{line.split(':')[0]}: ")
    assert told in problem


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("type: rest", "uri: is missing"),
        ("type: rest\nuri: sqlite:///f", "uri: must begin with http://"),
        ("type: memory\nuri: http://h", "uri: belongs to another type"),
        ("type: rest\nuri: http://h\ntoken: ${ID}\ncredential: ${ID}", "credential: and token are both given"),
        ("uri: postgresql://h/d\nuser: u", "user: needs password too"),
        ("user: u\npassword: ${ID}", "user: belongs to a PostgreSQL catalog"),
    ],
)
def test_a_catalog_that_contradicts_itself_is_refused(text, told):
    [problem] = problems(section(f"{LAKE}.catalog", text), KEYS)
    assert told in problem


def test_the_memory_catalog_is_refused_where_processes_share_it_and_sql_is_named():
    config = lake("catalog: {type: memory}")
    assert catalog_properties(config)[1]["type"] == "in-memory"
    with pytest.raises(InvalidConfigError, match=r"catalog.type: is memory.* ister serve needs .*use sql"):
        require_shared_catalog(config, "ister serve")
    with pytest.raises(InvalidConfigError, match="use sql"):
        spark_catalog_conf(config)
    require_shared_catalog(Config(), "ister serve")


def test_secrets_of_the_catalog_are_hidden_and_warned_about_in_the_file():
    text = section(f"{LAKE}.catalog", "type: rest\nuri: https://h\ntoken: CANARY\nproperties: {my.token: CANARY, a: b}")
    loaded = read(text)
    shown = {value.key: value.shown for value in values(loaded)}
    assert shown[f"{LAKE}.catalog.token"] == shown[f"{LAKE}.catalog.properties.my.token"] == "***"
    assert shown[f"{LAKE}.catalog.properties.a"] == "b"
    assert "CANARY" not in repr(loaded) + str(values(loaded)) + loaded.config.model_dump_json()
    assert [warning.key for warning in advice(loaded)] == [
        f"{LAKE}.catalog.token",
        f"{LAKE}.catalog.properties.my.token",
    ]


@pytest.mark.parametrize(
    ("topic", "excluded"),
    [("/ns/a", True), ("/ns/", True), ("/other/a", False), ("/other/debug-1", True), ("/other/xdebug-1", False)],
)
def test_topics_are_left_out_by_pattern(topic, excluded):
    writer = read(section(f"{LAKE}.writer", "exclude: ['/ns/*', /*/debug-*]")).config.storage.iceberg_config.writer
    assert writer.excludes(topic) is excluded
    assert not Writer().excludes(topic)


# --- what PyIceberg and Spark are told --------------------------------------------------------------------------------


def conf(config):
    prefix = f"spark.sql.catalog.{config.storage.iceberg_config.catalog.name}"
    found = spark_catalog_conf(config)
    assert found.pop(prefix) == "org.apache.iceberg.spark.SparkCatalog"
    return {key.removeprefix(f"{prefix}."): value for key, value in found.items()}


def test_spark_and_pyiceberg_mean_the_same_sqlite_file(tmp_path):
    config = load(None, tmp_path / "a b+", {}).config
    spark, (_, python) = conf(config), catalog_properties(config)
    assert (spark["type"], spark["jdbc.schema-version"], spark["cache-enabled"]) == ("jdbc", "V1", "false")
    assert spark["uri"].startswith("jdbc:sqlite:file:/")
    assert unquote(spark["uri"].removeprefix("jdbc:sqlite:file:")) == python["uri"].removeprefix("sqlite:///")
    assert spark["warehouse"] == python["warehouse"]
    assert "io-impl" not in spark
    assert spark_packages(config) == [SPARK_RUNTIME, SQLITE_DRIVER]


def test_spark_and_pyiceberg_mean_the_same_postgresql():
    config = lake(
        "catalog:\n    uri: postgresql://h:5432/d\n    user: u\n    password: ${P}".replace("\n    ", "\n      "),
        {"P": "p@/"},
    )
    spark, (_, python) = conf(config), catalog_properties(config)
    assert python["uri"] == "postgresql+psycopg2://u:p%40%2F@h:5432/d"
    assert (spark["uri"], spark["jdbc.user"], spark["jdbc.password"]) == ("jdbc:postgresql://h:5432/d", "u", "p@/")
    assert spark_packages(config) == [SPARK_RUNTIME, POSTGRES_DRIVER]
    assert sqlite_file(config) is None


def test_spark_and_pyiceberg_mean_the_same_rest_service():
    config = read(
        section(LAKE, "catalog: {type: rest, uri: 'http://h:8181', token: '${SECRET}', properties: {header.x: y}}")
        + "    object_store: {type: s3, bucket: b, region: r}\n",
        KEYS,
    ).config
    spark, (_, python) = conf(config), catalog_properties(config)
    for found in (spark, python):
        assert (found["type"], found["uri"], found["token"]) == ("rest", "http://h:8181", "the-secret")
        assert found["header.x"] == "y"
        assert "warehouse" not in found
    assert spark["client.region"] == python["s3.region"] == "r"
    assert [package.split(":")[1] for package in spark_packages(config)][1:] == ["iceberg-aws-bundle"]


def test_spark_and_pyiceberg_mean_the_same_glue():
    config = lake("catalog: {type: glue, region: eu-1, uri: 'http://127.0.0.1:5', warehouse: 's3://b/t'}")
    spark, (_, python) = conf(config), catalog_properties(config)
    assert (python["glue.endpoint"], python["glue.region"]) == ("http://127.0.0.1:5", "eu-1")
    assert (spark["type"], spark["glue.endpoint"], spark["client.region"]) == ("glue", "http://127.0.0.1:5", "eu-1")
    assert spark["warehouse"] == python["warehouse"] == "s3://b/t"
    assert [package.split(":")[1] for package in spark_packages(config)][1:] == ["iceberg-aws-bundle"]


def test_the_stores_secrets_go_to_pyiceberg_and_the_environment_and_never_to_spark():
    config = read(section(f"{LAKE}.object_store", S3), KEYS).config
    _, python = catalog_properties(config)
    assert (python["s3.access-key-id"], python["s3.secret-access-key"]) == ("the-id", "the-secret")
    assert lake_environment(config) == {
        "AWS_ACCESS_KEY_ID": "the-id",
        "AWS_SECRET_ACCESS_KEY": "the-secret",
        "AWS_REGION": "r",
    }
    spark = conf(config)
    assert spark["io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"
    assert (spark["s3.endpoint"], spark["s3.path-style-access"]) == ("http://127.0.0.1:9000", "true")
    for told in (spark, file_properties(config)):
        assert not {"the-id", "the-secret"} & set(told.values())
    assert file_properties(config) == {"s3.endpoint": "http://127.0.0.1:9000", "s3.region": "r"}


def test_another_stores_settings_are_not_told_to_a_warehouse_elsewhere():
    config = read(section(LAKE, "catalog: {warehouse: /w}") + "    object_store:\n      " + S3.replace("\n", "\n      ") + "\n", KEYS).config  # fmt: skip
    assert catalog_properties(config)[1].keys() == {"type", "uri", "warehouse", "ister.warehouse-root"}
    assert lake_environment(config) == {}
    assert spark_packages(config) == [SPARK_RUNTIME, SQLITE_DRIVER]


def test_google_and_azure_are_reached_by_their_own_names(tmp_path):
    gcs = read(
        section("wal_cloud.cloud", f"backend: gcs\nroot: gs://b\nproject: p\ncredentials_path: {tmp_path}/c")
    ).config
    assert file_properties(gcs).items() >= {"gcs.project-id": "p", "gcs.credentials-path": f"{tmp_path}/c"}.items()
    assert lake_environment(gcs) == {"GOOGLE_APPLICATION_CREDENTIALS": f"{tmp_path}/c"}
    assert conf(gcs)["io-impl"] == "org.apache.iceberg.gcp.gcs.GCSFileIO"
    text = read(section("wal_cloud.cloud", "backend: gcs\nroot: gs://b\ncredentials_json: '{}'")).config
    with pytest.raises(InvalidConfigError, match=r"credentials_json.*name that in wal_cloud\.cloud\.credentials_path"):
        file_properties(text)
    text = "backend: azblob\nroot: c\naccount_name: me\naccount_key: ${SECRET}\nendpoint: http://127.0.0.1:10000/me"
    azure = read(section("wal_cloud.cloud", text), KEYS).config
    _, python = catalog_properties(azure)
    assert (python["adls.account-name"], python["adls.account-key"]) == ("me", "the-secret")
    assert python["adls.blob-storage-authority"] == "127.0.0.1:10000"
    assert lake_environment(azure) == {}


def test_java_has_an_account_key_of_azure_from_a_setting_that_spark_does_not_show_and_knows_an_emulators_place():
    text = "backend: azblob\nroot: c\naccount_name: me\naccount_key: ${SECRET}\nendpoint: "
    emulated = conf(read(section("wal_cloud.cloud", f"{text}http://127.0.0.1:10000/me"), KEYS).config)
    [key] = [name for name, value in emulated.items() if value == "the-secret"]
    assert re.search(HIDDEN, key)
    assert emulated["adls.auth.shared-key.account.name"] == "me"
    assert emulated["adls.connection-string.me.dfs.core.windows.net"] == "http://127.0.0.1:10000/me"
    real = conf(read(section("wal_cloud.cloud", f"{text}https://me.blob.core.windows.net"), KEYS).config)
    assert not [name for name in real if "connection-string" in name], "the warehouse's address says where it is"
    anothers = section("wal_cloud.cloud", f"{text}https://me.blob.core.windows.net") + section(
        f"{LAKE}.catalog", "warehouse: abfss://c@other.dfs.core.windows.net/p"
    )
    assert "the-secret" not in conf(read(anothers, KEYS).config).values()


def test_java_asks_gcs_for_nothing_when_everyone_may_read_it():
    gcs = "backend: gcs\nroot: gs://b"
    assert conf(read(section("wal_cloud.cloud", f"{gcs}\nanonymous: true")).config)["gcs.no-auth"] == "true"
    assert "gcs.no-auth" not in conf(read(section("wal_cloud.cloud", gcs)).config)


def test_the_default_section_is_what_an_empty_one_means():
    assert read("storage:\n  iceberg_config:\n").config.storage == load(None, None, {}).config.storage
    assert IcebergConfig().catalog.uri is None


@pytest.mark.parametrize(
    ("uri", "warned"), [("http://h", [f"{LAKE}.catalog.uri"]), ("https://h", []), ("http://127.0.0.1:8181", [])]
)
def test_a_token_that_would_travel_in_the_clear_is_warned_about(uri, warned):
    loaded = read(section(f"{LAKE}.catalog", f"type: rest\nuri: {uri}\ntoken: ${{SECRET}}"), KEYS)
    assert [warning.key for warning in advice(loaded)] == warned
