"""Runs of frames as Arrow record batches and as message objects, without a Python loop per message.

`scan_run` checks bytes and counts what is in them; `batch_of` and `messages_of` lay out what it has checked;
`encode_columns` goes the other way. The hot loops are in `kernels`.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from ister.core.errors import CorruptLogError, InvalidMessageError
from ister.core.frames import kernels
from ister.core.frames.frame import (
    FIXED_BYTES,
    FLAG_ROUTING_KEY,
    FLAG_SCHEMA_ID,
    FLAG_SCHEMA_VERSION,
    HEADER,
    HEADER_BYTES,
    KIND_MESSAGE,
    decode_body,
)
from ister.core.message import NO_ATTRIBUTES, MsgID, StreamMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

Frames = bytes | bytearray | memoryview
"""A run of whole frames."""

NO_LIMIT = 2**63 - 1
FEW_ROWS = 4
"""Up to this number, messages are built one by one: that takes 4 us each, the arrays for a run take 25 us."""

SCHEMA = pa.schema(
    [
        pa.field("topic_offset", pa.int64(), nullable=False),
        pa.field("append_time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("publish_time", pa.uint64(), nullable=False),
        pa.field("producer_id", pa.uint64(), nullable=False),
        pa.field("request_id", pa.uint64(), nullable=False),
        pa.field("schema_id", pa.uint64()),
        pa.field("schema_version", pa.uint32()),
        pa.field("producer_name", pa.string(), nullable=False),
        pa.field("broker_addr", pa.string(), nullable=False),
        pa.field("routing_key", pa.string()),
        pa.field("attributes", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("frame_crc", pa.uint32(), nullable=False),
    ]
)
"""Every stored field of a message; `publish_time` is the client's raw milliseconds."""

ASSIGNED = frozenset({"topic_offset", "append_time", "frame_crc"})
"""The columns that the log assigns; in a batch to append they are ignored."""

REASONS = {
    kernels.NEED_MORE: "the frame is cut short",
    kernels.BAD_LENGTH: "the length is not possible",
    kernels.BAD_CRC: "the checksum does not match",
    kernels.NOT_DENSE: "the frame has another offset",
    kernels.UNKNOWN_KIND: "the kind or version is unknown",
    kernels.BAD_BODY: "what the body says cannot be",
    kernels.MISPLACED: "the marker belongs elsewhere",
}


class Chunk(NamedTuple):
    """A run of whole frames and the offsets [start, stop) in it."""

    frames: Frames
    start: int
    stop: int


class Scan(NamedTuple):
    """What `scan_run` found; the fields in the order of the S_ constants of `kernels`."""

    end: int
    next_offset: int
    code: int
    rows: int
    first_row: int
    name_bytes: int
    addr_bytes: int
    route_bytes: int
    entries: int
    key_bytes: int
    value_bytes: int
    payload_bytes: int
    synced_pos: int
    synced_offset: int
    append_time_us: int
    markers: int


def scan_run(
    data: Frames, *, first_offset: int = -1, limit: int = NO_LIMIT, wanted: int = 0, file_at: int = -1
) -> Scan:
    """Check frames until offset `limit`, the end, or the first that cannot be trusted.

    `file_at` is where the data stands in its log file, when it is from one: markers are checked against it.
    """
    out = np.empty(kernels.SCAN_FIELDS, np.int64)
    kernels.scan(byte_view(data), 0, len(data), first_offset, limit, wanted, file_at, out)
    return Scan._make(out.tolist())


def decode_batch(data: Frames, *, first_offset: int = -1, source: str = "frames") -> pa.RecordBatch:
    """Decode a run of whole frames, every CRC checked, to one record batch of SCHEMA."""
    return batch_of(data, _whole(data, first_offset, source))


def decode_messages(
    data: Frames, *, first_offset: int = -1, topic_name: str = "", source: str = "frames"
) -> list[StreamMessage]:
    """Decode a run of whole frames, every CRC checked, to messages."""
    return messages_of(data, _whole(data, first_offset, source), topic_name, source)


