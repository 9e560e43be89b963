"""The whole pipeline on a store of objects, by configuration alone; which store and which catalog, its test says."""

import asyncio
import json
import os
import subprocess
import sys

import pyarrow.compute as pc
import pytest
import yaml

from interop.broker import Broker
from ister.config import load
from ister.config.catalog import catalog_properties
from ister.config.environment import SECRETS_VARIABLE
from ister.core.names import TopicName
from ister.lake.catalog import LakeCatalog
from ister.lake.errors import CommitRefusedError
from ister.lake.files import of_files, open_io
from ister.lake.topic_table import TableReads
from ister.pipeline.maintenance import reachable
from ister.ports.objects import StoreSettings, open_store
from ister.runtime.pipeline import export_secrets, reach

LIMIT_S = 300.0
TOPIC = "/default/orders"
WHOLE = "from ister.cli import main; main()"
# Java's part of the store is left out: what carries topics to tables is Python alone.
WITHOUT_JAVA = f"from ister.config import catalog; catalog.BUNDLES.clear(); {WHOLE}"
PROVIDERS = ("AWS_", "AZURE_", "GOOGLE_", "ISTER_PIPELINE", SECRETS_VARIABLE)


def glue_story(moto, directory):
    """A story whose catalog is Glue, and whose tables are in S3, both on moto."""
    cloud = moto.cloud(f"{moto.make_bucket()}/some")
    return Story(directory, cloud, {"type": "glue", "name": "glue", "uri": moto.endpoint}, cloud["secret_key"])


