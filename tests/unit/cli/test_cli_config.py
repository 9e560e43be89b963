"""`ister config`: init, check and show as people and programs use them."""

import json
import re
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner

from ister.cli.app import app
from parts.config import DATA

SPEC = DATA / "spec_danube_broker.yml"


@pytest.fixture(autouse=True)
def _somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    structlog.reset_defaults()


def run(*args, **environ):
    return CliRunner(env=environ).invoke(app, ["config", *map(str, args)])


@pytest.mark.parametrize("command", [[], ["init"], ["check"], ["show"]])
def test_help_fits_on_a_screen_has_an_example_and_lists_the_exit_codes(command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) <= 32
    assert not command or f"ister config {command[0]}" in result.stdout
    for code in range(6):
        assert re.search(rf"^\s+{code}  \w", result.stdout, re.MULTILINE)


def test_init_then_check_then_show():
    assert run("init").stdout == "Wrote ister.yml. Next: ister config check ister.yml\n"
    checked = run("check", "ister.yml")
    assert (checked.exit_code, checked.stdout, checked.stderr) == (0, "ister.yml: OK\n", "")
    shown = run("show", "--config", "ister.yml")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert re.search(r"^wal_cloud\.wal\.cache_capacity +1024 +ister\.yml:\d+ *$", shown.stdout, re.MULTILINE)


def test_init_replaces_nothing_unasked():
    Path("mine.yml").write_text("precious")
    refused = run("init", "mine.yml")
    assert (refused.exit_code, Path("mine.yml").read_text()) == (2, "precious")
    assert refused.stderr == "ister: mine.yml exists already; give --force to replace it.\n"
    assert run("init", "mine.yml", "--force").exit_code == 0
    assert run("check", "mine.yml").exit_code == 0


def test_init_prints_for_a_dash():
    result = run("init", "-")
    assert result.stdout.startswith("# Configuration of Ister")
    assert list(Path().iterdir()) == []


def test_init_into_a_missing_directory_is_a_sentence():
    result = run("init", "no/where.yml")
    assert (result.exit_code, result.stderr) == (2, "ister: no/where.yml does not exist; check the path.\n")


def test_check_names_every_problem_in_a_line_of_its_own():
    Path("f.yml").write_text(
        "wal_cloud:\n  wal:\n    dirr: 1\n    cache_capacity: 0\n    sync_mode: ${NOT_SET_AT_ALL}\n"
    )
    result = run("check", "f.yml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "f.yml:3: wal_cloud.wal.dirr: is not a known key; did you mean dir?",
        "f.yml:4: wal_cloud.wal.cache_capacity: must be at least 1",
        "f.yml:5: wal_cloud.wal.sync_mode: needs the environment variable NOT_SET_AT_ALL, which is not set; set it",
    ]


def test_check_warns_and_still_says_ok():
    result = run("check", SPEC)
    assert (result.exit_code, result.stdout) == (0, f"{SPEC}: OK, 3 warnings\n")
    assert [line.removeprefix(f"{SPEC}:").split(": ")[:3] for line in result.stderr.splitlines()] == [
        ["28", "warning", "wal_cloud.cloud.endpoint"],
        ["29", "warning", "wal_cloud.cloud.access_key"],
        ["30", "warning", "wal_cloud.cloud.secret_key"],
    ]


@pytest.mark.parametrize("command", [["check"], ["show", "--config"]])
def test_a_missing_file_is_a_sentence(command):
    result = run(*command, "none.yml")
    assert (result.exit_code, result.stderr) == (2, "ister: none.yml does not exist; check the path.\n")


@pytest.mark.parametrize("command", [["check"], ["show", "--config"]])
def test_a_hostile_key_cannot_move_the_cursor(command):
    Path("f.yml").write_text('wal_cloud: {"\\e[2J": 1, a\u202eb: 2}\n', encoding="utf-8")
    result = run(*command, "f.yml")
    assert result.exit_code == 2
    assert result.stderr.isascii()
    assert "\x1b" not in result.stderr


@pytest.mark.parametrize("text", ["a: 1", "wal_cloud: {uploader: {enabled: no}}"])
def test_a_hostile_file_name_cannot_move_the_cursor(text):
    Path("a\x1b[2J.yml").write_text(text)
    for command in (["check"], ["show", "--config"]):
        assert "\x1b[2J" not in run(*command, "a\x1b[2J.yml").output


def test_show_without_a_file_shows_where_everything_would_be():
    result = run("show", "--data-dir", "/data")
    assert re.search(r"^wal_cloud\.wal\.dir +/data/wal +--data-dir *$", result.stdout, re.MULTILINE)
    assert re.search(
        r"^wal_cloud\.metadata\.sqlite_path +/data/metadata\.db +--data-dir *$", result.stdout, re.MULTILINE
    )
    assert re.search(r"^wal_cloud\.cloud\.region +none +default *$", result.stdout, re.MULTILINE)


def test_show_says_when_the_data_directory_has_no_effect():
    Path("f.yml").write_text(
        "wal_cloud:\n  wal: {dir: a}\n  cloud: {root: b}\n  metadata: {in_memory: true}\n"
        "storage:\n  iceberg_config:\n    catalog: {uri: 'sqlite:///c.db', warehouse: d}\n"
    )
    assert "warning: --data-dir: has no effect" in run("show", "--config", "f.yml", "--data-dir", "d").stderr
    assert run("show", "--config", "f.yml").stderr == ""


def test_show_json_has_every_value_and_its_origin():
    Path("f.yml").write_text("wal_cloud:\n  wal:\n    cache_capacity: ${ISTER_N}\n  uploader: {enabled: no}\n")
    shown = json.loads(run("show", "--config", "f.yml", "-o", "json", ISTER_N="9").stdout)
    assert shown["file"] == "f.yml"
    found = {value.pop("key"): value for value in shown["values"]}
    assert found["wal_cloud.wal.cache_capacity"] == {
        "value": 9, "secret": False, "from": "environment", "line": 3, "variables": ["ISTER_N"],
    }  # fmt: skip
    assert found["wal_cloud.uploader.enabled"]["value"] is False
    assert found["wal_cloud.wal.dir"] == {
        "value": "danube-data/wal", "secret": False, "from": "default", "line": None, "variables": [],
    }  # fmt: skip
    assert json.loads(run("show", "-o", "json").stdout)["file"] is None


def test_s9_no_command_shows_a_secret():
    canary = "CANARY-7f3a"
    text = SPEC.read_text().replace("minioadmin123", canary).replace('"minioadmin"', '"${ISTER_CANARY}"')
    Path("f.yml").write_text(text)
    Path("bad.yml").write_text(text.replace("anonymous: false", f"anonymous: {canary}\n    options: [{canary}]"))
    told = [
        run(*args, ISTER_CANARY=canary)
        for name in ("f.yml", "bad.yml")
        for args in (["check", name], ["show", "--config", name], ["show", "--config", name, "-o", "json"])
    ]
    assert [result.exit_code for result in told] == [0, 0, 0, 2, 2, 2]
    assert all(canary not in result.output for result in told)
    assert "***" in told[1].stdout
    assert {value["value"] for value in json.loads(told[2].stdout)["values"] if value["secret"]} == {"***"}
