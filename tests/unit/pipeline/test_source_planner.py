"""What a read of a topic is planned from: which offsets can be read, where they lie, and who reads what."""

import time
from contextlib import ExitStack

import pytest

from ister.client.storage import BrokerUnavailableError, retry_unavailable
from ister.core.errors import BusyError
from ister.core.tiers.splits import SPLIT_BYTES, Split
from ister.pipeline.source.offsets import Mark
from ister.pipeline.source.options import Use, read_options
from ister.pipeline.source.reader import OffsetsGoneError, OnlyInTableError, TopicPlanner
from ister.pipeline.source.stream import TopicStreamReader
from ister.rpc import ister_v1_pb2 as pb
from parts.served import serving
from services.ports import free_ports

NAME = "/default/orders"


class Client:
    """A broker's answers: one topic, whose splits have ten messages each."""

    def __init__(self, split_bytes=SPLIT_BYTES, **offsets):
        self.split_bytes = split_bytes
        self.offsets = offsets
        self.asked = []

    def topics(self, namespace):
        assert namespace == "default"
        offsets = {"start": 0, "next": 100, "synced": 100} | self.offsets
        return [pb.Topic(name=NAME, generation=1, dispatch=pb.DISPATCH_RELIABLE, offsets=pb.Offsets(**offsets))]

    def splits(self, topic, generation, start, *, split_bytes, splits_max):
        self.asked.append(start)
        stop = min(start + 40, self.offsets.get("synced", 100))
        return [Split(at, min(at + 10, stop), 0, self.split_bytes, path="file") for at in range(start, stop, 10)]

    def close(self):
        pass


def planner(client, **options):
    return TopicPlanner(read_options({"topic": NAME, **options}, Use.READ), client, with_files=True)


def planned(client, start, stop):
    topic = planner(client)
    return topic.partitions_of(topic.partitions(), {0: Mark(1, start)}, {0: stop})


def spans_of(parts):
    """Return what each task reads, as offsets."""
    return [(part.splits[0].start, min(part.splits[-1].stop, part.stop)) for part in parts]


def test_a_large_topic_is_read_by_a_task_for_each_split():
    assert spans_of(planned(Client(), 5, 38)) == [(5, 15), (15, 25), (25, 35), (35, 38)]


