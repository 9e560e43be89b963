"""The pipeline with its tables in a PostgreSQL catalog: by configuration alone, and through a restart of the database."""

import asyncio
import os
import signal
import threading

import pyarrow.compute as pc
import pytest
import yaml

from interop.broker import Broker
from ister.config import load
from ister.config.catalog import catalog_properties
from ister.core.names import TopicName
from ister.lake.catalog import LakeCatalog
from ister.lake.errors import CommitRefusedError
from real.test_iceberg_rest import ister
from services.postgres import PASSWORD, USER

TOPIC = "/default/orders"


@pytest.fixture
def settings(postgres, tmp_path):
    catalog = {
        "type": "sql", "uri": postgres.uri, "user": USER, "password": PASSWORD, "warehouse": str(tmp_path / "warehouse"),
    }  # fmt: skip
    config = {
        "wal_cloud": {"cloud": {"backend": "fs", "root": str(tmp_path / "objects")}},
        "storage": {"type": "iceberg", "iceberg_config": {"catalog": catalog}},
    }
    path = tmp_path / "ister.yml"
    path.write_text(yaml.safe_dump(config))
    return config, path


def lake_of(path, directory):
    return LakeCatalog.open(*catalog_properties(load(path, directory, os.environ).config))


def test_a_topic_goes_to_a_postgresql_catalog_is_maintained_and_counted_by_sql(postgres, settings, tmp_path):
    config, path = settings
    home = ["--config", path, "--data-dir", tmp_path]

    def done(*words):
        ended = ister(*words, *home, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr[-4000:]
        assert PASSWORD not in ended.stdout + ended.stderr
        return ended.stdout

    async def produce(broker):
        async with broker.raw() as raw:
            producer = await raw.create_producer(TOPIC)
            await raw.send_all(TOPIC, producer, [b"%d" % n for n in range(200)])

    with Broker(config) as broker:
        for _ in range(2):
            asyncio.run(produce(broker))
            assert "200 rows" in done("pipeline", "run", "--once", "--broker", broker.url)
            postgres.restart(signal.SIGINT)  # at once, whoever is connected
    done("lake", "compact", TOPIC)
    done("lake", "expire", TOPIC)
    table = lake_of(path, tmp_path).catalog.load_table("default.orders")
    offsets = table.scan(selected_fields=("topic_offset",)).to_arrow()["topic_offset"]
    assert (len(offsets), pc.count_distinct(offsets).as_py(), table.properties["ister.upto"]) == (400, 400, '{"0":400}')
    assert '"n":400' in done("sql", "SELECT count(*) AS n FROM default.orders", "-o", "json").replace(" ", "")


def test_two_owners_at_a_postgresql_catalog_are_told_apart(settings, tmp_path):
    _, path = settings
    topic = TopicName.parse("/default/fenced")
    old = lake_of(path, tmp_path).table(topic, 1)
    old.claim(1)
    new = lake_of(path, tmp_path).table(topic, 1)
    new.claim(2)
    with pytest.raises(CommitRefusedError, match="epoch"):
        old.commit_add_files([], {})


def test_many_owners_who_claim_at_once_get_one_table_and_one_last_epoch(settings, tmp_path):
    _, path = settings
    topic = TopicName.parse("/default/contended")
    failed, claimed = [], []

    def claim(epoch):
        try:
            lake_of(path, tmp_path).table(topic, 1).claim(epoch)
            claimed.append(epoch)
        except CommitRefusedError as refused:  # a later owner was there first
            claimed.append(str(refused))
        except Exception as error:  # noqa: BLE001  # told by the test
            failed.append(error)

    threads = [threading.Thread(target=claim, args=(epoch,)) for epoch in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert 8 in claimed
    assert lake_of(path, tmp_path).catalog.load_table("default.contended").properties["ister.epoch"] == "8"
