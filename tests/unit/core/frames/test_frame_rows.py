"""Rows that were read back: each is the frame that it was in the log, or it is noticed."""

import random

import pyarrow as pa
import pytest

from ister.core.frames.columns import SCHEMA, Chunk, check_rows, decode_batch, messages_in, rebuild_frames
from ister.core.frames.frame import encode_message
from ister.core.message import StreamMessage

WORDS = ("", "a", "größer", "x" * 300)


def frames_of(start, stop, seed):
    rng = random.Random(f"{seed}/{start}")
    return [
        encode_message(
            StreamMessage(
                rng.randbytes(rng.choice([0, 1, 7, 8, 15, 16, 17, 200])),
                request_id=rng.choice([0, 2**64 - 1]),
                publish_time=rng.getrandbits(64),
                producer_name=rng.choice(WORDS),
                attributes={f"{rng.choice(WORDS)}{n}": rng.choice(WORDS) for n in range(rng.choice([0, 0, 1, 4]))},
                schema_id=rng.choice([None, 0, 2**64 - 1]),
                schema_version=rng.choice([None, 0, 2**32 - 1]),
                routing_key=rng.choice([None, *WORDS]),
            ),
            at,
            1_700_000_000_000_000 + at,
        )
        for at in range(start, stop)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_rows_become_the_frames_that_they_were(seed):
    frames = frames_of(100, 160, seed)
    rows = decode_batch(b"".join(frames), first_offset=100)
    for start, stop in ((0, 60), (0, 1), (59, 60), (17, 43), (30, 30)):
        part = rows.slice(start, stop - start)
        chunk, bad = rebuild_frames(part)
        assert (bytes(chunk.frames), bad) == (b"".join(frames[start:stop]), -1)
        assert check_rows(part) == (Chunk(b"", chunk.start, chunk.stop), -1)
        assert [message.offset for message in messages_in(chunk, "t")] == list(range(100 + start, 100 + stop))


OTHER = {
    "topic_offset": 4711,
    "append_time": 12_345,
    "publish_time": 12_345,
    "producer_id": 12_345,
    "request_id": 12_345,
    "schema_id": 12_345,
    "schema_version": 12_345,
    "producer_name": "another",
    "broker_addr": "another",
    "routing_key": "another",
    "attributes": [("another", "one")],
    "payload": b"another",
    "frame_crc": 12_345,
}


@pytest.mark.parametrize("column", SCHEMA.names)
def test_a_row_with_another_value_is_found(column):
    rows = decode_batch(b"".join(frames_of(0, 40, "other")), first_offset=0)
    values = rows.column(column).to_pylist()
    values[23] = OTHER[column]
    place = SCHEMA.get_field_index(column)
    arrays = [*rows.columns[:place], pa.array(values, SCHEMA.field(column).type), *rows.columns[place + 1 :]]
    forged = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    assert rebuild_frames(forged)[1] == check_rows(forged)[1] == 23


def test_a_null_where_there_was_an_empty_text_is_found():
    frames = encode_message(StreamMessage(b"x", routing_key="", schema_id=0), 0, 1)
    rows = decode_batch(frames, first_offset=0)
    for column in ("routing_key", "schema_id"):
        place = SCHEMA.get_field_index(column)
        nothing = pa.nulls(1, SCHEMA.field(column).type)
        forged = pa.RecordBatch.from_arrays([*rows.columns[:place], nothing, *rows.columns[place + 1 :]], schema=SCHEMA)
        assert rebuild_frames(forged)[1] == check_rows(forged)[1] == 0


def test_no_rows_are_no_frames():
    assert rebuild_frames(decode_batch(b"")) == (Chunk(b"", 0, 0), -1)
    assert check_rows(decode_batch(b"")) == (Chunk(b"", 0, 0), -1)
