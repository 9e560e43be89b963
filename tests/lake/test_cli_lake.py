"""`ister pipeline status`, `ister lake` and `ister sql` on real tables, beside a real broker."""

import asyncio
import gc
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner

from ister.cli.app import app
from ister.config import load
from ister.core.table.maintenance import spelling
from ister.pipeline.status import FILE_NAME, Status
from ister.runtime.pipeline import maintaining
from parts.pipeline import Pipeline, assert_exact, new_topic, produce

ISTER = [sys.executable, "-c", "from ister.cli import main; main()"]


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    yield
    structlog.reset_defaults()


@pytest.fixture
def run(lake_home, spark, monkeypatch):
    """Run a command on the lake of the tests, and on their session, which is not for it to stop."""
    monkeypatch.setattr("ister.pipeline.session.open_session", lambda _: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)

    def command(*words):
        return CliRunner().invoke(app, [*map(str, words), "--data-dir", str(lake_home)])

    yield command
    gc.collect()  # a statement that failed leaves Spark's socket for its rows; at the end of the session it would be an error


@pytest.fixture
def status(run, broker, lake_home):
    def found():
        result = run("pipeline", "status", "--broker", broker.url, "-o", "json")
        assert result.exit_code == 0, result.stderr
        content = json.loads(result.stdout)
        return content, {one["topic"]: one for one in content["topics"]}

    (lake_home / FILE_NAME).unlink(missing_ok=True)
    return found


@pytest.fixture
def six(spark, catalog, broker):
    """A topic whose table has six small files; returns topic and table."""
    topic = new_topic("cli")
    with Pipeline(spark, broker, catalog, [topic]) as writer:
        for _ in range(6):
            produce(broker, topic, [b"payload"] * 5)
            writer.tick()
    return topic, table_name(topic)


def table_name(topic):
    namespace, name = topic.strip("/").split("/")
    return f"{namespace}.{name.replace('-', '_')}"


def test_status_tells_how_far_each_table_is(spark, catalog, broker, lake_home, status):
    topic, out = new_topic("status"), new_topic("optedout")
    produce(broker, topic, [b"x"] * 10)
    produce(broker, out, [b"x"])
    asyncio.run(set_policy(broker, out, lake=False))
    content, topics = status()
    assert (content["pid"], content["age_s"]) == (None, None)
    assert (topics[topic]["table"], topics[topic]["committed"], topics[topic]["lag_messages"]) == ("", 0, 10)
    assert topics[out]["why_none"] == "opted out by its policy: lake=false"
    with Pipeline(spark, broker, catalog, [topic]) as writer:
        writer.tick()
        produce(broker, topic, [b"x"] * 4)
        writer.refresh()
        Status.of(writer).write(lake_home / FILE_NAME)
        content, topics = status()
    assert content["epoch"] == writer.epoch
    assert content["is_stale"] is False
    found = topics[topic]
    assert (found["table"], found["committed"], found["lag_messages"]) == (table_name(topic), 10, 4)
    assert (found["files"], found["snapshots"], found["error"]) == (1, 2, "")
    assert found["lag_s"] > 0


def test_status_tells_of_a_table_that_was_emptied_and_of_one_without_metadata(catalog, status, six):
    topic, name = six
    catalog.load_table(name).delete("topic_offset >= 0")
    assert "ister lake repair" in status()[1][topic]["error"]
    current = spelling(catalog.load_table(name).metadata_location)
    moved = f"{current}.away"
    subprocess.run(["mv", current, moved], check=True)
    try:
        found = status()[1][topic]
        assert (found["committed"], "could not read table" in found["error"]) == (30, True)
    finally:
        subprocess.run(["mv", moved, current], check=True)


def test_a_status_that_nobody_renews_is_stale(broker, lake_home, status):
    Status(1, 1, time.time() - 3600, {}).write(lake_home / FILE_NAME)
    assert status()[0]["is_stale"] is True


def test_compact_by_table_and_by_topic(catalog, run, six):
    topic, name = six
    told = run("lake", "compact", name, "--dry-run")
    assert "rewrite 6 files" in told.stdout
    assert len(catalog.load_table(name).inspect.files()) == 6
    done = json.loads(run("lake", "compact", topic, "-o", "json").stdout)
    (result,) = done["results"]
    assert (result["table"], result["removed"], result["added"], done["problems"]) == (name, 6, 1, [])
    assert len(catalog.load_table(name).inspect.files()) == 1
    assert "nothing: there is nothing to do" in run("lake", "compact", name).stdout
    assert_exact(catalog, topic, 30)


@pytest.mark.parametrize("word", ["expire", "orphans", "manifests"])
def test_the_other_procedures_leave_every_row(catalog, run, six, word):
    topic, name = six
    for words in (["--dry-run"], []):
        result = run("lake", word, topic, *words, "-o", "json")
        assert result.exit_code == 0, result.stderr
        assert [one["table"] for one in json.loads(result.stdout)["results"]] == [name]
    assert_exact(catalog, topic, 30)


