"""Files in GCS and Azure: what PyIceberg is told of them, and what we do because it does not."""

import json
import os

import pyarrow.fs
import pytest
from pyiceberg.io import load_file_io

from ister.config.catalog import STORE_FILES, catalog_properties, file_properties
from ister.config.environment import SECRETS_VARIABLE
from ister.core.errors import InvalidConfigError
from ister.lake.files import GCS_CREDENTIALS_VARIABLE, StoreFileIO, open_io
from ister.runtime.pipeline import export_secrets
from parts.config import read, section

LAKE = "storage.iceberg_config"
KEYS = {"ID": "the-id", "SECRET": "the-secret"}
AZURE = "backend: azblob\nroot: c\naccount_name: me\naccount_key: ${SECRET}"


@pytest.mark.parametrize(
    ("endpoint", "scheme", "blob", "dfs"),
    [
        ("http://127.0.0.1:10000/me", "http", "127.0.0.1:10000", "127.0.0.1:10000"),
        ("https://me.blob.core.windows.net/", "https", ".blob.core.windows.net", ".dfs.core.windows.net"),
        ("https://me.blob.core.chinacloudapi.cn", "https", ".blob.core.chinacloudapi.cn", ".dfs.core.chinacloudapi.cn"),
    ],
)
def test_azures_endpoint_is_told_without_the_account_which_the_library_adds(endpoint, scheme, blob, dfs):
    told = file_properties(read(section("wal_cloud.cloud", f"{AZURE}\nendpoint: {endpoint}"), KEYS).config)
    assert told == {
        "py-io-impl": STORE_FILES,
        "adls.account-name": "me",
        "adls.blob-storage-scheme": scheme,
        "adls.dfs-storage-scheme": scheme,
        "adls.blob-storage-authority": blob,
        "adls.dfs-storage-authority": dfs,
    }


@pytest.mark.parametrize(("account", "has_key"), [("me", True), ("other", False)])
def test_tables_are_kept_in_the_account_of_their_address_and_no_other_gets_our_key(account, has_key):
    place = f"abfss://c@{account}.dfs.core.windows.net/w"
    text = section("wal_cloud.cloud", AZURE) + section(f"{LAKE}.catalog", f"warehouse: {place}")
    _, python = catalog_properties(read(text, KEYS).config)
    assert (python["adls.account-name"], "adls.account-key" in python) == (account, has_key)
    assert (python["py-io-impl"], python["adls.dfs-storage-authority"]) == (STORE_FILES, ".dfs.core.windows.net")


@pytest.mark.parametrize("place", ["gs://b/w", "abfss://c@me.dfs.core.windows.net/w"])
def test_tables_elsewhere_than_objects_are_reached_by_our_files_too(place):
    told = file_properties(read(section(f"{LAKE}.catalog", f"warehouse: {place}")).config)
    assert told["py-io-impl"] == STORE_FILES
    assert told.get("adls.account-name") == (None if place.startswith("gs") else "me")


def test_glue_is_asked_with_the_stores_keys_and_region_unless_it_has_its_own():
    cloud = "backend: s3\nroot: s3://b\nregion: r\naccess_key: ${ID}\nsecret_key: ${SECRET}"
    for catalog, region in (("type: glue", "r"), ("type: glue\nregion: eu-1", "eu-1")):
        config = read(section("wal_cloud.cloud", cloud) + section(f"{LAKE}.catalog", catalog), KEYS).config
        _, python = catalog_properties(config)
        assert python["glue.region"] == region
        assert (python["glue.access-key-id"], python["glue.secret-access-key"]) == ("the-id", "the-secret")
        assert not [name for name in file_properties(config) if name.startswith("glue.")]


# --- files ------------------------------------------------------------------------------------------------------------


def test_the_name_in_the_configuration_is_that_of_our_files():
    assert type(load_file_io({"py-io-impl": STORE_FILES})) is StoreFileIO


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("abfss://c@me.dfs.core.windows.net/w/a b%20c/x.parquet", "c/w/a b%20c/x.parquet"),
        ("abfss://c/w/x@y", "c/w/x@y"),
        ("gs://b/w/x@y", "b/w/x@y"),
        ("s3://b/w/x", "b/w/x"),
        ("file:///w/x@y", "/w/x@y"),
    ],
)
def test_a_path_in_azure_begins_with_the_container_alone(location, path):
    assert StoreFileIO.parse_location(location)[2] == path


def test_a_local_file_is_synced_by_them_too(tmp_path):
    files = open_io({"py-io-impl": STORE_FILES}, f"file://{tmp_path}/deep/x")
    with files.new_output(f"file://{tmp_path}/deep/x").create() as made:
        assert type(made).__name__ == "_SyncedStream"


def test_a_key_of_azure_that_is_no_base64_is_refused_and_not_told():
    files = open_io(
        {"py-io-impl": STORE_FILES, "adls.account-name": "me", "adls.account-key": "=canary"}, "abfss://c/x"
    )
    with pytest.raises(InvalidConfigError, match="is not base64") as refused:
        files.new_input("abfss://c/x")
    assert "canary" not in str(refused.value)


def test_credentials_of_gcs_are_told_by_their_file_where_it_is(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(
        "ister.lake.files.GcsFileSystem", lambda **given: told.append(given) or pyarrow.fs.LocalFileSystem()
    )
    monkeypatch.setenv(GCS_CREDENTIALS_VARIABLE, "")
    monkeypatch.delenv(GCS_CREDENTIALS_VARIABLE)
    path = tmp_path / "credentials"
    text = f"backend: gcs\nroot: gs://b\ncredentials_path: {path}\nendpoint: http://127.0.0.1:5"
    files = open_io(file_properties(read(section("wal_cloud.cloud", text)).config), "gs://b/x")
    files.new_input("gs://b/x")
    assert GCS_CREDENTIALS_VARIABLE not in os.environ, "there is no such file here"
    path.touch()
    StoreFileIO(files.properties).new_input("gs://b/x")
    assert os.environ[GCS_CREDENTIALS_VARIABLE] == str(path)
    assert [(one["anonymous"], one["scheme"], one["endpoint_override"]) for one in told] == 2 * [
        (False, "http", "127.0.0.1:5")
    ]
    assert all(one["retry_time_limit"] for one in told)


def test_every_property_that_the_driver_has_for_files_reaches_executors(monkeypatch):
    """K10."""
    monkeypatch.setattr(os, "environ", {})
    keys = "client.region: r, client.access-key-id: a, client.secret-access-key: '${SECRET}', header.X-Api-Key: h"
    text = f"type: rest\nuri: http://127.0.0.1:1\nwarehouse: w\nproperties: {{{keys}}}"
    export_secrets(read(section(f"{LAKE}.catalog", text), KEYS).config)
    told = json.loads(os.environ[SECRETS_VARIABLE])["files"]
    assert told == {"client.region": "r", "client.access-key-id": "a", "client.secret-access-key": "the-secret"}


def test_who_chooses_other_files_has_them_in_executors_too(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    text = "warehouse: gs://b/w\nproperties: {py-io-impl: theirs.FileIO, gcs.oauth2.token: '${SECRET}'}"
    export_secrets(read(section(f"{LAKE}.catalog", text), KEYS).config)
    told = json.loads(os.environ[SECRETS_VARIABLE])["files"]
    assert told == {"py-io-impl": "theirs.FileIO", "gcs.oauth2.token": "the-secret"}
