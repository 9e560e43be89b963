"""Topics with a schema have a typed value; what cannot be typed is kept, and stops nothing."""

import asyncio
import io
import json
from contextlib import contextmanager

import fastavro
import pytest
from danube import CompatibilityMode, SchemaType
from danube.proto import DanubeApi_pb2 as api
from grpc import StatusCode
from pyiceberg.types import FixedType, IntegerType, MapType, StringType, TimeType, UUIDType

from interop.official import Official
from interop.test_schemas import register
from ister.client.storage import BrokerRefusedError, BrokerUnavailableError
from ister.pipeline.loop import drain
from parts.engines import by_duckdb_handed_arrow, by_polars, by_spark
from parts.fault import files_of
from parts.pipeline import Pipeline, assert_exact, new_topic, produce, rows_of, table_of

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


async def send(broker, topic, payloads, *, schema_id, version):
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        for payload in payloads:
            await raw.send(topic, producer, payload, schema_id=schema_id, schema_version=version)


def bind(broker, topic, definition, kind=SchemaType.JSON_SCHEMA, word="value"):
    """Register a version, and have the topic follow its subject; returns the schema's id."""
    subject = f"{topic.removeprefix('/default/')}-{word}"

    async def do():
        async with Official(broker) as client:
            number = await register(client, subject, definition, kind)
            if word != "value":  # it follows another one already
                await client.schemas.configure_topic_schema(topic, subject, "none")
                await client.schemas.set_compatibility_mode(subject, CompatibilityMode.NONE)
        async with broker.raw() as raw:
            await raw.create_producer(topic, schema_ref=api.SchemaReference(subject=subject, use_latest=True))
        return number

    return asyncio.run(do())


def assert_engines_agree(topic, catalog, spark):
    """Insist that every engine has the typed values that PyIceberg has, of a table whose columns changed."""
    name = table_of(catalog, topic).identifier
    wanted = rows_of(catalog, topic)
    assert len(wanted) > 0
    for read in (by_spark, by_polars, by_duckdb_handed_arrow):
        found = read(name, catalog, spark).sort_by("topic_offset")
        for column in ("value", "payload", "decode_error"):
            assert found[column].to_pylist() == wanted[column].to_pylist(), (read.__name__, column)


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
    assert_engines_agree(topic, catalog, spark)


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
    assert_engines_agree(topic, catalog, spark)


def test_f33_what_does_not_decode_keeps_its_row_is_marked_and_counted(spark, catalog, broker, tell):
    topic = new_topic("bad")
    number = bind(broker, topic, ORDER)
    good = [json.dumps({"id": n}).encode() for n in range(20)]
    bad = [b"", b"\xff\xfe", b"[" * 5000, b'{"id": 1', b'["no object"]', b"null garbage", bytes(1000)]
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


def test_a_value_that_does_not_fit_its_column_goes_beside_it_and_costs_no_row(spark, catalog, broker):
    """K4."""
    topic = new_topic("misfit")
    number = bind(broker, topic, ORDER)
    payloads = [
        b'{"id": 1, "price": 0.10}',
        b'{"id": 18446744073709551615, "price": 1e400, "buyer": {"name": 7}}',
        b'{"id": 9007199254740993.0, "anything": 12345678901234567.890}',
    ]
    asyncio.run(send(broker, topic, payloads, schema_id=number, version=1))
    with Pipeline(spark, broker, catalog, [topic]) as writer:
        drain(writer, lambda tick: None)
        assert writer.topics[topic].undecoded == 0
    assert_exact(catalog, topic, 3)
    first, second, third = rows_of(catalog, topic)["value"].to_pylist()
    assert (first["id"], first["price"], first["id_as_json"], first["price_as_json"]) == (1, 0.1, None, None)
    assert (second["id"], second["id_as_json"], second["price_as_json"]) == (None, "18446744073709551615", "1e400")
    assert second["buyer"] == {"name": None, "name_as_json": "7"}
    assert (third["id"], third["anything"]) == (9007199254740993, "12345678901234567.890")
    assert_engines_agree(topic, catalog, spark)


@contextmanager
def losing(monkeypatch, client, error):
    """Have the broker not answer the next question for a schema."""
    ask, left = client.schema, [error]

    def lost(*version):
        if left:
            raise left.pop()
        return ask(*version)

    with monkeypatch.context() as patch:
        patch.setattr(client, "schema", lost)
        yield
    assert not left, "nobody asked"


