"""`ister topics`, and what all tools of the cloud tier have in common: where they look, and that they only look."""

import asyncio
import json
import re
from pathlib import Path

import pytest
import structlog

from ister.cloud import Retention, UploadOptions
from ister.config import load, loads
from ister.core.errors import InputError
from ister.ports.metadata import MemoryMetadata
from ister.ports.metadata.etcd import EtcdMetadata
from ister.ports.objects import FsStore
from ister.runtime import compose
from ister.storage.factory import TopicsConfig
from ister.wal.config import SyncMode, WalConfig
from parts.data_dir import NAME, TOPIC, broker, fill, listing, log_files, make, messages, metadata_of, run

TOOLS = [
    ["topics"],
    ["tiers", TOPIC],
    ["read", TOPIC],
    ["objects", "verify", TOPIC],
    ["objects", "rebuild", "--dry-run"],
]


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    yield
    structlog.reset_defaults()


def as_json(data):
    result = run("topics", "--data-dir", data, "--output", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)["topics"]


def test_each_topic_is_listed_with_what_its_names_say(tmp_path):
    data = tmp_path / "data"

    async def making():
        async with broker(data) as factory:
            await fill(factory)
            await fill(factory, topic="/default/clicks", uploaded=0, pruned=0)

    asyncio.run(making())
    clicks, orders = as_json(data)
    assert orders == {
        "topic": TOPIC,
        "generation": 1,
        "in_metadata": True,
        "start": 0,
        "uploaded": 30,
        "log_files": 3,
        "log_bytes": sum(path.stat().st_size for path in log_files(data)),
    }
    assert (clicks["topic"], clicks["uploaded"], clicks["log_files"]) == ("/default/clicks", 0, 4)


def test_people_get_a_table_and_the_next_step(tmp_path):
    result = run("topics", "--data-dir", make(tmp_path / "data"))
    assert result.exit_code == 0
    (line,) = [line for line in result.stdout.splitlines() if line.startswith(TOPIC)]
    assert line.split()[1:5] == ["1", "0", "30", "3"]
    assert result.stdout.splitlines()[-1] == f"1 topic. Next: ister tiers {TOPIC}"


def test_a_deleted_topic_is_not_listed_and_a_re_created_one_is(tmp_path):
    data = tmp_path / "data"

    async def making():
        async with broker(data) as factory:
            for topic in (TOPIC, "/default/clicks"):
                await fill(factory, topic=topic)
                await factory.delete_topic(topic)
            await fill(factory, files=1, uploaded=0, pruned=0)

    asyncio.run(making())
    (line,) = as_json(data)
    assert (line["topic"], line["generation"], line["uploaded"]) == (TOPIC, 2, 0)


def test_a_topic_that_only_the_disk_knows_is_listed_as_such(tmp_path):
    data = make(tmp_path / "data")

    async def forget(metadata, _catalog):
        await metadata.delete("/danube-data/storage/topics/default/orders")

    metadata_of(data, forget)
    (line,) = as_json(data)
    assert (line["in_metadata"], line["generation"]) == (False, 1)
    assert "not in metadata" in run("topics", "--data-dir", data).stdout


def test_no_topics_are_no_failure(tmp_path):
    async def nothing():
        async with broker(tmp_path / "data"):
            pass

    asyncio.run(nothing())
    result = run("topics", "--data-dir", tmp_path / "data")
    assert (result.exit_code, result.stdout) == (0, "There are no topics yet.\n")


# --- what all tools have in common ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", TOOLS[:-1], ids=" ".join)
def test_metadata_that_is_not_there_is_not_made(tmp_path, tool):
    result = run(*tool, "--data-dir", tmp_path / "data")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"ister: {tmp_path}/data/metadata.db does not exist, so no topic is known; ")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("tool", TOOLS, ids=" ".join)
