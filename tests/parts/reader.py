"""What the tests of brokers that only read share: an etcd, a table, a topic as its owner leaves it, and readers."""

import asyncio
import sys
from contextlib import asynccontextmanager, contextmanager
from functools import wraps

from interop.broker import Broker
from ister.broker.topics.records import NamespaceRecord, Records, TopicRecord
from ister.core.dispatch.delivery_id import split_delivery_id
from ister.ports.metadata.etcd import EtcdMetadata
from ister.storage.cursors.metadata import CursorRecord, progress_root, record_key
from ister.storage.cursors.move import Marker
from ister.storage.generations import TopicRegistry
from parts.readback import Fixture

ROOT = "/danube-data"
START = """
from dataclasses import replace
from ister.cli import main
from ister.runtime import serve
made = serve.broker_settings
serve.broker_settings = lambda config: replace(made(config), hold_ttl_s={ttl_s})
main()
"""


def coroutine_test(test):
    """Make a test of a coroutine function."""

    @wraps(test)
    def run(**given):
        asyncio.run(test(**given))

    return run


class Serving(Broker):
    """`ister serve` on a shared etcd, with a lease of its own length; reads only unless it is the owner."""

    def __init__(self, etcd, home, *, ttl_s=60.0, owner=False, **config):
        catalog = {"uri": f"sqlite:///{home}/catalog.db", "warehouse": f"{home}/warehouse"}
        super().__init__(
            {
                "policies": {"start_position": "earliest"},
                "dispatch": {"max_unacked_messages": 1000},
                "wal_cloud": {"metadata": {"etcd_endpoint": f"127.0.0.1:{etcd.client}"}},
                "storage": {
                    "type": "iceberg",
                    "iceberg_config": {"catalog": catalog, "reader": {"poll_interval_ms": 50}},
                },
            }
            | config
        )
        self.ttl_s = ttl_s
        self.owner = owner

    def command(self):
        _, _, _, *arguments = super().command()
        if not self.owner:
            arguments[arguments.index("--no-pipeline")] = "--read-only"
        return [sys.executable, "-c", START.format(ttl_s=self.ttl_s), *arguments]


@asynccontextmanager
async def metadata_of(etcd):
    metadata = await EtcdMetadata.open([f"127.0.0.1:{etcd.client}"])
    try:
        yield metadata
    finally:
        await metadata.close()


async def own(etcd, topic, generation=1):
    """Leave behind what an owner does that keeps cursors in metadata."""
    async with metadata_of(etcd) as metadata:
        records = Records(metadata, ROOT)
        await TopicRegistry(metadata, ROOT).restore(topic, generation)
        await records.save_namespace(topic.namespace, NamespaceRecord())
        await records.save_topic(topic, TopicRecord(reliable=True))
        marker = Marker(metadata, progress_root(ROOT), topic, generation)
        await marker.read()
        await marker.set("metadata")


async def saved_cursor(etcd, topic, subscription):
    """Return the cursor that is in metadata."""
    async with metadata_of(etcd) as metadata:
        entry = await metadata.get(record_key(progress_root(ROOT), subscription, topic))
        return None if entry is None else CursorRecord.load(entry.key, entry.value).offset


@contextmanager
def table(home, topic):
    made = Fixture(home, topic)
    try:
        yield made
    finally:
        made.close()


def as_sent(message):
    """What a consumer must see of a message, whatever carried it."""
    return (
        message.msg_id.topic_offset, message.payload, message.request_id, message.publish_time, message.producer_name,
        dict(message.attributes), message.msg_id.producer_id, split_delivery_id(message.msg_id.broker_addr)[0],
    )  # fmt: skip


def optional(message):
    return message.schema_id, message.schema_version, message.routing_key


def assert_exact(got, wanted):
    """Every field of what came, absent ones too, equals what was stored."""
    assert [as_sent(message) for message in got] == [as_sent(message) for message in wanted]
    told = [
        tuple(
            getattr(message, name) if message.HasField(name) else None
            for name in ("schema_id", "schema_version", "routing_key")
        )
        for message in got
    ]
    assert told == [optional(message) for message in wanted]
