"""Spark's part of a lake whose catalog is Glue and whose tables are in S3, on a simulated AWS; Python's is in tests/lake."""

from services.lake_story import Story, without_providers
from services.moto import serve_moto

SECRET = "testsecret"


def test_spark_maintains_and_counts_a_table_of_glue(tmp_path, monkeypatch):
    without_providers(monkeypatch)
    with serve_moto() as moto:
        root = f"s3://{moto.make_bucket()}/some"
        keys = {"access_key": "testkey", "secret_key": SECRET, "endpoint": moto.endpoint, "region": "us-east-1"}
        catalog = {"type": "glue", "name": "lake", "uri": moto.endpoint}
        story = Story(tmp_path, {"backend": "s3", "root": root, **keys}, catalog, SECRET)
        story.tell_with_spark(f"{root}/lake.warehouse")
