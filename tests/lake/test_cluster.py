"""A cluster whose executors share nothing with the broker but the object store."""

import json
import os
import subprocess

import pyarrow.compute as pc
import yaml
from pyiceberg.catalog import load_catalog

from interop.broker import ISTER, Broker
from ister.config import load
from ister.config.catalog import catalog_properties
from parts.cluster import cluster
from parts.pipeline import new_topic, produce
from services.moto import shared_moto

LIMIT_S = 240.0


def test_a_standalone_cluster_carries_a_topic_from_the_object_store_to_its_table(tmp_path, tell):
    moto = shared_moto()
    keys = {"access_key": "testkey", "secret_key": "testsecret"}
    config = {
        "wal_cloud": {
            "cloud": {
                "backend": "s3",
                "root": f"s3://{moto.make_bucket()}/objects",
                "endpoint": moto.endpoint,
                "region": "us-east-1",
                **keys,
            }
        }
    }
    topic = new_topic("cluster")
    with Broker(config) as broker:
        produce(broker, topic, [b"payload %d" % n for n in range(1000)])
        path = tmp_path / "ister.yml"
        path.write_text(yaml.safe_dump(config))
        home = tmp_path / "driver"
        home.mkdir()
        secrets = {
            "files": {"s3.access-key-id": "testkey", "s3.secret-access-key": "testsecret"},
            "options": keys,
        }
        with cluster(tmp_path, {"ISTER_EXECUTOR_SECRETS": json.dumps(secrets)}) as master:
            done = subprocess.run(
                [*ISTER, "pipeline", "run", "--once", "--master", master, "--broker", broker.url,
                 "--config", str(path), "--data-dir", str(home), "--topics", topic],
                capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path, env=os.environ, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-4000:]
        assert "1,000 rows" in done.stdout, done.stdout
        workers = [n for n in range(2) if [*(tmp_path / f"worker-{n}" / "work").glob("app-*")]]
        assert workers == [0, 1], "both workers had a part"
        name, properties = catalog_properties(load(path, home, os.environ).config)
        table = load_catalog(name, **properties).load_table(topic.strip("/").replace("/", ".").replace("-", "_"))
        assert table.location().startswith("s3://")
        offsets = table.scan(selected_fields=("topic_offset",)).to_arrow()["topic_offset"]
        assert (len(offsets), pc.count_distinct(offsets).as_py(), table.properties["ister.upto"]) == (
            1000,
            1000,
            '{"0":1000}',
        )
    tell("cluster", "1,000 messages from S3 to a table in S3, on a master with two workers")
