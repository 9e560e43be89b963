"""A topic read back while Spark and Iceberg's own procedures change its table: F32, deletes, columns, partitions, flipped bits."""

import asyncio
import random
import time
import uuid
from pathlib import Path

import pytest
from pyarrow import parquet
from pyiceberg.manifest import FileFormat

from ister.core.frames.columns import decode_batch, decode_messages
from ister.core.frames.frame import encode_message
from ister.core.names import TopicName
from ister.core.table.maintenance import spelling
from ister.lake import data_file_rows
from ister.lake.catalog import LakeCatalog
from ister.lake.columns import table_rows
from ister.lake.errors import CorruptRowsError, MissingRowsError, TableMovedError
from ister.lake.evolve import evolve
from ister.lake.parquet import write_files
from ister.lake.topic_reader import TopicReader
from ister.lake.topic_table import ReaderOptions, TableReads
from ister.schemas.columns.types import Field, Primitive, Struct
from parts.lake import NOW_US
from parts.pipeline import new_topic
from parts.readback import Fixture, message_of, read_all

STEP_US = 432_000_000
"""Two hundred messages a day."""
PARQUET_FILE = parquet.ParquetFile
SMALL = "'target-file-size-bytes', '16384'"
REWRITES = {
    "sorted": "strategy => 'sort'",
    "by another order": "strategy => 'sort', sort_order => 'producer_name DESC, topic_offset DESC'",
    "by zorder": "strategy => 'sort', sort_order => 'zorder(request_id, topic_offset)'",
    "packed": "strategy => 'binpack'",
}


class SharedLake(LakeCatalog):
    """The lake of all tests, which no reader of one test closes."""

    def close(self):
        pass


class Topic(Fixture):
    """A table in Spark's catalog, written by our own writer, over several days."""

    def __init__(self, spark, catalog, *, seed=0, **options):
        self.spark, self.seed = spark, seed
        self.lake = SharedLake(catalog)
        self.topic = TopicName.parse(new_topic("readback"))
        self.table = self.lake.table(self.topic, 1)
        self.table.claim(1)
        self.reads = TableReads(self.lake, ReaderOptions(poll_interval_s=0.01, **options))
        self.rows = self.reads.table(self.topic, 1)

    def frames(self, start, stop):
        return b"".join(
            encode_message(message_of(random.Random(f"{self.seed}/{at}")), at, NOW_US + at * STEP_US)
            for at in range(start, stop)
        )

    def append(self, rows):
        start = self.table.upto(0)
        batch = table_rows(decode_batch(self.frames(start, start + rows), first_offset=start), 0)
        written = write_files(
            self.table.io_properties, self.table.location, [batch], partition=0, name=uuid.uuid4().hex,
            target_bytes=1 << 27,
        )  # fmt: skip
        return self.table.commit_add_files(written, {0: (start, start + rows)})

    def expected(self, start, stop):
        return decode_messages(self.frames(start, stop), first_offset=start, topic_name=str(self.topic))

    def read(self, start, stop):
        return asyncio.run(read_all(self.rows, start, stop))

    def prove(self, start, stop):
        asyncio.run(self.rows.prove(start, stop))

    @property
    def name(self):
        return ".".join(self.table.identifier)

    @property
    def upto(self):
        return self.table.upto(0)

    # --- what others do -------------------------------------------------------------------------------------------------

    def sql(self, text):
        return self.spark.sql(text.replace("TABLE_NAME", f"ister.{self.name}")).collect()

    def call(self, procedure, *arguments):
        asked = ", ".join([f"table => '{self.name}'", *arguments])
        return self.sql(f"CALL ister.system.{procedure}({asked})")

    def rewrite(self, how, *options):
        asked = ", ".join(["'rewrite-all', 'true'", *options])
        (done,) = self.call("rewrite_data_files", REWRITES[how], f"options => map({asked})")
        assert done["rewritten_data_files_count"] > 0
        assert done["failed_data_files_count"] == 0

    def expire(self):
        """Let every snapshot go but the newest, and delete the files that only they had."""
        soon = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time.time() + 60))
        self.call("expire_snapshots", f"older_than => TIMESTAMP '{soon}'", "retain_last => 1")
        assert self.on_disk() == self.live(), "Iceberg has deleted what was let go"

    # --- what there is --------------------------------------------------------------------------------------------------

    def data_files(self):
        return [task.file for task in self.iceberg.scan().plan_files()]

    def live(self):
        return {Path(spelling(file.file_path)) for file in self.data_files()}

    def on_disk(self):
        return {
            path
            for path in Path(spelling(self.table.location)).rglob("*.parquet")
            if not path.name.endswith("-deletes.parquet")
        }

    def close(self):
        self.reads.close()


