"""What a scrape says: every number under its name, in both formats, whatever clients call things, and how long it takes."""

import asyncio
import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from ister import __version__
from ister.broker.metrics import exposition as metrics
from ister.broker.metrics.exposition import chosen_format, service_label
from ister.broker.metrics.families import LOG, READS, RELIABLE, SUBSCRIPTION, TOPIC, UPLOADS
from ister.broker.metrics.health import Readiness
from ister.broker.process import INTERVAL_S, WINDOW_S, LoopLag
from ister.core.errors import DiskFullError
from ister.core.histogram import Histogram
from ister.core.names import TopicName
from parts.metric import (
    FakeBroker,
    FakeChecks,
    FakeLog,
    FakeObjects,
    FakeReads,
    FakeSubscription,
    FakeTopic,
    FakeUploader,
    FakeVolatile,
    FakeWal,
    many_topics,
    metrics_of,
    topic_with,
)
from sim.machine import run as run_in_virtual_time

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"
SOURCES = Path(metrics.__file__).parents[2]
OPENMETRICS = "application/openmetrics-text"


def page(broker, accept=""):
    """Scrape once, and return the text."""
    return b"".join(asyncio.run(scrape(broker, accept))).decode()


async def scrape(broker, accept=""):
    return (await metrics_of(broker).page(accept)).pieces


def samples(broker, accept=""):
    """Scrape once, and return every sample as name, labels and value."""
    read = read_openmetrics if accept else read_text
    return [
        (sample.name, sample.labels, sample.value) for family in read(page(broker, accept)) for sample in family.samples
    ]


def values(broker, accept="", **labels):
    """Return what is said with exactly these labels."""
    return {name: value for name, found, value in samples(broker, accept) if found == labels}


TOPIC_VALUES = {
    "danube_topic_messages_in_total": 60,
    "danube_topic_bytes_in_total": 600,
    "danube_topic_active_producers": 3,
    "danube_topic_active_subscriptions": 1,
    "danube_topic_active_consumers": 2,
    "ister_topic_problem": 0,
    "ister_topic_start_offset": 10,
    "ister_topic_next_offset": 100,
    "ister_topic_synced_offset": 90,
    "ister_topic_uploaded_offset": 80,
    "ister_topic_table_offset": 75,
    "ister_topic_table_lag_messages": 25,
    "ister_topic_log_bytes": 4096,
    "danube_wal_append_total": 60,
    "danube_wal_append_bytes_total": 6000,
    "danube_wal_flush_total": 7,
    "danube_wal_flush_latency_ms_sum": 250,
    "danube_wal_flush_latency_ms_count": 7,
    "danube_wal_file_rotate_total": 2,
    "danube_wal_delete_total": 1,
    "danube_cloud_upload_bytes_total": 3000,
    "danube_cloud_upload_latency_ms_sum": 1500,
    "danube_cloud_upload_latency_ms_count": 3,
    "ister_topic_upload_stopped": 0,
    "danube_durable_history_segments_read_total": 5,
    "danube_durable_history_read_bytes_total": 5000,
}
SUBSCRIPTION_VALUES = {
    "danube_consumer_messages_out_total": 70,
    "danube_consumer_bytes_out_total": 700,
    "ister_subscription_dropped_total": 2,
    "danube_subscription_active_consumers": 2,
    "danube_subscription_lag_messages": 45,
    "ister_subscription_cursor": 55,
    "ister_subscription_unacked": 4,
    "ister_subscription_waiting": 6,
    "ister_subscription_problem": 0,
    "ister_subscription_skipped_total": 3,
    "danube_subscription_terminal_blocked": 0,
    "ister_subscription_acked_total": 50,
    "danube_subscription_nack_total": 9,
    "danube_subscription_redelivery_total": 8,
    "danube_subscription_dlq_total": 1,
}


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_every_number_of_a_topic_and_of_a_subscription_has_its_name(accept):
    broker = FakeBroker([topic_with(FakeSubscription())])
    assert values(broker, accept, topic="/default/t") == TOPIC_VALUES
    assert values(broker, accept, topic="/default/t", subscription="s") == SUBSCRIPTION_VALUES
    kind = {"topic": "/default/t", "subscription": "s", "type": "key_shared"}
    assert values(broker, accept, **kind) == {"ister_subscription_info": 1}
    results = [values(broker, accept, topic="/default/t", result=result) for result in ("ok", "error")]
    assert results == [{"danube_cloud_upload_objects_total": 3}, {"danube_cloud_upload_objects_total": 4}]


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_what_can_be_true_is_one_then(accept):
    subscription = FakeSubscription()
    subscription.dispatch.blocked = True
    log = FakeLog(objects=FakeObjects(FakeUploader(stopped=True)))
    broker = FakeBroker([topic_with(subscription, problem=DiskFullError("l"), log=log)])
    of_topic = values(broker, accept, topic="/default/t")
    assert of_topic["ister_topic_problem"] == of_topic["ister_topic_upload_stopped"] == 1
    assert values(broker, accept, topic="/default/t", subscription="s")["danube_subscription_terminal_blocked"] == 1


