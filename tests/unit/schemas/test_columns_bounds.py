"""How much of the memory a column of payloads takes: bounded by what is built, not by what came in."""

import pyarrow as pa
import pytest

from ister.schemas.columns.cells import CELL_BYTES, CELLS_MAX, TEXT_BYTES_MAX
from ister.schemas.columns.evolve import add_beside
from ister.schemas.decode import Decoders
from parts.typed import avro, decode_column, decoded, json_schema, message_class, protobuf, record, table_of

WIDE = {"type": "object", "properties": {f"c{index}": {"type": "integer"} for index in range(900)}}
LISTS = json_schema({"type": "object", "properties": {"l": {"type": "array", "items": WIDE}}})


def pieces(schema, payloads, table=None):
    decoders = Decoders({(1, 1): schema}, table or table_of(schema), (1, 1))
    rows = len(payloads)
    return decoders.decode_column(
        pa.array(payloads, pa.binary()), pa.nulls(rows, pa.int64()), pa.nulls(rows, pa.int32())
    )


def test_a_batch_of_rows_with_many_cells_comes_in_pieces_of_a_bounded_size():
    """K3."""
    payload = b'{"l":[' + b",".join([b"{}"] * 1_100) + b"]}"
    rows = 0
    for piece in pieces(LISTS, [payload] * 3):
        assert len(piece.values) <= 2
        assert piece.values.nbytes <= 3 * CELLS_MAX * CELL_BYTES
        assert piece.errors.null_count == len(piece.values)
        rows += len(piece.values)
    assert rows == 3


def test_a_table_of_many_columns_is_built_in_fewer_rows_at_once():
    """K3."""
    schema = json_schema(WIDE)
    sizes = [len(piece.values) for piece in pieces(schema, [b"{}"] * 4_096)]
    assert sum(sizes) == 4_096
    assert max(sizes) <= CELLS_MAX // 900 + 1


def test_large_texts_are_counted_as_what_they_fill():
    """K3."""
    schema = json_schema({"type": "object", "properties": {"a": {"type": "string"}}})
    payloads = [b'{"a":"%s"}' % (b"x" * (1 << 20))] * 20
    sizes = [len(piece.values) for piece in pieces(schema, payloads)]
    assert sum(sizes) == 20
    assert max(sizes) <= 8


def test_an_enum_with_long_symbols_is_refused_before_it_fills_the_memory():
    """K3."""
    symbol = "S" * 1_000
    kind = {"type": "enum", "name": "E", "symbols": [symbol]}
    schema = avro(record(l={"type": "array", "items": kind}))
    count = 100_000
    payload = zigzag(count) + bytes(count) + b"\x00"
    (row,) = decoded(schema, payload)
    assert f"more than {TEXT_BYTES_MAX} bytes" in row
    (row,) = decoded(schema, zigzag(3) + bytes(3) + b"\x00")
    assert row == {"l": [symbol] * 3}


def zigzag(number):
    number, found = number << 1, bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def test_fields_that_take_no_bytes_are_refused_before_they_fill_the_memory():
    """K3."""
    nulls = {"type": "record", "name": "N", "fields": [{"name": f"n{index}", "type": "null"} for index in range(900)]}
    nulls["fields"].append({"name": "a", "type": "int"})
    schema = avro(record(l={"type": "array", "items": nulls}))
    (row,) = decoded(schema, zigzag(50_000) + bytes(50_000) + b"\x00")
    assert "fields more than it has bytes" in row
    fields = " ".join(f"int64 f{index} = {index + 1};" for index in range(900))
    text = f'syntax = "proto3"; message M {{ repeated W l = 1; }} message W {{ {fields} }}'
    (row,) = decoded(protobuf(text), b"\x0a\x00" * 50_000)
    assert "fields more than it has bytes" in row
    message = message_class(text, "M")(l=[{"f3": 7}, {}])
    (row,) = decoded(protobuf(text), message.SerializeToString())
    assert [one["f3"] for one in row["l"]] == [7, 0]


def test_a_list_of_too_many_cells_goes_beside_its_column_as_json():
    """K3, K4."""
    payload = b'{"l":[' + b",".join([b"{}"] * 2_000) + b"]}"
    table = table_of(LISTS)
    found = decode_column(Decoders({(1, 1): LISTS}, table, (1, 1)), [payload])
    assert found.misfits == [("l",)]
    (row,) = decoded(LISTS, payload, table=add_beside(table, found.misfits)[0])
    assert row["l"] is None
    assert row["l_as_json"] == "[" + ",".join(["{}"] * 2_000) + "]"


@pytest.mark.parametrize("rows", [0, 3])
def test_no_row_is_lost_where_a_piece_ends(rows):
    """K3."""
    payloads = [b'{"l":[' + b",".join([b'{"c0":%d}' % row] * 1_100) + b"]}" for row in range(rows)]
    found = decode_column(Decoders({(1, 1): LISTS}, table_of(LISTS), (1, 1)), payloads)
    assert [one["l"][0]["c0"] for one in found.values.to_pylist()] == list(range(rows))
