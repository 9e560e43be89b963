"""Spark's part of a lake whose catalog is Glue and whose tables are in S3, on a simulated AWS; Python's is in tests/lake."""

from services.lake_story import glue_story, without_providers
from services.moto import serve_moto


def test_spark_maintains_and_counts_a_table_of_glue(tmp_path, monkeypatch):
    without_providers(monkeypatch)
    with serve_moto() as moto:
        story = glue_story(moto, tmp_path)
        story.tell_with_spark(f"{story.config.wal_cloud.cloud.root}/lake.warehouse")
