"""A topic whose broker loses its disk: what was appended is all there, from the objects and the metadata alone."""

import asyncio
import random
import shutil

from ister.cloud import Retention, UploadOptions
from ister.core.message import StreamMessage
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from ister.ports.objects import open_store
from ister.storage.factory import TopicsConfig, WalStorageFactory
from ister.wal import AckLevel, WalConfig

TOPIC = TopicName.parse("/default/orders")
BATCHES, BATCH, PAYLOAD_BYTES = 40, 250, 700
STORY_S = 240


def tell_story(*, settings, open_metadata, restart, directory):
    """Append, upload, prune, restart the services, lose the disk, read all again; returns what was read.

    `open_metadata` is an async function; `restart` ends the services and starts them again, on the same data.
    """
    return asyncio.run(asyncio.wait_for(_story(settings, open_metadata, restart, directory), STORY_S))


async def _story(settings, open_metadata, restart, directory):
    batches = list(_batches())
    payloads = [message.payload for batch in batches for message in batch]
    restarts = []

    metadata = await open_metadata()
    factory = _factory(settings, metadata, directory)
    assert await factory.start() == []
    storage = await factory.for_topic(TOPIC)
    for n, batch in enumerate(batches[:-1]):
        first = n * BATCH
        assert await storage.append_messages(batch) == range(first, first + BATCH)
        if n == BATCHES // 2:  # behind our back, while the uploader works
            restarts.append(asyncio.create_task(asyncio.to_thread(restart)))
    await asyncio.gather(*restarts)
    uploader = factory.uploader(TOPIC)
    await uploader.wait_uploaded(storage.next_offset, 60)
    pruned = await factory.deleter(TOPIC).tick()
    assert 0 < pruned == storage.log_start, "the log has let go of what objects hold"
    assert await _read(storage, len(payloads) - BATCH) == payloads[:-BATCH]
    await storage.append_messages(batches[-1])
    await factory.shutdown()  # which carries the last ones away
    await metadata.close()

    await asyncio.to_thread(restart)
    await asyncio.to_thread(shutil.rmtree, directory)

    metadata = await open_metadata()
    store = open_store(settings)
    objects = [info async for info in store.list("")]
    factory = _factory(settings, metadata, directory)
    assert await factory.start() == [TOPIC]
    assert factory.problems == {}
    storage = await factory.for_topic(TOPIC)
    assert (storage.start_offset, storage.log_start, storage.next_offset) == (0, len(payloads), len(payloads))
    assert await _read(storage, len(payloads)) == payloads
    assert await storage.append_message(StreamMessage(b"next")) == len(payloads)
    assert (await _read(storage, len(payloads) + 1))[-1] == b"next"
    await factory.delete_topic(TOPIC)
    assert [info async for info in store.list("")] == []
    await factory.shutdown()
    await store.close()
    await metadata.close()
    return f"{len(payloads)} messages in {len(objects)} objects, log pruned below {pruned}, disk lost, all read again"


def _factory(settings, metadata, directory):
    config = TopicsConfig(
        wal=WalConfig(dir=directory, max_bytes=1 << 20, level=AckLevel.FSYNC),
        upload=UploadOptions(interval_s=0.2, max_object_mb=1),
        retention=Retention(time_minutes=None, size_mb=0),
    )
    return WalStorageFactory(config, store=open_store(settings), metadata=metadata)


def _batches():
    rng = random.Random(5)
    for n in range(BATCHES):
        yield [StreamMessage(b"%d " % (n * BATCH + i) + rng.randbytes(PAYLOAD_BYTES)) for i in range(BATCH)]


async def _read(storage, count):
    reader = await storage.create_reader(StartPosition.offset(0))
    messages = []
    while len(messages) < count:
        messages += await reader.read()
    assert [message.offset for message in messages] == list(range(count))
    return [message.payload for message in messages]
