"""`ister config check` and `ister serve` accept the same configurations."""

import asyncio
import os
import socket
import tempfile
from contextlib import AsyncExitStack, chdir, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ister.cli.app import app
from ister.cli.exit_codes import explain
from ister.config import ConfigError, load, loads
from ister.config.catalog import catalog_properties, spark_catalog_conf
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from ister.runtime import serve as serving
from ister.runtime.compose import open_metadata, open_store, require_usable, topics_config
from ister.storage.factory import WalStorageFactory
from ister.wal import AckLevel
from parts.cloud import messages
from parts.counts import LONG

CATALOG = "storage.iceberg_config.catalog"


@pytest.fixture(autouse=True)
def _in_a_new_directory(monkeypatch):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with new_directory():
        yield


@contextmanager
def new_directory():
    """Work in a directory that holds a file and a directory."""
    with tempfile.TemporaryDirectory() as path, chdir(path):
        Path("file").write_text("a file")
        Path("directory").mkdir()
        yield


def yaml(values):
    """Return a file that gives each dotted key its value."""
    tree = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        inner = tree
        for part in sections:
            inner = inner.setdefault(part, {})
        inner[name] = value

    def lines(section, indent):
        for name, value in section.items():
            if isinstance(value, dict):
                yield f"{indent}{name}:"
                yield from lines(value, f"{indent}  ")
            else:
                yield f"{indent}{name}: {value}"

    return "\n".join(lines(tree, "")).encode()


def problems(values, data_dir=None):
    try:
        require_usable(loads(yaml(values), "f.yml", data_dir, os.environ))
    except ConfigError as error:
        return {problem.key for problem in error.problems}
    return set()


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"broker_port": 7000, "admin_port": 7000}, "admin_port"),
        ({"prom_port": 6650}, "prom_port"),
        ({"admin_port": 9040}, "prom_port"),
        ({"wal_cloud.cloud.backend": "s3", "wal_cloud.cloud.root": "s3://bucket"}, "wal_cloud.cloud.region"),
        ({"wal_cloud.cloud.backend": "nosuchthing"}, "wal_cloud.cloud.backend"),
        ({"wal_cloud.metadata.sqlite_path": "directory"}, "wal_cloud.metadata.sqlite_path"),
        ({"wal_cloud.metadata.sqlite_path": "':memory:'"}, "wal_cloud.metadata.sqlite_path"),
        (
            {"wal_cloud.metadata.etcd_endpoint": "h:1", "wal_cloud.metadata.etcd_ca": "missing.pem"},
            "wal_cloud.metadata.etcd_ca",
        ),
        ({"wal_cloud.wal.dir": "file"}, "wal_cloud.wal.dir"),
        ({"wal_cloud.wal.dir": "file/wal"}, "wal_cloud.wal.dir"),
        ({"wal_cloud.wal.dir": "/dev/null"}, "wal_cloud.wal.dir"),
        ({"wal_cloud.cloud.root": "file/objects"}, "wal_cloud.cloud.root"),
        ({f"{CATALOG}.warehouse": "file"}, f"{CATALOG}.warehouse"),
        ({f"{CATALOG}.uri": "sqlite:///directory"}, f"{CATALOG}.uri"),
        ({f"{CATALOG}.type": "memory"}, f"{CATALOG}.type"),
        ({"broker_host": "a..b"}, "broker_host"),
        ({"broker_host": "'::::'"}, "broker_host"),
        ({"broker_host": "999.1.1.1"}, "broker_host"),
        ({"broker_host": "x" * 64}, "broker_host"),
        ({"broker_host": "no-such-host.invalid"}, "broker_host"),
        ({"wal_cloud.metadata.etcd_endpoint": "a..b:2379"}, "wal_cloud.metadata.etcd_endpoint"),
        ({"wal_cloud.metadata.etcd_endpoint": "999.1.1.1:2379"}, "wal_cloud.metadata.etcd_endpoint"),
        ({"advertised_listeners.broker_url": "http://a..b:6650"}, "advertised_listeners.broker_url"),
        ({"broker.keepalive_interval_ms": 1}, "broker.keepalive_interval_ms"),
        ({"broker.keepalive_timeout_ms": 1}, "broker.keepalive_timeout_ms"),
    ],
    ids=str,
)
def test_what_serve_could_not_use_is_refused_by_the_check_and_named(values, key):
    """L6, L7, L8, L9, L10."""
    assert problems(values) == {key}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "'[::1]'", "localhost", "0.0.0.0"])
