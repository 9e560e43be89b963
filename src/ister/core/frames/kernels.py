"""The loops over frames that numba compiles: check, take apart and build a run of frames.

Every function works on plain numpy arrays and allocates nothing. Only `scan` checks bytes; the others trust
what it has checked. Numbers are read from unaligned bytes through small intrinsics, because a numpy view would have
to be made per field.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ister.core.frames.frame import (
    BODY_BYTES_MAX,
    FIXED_BYTES,
    FLAG_ROUTING_KEY,
    HEADER_BYTES,
    KIND_MARKER,
    KIND_MESSAGE,
    MARKER,
    VERSION,
)

# Why `scan` stopped.
OK, NEED_MORE, BAD_LENGTH, BAD_CRC, NOT_DENSE, UNKNOWN_KIND, BAD_BODY, MISPLACED = range(8)

# The fields of the result of `scan`, in order.
SCAN_FIELDS = 16
S_END, S_NEXT, S_CODE, S_ROWS, S_FIRST_ROW, S_NAME, S_ADDR, S_ROUTE = range(8)
S_ENTRIES, S_KEY, S_VALUE, S_PAYLOAD, S_SYNCED_POS, S_SYNCED_OFFSET, S_APPEND_TIME, S_MARKERS = range(8, SCAN_FIELDS)

_MARKER_BYTES = MARKER.size
_ATTRIBUTE_HEAD = 6


def _crc_tables() -> np.ndarray:
    tables = np.zeros((16, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
        tables[0, byte] = crc
    for row in range(1, 16):
        before = tables[row - 1]
        tables[row] = (before >> 8) ^ tables[0][before & 0xFF]
    return tables


_T = _crc_tables()


def _loader(bits: int, result: types.Type) -> Any:
    @intrinsic
    def load(typing_context, array, at):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, ARG001
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            data = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0]).data
            place = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(bits).as_pointer())
            value = builder.load(place)
            value.align = 1
            return value

        return result(array, types.int64), generate

    return load


def _storer(bits: int) -> Any:
    @intrinsic
    def store(typing_context, array, at, value):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, ARG001
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            data = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0]).data
            place = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(bits).as_pointer())
            narrow = args[2] if bits == 64 else builder.trunc(args[2], ir.IntType(bits))  # the value's own
            builder.store(narrow, place, align=1)
            return context.get_dummy_value()

        return types.void(array, types.int64, types.uint64), generate

    return store


_put16, _put32, _put64 = _storer(16), _storer(32), _storer(64)
"""Little-endian, as are all machines that numba knows."""

_u16 = _loader(16, types.uint16)
_u32 = _loader(32, types.uint32)
_u64 = _loader(64, types.uint64)


@intrinsic
def _copy_bytes(typing_context, into, into_at, source, source_at, count):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, ARG001
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        target = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0]).data
        origin = cgutils.create_struct_proxy(signature.args[2])(context, builder, args[2]).data
        cgutils.raw_memcpy(builder, builder.gep(target, [args[1]]), builder.gep(origin, [args[3]]), args[4], 1)
        return context.get_dummy_value()

    return types.void(into, types.int64, source, types.int64, types.int64), generate


_copy: Any = _copy_bytes


@njit(nogil=True, cache=True)
def crc32(buf, at, count, crc):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return zlib's crc32, sixteen bytes a step; twice as fast here as calling libz."""
    c = np.uint32(~np.uint32(crc))
    stop = at + count
    while at + 16 <= stop:
        a = _u64(buf, at) ^ np.uint64(c)
        b = _u64(buf, at + 8)
        c = np.uint32(
            _T[15, a & 0xFF] ^ _T[14, (a >> 8) & 0xFF] ^ _T[13, (a >> 16) & 0xFF] ^ _T[12, (a >> 24) & 0xFF]
            ^ _T[11, (a >> 32) & 0xFF] ^ _T[10, (a >> 40) & 0xFF] ^ _T[9, (a >> 48) & 0xFF] ^ _T[8, (a >> 56) & 0xFF]
            ^ _T[7, b & 0xFF] ^ _T[6, (b >> 8) & 0xFF] ^ _T[5, (b >> 16) & 0xFF] ^ _T[4, (b >> 24) & 0xFF]
            ^ _T[3, (b >> 32) & 0xFF] ^ _T[2, (b >> 40) & 0xFF] ^ _T[1, (b >> 48) & 0xFF] ^ _T[0, (b >> 56) & 0xFF]
        )  # fmt: skip
        at += 16
    if at + 8 <= stop:
        a = _u64(buf, at) ^ np.uint64(c)
        c = np.uint32(
            _T[7, a & 0xFF] ^ _T[6, (a >> 8) & 0xFF] ^ _T[5, (a >> 16) & 0xFF] ^ _T[4, (a >> 24) & 0xFF]
            ^ _T[3, (a >> 32) & 0xFF] ^ _T[2, (a >> 40) & 0xFF] ^ _T[1, (a >> 48) & 0xFF] ^ _T[0, (a >> 56) & 0xFF]
        )  # fmt: skip
        at += 8
    if at + 4 <= stop:
        d = _u32(buf, at) ^ c
        c = np.uint32(_T[3, d & 0xFF] ^ _T[2, (d >> 8) & 0xFF] ^ _T[1, (d >> 16) & 0xFF] ^ _T[0, (d >> 24) & 0xFF])
        at += 4
    while at < stop:
        c = np.uint32(_T[0, (c ^ np.uint32(buf[at])) & np.uint32(0xFF)] ^ (c >> np.uint32(8)))
        at += 1
    return np.uint32(~c)


