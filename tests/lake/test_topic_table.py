"""A topic read back from its table: every field exact, dense and in order, through whatever happens to the files."""

import asyncio
import random
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo

from ister.core.errors import LogClosedError
from ister.core.names import TopicName
from ister.core.table.data_files import NO_TABLE, OFFSET_MAX, Changes, DataFileEntry, changes, overlap_groups, select
from ister.lake.errors import CorruptRowsError, LakeUnavailableError, MissingRowsError, TableMovedError
from ister.lake.scan import Spill, SpillFullError
from ister.lake.topic_reader import TopicReader
from parts.readback import Fixture, expected, read_all, stored


@pytest.fixture
def fixture(tmp_path):
    made = Fixture(tmp_path, poll_interval_s=0.01)
    yield made
    made.close()


def read(fixture, start, stop):
    return asyncio.run(read_all(fixture.rows, start, stop))


def rewrite(fixture, seed, *, file_bytes=60_000):
    """Write every row anew, in another order, in files of a size; what was there is let go."""
    table = fixture.iceberg
    with table.transaction() as change:
        change.set_properties({"write.target-file-size-bytes": str(file_bytes)})
    rows = table.scan().to_arrow()
    places = list(range(len(rows)))
    random.Random(seed).shuffle(places)
    table.overwrite(rows.take(pa.array(places)))


def data_files(fixture):
    return {Path(urlparse(part.path).path) for part in fixture.rows._listed.entries}


# --- exact --------------------------------------------------------------------------------------------------------------


def test_every_field_comes_back_as_it_was_from_any_offset_to_any(fixture):
    for rows in (400, 1, 250):
        fixture.append(rows, files=min(3, rows))
    rng = random.Random(1)
    spans = [(0, 651), (0, 1), (650, 651), *(sorted(rng.sample(range(652), 2)) for _ in range(12))]
    for start, stop in spans:
        assert read(fixture, start, stop) == expected(start, stop)


def test_only_the_files_that_hold_them_are_read(fixture):
    for _ in range(12):
        fixture.append(10)
    assert read(fixture, 35, 45) == expected(35, 45)
    assert fixture.reads.seen.files == 2


@pytest.mark.parametrize("file_bytes", [1 << 27, 60_000])
def test_rows_in_any_order_in_one_file_or_many_come_back_sorted(fixture, file_bytes):
    fixture.append(700)
    rewrite(fixture, 3, file_bytes=file_bytes)
    assert read(fixture, 5, 700) == expected(5, 700)


def test_files_that_overlap_but_are_sorted_are_merged_without_a_spill(fixture, monkeypatch):
    fixture.append(600)
    table = fixture.iceberg
    rows = table.scan().to_arrow()
    odd = [place for place in range(600) if place % 3]
    table.overwrite(rows.take(pa.array([place for place in range(600) if place % 3 == 0])))
    table.append(rows.take(pa.array(odd)))
    monkeypatch.setattr(Spill, "__enter__", lambda _: pytest.fail("a spill"))
    assert read(fixture, 0, 600) == expected(0, 600)


def test_a_spill_that_is_too_small_takes_fewer_offsets_at_a_time(fixture, monkeypatch):
    fixture.append(500)
    rewrite(fixture, 9)
    windows = []
    spilled = Spill.__init__

    def small(self, start, stop, _):
        windows.append(stop - start)
        spilled(self, start, stop, 60_000)

    monkeypatch.setattr(Spill, "__init__", small)
    assert read(fixture, 0, 500) == expected(0, 500)
    assert len(windows) > 5
    assert min(windows) < 100


def test_a_spill_sorts_and_refuses_what_is_too_much():
    rows = stored(100, 400)
    places = list(range(300))
    random.Random(2).shuffle(places)
    with Spill(100, 400) as spill:
        for at in range(0, 300, 50):
            spill.add(rows.take(pa.array(places[at : at + 50])))
        found = [offset for batch in spill.sorted() for offset in batch["topic_offset"].to_pylist()]
    assert found == list(range(100, 400))
    with Spill(100, 400, rows.nbytes - 1) as spill, pytest.raises(SpillFullError):
        spill.add(rows)


