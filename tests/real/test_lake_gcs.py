"""The whole pipeline with its tables in Google Cloud Storage and a SQL catalog: by configuration alone."""

from datetime import timedelta

import pytest

from ister.config.catalog import file_properties
from ister.lake.files import open_io
from services.lake_story import Story, without_providers


@pytest.fixture
def story(fake_gcs, tmp_path, monkeypatch):
    without_providers(monkeypatch)
    root = f"gs://{fake_gcs.make_bucket()}/some"
    cloud = {"backend": "gcs", "root": root, "endpoint": fake_gcs.endpoint, "anonymous": True}
    return Story(tmp_path, cloud, {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}, secret=None)


def test_a_topic_goes_to_a_table_in_gcs_and_each_writer_goes_on_where_the_table_ends(story):
    story.tell(f"{story.config.wal_cloud.cloud.root}/lake.warehouse")


def test_spark_maintains_and_counts_a_table_in_gcs(story):
    story.tell_with_spark(f"{story.config.wal_cloud.cloud.root}/lake.warehouse")


def test_two_owners_of_a_table_in_gcs_are_told_apart(story):
    story.assert_fenced()


def test_files_in_gcs_are_made_once_read_whole_and_missed_when_they_are_gone(story):
    story.assert_files(f"{story.config.wal_cloud.cloud.root}/a file")


def test_a_gcs_that_does_not_answer_is_given_up_in_bounded_time(story, monkeypatch):
    monkeypatch.setattr("ister.lake.files.GCS_RETRY_LIMIT", timedelta(seconds=1))
    files = open_io(file_properties(story.config) | {"gcs.service.host": "http://127.0.0.1:1"}, "gs://b/x")
    with pytest.raises(OSError, match="connect"):
        files.new_input("gs://b/x").open()
