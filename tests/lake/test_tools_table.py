"""Tools see the table as a tier: what only it still holds is told and read."""

import asyncio
import json
import shutil
import uuid

import pytest
import structlog
from typer.testing import CliRunner

from ister.cli.app import app
from ister.config import load
from ister.config.catalog import catalog_properties
from ister.core.frames.columns import decode_batch
from ister.core.frames.frame import encode_message
from ister.core.message import StreamMessage
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from ister.lake.catalog import LakeCatalog
from ister.lake.columns import table_rows
from ister.lake.parquet import write_files
from ister.runtime.compose import open_metadata, open_store, open_tables, topics_config
from ister.storage.factory import WalStorageFactory

TOPIC = TopicName.parse("/default/orders")


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    yield
    structlog.reset_defaults()


@pytest.fixture
def place(tmp_path):
    """A topic of 30 messages, 20 of them in its table."""
    path = tmp_path / "ister.yml"
    path.write_text("storage:\n  type: iceberg\n")
    data = tmp_path / "data"
    asyncio.run(_fill(load(path, data).config))
    return [f"--config={path}", f"--data-dir={data}"], data


async def _fill(config):
    store, metadata, reads = open_store(config), await open_metadata(config, read_only=False), open_tables(config)
    factory = WalStorageFactory(topics_config(config), store=store, metadata=metadata, tables=reads.table)
    await factory.start()
    storage = await factory.for_topic(TOPIC)
    await storage.append_messages([StreamMessage(b"%d" % number) for number in range(30)])
    await storage.flush()
    reader = await storage.create_reader(StartPosition.offset(0))
    messages = (await reader.read())[:20]
    lake = LakeCatalog.open(*catalog_properties(config))
    table = lake.table(TOPIC, 1)
    table.claim(1)
    frames = b"".join(encode_message(message, message.offset, message.append_time_us) for message in messages)
    rows = table_rows(decode_batch(frames, first_offset=0), 0)
    written = write_files(
        table.io_properties, table.location, [rows], partition=0, name=uuid.uuid4().hex, target_bytes=1 << 20
    )
    table.commit_add_files(written, {0: (0, len(messages))})
    lake.close()
    await reader.close()
    await factory.shutdown()
    reads.close()
    await metadata.close()
    await store.close()


def ister(*words):
    result = CliRunner().invoke(app, [*words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_tiers_show_the_table_beside_the_others(place):
    options, _ = place
    told = json.loads(ister("tiers", str(TOPIC), "-o", "json", *options))
    assert (told["start"], told["stop"]) == (0, 30)
    assert (told["table"]["name"], told["table"]["start"], told["table"]["stop"]) == ("default.orders", 0, 20)
    assert (told["table"]["files"], told["table"]["problem"]) == (1, None)
    assert told["problems"] == []
    shown = ister("tiers", str(TOPIC), *options)
    assert "In table default.orders below offset 20" in shown


def test_what_only_the_table_holds_is_read_from_it(place):
    options, data = place
    shutil.rmtree(data / "wal")
    shutil.rmtree(data / "objects")
    (data / "objects").mkdir()
    told = json.loads(ister("tiers", str(TOPIC), "-o", "json", *options))
    assert told["table"]["stop"] == 20
    lines = ister("read", str(TOPIC), "--to", "20", "-o", "json", *options).splitlines()
    assert [json.loads(line)["offset"] for line in lines] == list(range(20))


def test_a_catalog_that_does_not_answer_is_told_and_the_rest_is_shown(place):
    options, data = place
    (data / "catalog.db").write_bytes(b"this is no database, and long enough to be looked at " * 10)
    told = json.loads(ister("tiers", str(TOPIC), "-o", "json", *options))
    assert "not a database" in told["table"]["problem"]
    assert (told["start"], told["stop"]) == (0, 30)
    lines = ister("read", str(TOPIC), "-o", "json", *options).splitlines()
    assert len(lines) == 30