@njit(nogil=True, cache=True)
def frame_crc(buf, at, length):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return the CRC of the frame at `at`: offset and length, then the body."""
    return crc32(buf, at + HEADER_BYTES, length, crc32(buf, at, 12, np.uint32(0)))


@njit(nogil=True, cache=True)
def seal(buf, stop):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Fill in the CRC of every frame in buf[0:stop], which we have just encoded."""
    at = np.int64(0)
    while at < stop:
        length = np.int64(_u32(buf, at + 8))
        crc = frame_crc(buf, at, length)
        for k in range(4):
            buf[at + 12 + k] = np.uint8((crc >> np.uint32(8 * k)) & np.uint32(0xFF))
        at += HEADER_BYTES + length


@njit(nogil=True, cache=True)
def scan(buf, at, stop, expected, limit, wanted, base, out):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Check every frame of buf[at:stop] until the limit offset, the end, or the first that cannot be trusted.

    `expected` is the offset that must come first (-1: any). Messages from `wanted` on are counted as rows and
    their parts summed, so that a second pass can fill arrays of exactly the right size. `base` is where buf[0] stands
    in its log file (-1: not known); a marker there must say where it stands and attest nothing that comes after it.
    """
    out[:] = 0
    code = OK
    out[S_FIRST_ROW] = -1
    out[S_SYNCED_POS] = -1
    while at < stop and expected != limit:
        if stop - at < HEADER_BYTES:
            code = NEED_MORE
            break
        length = np.int64(_u32(buf, at + 8))
        if length < 1 or length > BODY_BYTES_MAX:
            code = BAD_LENGTH
            break
        if stop - at < HEADER_BYTES + length:
            code = NEED_MORE
            break
        if frame_crc(buf, at, length) != _u32(buf, at + 12):
            code = BAD_CRC
            break
        body = at + HEADER_BYTES
        kind = buf[body]
        if length < 2 or buf[body + 1] != VERSION or (kind not in (KIND_MESSAGE, KIND_MARKER)):
            code = UNKNOWN_KIND
            break
        offset = np.int64(_u64(buf, at))
        if offset < 0 or (expected >= 0 and offset != expected):
            code = NOT_DENSE
            break
        if kind == KIND_MARKER:
            if length != _MARKER_BYTES:
                code = BAD_BODY
                break
            out[S_MARKERS] += 1
            synced_pos = np.int64(_u64(buf, body + 32))
            stands = np.int64(_u64(buf, body + 16))
            if base >= 0 and stands != base + at:
                code = MISPLACED
                break
            if base >= 0 and (synced_pos > stands or _u64(buf, body + 24) > _u64(buf, at)):
                code = BAD_BODY
                break
            if synced_pos > out[S_SYNCED_POS]:
                out[S_SYNCED_POS] = synced_pos
                out[S_SYNCED_OFFSET] = np.int64(_u64(buf, body + 24))
            expected = offset
        else:
            if length < FIXED_BYTES:
                code = BAD_BODY
                break
            name = np.int64(_u16(buf, body + 48))
            addr = np.int64(_u16(buf, body + 50))
            route = np.int64(_u16(buf, body + 52))
            count = np.int64(_u16(buf, body + 54))
            attributes = np.int64(_u32(buf, body + 56))
            payload = np.int64(_u32(buf, body + 60))
            if FIXED_BYTES + name + addr + route + attributes + payload != length:
                code = BAD_BODY
                break
            keys = np.int64(0)
            values = np.int64(0)
            entry = body + FIXED_BYTES + name + addr + route
            entries_stop = entry + attributes
            for _ in range(count):
                if entry + _ATTRIBUTE_HEAD > entries_stop:
                    entry = np.int64(-1)
                    break
                key = np.int64(_u16(buf, entry))
                value = np.int64(_u32(buf, entry + 2))
                keys += key
                values += value
                entry += _ATTRIBUTE_HEAD + key + value
                if entry > entries_stop:
                    break
            if entry != entries_stop:
                code = BAD_BODY
                break
            expected = offset + 1
            out[S_APPEND_TIME] = np.int64(_u64(buf, body + 8))
            if offset >= wanted:
                if out[S_ROWS] == 0:
                    out[S_FIRST_ROW] = at
                out[S_ROWS] += 1
                out[S_NAME] += name
                out[S_ADDR] += addr
                out[S_ROUTE] += route
                out[S_ENTRIES] += count
                out[S_KEY] += keys
                out[S_VALUE] += values
                out[S_PAYLOAD] += payload
        at += HEADER_BYTES + length
    out[S_END] = at
    out[S_NEXT] = expected
    out[S_CODE] = code


@njit(nogil=True, cache=True)
def survey(buf, stop, expected, limit, stride, places, out):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Check buf[0:stop] like `scan`, a stride at a time, and note (offset, byte) where a stride begins with a message.

    One call for a whole object: a thread that takes Python's lock for every stride delays the event loop. Returns how
    many places there are; `out` is that of `scan`, of which only the end, the next offset, the code and the append time
    are for the whole.
    """
    at = np.int64(0)
    count = 0
    append_time = np.int64(0)
    code = OK
    window = np.int64(stride)
    while at < stop and expected != limit:
        scan(buf, at, min(stop, at + window), expected, limit, 0, -1, out)
        code = out[S_CODE]
        if out[S_END] == at:
            if code != NEED_MORE or at + window >= stop or stop - at < HEADER_BYTES:
                break
            window = HEADER_BYTES + np.int64(_u32(buf, at + 8))
            continue
        if out[S_ROWS] and at >= count * stride and count < places.shape[0]:
            places[count, 0] = expected
            places[count, 1] = at
            count += 1
        at = out[S_END]
        expected = out[S_NEXT]
        if out[S_APPEND_TIME]:
            append_time = out[S_APPEND_TIME]
        window = np.int64(stride)
        if code not in (OK, NEED_MORE):
            break
    out[S_END] = at
    out[S_NEXT] = expected
    out[S_CODE] = code
    out[S_APPEND_TIME] = append_time
    return count