def test_a_log_that_takes_nothing_more_is_a_problem_of_its_topic():
    broker = FakeBroker([topic_with(log=FakeLog(wal=FakeWal(poison="syncing failed")))])
    assert values(broker, topic="/default/t")["ister_topic_problem"] == 1


def test_a_topic_that_is_not_reliable_tells_no_offsets_and_no_lag():
    broker = FakeBroker([topic_with(FakeVolatile(), log=None)])
    said = {name for name, labels, _ in samples(broker) if labels.get("topic")}
    assert said == {
        *(name for name in TOPIC_VALUES if name.startswith("danube_topic_")),
        "ister_topic_problem",
        "danube_consumer_messages_out_total",
        "danube_consumer_bytes_out_total",
        "ister_subscription_dropped_total",
        "danube_subscription_active_consumers",
        "ister_subscription_info",
    }


def test_a_topic_whose_log_could_not_be_opened_tells_what_is_known_of_it():
    broker = FakeBroker([topic_with(FakeSubscription(), problem=DiskFullError("l"), log=None)])
    assert values(broker, topic="/default/t")["ister_topic_problem"] == 1
    assert "danube_subscription_lag_messages" not in page(broker)


@pytest.mark.parametrize("objects", [None, FakeObjects(uploader=None)])
def test_where_nothing_is_uploaded_nothing_is_said_of_uploads(objects):
    log = FakeLog(later_tier_offset=None, objects=objects)
    text = page(FakeBroker([topic_with(log=log)]))
    assert "danube_cloud" not in text
    assert "uploaded_offset" not in text
    assert ("danube_durable_history" in text) == (objects is not None)


def test_a_subscription_ahead_of_its_log_has_no_lag():
    broker = FakeBroker([topic_with(FakeSubscription(cursor=101))])
    assert values(broker, topic="/default/t", subscription="s")["danube_subscription_lag_messages"] == 0


# --- once per broker --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_a_broker_tells_which_it_is_and_how_it_is(accept):
    problems = {TopicName("default", "bad"): DiskFullError("l")}
    broker = FakeBroker(state=Readiness(draining=True, topics=7, problems=problems))
    said = values(broker, accept)
    assert said["ister_broker_ready"] == 0
    assert said["ister_broker_draining"] == 1
    assert said["danube_broker_topics_owned"] == 7
    assert said["ister_broker_topics_with_problems"] == 1
    assert said["process_resident_memory_bytes"] > 1_000_000
    assert said["process_open_fds"] > 2
    assert values(broker, accept, version=__version__, cluster_name="a cluster") == {"ister_broker_info": 1}
    assert values(broker, accept, generation="2")["python_gc_collections_total"] >= 0
    assert values(FakeBroker(), accept)["ister_broker_ready"] == 1


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_rpcs_are_counted_by_what_danube_calls_them_and_by_code(accept):
    rpcs = {
        ("/danube.ProducerService/SendMessage", "OK"): 5,
        ("/danube.ProducerService/SendMessage", "UNAVAILABLE"): 2,
        ("danube.ConsumerService/ReceiveMessages", "CANCELLED"): 1,
    }
    said = [(labels, value) for name, labels, value in samples(FakeBroker(rpcs=rpcs), accept) if "rpc" in name]
    send = {"service": "producer", "method": "send_message"}
    assert said == [
        ({**send, "result": "ok", "code": "OK"}, 5),
        ({**send, "result": "error", "code": "UNAVAILABLE"}, 2),
        ({"service": "consumer", "method": "receive_messages", "result": "ok", "code": "CANCELLED"}, 1),
    ]


