"""docs/config.md and the starter file are what the models say, and everything in them can be used."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ister.config import advice, load, loads, values
from ister.config.reference import every_section, reference, starter, whole_file
from ister.ports.objects.factory import StoreSettings, open_store

PAGE = Path(__file__).parents[3] / "docs" / "config.md"
EXAMPLES = re.findall(r"^### ([^\n]+)\n\n```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
KEYS = [key for section in every_section(whole_file()) for key in section.keys]

WARNED = {"A broker for other machines": ["broker_host"], "Memory, for tests": ["wal_cloud.cloud.backend"]}


class Anything(dict):
    """An environment that has every variable; its values are base64 and so pass for a key of Azure."""

    def get(self, key, default=None):
        return "c2VjcmV0"


def test_the_page_is_what_the_models_say():
    assert PAGE.read_text() == reference(PAGE.read_text()), "run: python -m ister.config docs/config.md"


def test_the_command_that_the_page_names_prints_it(tmp_path):
    page = tmp_path / "config.md"
    page.write_text(
        re.sub("## Keys\n.*## Examples\n", "## Keys\n\nOld.\n\n## Examples\n", PAGE.read_text(), flags=re.DOTALL)
    )
    subprocess.run([sys.executable, "-m", "ister.config", str(page)], check=True)
    assert page.read_text() == PAGE.read_text()


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
    assert key.default or key.example or key.name in {"options", "properties"}


def test_the_starter_file_is_sound_and_changes_nothing():
    loaded = loads(starter().encode(), "f.yml", None, {})
    assert loaded.config == load(None, None, {}).config
    assert advice(loaded) == []
    moved = loads(starter().encode(), "f.yml", Path("/data"), {})
    assert moved.config == load(None, Path("/data"), {}).config


CATALOG, STORE = "storage.iceberg_config.catalog", "storage.iceberg_config.object_store"
CLOUD, METADATA = "wal_cloud.cloud", "wal_cloud.metadata"
POSTGRES = {f"{CATALOG}.uri": "postgresql://h/d", f"{CATALOG}.user": "u", f"{CATALOG}.password": "p"}
REST = {f"{CATALOG}.type": "rest", f"{CATALOG}.uri": "http://h"}
S3 = {f"{CLOUD}.backend": "s3", f"{STORE}.type": "s3", f"{STORE}.bucket": "b"}
ETCD = {f"{METADATA}.etcd_endpoint": "a:1"}
BESIDE = {
    f"{CLOUD}.access_key": {f"{CLOUD}.secret_key": "s"},
    f"{CLOUD}.secret_key": {f"{CLOUD}.access_key": "a"},
    f"{CLOUD}.session_token": {f"{CLOUD}.access_key": "a", f"{CLOUD}.secret_key": "s"},
    f"{CLOUD}.account_key": {f"{CLOUD}.account_name": "a"},
    f"{METADATA}.etcd_ca": ETCD,
    f"{METADATA}.etcd_cert": {**ETCD, f"{METADATA}.etcd_key": "k"},
    f"{METADATA}.etcd_key": {**ETCD, f"{METADATA}.etcd_cert": "c"},
    f"{METADATA}.etcd_user": {**ETCD, f"{METADATA}.etcd_password": "p"},
    f"{METADATA}.etcd_password": {**ETCD, f"{METADATA}.etcd_user": "u"},
    f"{CATALOG}.region": {f"{CATALOG}.type": "glue"},
    f"{CATALOG}.user": POSTGRES,
    f"{CATALOG}.password": POSTGRES,
    f"{CATALOG}.credential": REST,
    f"{CATALOG}.token": REST,
    **{f"{STORE}.{name}": S3 for name in ("type", "bucket", "root", "region", "endpoint")},
    f"{STORE}.access_key": {**S3, f"{STORE}.secret_key": "s"},
    f"{STORE}.secret_key": {**S3, f"{STORE}.access_key": "a"},
    "storage.iceberg_config.reader.object_retention_minutes": {"storage.type": "iceberg"},
    "storage.iceberg_config.wal.max_file_size": {"wal_cloud.wal.rotation.max_bytes": "67108864"},
}
"""What a line needs beside it to make sense."""


def starter_with(key, beside):
    """Return the starter file with one line switched on as it stands, and others set."""
    lines, inside = [], []
    for line in starter().splitlines():
        match = re.fullmatch(r"( *)(# )?([a-z_]+):(.*)", line)
        if match is None:
            lines.append(line)
            continue
        indent, off, name, value = match.groups()
        here = inside[: len(indent) // 2]
        path = ".".join([*here, name])
        if not off and not value:
            inside = [*here, name]
        if path in beside and path != key:
            lines.append(f"{indent}{name}: {beside[path]}")
        else:
            lines.append(f"{indent}{name}:{value}" if path == key else line)
    return "\n".join(lines)


@pytest.mark.parametrize(
    "key", [key for key in KEYS if key.name not in {"options", "properties"}], ids=lambda key: key.path
)
def test_every_line_of_the_starter_file_can_be_switched_on(key):
    """What a line needs beside it is put there; the line itself is never what is wrong."""
    beside = dict(BESIDE.get(key.path, {}))
    backend = re.search(r"with (\w+)", key.allowed)
    if backend and key.path.startswith(CLOUD):
        root = {"s3": "s3://b", "gcs": "gcs://b", "azblob": "b"}[backend[1]]
        beside |= {f"{CLOUD}.backend": backend[1], f"{CLOUD}.root": root}
    loaded = loads(starter_with(key.path, beside).encode(), "f.yml", None, Anything())
    assert next(value for value in values(loaded) if value.key == key.path).origin.line