@pytest.fixture
def make(spark, catalog):
    made = []

    def topic(**options):
        made.append(Topic(spark, catalog, **options))
        return made[-1]

    yield topic
    for one in made:
        one.close()


# --- F32: compaction, sorting, expiry -----------------------------------------------------------------------------------


def act(topic, rng):
    """Do one of the things that a table's owner may do at any time."""
    how = rng.choice([*REWRITES, *REWRITES, "manifests", "expire"])
    if how == "manifests":
        topic.call("rewrite_manifests")
    elif how != "expire":
        topic.rewrite(how, *([SMALL] if rng.random() < 0.5 else []))
    if how == "expire" or rng.random() < 0.6:
        topic.expire()


async def follow(topic, rng, steps):
    """Read a topic to its end while it grows and its table is rewritten between two reads."""
    reader = TopicReader(topic.rows)
    found = []
    for _ in range(steps):
        for _ in range(rng.randrange(4, 12)):
            await asyncio.to_thread(topic.append, rng.randrange(1, 20))
        for _ in range(rng.randrange(4)):
            if len(found) < topic.upto:
                found += await reader.read()
        await asyncio.to_thread(act, topic, rng)
        if rng.random() < 0.3:  # another reader goes on where this one was
            await reader.close()
            reader = TopicReader(topic.rows, reader.next_offset)
    while len(found) < topic.upto:
        found += await reader.read()
    assert (reader.next_offset, reader.lag) == (topic.upto, 0)
    await reader.close()
    return found


def test_f32_a_reader_resumes_by_offset_whatever_was_rewritten_and_expired_between_two_reads(make, count, tell):
    sequences, steps, rows, replans = count(4, 50), 3, 0, 0
    for seed in range(sequences):
        rng = random.Random(seed)
        topic = make(seed=seed, prefetch_size=rng.choice([1, 1, 5]))
        found = asyncio.run(follow(topic, rng, steps))
        assert found == topic.expected(0, topic.upto)
        topic.prove(0, topic.upto)
        rows += len(found)
        replans += topic.reads.seen.replans
    assert replans > 0, "no file has ever vanished under a reader"
    tell(
        "F32",
        f"{sequences} sequences of {steps} rewrites and expiries between reads: {rows} messages, {replans} times a file "
        f"was gone; 0 lost, 0 twice, all fields exact",
    )


@pytest.mark.parametrize("how", REWRITES)
def test_f32_files_that_are_compacted_and_deleted_under_a_stream_are_planned_again(make, how):
    topic = make(seed=how, prefetch_size=1, max_concurrent_reads=1)
    for _ in range(14):
        topic.append(30)

    async def story():
        await topic.rows.look()
        stream = topic.rows.open(0, topic.upto)
        found = await stream.read() + await stream.read()
        old = topic.live()
        await asyncio.to_thread(topic.rewrite, how, SMALL)
        await asyncio.to_thread(topic.expire)
        assert not any(path.exists() for path in old)
        while messages := await stream.read():
            found += messages
        await stream.close()
        return found

    assert asyncio.run(story()) == topic.expected(0, topic.upto)
    assert topic.reads.seen.replans == 1
    topic.prove(0, topic.upto)


@pytest.mark.parametrize("how", REWRITES)
def test_any_span_of_a_rewritten_table_is_exact(make, how):
    topic = make(seed=f"span/{how}")
    for rows in (90, 1, 200):
        topic.append(rows)
    topic.rewrite(how, SMALL)
    rng = random.Random(how)
    for start, stop in [(0, 291), (0, 1), (290, 291), *(sorted(rng.sample(range(292), 2)) for _ in range(8))]:
        assert topic.read(start, stop) == topic.expected(start, stop)
    with pytest.raises(MissingRowsError, match="offsets 291 to 291"):
        topic.prove(0, 292)