@njit(nogil=True, cache=True)
def fill(buf, at, rows, fixed, narrow, texts, payload_at, payload_data, map_at):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Lay `rows` checked messages out as columns.

    fixed: u64[6, rows] offset, append_time, publish_time, producer_id, request_id, schema_id.
    narrow: u32[3, rows] schema_version, flags, crc. texts: name, addr, route, key, value, each (offsets, bytes).
    """
    (name_at, name_data), (addr_at, addr_data), (route_at, route_data), (key_at, key_data), (value_at, value_data) = (
        texts
    )
    row = 0
    entry = 0
    while row < rows:
        length = np.int64(_u32(buf, at + 8))
        body = at + HEADER_BYTES
        if buf[body] == KIND_MESSAGE:
            fixed[0, row] = _u64(buf, at)
            fixed[1, row] = _u64(buf, body + 8)
            fixed[2, row] = _u64(buf, body + 16)
            fixed[3, row] = _u64(buf, body + 24)
            fixed[4, row] = _u64(buf, body + 32)
            fixed[5, row] = _u64(buf, body + 40)
            narrow[0, row] = _u32(buf, body + 4)
            narrow[1, row] = np.uint32(_u16(buf, body + 2))
            narrow[2, row] = _u32(buf, at + 12)
            count = np.int64(_u16(buf, body + 54))
            size = np.int64(_u16(buf, body + 48))
            part = body + FIXED_BYTES
            _copy(name_data, np.int64(name_at[row]), buf, part, size)
            name_at[row + 1] = name_at[row] + size
            part += size
            size = np.int64(_u16(buf, body + 50))
            _copy(addr_data, np.int64(addr_at[row]), buf, part, size)
            addr_at[row + 1] = addr_at[row] + size
            part += size
            size = np.int64(_u16(buf, body + 52))
            _copy(route_data, np.int64(route_at[row]), buf, part, size)
            route_at[row + 1] = route_at[row] + size
            part += size
            for _ in range(count):
                key = np.int64(_u16(buf, part))
                value = np.int64(_u32(buf, part + 2))
                part += _ATTRIBUTE_HEAD
                _copy(key_data, np.int64(key_at[entry]), buf, part, key)
                key_at[entry + 1] = key_at[entry] + key
                part += key
                _copy(value_data, np.int64(value_at[entry]), buf, part, value)
                value_at[entry + 1] = value_at[entry] + value
                part += value
                entry += 1
            map_at[row + 1] = entry
            size = np.int64(_u32(buf, body + 60))
            _copy(payload_data, np.int64(payload_at[row]), buf, part, size)
            payload_at[row + 1] = payload_at[row] + size
            row += 1
        at += HEADER_BYTES + length


@njit(nogil=True, cache=True)
def locate(buf, at, rows, wide, places, runs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Say where the parts of `rows` checked messages are, for building message objects.

    wide: u64[4, rows] append_time, publish_time, producer_id, request_id. places: i64[3, rows] body start (negative:
    the message has optional parts), payload start, payload stop. runs[row] counts up each time the pair of producer
    name and broker address differs from the row before; returns how many runs there are.
    """
    row = 0
    run = -1
    before = np.int64(-1)
    before_bytes = np.int64(0)
    before_names = np.int64(0)
    while row < rows:
        length = np.int64(_u32(buf, at + 8))
        body = at + HEADER_BYTES
        if buf[body] == KIND_MESSAGE:
            wide[0, row] = _u64(buf, body + 8)
            wide[1, row] = _u64(buf, body + 16)
            wide[2, row] = _u64(buf, body + 24)
            wide[3, row] = _u64(buf, body + 32)
            names = np.int64(_u32(buf, body + 48))
            size = np.int64(_u16(buf, body + 48)) + np.int64(_u16(buf, body + 50))
            start = body + FIXED_BYTES
            same = before >= 0 and names == before_names and size == before_bytes
            k = 0
            while same and k < size:
                same = buf[start + k] == buf[before + k]
                k += 1
            if not same:
                run += 1
            runs[row] = run
            before = start
            before_bytes = size
            before_names = names
            payload = np.int64(_u32(buf, body + 60))
            plain = _u16(buf, body + 2) == 0 and _u16(buf, body + 54) == 0
            places[0, row] = body if plain else -body
            places[1, row] = body + length - payload
            places[2, row] = body + length
            row += 1
        at += HEADER_BYTES + length
    return run + 1