def test_nothing_is_changed_and_nothing_is_locked(tmp_path, tool):
    data = make(tmp_path / "data")
    before = listing(data)
    result = run(*tool, "--data-dir", data)
    assert result.exit_code == (2 if "rebuild" in tool else 0), result.stderr
    assert listing(data) == before
    assert not list(data.glob("metadata.db-*"))


@pytest.mark.parametrize("tool", TOOLS, ids=" ".join)
def test_the_owner_of_every_lock_is_not_disturbed(tmp_path, tool):
    data = tmp_path / "data"

    async def use():
        async with broker(data) as factory:
            storage = await fill(factory)
            before = listing(data)
            result = await asyncio.to_thread(run, *tool, "--data-dir", data)
            assert result.exit_code == (2 if "rebuild" in tool else 0), result.stderr
            assert listing(data) == before
            assert await storage.append_messages(messages(40, 41)) == range(40, 41)
            await factory.uploader(NAME).drain()

    asyncio.run(use())


@pytest.mark.parametrize("tool", TOOLS, ids=" ".join)
def test_a_configuration_that_is_not_there_is_one_line(tmp_path, tool):
    result = run(*tool, "--config", tmp_path / "none.yml")
    assert (result.exit_code, result.stderr) == (2, f"ister: {tmp_path}/none.yml does not exist; check the path.\n")


@pytest.mark.parametrize("tool", TOOLS, ids=" ".join)
def test_a_configuration_that_is_wrong_is_told_line_by_line(tmp_path, tool):
    path = tmp_path / "ister.yml"
    path.write_text("wal_cloud:\n  wal:\n    sync_mode: sometimes\n  cloud:\n    backend: s3\n")
    result = run(*tool, "--config", path)
    assert result.exit_code == 2
    assert [line.split(":")[1] for line in result.stderr.splitlines()] == ["3", "4"]


def test_a_configuration_says_where_everything_is(tmp_path):
    data = make(tmp_path / "data")
    (tmp_path / "elsewhere").mkdir()
    (data / "objects").rename(tmp_path / "elsewhere/objects")
    (data / "metadata.db").rename(tmp_path / "elsewhere/meta.db")
    path = tmp_path / "ister.yml"
    path.write_text(
        f"wal_cloud:\n  wal:\n    dir: {data}/wal\n  cloud:\n    root: {tmp_path}/elsewhere/objects\n"
        f"  metadata:\n    sqlite_path: {tmp_path}/elsewhere/meta.db\n"
    )
    for tool in TOOLS[:-1]:
        assert run(*tool, "--config", path).exit_code == 0


@pytest.mark.parametrize("tool", TOOLS, ids=" ".join)
def test_metadata_in_a_brokers_memory_cannot_be_read(tmp_path, tool):
    data = make(tmp_path / "data")
    path = tmp_path / "ister.yml"
    path.write_text("wal_cloud:\n  metadata:\n    in_memory: true\n")
    result = run(*tool, "--config", path, "--data-dir", data)
    assert result.exit_code == 2
    assert "metadata.in_memory keeps metadata in the memory of the broker" in result.stderr


def test_a_store_that_cannot_be_reached_is_code_three(tmp_path):
    data = make(tmp_path / "data")
    path = tmp_path / "ister.yml"
    path.write_text(
        "wal_cloud:\n  cloud:\n    backend: s3\n    root: s3://bucket/p\n    region: r\n    access_key: a\n"
        "    secret_key: hush\n    endpoint: http://127.0.0.1:1\n"
    )
    result = run("objects", "verify", TOPIC, "--config", path, "--data-dir", data)
    assert result.exit_code == 3
    assert result.stderr.startswith("ister: s3 s3://bucket/p could not list ")
    assert result.stderr.endswith("run it again once the object store can be reached.\n")
    assert (result.stderr.count("\n"), "hush" in result.stderr) == (1, False)


def test_metadata_that_is_damaged_is_code_one(tmp_path):
    data = make(tmp_path / "data")
    (data / "metadata.db").write_bytes(b"no database, but long enough to be looked at" * 100)
    result = run("topics", "--data-dir", data)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)