# --- partitions and columns ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "REPLACE PARTITION FIELD append_time_day WITH hours(append_time)",
        "ADD PARTITION FIELD bucket(4, producer_name)",
        "DROP PARTITION FIELD append_time_day",
    ],
)
def test_a_table_that_was_partitioned_anew_is_read_before_and_after_its_files_moved(make, change):
    topic = make(seed=change)
    for _ in range(3):
        topic.append(25)
    (old,) = {file.spec_id for file in topic.data_files()}
    topic.sql(f"ALTER TABLE TABLE_NAME {change}")
    assert topic.read(0, 75) == topic.expected(0, 75)
    topic.rewrite("sorted")
    assert old not in {file.spec_id for file in topic.data_files()}
    topic.expire()
    assert topic.read(0, 75) == topic.expected(0, 75)
    topic.prove(0, 75)
    topic.append(25)  # by the spec that its files follow, whatever the table's is now
    assert topic.read(0, 100) == topic.expected(0, 100)
    found = topic.sql("SELECT count(*) AS rows FROM TABLE_NAME WHERE append_time > TIMESTAMP '2001-01-01 00:00:00'")
    assert found[0].rows == 100, "no file is pruned for a partition that it is not in"


COLUMNS = [
    "ADD COLUMN note string",
    "RENAME COLUMN note TO remark",
    "ADD COLUMN number int FIRST",
    "ALTER COLUMN number TYPE bigint",
    "ADD COLUMN attributes_too map<string, string> AFTER topic_offset",
    "DROP COLUMN remark",
    "ALTER COLUMN payload AFTER topic_offset",
    "ADD COLUMN remark string",
]


def test_columns_that_users_add_rename_widen_move_and_drop_between_two_reads_change_no_message(make):
    topic = make(seed="columns")

    async def story():
        reader = TopicReader(topic.rows)
        found = []
        for number, change in enumerate(COLUMNS):
            await asyncio.to_thread(topic.append, 20)
            await asyncio.to_thread(topic.sql, f"ALTER TABLE TABLE_NAME {change}")
            if number % 3 == 2:
                await asyncio.to_thread(topic.rewrite, "by another order")
                await asyncio.to_thread(topic.expire)
            while len(found) < topic.upto:
                found += await reader.read()
        await reader.close()
        return found

    assert asyncio.run(story()) == topic.expected(0, topic.upto)
    topic.rewrite("packed")
    assert topic.read(0, topic.upto) == topic.expected(0, topic.upto)


def test_columns_of_ours_that_were_renamed_or_widened_are_known_by_their_ids(make):
    topic = make(seed="ours")
    for _ in range(4):
        topic.append(30)
    for change in (
        "RENAME COLUMN producer_name TO sender",
        "RENAME COLUMN payload TO body",
        "RENAME COLUMN topic_offset TO place",
        "ALTER COLUMN partition TYPE bigint",
        "ALTER COLUMN schema_version TYPE bigint",
        "ALTER COLUMN frame_crc TYPE bigint",
    ):
        topic.sql(f"ALTER TABLE TABLE_NAME {change}")
    assert topic.read(0, 120) == topic.expected(0, 120)
    topic.rewrite("packed")
    assert topic.read(0, 120) == topic.expected(0, 120)
    topic.prove(0, 120)


def test_the_columns_of_a_schema_change_no_message(make):
    topic = make(seed="typed")
    topic.append(40)
    evolve(topic.table, [Struct((Field("n", Primitive.INT), Field("word", Primitive.STRING)))])
    assert topic.read(0, 40) == topic.expected(0, 40)
    topic.rewrite("sorted")
    evolve(topic.table, [Struct((Field("n", Primitive.LONG), Field("more", Struct((Field("x", Primitive.DATE),)))))])
    assert topic.read(0, 40) == topic.expected(0, 40)
    topic.rewrite("packed")
    topic.expire()
    assert "value" in parquet.read_schema(min(topic.live())).names
    assert topic.read(0, 40) == topic.expected(0, 40)


