"""Messages become rows and come back as they were, whatever the producer has sent."""

import random

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import DoubleType, ListType, LongType, NestedField, StringType, StructType

from ister.core.frames.columns import SCHEMA as MESSAGES
from ister.core.frames.columns import decode_batch, encode_columns
from ister.lake.columns import ARROW, PUBLISH_TIME_MS_MAX, SCHEMA, arrow_of, differs, table_rows
from ister.lake.parquet import DAY_US, Written, write_files
from parts.lake import NOW_US, messages

LIMIT = 1 << 27
EXTREMES = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]


def restored(rows: pa.Table) -> pa.Table:
    """Turn rows back into messages, the way a reader must be able to."""
    plain = {
        "publish_time": rows["publish_time_ms"].combine_chunks().view(pa.uint64()),
        **{name: rows[name].combine_chunks().view(pa.uint64()) for name in ("producer_id", "request_id", "schema_id")},
        **{name: rows[name].combine_chunks().view(pa.uint32()) for name in ("schema_version", "frame_crc")},
    }
    columns = [
        plain[field.name] if field.name in plain else rows[field.name].combine_chunks().cast(field.type)
        for field in MESSAGES
    ]
    return pa.Table.from_arrays(columns, schema=MESSAGES)


def written(directory, batches, **changes):
    settings = {"partition": 0, "name": "attempt", "target_bytes": LIMIT, **changes}
    return write_files({}, f"file://{directory}", batches, **settings)


def path_of(one: Written) -> str:
    return one.path.removeprefix("file://")


def test_the_field_ids_are_those_that_catalogs_give_anyway():
    assert assign_fresh_schema_ids(SCHEMA) == SCHEMA
    assert sorted(SCHEMA.field_ids) == list(range(1, 18))
    assert differs(SCHEMA) is None


def test_a_table_with_other_columns_is_told_by_field():
    fields = [field for field in SCHEMA.fields if field.name != "payload"]
    assert "payload" in differs(Schema(*fields))
    fields.append(NestedField(14, "payload", StringType(), required=True))
    assert "payload" in differs(Schema(*fields))


def test_numbers_without_a_sign_come_back_exactly(tmp_path):
    n = len(EXTREMES)
    batch = messages(
        0,
        n,
        producer_id=EXTREMES,
        request_id=EXTREMES,
        publish_time=EXTREMES,
        schema_id=[None, *EXTREMES[1:]],
        schema_version=[0, 2**31 - 1, 2**31, 2**32 - 1, None],
        frame_crc=[0, 1, 2**31 - 1, 2**31, 2**32 - 1],
    )
    (one,) = written(tmp_path, [table_rows(batch, 3)])
    found = pq.read_table(path_of(one), partitioning=None)
    assert restored(found).equals(pa.Table.from_batches([batch]))
    assert found["partition"].to_pylist() == [3] * n


def test_a_publish_time_out_of_range_is_null_and_its_number_is_kept():
    times = [0, PUBLISH_TIME_MS_MAX, PUBLISH_TIME_MS_MAX + 1, 2**63, 2**64 - 1]
    rows = table_rows(messages(0, 5, publish_time=times), 0)
    assert rows["publish_time"].is_null().to_pylist() == [False, False, True, True, True]
    assert rows["publish_time"].cast(pa.int64()).to_pylist()[:2] == [0, PUBLISH_TIME_MS_MAX * 1000]
    assert rows["publish_time"][1].as_py().year == 9999
    assert [number % 2**64 for number in rows["publish_time_ms"].to_pylist()] == times


def test_what_the_log_holds_comes_back_through_parquet_byte_for_byte(tmp_path):
    rng = random.Random(4)
    n = 500
    batch = messages(
        0,
        n,
        payload=[rng.randbytes(rng.choice([0, 1, 50, 3000])) for _ in range(n)],
        routing_key=[rng.choice([None, "", "schlüssel", "\U0010ffff" * 20, "k" * 300]) for _ in range(n)],
        attributes=[[(str(i), "é" * i) for i in range(rng.randrange(4))] for _ in range(n)],
        schema_id=[rng.choice([None, 5]) for _ in range(n)],
    )
    frames = b"".join(bytes(chunk.frames) for chunk in encode_columns(batch, 0, NOW_US, bytes_max=LIMIT))
    decoded = decode_batch(frames)
    slices = [decoded.slice(0, 100), decoded.slice(100, 0), decoded.slice(100, 399), decoded.slice(499)]
    (one,) = written(tmp_path, [table_rows(piece, 0) for piece in slices])
    assert restored(pq.read_table(path_of(one), partitioning=None)).equals(pa.Table.from_batches([decoded]))
    assert (one.first_offset, one.last_offset, one.rows) == (0, n - 1, n)