def test_partitions_that_share_a_table_come_back_by_themselves(tmp_path):
    first = Fixture(tmp_path, TopicName.parse("/default/orders-part-0"))
    first.append(120, 0, seed="a")
    first.append(300, 1, seed="b")
    rewrite(first, 5)
    second = first.reads.table(TopicName.parse("/default/orders-part-1"), 1)
    assert asyncio.run(read_all(first.rows, 0, 120)) == expected(0, 120, first.topic, "a")
    assert asyncio.run(read_all(second, 0, 300)) == expected(0, 300, second.topic, "b")
    with pytest.raises(MissingRowsError, match="offsets 120 to 120 of partition 0"):
        asyncio.run(read_all(first.rows, 0, 121))
    first.close()


def test_a_topic_without_a_table_has_nothing(fixture):
    other = fixture.reads.table(TopicName.parse("/default/nobody"), 1)
    assert asyncio.run(other.look()) == NO_TABLE
    assert other.place(0) is None
    with pytest.raises(MissingRowsError):
        asyncio.run(read_all(other, 0, 1))
    assert not fixture.lake.catalog.table_exists(("default", "nobody")), "looking makes nothing"


# --- what is missing or wrong -------------------------------------------------------------------------------------------


def test_rows_that_are_missing_are_named_after_those_before_were_given(fixture):
    fixture.append(300, files=3)
    fixture.iceberg.delete(EqualTo("topic_offset", 150))

    async def story():
        stream = fixture.rows.open(0, 300)
        found = []
        while len(found) < 150:
            found += await stream.read()
        with pytest.raises(MissingRowsError, match="offsets 150 to 150 of partition 0") as told:
            await stream.read()
        await stream.close()
        assert found == expected(0, 150)
        assert (told.value.start, told.value.stop) == (150, 151)

    asyncio.run(story())
    with pytest.raises(MissingRowsError, match="150"):
        asyncio.run(fixture.rows.prove(0, 300))
    asyncio.run(fixture.rows.prove(151, 300))


def test_missing_rows_are_skipped_and_counted_when_that_was_asked_for(tmp_path):
    fixture = Fixture(tmp_path, on_missing="skip")
    fixture.append(200, files=4)
    for offset in (0, 70, 71, 199):
        fixture.iceberg.delete(EqualTo("topic_offset", offset))
    assert read(fixture, 0, 200) == [*expected(1, 70), *expected(72, 199)]
    assert fixture.reads.seen.skipped == 4
    fixture.close()


def test_a_row_that_is_there_twice_is_damage(fixture):
    fixture.append(50)
    table = fixture.iceberg
    table.append(table.scan(EqualTo("topic_offset", 7)).to_arrow())
    with pytest.raises(CorruptRowsError, match="offset 7 is there twice"):
        read(fixture, 0, 50)


@pytest.mark.parametrize("column", ["payload", "producer_name", "request_id", "attributes", "routing_key"])
def test_a_value_that_someone_has_changed_is_noticed(fixture, column):
    fixture.append(60)
    table = fixture.iceberg
    rows = table.scan().to_arrow()
    kind = rows.schema.field(column).type
    other = {
        "payload": b"forged",
        "producer_name": "forged",
        "request_id": 4711,
        "attributes": [("a", "b")],
        "routing_key": "f",
    }
    values = rows[column].to_pylist()
    values[33] = other[column]
    table.overwrite(
        rows.set_column(rows.schema.get_field_index(column), rows.schema.field(column), [pa.array(values, kind)])
    )
    with pytest.raises(CorruptRowsError, match="offset 33 has other values than were committed"):
        read(fixture, 0, 60)
    assert read(fixture, 34, 60) == expected(34, 60)