def test_hosts_that_can_be_listened_on_are_accepted(host):
    assert problems({"broker_host": host}) == set()


@pytest.mark.parametrize("name", ["type", "uri", "URI", "warehouse", "token", "py-catalog-impl", "jdbc.password"])
def test_a_catalog_property_that_has_a_key_of_its_own_is_refused(name):
    """L4."""
    assert problems({f"{CATALOG}.properties": f"{{{name}: x}}"}) == {f"{CATALOG}.properties"}


def test_other_catalog_properties_are_passed_on():
    config = loads(yaml({f"{CATALOG}.properties": "{client.region: r}"}), "f.yml", None, {}).config
    assert catalog_properties(config)[1]["client.region"] == "r"
    assert spark_catalog_conf(config)["spark.sql.catalog.ister.client.region"] == "r"


@pytest.mark.parametrize("character", "%#?")
def test_a_data_directory_whose_name_means_something_else_in_a_uri_is_refused(character):
    """K11."""
    with pytest.raises(ConfigError) as caught:
        load(None, Path(f"a{character}20b"), {})
    assert [problem.key for problem in caught.value.problems] == ["--data-dir"]
    assert f"holds {character}" in str(caught.value)
    assert problems({"wal_cloud.wal.dir": f"'a{character}20b/wal'"}) == {f"{CATALOG}.uri", f"{CATALOG}.warehouse"}


@pytest.mark.parametrize(
    "key",
    [
        "wal_cloud.wal.rotation.max_hours",
        "wal_cloud.uploader.max_object_mb",
        "wal_cloud.metadata.etcd_endpoint",
        "wal_cloud.metadata.sqlite_path",
        "policies.ack_level",
        "prom_port",
    ],
)
def test_the_word_none_is_taken_where_the_default_is_none(key):
    """L11."""
    assert loads(yaml({key: "none"}), "f.yml", None, {}).config == loads(yaml({key: "null"}), "f.yml", None, {}).config


def test_the_word_none_stays_a_value_where_it_is_one():
    config = loads(yaml({"storage.iceberg_config.wal.sync_mode": "none"}), "f.yml", None, {}).config
    assert config.wal_cloud.wal.sync_mode == "none"


def test_one_directory_written_in_two_ways_is_no_contradiction():
    """L13."""
    store = "storage.iceberg_config.object_store"
    assert problems({f"{store}.type": "fs", f"{store}.root": "./o", "wal_cloud.cloud.root": "o"}) == set()
    assert problems({f"{store}.type": "fs", f"{store}.root": "./p", "wal_cloud.cloud.root": "o"}) == {f"{store}.root"}


@pytest.mark.parametrize(
    "words",
    [
        ["produce", "/default/x", "-k", "\udcff", "-m", "x"],
        ["produce", "/default/x", "-a", "a=\udcff", "-m", "x"],
        ["produce", "/default/x", "--producer", "\udcff", "-m", "x"],
        ["produce", "/default/\udcff", "-m", "x"],
        ["consume", "/default/x", "-s", "\udcff"],
        ["subscriptions", "reset", "/default/x", "\udcff", "--to", "latest"],
    ],
)
def test_an_argument_that_is_not_utf8_is_a_wrong_command(words):
    """L5."""
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, result.exception.__class__) == (2, SystemExit)
    assert "not UTF-8 text" in " ".join(result.output.split())


def test_an_empty_data_directory_is_a_wrong_command():
    """L9."""
    result = CliRunner().invoke(app, ["serve", "--data-dir", ""])
    assert (result.exit_code, result.exception.__class__) == (2, SystemExit)
    assert "it is empty" in " ".join(result.output.split())


def test_an_unknown_host_name_has_a_sentence_of_its_own():
    """L6."""
    assert explain(socket.gaierror(-2, "Name or service not known")).startswith("a host name is not known")


