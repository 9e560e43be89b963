"""A broker whose log and objects are gone: the table serves every consumer, every field exact, in order."""

import asyncio
import hashlib
import random
import shutil

import pyarrow as pa

from interop.official import Official
from interop.waiting import within
from ister.config import load
from ister.core.dispatch.delivery_id import split_delivery_id
from ister.core.frames.columns import SCHEMA
from ister.core.names import TopicName
from ister.runtime.compose import open_metadata, open_store, topics_config
from ister.storage.factory import WalStorageFactory
from parts.pipeline import Pipeline, assert_exact, broker_with_token, new_topic, produce, table_of

CHUNK = 10_000


def config_of(lake_home, **more):
    catalog = {"uri": f"sqlite:///{lake_home}/catalog.db", "warehouse": f"{lake_home}/warehouse"}
    return {
        "policies": {"start_position": "earliest"},
        "dispatch": {"max_unacked_messages": 1000},
        "storage": {"type": "iceberg", "iceberg_config": {"catalog": catalog, **more}},
    }


def produced(start, stop, seed):
    """Messages as a program has them, before anything of ours has seen them."""
    rng = random.Random(f"{seed}/{start}")
    rows = range(start, stop)
    return pa.RecordBatch.from_pydict(
        {
            "payload": [rng.randbytes(rng.choice((0, 10, 100))) for _ in rows],
            "publish_time": [rng.choice((0, 1_700_000_000_000, 2**64 - 1)) for _ in rows],
            "producer_id": [rng.choice((0, 7, 2**64 - 1)) for _ in rows],
            "request_id": [rng.getrandbits(64) for _ in rows],
            "producer_name": [rng.choice(("shop", "größer", "x" * 200)) for _ in rows],
            "broker_addr": ["http://127.0.0.1:1"] * len(rows),
            "routing_key": [rng.choice((None, "", "customer-7")) for _ in rows],
            "attributes": [[(f"k{n}", rng.choice(("", "wert"))) for n in range(rng.choice((0, 1, 3)))] for _ in rows],
        },
        schema=pa.schema(
            [
                SCHEMA.field(name)
                for name in (
                    "payload", "publish_time", "producer_id", "request_id", "producer_name", "broker_addr",
                    "routing_key", "attributes",
                )
            ]
        ),
    )  # fmt: skip


class Digest:
    """SHA-256 over offset, payload, all fields, attributes sorted."""

    def __init__(self):
        self._sum = hashlib.sha256()
        self.next = 0

    def add(self, payload, published, producer_id, request_id, name, addr, key, attributes):
        fields = (self.next, payload, published, producer_id, request_id, name, addr, key, sorted(attributes))
        self._sum.update(repr(fields).encode())
        self.next += 1

    def add_batch(self, batch):
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            self.add(*row)

    def add_message(self, message):
        assert message.msg_id.topic_offset == self.next, "dense, and in order"
        key = message.routing_key if message.HasField("routing_key") else None
        self.add(
            bytes(message.payload), message.publish_time, message.msg_id.producer_id, message.request_id,
            message.producer_name, split_delivery_id(message.msg_id.broker_addr)[0], key,
            list(message.attributes.items()),
        )  # fmt: skip

    def hex(self):
        return self._sum.hexdigest()


async def load_log(broker, topic, total, seed):
    """Fill a stopped broker's topic by append_arrow; returns the digest of what was given."""
    config = load(broker.directory / "ister.yml", broker.data).config
    store, metadata = open_store(config), await open_metadata(config, read_only=False)
    factory = WalStorageFactory(topics_config(config), store=store, metadata=metadata)
    digest = Digest()
    try:
        await factory.start()
        storage = await factory.for_topic(topic)
        for start in range(0, total, CHUNK):
            batch = produced(start, min(total, start + CHUNK), seed)
            await storage.wal.append_arrow(batch)
            digest.add_batch(batch)
    finally:
        await factory.shutdown()
        await metadata.close()
        await store.close()
    return digest


