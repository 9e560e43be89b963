"""Values are exact: whatever happens to a table, every reader has the values that went in (K4, K5, K6).

A history appends messages of random schemas as a task does, changes the schema, deletes rows, compacts, and repairs the
table as `ister lake repair` does, after which the pipeline appends what was cut. Then Ister's own reader, Spark, DuckDB,
Polars and PyIceberg read it. What is known of other readers is in docs/lake.md, and is allowed here for them alone.
"""

import asyncio
import math
import random
import uuid
from urllib.parse import urlparse

import duckdb
import pytest
from pyiceberg.typedef import Record

from ister.core.frames.columns import decode_batch
from ister.core.frames.frame import encode_message
from ister.core.message import StreamMessage
from ister.core.names import TopicName
from ister.lake.catalog import LakeCatalog
from ister.lake.columns import table_rows
from ister.lake.evolve import evolve
from ister.lake.parquet import write_files
from ister.lake.repair import examine, mend
from ister.lake.topic_table import ReaderOptions, TableReads
from ister.pipeline.typed_values import Typed, Values
from ister.schemas.decode import shape_of
from parts.deletes import DAY_US, PRODUCER_ID, delete_equal
from parts.engines import by_polars, by_pyiceberg, by_spark
from parts.lake import NOW_US
from parts.pipeline import new_topic
from parts.readback import read_all
from parts.schema_chains import Avro, Json, Protobuf, change, copied, random_struct, seen_in

SCHEMA_ID = 7
STEP_US = 7_200_000_000
"""Twelve messages a day."""


class SharedLake(LakeCatalog):
    """The lake of all tests, which no reader of one test closes."""

    def close(self):
        pass


class History:
    """A table, what was written to it, and what is to be there now."""

    def __init__(self, spark, catalog, language, seed):
        self.chance = random.Random(seed)
        self.spark, self.catalog = spark, catalog
        self.topic = TopicName.parse(new_topic("exact"))
        lake = SharedLake(catalog)
        self.table = lake.table(self.topic, 1)
        self.table.claim(1)
        self.reads = TableReads(lake, ReaderOptions(on_missing="skip"))
        self.rows = self.reads.table(self.topic, 1)
        self.language = language
        self.root = random_struct(self.chance, 2)
        for name, kind in (("many", "list"), ("named", "map")):  # null now and then, which some readers show as empty
            self.root.add(name, (kind, random_struct(self.chance, 0)))
            self.root.parts[name].optional = True
        self.writers, self.definitions = [], []
        self.sent = []
        """Every message, by its offset."""
        self.wanted = {}
        """The value of every row that the table has, by its offset."""
        self.change_schema()

    @property
    def name(self):
        return ".".join(self.table.identifier)

    @property
    def iceberg(self):
        return self.catalog.load_table(self.table.identifier)

    # --- what happens to a table ----------------------------------------------------------------------------------------

    def change_schema(self):
        if self.writers:
            for _ in range(3):
                change(self.chance, self.root, self.language.name, compatible=False)
        writer = self.language()
        schema = writer.schema(copied(self.root))
        self.writers.append(writer)
        self.definitions.append((SCHEMA_ID, len(self.writers), schema.type.value, writer.definition))
        evolve(self.table, [shape_of(schema)])

    def append(self):
        for _ in range(self.chance.randrange(4, 16)):
            version = self.chance.choice([len(self.writers), self.chance.randint(1, len(self.writers))])
            value = self.writers[version - 1].value(self.chance)
            self.sent.append((version, value, self.writers[version - 1].payload(value)))
        self.write()

    def write(self):
        """Append what the table has not, as a task does."""
        self.table.refresh()
        start, stop = self.table.upto(0), len(self.sent)
        if start == stop:
            return
        frames = b"".join(
            encode_message(
                StreamMessage(payload, producer_name=producer_of(at), schema_id=SCHEMA_ID, schema_version=version),
                at,
                NOW_US + at * STEP_US,
            )
            for at, (version, _, payload) in enumerate(self.sent[start:], start)
        )
        typed = Typed(self.table.schema.model_dump_json(), tuple(self.definitions), (SCHEMA_ID, len(self.writers)))
        values = Values(typed)
        batches = list(values.add_to(table_rows(decode_batch(frames, first_offset=start), 0)))
        assert not values.misfits
        for batch in batches:
            for offset, value, error in rows_of(batch, "decode_error"):
                assert error is None
                sent = self.sent[offset][1]
                assert all(seen_in(value, name, part) for name, part in sent.items()), (value, sent)
                self.wanted[offset] = value
        written = write_files(
            self.table.io_properties, self.table.location, batches, partition=0, name=uuid.uuid4().hex,
            target_bytes=1 << 27,
        )  # fmt: skip
        self.table.commit_add_files(written, {0: (start, stop)})

    def delete(self):
        """Delete rows as the table's user may, by new files or by positions."""
        some = self.chance.sample(sorted(self.wanted), min(len(self.wanted), self.chance.randrange(1, 4)))
        mode = self.chance.choice(["merge-on-read", "copy-on-write"])
        self.sql(f"ALTER TABLE ister.{self.name} SET TBLPROPERTIES ('write.delete.mode' = '{mode}')")
        self.sql(f"DELETE FROM ister.{self.name} WHERE topic_offset IN ({', '.join(map(str, some))})")
        for offset in some:
            del self.wanted[offset]

    def delete_equal(self):
        """Delete a producer's rows of one day by value, as other engines do, and compact: not every reader knows such files."""
        some = self.chance.choice(sorted(self.wanted))
        gone = [at for at in self.wanted if day_of(at) == day_of(some) and producer_of(at) == producer_of(some)]
        with pytest.MonkeyPatch.context() as patch:
            delete_equal(
                self,
                patch,
                PRODUCER_ID,
                "producer_name",
                [producer_of(some)],
                partition=Record(day_of(some)),
                spec=self.iceberg.spec(),
            )
        for offset in gone:
            del self.wanted[offset]
        self.assert_rows(by_spark(self.table.identifier, self.catalog, self.spark), "after an equality delete")
        self.assert_messages("after an equality delete")
        self.compact()

    def compact(self):
        options = "map('rewrite-all', 'true', 'remove-dangling-deletes', 'true')"
        self.sql(f"CALL ister.system.rewrite_data_files(table => '{self.name}', options => {options})")

    def repair(self):
        """Cut the table where its first row is missing; then the pipeline appends the rest again."""
        found = examine(self.iceberg, self.topic, 1)
        if not found.sound:
            mend(found)
        self.table.refresh()
        keep = self.table.upto(0)
        assert keep == next((at for at in range(len(self.sent)) if at not in self.wanted), len(self.sent))
        self.wanted = {offset: value for offset, value in self.wanted.items() if offset < keep}
        self.assert_exact("after repair")
        self.write()

    def sql(self, text):
        return self.spark.sql(text).collect()

    # --- what readers have ----------------------------------------------------------------------------------------------

    def assert_exact(self, when):
        for read in (by_spark, by_polars, by_pyiceberg):
            rows = read(self.table.identifier, self.catalog, self.spark)
            self.assert_rows(rows, (when, read.__name__), empty_for_null=read is by_pyiceberg)
        self.assert_files(when)
        self.assert_messages(when)

    def assert_messages(self, when):
        self.table.refresh()
        self.rows.refresh()
        found = asyncio.run(read_all(self.rows, 0, self.table.upto(0)))
        payloads = [self.sent[offset][2] for offset in sorted(self.wanted)]
        assert [message.payload for message in found] == payloads, when

    def assert_rows(self, rows, where, *, empty_for_null=False):
        found = list(rows_of(rows, "payload"))
        assert sorted(offset for offset, _, _ in found) == sorted(self.wanted), where
        for offset, value, payload in found:
            assert payload == self.sent[offset][2], where
            wanted = self.wanted[offset]
            assert same(wanted, value, empty_for_null=empty_for_null), (where, offset, wanted, value)

    def assert_files(self, when):
        """Read the data files by DuckDB, one by one; rows that a delete file names are still in them."""
        seen = set()
        for task in self.iceberg.scan().plan_files():
            rows = duckdb.read_parquet(urlparse(task.file.file_path).path, hive_partitioning=False).to_arrow_table()
            for offset, value, _ in rows_of(rows, "payload"):
                if offset in self.wanted:
                    assert same(self.wanted[offset], value), (when, "by_duckdb", offset, self.wanted[offset], value)
                    seen.add(offset)
        assert seen == set(self.wanted), when