VALUES = {
    "broker_host": [
        "127.0.0.1",
        "localhost",
        "'::1'",
        "0.0.0.0",
        "a..b",
        "999.1.1.1",
        "1.2.3",
        "host_name",
        "x.invalid",
    ],
    "broker_port": [0, 65536],
    "admin_port": [0, -1],
    "prom_port": [0, "none", "off"],
    "broker.keepalive_interval_ms": [1, 999, 1000],
    "broker.message_bytes_max": [1024, 63 * 1024 * 1024],
    "wal_cloud.wal.dir": ["wal", "file", "file/wal", "directory", "/dev/null", "a b", "'~x'"],
    "wal_cloud.wal.file_name": ["wal.log", "a.b", "wal.tmp", "wal.aside", "a b.log", "wal-1.log", "..log", "x.json"],
    "wal_cloud.wal.sync_mode": ["always", "periodic", "none"],
    "wal_cloud.wal.rotation.max_bytes": [4096, 1 << 40],
    "wal_cloud.wal.rotation.max_hours": ["none", 0.0001, 87600],
    "wal_cloud.wal.file_sync.max_batch_bytes": [1024, 1 << 30],
    "wal_cloud.uploader.enabled": ["true", "false"],
    "wal_cloud.uploader.root_prefix": ["/x", "/x/y", "x", "/", "/x//y", "/x/../y"],
    "wal_cloud.uploader.max_object_mb": ["none", 1, 1 << 20],
    "wal_cloud.cloud.backend": ["fs", "memory", "s3", "nosuchthing", "file", "gcs", "azblob", "sqlite"],
    "wal_cloud.cloud.root": ["objects", "file", "file/x", "s3://b/p", "gcs://b", "container/x", "'#x'", "a%20b"],
    "wal_cloud.cloud.region": ["r", "none"],
    "wal_cloud.cloud.account_name": ["a"],
    "wal_cloud.metadata.in_memory": ["true", "false"],
    "wal_cloud.metadata.sqlite_path": ["m.db", "directory", "directory/m.db", "file/m.db", "none", "':memory:'"],
    "policies.ack_level": ["none", "wal", "fsync", "cloud", "lake"],
    "storage.type": ["wal_cloud", "iceberg"],
    f"{CATALOG}.type": ["sql", "memory", "rest", "glue"],
    f"{CATALOG}.uri": [
        "sqlite:///c.db",
        "sqlite:///directory",
        "sqlite:///file/c.db",
        "http://127.0.0.1:1",
        "sqlite:///%20",
    ],
    f"{CATALOG}.warehouse": ["w", "file", "file/w", "directory", "w#x", "w%20", "s3://b/w", "file:///w?x"],
    f"{CATALOG}.properties": ["{type: rest}", "{a: b}", "{client.region: r}"],
}
"""Values that are usual, at a bound, or wrong; the ones that ask for a service that is not there are left out."""


class StartedError(Exception):
    pass


def start(config):
    """Start a broker; raises StartedError once it is ready, after it has stopped again."""

    def ready(_):
        raise StartedError

    asyncio.run(serving._serve(config, ready, None))


async def store_and_read_back(config, topic):
    """Store three messages in one life of a factory, and find them in the next one."""
    sent = messages(0, 3)
    for life in range(2):
        async with AsyncExitStack() as stack:
            metadata, store = await open_metadata(config, read_only=False), open_store(config)
            stack.push_async_callback(metadata.close)
            factory = WalStorageFactory(topics_config(config), store=store, metadata=metadata)
            stack.push_async_callback(factory.shutdown)
            storage = await factory.for_topic(topic, level=AckLevel.WAL)
            if life == 0:
                await storage.append_messages(sent)
            assert storage.next_offset == len(sent)
            reader = await storage.create_reader(StartPosition.offset(0))
            assert [message.payload for message in await reader.read()] == [message.payload for message in sent]
            await reader.close()


@settings(max_examples=1000 if LONG else 60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(sorted(VALUES)), max_size=4, unique=True).flatmap(
        lambda keys: st.fixed_dictionaries({key: st.sampled_from(VALUES[key]) for key in keys})
    )
)
def test_serve_starts_with_every_configuration_that_the_check_accepts(values):
    """L4 to L11, K11, I3."""
    with new_directory():
        check_that_serve_starts(values)


def check_that_serve_starts(values):
    try:
        loaded = loads(yaml({"broker_port": 0, "admin_port": 0, "prom_port": 0} | values), "f.yml", None, {})
        require_usable(loaded)
    except ConfigError:
        return
    with pytest.raises(StartedError):
        start(loaded.config)
    if loaded.config.wal_cloud.cloud.backend == "fs" and not loaded.config.wal_cloud.metadata.in_memory:
        asyncio.run(store_and_read_back(loaded.config, TopicName("default", "t")))
