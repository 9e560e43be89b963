"""docs/config.md and the starter file are what the models say, and everything in them can be used."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ister.config import advice, load, loads, values
from ister.config.reference import reference
from ister.config.sections import every_section, whole_file
from ister.config.starter import starter
from ister.ports.objects.root import StoreSettings, open_store

PAGE = Path(__file__).parent.parent.parent / "docs" / "config.md"
EXAMPLES = re.findall(r"^### ([^\n]+)\n\n```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
KEYS = [key for section in every_section(whole_file()) for key in section.keys]

WARNED = {"A broker for other machines": ["broker_host"], "Memory, for tests": ["wal_cloud.cloud.backend"]}


class Anything(dict):
    """An environment that has every variable; its values are base64 and so pass for a key of Azure."""

    def get(self, key, default=None):
        return "c2VjcmV0"


def test_the_page_is_what_the_models_say():
    assert PAGE.read_text() == reference(), "run: python -m ister.config > docs/config.md"


def test_the_command_that_the_page_names_prints_it():
    command = [sys.executable, "-m", "ister.config"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == reference()


def test_the_page_has_an_example_for_every_kind_of_store():
    backends = {yaml.safe_load(text).get("wal_cloud", {}).get("cloud", {}).get("backend") for _, text in EXAMPLES}
    assert {"s3", "gcs", "azblob", "fs", "memory", "oss"} <= backends


@pytest.mark.parametrize(("title", "text"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_every_example_loads_and_its_store_opens(tmp_path, monkeypatch, title, text):
    monkeypatch.chdir(tmp_path)
    loaded = loads(text.encode(), "f.yml", None, Anything())
    cloud = loaded.config.wal_cloud.cloud
    assert open_store(StoreSettings(cloud.backend, cloud.root, cloud.revealed_options())).name
    assert [warning.key for warning in advice(loaded)] == WARNED.get(title, [])


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.path)
def test_every_key_is_described(key):
    assert key.what.endswith(".")
    assert "\n" not in key.what
    assert key.allowed
    assert f"| `{key.name}` |" in PAGE.read_text()
    assert re.search(rf"^ *(# )?{key.name}:", starter(), re.MULTILINE)
    assert key.default or key.example or key.name == "options"


def test_the_starter_file_is_sound_and_changes_nothing():
    loaded = loads(starter().encode(), "f.yml", None, {})
    assert loaded.config == load(None, None, {}).config
    assert advice(loaded) == []
    moved = loads(starter().encode(), "f.yml", Path("/data"), {})
    assert moved.config == load(None, Path("/data"), {}).config


@pytest.mark.parametrize("key", [key for key in KEYS if key.name != "options"], ids=lambda key: key.path)
def test_every_line_of_the_starter_file_can_be_switched_on(key):
    """Keys of other stores then contradict the backend, but the line itself is never what is wrong."""
    text = re.sub(rf"^( *)# {key.name}:", rf"\1{key.name}:", starter(), flags=re.MULTILINE)
    backend = re.search(r"with (\w+)", key.allowed)
    if backend and key.path.startswith("wal_cloud.cloud."):
        root = {"s3": "s3://b", "gcs": "gcs://b", "azblob": "b"}[backend[1]]
        text = text.replace('backend: "fs"', f'backend: "{backend[1]}"\n    root: "{root}"')
    others = {
        "access_key": "secret_key", "secret_key": "access_key", "session_token": "access_key secret_key",
        "account_key": "account_name", "etcd_ca": "etcd_endpoint", "etcd_cert": "etcd_endpoint etcd_key",
        "etcd_key": "etcd_endpoint etcd_cert", "etcd_user": "etcd_endpoint etcd_password",
        "etcd_password": "etcd_endpoint etcd_user",
    }  # fmt: skip
    for other in others.get(key.name, "").split():
        text = re.sub(rf"^( +)# {other}:", rf"\1{other}:", text, flags=re.MULTILINE)
    loaded = loads(text.encode(), "f.yml", None, Anything())
    assert next(value for value in values(loaded) if value.key == key.path).origin.line
