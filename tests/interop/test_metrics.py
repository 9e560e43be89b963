"""What a running broker tells Prometheus is what docs/metrics.md says, and follows what clients do."""

import re
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from interop.official import Official, numbered
from interop.raw import DEAD_LETTER, EXCLUSIVE, refused
from interop.test_schemas import register
from interop.waiting import eventually

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
OF_TABLES = {
    "ister_table_reader_snapshots_total",
    "ister_table_reader_files_total",
    "ister_table_reader_rows_total",
    "ister_table_reader_replans_total",
    "ister_table_reader_skipped_total",
    "ister_topic_table_offset",
    "ister_topic_table_lag_messages",
}
"""Only where topics are read back from their tables (`storage.type: iceberg`)."""
LAG, CURSOR, UNACKED, ACKED, OUT = (
    "danube_subscription_lag_messages",
    "ister_subscription_cursor",
    "ister_subscription_unacked",
    "ister_subscription_acked_total",
    "danube_consumer_messages_out_total",
)
THE_PROCESS = re.compile(r"process_|python_gc_")
"""The usual ones, which the page names by their beginning."""


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    """Return the kind and the labels of each metric in the tables of the page."""
    text = DOCS.read_text()
    tables = text[text.index("### The broker") : text.index("### What to alarm on")]
    found = {}
    for section in re.split(r"^### ", tables, flags=re.MULTILINE)[1:]:
        heading = section.partition("\n")[0]
        labels = re.findall(r"`(\w+)`", heading)
        for name, own, kind in re.findall(r"^\| `(\w+)(?:\{([\w,]+)\})?` \| (\w+) \|", section, re.MULTILINE):
            found[name] = (kind, frozenset([*labels, *filter(None, own.split(","))]))
    return found


def told(page: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Return the kind and the labels of each metric on a scraped page that has a sample."""
    found = {}
    for family in text_string_to_metric_families(page):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        if family.samples and not THE_PROCESS.match(name):
            found[name] = (family.type, frozenset(labels))
    return found


async def use_everything(broker, topics) -> None:
    """Do what makes a broker tell all that it can: a dead letter, an upload, a schema that is not followed."""
    topic, letters, bound = topics(3)
    subject = bound.rpartition("/")[2]
    policy = {"max_redelivery_count": 0, "poison_policy": DEAD_LETTER, "dead_letter_topic": letters}
    async with broker.raw() as raw, Official(broker) as client:
        await raw.create_topic(topic)
        await raw.set_policy(topic, "sub", **policy)
        stream = await raw.consume(topic, "sub")
        await raw.send(topic, await raw.create_producer(topic), b"poison")
        await raw.nack(await stream.next(), "sub")
        await raw.ask("RequestSync", topic=topic)
        await raw.ask("RequestUpload", topic=topic)
        stream.cancel()
        await register(client, subject, {"type": "object"})
        producer = await client.producer(bound, prepare=lambda builder: builder.with_schema_subject(subject))
        await client.schemas.configure_topic_schema(bound, subject, "enforce", enable_payload_validation=True)
        await producer.send(b"{}")
        with pytest.raises(grpc.aio.AioRpcError):
            await producer.send(b"no object")


async def test_every_metric_that_is_told_is_documented_and_every_documented_one_is_told(broker, topics):
    await use_everything(broker, topics)
    found, written = told(broker.scrape()), documented()
    assert len(written) > 50, "the page's tables were read"
    assert {name: found[name] for name in found if name not in written} == {}
    assert written.keys() - found.keys() == OF_TABLES
    assert found == {name: written[name] for name in found}, "of the same kind, with the same labels"


async def test_a_subscriptions_numbers_follow_its_acknowledgements(broker, topic):
    def numbers() -> dict[str, float]:
        """Return what is told of the subscription, by the end of its name."""
        ends = f'{{topic="{topic}",subscription="sub"}}'
        samples = broker.metrics()
        return {name: samples[f"{name}{ends}"] for name in (LAG, CURSOR, UNACKED, ACKED, OUT)}

    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        stream = await raw.consume(topic, "sub", kind=EXCLUSIVE)
        assert numbers() == {LAG: 0, CURSOR: 0, UNACKED: 0, ACKED: 0, OUT: 0}
        await raw.send_all(topic, producer, numbered(3))
        first, second, third = await stream.take(3)
        assert numbers() == {LAG: 3, CURSOR: 0, UNACKED: 3, ACKED: 0, OUT: 3}, "what is delivered counts as lag"
        await raw.ack(second, "sub")
        assert numbers() == {LAG: 3, CURSOR: 0, UNACKED: 2, ACKED: 1, OUT: 3}, "the cursor waits for the first"
        await raw.ack(first, "sub")
        assert numbers() == {LAG: 1, CURSOR: 2, UNACKED: 1, ACKED: 2, OUT: 3}
        await raw.ack(third, "sub")
        assert numbers() == {LAG: 0, CURSOR: 3, UNACKED: 0, ACKED: 3, OUT: 3}
        await raw.send(topic, producer, b"one more")
        await stream.next()
        assert numbers() == {LAG: 1, CURSOR: 3, UNACKED: 1, ACKED: 3, OUT: 4}
        stream.cancel()


async def test_the_event_loops_lag_is_measured_again_and_again(broker):
    before = broker.metrics()
    measured = "ister_event_loop_lag_seconds_count"
    await eventually(lambda: broker.metrics()[measured] >= before[measured] + 2, "two more looks at the loop")
    after = broker.metrics()
    assert after["ister_event_loop_lag_seconds_sum"] >= before["ister_event_loop_lag_seconds_sum"] >= 0
    assert after['ister_event_loop_lag_seconds_bucket{le="+Inf"}'] == after[measured]
    assert after["ister_event_loop_lag_max_seconds"] >= 0


async def test_calls_are_counted_by_their_outcome(broker, topic):
    def calls(code: str) -> float:
        result = "ok" if code == "OK" else "error"
        name = f'danube_broker_rpc_total{{code="{code}",method="send_message",result="{result}",service="producer"}}'
        return broker.metrics().get(name, 0)

    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        before = calls("OK"), calls("NOT_FOUND")
        await raw.send_all(topic, producer, numbered(5))
        await refused(grpc.StatusCode.NOT_FOUND, raw.send("/default/nowhere", producer, b"x"))
        assert (calls("OK"), calls("NOT_FOUND")) == (before[0] + 5, before[1] + 1)
