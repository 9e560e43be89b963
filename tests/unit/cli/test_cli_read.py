"""`ister read`: any offset from whichever tier has it, at rest and while messages move from one tier to the other."""

import asyncio
import base64
import io
import json
import shutil

import pytest
import structlog
from rich.console import Console
from rich.progress import Progress

from ister.config import load
from ister.core.errors import UnknownTopicError
from ister.offline.read import messages_between
from ister.offline.topic import open_sources, view_topic
from parts.data_dir import NAME, TOPIC, broker, fill, flip, log_files, make, metadata_of, object_files, run


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    yield
    structlog.reset_defaults()


def read(data, *args):
    return run("read", TOPIC, "--data-dir", data, *args)


def lines_of(data, *args):
    result = read(data, "--output", "json", *args)
    assert (result.exit_code, result.stderr) == (0, "")
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def data(tmp_path):
    """Objects have [0, 30) and the log [10, 40)."""
    return make(tmp_path / "data")


def test_everything_is_read_from_the_oldest_offset_to_the_end(data):
    lines = lines_of(data)
    assert [line["offset"] for line in lines] == list(range(40))
    assert [base64.b64decode(line["payload"]) for line in lines] == [f"payload {n}".encode() for n in range(40)]
    assert {(line["producer_name"], line["routing_key"], line["schema_id"]) for line in lines} == {("shop", "k", None)}


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 1), (9, 11), (5, 15), (10, 30), (29, 31), (39, 40), (0, 0), (40, 40), (12, 12)]
)
def test_a_span_across_the_tiers_has_each_offset_once(data, start, stop):
    assert [line["offset"] for line in lines_of(data, "--from", start, "--to", stop)] == list(range(start, stop))


def test_people_get_a_line_a_message(data):
    result = read(data, "--from", 8, "--to", 11)
    heading, *lines = result.stdout.splitlines()
    assert heading.split() == ["OFFSET", "APPENDED", "(UTC)", "PRODUCER", "KEY", "ATTRS", "SIZE", "PAYLOAD"]
    assert [line.split()[0] for line in lines] == ["8", "9", "10"]
    assert lines[0].endswith("payload 8")
    assert (result.exit_code, result.stderr) == (0, "")


def test_messages_go_to_stdout_while_a_bar_is_on_the_screen(data, monkeypatch):
    screen = io.StringIO()

    def bars():
        return Progress(console=Console(file=screen, force_terminal=True))

    monkeypatch.setattr("ister.cli.commands.read.bars", bars)
    result = read(data, "--output", "json")
    assert [json.loads(line)["offset"] for line in result.stdout.splitlines()] == list(range(40))
    assert "reading /default/orders" in screen.getvalue()
    assert "payload" not in screen.getvalue()


def test_whole_payloads_are_shown_when_asked_for(data):
    result = read(data, "--from", 8, "--to", 9, "--payload")
    assert result.stdout.splitlines()[-1].endswith("|payload 8|")


