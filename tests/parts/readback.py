"""What the tests of reading back share: messages of every kind, a table that holds them, and what a reader gave."""

import random
import uuid

from ister.core.frames.columns import decode_batch
from ister.core.frames.frame import encode_message
from ister.core.message import StreamMessage
from ister.lake.columns import table_rows
from ister.lake.parquet import write_files
from ister.lake.topic_table import ReaderOptions, TableReads
from parts.lake import NOW_US, TOPIC, lake_of

WORDS = ("", "a", "größer", "x" * 300, "\N{SNOWMAN}", "nul\0inside")


def message_of(rng: random.Random) -> StreamMessage:
    """A message whose optional parts are there or not, and whose numbers are at their ends now and then."""
    return StreamMessage(
        rng.randbytes(rng.choice([0, 1, 20, 200, 3000])),
        request_id=rng.choice([0, 1, 2**64 - 1, rng.getrandbits(64)]),
        publish_time=rng.choice([0, 2**64 - 1, NOW_US // 1000]),
        producer_name=rng.choice(WORDS),
        attributes={rng.choice(WORDS) + str(n): rng.choice(WORDS) for n in range(rng.choice([0, 0, 1, 5]))},
        schema_id=rng.choice([None, 0, 2**64 - 1]),
        schema_version=rng.choice([None, 0, 2**32 - 1]),
        routing_key=rng.choice([None, *WORDS]),
    )


def stored(start, stop, seed=0):
    """The frames [start, stop) of a topic, decoded as a task decodes them."""
    frames = b"".join(
        encode_message(message_of(random.Random(f"{seed}/{at}")), at, NOW_US + at) for at in range(start, stop)
    )
    return decode_batch(frames, first_offset=start)


class Fixture:
    """A table of one topic, and readers of it."""

    def __init__(self, directory, topic=TOPIC, **options):
        self.lake = lake_of(directory)
        self.topic = topic
        self.table = self.lake.table(topic, 1)
        if self.table.held.epoch <= 0:
            self.table.claim(1)
        self.reads = TableReads(self.lake, ReaderOptions(**options))
        self.rows = self.reads.table(topic, 1)

    def append(self, rows, partition=0, *, files=1, seed=0):
        start = self.table.upto(partition)
        written = []
        for number in range(files):
            at, end = start + rows * number // files, start + rows * (number + 1) // files
            written += write_files(
                self.table.io_properties, self.table.location, [table_rows(stored(at, end, seed), partition)],
                partition=partition, name=uuid.uuid4().hex, target_bytes=1 << 27,
            )  # fmt: skip
        return self.table.commit_add_files(written, {partition: (start, start + rows)})

    @property
    def iceberg(self):
        return self.lake.catalog.load_table(self.table.identifier)

    def close(self):
        self.reads.close()


def expected(start, stop, topic=TOPIC, seed=0):
    from ister.core.frames.columns import decode_messages

    frames = b"".join(
        encode_message(message_of(random.Random(f"{seed}/{at}")), at, NOW_US + at) for at in range(start, stop)
    )
    return decode_messages(frames, first_offset=start, topic_name=str(topic))


async def read_all(rows, start, stop):
    stream = rows.open(start, stop)
    found = []
    while messages := await stream.read():
        found += messages
    await stream.close()
    return found