# --- deletes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "kind"), [(2, FileFormat.PARQUET), (3, FileFormat.PUFFIN)])
def test_rows_that_someone_deleted_are_named_or_skipped_and_counted(make, version, kind):
    topic = make(seed="deleted")
    for _ in range(4):
        topic.append(40)
    topic.rewrite("sorted")
    topic.sql(
        f"ALTER TABLE TABLE_NAME SET TBLPROPERTIES ('write.delete.mode'='merge-on-read', 'format-version'='{version}')"
    )
    topic.sql("DELETE FROM TABLE_NAME WHERE topic_offset IN (20, 21, 130)")
    topic.sql("DELETE FROM TABLE_NAME WHERE topic_offset IN (22, 70)")
    left = [*topic.expected(0, 20), *topic.expected(23, 70), *topic.expected(71, 130), *topic.expected(131, 160)]

    def check(*, by_files):
        assert topic.rows.refresh().upto == 160
        assert {one.file.file_format for one in topic.rows._listed.deletes} == ({kind} if by_files else set())
        assert topic.read(0, 20) == topic.expected(0, 20)
        assert topic.read(23, 70) == topic.expected(23, 70)
        for start, first, last in ((0, 20, 22), (23, 70, 70), (71, 130, 130)):
            with pytest.raises(MissingRowsError, match=f"offsets {first} to {last} of partition 0") as told:
                topic.read(start, 160)
            assert (told.value.start, told.value.stop) == (first, last + 1)
            with pytest.raises(MissingRowsError, match=f"offsets {first} to"):
                topic.prove(start, 160)
        reads = TableReads(topic.lake, ReaderOptions(on_missing="skip"))
        assert asyncio.run(read_all(reads.table(topic.topic, 1), 0, 160)) == left
        assert reads.seen.skipped == 5
        reads.close()

    check(by_files=True)
    topic.call("rewrite_position_delete_files", "options => map('rewrite-all', 'true')")
    check(by_files=True)
    topic.rewrite("by another order", "'remove-dangling-deletes', 'true'")
    check(by_files=False)
    topic.expire()
    with pytest.raises(TableMovedError, match="155 rows"):  # no snapshot of ours is left, and so the rows must add up
        topic.rows.refresh()


def test_deletes_of_one_partition_touch_no_other(make):
    topic = make(seed="both")
    topic.append(120)
    topic.sql("ALTER TABLE TABLE_NAME SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    topic.sql("DELETE FROM TABLE_NAME WHERE topic_offset = 3")
    assert len(topic.live()) > 1
    assert topic.read(4, 120) == topic.expected(4, 120)
    topic.prove(4, 120)


# --- damage -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checked", ["page and row", "row"])
def test_no_bit_that_flips_in_a_file_of_spark_is_delivered(make, checked, monkeypatch, count, tell):
    """Spark writes checksums of pages; where another engine does not, those of the rows must do."""
    if checked == "row":
        monkeypatch.setattr(data_file_rows.pq, "ParquetFile", without_pages)
    topic = make(seed=checked)
    topic.append(60)
    topic.rewrite("sorted")
    (file,) = topic.live()
    good = file.read_bytes()
    rng = random.Random(32)
    noticed = {"a page": 0, "a row": 0, "decoding": 0}
    for _ in range(flips := count(80, 1000)):
        bad = bytearray(good)
        bit = rng.randrange(len(good) * 8)
        bad[bit // 8] ^= 1 << bit % 8
        file.write_bytes(bad)
        try:
            assert topic.read(0, 60) == topic.expected(0, 60)
        except (CorruptRowsError, MissingRowsError) as error:
            by_row, by_page = "other values than" in str(error), "CRC checksum" in str(error)
            noticed["a row" if by_row else "a page" if by_page else "decoding"] += 1
    file.write_bytes(good)
    assert topic.read(0, 60) == topic.expected(0, 60)
    assert noticed["a page" if checked == "page and row" else "a row"] > flips // 4
    assert (noticed["a page"] == 0) == (checked == "row")
    told = ", ".join(f"{times} by {what}" for what, times in noticed.items())
    tell("F32", f"{flips} bits flipped in a file of Spark, checksum of each {checked}: 0 delivered, noticed {told}")


def without_pages(source, *, page_checksum_verification, **options):
    assert page_checksum_verification
    return PARQUET_FILE(source, **options)