def test_the_end_is_the_end_even_when_more_was_asked_for(data):
    result = read(data, "--from", 38, "--to", 100, "--output", "json")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 2)
    assert result.stderr == "The log ends at offset 40: 2 messages read.\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--from", "41"], "offset 41 is outside this log: it holds [0, 40)"),
        (["--from", "5", "--to", "4"], "--from 5 lies behind --to 4"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_code_two(data, arguments, sentence):
    result = read(data, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_unknown_topic_is_code_two(data):
    result = run("read", "/default/nothing", "--data-dir", data)
    assert result.exit_code == 2
    assert result.stderr.startswith("ister: there is no topic /default/nothing in sqlite ")
    assert run("read", "no-topic", "--data-dir", data).exit_code == 2


def test_objects_alone_are_enough(data):
    shutil.rmtree(data / "wal")
    assert [line["offset"] for line in lines_of(data, "--from", 3)] == list(range(3, 30))
    result = read(data, "--from", 31)
    assert (result.exit_code, "it holds [0, 30)" in result.stderr) == (2, True)


def test_the_log_alone_is_enough_for_what_it_has(data):
    shutil.rmtree(data / "objects")
    assert [line["offset"] for line in lines_of(data, "--from", 10)] == list(range(10, 40))


def test_an_object_store_that_is_not_mounted_is_not_a_store_without_objects(data):
    shutil.rmtree(data / "objects")
    result = read(data)
    assert result.exit_code == 3
    assert "could not be read: there is no such directory; run it again" in result.stderr


def test_a_log_that_is_behind_its_objects_does_not_count(tmp_path):
    data = make(tmp_path / "data", pruned=0)
    for path in log_files(data)[1:]:
        path.unlink()
    assert [line["offset"] for line in lines_of(data)] == list(range(30))


def test_a_damaged_object_ends_the_read_with_its_place(data):
    path = object_files(data)[0]
    flip(path, 100)
    result = read(data)
    assert result.exit_code == 1
    assert f"object default/orders/1/{path.name} is damaged at byte 56, where offset 0 should be" in result.stderr


def test_a_damaged_sealed_file_is_read_from_objects(tmp_path):
    data = make(tmp_path / "data", pruned=0)
    flip(log_files(data)[1], 100)
    result = read(data, "--output", "json")
    assert result.exit_code == 0
    assert [json.loads(line)["offset"] for line in result.stdout.splitlines()] == list(range(40))
    assert "log_damaged" in result.stderr  # an operator should know


def test_a_log_that_would_not_open_is_named(data):
    flip(log_files(data)[-1], 100)
    result = read(data)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{log_files(data)[-1]} is corrupt at byte" in result.stderr


def test_a_hole_in_the_descriptions_is_named_before_anything_is_passed_over(data):
    async def drop(metadata, catalog):
        await catalog.remove(await catalog.find(0))
        await catalog.remove(await catalog.find(10))

    metadata_of(data, drop)
    log_files(data)[0].unlink()
    result = read(data, "--from", 5)
    assert (result.exit_code, "it holds [20, 40)" in result.stderr) == (2, True)


def test_a_hole_between_the_tiers_is_damage(tmp_path):
    data = make(tmp_path / "data", uploaded=1)
    log_files(data)[0].unlink()
    result = read(data, "--output", "json")
    assert result.exit_code == 1
    assert [json.loads(line)["offset"] for line in result.stdout.splitlines()] == list(range(10))
    assert "offsets [10, 20) are missing" in result.stderr


def test_what_is_uploaded_and_pruned_while_it_is_read_is_read_from_objects(tmp_path):
    data = tmp_path / "data"

    async def use():
        async with broker(data) as factory:
            storage = await fill(factory, files=6, uploaded=1, pruned=0)
            async with open_sources(load(None, data).config) as sources:
                seen = await view_topic(sources, NAME)
                assert (seen.objects.stop, seen.log.start_offset, seen.stop) == (10, 0, 60)
                found = []
                async for batch in messages_between(sources, seen, 0, 60):
                    found += [message.offset for message in batch]
                    if len(found) == 20:
                        await factory.uploader(NAME).drain()
                        assert await storage.prune(50) == 50
                assert found == list(range(60))

    asyncio.run(use())


def test_a_topic_that_is_deleted_while_it_is_read_is_unknown(tmp_path):
    data = tmp_path / "data"

    async def use():
        async with broker(data) as factory:
            await fill(factory, files=6, uploaded=1, pruned=0)
            async with open_sources(load(None, data).config) as sources:
                seen = await view_topic(sources, NAME)
                batches = messages_between(sources, seen, 0, 60)
                assert [message.offset for message in await anext(batches)] == list(range(10))
                await factory.delete_topic(NAME)
                with pytest.raises(UnknownTopicError, match=f"there is no topic {TOPIC}"):
                    await anext(batches)

    asyncio.run(use())


def test_a_re_created_topic_does_not_show_its_predecessor(tmp_path):
    data = tmp_path / "data"

    async def making():
        async with broker(data) as factory:
            await fill(factory)
            await factory.delete_topic(NAME)
            await fill(factory, files=1, count=3, uploaded=0, pruned=0)

    asyncio.run(making())
    assert [line["offset"] for line in lines_of(data)] == [0, 1, 2]
