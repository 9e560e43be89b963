"""What can happen to the log under a pipeline: files that go, bytes that rot, a broker that is away or killed."""

import threading
import time

import pytest

from ister.client.storage import BrokerUnavailableError
from ister.pipeline.loop import Loop
from ister.pipeline.pacing import Pace
from parts.fault import assert_all, files_of, some
from parts.pipeline import Pipeline, assert_exact, broker_with_token, new_topic, produce, rows_of

SMALL_FILES = {"wal_cloud": {"wal": {"rotation": {"max_bytes": 32_768}}}}
SOON = Pace(1.0, 0.2, 1 << 30, 1 << 40)
WAIT_S = 120.0


@pytest.fixture(scope="module")
def broker():
    with pytest.MonkeyPatch.context() as patch, broker_with_token(patch, SMALL_FILES) as found:
        yield found


def log_files(broker, topic):
    """Return the files of a topic's log, oldest first."""
    return sorted(broker.data.glob(f"wal{topic}/1/wal-*.log"))


def in_files(broker, topic, count):
    """Produce until a topic's log has so many files: when one ends and the next begins is the broker's affair."""
    sent = []
    while len(sent) < 100_000:
        batch = [payload.ljust(1000, b".") for payload in some(topic, 50, len(sent))]
        produce(broker, topic, batch)
        sent += batch
        if len(log_files(broker, topic)) >= count:
            return sent
    raise AssertionError(f"{len(sent)} messages did not fill {count} files")


def flip(path, at):
    """Change a byte of a file; the same again changes it back."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0xFF]))


def test_a_file_that_is_gone_under_a_task_means_that_its_topic_is_planned_again(spark, catalog, broker, monkeypatch):
    gone, other = new_topic("gone"), new_topic("other")
    sent = {gone: in_files(broker, gone, 4), other: in_files(broker, other, 1)}
    with Pipeline(spark, broker, catalog, [gone, other], cores=8) as writer:
        run = writer._run
        planned = []

        def without(works):
            planned.extend(work.topic for work in works)
            path = log_files(broker, gone)[0]
            hidden = path.rename(path.with_suffix(".hidden"))
            try:
                return run(works)
            finally:
                hidden.rename(path)

        monkeypatch.setattr(writer, "_run", without)
        tick = writer.tick()
        assert (tick.rows, set(tick.failed)) == (len(sent[other]), {gone})
        assert tick.failed[gone].startswith("gone: ")
        assert planned.count(gone) > 1, "nothing was behind the gone file"
        assert files_of(catalog, gone) == ([], set()), "what was written behind the gone file is not left on the disk"
        monkeypatch.undo()
        tick = writer.tick()
        assert (tick.rows, tick.failed) == (len(sent[gone]), {})
    for topic, payloads in sent.items():
        assert_all(catalog, topic, payloads)


def test_a_frame_that_has_rotted_stops_its_topic_by_name_and_no_other(spark, catalog, broker, monkeypatch):
    rotten, other = new_topic("rotten"), new_topic("other")
    for topic in (rotten, other):
        produce(broker, topic, some(topic, 50))
    (path,) = log_files(broker, rotten)
    with Pipeline(spark, broker, catalog, [rotten, other]) as writer:
        assert writer.tick().rows == 100
        for topic in (rotten, other):
            produce(broker, topic, some(topic, 50, 50))
        place = path.stat().st_size * 3 // 4
        run = writer._run

        def rotting(works):
            flip(path, place)
            return run(works)

        monkeypatch.setattr(writer, "_run", rotting)
        tick = writer.tick()
        assert (tick.rows, set(tick.failed)) == (50, {rotten})
        assert tick.failed[rotten].startswith("corrupt: ")
        assert str(path) in tick.failed[rotten]
        monkeypatch.undo()
        tick = writer.tick()
        assert (tick.rows, set(tick.failed)) == (0, {rotten})
        assert "the topic's log is damaged at offset 7" in tick.failed[rotten], "now the broker sees it first"
        assert_exact(catalog, rotten, 50)
        assert len(files_of(catalog, rotten)[1]) == 1, "what was begun behind it is not left on the disk"
        flip(path, place)
        tick = writer.tick()
        assert (tick.rows, tick.failed) == (50, {})
    for topic in (rotten, other):
        assert_all(catalog, topic, some(topic, 100))


def wait_until(is_so, loop):
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert loop.is_alive(), "the loop has ended"
        assert time.monotonic() < deadline
        time.sleep(0.05)  # between two looks


def test_f27_a_broker_killed_and_started_again_under_ticks_costs_nothing_but_time(spark, catalog, count, tell):
    topic, sent, failed = new_topic("away"), [], []
    kills = count(2, 20)
    with pytest.MonkeyPatch.context() as patch, broker_with_token(patch) as broker:
        pipeline = Pipeline(spark, broker, catalog, [topic])
        with pipeline as writer:
            loop = Loop(writer, pipeline.client, SOON, lambda tick: failed.extend(tick.failed))
            thread = threading.Thread(target=loop.run)
            thread.start()
            try:
                for number in range(kills):
                    more = some(topic, 200, len(sent))
                    produce(broker, topic, more)
                    sent += more
                    broker.kill()
                    if number == 0:
                        with pytest.raises(BrokerUnavailableError):
                            pipeline.client.topics()
                    broker.start()
                wait_until(lambda: topic in writer.topics and writer.topics[topic].upto == len(sent), thread)
            finally:
                loop.stop()
                thread.join()
            assert not failed
            (found,) = [one for one in pipeline.client.topics() if one.name == topic]
            assert found.offsets.lake_upto == len(sent)
    assert_all(catalog, topic, sent)
    assert rows_of(catalog, topic).num_rows == 200 * kills
    tell("F27", f"{kills} kills of the broker under ticks: {len(sent)} rows, 0 lost, 0 twice")


def test_a_tick_that_loses_the_broker_ends_when_all_of_its_commits_have_ended(spark, catalog, broker, monkeypatch):
    first, second = new_topic("a"), new_topic("b")
    pipeline, away = Pipeline(spark, broker, catalog, [first, second]), threading.Event()
    with pipeline as writer:
        for topic in (first, second):
            produce(broker, topic, [b"x"] * 5)
        writer.tick()
        table = writer._tables[writer.topics[second].place.table]
        commit, report = table.commit_add_files, pipeline.client.report

        def late(*arguments):
            assert away.wait(WAIT_S)
            return commit(*arguments)

        def lost(topic, *arguments):
            if topic == first:
                away.set()
                raise BrokerUnavailableError("it is away")
            report(topic, *arguments)

        monkeypatch.setattr(table, "commit_add_files", late)
        monkeypatch.setattr(pipeline.client, "report", lost)
        for topic in (first, second):
            produce(broker, topic, [b"x"] * 5)
        with pytest.raises(BrokerUnavailableError):
            writer.tick()
        assert writer.topics[second].upto == 10, "nobody is still at work"
        monkeypatch.undo()
        assert (writer.tick().rows, writer.tick().failed) == (0, {})
    for topic in (first, second):
        assert_all(catalog, topic, [b"x"] * 10)