def test_a_problem_is_named_and_the_rest_is_done(run, six, monkeypatch):
    _, name = six
    monkeypatch.setattr("ister.pipeline.maintenance.Upkeep._call", lambda *_: [type("Row", (), {"rewritten_data_files_count": 0})])  # fmt: skip
    result = run("lake", "compact", name, "-o", "json")
    assert result.exit_code == 3
    assert "rewrote none of 6 files" in result.stderr
    assert json.loads(result.stdout)["problems"][0]["kind"] == "NothingRewrittenError"


def test_a_table_that_is_no_topics_is_refused(run, six):
    result = run("lake", "compact", "default.nobodys")
    assert (result.exit_code, "there is no table default.nobodys of a topic" in result.stderr) == (2, True)


def test_sql_answers_with_a_table_with_json_and_with_one_sentence(run, six):
    _, name = six
    counted = run("sql", f"SELECT count(*) AS n, max(topic_offset) AS last FROM {name}", "-o", "json")
    assert json.loads(counted.stdout) == {"n": 30, "last": 29}
    shown = run("sql", f"SELECT topic_offset, payload FROM {name} ORDER BY 1", "--limit", "7")
    assert shown.stdout.endswith("The first 7 rows; there are more, see --limit.\n")
    assert shown.stdout.splitlines()[1].split() == ["0", "payload"]
    row = json.loads(run("sql", f"SELECT * FROM {name} WHERE topic_offset = 3", "-o", "json").stdout)
    assert (row["topic_offset"], row["attributes"], row["append_time"][-6:]) == (3, {}, "+00:00")
    assert "30 rows." in run("sql", f"SELECT partition FROM {name}").stdout
    assert name.split(".")[1] in run("sql", "SHOW TABLES IN default", "--limit", "1000").stdout
    for statement, words in (
        ("SELEC 1", "Syntax error at or near 'SELEC' (line 1, column 1)"),
        ("SELECT * FROM default.nobody", "`default`.`nobody` cannot be found"),
        (f"SELECT nothing FROM {name}", "`nothing` cannot be resolved"),
        ("SELECT 1 / 0", "Division by zero"),
    ):
        result = run("sql", statement)
        assert (result.exit_code, result.stdout) == (2, "")
        assert words in result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert "Exception" not in result.stderr


def test_sql_in_a_process_of_its_own(six, lake_home):
    _, name = six
    command = [*ISTER, "sql", f"SELECT count(*) AS n FROM {name}", "-o", "json", "--data-dir", str(lake_home)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, '{"n":30}\n'), done.stderr


def test_tables_are_maintained_while_a_pipeline_runs_unless_that_is_turned_off(spark, lake_home, tmp_path):
    def maintainers():
        return [one for one in threading.enumerate() if one.name == "ister-maintenance"]

    with maintaining(load(None, lake_home, {}).config, spark):
        assert len(maintainers()) == 1
    assert maintainers() == []
    off = tmp_path / "off.yml"
    off.write_text("storage: {type: iceberg, iceberg_config: {maintenance: {enabled: false}}}\n")
    with maintaining(load(off, lake_home, {}).config, spark):
        assert maintainers() == []


async def set_policy(broker, topic, **policies):
    async with broker.raw() as raw:
        await raw.set_topic(topic, **policies)


def test_a_topic_is_deleted_with_its_table_when_asked_to_and_without_it_otherwise(run, broker, spark, catalog):
    kept, purged = new_topic("kept"), new_topic("purged")
    for topic in (kept, purged):
        produce(broker, topic, [b"x"] * 10)
    with Pipeline(spark, broker, catalog, [kept, purged]) as writer:
        assert writer.tick().rows == 20
    names = {topic: topic[1:].replace("/", ".").replace("-", "_") for topic in (kept, purged)}
    files = [task.file.file_path for task in catalog.load_table(names[purged]).scan().plan_files()]
    admin = ("--admin", f"http://127.0.0.1:{broker.admin_port}", "--yes")
    result = run("topics", "delete", purged, "--purge", *admin)
    assert result.exit_code == 0, result.stderr
    assert not catalog.table_exists(names[purged])
    assert files
    assert not any(Path(spelling(file)).exists() for file in files)
    result = run("topics", "delete", kept, *admin)
    assert result.exit_code == 0, result.stderr
    assert_exact(catalog, kept, 10)


def test_what_needs_a_shared_catalog_refuses_one_in_memory_before_anything_is_deleted(tmp_path, broker):
    topic = new_topic("memory")
    produce(broker, topic, [b"x"])
    config = tmp_path / "ister.yml"
    config.write_text("storage: {iceberg_config: {catalog: {type: memory}}}")
    for words in (
        ("topics", "delete", topic, "--purge", "--yes", "--admin", f"http://127.0.0.1:{broker.admin_port}"),
        ("lake", "repair", topic, "--yes", "--broker", broker.url),
        ("serve", "--no-pipeline"),
    ):
        result = CliRunner().invoke(app, [*words, "--config", str(config), "--data-dir", str(tmp_path / "data")])
        assert result.exit_code == 2, result.output
        assert "use sql" in result.stderr
    assert (
        CliRunner()
        .invoke(app, ["topics", "describe", topic, "--admin", f"http://127.0.0.1:{broker.admin_port}"])
        .exit_code
        == 0
    )