def test_small_splits_are_read_together_each_offset_once():
    assert spans_of(planned(Client(SPLIT_BYTES // 4), 0, 100)) == [(0, 40), (40, 80), (80, 100)]
    assert spans_of(planned(Client(100), 3, 97)) == [(3, 97)]


def test_a_plan_asks_on_until_all_is_covered():
    client = Client(100)
    planned(client, 0, 100)
    assert client.asked == [0, 40, 80]


def test_what_the_broker_does_not_tell_of_is_no_end():
    with pytest.raises(BusyError, match="only those below 60 can be read"):
        planned(Client(next=60, synced=60), 0, 100)


@pytest.mark.parametrize("start", ["earliest", "9"])
def test_offsets_that_only_the_table_has_are_refused_and_named(start):
    topic = planner(Client(log_start=40, cloud_start=30, cloud_stop=50), startingOffsets=start)
    with pytest.raises(OnlyInTableError, match=r"offsets below 30 in its table alone.*startingOffsets 30"):
        topic.first(topic.partitions())


def test_offsets_that_retention_deleted_are_refused():
    client = Client(start=30, log_start=30)
    topic = planner(client, startingOffsets="29")
    with pytest.raises(OffsetsGoneError, match="no offsets below 30 any more, and 29 was asked for"):
        topic.first(topic.partitions())
    topic = planner(client)
    assert topic.first(topic.partitions()) == {0: Mark(1, 30, 30)}
    with pytest.raises(OffsetsGoneError, match="retention deleted them"):
        planned(client, 29, 40)


@pytest.fixture
def stream(monkeypatch):
    """Return a stream's reader of the answers of a broker; each is what a restart makes."""

    def made(answers, start):
        monkeypatch.setattr(TopicPlanner, "open", lambda options: TopicPlanner(options, answers, with_files=True))
        return TopicStreamReader(read_options({"topic": NAME, "startingOffsets": start}, Use.READ_STREAM))

    return made


def marks(offset, begin=None):
    found = {"offsets": {"0": offset}, "generations": {"0": 1}}
    return found if begin is None else {**found, "begins": {"0": begin}}


def restarted(reader, end):
    """Do what Spark does after a first batch that failed: plan its end, then ask where it begins, and plan it."""
    assert reader.partitions(end, end) == []
    return reader.initialOffset()


def test_a_first_batch_that_is_repeated_begins_where_it_began_though_messages_have_come(stream):
    answers = Client(next=100)
    first = stream(answers, "latest")
    end = first.latestOffset()
    assert first.initialOffset() == end == marks(100, 100)
    answers.offsets = {"next": 120, "synced": 120}
    for kept in (end, marks(100)):  # the second is of an older release
        again = stream(answers, "latest")
        begin = restarted(again, kept)
        assert begin == kept
        assert again.partitions(begin, kept) == []
        assert again.latestOffset()["offsets"] == {"0": 120}


@pytest.mark.parametrize("start", ["earliest", "0"])
def test_a_first_batch_that_is_repeated_after_retention_stops_the_query_and_has_not_fewer_offsets(stream, start):
    """M6."""
    answers = Client(next=100)
    end = stream(answers, start).latestOffset()
    assert end == marks(100, 0)
    again = stream(answers, start)
    begin = restarted(again, end)
    assert begin == marks(0, 0)
    assert spans_of(again.partitions(begin, end)) == [(at, at + 10) for at in range(0, 100, 10)]
    for oldest in (30, 110):  # in the batch, and behind its end
        answers.offsets = {"start": oldest, "log_start": oldest, "next": 120, "synced": 120}
        again = stream(answers, start)
        begin = restarted(again, end)
        with pytest.raises(OffsetsGoneError, match=f"no offsets below {oldest} any more, and 0 was asked for"):
            again.partitions(begin, end)


def test_a_batch_in_which_a_partition_appeared_is_repeated_from_where_that_began(stream):
    """M6."""
    answers = Client(start=10, log_start=10)
    reader = stream(answers, "earliest")
    before = {"offsets": {}, "generations": {}}
    reader.partitions(before, before)
    end = reader.latestOffset()
    assert end == marks(100, 10)
    assert spans_of(stream(answers, "earliest").partitions(before, end))[0] == (10, 20)
    answers.offsets = {"start": 30, "log_start": 30}
    with pytest.raises(OffsetsGoneError, match="no offsets below 30 any more, and 10 was asked for"):
        stream(answers, "earliest").partitions(before, end)


def test_a_trigger_waits_for_a_broker_that_is_away(tmp_path, monkeypatch):
    """M5."""
    [port] = free_ports(1)
    sleep, waits = time.sleep, []
    options = {"topic": "/default/t", "broker": f"127.0.0.1:{port}", "startingOffsets": "earliest"}
    with ExitStack() as stack:

        def start(seconds):
            if not waits:
                stack.enter_context(serving(tmp_path, port)).create()
            waits.append(seconds)
            sleep(seconds)

        monkeypatch.setattr("ister.client.storage.time.sleep", start)
        reader = TopicStreamReader(read_options(options, Use.READ_STREAM))
        assert reader.latestOffset() == marks(0, 0)
        reader.stop()
    assert waits


def test_a_broker_that_stays_away_is_waited_for_with_back_off_and_then_reported(monkeypatch):
    """M5."""
    now, waits = 0.0, []

    def sleep(seconds):
        nonlocal now
        now += seconds
        waits.append(seconds)

    def act():
        raise BrokerUnavailableError("away")

    monkeypatch.setattr("ister.client.storage.time.sleep", sleep)
    monkeypatch.setattr("ister.client.storage.time.monotonic", lambda: now)
    with pytest.raises(BrokerUnavailableError):
        retry_unavailable(act, 30)
    assert 30 <= now < 33
    assert waits[:6] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    waits.clear()
    with pytest.raises(BrokerUnavailableError):
        retry_unavailable(act, 0)
    assert waits == [], "a client that is not asked to wait does not"
