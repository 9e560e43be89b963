"""Random record batches, as other programs lay them out, become the messages that they say."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.core.errors import InvalidMessageError
from ister.core.frames.columns import SCHEMA, check_rows, decode_batch, encode_columns, rebuild_frames
from parts.counts import LONG

TEXTS = st.lists(st.sampled_from(["", "a", "é", "日本", "x" * 40]), min_size=1, max_size=3).map("".join)


def buffers_of(values, hidden, data_at):
    """Return validity, offsets and data of texts; a null has the bytes of `hidden` under it."""
    parts = [hidden if value is None else value if isinstance(value, bytes) else value.encode() for value in values]
    starts = np.cumsum([data_at, *map(len, parts)]).astype(np.int32)
    valid = np.packbits(np.array([value is not None for value in values], bool), bitorder="little")
    return [pa.py_buffer(valid.tobytes()), pa.py_buffer(starts), pa.py_buffer(b"?" * data_at + b"".join(parts))]


@st.composite
def text_arrays(draw, rows, kind, values):
    """Draw an array of `rows` values that is a slice of a longer one, with bytes under its nulls and before its first."""
    before, behind = draw(st.integers(0, 3)), draw(st.integers(0, 2))
    count = before + rows + behind
    drawn = draw(st.lists(values, min_size=count, max_size=count))
    hidden = draw(st.sampled_from([b"", b"hidden"]))
    array = pa.Array.from_buffers(kind, count, buffers_of(drawn, hidden, draw(st.integers(0, 5))))
    return array.slice(before, rows)


@st.composite
def attribute_arrays(draw, rows):
    """Draw maps whose rows, entries, keys and values are slices of longer arrays."""
    before, behind = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    counts = draw(st.lists(st.integers(0, 3), min_size=before + rows + behind, max_size=before + rows + behind))
    first = draw(st.integers(0, 2))
    inside = first + sum(counts[:before]), first + sum(counts[: before + rows])
    entries_before = draw(st.integers(0, 2))
    entries = first + sum(counts) + draw(st.integers(0, 2))
    keys = draw(text_arrays(entries_before + entries, pa.string(), TEXTS))
    values = [
        draw(TEXTS if inside[0] <= n - entries_before < inside[1] else st.none() | TEXTS)
        for n in range(entries_before + entries)
    ]
    items = pa.Array.from_buffers(pa.string(), len(values), buffers_of(values, b"hidden", draw(st.integers(0, 3))))
    kind = SCHEMA.field("attributes").type
    pairs = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field]).slice(entries_before)
    starts = np.cumsum([first, *counts]).astype(np.int32)
    maps = pa.MapArray.from_buffers(kind, len(counts), [None, pa.py_buffer(starts)], children=[pairs])
    return maps.slice(before, rows)


@st.composite
def numbers(draw, rows, kind, *, nullable):
    count = draw(st.integers(0, 3)) + rows
    values = draw(st.lists(st.integers(0, 2**kind.bit_width - 1), min_size=count, max_size=count))
    array = pa.array(values, kind)
    if nullable:
        valid = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        validity = pa.py_buffer(np.packbits(np.array(valid, bool), bitorder="little").tobytes())
        array = pa.Array.from_buffers(kind, count, [validity, array.buffers()[1]])
    return array.slice(count - rows)


@st.composite
def batches(draw):
    rows = draw(st.integers(0, 6))
    columns = {
        "payload": text_arrays(rows, pa.binary(), st.binary(max_size=30)),
        "producer_name": text_arrays(rows, pa.string(), TEXTS),
        "broker_addr": text_arrays(rows, pa.string(), TEXTS),
        "routing_key": text_arrays(rows, pa.string(), st.none() | TEXTS),
        "attributes": attribute_arrays(rows),
        "publish_time": numbers(rows, pa.uint64(), nullable=False),
        "schema_id": numbers(rows, pa.uint64(), nullable=True),
        "schema_version": numbers(rows, pa.uint32(), nullable=True),
    }
    chosen = {"payload", *draw(st.sets(st.sampled_from(sorted(columns))))}
    batch = pa.record_batch({name: draw(columns[name]) for name in sorted(chosen)})
    start = draw(st.integers(0, rows))
    return batch.slice(start, draw(st.integers(0, rows - start)))


def encoded(batch, bytes_max=1 << 20):
    return b"".join(bytes(chunk.frames) for chunk in encode_columns(batch, 100, 5, bytes_max=bytes_max))


def compacted(batch):
    """Return the same batch without slices: MapArray.to_pylist ignores the offset of a map's entries, Arrow's IPC does not."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


@settings(max_examples=5_000 if LONG else 100, deadline=None)
@given(batches(), st.sampled_from([1, 200, 1 << 20]))
def test_any_layout_of_a_batch_is_stored_as_what_it_says(batch, bytes_max):
    """I2, I19."""
    batch.validate(full=True)
    frames = encoded(batch, bytes_max)
    if not batch.num_rows:
        assert not frames
        return
    found = decode_batch(frames, first_offset=100)
    wanted = compacted(batch)
    for name in batch.schema.names:
        assert found.column(name).to_pylist() == wanted.column(name).to_pylist(), name
    # What a table gives back may be laid out in any way, too.
    rows = [batch.column(name) if name in batch.schema.names else found.column(name) for name in SCHEMA.names]
    laid_out = pa.RecordBatch.from_arrays(rows, schema=SCHEMA)
    chunk, differing = rebuild_frames(laid_out)
    assert (bytes(chunk.frames), differing) == (frames, -1)
    assert check_rows(laid_out)[1] == -1


@pytest.mark.parametrize("column", ["payload", "producer_name", "broker_addr"])
def test_a_null_over_bytes_in_a_required_column_is_refused(column):
    """I2."""
    kind = SCHEMA.field(column).type
    hidden = pa.Array.from_buffers(kind, 2, buffers_of([b"x", None], b"hidden", 0))
    with pytest.raises(InvalidMessageError, match="has a row without a value"):
        encoded(pa.record_batch({"payload": pa.array([b"x", b"y"], pa.binary()), column: hidden}))


@pytest.mark.parametrize("what", ["row", "value"])
def test_attributes_with_a_null_row_or_value_are_refused(what):
    """I2, I19."""
    kind = SCHEMA.field("attributes").type
    null_second = pa.py_buffer(bytes([0b01]))
    texts = pa.array(["a", "b"])
    items = pa.Array.from_buffers(pa.string(), 2, [null_second if what == "value" else None, *texts.buffers()[1:]])
    pairs = pa.StructArray.from_arrays([texts, items], fields=[kind.key_field, kind.item_field])
    starts = pa.py_buffer(np.array([0, 1, 2], np.int32))
    maps = pa.MapArray.from_buffers(kind, 2, [null_second if what == "row" else None, starts], children=[pairs])
    batch = pa.record_batch({"payload": pa.array([b"x", b"y"], pa.binary()), "attributes": maps})
    with pytest.raises(InvalidMessageError, match="attributes"):
        encoded(batch)
    assert encoded(batch.slice(0, 1)), "what is outside of the slice does not matter"