@njit(nogil=True, cache=True)
def strip(buf, at, stop, out):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Copy the checked frames of buf[at:stop] without their markers; returns how many bytes that is."""
    written = np.int64(0)
    while at < stop:
        size = HEADER_BYTES + np.int64(_u32(buf, at + 8))
        if buf[at + HEADER_BYTES] == KIND_MESSAGE:
            _copy(out, written, buf, at, size)
            written += size
        at += size
    return written


@njit(nogil=True, cache=True)
def _route_bytes(narrow, route_at, row):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return how many bytes of a routing key are stored: none for a null, whatever bytes Arrow has under it."""
    return np.int64(route_at[row + 1] - route_at[row]) if narrow[1, row] & FLAG_ROUTING_KEY else np.int64(0)


@njit(nogil=True, cache=True)
def measure(rows, narrow, texts, payload_at, map_at, ends):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Fill ends[row] with where each row's frame will stop; returns the first row that breaks a limit, or -1."""
    name_at, addr_at, route_at, key_at, value_at = texts
    total = np.int64(0)
    for row in range(rows):
        name = np.int64(name_at[row + 1] - name_at[row])
        addr = np.int64(addr_at[row + 1] - addr_at[row])
        route = _route_bytes(narrow, route_at, row)
        count = np.int64(map_at[row + 1] - map_at[row])
        attributes = np.int64(0)
        for entry in range(map_at[row], map_at[row + 1]):
            key = np.int64(key_at[entry + 1] - key_at[entry])
            if key > 0xFFFF:
                return row
            attributes += _ATTRIBUTE_HEAD + key + np.int64(value_at[entry + 1] - value_at[entry])
        body = FIXED_BYTES + name + addr + route + attributes + np.int64(payload_at[row + 1] - payload_at[row])
        if name > 0xFFFF or addr > 0xFFFF or route > 0xFFFF or count > 0xFFFF or body > BODY_BYTES_MAX:
            return row
        total += HEADER_BYTES + body
        ends[row] = total
    return -1