def test_no_flipped_bit_is_delivered(fixture, count):
    fixture.append(80)
    fixture.rows.refresh()
    (file,) = data_files(fixture)
    good = file.read_bytes()
    rng = random.Random(11)
    refused = 0
    for _ in range(count(60, 1000)):
        at = rng.randrange(len(good) * 8)
        bad = bytearray(good)
        bad[at // 8] ^= 1 << at % 8
        file.write_bytes(bad)
        try:
            assert read(fixture, 0, 80) == expected(0, 80)
        except CorruptRowsError:
            refused += 1
    assert refused > 20
    file.write_bytes(good)
    assert read(fixture, 0, 80) == expected(0, 80)


def test_a_file_that_is_cut_or_gone_is_named(fixture):
    fixture.append(80)
    fixture.rows.refresh()
    (file,) = data_files(fixture)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(CorruptRowsError, match=file.name):
        read(fixture, 0, 80)
    file.unlink()
    with pytest.raises(CorruptRowsError, match="it is not there, though the newest snapshot has it"):
        read(fixture, 0, 80)
    with pytest.raises(CorruptRowsError, match="it is not there"):
        asyncio.run(fixture.rows.prove(0, 80))


def test_a_file_that_cannot_be_reached_is_no_damage(fixture, monkeypatch):
    fixture.append(80)
    fixture.rows.refresh()
    (file,) = data_files(fixture)
    kept = file.with_suffix(".kept")
    file.rename(kept)
    file.mkdir()  # opening it fails, and not because it is not there
    with pytest.raises(LakeUnavailableError, match=file.name):
        read(fixture, 0, 80)
    file.rmdir()
    kept.rename(file)
    assert read(fixture, 0, 80) == expected(0, 80)


# --- what happens meanwhile ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_files_that_vanish_under_a_reader_are_planned_again_with_no_gap_and_no_repeat(tmp_path, seed):
    fixture = Fixture(tmp_path, prefetch_size=1, max_concurrent_reads=1)
    for _ in range(40):
        fixture.append(30)
    rng = random.Random(seed)

    async def story():
        await fixture.rows.look()
        stream = fixture.rows.open(0, 1200)
        found = []
        for turn in range(3):
            for _ in range(rng.randrange(1, 3)):
                found += await stream.read()
            old = data_files(fixture)
            await asyncio.to_thread(rewrite, fixture, seed * 10 + turn, file_bytes=rng.choice([30_000, 1 << 27]))
            for file in old:
                file.unlink(missing_ok=True)
        while messages := await stream.read():
            found += messages
        await stream.close()
        return found

    assert asyncio.run(story()) == expected(0, 1200)
    assert fixture.reads.seen.replans > 0
    fixture.close()


def test_a_reader_follows_new_snapshots(fixture):
    async def story():
        reader = TopicReader(fixture.rows, 3)
        fixture.append(10)
        assert await reader.read() == expected(3, 10)
        waiting = asyncio.create_task(reader.read())
        await asyncio.to_thread(fixture.append, 5)
        assert await waiting == expected(10, 15)
        assert (reader.next_offset, reader.lag) == (15, 0)
        await asyncio.to_thread(fixture.append, 2)
        assert [message.msg_id.topic_offset async for message in _two(reader)] == [15, 16]
        await reader.close()

    async def _two(reader):
        for _ in range(2):
            yield await anext(reader)

    asyncio.run(story())


def test_a_reader_gives_arrow_batches_too(fixture):
    fixture.append(100, files=2)

    async def story():
        reader = TopicReader(fixture.rows)
        first = await reader.read_batch()
        second = await reader.read_batch()
        await reader.close()
        return pa.Table.from_batches([first, second])

    assert asyncio.run(story()).combine_chunks() == pa.Table.from_batches([stored(0, 100)])


def test_messages_after_arrow_from_one_stream_are_whole(fixture):
    fixture.append(100, files=2)

    async def story():
        stream = fixture.rows.open(0, 100)
        first = await stream.read_batch()
        return first.num_rows, await stream.read()

    count, messages = asyncio.run(story())
    assert messages == expected(count, 100)


def test_a_closed_table_ends_its_streams(fixture):
    fixture.append(100, files=2)

    async def story():
        stream = fixture.rows.open(0, 100)
        await fixture.rows.close()
        with pytest.raises(LogClosedError):
            await stream.read()
        await stream.close()
        with pytest.raises(LogClosedError):
            await stream.read()

    asyncio.run(story())


def test_a_table_that_was_dropped_or_rolled_back_is_noticed(fixture):
    first = fixture.append(10)
    fixture.append(10)
    fixture.rows.refresh()
    fixture.iceberg.manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(TableMovedError):
        asyncio.run(fixture.rows.look())
    fixture.lake.catalog.drop_table(fixture.table.identifier)
    with pytest.raises(TableMovedError, match="not in the catalog any more"):
        asyncio.run(fixture.rows.look())


def test_a_table_that_was_dropped_and_made_anew_is_read_again(fixture):
    """K2. The reader of a running broker is told once, and then finds the new table."""
    fixture.append(10)
    assert fixture.rows.refresh().upto == 10
    fixture.lake.catalog.drop_table(fixture.table.identifier)
    fixture.table = fixture.lake.table(fixture.topic, 1)
    fixture.table.claim(1)
    fixture.append(5)
    with pytest.raises(TableMovedError, match="another one has its name"):
        fixture.rows.refresh()
    assert fixture.rows.refresh().upto == 5
    assert [message.offset for message in asyncio.run(read_all(fixture.rows, 0, 5))] == [0, 1, 2, 3, 4]


def test_a_pair_of_snapshots_tells_what_was_added_and_deleted(fixture):
    one = fixture.append(10)
    two = fixture.append(10)
    found = fixture.rows.plan_scan(one, two)
    assert ([part.first for part in found.added], found.deleted) == ([10], [])
    assert sorted(part.first for part in fixture.rows.plan_scan(None, two).added) == [0, 10]
    rewrite(fixture, 1)
    three = asyncio.run(fixture.rows.look()).snapshot_id
    found = fixture.rows.plan_scan(two, three)
    assert sorted(part.first for part in found.deleted) == [0, 10]
    assert sum(part.rows for part in found.added) == 20
    with pytest.raises(TableMovedError, match="has expired"):
        fixture.rows.plan_scan(12345, three)


def test_the_place_of_an_offset_is_known_without_asking(fixture):
    fixture.append(10)
    fixture.append(10)
    assert fixture.rows.place(3) is None, "nobody has looked yet"
    end = asyncio.run(fixture.rows.look())
    place = fixture.rows.place(13)
    assert place.snapshot_id == end.snapshot_id
    assert place.file != fixture.rows.place(3).file
    assert fixture.rows.place(20) is None


# --- decisions ----------------------------------------------------------------------------------------------------------


def parts_of(rng):
    made = []
    for number in range(rng.randrange(8)):
        first = rng.randrange(40)
        low = rng.randrange(3)
        made.append(
            DataFileEntry(
                str(number), first, first + rng.randrange(12), 1, 1, 0, low, rng.choice([low, low + 1, OFFSET_MAX])
            )
        )
    return made


def test_a_plan_has_all_files_that_may_hold_the_offsets_and_no_other(count):
    rng = random.Random(4)
    for _ in range(count(10_000, 100_000)):
        parts = parts_of(rng)
        start = rng.randrange(45)
        stop = start + rng.randrange(1, 20)
        partition = rng.randrange(4)
        found = select(parts, start, stop, partition)
        assert {part.path for part in found} == {
            part.path
            for part in parts
            if part.partition_first <= partition <= part.partition_last
            and any(start <= offset < stop for offset in range(part.first, part.last + 1))
        }
        groups = overlap_groups(found)
        assert [part for group in groups for part in group] == found
        for one, other in pairwise(groups):
            assert max(part.last for part in one) < min(part.first for part in other)
        for group in groups:
            covered = {offset for part in group for offset in range(part.first, part.last + 1)}
            assert covered == set(range(min(covered), max(covered) + 1)) or len(group) > 1


def test_changes_are_by_path():
    a, b, c = (DataFileEntry(name, 0, 1, 2, 3, 4) for name in "abc")
    assert changes([a, b], [b, c]) == Changes([c], [a])