def batch_of(data: Frames, scan: Scan) -> pa.RecordBatch:
    """Lay out the rows of a scan as a record batch of SCHEMA."""
    rows = scan.rows
    fixed = np.empty((6, rows), np.uint64)
    narrow = np.empty((3, rows), np.uint32)
    texts = tuple(
        (_starts(count), np.empty(size, np.uint8))
        for count, size in (
            (rows, scan.name_bytes),
            (rows, scan.addr_bytes),
            (rows, scan.route_bytes),
            (scan.entries, scan.key_bytes),
            (scan.entries, scan.value_bytes),
        )
    )
    payload = (_starts(rows), np.empty(scan.payload_bytes, np.uint8))
    map_at = _starts(rows)
    kernels.fill(byte_view(data), scan.first_row, rows, fixed, narrow, texts, *payload, map_at)
    (name, addr, route, key, value) = texts
    flags = narrow[1]
    entries = pa.StructArray.from_buffers(
        pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())]),
        scan.entries,
        [None],
        children=[_text(scan.entries, key), _text(scan.entries, value)],
    )
    attributes = pa.MapArray.from_buffers(
        SCHEMA.field("attributes").type, rows, [None, pa.py_buffer(map_at)], children=[entries]
    )
    return pa.RecordBatch.from_arrays(
        [
            _numbers(pa.int64(), fixed[0]),
            _numbers(SCHEMA.field("append_time").type, fixed[1]),
            _numbers(pa.uint64(), fixed[2]),
            _numbers(pa.uint64(), fixed[3]),
            _numbers(pa.uint64(), fixed[4]),
            _numbers(pa.uint64(), fixed[5], flags & FLAG_SCHEMA_ID),
            _numbers(pa.uint32(), narrow[0], flags & FLAG_SCHEMA_VERSION),
            _text(rows, name),
            _text(rows, addr),
            _text(rows, route, flags & FLAG_ROUTING_KEY),
            attributes,
            pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(payload[0]), pa.py_buffer(payload[1])]),
            _numbers(pa.uint32(), narrow[2]),
        ],
        schema=SCHEMA,
    )


def messages_of(data: Frames, scan: Scan, topic_name: str, source: str) -> list[StreamMessage]:
    """Build the messages of a scan; `source` names the place if a text in one of them is not UTF-8."""
    first = scan.next_offset - scan.rows
    try:
        return messages_in(Chunk(data, first, scan.next_offset), topic_name, at=scan.first_row)
    except ValueError as error:
        raise CorruptLogError(source, max(0, scan.first_row), first, str(error)) from None


def messages_in(chunk: Chunk, topic_name: str, *, at: int = 0) -> list[StreamMessage]:
    """Build the messages of checked frames, the first of which stands at `at`; ValueError when a text is not UTF-8.

    The common kind of message is built through C-speed maps, one with optional parts by itself.
    """
    data, first, stop = chunk
    rows = stop - first
    if rows <= FEW_ROWS:
        return _few_messages(data, at, first, rows, topic_name)
    raw = bytes(data)
    wide = np.empty((4, rows), np.uint64)
    places = np.empty((3, rows), np.int64)
    runs = np.empty(rows, np.int64)
    run_count = kernels.locate(byte_view(data), at, rows, wide, places, runs)
    bodies, starts, stops = places.tolist()
    times = wide[0].view(np.int64).tolist()
    published, producers, requests = wide[1].tolist(), wide[2].tolist(), wide[3].tolist()
    names, addrs = _run_names(raw, np.abs(places[0]), runs, run_count)
    payloads = map(raw.__getitem__, map(slice, starts, stops))
    offsets = range(first, stop)
    make = tuple.__new__
    ids = map(make, repeat(MsgID), zip(producers, repeat(topic_name), addrs, offsets))  # repeat has no end
    messages: list[StreamMessage] = list(
        map(
            make,
            repeat(StreamMessage),
            zip(  # repeat has no end
                payloads,
                ids,
                requests,
                published,
                names,
                repeat(""),
                repeat(NO_ATTRIBUTES),
                repeat(None),
                repeat(None),
                repeat(None),
                times,
            ),
        )
    )
    if places[0].min() < 0:
        view = memoryview(raw)
        for row in np.flatnonzero(places[0] < 0).tolist():
            messages[row] = decode_body(view[-bodies[row] : stops[row]], offsets[row], topic_name)
    return messages