@pytest.mark.parametrize(
    ("service", "label"),
    [
        ("danube.ProducerService", "producer"),
        ("danube.Discovery", "discovery"),
        ("danube.HealthCheck", "health_check"),
        ("danube_schema.SchemaRegistry", "schema_registry"),
        ("danube_admin.TopicAdmin", "topic_admin"),
        ("danube.StorageService", "storage"),
        ("ister.v1.Storage", "ister_storage"),
    ],
)
def test_a_service_has_the_label_that_danube_gives_it(service, label):
    assert service_label(service) == label


def test_two_services_of_one_label_are_added_up_and_not_said_twice():
    rpcs = {("/danube.Storage/Get", "OK"): 2, ("/danube.StorageService/Get", "OK"): 3}
    assert [value for name, _, value in samples(FakeBroker(rpcs=rpcs)) if "rpc" in name] == [5]


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_what_was_checked_against_schemas_is_told_by_policy_and_by_reason(accept):
    assert "danube_schema" not in page(FakeBroker(), accept)
    broker = FakeBroker(schema_checks=FakeChecks())
    assert values(broker, accept, topic="/default/t", policy="warn") == {"danube_schema_validation_total": 9}
    wrong = {"danube_schema_validation_failures_total": 2}
    assert values(broker, accept, topic="/default/t", reason="payload_invalid") == wrong


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_durations_are_told_as_histograms_if_someone_counts_them(accept):
    assert "ister_wal_sync_seconds" not in page(FakeBroker(), accept)
    syncs, sends = Histogram((0.001, 0.01)), Histogram((1, 10))
    for value in (0.001, 0.002, 5.0):
        syncs.observe(value)
    sends.observe(3)
    broker = FakeBroker(sync_seconds=syncs, send_ms=sends)
    buckets = {
        float(labels["le"]): value
        for name, labels, value in samples(broker, accept)
        if name == "ister_wal_sync_seconds_bucket"
    }
    assert buckets == {0.001: 1, 0.01: 2, float("inf"): 3}
    said = values(broker, accept)
    assert (said["ister_wal_sync_seconds_count"], said["ister_wal_sync_seconds_sum"]) == (3, pytest.approx(5.003))
    assert (said["danube_producer_send_latency_ms_count"], said["danube_producer_send_latency_ms_sum"]) == (1, 3)


def test_a_value_on_a_bound_counts_below_it():
    values_ = Histogram((1.0, 2.0))
    for value in (0, 1.0, 1.5, 2.0, 2.1):
        values_.observe(value)
    assert values_.cumulative() == [(1.0, 2), (2.0, 4), (float("inf"), 5)]
    assert (values_.count, values_.total) == (5, pytest.approx(6.6))


# --- the text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; version=1.0.0", True),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1", True),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.5", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=nan", False),
        ("application/openmetrics-text;q=1e9", False),
        ("application/openmetrics-text;version=x;q=0.7", True),
        (";;;,,,q=;=", False),
    ],
)
def test_the_format_is_openmetrics_for_whoever_asks_for_it(accept, openmetrics):
    text = page(FakeBroker(), accept)
    assert text.endswith("# EOF\n") == openmetrics
    assert text.count("# EOF") == openmetrics
    assert ("openmetrics" in chosen_format(accept).value) == openmetrics


def test_a_family_is_in_one_block_with_its_type_before_it():
    text = page(FakeBroker(many_topics(20, 10, 3)))
    names = re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)
    assert len(names) == len(set(names))
    found = list(read_text(text))
    assert {family.type for family in found} <= {"counter", "gauge", "summary", "histogram"}
    assert sum(len(family.samples) for family in found) == len([x for x in text.splitlines() if x[0] != "#"])


