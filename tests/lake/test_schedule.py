"""Maintenance on a schedule: beside commits, never in their way, and never the end of the process."""

import logging
import threading
import time
from contextlib import contextmanager

import pytest
import structlog

from ister.config.lake_models import Maintenance
from ister.core.names import TopicName
from ister.core.table.maintenance import Procedure
from ister.lake import snapshot
from ister.lake.catalog import LakeCatalog
from ister.pipeline.maintenance import MaintenanceConflictError, Result, Schedule, Upkeep, state_of
from parts.lake import TOPIC, append, assert_exact, lake_of

WAIT_S = 120.0


@contextmanager
def told():
    """Collect what is logged, as a list of events."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    try:
        with structlog.testing.capture_logs() as events:
            yield events
    finally:
        structlog.configure(**before)


class Scripted:
    """An Upkeep that does as it is told for each table, and says when it was asked."""

    def __init__(self, outcomes=()):
        self.outcomes = dict(outcomes)
        self.asked = []
        self.rung = threading.Event()

    def round(self, names):
        for name in names:
            self.asked.append(name)
            self.rung.set()
            outcome = self.outcomes.get(name, Result(name, Procedure.COMPACT, dry_run=False))
            if isinstance(outcome, Exception) and not isinstance(outcome, MaintenanceConflictError):
                raise outcome
            yield outcome


@pytest.fixture
def lake(tmp_path):
    found = lake_of(tmp_path)
    yield found
    found.close()


def tables(lake, *names):
    for name in names:
        lake.table(TopicName.parse(f"/default/{name}"), 1)
    return lake.catalog


def test_a_table_that_fails_is_told_and_the_others_have_their_turn(lake):
    conflict = MaintenanceConflictError("default.a", Procedure.COMPACT, "another commit")
    upkeep = Scripted({"default.a": conflict, "default.b": RuntimeError("no such thing")})
    catalog = tables(lake, "a", "b", "c")
    with told() as logs:
        Schedule(None, catalog, upkeep, 60.0).round()
    assert upkeep.asked == ["default.a", "default.b", "default.c"]
    events = [(one["event"], one["log_level"], one.get("table")) for one in logs]
    assert events == [
        ("maintenance_failed", "warning", "default.a"),
        ("maintenance_failed", "error", "default.b"),
        ("maintenance_round", "info", None),
    ]
    assert "another commit" in logs[0]["cause"]
    assert logs[1]["cause"] == "RuntimeError: no such thing"


def test_a_catalog_that_does_not_answer_is_told_and_ends_nothing(lake):
    catalog = tables(lake, "a")
    catalog.list_namespaces = lambda: (_ for _ in ()).throw(OSError("away"))
    with told() as logs:
        Schedule(None, catalog, Scripted(), 60.0).round()
    assert [(one["event"], one["cause"]) for one in logs] == [("maintenance_waits", "OSError: away")]


def test_rounds_come_each_interval_until_it_stops(spark, lake):
    upkeep = Scripted()
    schedule = Schedule(spark, tables(lake, "a"), upkeep, 0.01)
    schedule.start()
    for _ in range(3):
        assert upkeep.rung.wait(WAIT_S)
        upkeep.rung.clear()
    schedule.stop()
    assert not schedule._thread.is_alive()
    assert len(upkeep.asked) >= 3


def test_a_real_round_compacts_a_table_that_is_committed_to(spark, catalog):
    lake = LakeCatalog(catalog)
    table = lake.table(TopicName.parse("/default/scheduled"), 1)
    table.claim(1)
    for _ in range(6):
        append(table, 2)

    class Only:
        name = catalog.name
        list_namespaces = staticmethod(lambda: [("default",)])
        list_tables = staticmethod(lambda _: [table.identifier])
        load_table = staticmethod(catalog.load_table)

    upkeep = Upkeep(spark, Only, Maintenance(), lambda: time.time_ns() // 1_000_000)
    with told() as logs:
        Schedule(spark, Only, upkeep, 60.0).round()
    assert [one["event"] for one in logs] == ["table_maintained", "maintenance_round"]
    assert len(state_of(catalog.load_table(table.identifier)).files) == 1
    append(table, 2)
    assert_exact(table)


@pytest.fixture
def few_snapshots(monkeypatch):
    monkeypatch.setattr(snapshot, "SNAPSHOTS_MAX", 10)
    monkeypatch.setattr(snapshot, "SNAPSHOTS_KEPT", 6)


@pytest.mark.usefixtures("few_snapshots")
def test_the_snapshot_before_a_rewrite_stays_until_the_rewrite_is_older_than_the_grace(lake, monkeypatch):
    table = lake.table(TOPIC, 1)
    table.claim(1)
    for _ in range(3):
        append(table, 2)
    before = table._table.current_snapshot().snapshot_id
    table._table.delete("topic_offset = 0")
    table._table.append(table._table.scan(snapshot_id=before, row_filter="topic_offset = 0").to_arrow())
    for _ in range(20):
        append(table, 2)
        assert len(table._table.metadata.snapshots) <= 10
    kept = {one.snapshot_id for one in table._table.metadata.snapshots}
    assert before in kept
    monkeypatch.setattr(table, "_grace_ms", 0)
    for _ in range(8):
        append(table, 2)
    kept = {one.snapshot_id for one in table._table.metadata.snapshots}
    assert before not in kept
    assert_exact(table)
