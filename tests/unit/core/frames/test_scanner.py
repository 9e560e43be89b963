import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.core.errors import CorruptLogError
from ister.core.frames.columns import decode_messages, messages_of
from ister.core.frames.frame import HEADER_BYTES, Marker, encode_marker, encode_message
from ister.core.frames.scanner import FrameScanner
from ister.core.frames.segment import survey
from ister.core.message import StreamMessage

FIRST = 7


def frames_of(parts):
    """Return the frames of messages of the given payload sizes; a marker for each None."""
    rng, data, offset = random.Random(1), b"", FIRST
    for size in parts:
        if size is None:
            data += encode_marker(Marker(1, len(data), offset, len(data)), offset)
        else:
            data += encode_message(StreamMessage(rng.randbytes(size)), offset, 1)
            offset += 1
    return data, offset


def read_all(data, read_bytes, *, start=0, stop=FIRST, wanted=0):
    """Read with a scanner up to offset `stop`; return the messages, and the sizes that were read."""
    scanner = FrameScanner("f", FIRST, start, read_bytes, limit=stop, wanted=wanted)
    messages, sizes = [], []
    while scanner.offset < stop:
        piece = data[scanner.byte : scanner.byte + scanner.need]
        sizes.append(scanner.need)
        scan = scanner.feed(piece)
        messages += messages_of(piece, scan, "", "f") if scan.rows else []
    return messages, sizes, scanner


@settings(deadline=None)
@given(st.lists(st.none() | st.integers(0, 300), max_size=30), st.integers(1, 2000), st.integers(0, 40))
def test_any_size_of_reads_gives_the_same_messages(parts, read_bytes, wanted):
    data, stop = frames_of(parts)
    messages, _, scanner = read_all(b"before" + data, read_bytes, start=6, stop=stop, wanted=wanted)
    expected = decode_messages(data, first_offset=FIRST) if data else []
    assert messages == [message for message in expected if message.msg_id.topic_offset >= wanted]
    assert scanner.offset == stop
    assert read_bytes <= scanner.need


def test_a_frame_that_does_not_fit_is_read_by_its_length_and_the_next_one_as_usual():
    data, stop = frames_of([None, 5000, 10, 10])
    _, sizes, scanner = read_all(data, 500, stop=stop)
    marker = len(encode_marker(Marker(1, 0, FIRST, 0), FIRST))
    large = len(frames_of([5000])[0])
    assert sizes == [500, marker + large, 500]
    assert scanner.byte == len(data)


@pytest.mark.parametrize("cut", [1, HEADER_BYTES, 60])
def test_a_source_that_ends_within_a_frame_is_corrupt_at_that_frame(cut):
    data, stop = frames_of([10, 100])
    first = len(frames_of([10])[0])
    with pytest.raises(CorruptLogError, match="cut short") as error:
        read_all(data[: first + cut], 4096, stop=stop)
    assert (error.value.file, error.value.byte, error.value.expected_offset) == ("f", first, FIRST + 1)


def test_a_source_that_ends_between_frames_ends_too_early():
    data, stop = frames_of([10])
    with pytest.raises(CorruptLogError, match="the file ends too early") as error:
        read_all(data, 4096, stop=stop + 1)
    assert (error.value.byte, error.value.expected_offset) == (len(data), stop)


def test_damage_is_reported_after_the_messages_before_it():
    data, stop = frames_of([10, 20, 30])
    whole = len(frames_of([10, 20])[0])
    broken = data[:-1] + bytes([data[-1] ^ 1])
    scanner = FrameScanner("f", FIRST, 0, 4096, limit=stop)
    assert scanner.feed(broken).rows == 2
    assert (scanner.offset, scanner.byte) == (FIRST + 2, whole)
    with pytest.raises(CorruptLogError, match="the checksum does not match") as error:
        scanner.feed(broken[whole:])
    assert (error.value.byte, error.value.expected_offset) == (whole, FIRST + 2)


def test_a_survey_advances_a_scanner_like_a_scan():
    data, stop = frames_of([None, 5000, 10])
    scanner = FrameScanner("f", FIRST, 0, 500)
    scanner.advance(data[:500], survey(data[:500], FIRST))
    assert (scanner.offset, scanner.byte) == (FIRST, 0)
    piece = data[: scanner.need]
    scanner.advance(piece, survey(piece, FIRST))
    assert (scanner.offset, scanner.byte, scanner.need) == (stop - 1, len(piece), 500)
