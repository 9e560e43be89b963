"""A data directory with topics in it, and the command line on it."""

import asyncio
import shutil
from contextlib import asynccontextmanager
from pathlib import Path

from typer.testing import CliRunner

from ister.cli.app import app
from ister.cloud import ObjectCatalog, Retention
from ister.core.message import StreamMessage
from ister.core.names import TopicName
from ister.ports.metadata import SqliteMetadata
from ister.ports.objects import FsStore
from ister.storage.factory import TopicsConfig, WalStorageFactory
from ister.wal import WalConfig

TOPIC = "/default/orders"


NAME = TopicName.parse(TOPIC)


MADE = {}


def run(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


def messages(start, stop):
    return [StreamMessage(f"payload {n}".encode(), producer_name="shop", routing_key="k") for n in range(start, stop)]


@asynccontextmanager
async def broker(data, **settings):
    """Open a factory as `ister serve` does; nothing is uploaded or pruned but by hand, and closing carries nothing."""
    Path(data).mkdir(parents=True, exist_ok=True)
    metadata = await SqliteMetadata.open(Path(data) / "metadata.db")
    config = TopicsConfig(
        wal=WalConfig(dir=Path(data) / "wal"),
        retention=Retention(time_minutes=None, size_mb=0),
        **{"drain_timeout_s": 0} | settings,
    )
    factory = WalStorageFactory(config, store=FsStore(Path(data) / "objects"), metadata=metadata)
    await factory.start()
    try:
        yield factory
    finally:
        await factory.shutdown()
        await metadata.close()


async def fill(factory, *, files=4, count=10, uploaded=3, pruned=1, topic=TOPIC):
    """Append so many files of so many messages, upload the first few, and prune fewer."""
    storage = await factory.for_topic(topic)
    await asyncio.sleep(0)  # the uploader's first cycle finds nothing
    for file in range(files):
        start = storage.next_offset
        await storage.append_messages(messages(start, start + count))
        if file < files - 1:
            await storage.wal.rotate()
        if file == uploaded - 1:
            await factory.uploader(TopicName.parse(topic)).drain()
    await storage.prune(pruned * count)
    return storage


def make(data, **shape):
    """Make a topic and close it: by default objects have [0, 30) and the log [10, 40).

    What has this shape is made once and copied from then on: it takes a dozen syncs.
    """

    async def making():
        async with broker(data) as factory:
            await fill(factory, **shape)

    key = tuple(sorted(shape.items()))
    if key in MADE:
        shutil.copytree(MADE[key], data)
    else:
        asyncio.run(making())
        MADE[key] = shutil.copytree(data, data.with_name("as it was made"))
    return data


def log_files(data):
    return sorted((data / "wal/default/orders/1").glob("wal-*.log"))


def object_files(data):
    return sorted((data / "objects/default/orders/1").glob("*.dnb"))


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 0x40
    path.write_bytes(content)


def metadata_of(data, act):
    """Do something with the metadata of a broker that is stopped: `act(metadata, catalog)`."""

    async def acting():
        metadata = await SqliteMetadata.open(data / "metadata.db")
        try:
            return await act(metadata, ObjectCatalog(metadata, "/danube-data", NAME, 1))
        finally:
            await metadata.close()

    return asyncio.run(acting())


def listing(directory):
    """Return every file with its bytes and times, but SQLite's own notes beside its file."""
    return {
        path.relative_to(directory): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    }