def producer_of(offset):
    return ("ann", "bob", "eve")[offset % 3]


def day_of(offset):
    return (NOW_US + offset * STEP_US) // DAY_US


def rows_of(rows, column):
    columns = [rows.column(name).to_pylist(maps_as_pydicts="strict") for name in ("topic_offset", "value", column)]
    return zip(*columns, strict=True)


def same(wanted, found, *, empty_for_null=False):
    """Return True if a value is another; columns that a table got later are null."""
    match wanted:
        case None:
            return found is None or (empty_for_null and found in ([], {}))
        case dict():
            names = wanted.keys() | (found or {}).keys()
            return found is not None and all(
                same(wanted.get(name), found.get(name), empty_for_null=empty_for_null) for name in names
            )
        case list():
            return (
                found is not None
                and len(found) == len(wanted)
                and all(same(a, b, empty_for_null=empty_for_null) for a, b in zip(wanted, found, strict=True))
            )
        case float() if math.isnan(wanted):
            return isinstance(found, float) and math.isnan(found)
        case _:
            return found == wanted and isinstance(found, bool) == isinstance(wanted, bool)


@pytest.mark.filterwarnings(
    "ignore:Merge on read is not yet supported"
)  # PyIceberg's, of a table whose user has set it
@pytest.mark.parametrize("language", [Json, Avro, Protobuf])
def test_every_reader_has_the_values_that_went_in_whatever_happened_to_the_table(spark, catalog, language, count, tell):
    histories = count(1, 30)
    rows = 0
    for number in range(histories):
        history = History(spark, catalog, language, f"{language.name}/{number}")
        try:
            history.append()
            steps = [history.append, history.change_schema, history.delete, history.delete_equal, history.compact]
            for step in [
                *history.chance.choices([*steps, history.repair], k=3),
                history.append,
                history.delete_equal,
                history.delete,
            ]:
                step()
            history.repair()
            history.append()
            history.delete()
            history.assert_exact("at the end")
            rows += len(history.wanted)
        finally:
            history.reads.close()
    tell("values", f"{language.name}: {histories} histories, {rows} rows: every reader has what went in")
