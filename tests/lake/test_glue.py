"""The whole pipeline with a Glue catalog and its tables in S3, on a simulated AWS: by configuration alone."""

import pytest

from services.lake_story import glue_story, without_providers
from services.moto import serve_moto


@pytest.fixture(scope="module")
def moto():
    """A server of its own: all catalogs of a Glue have the same tables, whatever their names."""
    with serve_moto() as found:
        yield found


@pytest.fixture
def story(moto, tmp_path, monkeypatch):
    without_providers(monkeypatch)
    return glue_story(moto, tmp_path)


def test_a_topic_goes_to_a_table_of_glue_and_each_writer_goes_on_where_the_table_ends(story):
    story.tell(f"{story.config.wal_cloud.cloud.root}/lake.warehouse")


def test_two_owners_of_a_table_of_glue_are_told_apart(story):
    story.assert_fenced()


def test_the_secret_of_s3_travels_by_the_environment_alone(story, monkeypatch):
    story.assert_secret_travels_by_the_environment_alone(monkeypatch, "s3.secret-access-key")