@example(name='a"b')
@example(name="a\\nb\\")
@example(name="a\nb")
@given(name=st.text(st.characters(codec="utf-8"), min_size=1, max_size=40))
@settings(max_examples=50, deadline=None)
def test_f40_a_subscription_may_have_any_name(name):
    topic = topic_with(FakeSubscription(name))
    expected = {"topic": "/default/t", "subscription": name}
    for accept in ("", OPENMETRICS):
        assert values(FakeBroker([topic]), accept, **expected) == SUBSCRIPTION_VALUES


def test_a_name_that_cannot_be_encoded_does_not_cost_the_page():
    said = samples(FakeBroker([topic_with(FakeSubscription("\ud800"), FakeSubscription("good"))]))
    assert {labels.get("subscription") for _, labels, _ in said} == {None, "?", "good"}


def test_topics_and_subscriptions_beyond_the_bounds_are_left_out_and_counted(monkeypatch):
    monkeypatch.setattr(metrics, "TOPICS_MAX", 5)
    monkeypatch.setattr(metrics, "SUBSCRIPTIONS_MAX", 7)
    broker = FakeBroker(many_topics(8, 4, 3))
    said = samples(broker)
    count = sum(name == "danube_topic_messages_in_total" for name, _, _ in said)
    subscriptions = sum(name == "danube_subscription_lag_messages" for name, _, _ in said)
    assert (count, subscriptions) == (5, 7)
    assert values(broker)["ister_metrics_topics_left_out"] == 3
    assert values(broker)["ister_metrics_subscriptions_left_out"] == 5
    monkeypatch.undo()
    assert values(broker)["ister_metrics_topics_left_out"] == 0


def test_topics_may_come_and_go_during_a_scrape(monkeypatch):
    monkeypatch.setattr(metrics, "SLICE_S", 0)
    topics = {topic.text: topic for topic in many_topics(50, 50, 2)}
    broker = FakeBroker()
    broker.topics = topics.values

    async def story():
        scraping = asyncio.create_task(scrape(broker))
        turns = 0
        while not scraping.done():
            turns += 1
            if topics:
                _, gone = topics.popitem()
                gone.subscriptions.clear()
            topics[f"new{turns}"] = FakeTopic(f"/default/new{turns}")
            topics.pop(f"new{turns - 1}", None)
            await asyncio.sleep(0)
        assert turns > 50
        return b"".join(await scraping).decode()

    said = list(read_text(asyncio.run(story())))
    assert any(family.name == "danube_topic_messages_in" and len(family.samples) == 50 for family in said)


def test_scrapes_at_the_same_time_are_made_one_after_the_other(monkeypatch):
    monkeypatch.setattr(metrics, "SLICE_S", 0)
    broker = FakeBroker(many_topics(20, 0, 0))
    asked = []
    broker.topics = lambda: asked.append(len(ended)) or broker.hosted
    ended = []

    async def story():
        made = metrics_of(broker)

        async def one():
            await made.page()
            ended.append(1)

        await asyncio.gather(one(), one(), one())

    asyncio.run(story())
    assert asked == [0, 1, 2]


def test_a_thousand_topics_are_scraped_in_no_time_and_the_loop_goes_on_meanwhile(tell):
    broker = FakeBroker(many_topics(1000, 100, 10))

    async def story():
        made = metrics_of(broker)
        await made.page()
        longest, last, turns = 0.0, time.thread_time(), 0

        def turn():
            nonlocal longest, last, turns
            now = time.thread_time()
            longest, last, turns = max(longest, now - last), now, turns + 1
            if not done:
                loop.call_soon(turn)

        done = False
        loop = asyncio.get_running_loop()
        loop.call_soon(turn)
        began = time.thread_time()
        pieces = (await made.page()).pieces
        done = True
        return longest, turns, time.thread_time() - began, sum(map(len, pieces))

    # Time of this thread, so that a busy machine does not count.
    longest, turns, total, size = asyncio.run(story())
    tell("metrics", f"{size / 1e6:.1f} MB in {total * 1000:.0f} ms, {longest * 1000:.1f} ms at a time")
    assert total < 0.2
    assert longest < 0.01
    assert turns > 5


