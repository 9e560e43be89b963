"""Topics with a schema have a typed value; what cannot be typed is kept, and stops nothing."""

import asyncio
import io
import json

import fastavro
import pytest
from danube import SchemaType
from danube.proto import DanubeApi_pb2 as api
from pipeline_parts import Pipeline, assert_exact, broker_with_token, new_topic, rows_of

from interop.official import Official
from interop.test_schemas import register

ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "buyer": {"type": "object", "properties": {"name": {"type": "string"}}},
        "anything": {},
    },
}
PAID = ORDER | {"properties": ORDER["properties"] | {"paid": {"type": "boolean"}}}
AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
AVRO_WIDE = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
}


@pytest.fixture(scope="module")
def broker():
    with pytest.MonkeyPatch.context() as patch, broker_with_token(patch) as found:
        yield found


async def send(broker, topic, payloads, *, schema_id, version):
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        for payload in payloads:
            await raw.send(topic, producer, payload, schema_id=schema_id, schema_version=version)


def bind(broker, topic, definition, kind=SchemaType.JSON_SCHEMA):
    """Register a version, and have the topic follow its subject; returns the schema's id."""
    subject = topic.removeprefix("/default/") + "-value"

    async def do():
        async with Official(broker) as client:
            number = await register(client, subject, definition, kind)
        async with broker.raw() as raw:
            await raw.create_producer(topic, schema_ref=api.SchemaReference(subject=subject, use_latest=True))
        return number

    return asyncio.run(do())


def test_json_becomes_columns_and_a_new_version_more_of_them_without_a_stop(spark, catalog, broker):
    topic = new_topic("json")
    number = bind(broker, topic, ORDER)
    first = {"id": 1, "price": 2.5, "tags": ["a", "b"], "buyer": {"name": "Ann"}, "anything": [1, "x"]}
    with Pipeline(spark, broker, catalog, [topic]) as writer:
        asyncio.run(send(broker, topic, [json.dumps(first).encode()], schema_id=number, version=1))
        assert writer.tick().failed == {}
        bind(broker, topic, PAID)
        second = {"id": 2, "paid": True}
        asyncio.run(send(broker, topic, [json.dumps(second).encode()], schema_id=number, version=2))
        asyncio.run(send(broker, topic, [json.dumps({"id": 3}).encode()], schema_id=number, version=1))
        assert writer.tick().failed == {}
        assert writer.topics[topic].undecoded == 0
    assert_exact(catalog, topic, 3)
    rows = rows_of(catalog, topic)
    one, two, three = rows["value"].to_pylist()
    assert (one["id"], one["price"], one["tags"], one["buyer"], one["paid"]) == (
        1,
        2.5,
        ["a", "b"],
        {"name": "Ann"},
        None,
    )
    assert json.loads(one["anything"]) == [1, "x"]
    assert (two["id"], two["paid"], two["tags"]) == (2, True, None)
    assert (three["id"], three["paid"]) == (3, None)
    assert rows["decode_error"].to_pylist() == [None] * 3


def test_avro_widens(spark, catalog, broker):
    topic = new_topic("avro")
    number = bind(broker, topic, AVRO, SchemaType.AVRO)

    def encoded(definition, value):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, definition, value)
        return out.getvalue()

    with Pipeline(spark, broker, catalog, [topic]) as writer:
        asyncio.run(send(broker, topic, [encoded(AVRO, {"id": 7})], schema_id=number, version=1))
        assert writer.tick().failed == {}
        bind(broker, topic, AVRO_WIDE, SchemaType.AVRO)
        large = encoded(AVRO_WIDE, {"id": 1 << 40, "note": "large"})
        asyncio.run(send(broker, topic, [large], schema_id=number, version=2))
        assert writer.tick().failed == {}
    values = rows_of(catalog, topic)["value"].to_pylist()
    assert values == [{"id": 7, "note": None}, {"id": 1 << 40, "note": "large"}]


def test_f33_what_does_not_decode_keeps_its_row_is_marked_and_counted(spark, catalog, broker, tell):
    topic = new_topic("bad")
    number = bind(broker, topic, ORDER)
    good = [json.dumps({"id": n}).encode() for n in range(20)]
    bad = [b"", b"\xff\xfe", b"[" * 5000, b'{"id": 1', b'{"id": "not a number"}', b"null garbage", bytes(1000)]
    asyncio.run(send(broker, topic, [*good, *bad], schema_id=number, version=1))
    asyncio.run(send(broker, topic, [b'{"id": 9}'], schema_id=number, version=99))
    with Pipeline(spark, broker, catalog, [topic]) as writer:
        assert writer.tick().failed == {}
        assert writer.topics[topic].undecoded == len(bad) + 1
    assert_exact(catalog, topic, len(good) + len(bad) + 1)
    rows = rows_of(catalog, topic)
    assert [value["id"] for value in rows["value"].to_pylist()[: len(good)]] == list(range(20))
    assert rows["payload"].to_pylist()[len(good) : len(good) + len(bad)] == bad
    errors = rows["decode_error"].to_pylist()
    assert errors[: len(good)] == [None] * len(good)
    assert all(errors[len(good) :])
    assert "version 99" in errors[-1]
    tell("F33", f"{len(bad) + 1} payloads that do not decode: 0 rows dropped")
