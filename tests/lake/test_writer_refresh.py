"""K2. A running pipeline notices that a table was repaired, rolled back or dropped, although no message comes."""

import threading
import time
from queue import Queue

import pytest
from structlog.testing import CapturingLogger

from ister.lake.repair import examine, mend
from ister.pipeline import topic_writer as writer_module
from ister.pipeline.loop import Loop
from ister.pipeline.pacing import Pace
from ister.pipeline.task import Reach
from ister.pipeline.topic_writer import REFRESH_EVERY, TableAheadError, TopicWriter, WriterSettings
from ister.rpc import ister_v1_pb2 as pb
from parts.lake import TOPIC, append, lake_of

ROWS = 30
DEADLINE_S = 20.0


class QuietBroker:
    """A broker of one topic to which nobody produces; `wakeups` gives what the test puts."""

    def __init__(self):
        self.queue = Queue()

    def topics(self):
        return [
            pb.Topic(
                name=str(TOPIC),
                generation=1,
                dispatch=pb.DISPATCH_RELIABLE,
                policies='{"lake":true}',
                offsets=pb.Offsets(next=ROWS, synced=ROWS),
            )
        ]

    def register(self, _name):
        return 2

    def report(self, *_):
        pass

    def sync(self, *_):
        pass

    def splits(self, *_, **__):
        return []

    def wakeups(self, _epoch):
        while (wakeup := self.queue.get()) is not None:
            yield wakeup
        raise ValueError("the channel is closed")


@pytest.fixture
def lake(tmp_path):
    found = lake_of(tmp_path)
    table = found.table(TOPIC, 1)
    table.claim(1)
    for _ in range(3):
        append(table, ROWS // 3)
    yield found
    found.close()


@pytest.fixture
def writer(lake):
    found = TopicWriter(None, QuietBroker(), lake, WriterSettings(Reach({}, "fs", "", {})))
    found.start()
    yield found
    found.close()


@pytest.fixture
def logs(writer, monkeypatch):
    """What the writer logs once it is started."""
    found = CapturingLogger()
    monkeypatch.setattr(writer_module, "log", found)
    return found


def raw(lake):
    return lake.catalog.load_table("default.orders")


def repair(lake):
    raw(lake).delete("topic_offset = 3")
    mend(examine(raw(lake), TOPIC, 1))


def topic_after(writer, ticks=REFRESH_EVERY):
    for _ in range(ticks):
        writer.tick()
    return writer.topics[str(TOPIC)]


def test_a_table_that_was_repaired_is_appended_to_again(lake, writer, logs):
    assert topic_after(writer).upto == ROWS
    repair(lake)
    topic = topic_after(writer)
    assert (topic.upto, topic.next, topic.error) == (3, ROWS, "")
    assert topic.is_ready(writer.now())
    assert topic.lag_s(writer.now() + 1) >= 1
    assert [one.args for one in logs.calls] == [("table_went_back",)]


def test_a_table_that_was_rolled_back_stops_its_topic(lake, writer):
    snapshots = sorted(raw(lake).snapshots(), key=lambda one: one.sequence_number)
    raw(lake).manage_snapshots().rollback_to_snapshot(snapshots[-3].snapshot_id).commit()
    assert "is not as it was left" in topic_after(writer).error


def test_a_table_that_was_dropped_is_made_anew(lake, writer):
    lake.catalog.drop_table("default.orders")
    topic = topic_after(writer)
    assert (topic.upto, topic.error) == (0, "")
    assert raw(lake).properties["ister.epoch"] == "2"


def test_a_table_that_another_pipeline_has_claimed_stops_this_one(lake, writer):
    lake.find(TOPIC, 1).claim(3)
    with pytest.raises(TableAheadError):
        topic_after(writer)


def test_a_catalog_that_does_not_answer_stops_no_topic_that_has_nothing_to_carry(lake, writer, logs, monkeypatch):
    load = lake.catalog.load_table
    monkeypatch.setattr(lake.catalog, "load_table", lambda _: (_ for _ in ()).throw(ConnectionError("away")))
    assert topic_after(writer).error == ""
    assert [one.args for one in logs.calls] == [("table_not_read",)]
    monkeypatch.setattr(lake.catalog, "load_table", load)
    repair(lake)
    assert topic_after(writer).upto == 3


def test_each_table_is_read_again_once_in_so_many_micro_batches(lake, writer, monkeypatch):
    reads = []
    load = lake.catalog.load_table
    monkeypatch.setattr(lake.catalog, "load_table", lambda name: (reads.append(name), load(name))[1])
    topic_after(writer, 3 * REFRESH_EVERY)
    assert len(reads) == 3


def test_a_wakeup_for_what_is_in_the_table_already_has_it_read_at_once(lake, writer):
    repair(lake)
    writer.recheck(str(TOPIC), 1, ROWS + 1)
    writer.recheck(str(TOPIC), 2, ROWS)
    writer.recheck("/default/nobody", 1, ROWS)
    writer.refresh()
    assert writer.topics[str(TOPIC)].upto == ROWS, "what is waited for and not there yet says nothing of the table"
    writer.recheck(str(TOPIC), 1, ROWS)
    writer.refresh()
    assert writer.topics[str(TOPIC)].upto == 3


def test_a_loop_that_would_wait_for_an_hour_is_woken(lake, writer):
    ticks = []
    loop = Loop(writer, writer._broker, Pace(3600.0, 3600.0, 1 << 30, 1 << 40), ticks.append)
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        wait_until(lambda: ticks)
        repair(lake)
        writer._broker.queue.put(pb.Wakeup(topic=str(TOPIC), generation=1, upto=ROWS))
        wait_until(lambda: writer.topics[str(TOPIC)].upto == 3)
    finally:
        writer._broker.queue.put(None)
        loop.stop()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()


def wait_until(is_so):
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
