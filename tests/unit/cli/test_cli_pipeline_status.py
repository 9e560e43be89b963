"""What `ister pipeline status`, `ister lake` and `ister sql` say, from what they were told; real ones are in tests/lake."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace

import pytest
import structlog
from rich.console import Console
from typer.testing import CliRunner

from ister.cli.app import app
from ister.cli.commands import pipeline as status
from ister.cli.commands.lake import did, show_maintained
from ister.cli.commands.sql import Answer, cell, plain, sentence_of, show_json, show_table
from ister.cli.output import say
from ister.core.table.maintenance import Procedure
from ister.pipeline.maintenance import Result
from ister.pipeline.plan import Choice, place_of
from ister.pipeline.status import Status, TopicStatus
from ister.rpc import ister_v1_pb2 as pb

NOBODY = {"ISTER_BROKER": "http://127.0.0.1:1"}
COMMANDS = [
    ["pipeline", "status"],
    ["lake", "compact"],
    ["lake", "expire"],
    ["lake", "orphans"],
    ["lake", "manifests"],
    ["lake", "repair"],
    ["sql"],
]


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    yield
    structlog.reset_defaults()


def run(*args, **environ):
    return CliRunner(env=environ).invoke(app, [str(arg) for arg in args])


def topic(name="/default/orders", *, stop=10, lake=True, dispatch=pb.DISPATCH_RELIABLE, generation=1, lake_upto=0):
    offsets = pb.Offsets(start=0, next=stop, lake_upto=lake_upto) if generation else None
    return pb.Topic(
        name=name, generation=generation, dispatch=dispatch, policies=json.dumps({"lake": lake}), offsets=offsets
    )


def line(of, table=None, told=None, age_s=None):
    written = None if told is None else Status(1, 2, 0.0, {of.name: told})
    return status.line_of(of, place_of(of), table, written, age_s)


def report(*lines, age_s=2.0, is_stale=False):
    return status.Report(77, 3, age_s, is_stale, list(lines))


def drawn(found):
    console = Console(file=io.StringIO(), width=200)
    console.print(status.drawn(found, on_terminal=False))
    return console.file.getvalue()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example_and_lists_the_exit_codes(command):
    text = run(*command, "--help").stdout
    assert len(text.splitlines()) <= 60
    assert f"Example: ister {' '.join(command)}" in text
    assert "it may or may not have happened; look first" in text


@pytest.mark.parametrize("command", [["pipeline", "status"], ["lake", "repair", "/default/x"]], ids=" ".join)
def test_a_broker_that_is_not_there_is_said_with_the_next_step(command, tmp_path):
    result = run(*command, "--data-dir", tmp_path, **NOBODY)
    assert result.exit_code == 3
    assert "no broker answers at http://127.0.0.1:1" in result.stderr
    assert not (tmp_path / "catalog.db").exists(), "looking makes nothing"


def test_a_lake_without_tables_is_said_and_spark_is_not_started(tmp_path, monkeypatch):
    monkeypatch.setattr("ister.pipeline.session.open_session", pytest.fail)
    for word in ("compact", "expire", "orphans", "manifests"):
        assert run("lake", word, "--data-dir", tmp_path).stdout == "There are no tables yet; the pipeline makes them.\n"
    result = run("lake", "compact", "default.orders", "--data-dir", tmp_path)
    assert (result.exit_code, "there is no table default.orders" in result.stderr) == (2, True)


def test_the_memory_catalog_is_refused_by_name(tmp_path):
    (tmp_path / "f.yml").write_text("storage: {type: iceberg, iceberg_config: {catalog: {type: memory}}}\n")
    for command in COMMANDS[:-2]:
        result = run(*command, "--config", tmp_path / "f.yml")
        assert (result.exit_code, "use sql" in result.stderr) == (2, True), command


def test_a_topic_without_a_table_says_why():
    none = Choice()
    assert status.why_none(topic(), none) == ""
    assert "non-reliable" in status.why_none(topic(dispatch=pb.DISPATCH_NON_RELIABLE, generation=0), none)
    assert "not open" in status.why_none(topic(generation=0), none)
    assert "lake=false" in status.why_none(topic(lake=False), none)
    assert "writer.exclude" in status.why_none(topic(), Choice((), ("/default/*",)))


def test_lag_in_seconds_is_what_the_pipeline_saw_and_what_passed_since():
    told = TopicStatus("default.orders", 4, 8, 1.5, 0, "")
    assert line(topic(), None, told, 2.0).lag_s == 3.5
    assert line(topic(stop=0), None, told, 2.0).lag_s == 0.0
    waits = line(topic())
    assert (waits.lag_s, waits.lag_messages) == (None, 10), "without a pipeline nobody knows since when"


def test_a_table_that_cannot_be_read_is_an_error_and_the_broker_tells_how_far_it_was():
    found = line(topic(lake_upto=7), "could not read it")
    assert (found.error, found.committed, found.lag_messages, found.files) == ("could not read it", 7, 3, None)


def test_the_table_for_people_says_everything_of_each_topic_and_of_the_pipeline():
    good = status.TopicLine("/default/a", "default.a", 1000, 5, 0.25, 3, 12, "", "")
    bad = status.TopicLine("/default/b", "default.b", 0, 9, None, 0, 0, "it is not as it was left", "")
    none = status.TopicLine("/default/c", "", None, None, None, None, None, "", "opted out by its policy: lake=false")
    new = status.TopicLine("/default/d", "", 0, 1, None, None, None, "", "")
    text = drawn(report(good, bad, none, new))
    rows = {row.split()[0]: row.split(maxsplit=1)[1] for row in text.splitlines() if row.startswith("/default")}
    assert rows["/default/a"].split() == ["default.a", "1,000", "5", "0.2", "3", "12"]
    assert rows["/default/b"].split(maxsplit=6)[:4] == ["default.b", "0", "9", "?"]
    assert "it is not as it was left" in rows["/default/b"]
    assert rows["/default/c"].strip() == "opted out by its policy: lake=false"
    assert "no table yet" in rows["/default/d"]
    assert "The pipeline (process 77, epoch 3) ticked 2 s ago; 1 topic with an error." in text


def test_a_stale_status_none_at_all_and_no_topics():
    assert "Stale: the pipeline (process 77) wrote its status 99 s ago" in drawn(report(age_s=99.0, is_stale=True))
    assert "No pipeline has run on this data directory" in drawn(report(age_s=None))
    assert "There are no topics yet" in drawn(report())


def test_what_a_topic_is_called_does_not_reach_the_terminal_raw():
    hostile = status.TopicLine("/default/a", "x\x1b[31m", 0, 0, 0.0, 0, 0, "e\x1b]0;t\x07", "")
    assert "\x1b" not in drawn(report(hostile))


@pytest.mark.parametrize("show", [None, lambda found: say(f"{found.pid}")])
def test_watching_looks_anew_each_second_until_interrupted(show, capsys):
    seen = []

    def pause(seconds):
        assert seconds == 1.0
        if len(seen) == 3:
            raise KeyboardInterrupt

    def see():
        seen.append(len(seen))
        return report()

    with pytest.raises(KeyboardInterrupt):
        status._watch(see, pause, show)
    assert len(seen) == 3
    assert capsys.readouterr().out.count("77") == (1 if show is None else 3)


# --- maintenance ------------------------------------------------------------------------------------------------------


def test_what_was_done_to_a_table_is_a_phrase():
    def said(procedure, **counts):
        return did(Result("default.a", procedure, dry_run=False, **counts))

    assert said(Procedure.COMPACT, removed=12, added=1, size=3_000_000) == "rewrite 12 files into 1, 3.0 MB"
    assert said(Procedure.MANIFESTS, removed=60, added=2) == "rewrite 60 manifests into 2"
    assert said(Procedure.EXPIRE, snapshots=1) == "let go 1 snapshot"
    assert said(Procedure.EXPIRE, snapshots=2, removed=4) == "let go 2 snapshots, delete 4 files"
    assert said(Procedure.ORPHANS, removed=1, size=10, spared=2) == (
        "delete 1 file, 10 bytes; 2 files listed under another spelling stay"
    )
    assert said(Procedure.COMPACT) == "nothing: there is nothing to do"


def test_a_dry_run_says_that_nothing_was_changed(capsys):
    done = SimpleNamespace(results=[Result("default.a", Procedure.COMPACT, dry_run=True, removed=5)], problems=[])
    show_maintained(done, dry_run=True)
    out = capsys.readouterr().out
    assert "Would do" in out
    assert out.endswith("Nothing was changed.\n")


# --- SQL --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL ==\nSELEC 1\n^^^\n",
            "Syntax error at or near 'SELEC' (line 1, column 1)",
        ),
        (
            "[TABLE_OR_VIEW_NOT_FOUND] The table or view `a`.`b` cannot be found. SQLSTATE: 42P01; line 1 pos 14;\n'Project\n",
            "The table or view `a`.`b` cannot be found",
        ),
        (
            "An error occurred while calling o1.sql.\n: org.apache.spark.SparkException: it broke\n\tat org.apache.X(Y.java:1)",
            "it broke",
        ),
        (
            (
                "An error occurred while calling o1.toArrow.\n: org.apache.spark.SparkException: Exception thrown in awaitResult: \n"
                "\tat org.apache.X(Y.java:1)\nCaused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 2.0 failed 1 "
                "times, most recent failure: Lost task 0.0 in stage 2.0 (TID 2) (h executor driver): "
                "java.io.FileNotFoundException: File file:/a.parquet does not exist\n"
                "\tat Z(Z.java:2)\nCaused by: java.io.FileNotFoundException: File file:/a.parquet does not exist\n\t... 2 more\n"
            ),
            "File file:/a.parquet does not exist",
        ),
        (
            "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in stage 1.0 (TID 1) (h executor driver): org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n\tat X(Y.java:1)\nCaused by: java.io.EOFException\n\t... 1 more",
            "Python worker exited unexpectedly (crashed)",
        ),
        (
            "An error occurred while calling o1.x.\n: java.lang.NullPointerException\n\tat X(Y.java:1)",
            "java.lang.NullPointerException",
        ),
        ("", "it does not say why"),
    ],
)
def test_what_spark_says_becomes_one_sentence(said, sentence):
    assert sentence_of(said) == sentence


def test_rows_for_people_and_for_programs(capsys):
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    answer = Answer(["n", "b", "m", "t"], [(1, b"\x00abc", {"k": "v"}, when), (None, None, None, None)], more=True)
    show_table(answer, 2)
    out = capsys.readouterr().out
    assert "The first 2 rows; there are more, see --limit." in out
    assert "NULL" in out
    assert '{"k": "v"}' in out
    show_json(answer, 2)
    captured = capsys.readouterr()
    first, second = map(json.loads, captured.out.splitlines())
    assert first == {"n": 1, "b": "AGFiYw==", "m": {"k": "v"}, "t": "2026-01-02T03:04:05+00:00"}
    assert second == {"n": None, "b": None, "m": None, "t": None}
    assert "the first 2 rows" in captured.err
    show_table(Answer(["n"], [(1,)], more=False), 2)
    assert capsys.readouterr().out.endswith("1 row.\n")
    show_table(Answer([], [], more=False), 2)
    assert capsys.readouterr().out == "Done.\n"


def test_json_for_programs_is_valid_and_has_every_column(capsys):
    """K12."""
    nan, inf = float("nan"), float("inf")
    values = (1, 2, 3, nan, {date(2026, 1, 2): [inf, -inf, 1.5]})
    show_json(Answer(["a", "a", "a_2", "d", "m"], [values], more=False), 2)
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line, parse_constant=pytest.fail)
    assert found == {"a": 1, "a_3": 2, "a_2": 3, "d": "NaN", "m": {"2026-01-02": ["Infinity", "-Infinity", 1.5]}}
    assert "2026-01-02" in cell({date(2026, 1, 2): nan})


def test_values_are_shown_safely():
    assert cell("\x1b[2J") == "\\x1b[2J"
    assert cell(True) == "true"
    assert len(cell(b"x" * 1000)) <= 60
    assert plain(Decimal("1.50")) == "1.50"
    assert plain(date(2026, 1, 2)) == "2026-01-02"
