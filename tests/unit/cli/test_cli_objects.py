"""`ister objects verify` and `ister objects rebuild`: what is damaged is named, and what was lost is not guessed."""

import asyncio
import json
import shutil
from dataclasses import replace

import pytest
import structlog

from ister.core.errors import UnknownHistoryError
from ister.core.frames.segment import ObjectName, object_key, parse_key
from ister.core.offsets import StartPosition
from ister.offline.rebuild import Piece, find_chain, gaps
from parts.data_dir import (
    NAME,
    TOPIC,
    broker,
    fill,
    flip,
    listing,
    make,
    messages,
    metadata_of,
    object_files,
    run,
)

CLICKS = "/default/clicks"


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    yield
    structlog.reset_defaults()


@pytest.fixture
def data(tmp_path):
    """Objects have [0, 30) and the log [10, 40)."""
    return make(tmp_path / "data")


def verify(data):
    result = run("objects", "verify", TOPIC, "--data-dir", data, "--output", "json")
    return result, json.loads(result.stdout)


def rebuild(data, *args):
    result = run("objects", "rebuild", *args, "--data-dir", data, "--output", "json")
    return result, json.loads(result.stdout)["topics"] if result.stdout else None


def change(data, start, **fields):
    """Write another description over one that is there."""

    async def changing(metadata, catalog):
        descriptor = await catalog.find(start)
        await catalog.remove(descriptor)
        await catalog.add(replace(descriptor, **fields))

    metadata_of(data, changing)


def descriptors(data):
    async def listed(metadata, catalog):
        return [descriptor async for descriptor in catalog.all()]

    return metadata_of(data, listed)


def served(data):
    """Open the topic as a broker and read everything, then append: returns the payloads and the next offset."""

    async def serving():
        async with broker(data) as factory:
            assert factory.problems == {}
            storage = await factory.for_topic(TOPIC)
            reader = await storage.create_reader(StartPosition.offset(0))
            found = []
            while len(found) < storage.next_offset:
                found += [message.payload for message in await reader.read()]
            await reader.close()
            return found, (await storage.append_messages(messages(0, 1))).start

    return asyncio.run(serving())


# --- verify -----------------------------------------------------------------------------------------------------------


def test_sound_objects_are_read_back_whole(data):
    result, report = verify(data)
    assert (result.exit_code, result.stderr) == (0, "")
    assert (report["verdict"], report["start"], report["stop"]) == ("sound", 0, 30)
    assert (report["objects"], report["sound"], report["orphans"], report["strangers"]) == (3, 3, 0, 0)
    assert report["bytes"] == sum(path.stat().st_size for path in object_files(data))
    shown = run("objects", "verify", TOPIC, "--data-dir", data)
    assert shown.stdout.startswith("Sound: 3 objects, ")


def test_nothing_uploaded_is_no_damage(tmp_path):
    data = make(tmp_path / "data", uploaded=0, pruned=0)
    result, report = verify(data)
    assert (result.exit_code, report["verdict"], report["objects"]) == (0, "sound", 0)
    assert "Nothing is uploaded yet" in run("objects", "verify", TOPIC, "--data-dir", data).stdout


def test_every_flipped_byte_is_found_with_key_byte_and_offset(data, count):
    path = object_files(data)[1]
    key, size = f"default/orders/1/{path.name}", path.stat().st_size
    good = path.read_bytes()
    step = count(199, 1)
    for at in range(0, size, step):
        flip(path, at)
        result, report = verify(data)
        path.write_bytes(good)
        assert (result.exit_code, report["verdict"], report["sound"]) == (1, "damaged", 2), f"byte {at}"
        (problem,) = report["problems"]
        assert f"object {key} is damaged at byte " in problem["what"]
        assert ", where offset 1" in problem["what"]
    flip(path, size - 1)
    result = run("objects", "verify", TOPIC, "--data-dir", data)
    assert result.stdout.startswith("Damaged: 1 problem; 2 sound of 3 objects")
    assert f"object {key} is damaged at byte {56 + 9 * 95}, where offset 19 should be" in result.stderr


def test_a_missing_object_is_named_and_the_others_are_read(data):
    path = object_files(data)[1]
    path.unlink()
    result, report = verify(data)
    assert (result.exit_code, report["sound"]) == (1, 2)
    assert result.stderr.startswith(f"ister: object default/orders/1/{path.name} is missing from fs ")


@pytest.mark.parametrize("by", [-1, -500, 1])
def test_an_object_of_another_size_is_named(data, by):
    path = object_files(data)[0]
    content = path.read_bytes()
    path.write_bytes(content[:by] if by < 0 else content + b"\0")
    result, report = verify(data)
    assert (result.exit_code, report["sound"]) == (1, 2)
    assert f"it has {len(content) + by} bytes, {len(content)} were put" in result.stderr