def test_what_was_read_back_from_tables_is_told_where_they_are_read():
    assert "ister_table_reader" not in page(FakeBroker())
    text = page(FakeBroker(table_reads=FakeReads()))
    told = dict(re.findall(r"^ister_table_reader_(\w+)_total (\d+)", text, re.MULTILINE))
    assert told == {"snapshots": "31", "files": "32", "rows": "33", "replans": "34", "skipped": "35"}


def test_every_name_is_in_the_documentation_and_the_documentation_names_no_other():
    syncs = Histogram((1,))
    broker = FakeBroker(
        [topic_with(FakeSubscription())],
        {("/a/b", "OK"): 1},
        sync_seconds=syncs,
        send_ms=syncs,
        schema_checks=FakeChecks(),
        table_reads=FakeReads(),
    )
    said = set(re.findall(r"^# TYPE (\S+) ", page(broker), re.MULTILINE))
    ours = {name for name in said if name.startswith(("danube_", "ister_"))}
    table = DOCS.read_text().split("## What Danube has and this has not")[0]
    assert ours == set(re.findall(r"`((?:danube|ister)_\w+)[`{]", table))
    assert all(family.text.endswith(".") for family in (*TOPIC, *LOG, *UPLOADS, *READS, *SUBSCRIPTION, *RELIABLE))


def test_every_event_of_the_broker_is_in_the_documentation_and_no_other():
    sources = "\n".join(
        path.read_text()
        for path in sorted([*(SOURCES / "broker").rglob("*.py"), *(SOURCES / "transport").rglob("*.py")])
    )
    emitted = set(re.findall(r"\blog\.(?:info|warning|error|exception)\(\s*\"(\w+)\"", sources))
    table = DOCS.read_text().split("The broker's own:")[1]
    assert emitted | {"library_warned"} == set(re.findall(r"^\| `(\w+)` ", table, re.MULTILINE))


# --- the event loop's lag ---------------------------------------------------------------------------------------------


def test_a_loop_that_has_nothing_to_do_has_no_lag():
    async def story():
        lag = LoopLag()
        lag.start()
        await asyncio.sleep(10.05)
        lag.stop()
        await asyncio.sleep(10)
        return lag.seconds.count, lag.seconds.total, lag.max_seconds()

    count, total, largest = run_in_virtual_time(story())
    assert 95 <= count <= 101
    assert total == pytest.approx(0, abs=0.01)
    assert largest == pytest.approx(0, abs=0.01)


def test_what_blocks_the_loop_is_seen_even_before_the_timer_had_its_turn():
    async def story():
        lag = LoopLag()
        lag.start()
        block(3 * INTERVAL_S)
        at_once = lag.max_seconds()
        fired = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(INTERVAL_S / 10, fired.set_result, None)
        await fired
        lag.stop()
        return at_once, lag.max_seconds(), lag.seconds

    at_once, later, seconds = asyncio.run(story())
    assert 2 * INTERVAL_S <= at_once <= later
    assert seconds.count == 1
    assert seconds.total == pytest.approx(later)


def test_the_largest_lag_is_told_for_one_window_at_least_and_two_at_most():
    async def story():
        loop = asyncio.get_running_loop()
        lag = LoopLag()
        lag.start()
        await asyncio.sleep(WINDOW_S * 0.9)
        jump(loop, 1.5)
        told = []
        for _ in range(22):
            await asyncio.sleep(WINDOW_S / 10)
            told.append(lag.max_seconds() > 1)
            assert lag.max_seconds() == lag.max_seconds(), "reading takes nothing away"
        lag.stop()
        return told

    told = run_in_virtual_time(story())
    assert told[:10] == [True] * 10
    assert told[20:] == [False] * 2


def block(seconds):
    """Keep the loop from turning."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def jump(loop, seconds):
    """Let virtual time pass while nothing else happens, as in a callback that takes long."""
    loop._now += seconds