def test_a_file_carries_field_ids_statistics_and_zstd(tmp_path):
    (one,) = written(tmp_path, [table_rows(messages(5, 105), 2)])
    found = pq.ParquetFile(path_of(one))
    assert differs(pyarrow_to_schema(found.schema_arrow)) is None
    group = found.metadata.row_group(0)
    assert {group.column(place).compression for place in range(group.num_columns)} == {"ZSTD"}
    offsets = group.column(0)
    assert (offsets.path_in_schema, offsets.statistics.min, offsets.statistics.max) == ("topic_offset", 5, 104)
    assert one.bytes == tmp_path.joinpath(path_of(one)).stat().st_size
    assert int.from_bytes(__import__("base64").b64decode(one.lower_bounds[1]), "little") == 5
    assert int.from_bytes(__import__("base64").b64decode(one.upper_bounds[1]), "little") == 104
    assert 14 in one.value_counts, "a payload is counted"
    assert 14 not in one.lower_bounds, "and has no bounds"
    assert Written.from_json(one.to_json()) == one


def test_a_day_has_files_of_its_own(tmp_path):
    midnight = 20_000 * DAY_US
    times = [midnight - 2, midnight - 1, midnight, midnight + 1, midnight + DAY_US]
    files = written(tmp_path, [table_rows(messages(0, 3, append_time=times[:3]), 0), table_rows(messages(3, 5, append_time=times[3:]), 0)])  # fmt: skip
    assert [(one.day, one.first_offset, one.last_offset) for one in files] == [(19_999, 0, 1), (20_000, 2, 3), (20_001, 4, 4)]  # fmt: skip
    assert [path_of(one).removeprefix(f"{tmp_path}/").split("/")[:2] for one in files] == [
        ["data", f"append_time_day={day}"] for day in ("2024-10-03", "2024-10-04", "2024-10-05")
    ]


def test_files_are_of_about_the_wanted_size_and_hold_every_row_once(tmp_path):
    rng = random.Random(2)
    batches = [
        table_rows(messages(at, at + 200, payload=[rng.randbytes(1000) for _ in range(200)]), 0)
        for at in range(0, 4000, 200)
    ]
    files = written(tmp_path, batches, target_bytes=500_000)
    assert 6 <= len(files) <= 12
    assert all(one.bytes < 1_200_000 for one in files)
    assert [one.first_offset for one in files][1:] == [one.last_offset + 1 for one in files][:-1]
    found = pa.concat_tables(pq.read_table(path_of(one), partitioning=None) for one in files)
    assert found["topic_offset"].to_pylist() == list(range(4000))


def test_one_large_batch_is_cut_into_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr("ister.lake.parquet.ROW_GROUP_BYTES", 100_000)
    (one,) = written(tmp_path, [table_rows(messages(0, 1000, payload=[b"x" * 1000] * 1000), 0)])
    found = pq.ParquetFile(path_of(one)).metadata
    assert 8 <= found.num_row_groups <= 20
    assert len(one.split_offsets) == found.num_row_groups


def test_no_rows_make_no_file(tmp_path):
    assert written(tmp_path, []) == []
    assert written(tmp_path, [table_rows(messages(0, 0), 0)]) == []


def test_an_attempt_that_fails_leaves_no_file(tmp_path):
    def rows():
        yield table_rows(messages(0, 10, us=DAY_US * 3), 0)
        yield table_rows(messages(10, 20, us=DAY_US * 4), 0)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        written(tmp_path, rows())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_flipped_bit_is_refused_and_never_read_as_another_value(tmp_path, count):
    (one,) = written(tmp_path, [table_rows(messages(0, 300), 0)])
    whole = open(path_of(one), "rb").read()  # noqa: PTH123, SIM115  # a file of a test
    truth = pq.read_table(path_of(one), partitioning=None)
    rng = random.Random(1)
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    refused = 0
    for _ in range(count(400, 4000)):
        place = rng.randrange(4, len(whole) - footer)
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.randrange(8)
        try:
            found = pq.read_table(pa.BufferReader(bytes(damaged)), page_checksum_verification=True)
        except (OSError, pa.ArrowException):
            refused += 1
        else:
            assert found.equals(truth)
    assert refused > 300


def test_columns_of_a_schema_are_written_with_the_table_s_ids(tmp_path):
    value = StructType(
        NestedField(20, "price", DoubleType(), required=False),
        NestedField(21, "tags", ListType(22, StringType(), element_required=False), required=False),
        NestedField(23, "n", LongType(), required=False),
    )
    schema = Schema(
        *SCHEMA.fields,
        NestedField(18, "value", value, required=False),
        NestedField(19, "decode_error", StringType(), required=False),
    )
    arrow = arrow_of(schema)
    assert arrow.names[: len(ARROW.names)] == ARROW.names
    rows = table_rows(messages(0, 3), 0)
    values = [{"price": 1.5, "tags": ["a"], "n": 4}, None, {"price": None, "tags": None, "n": -1}]
    batch = pa.RecordBatch.from_arrays(
        [*rows.columns, pa.array(values, arrow.field("value").type), pa.array([None, "bad", None], pa.string())],
        schema=arrow,
    )
    (one,) = written(tmp_path, [batch])
    found = pq.ParquetFile(path_of(one))
    assert pyarrow_to_schema(found.schema_arrow).find_field("value.n").field_id == 23
    assert found.read()["value"].to_pylist() == values
    assert pc.sum(found.read()["topic_offset"]).as_py() == 3
    assert {20, 22, 23} <= one.value_counts.keys()