@pytest.mark.parametrize(
    "error",
    [
        BrokerUnavailableError("it does not answer in time"),
        BrokerRefusedError("it has a bug", StatusCode.INTERNAL),
    ],
    ids=["away", "internal"],
)
def test_a_schema_that_could_not_be_asked_for_costs_its_topic_a_tick_and_not_its_types(
    spark, catalog, broker, monkeypatch, error
):
    topic, other = new_topic("asked"), new_topic("other")
    number = bind(broker, topic, ORDER)
    asyncio.run(send(broker, topic, [b'{"id": 1}'], schema_id=number, version=1))
    produce(broker, other, [b"x"])
    pipeline = Pipeline(spark, broker, catalog, [topic, other])
    with pipeline as writer:
        with losing(monkeypatch, pipeline.client, error):
            tick = writer.tick()
        assert (tick.rows, tick.failed) == (1, {topic: str(error)}), "the other one goes on"
        tick = writer.tick()
        assert (tick.rows, tick.failed) == (1, {})
    assert rows_of(catalog, topic)["value"][0].as_py()["id"] == 1


def test_a_version_that_was_deleted_is_no_reason_to_wait(spark, catalog, broker, monkeypatch):
    topic = new_topic("deleted")
    number = bind(broker, topic, ORDER)
    asyncio.run(send(broker, topic, [b'{"id": 1}'], schema_id=number, version=1))
    pipeline, gone = Pipeline(spark, broker, catalog, [topic]), BrokerRefusedError("it is gone", StatusCode.NOT_FOUND)
    with pipeline as writer, losing(monkeypatch, pipeline.client, gone):
        assert writer.tick().failed == {}
    assert_exact(catalog, topic, 1)


def add_columns(catalog, topic, **columns):
    """Give a table more columns, as its user may; two underscores lead into a struct."""
    with catalog.load_table(table_of(catalog, topic).identifier).update_schema() as update:
        for name, kind in columns.items():
            update.add_column(tuple(name.split("__")), kind)


def test_columns_that_its_user_added_stop_no_typed_topic(spark, catalog, broker):
    topic, other = new_topic("user"), new_topic("other")
    number = bind(broker, topic, ORDER)
    asyncio.run(send(broker, topic, [b'{"id": 1}'], schema_id=number, version=1))
    with Pipeline(spark, broker, catalog, [topic, other]) as writer:
        assert writer.tick().failed == {}
        spark.sql(f"ALTER TABLE ister.{'.'.join(table_of(catalog, topic).identifier)} ADD COLUMN of_spark int")
        asyncio.run(send(broker, topic, [b'{"id": 1}'], schema_id=number, version=1))
        assert writer.tick().failed == {}
        add_columns(
            catalog,
            topic,
            note=StringType(),
            seen=TimeType(),
            value__at=TimeType(),
            value__who=UUIDType(),
            value__raw=FixedType(4),
            value__by_number=MapType(900, IntegerType(), 901, StringType(), value_required=False),
            value__buyer__seen=TimeType(),
        )
        asyncio.run(send(broker, topic, [b'{"id": 2, "buyer": {"name": "Bo"}}'], schema_id=number, version=1))
        produce(broker, other, [b"x"])
        tick = writer.tick()
        assert (tick.rows, tick.failed) == (2, {})
        # Its schema asks for one of these names: the column is the user's, and what was sent stands beside it.
        bind(broker, topic, ORDER | {"properties": ORDER["properties"] | {"at": {"type": "string"}}})
        asyncio.run(send(broker, topic, [b'{"id": 3, "at": "noon"}'], schema_id=number, version=2))
        tick = writer.tick()
        assert (tick.rows, tick.failed) == (1, {})
    rows = rows_of(catalog, topic)
    values = rows["value"].to_pylist()
    assert [value["id"] for value in values] == [1, 1, 2, 3]
    assert values[2]["buyer"] == {"name": "Bo", "seen": None}
    assert (values[3]["at"], values[3]["at_as_json"]) == (None, '"noon"')
    assert {rows[name].null_count for name in ("of_spark", "note", "seen", "decode_error")} == {4}
    with Pipeline(spark, broker, catalog, [topic, other]) as writer:
        produce(broker, other, [b"y"])
        asyncio.run(send(broker, topic, [b'{"id": 4}'], schema_id=number, version=2))
        assert (writer.tick().rows, writer.tick().failed) == (2, {}), "a new one goes on as well"


