"""What the tests of the pipeline share: a broker in its own process, a writer on real Spark, and what a table holds."""

import asyncio
import itertools
import uuid
from contextlib import contextmanager

import pyarrow.compute as pc

from interop.broker import Broker
from ister.client.storage import BrokerClient
from ister.core.names import TopicName
from ister.lake.catalog import LakeCatalog
from ister.pipeline.plan import Choice
from ister.pipeline.task import Reach
from ister.pipeline.topic_writer import TopicWriter, WriterSettings

TOKEN = "a-token-for-tests"
_names = itertools.count()


def new_topic(word="topic"):
    """A name that no other test uses: all of them share one catalog."""
    return f"/default/{word}-{next(_names)}-{uuid.uuid4().hex[:8]}"


def produce(broker, topic, payloads, **fields):
    """Send messages, many at a time, and return their offsets."""

    async def send_all():
        async with broker.raw() as raw:
            producer = await raw.create_producer(topic)
            for start in range(0, len(payloads), 200):
                batch = payloads[start : start + 200]
                await asyncio.gather(*(raw.send(topic, producer, payload, **fields) for payload in batch))

    asyncio.run(send_all())


class Hasty:
    """A clock on which two minutes go by between any two looks at it: no topic that failed is waited for."""

    def __init__(self):
        self._looks = itertools.count(1)

    def __call__(self):
        return 120.0 * next(self._looks)


class Pipeline:
    """A TopicWriter of its own, which takes only the topics of its test."""

    def __init__(self, spark, broker, catalog, topics, *, token=TOKEN, now=None, **settings):
        self.client = BrokerClient(broker.target, token)
        self.lake = LakeCatalog(catalog)
        self.writer = TopicWriter(
            spark,
            self.client,
            self.lake,
            WriterSettings(
                Reach({}, "fs", f"{broker.data}/objects", {}),
                choice=Choice(tuple(topics)),
                objects_only=token is None,
                **settings,
            ),
            now=now or Hasty(),
        )

    def __enter__(self):
        self.writer.start()
        return self.writer

    def __exit__(self, *_):
        self.client.close()
        self.writer.close()


def table_of(catalog, topic, generation=1):
    return LakeCatalog(catalog).table(TopicName.parse(topic), generation)


def rows_of(catalog, topic, generation=1):
    """Return a topic's table as Arrow, by a reader of its own, in the order of offsets."""
    name = table_of(catalog, topic, generation).identifier
    return (
        catalog.load_table(name).scan().to_arrow().sort_by([("partition", "ascending"), ("topic_offset", "ascending")])
    )


def assert_exact(catalog, topic, upto, generation=1):
    """Insist on count = count distinct = upto, and nothing else."""
    table = table_of(catalog, topic, generation)
    offsets = rows_of(catalog, topic, generation)["topic_offset"]
    assert (len(offsets), pc.count_distinct(offsets).as_py(), table.upto(0)) == (upto, upto, upto)
    assert offsets.to_pylist() == list(range(upto))


@contextmanager
def broker_with_token(monkeypatch, config=None):
    monkeypatch.setenv("ISTER_PIPELINE_TOKEN", TOKEN)
    with Broker(config) as broker:
        yield broker