def test_a_hole_in_the_descriptions_is_named(data):
    async def drop(metadata, catalog):
        await catalog.remove(await catalog.find(10))

    metadata_of(data, drop)
    result, report = verify(data)
    assert (result.exit_code, report["sound"], report["orphans"]) == (1, 2, 1)
    assert "offsets [10, 20) are missing: no object describes them" in result.stderr


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"checksum": 1}, "its frames are whole, but its crc32 is "),
        ({"append_time_us": 1}, "the description errs"),
        ({"index": ((10, 0), (11, 57))}, "its index says that offset 10 begins at byte 0, which is wrong"),
        ({"index": ((10, 0), (12, 151))}, "its index says that offset 10 begins at byte 0, which is wrong"),
    ],
)
def test_a_description_that_errs_is_named(data, fields, sentence):
    change(data, 10, **fields)
    result, report = verify(data)
    assert (result.exit_code, report["sound"], len(report["problems"])) == (1, 2, 1)
    assert sentence in result.stderr


def test_an_index_of_other_places_that_are_right_is_sound(data):
    frame = (object_files(data)[1].stat().st_size - 56) // 10
    change(data, 10, index=((10, 0), (12, 56 + 2 * frame), (19, 56 + 9 * frame)))
    result, report = verify(data)
    assert (result.exit_code, report["sound"]) == (0, 3), result.stderr


def test_a_description_that_cannot_be_read_is_named_and_the_others_are_read(data):
    key = f"/danube-data/storage/objects/default/orders/0000000001/{10:020}"

    async def spoil(metadata, _catalog):
        await metadata.put(key, b"{}")

    metadata_of(data, spoil)
    result, report = verify(data)
    assert (result.exit_code, report["sound"]) == (1, 2)
    assert f"metadata key {key} cannot be used" in result.stderr
    assert "offsets [10, 20) are missing" in result.stderr


def test_orphans_and_strangers_are_counted_and_are_no_damage(data):
    first, second, _ = object_files(data)
    here = first.parent
    shutil.copy(first, here / f"data-{0:020}-{7:020}.dnb")
    shutil.copy(second, here / f"data-{30:020}-{40:020}.dnb")
    (here / "notes.txt").write_text("hello")
    (here.parent / "7").mkdir()
    shutil.copy(first, here.parent / "7" / first.name)
    result, report = verify(data)
    assert (result.exit_code, report["verdict"]) == (0, "sound")
    assert (report["orphans"], report["orphans_ahead"], report["strangers"]) == (2, 1, 2)
    assert report["orphan_bytes"] == first.stat().st_size + second.stat().st_size
    shown = run("objects", "verify", TOPIC, "--data-dir", data).stdout
    assert shown.startswith("Orphans: 2 objects (")
    assert "1 of them lie behind the last description" in shown
    assert "Strangers: 2 objects" in shown


def test_a_store_that_is_not_mounted_is_not_a_store_without_objects(data):
    shutil.rmtree(data / "objects")
    result = run("objects", "verify", TOPIC, "--data-dir", data)
    assert result.exit_code == 3
    assert "there is no such directory" in result.stderr


# --- rebuild ----------------------------------------------------------------------------------------------------------


def lose_metadata(data):
    for path in data.glob("metadata.db*"):
        path.unlink()


def test_after_a_rebuild_everything_is_served_from_offset_zero(data):
    before = descriptors(data)
    lose_metadata(data)
    result, (topic,) = rebuild(data)
    assert (result.exit_code, result.stderr) == (0, "")
    assert (topic["topic"], topic["state"], topic["generation"]) == (TOPIC, "rebuilt", 1)
    assert (topic["start"], topic["stop"], topic["objects"], topic["orphans"]) == (0, 30, 3, 0)
    assert descriptors(data) == [replace(descriptor, epoch=0) for descriptor in before]
    assert verify(data)[0].exit_code == 0
    assert served(data) == ([f"payload {n}".encode() for n in range(40)], 40)


def test_a_machine_that_has_the_objects_only_is_enough(data):
    lose_metadata(data)
    shutil.rmtree(data / "wal")
    result, _ = rebuild(data)
    assert result.exit_code == 0
    assert served(data) == ([f"payload {n}".encode() for n in range(30)], 30)


