"""The whole pipeline with its tables in Azure and a SQL catalog: by configuration alone."""

import base64

import pytest

from ister.config.catalog import file_properties
from ister.core.errors import InvalidConfigError
from ister.lake.files import open_io
from services.azurite import ACCOUNT, KEY
from services.lake_story import Story, without_providers

OTHER = base64.b64encode(b"another key, of thirty-two bytes").decode()


@pytest.fixture
def story(azurite, tmp_path, monkeypatch):
    without_providers(monkeypatch)
    cloud = {
        "backend": "azblob", "root": f"{azurite.make_container()}/some", "endpoint": f"{azurite.endpoint}/{ACCOUNT}",
        "account_name": ACCOUNT, "account_key": KEY,
    }  # fmt: skip
    return Story(tmp_path, cloud, {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}, KEY)


def warehouse(story):
    container, _, prefix = story.config.wal_cloud.cloud.root.partition("/")
    return f"abfss://{container}@{ACCOUNT}.dfs.core.windows.net/{prefix}/lake.warehouse"


def test_a_topic_goes_to_a_table_in_azure_and_each_writer_goes_on_where_the_table_ends(story):
    story.tell(warehouse(story))


def test_spark_maintains_and_counts_a_table_in_azure(story):
    # Not "orphans": Java lists a directory by ADLS's own interface, to which Azurite answers with 400.
    story.tell_with_spark(warehouse(story), ("compact", "manifests", "expire"))


def test_two_owners_of_a_table_in_azure_are_told_apart(story):
    story.assert_fenced()


def test_files_in_azure_are_made_once_read_whole_and_missed_when_they_are_gone(story):
    story.assert_files(f"{warehouse(story)}/a file")


def test_the_key_of_azure_travels_by_the_environment_alone(story, monkeypatch):
    story.assert_secret_travels_by_the_environment_alone(monkeypatch, "adls.account-key")


def test_who_has_another_key_is_refused_by_azure_and_no_key_is_told(story):
    location = f"{warehouse(story)}/x"
    properties = file_properties(story.config) | {"adls.account-key": OTHER}
    with pytest.raises(OSError, match="403") as refused:
        open_io(properties, location).new_input(location).open()
    assert OTHER not in str(refused.value)


def test_a_key_that_cannot_be_one_ends_no_process(story):
    location = f"{warehouse(story)}/x"
    properties = file_properties(story.config) | {"adls.account-key": "=no key"}
    with pytest.raises(InvalidConfigError, match="account_key: is not base64"):
        open_io(properties, location).new_input(location).open()