@pytest.mark.parametrize("tool", [*TOOLS[:-1], ["objects"], ["objects", "rebuild"]], ids=" ".join)
def test_help_fits_on_a_screen_and_has_an_example(tool):
    words = [word for word in tool if not word.startswith("/")]
    text = run(*words, "--help").stdout
    assert len(text.splitlines()) <= 36
    assert ("Example: ister" in text) == (words != ["objects"])
    for code in range(6):
        assert re.search(rf"^\s+{code}  \w", text, re.MULTILINE)


# --- from a configuration to ports ------------------------------------------------------------------------------------


def test_every_setting_reaches_the_options_that_it_is_for():
    text = b"""
wal_cloud:
  wal:
    dir: /logs
    file_name: ister.wal
    cache_capacity: 7
    sync_mode: always
    file_sync: {interval_ms: 8, max_batch_bytes: 9000}
    rotation: {max_bytes: 10000, max_hours: 11}
    retention: {time_minutes: 12, size_mb: 13, check_interval_minutes: 14}
  uploader: {enabled: false, interval_seconds: 15, root_prefix: /sixteen, max_object_mb: 4}
"""
    config = compose.topics_config(loads(text, "test").config)
    assert config.wal == WalConfig(
        dir=Path("/logs"), file_name="ister.wal", cache_capacity=7, sync_mode=SyncMode.ALWAYS, fsync_interval_ms=8,
        max_batch_bytes=9000, max_bytes=10000, max_hours=11.0,
    )  # fmt: skip
    assert config.upload == UploadOptions(enabled=False, interval_s=15.0, max_object_mb=4)
    assert config.retention == Retention(time_minutes=12, size_mb=13, check_interval_minutes=14)
    assert config.root_prefix == "/sixteen"


def test_the_defaults_of_a_configuration_are_the_defaults_of_the_parts(tmp_path):
    config = compose.topics_config(load(None, tmp_path).config)
    assert config.wal == WalConfig(dir=tmp_path / "wal")
    assert (config.upload, config.retention) == (UploadOptions(), Retention())
    assert config == TopicsConfig(wal=WalConfig(dir=tmp_path / "wal"))
    assert config.root_prefix == "/danube-data"
    store = compose.open_store(load(None, tmp_path).config)
    assert isinstance(store, FsStore)
    assert store.name == f"fs {tmp_path}/objects"


def test_etcd_is_asked_as_the_configuration_says(monkeypatch):
    asked = []

    async def opened(endpoints, **options):
        asked.append((endpoints, options))

    monkeypatch.setattr(EtcdMetadata, "open", opened)
    text = b"""
wal_cloud:
  metadata: {etcd_endpoint: "a:1,b:2", etcd_ca: /ca, etcd_cert: /cert, etcd_key: /key, etcd_user: u, etcd_password: p}
"""
    asyncio.run(compose.open_metadata(loads(text, "test").config, read_only=True))
    options = {"ca": Path("/ca"), "cert": Path("/cert"), "key": Path("/key"), "user": "u", "password": "p"}
    assert asked == [(("a:1", "b:2"), options | {"root": "/danube-data", "read_only": True})]


def test_memory_is_for_the_process_that_has_it():
    config = loads(b"wal_cloud:\n  metadata:\n    in_memory: true\n", "test").config
    assert isinstance(asyncio.run(compose.open_metadata(config, read_only=False)), MemoryMetadata)
    with pytest.raises(InputError, match="in the memory of the broker"):
        asyncio.run(compose.open_metadata(config, read_only=True))


def test_a_new_metadata_file_gets_its_directory(tmp_path):
    async def use():
        metadata = await compose.open_metadata(load(None, tmp_path / "a/b").config, read_only=False)
        await metadata.close()

    asyncio.run(use())
    assert (tmp_path / "a/b/metadata.db").exists()