class Story:
    """A configuration, and what happens with it; only its file says how to reach catalog and store."""

    def __init__(self, directory, cloud, catalog, secret):
        self.directory = directory
        self.secret = secret
        self.written = {
            "wal_cloud": {"cloud": cloud},
            "storage": {"type": "iceberg", "iceberg_config": {"catalog": catalog}},
        }
        self.path = directory / "ister.yml"
        self.path.write_text(yaml.safe_dump(self.written))
        self.config = load(self.path, directory, {}).config
        self._runs = 0

    def lake(self):
        return LakeCatalog.open(*catalog_properties(self.config))

    def ister(self, *words, code=WITHOUT_JAVA):
        """Run a command in a data directory that knows nothing yet, and return what it says."""
        self._runs += 1
        home = self.directory / f"home-{self._runs}"
        home.mkdir()
        ended = subprocess.run(
            [sys.executable, "-c", code, *words, "--config", str(self.path), "--data-dir", str(home)],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=self.directory,
            env={name: value for name, value in os.environ.items() if not name.startswith(PROVIDERS)},
            check=False,
        )
        assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
        assert self.secret is None or self.secret not in ended.stdout + ended.stderr
        return ended.stdout

    def tell(self, warehouse):
        """Carry two rounds of messages, each by a writer that knows the table alone; damage the table, and mend it."""
        payloads = [b"%d" % n for n in range(400)]
        with Broker(self.written) as broker:
            run = ("pipeline", "run", "--once", "--broker", broker.url)
            for round_ in (payloads[:200], payloads[200:]):
                asyncio.run(_produce(broker, round_))
                assert "200 rows" in self.ister(*run)
            table = self.table()
            assert table.location() == f"{warehouse}/default/orders"
            assert _appended(table) == [(0, 200), (200, 400)]
            self.assert_exact(payloads)
            self.assert_layout(table, warehouse)
            [line] = json.loads(self.ister("pipeline", "status", "--broker", broker.url, "-o", "json"))["topics"]
            assert (line["table"], line["committed"], line["lag_messages"], line["error"]) == (
                "default.orders",
                400,
                0,
                "",
            )
            table.delete("topic_offset >= 300")
            assert "whole below offset 300" in self.ister("lake", "repair", TOPIC, "--yes", "--broker", broker.url)
            assert self.table().properties["ister.upto"] == '{"0":300}'
            assert "100 rows" in self.ister(*run)
        self.assert_exact(payloads)

    def tell_with_spark(self, warehouse, procedures=("compact", "manifests", "expire", "orphans")):
        """Carry messages as before; then Spark maintains the table, and counts it."""
        self.tell(warehouse)
        stray = f"{self.table().location()}/data/stray.parquet"
        with self.table().io.new_output(stray).create() as file:
            file.write(b"young")
        for word in procedures:
            self.ister("lake", word, code=WHOLE)
        assert self.table().io.new_input(stray).exists(), "what is younger than a day may be of a commit under way"
        assert self.table().current_snapshot().summary.operation.value == "replace", "it was compacted"
        asked = "SELECT count(*) AS n, count(DISTINCT topic_offset) AS d, max(topic_offset) AS m FROM default.orders"
        row = json.loads(self.ister("sql", asked, "-o", "json", code=WHOLE))
        assert row == {"n": 400, "d": 400, "m": 399}
        self.assert_exact([b"%d" % n for n in range(400)])

    def table(self):
        return self.lake().catalog.load_table("default.orders")

    def assert_exact(self, payloads):
        """Insist on count = count distinct = upto, on every payload, and that the tier of tables reads the same."""
        table = self.table()
        rows = table.scan(selected_fields=("topic_offset", "payload")).to_arrow().sort_by("topic_offset")
        offsets, count = rows["topic_offset"], len(payloads)
        assert (len(offsets), pc.count_distinct(offsets).as_py()) == (count, count)
        assert table.properties["ister.upto"] == f'{{"0":{count}}}'
        assert offsets.to_pylist() == list(range(count))
        assert rows["payload"].to_pylist() == payloads
        assert asyncio.run(_read_back(self.lake(), count)) == payloads

    def assert_layout(self, table, warehouse):
        """Insist that the store has what the table leads to under these names, and nothing else in the warehouse."""
        cloud = self.config.wal_cloud.cloud
        store = open_store(StoreSettings(cloud.backend, cloud.root, cloud.revealed_options()))
        there = {key for key in asyncio.run(_keys(store, "lake.warehouse/")) if not key.endswith("/")}
        files = {f"lake.warehouse{location.removeprefix(warehouse)}" for location in reachable(table)}
        assert files <= there
        for key in there:
            assert key.startswith(("lake.warehouse/default/orders/data/", "lake.warehouse/default/orders/metadata/"))
        assert {key for key in there - files if key.endswith(".parquet")} == set()

    def assert_secret_travels_by_the_environment_alone(self, monkeypatch, name):
        """Insist that what Spark sends to executors has no secret, and that the environment gives it to them."""
        monkeypatch.delenv(SECRETS_VARIABLE, raising=False)
        sent = reach(self.config)
        assert self.secret not in repr(sent)
        assert name not in sent.whole().files
        monkeypatch.setattr(os, "environ", {})
        export_secrets(self.config)
        assert sent.whole().files[name] == self.secret
        assert sent.whole().files.items() >= sent.files.items()

    def assert_files(self, location):
        """Insist that files are told apart: those that are there, with every byte, and those that are not."""
        _, properties = catalog_properties(self.config)
        files = open_io(of_files(properties), location)
        data = os.urandom(3_000_000)
        assert not files.new_input(location).exists()
        with files.new_output(location).create() as made:
            made.write(data)
        with pytest.raises(FileExistsError):
            files.new_output(location).create()
        with files.new_input(location).open() as found:
            assert (found.read(), len(files.new_input(location))) == (data, len(data))
        files.delete(location)
        with pytest.raises(FileNotFoundError):
            files.delete(location)
        with pytest.raises(FileNotFoundError):
            files.new_input(location).open()

    def assert_fenced(self):
        """Insist that of two owners the first is refused once the second is there."""
        topic = TopicName.parse("/default/fenced")
        old = self.lake().table(topic, 1)
        old.claim(1)
        self.lake().table(topic, 1).claim(2)
        with pytest.raises(CommitRefusedError, match="epoch"):
            old.commit_add_files([], {})


async def _produce(broker, payloads):
    async with broker.raw() as raw:
        producer = await raw.create_producer(TOPIC)
        for payload in payloads:  # in this order
            await raw.send(TOPIC, producer, payload)


async def _keys(store, prefix):
    try:
        return [info.key async for info in store.list(prefix)]
    finally:
        await store.close()


async def _read_back(lake, stop):
    reads = TableReads(lake)
    rows = reads.table(TopicName.parse(TOPIC), 1)
    await rows.look()
    stream, found = rows.open(0, stop), []
    while messages := await stream.read():
        found += [message.payload for message in messages]
    await stream.close()
    await rows.close()
    reads.close()
    return found


def _appended(table):
    """Return from where to where each snapshot went on; a claim goes nowhere."""
    found = [snapshot.summary.additional_properties for snapshot in table.snapshots()]
    return [
        (json.loads(one["ister.from"])["0"], json.loads(one["ister.upto"])["0"]) for one in found if "ister.from" in one
    ]


def without_providers(monkeypatch):
    """Take away what this machine's own environment says of stores."""
    for name in [name for name in os.environ if name.startswith(PROVIDERS)]:
        monkeypatch.delenv(name)
