"""What the Spark data source can be told, and how far a stream goes."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

from ister.lake.columns import ARROW
from ister.pipeline.source.offsets import Mark, TopicChangedError, advance, check_same, from_json, to_json
from ister.pipeline.source.options import (
    USES,
    Edge,
    InvalidOptionError,
    ReadOptions,
    Use,
    WriteOptions,
    read_options,
    write_options,
)
from ister.pipeline.source.reader import SCHEMA

TOPIC = {"topic": "/default/orders"}


def test_a_topic_is_enough():
    broker = "http://127.0.0.1:6650"
    assert read_options(TOPIC, Use.READ) == ReadOptions("/default/orders", broker, None, None, Edge.EARLIEST)
    assert read_options(TOPIC, Use.READ_STREAM) == ReadOptions("/default/orders", broker, None, None, Edge.LATEST)
    assert write_options(TOPIC, Use.WRITE) == WriteOptions("/default/orders", broker)


def test_names_of_options_have_no_case():
    given = TOPIC | {"startingoffsets": "5", "ENDINGOFFSETS": "9", "datadir": "d", "broker": "host:1"}
    found = read_options(given, Use.READ)
    assert (found.start, found.stop, found.data_dir, found.broker) == (5, 9, "d", "http://host:1")
    assert read_options(TOPIC | {"maxoffsetspertrigger": "7"}, Use.READ_STREAM).offsets_per_trigger_max == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option topic is missing"),
        ({"topic": "orders"}, "option topic is wrong: invalid topic name 'orders'"),
        (TOPIC | {"colour": "x"}, "option colour is not known; there are topic, broker, config, dataDir"),
        (TOPIC | {"subscribe": "x"}, "option subscribe is of Spark's Kafka source; use topic"),
        (
            TOPIC | {"kafka.bootstrap.servers": "x"},
            "option kafka.bootstrap.servers is of Spark's Kafka source; use broker",
        ),
        (TOPIC | {"failOnDataLoss": "false"}, "option failOnDataLoss can only be true"),
        (TOPIC | {"endingoffset": "x"}, r"option endingoffset is not known; did you mean endingOffsets\?"),
        (TOPIC | {"startingOffsets": "-1"}, "option startingOffsets is -1; use earliest, latest or a number"),
        (TOPIC | {"startingOffsets": "²"}, "option startingOffsets is ²"),
        (TOPIC | {"startingOffsets": str(2**63)}, "option startingOffsets is 9223372036854775808; use a number"),
        (TOPIC | {"startingOffsets": "9" * 5000}, "option startingOffsets is 9{80};"),
        (TOPIC | {"endingOffsets": "earliest"}, "option endingOffsets is earliest; use latest or a number"),
        (TOPIC | {"startingOffsets": "6", "endingOffsets": "5"}, "is 6, which is behind endingOffsets, 5"),
        (TOPIC | {"startingOffsets": "latest"}, "use earliest"),
        (TOPIC | {"maxOffsetsPerTrigger": "5"}, "is for spark.readStream, not for spark.read; leave it out"),
        (TOPIC | {"broker": "127.0.0.1"}, "option broker is 127.0.0.1; it must be an address with a port"),
        (TOPIC | {"broker": "https://host:1"}, "asks for TLS"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options, message):
    with pytest.raises(InvalidOptionError, match=message):
        read_options(options, Use.READ)


def test_a_trigger_must_take_something():
    with pytest.raises(InvalidOptionError, match="option maxOffsetsPerTrigger is 0; use a number from 1 on"):
        read_options(TOPIC | {"maxOffsetsPerTrigger": "0"}, Use.READ_STREAM)


def test_each_use_takes_its_own_options_alone(tmp_path):
    values = {"topic": "/default/orders", "broker": "host:1", "startingOffsets": "1", "endingOffsets": "2"}
    values |= {"failOnDataLoss": "true", "config": str(tmp_path / "ister.yml")}
    (tmp_path / "ister.yml").write_text("")
    for use in Use:
        parse = read_options if use in {Use.READ, Use.READ_STREAM} else write_options
        for name, uses in USES.items():
            options = TOPIC | {name: values.get(name, "3")}
            if use in uses:
                parse(options, use)
            else:
                with pytest.raises(InvalidOptionError, match=f"option {name} is for .*, not for {use}"):
                    parse(options, use)


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("", "http://127.0.0.1:6650"),
        ("broker_port: 7000", "http://127.0.0.1:7000"),
        ("broker_host: 0.0.0.0\nbroker_port: 7000", "http://127.0.0.1:7000"),
        ("broker_host: ::1", "http://[::1]:6650"),
        ("advertised_listeners: {broker_url: 'http://b.example.com:1'}", "http://b.example.com:1"),
    ],
)
def test_a_configuration_says_where_its_broker_is(tmp_path, written, address):
    path = tmp_path / "ister.yml"
    path.write_text(written)
    given = TOPIC | {"config": str(path)}
    assert read_options(given, Use.READ).broker == address
    assert write_options(given, Use.WRITE).broker == address
    assert read_options(given | {"broker": "other:5"}, Use.READ).broker == "http://other:5"


def test_a_port_that_is_left_to_chance_must_be_told(tmp_path):
    path = tmp_path / "ister.yml"
    path.write_text("broker_port: 0")
    with pytest.raises(InvalidOptionError, match=r"option broker is missing, and .* leaves the port to chance"):
        read_options(TOPIC | {"config": str(path)}, Use.READ)


def test_a_stream_has_the_columns_of_a_table():
    assert from_arrow_schema(ARROW) == SCHEMA


offsets = st.integers(0, 2**62)
marks = st.dictionaries(st.integers(0, 20), st.builds(Mark, st.integers(1, 9), offsets, st.none() | offsets))


@settings(deadline=None)
@given(marks)
def test_marks_are_read_as_they_were_kept(found):
    assert from_json(to_json(found)) == found


def test_a_checkpoint_of_an_older_release_is_read_and_kept_as_it_is():
    """M6."""
    old = {"offsets": {"0": 120, "1": 98}, "generations": {"0": 1, "1": 2}}
    assert from_json(old) == {0: Mark(1, 120), 1: Mark(2, 98)}
    assert to_json(from_json(old)) == old


def test_equal_marks_are_equal_text():
    assert str(to_json({10: Mark(1, 3), 2: Mark(1, 4)})) == str(to_json({2: Mark(1, 4), 10: Mark(1, 3)}))


@settings(deadline=None)
@given(st.data(), st.integers(1, 100))
def test_a_limit_is_kept_used_up_and_shared(data, limit):
    numbers = data.draw(st.sets(st.integers(0, 9), min_size=1))
    start = {n: data.draw(st.integers(0, 50)) for n in numbers}
    stop = {n: data.draw(st.integers(0, 100)) for n in numbers}
    ends = advance(start, stop, limit)
    waiting = {n: max(0, stop[n] - start[n]) for n in numbers}
    taken = {n: ends[n] - start[n] for n in numbers}
    assert sum(taken.values()) == min(limit, sum(waiting.values()))
    assert all(0 <= taken[n] <= waiting[n] for n in numbers)
    ready = [n for n in numbers if waiting[n]]
    assert sum(taken[n] > 0 for n in ready) == min(limit, len(ready)), "each gets something while the limit allows"
    for n in numbers:
        part = limit * waiting[n] / max(1, sum(waiting.values()))
        assert sum(waiting.values()) <= limit or abs(taken[n] - part) <= len(ready)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 12))
def test_no_partition_starves_whatever_comes_in_the_others(seed, count, limit):
    """M4."""
    rng = Random(seed)
    starts = {n: rng.randrange(50) for n in range(count)}
    stops = dict(starts)
    passed_over = dict.fromkeys(starts, 0)
    for _ in range(30):
        for n in stops:
            stops[n] += rng.choice((0, 0, 1, 5, 10**6))
        ends = advance(starts, stops, limit)
        for n, start in starts.items():
            waits = start < stops[n] and ends[n] == start
            passed_over[n] = passed_over[n] + 1 if waits else 0
        assert max(passed_over.values()) < -(-count // limit), "each is read from within so many triggers"
        starts = ends


def test_a_small_partition_is_read_beside_a_large_one():
    """M4."""
    assert advance({0: 0, 1: 0}, {0: 10**6, 1: 5}, 1000) == {0: 999, 1: 1}
    assert advance({0: 0, 1: 0, 2: 7}, {0: 10**6, 1: 5, 2: 7}, 1) == {0: 0, 1: 1, 2: 7}


def test_without_a_limit_everything_is_taken():
    assert advance({0: 3, 1: 9}, {0: 100, 1: 7}, None) == {0: 100, 1: 9}


def test_a_topic_that_is_another_now_is_refused():
    before = {0: Mark(1, 5)}
    check_same("/default/x", before, {0: Mark(1, 3), 1: Mark(1, 0)})
    with pytest.raises(TopicChangedError, match="made again"):
        check_same("/default/x", before, {0: Mark(2, 9)})
    with pytest.raises(TopicChangedError, match="no partition 0"):
        check_same("/default/x", before, {1: Mark(1, 9)})