def _few_messages(data: Frames, at: int, first: int, rows: int, topic_name: str) -> list[StreamMessage]:
    view = memoryview(data)
    found: list[StreamMessage] = []
    while len(found) < rows:
        _, length, _ = HEADER.unpack_from(view, at)
        body = view[at + HEADER_BYTES : at + HEADER_BYTES + length]
        if body[0] == KIND_MESSAGE:
            found.append(decode_body(body, first + len(found), topic_name))
        at += HEADER_BYTES + length
    return found


def encode_columns(batch: pa.RecordBatch, offset: int, append_time_us: int, *, bytes_max: int) -> Iterator[Chunk]:
    """Encode a record batch as sealed frames, in chunks of about `bytes_max`, offsets counting up from `offset`.

    Everything is checked before the first chunk is given out: a batch that cannot be stored leaves nothing behind.
    """
    rows = batch.num_rows
    columns = _columns(_castable(batch), rows)
    ends, bad = _measure(columns, rows)
    if bad >= 0:
        raise InvalidMessageError(
            "batch", f"row {bad} is too large: 64 MiB a message, 65535 bytes a name, key or count of attributes"
        )
    offsets = np.arange(offset, offset + rows, dtype=np.int64)
    times = np.full(rows, append_time_us, np.int64)
    return _chunks(rows, ends, columns, offsets, times, bytes_max)


def rebuild_frames(batch: pa.RecordBatch) -> tuple[Chunk, int]:
    """Write rows of SCHEMA, dense and in order, as the frames they came from; return them, and the first row that differs.

    A row differs when its frame has not the checksum that its `frame_crc` remembers: some value of it is another one. -1 when
    none does.
    """
    rows = batch.num_rows
    columns = _columns({name: batch.column(name) for name in SCHEMA.names if name not in ASSIGNED}, rows)
    ends, bad = _measure(columns, rows)
    if bad >= 0:
        return Chunk(b"", 0, 0), bad
    offsets = _flat(batch.column("topic_offset"))
    times = _flat(batch.column("append_time").cast(pa.int64()))
    out = _build(0, rows, columns, offsets, times, int(ends[-1]) if rows else 0)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if rows else ends
    found = out[starts[:, None] + np.arange(12, 16)].copy().view("<u4").ravel()
    differing = np.flatnonzero(found != _flat(batch.column("frame_crc")))
    first = int(offsets[0]) if rows else 0
    return Chunk(out.data, first, first + rows), int(differing[0]) if len(differing) else -1


def check_rows(batch: pa.RecordBatch) -> tuple[Chunk, int]:
    """Do the check of `rebuild_frames` alone: the chunk has the offsets, and no frames."""
    rows = batch.num_rows
    columns = _columns({name: batch.column(name) for name in SCHEMA.names if name not in ASSIGNED}, rows)
    ends, bad = _measure(columns, rows)
    offsets = _flat(batch.column("topic_offset"))
    first = int(offsets[0]) if rows else 0
    if bad < 0:
        times = _flat(batch.column("append_time").cast(pa.int64()))
        crcs = _flat(batch.column("frame_crc"))
        scratch = np.empty(12 + FIXED_BYTES, np.uint8)
        bad = kernels.check(rows, _readonly(offsets), _readonly(times), *columns, _readonly(crcs), ends, scratch)
    return Chunk(b"", first, first + rows), bad


def strip_markers(data: Frames) -> bytes:
    """Return checked frames without their markers."""
    out = np.empty(len(data), np.uint8)
    return out[: kernels.strip(byte_view(data), 0, len(data), out)].tobytes()