async def consume(broker, topic, subscription, total):
    digest = Digest()
    async with Official(broker) as client:
        consumer = await client.consumer(topic, subscription)
        pending = set()
        for _ in range(total):
            message = await consumer.next(60.0)
            digest.add_message(message)
            pending.add(asyncio.create_task(consumer.ack(message)))
            if len(pending) >= 200:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
        await asyncio.gather(*pending)
    return digest


def lose(broker):
    """Take everything but metadata and catalog."""
    for part in ("wal", "objects"):
        shutil.rmtree(broker.data / part)


def test_an_official_client_reads_from_offset_0_what_only_a_table_of_another_sort_still_holds(
    spark, catalog, lake_home, monkeypatch, count
):
    total = count(50_000, 1_000_000)
    topic = new_topic("digest")
    with broker_with_token(monkeypatch, config_of(lake_home)) as broker:
        produce(broker, topic, [])
        broker.stop()
        given = asyncio.run(load_log(broker, topic, total, 1))
        broker.start()
        with Pipeline(spark, broker, catalog, [topic], target_file_bytes=1 << 20) as writer:
            for _ in range(4):
                writer.tick()
        assert_exact(catalog, topic, total)
        table = ".".join(table_of(catalog, topic).identifier)
        spark.sql(
            f"CALL ister.system.rewrite_data_files(table => '{table}', strategy => 'sort', "
            "sort_order => 'producer_name DESC, request_id ASC', options => map('rewrite-all', 'true'))"
        ).collect()
        broker.stop()
        lose(broker)
        broker.start()
        got = asyncio.run(consume(broker, topic, "reader", total))
        assert (got.next, got.hex()) == (total, given.hex())
        told = broker.metrics()
        assert told["ister_table_reader_rows_total"] >= total
        assert told[f'ister_topic_table_offset{{topic="{topic}"}}'] == total

        produce(broker, topic, [b"the next one"])  # it goes on where the table ends

        async def last():
            async with Official(broker) as client:
                consumer = await client.consumer(topic, "reader")
                return await consumer.next()

        message = asyncio.run(last())
        assert (message.msg_id.topic_offset, message.payload) == (total, b"the next one")
        with Pipeline(spark, broker, catalog, [topic]) as writer:
            writer.tick()
        assert_exact(catalog, topic, total + 1)


def test_two_subscriptions_at_different_speeds_resume_exactly_after_kill_9_when_only_the_table_is_left(
    spark, catalog, lake_home, monkeypatch
):
    total = 600
    topic = new_topic("resume")
    with broker_with_token(monkeypatch, config_of(lake_home)) as broker:
        produce(broker, topic, [b"%d" % number for number in range(total)])
        with Pipeline(spark, broker, catalog, [topic]) as writer:
            writer.tick()

        async def take(subscription, count):
            async with Official(broker) as client:
                consumer = await client.consumer(topic, subscription)
                return [message.msg_id.topic_offset for message in await consumer.take(count)]

        quick, slow = asyncio.run(take("quick", 400)), asyncio.run(take("slow", 50))
        assert (quick, slow) == (list(range(400)), list(range(50)))
        broker.stop()  # what was acknowledged is kept
        lose(broker)
        for _ in range(2):
            broker.start()
            broker.kill()
        broker.start()
        assert asyncio.run(take("quick", 200)) == list(range(400, 600))
        assert asyncio.run(take("slow", 550)) == list(range(50, 600))
        keys = asyncio.run(cursor_keys(broker))
        name = TopicName.parse(topic)
        assert {key.split("/")[5] for key in keys if key.endswith(f"/{name.namespace}/{name.topic}")} == {
            "quick",
            "slow",
        }
        assert not list(broker.data.rglob("cursors.json")), "there is one truth"


async def cursor_keys(broker):
    broker.stop()
    config = load(broker.directory / "ister.yml", broker.data).config
    metadata = await open_metadata(config, read_only=True)
    try:
        async with within(30, "metadata"):
            return [
                entry.key for entry in await metadata.list("/danube-data/persistent_storage/iceberg/subscriptions/")
            ]
    finally:
        await metadata.close()