def test_all_topics_are_found_or_only_those_that_are_named(tmp_path):
    data = tmp_path / "data"

    async def making():
        async with broker(data) as factory:
            await fill(factory)
            await fill(factory, topic=CLICKS)

    asyncio.run(making())
    lose_metadata(data)
    _, topics = rebuild(data, "--dry-run")
    assert [(topic["topic"], topic["state"]) for topic in topics] == [
        (CLICKS, "would be rebuilt"), (TOPIC, "would be rebuilt"),
    ]  # fmt: skip
    result, (topic,) = rebuild(data, CLICKS)
    assert (result.exit_code, topic["topic"]) == (0, CLICKS)
    assert descriptors(data) == []
    for named in ([], [CLICKS]):
        refused = run("objects", "rebuild", *named, "--data-dir", data)
        assert (refused.exit_code, f"describes objects already, of {CLICKS};" in refused.stderr) == (2, True)
    other, (topic,) = rebuild(data, TOPIC)
    assert (other.exit_code, topic["topic"]) == (0, TOPIC)


def test_a_dry_run_reads_everything_and_writes_nothing(data):
    lose_metadata(data)
    before = listing(data)
    result = run("objects", "rebuild", "--dry-run", "--data-dir", data)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "Would rebuild 1 topic with 3 objects in new metadata."
    assert listing(data) == before


@pytest.mark.parametrize("arguments", [[], ["--dry-run"], [TOPIC]])
def test_it_is_refused_while_anything_is_described(data, arguments):
    before = descriptors(data)
    result = run("objects", "rebuild", *arguments, "--data-dir", data)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"describes objects already, of {TOPIC};" in result.stderr
    assert descriptors(data) == before


def test_a_refusal_names_a_few_topics_and_says_that_there_are_others(data):
    async def add(metadata, _catalog):
        for name in "abcd":
            await metadata.put(f"/danube-data/storage/objects/ns/{name}/0000000001/{0:020}", b"{}")

    metadata_of(data, add)
    result = run("objects", "rebuild", "--data-dir", data)
    assert f"of {TOPIC}, /ns/a, /ns/b and others;" in result.stderr


def test_it_is_refused_while_a_broker_has_the_metadata(data):
    async def use():
        async with broker(data):
            return await asyncio.to_thread(run, "objects", "rebuild", "--data-dir", data)

    result = asyncio.run(use())
    assert result.exit_code == 4
    assert f"metadata {data}/metadata.db is in use by process " in result.stderr


def test_a_hole_is_named_and_nothing_of_that_topic_is_written(tmp_path):
    data = tmp_path / "data"

    async def making():
        async with broker(data) as factory:
            await fill(factory)
            await fill(factory, topic=CLICKS)

    asyncio.run(making())
    lose_metadata(data)
    object_files(data)[1].unlink()
    result, (clicks, orders) = rebuild(data)
    assert result.exit_code == 1
    assert (clicks["state"], orders["state"], orders["objects"], orders["orphans"]) == ("rebuilt", "refused", 1, 1)
    assert f"topic {TOPIC}: offsets [10, 20) are missing: no object has them, and later ones are there" in result.stderr

    async def written(metadata, catalog):
        return await metadata.get("/danube-data/storage/topics/default/orders"), await catalog.first()

    assert metadata_of(data, written) == (None, None)
    shutil.rmtree(data / "wal/default/orders")

    async def opening():
        async with broker(data) as factory:
            with pytest.raises(UnknownHistoryError, match="run `ister objects rebuild`"):
                await factory.for_topic(TOPIC)

    asyncio.run(opening())


def test_a_damaged_object_is_named_and_nothing_is_written(data):
    lose_metadata(data)
    flip(object_files(data)[1], 100)
    result, (topic,) = rebuild(data)
    assert (result.exit_code, topic["state"]) == (1, "refused")
    assert "is damaged at byte 56, where offset 10 should be" in topic["problems"][0]["what"]
    assert "offsets [10, 20) are missing" in topic["problems"][1]["what"]
    assert descriptors(data) == []


def test_what_overlaps_is_left_as_orphans_and_damage_that_others_make_good_does_not_matter(data):
    lose_metadata(data)
    first, second, third = object_files(data)
    # A cut of [10, 15) that leads nowhere, and a whole [10, 30) that is damaged although it looks best by its name.
    shutil.copy(second, second.with_name(f"data-{10:020}-{15:020}.dnb"))
    (second.with_name(f"data-{10:020}-{30:020}.dnb")).write_bytes(second.read_bytes() + third.read_bytes()[:-1])
    result, (topic,) = rebuild(data)
    assert (result.exit_code, topic["state"]) == (0, "rebuilt"), result.stderr
    assert (topic["objects"], topic["stop"], topic["orphans"]) == (3, 30, 2)
    assert [(descriptor.start, descriptor.stop) for descriptor in descriptors(data)] == [(0, 10), (10, 20), (20, 30)]
    assert first.exists()