def corrupt(source: str, byte: int, expected_offset: int, code: int) -> CorruptLogError:
    """Return the error for the damage that a scan has found."""
    return CorruptLogError(source, byte, expected_offset, REASONS[code])


class _Columns(NamedTuple):
    fixed: np.ndarray
    narrow: np.ndarray
    texts: tuple[tuple[np.ndarray, np.ndarray], ...]
    payload_at: np.ndarray
    payload_data: np.ndarray
    map_at: np.ndarray


def _measure(columns: _Columns, rows: int) -> tuple[np.ndarray, int]:
    """Return where each row's frame will stop, and the first row that breaks a limit, or -1."""
    ends = np.empty(rows, np.int64)
    starts = tuple(at for at, _ in columns.texts)
    return ends, kernels.measure(rows, columns.narrow, starts, columns.payload_at, columns.map_at, ends)


def _chunks(
    rows: int, ends: np.ndarray, columns: _Columns, offsets: np.ndarray, times: np.ndarray, bytes_max: int
) -> Iterator[Chunk]:
    row = 0
    offset = int(offsets[0]) if rows else 0
    done = 0
    while row < rows:
        stop = max(row + 1, int(np.searchsorted(ends, done + bytes_max, side="right")))
        out = _build(row, stop, columns, offsets, times, int(ends[stop - 1]) - done)
        yield Chunk(out.data, offset + row, offset + stop)
        done = int(ends[stop - 1])
        row = stop


def _build(row: int, stop: int, columns: _Columns, offsets: np.ndarray, times: np.ndarray, size: int) -> np.ndarray:
    """Return the frames of rows [row, stop), which have the size that was measured."""
    out = np.empty(size, np.uint8)
    built = kernels.build(row, stop, _readonly(offsets), _readonly(times), *columns, out)
    assert built == size, "frames have the size that was measured"
    return out


def _whole(data: Frames, first_offset: int, source: str) -> Scan:
    scan = scan_run(data, first_offset=first_offset)
    if scan.code != kernels.OK:
        raise corrupt(source, scan.end, scan.next_offset, scan.code)
    return scan


def byte_view(data: Frames) -> np.ndarray:
    """Return bytes as a read-only array: one type for numba."""
    view = np.frombuffer(data, np.uint8)
    view.flags.writeable = False
    return view


def _starts(count: int) -> np.ndarray:
    starts = np.empty(count + 1, np.int32)
    starts[0] = 0
    return starts


def _validity(present: np.ndarray | None) -> pa.Buffer | None:
    if present is None or present.all():
        return None
    return pa.py_buffer(np.packbits(present != 0, bitorder="little"))


def _numbers(kind: pa.DataType, values: np.ndarray, present: np.ndarray | None = None) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [_validity(present), pa.py_buffer(values)])


def _text(rows: int, text: tuple[np.ndarray, np.ndarray], present: np.ndarray | None = None) -> pa.Array:
    return pa.Array.from_buffers(pa.string(), rows, [_validity(present), pa.py_buffer(text[0]), pa.py_buffer(text[1])])


def _run_names(raw: bytes, bodies: np.ndarray, runs: np.ndarray, count: int) -> tuple[Iterator[str], Iterator[str]]:
    """Decode each run's producer name and broker address once, and repeat them for its rows."""
    firsts = np.searchsorted(runs, np.arange(count)).tolist()
    names: list[str] = []
    addrs: list[str] = []
    for first in firsts:
        body = int(bodies[first])
        name_at = body + FIXED_BYTES
        addr_at = name_at + int.from_bytes(raw[body + 48 : body + 50], "little")
        stop = addr_at + int.from_bytes(raw[body + 50 : body + 52], "little")
        names.append(str(raw[name_at:addr_at], "utf-8"))
        addrs.append(str(raw[addr_at:stop], "utf-8"))
    if count == 1:
        return repeat(names[0]), repeat(addrs[0])
    of = runs.tolist()
    return map(names.__getitem__, of), map(addrs.__getitem__, of)


