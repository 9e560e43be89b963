"""The pipeline with a REST catalog and MinIO: by configuration alone."""

import asyncio
import os
import subprocess

import pyarrow.compute as pc
import pytest
import yaml
from pyiceberg.catalog import load_catalog

from interop.broker import ISTER, Broker
from ister.config import load
from ister.config.catalog import catalog_properties
from ister.core.names import TopicName
from ister.lake.catalog import LakeCatalog
from ister.lake.errors import CommitRefusedError
from services.minio import PASSWORD, USER

LIMIT_S = 300.0
TOPIC = "/default/orders"


def configuration(minio, iceberg_rest):
    keys = {"access_key": USER, "secret_key": PASSWORD, "endpoint": minio.endpoint, "region": "us-east-1"}
    root = f"s3://{iceberg_rest.bucket}/objects"
    return {
        "wal_cloud": {"cloud": {"backend": "s3", "root": root, **keys}},
        "storage": {
            "type": "iceberg",
            "iceberg_config": {
                "catalog": {"type": "rest", "uri": iceberg_rest.endpoint, "warehouse": iceberg_rest.warehouse}
            },
        },
    }


def ister(*words, cwd):
    return subprocess.run(
        [*ISTER, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=cwd,
        env=os.environ,
        check=False,
    )


def test_a_topic_goes_to_a_rest_catalog_and_sql_counts_it(minio, iceberg_rest, tmp_path):
    config = configuration(minio, iceberg_rest)
    path = tmp_path / "ister.yml"
    path.write_text(yaml.safe_dump(config))

    async def produce(broker):
        async with broker.raw() as raw:
            producer = await raw.create_producer(TOPIC)
            await raw.send_all(TOPIC, producer, [b"%d" % n for n in range(200)])

    with Broker(config) as broker:
        for round_ in (1, 2):
            asyncio.run(produce(broker))
            home = ["--config", path, "--data-dir", tmp_path / "new" / "data"]
            done = ister("pipeline", "run", "--once", "--broker", broker.url, *home, cwd=tmp_path)
            assert done.returncode == 0, done.stderr[-4000:]
            assert "200 rows" in done.stdout, f"round {round_}: {done.stdout}"
    name, properties = catalog_properties(load(path, tmp_path, os.environ).config)
    table = load_catalog(name, **properties).load_table("default.orders")
    offsets = table.scan(selected_fields=("topic_offset",)).to_arrow()["topic_offset"]
    assert (len(offsets), pc.count_distinct(offsets).as_py(), table.properties["ister.upto"]) == (400, 400, '{"0":400}')
    stray = f"{table.location()}/data/stray.parquet"
    with table.io.new_output(stray).create() as file:
        file.write(b"young")
    for word in ("compact", "manifests", "expire", "orphans"):
        done = ister("lake", word, *home, cwd=tmp_path)
        assert done.returncode == 0, f"{word}: {done.stderr[-4000:]}"
    assert table.io.new_input(stray).exists(), "what is younger than a day may be of a commit under way"
    asked = ister("sql", "SELECT count(*) AS n FROM default.orders", "-o", "json", *home, cwd=tmp_path)
    assert asked.returncode == 0, asked.stderr[-4000:]
    assert '"n":400' in asked.stdout.replace(" ", "")


def test_two_owners_at_a_rest_catalog_are_told_apart(minio, iceberg_rest, tmp_path):
    path = tmp_path / "ister.yml"
    path.write_text(yaml.safe_dump(configuration(minio, iceberg_rest)))
    name, properties = catalog_properties(load(path, tmp_path, os.environ).config)
    topic = TopicName.parse("/default/fenced")
    old = LakeCatalog.open(name, properties).table(topic, 1)
    old.claim(1)
    new = LakeCatalog.open(name, properties).table(topic, 1)
    new.claim(2)
    with pytest.raises(CommitRefusedError, match="epoch"):
        old.commit_add_files([], {})