@njit(nogil=True, cache=True)
def build(row, stop_row, offsets, times, fixed, narrow, texts, payload_at, payload_data, map_at, out):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Write rows [row, stop_row) as sealed frames into `out`, each with its own offset and append time; returns their size.

    fixed: u64[4, rows] publish_time, producer_id, request_id, schema_id. narrow: u32[2, rows] schema_version, flags.
    """
    (name_at, name_data), (addr_at, addr_data), (route_at, route_data), (key_at, key_data), (value_at, value_data) = (
        texts
    )
    at = np.int64(0)
    while row < stop_row:
        body = at + HEADER_BYTES
        part = body + FIXED_BYTES
        name = np.int64(name_at[row + 1] - name_at[row])
        _copy(out, part, name_data, np.int64(name_at[row]), name)
        part += name
        addr = np.int64(addr_at[row + 1] - addr_at[row])
        _copy(out, part, addr_data, np.int64(addr_at[row]), addr)
        part += addr
        route = _route_bytes(narrow, route_at, row)
        _copy(out, part, route_data, np.int64(route_at[row]), route)
        part += route
        attributes = part
        for entry in range(map_at[row], map_at[row + 1]):
            key = np.int64(key_at[entry + 1] - key_at[entry])
            value = np.int64(value_at[entry + 1] - value_at[entry])
            _put16(out, part, np.uint64(key))
            _put32(out, part + 2, np.uint64(value))
            part += _ATTRIBUTE_HEAD
            _copy(out, part, key_data, np.int64(key_at[entry]), key)
            part += key
            _copy(out, part, value_data, np.int64(value_at[entry]), value)
            part += value
        attributes = part - attributes
        payload = np.int64(payload_at[row + 1] - payload_at[row])
        _copy(out, part, payload_data, np.int64(payload_at[row]), payload)
        part += payload
        out[body] = KIND_MESSAGE
        out[body + 1] = VERSION
        _put16(out, body + 2, np.uint64(narrow[1, row]))
        _put32(out, body + 4, np.uint64(narrow[0, row]))
        _put64(out, body + 8, np.uint64(times[row]))
        for k in range(4):
            _put64(out, body + 16 + 8 * k, fixed[k, row])
        _put16(out, body + 48, np.uint64(name))
        _put16(out, body + 50, np.uint64(addr))
        _put16(out, body + 52, np.uint64(route))
        _put16(out, body + 54, np.uint64(map_at[row + 1] - map_at[row]))
        _put32(out, body + 56, np.uint64(attributes))
        _put32(out, body + 60, np.uint64(payload))
        length = part - body
        _put64(out, at, np.uint64(offsets[row]))
        _put32(out, at + 8, np.uint64(length))
        _put32(out, at + 12, np.uint64(frame_crc(out, at, length)))
        at = part
        row += 1
    return at


@njit(nogil=True, cache=True)
def _check_text(data, starts, row, crc):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    at = np.int64(starts[row])
    return crc32(data, at, np.int64(starts[row + 1]) - at, crc)


@njit(nogil=True, cache=True)
def check(rows, offsets, times, fixed, narrow, texts, payload_at, payload_data, map_at, crcs, ends, scratch):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return the first row whose frame would not have the checksum in `crcs`, or -1; writes no frame.

    The columns are those of `build`; `ends` is what `measure` found. `scratch` has room for a header and the fixed part.
    """
    (name_at, name_data), (addr_at, addr_data), (route_at, route_data), (key_at, key_data), (value_at, value_data) = (
        texts
    )
    begin = np.int64(0)
    for row in range(rows):
        length = ends[row] - begin - HEADER_BYTES
        begin = ends[row]
        attributes = np.int64(0)
        for entry in range(map_at[row], map_at[row + 1]):
            key = np.int64(key_at[entry + 1] - key_at[entry])
            attributes += _ATTRIBUTE_HEAD + key + np.int64(value_at[entry + 1] - value_at[entry])
        route = _route_bytes(narrow, route_at, row)
        _put64(scratch, 0, np.uint64(offsets[row]))
        _put32(scratch, 8, np.uint64(length))
        scratch[12] = KIND_MESSAGE
        scratch[13] = VERSION
        _put16(scratch, 14, np.uint64(narrow[1, row]))
        _put32(scratch, 16, np.uint64(narrow[0, row]))
        _put64(scratch, 20, np.uint64(times[row]))
        for k in range(4):
            _put64(scratch, 28 + 8 * k, fixed[k, row])
        _put16(scratch, 60, np.uint64(name_at[row + 1] - name_at[row]))
        _put16(scratch, 62, np.uint64(addr_at[row + 1] - addr_at[row]))
        _put16(scratch, 64, np.uint64(route))
        _put16(scratch, 66, np.uint64(map_at[row + 1] - map_at[row]))
        _put32(scratch, 68, np.uint64(attributes))
        _put32(scratch, 72, np.uint64(payload_at[row + 1] - payload_at[row]))
        crc = crc32(scratch, 0, 12 + FIXED_BYTES, np.uint32(0))
        crc = _check_text(name_data, name_at, row, crc)
        crc = _check_text(addr_data, addr_at, row, crc)
        if route:
            crc = _check_text(route_data, route_at, row, crc)
        for entry in range(map_at[row], map_at[row + 1]):
            _put16(scratch, 0, np.uint64(key_at[entry + 1] - key_at[entry]))
            _put32(scratch, 2, np.uint64(value_at[entry + 1] - value_at[entry]))
            crc = crc32(scratch, 0, _ATTRIBUTE_HEAD, crc)
            crc = _check_text(key_data, key_at, entry, crc)
            crc = _check_text(value_data, value_at, entry, crc)
        crc = _check_text(payload_data, payload_at, row, crc)
        if crc != crcs[row]:
            return row
    return -1