def test_only_the_newest_generation_is_rebuilt(data):
    lose_metadata(data)
    shutil.rmtree(data / "wal")
    here = object_files(data)[0].parent
    shutil.copytree(here, here.parent / "3")
    result, (topic,) = rebuild(data)
    assert (result.exit_code, topic["generation"], topic["older"]) == (0, 3, 3)
    assert descriptors(data) == []
    assert served(data) == ([f"payload {n}".encode() for n in range(30)], 30)


def test_objects_of_a_deleted_generation_are_left_alone(data):
    async def delete(metadata, catalog):
        await catalog.clear()
        entry = await metadata.get("/danube-data/storage/topics/default/orders")
        await metadata.put(entry.key, entry.value.replace(b'"deleted":false', b'"deleted":true'))

    metadata_of(data, delete)
    result, (topic,) = rebuild(data)
    assert (result.exit_code, topic["state"], topic["orphans"]) == (0, "skipped", 3)
    assert descriptors(data) == []


def test_metadata_of_an_older_generation_is_an_old_copy(data):
    async def clear(metadata, catalog):
        await catalog.clear()

    metadata_of(data, clear)
    here = object_files(data)[0].parent
    here.rename(here.parent / "2")
    result, (topic,) = rebuild(data)
    assert (result.exit_code, topic["state"]) == (1, "refused")
    assert "is of generation 1 in metadata, and has objects of generation 2" in result.stderr


def test_a_record_that_is_there_is_kept(data):
    async def clear(metadata, catalog):
        await catalog.clear()

    metadata_of(data, clear)
    result, (topic,) = rebuild(data)
    assert (result.exit_code, topic["state"], len(descriptors(data))) == (0, "rebuilt", 3)


def test_objects_that_begin_late_are_rebuilt_from_there_and_that_is_said(data):
    lose_metadata(data)
    object_files(data)[0].unlink()
    result, (topic,) = rebuild(data)
    assert (result.exit_code, topic["start"], topic["note"]) == (0, 10, "nothing is there below offset 10")


def test_a_store_without_objects_makes_no_metadata(tmp_path):
    (tmp_path / "data/objects").mkdir(parents=True)
    result = run("objects", "rebuild", "--data-dir", tmp_path / "data")
    assert (result.exit_code, "has no objects of any topic" in result.stderr) == (2, True)
    assert not (tmp_path / "data/metadata.db").exists()


def test_a_topic_without_objects_is_unknown(data):
    lose_metadata(data)
    result = run("objects", "rebuild", CLICKS, "--data-dir", data)
    assert (result.exit_code, result.stderr.startswith(f"ister: there is no topic {CLICKS} in the objects of")) == (
        2, True,
    )  # fmt: skip
    assert not (data / "metadata.db").exists()


# --- which objects join -----------------------------------------------------------------------------------------------


def pieces(*spans):
    names = [ObjectName(1, start, stop) for start, stop in spans]
    return [Piece(object_key(NAME, *name), name, 1) for name in names]


@pytest.mark.parametrize(
    ("spans", "chain", "hole"),
    [
        ([], [], None),
        ([(0, 10), (10, 20)], [(0, 10), (10, 20)], None),
        ([(5, 10), (10, 20)], [(5, 10), (10, 20)], None),
        ([(0, 10), (20, 30)], [(0, 10)], (10, 20)),
        ([(0, 10), (0, 20), (10, 30)], [(0, 10), (10, 30)], None),
        ([(0, 10), (0, 20), (10, 20)], [(0, 20)], None),
        ([(0, 30), (0, 10), (10, 20), (20, 40)], [(0, 10), (10, 20), (20, 40)], None),
        ([(0, 10), (5, 15)], [(0, 10)], (10, 15)),
        ([(0, 10), (5, 15), (20, 30)], [(0, 10)], (10, 20)),
        ([(0, 10), (12, 14), (20, 30)], [(0, 10)], (10, 12)),
    ],
)
def test_the_chain_that_reaches_farthest_is_taken_and_what_it_lacks_is_named(spans, chain, hole):
    found = find_chain(pieces(*spans))
    assert [(piece.name.start, piece.name.stop) for piece in found.pieces] == chain
    assert [(gap.start, gap.stop) for gap in gaps(NAME, found, pieces(*spans))] == ([] if hole is None else [hole])


def test_a_key_that_only_looks_like_ours_is_not_taken(data):
    lose_metadata(data)
    here = object_files(data)[0].parent
    shutil.copytree(here, here.parent / "007")
    assert parse_key(f"default/orders/007/{object_files(data)[0].name}") is not None
    result, (topic,) = rebuild(data)
    assert (result.exit_code, topic["generation"], topic["older"]) == (0, 1, 0)