@pytest.mark.parametrize("column", ["value", "decode_error"])
def test_a_column_of_its_user_with_the_name_of_ours_leaves_its_topic_untyped(spark, catalog, broker, column):
    topic = new_topic("taken")
    produce(broker, topic, [b"x"])
    with Pipeline(spark, broker, catalog, [topic]) as writer:
        writer.tick()
        add_columns(catalog, topic, **{column: IntegerType()})
        number = bind(broker, topic, ORDER)
        asyncio.run(send(broker, topic, [b'{"id": 1}'], schema_id=number, version=1))
        tick = writer.tick()
        assert (tick.rows, tick.failed) == (1, {})
    assert_exact(catalog, topic, 2)
    assert rows_of(catalog, topic)[column].null_count == 2


def test_a_decode_error_that_its_user_dropped_comes_back(spark, catalog, broker):
    topic = new_topic("dropped")
    number = bind(broker, topic, ORDER)
    with Pipeline(spark, broker, catalog, [topic]) as writer:
        asyncio.run(send(broker, topic, [b'{"id": 1}'], schema_id=number, version=1))
        writer.tick()
        with catalog.load_table(table_of(catalog, topic).identifier).update_schema() as update:
            update.delete_column("decode_error")
        for _ in range(2):  # the first one finds out
            asyncio.run(send(broker, topic, [b"{"], schema_id=number, version=1))
            tick = writer.tick()
            assert (tick.rows, tick.failed) == (1, {})
        assert writer.topics[topic].undecoded == 2
    assert rows_of(catalog, topic)["decode_error"].to_pylist()[-1]


def test_what_nobody_expected_of_a_table_is_its_topic_s_error_and_no_other_s(spark, catalog, broker, monkeypatch):
    topic, other = new_topic("odd"), new_topic("other")
    number = bind(broker, topic, ORDER)
    asyncio.run(send(broker, topic, [b'{"id": 1}'], schema_id=number, version=1))
    produce(broker, other, [b"x"])
    with Pipeline(spark, broker, catalog, [topic, other]) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(writer._schemas, "typed", lambda *_: {}["a bug of ours"])
            tick = writer.tick()
        assert (tick.rows, set(tick.failed)) == (1, {topic})
        assert "KeyError" in tick.failed[topic]
        assert writer.tick().failed == {}
    assert_exact(catalog, topic, 1)


def test_messages_are_decoded_by_the_schema_that_they_name_whatever_the_topic_follows_now(spark, catalog, broker):
    topic = new_topic("rebound")
    first = bind(broker, topic, ORDER)
    asyncio.run(send(broker, topic, [b'{"id": 1}'], schema_id=first, version=1))
    second = bind(broker, topic, {"type": "object", "properties": {"paid": {"type": "boolean"}}}, word="receipt")
    assert second != first
    asyncio.run(send(broker, topic, [b'{"paid": true}'], schema_id=second, version=1))
    asyncio.run(send(broker, topic, [b'{"id": 2}'], schema_id=first, version=1))
    asyncio.run(send(broker, topic, [b"{}"], schema_id=1 << 40, version=1))
    pipeline = Pipeline(spark, broker, catalog, [topic])
    with pipeline as writer:
        ticks = []
        drain(writer, ticks.append)
        assert sum(tick.rows for tick in ticks) == 4
        assert not any(tick.failed for tick in ticks)
        assert writer.topics[topic].undecoded == 1
        assert len(files_of(catalog, topic)[1]) == 1, "what was written before the schema was asked for is not left"
        # A version that comes between the look and the plan is met in the same way.
        refresh = writer.refresh

        def late():
            refresh()
            bind(
                broker, topic, {"type": "object", "properties": {"paid": {}, "by": {"type": "string"}}}, word="receipt"
            )
            asyncio.run(send(broker, topic, [b'{"by": "card"}'], schema_id=second, version=2))
            writer.refresh = refresh

        asyncio.run(send(broker, topic, [b'{"paid": false}'], schema_id=second, version=1))
        writer.refresh = late
        drain(writer, ticks.append)
        drain(writer, ticks.append)
        assert writer.topics[topic].undecoded == 1
    rows = rows_of(catalog, topic)
    values = rows["value"].to_pylist()
    assert [value and (value["id"], value["paid"], value["by"]) for value in values] == [
        (1, None, None),
        (None, True, None),
        (2, None, None),
        None,
        (None, False, None),
        (None, None, "card"),
    ]
    assert [bool(one) for one in rows["decode_error"].to_pylist()] == [False, False, False, True, False, False]