def _castable(batch: pa.RecordBatch) -> dict[str, pa.Array | None]:
    """Return the columns of a caller's batch, each checked and cast to its type; None for a missing one."""
    unknown = sorted(set(batch.schema.names) - set(SCHEMA.names))
    if unknown:
        raise InvalidMessageError("batch", f"has columns that a message does not: {', '.join(unknown)}")
    if len(set(batch.schema.names)) != len(batch.schema.names):
        raise InvalidMessageError("batch", "has two columns of the same name")
    if "payload" not in batch.schema.names:
        raise InvalidMessageError("batch", "has no column payload")
    return {name: _cast(batch, name) for name in SCHEMA.names if name not in ASSIGNED}


def _columns(cast: dict[str, pa.Array | None], rows: int) -> _Columns:
    """Lay columns out for the kernels."""
    fixed = np.empty((4, rows), np.uint64)
    for row, name in enumerate(("publish_time", "producer_id", "request_id", "schema_id")):
        fixed[row] = _values(cast[name], rows, np.uint64)
    narrow = np.zeros((2, rows), np.uint32)
    narrow[0] = _values(cast["schema_version"], rows, np.uint32)
    for name, flag in (
        ("schema_id", FLAG_SCHEMA_ID),
        ("schema_version", FLAG_SCHEMA_VERSION),
        ("routing_key", FLAG_ROUTING_KEY),
    ):
        column = cast[name]
        if column is not None and column.null_count == 0:
            narrow[1] |= np.uint32(flag)
        elif column is not None and column.null_count < rows:
            narrow[1] |= _flat(column.is_valid().cast(pa.uint32())) * np.uint32(flag)
    attributes = cast["attributes"]
    if attributes is None or not rows:
        map_at, keys, items = np.zeros(rows + 1, np.int32), _nothing(0), _nothing(0)
    else:
        map_at = np.frombuffer(attributes.buffers()[1], np.int32)[attributes.offset : attributes.offset + rows + 1]
        pairs = attributes.values  # `attributes.keys` ignores the offset of its entries
        if pairs.field(1).slice(map_at[0], map_at[-1] - map_at[0]).null_count:
            raise InvalidMessageError("attributes", "has an entry without a value")
        keys, items = _parts(pairs.field(0)), _parts(pairs.field(1))
    texts = (
        *(
            _parts(column) if (column := cast[name]) is not None else _nothing(rows)
            for name in ("producer_name", "broker_addr", "routing_key")
        ),
        keys,
        items,
    )
    return _Columns(fixed, narrow, texts, *_parts(cast["payload"]), _readonly(map_at))


def _cast(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    if name not in batch.schema.names:
        return None
    field = SCHEMA.field(name)
    try:
        column = batch.column(name).cast(field.type)
        column.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidMessageError(name, f"cannot be stored as {field.type}: {error}") from None
    if not field.nullable and column.null_count:
        raise InvalidMessageError(name, "has a row without a value")
    return column


def _values(column: pa.Array | None, rows: int, kind: type) -> np.ndarray:
    if column is None:
        return np.zeros(rows, kind)
    if not column.null_count:
        return _flat(column)
    values: np.ndarray = _flat(column) * _flat(column.is_valid().cast(column.type))
    return values


def _flat(column: pa.Array) -> np.ndarray:
    """Return a column of numbers as it lies in memory, anything for nulls; Arrow's own way imports pandas, 35 MB of it."""
    _, data = column.buffers()
    kind: type = column.type.to_pandas_dtype()
    return np.frombuffer(data if data is not None else b"", kind)[column.offset : column.offset + len(column)]


def _parts(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    _, starts, data = column.buffers()
    if starts is None or not len(column):
        return _nothing(len(column))
    at = np.frombuffer(starts, np.int32)[column.offset : column.offset + len(column) + 1]
    return _readonly(at), _readonly(np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8))


def _nothing(rows: int) -> tuple[np.ndarray, np.ndarray]:
    return _readonly(np.zeros(rows + 1, np.int32)), _readonly(np.empty(0, np.uint8))


def _readonly(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False  # one type for numba
    return view
