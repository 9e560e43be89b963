"""What an object is: its key, its description, and what is found in its bytes, against a decoder that takes no short cut."""

import json
import random
import string
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.core.errors import CorruptLogError, CorruptMetadataError, CorruptObjectError, UnknownFormatError
from ister.core.frames import kernels, segment
from ister.core.frames.columns import NO_LIMIT, scan_run
from ister.core.frames.frame import FrameDecoder, Marker, encode_marker, encode_message
from ister.core.frames.segment import (
    INDEX_ENTRIES_MAX,
    Descriptor,
    ObjectName,
    describe,
    generation_prefix,
    object_key,
    parse_key,
    survey,
    topic_prefix,
)
from ister.core.message import StreamMessage
from ister.core.names import TopicName

PART = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=20)
OFFSETS = st.integers(0, 10**20 - 2)
KEY = "/danube-data/storage/objects/default/t/0000000001/00000000000000000005"


def frames(first, sizes, *, markers=()):
    """Encode a run: a message of each size, and a marker before each index in `markers`."""
    out = []
    for index, size in enumerate(sizes):
        if index in markers:
            out.append(encode_marker(Marker(7, 0, first + index, 0), first + index))
        out.append(encode_message(StreamMessage(bytes(size)), first + index, 1000 + index))
    if len(sizes) in markers:
        out.append(encode_marker(Marker(7, 0, first + len(sizes), 0), first + len(sizes)))
    return b"".join(out)


# --- keys -------------------------------------------------------------------------------------------------------------


@given(PART, PART, st.integers(1, 10**9), OFFSETS, st.integers(1, 10**19))
def test_a_key_says_topic_generation_and_offsets_and_can_be_read_back(namespace, topic, generation, start, length):
    name, stop = TopicName(namespace, topic), min(start + length, 10**20 - 1)
    key = object_key(name, generation, start, stop)
    assert key == f"{namespace}/{topic}/{generation}/data-{start:020}-{stop:020}.dnb"
    assert key.startswith(generation_prefix(name, generation))
    assert generation_prefix(name, generation).startswith(topic_prefix(name))
    assert parse_key(key) == ObjectName(generation, start, stop)


@given(st.lists(st.tuples(st.integers(0, 2**63), st.integers(1, 10**6)), min_size=2, max_size=20))
def test_keys_sort_as_their_offsets_do(spans):
    keys = {object_key(TopicName("n", "t"), 1, start, start + count): (start, start + count) for start, count in spans}
    assert [keys[key] for key in sorted(keys)] == sorted(set(keys.values()))


@pytest.mark.parametrize(
    "key",
    ["", "a/b/1/data-0-1.dnb", "a/b/1/data-00000000000000000001-00000000000000000001.dnb",
     "a/b/1/data-00000000000000000002-00000000000000000001.dnb", "a/b/1/data-00000000000000000000-00000000000000000001",
     "a/b/x/data-00000000000000000000-00000000000000000001.dnb", "b/1/data-00000000000000000000-00000000000000000001.dnb",
     "a/../1/data-00000000000000000000-00000000000000000001.dnb",
     "a/b/1/data-00000000000000000000-00000000000000000001.dnb\n",
     "a/b/1/data-0000000000000000000\u0661-00000000000000000002.dnb"],
)  # fmt: skip
def test_a_key_that_we_did_not_make_says_nothing(key):
    assert parse_key(key) is None


@given(st.text(max_size=80))
def test_f40_no_text_makes_parse_key_fail(text):
    assert parse_key(text) is None


# --- surveys ----------------------------------------------------------------------------------------------------------


def naive(data, first, limit):
    """Decode frame by frame: where the last whole one before the limit ends, its offset, and where messages begin."""
    decoder = FrameDecoder("naive", first_offset=first)
    end, following, append_time_us, begins = 0, first, 0, {}
    try:
        for frame in decoder.feed(bytes(data)):
            if following == limit:
                break
            end = frame.at + frame.length
            if isinstance(frame.content, StreamMessage):
                begins[frame.offset] = frame.at
                following, append_time_us = frame.offset + 1, frame.content.append_time_us
    except (CorruptLogError, UnknownFormatError):
        pass
    return end, following, append_time_us, begins


RUNS = st.tuples(
    st.integers(0, 2**40),
    st.lists(st.integers(0, 600), max_size=40),
    st.sets(st.integers(0, 40)),
    st.integers(1, 900),
)


@settings(max_examples=300, deadline=None)
@given(
    RUNS, st.one_of(st.none(), st.integers(0, 40)), st.integers(0, 20_000), st.sampled_from(["whole", "cut", "flip"])
)
def test_a_survey_finds_what_a_decoder_without_short_cuts_finds(given_run, limit_at, at, harm):
    first, sizes, markers, stride = given_run
    data = bytearray(frames(first, sizes, markers=markers))
    if harm == "cut":
        del data[at % (len(data) + 1) :]
    elif harm == "flip" and data:
        data[at % len(data)] ^= 1 << (at % 8)
    limit = NO_LIMIT if limit_at is None else first + min(limit_at, len(sizes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "INDEX_BYTES", stride)
        found = survey(bytes(data), first, limit=limit)
    end, following, append_time_us, begins = naive(data, first, limit)
    assert (found.end, found.next_offset, found.append_time_us) == (end, following, append_time_us)
    if harm == "whole" and limit == NO_LIMIT:
        assert (found.end, found.code) == (len(data), kernels.OK)
    for offset, byte in found.places:
        # A place is the frame itself, or markers before it.
        assert scan_run(data[byte:], first_offset=offset).first_row + byte == begins[offset]
    offsets = [offset for offset, _ in found.places]
    assert offsets == sorted(set(offsets))
    assert bool(offsets) == (following > first)
    bytes_between = [b - a for (_, a), (_, b) in zip(found.places, found.places[1:], strict=False)]
    assert len(found.places) <= -(-len(data) // stride)
    largest = max(sizes, default=0) + 300
    assert all(step <= 2 * max(stride, largest) + largest for step in bytes_between), "a seek reads little"


@pytest.mark.parametrize("share", [0.3, 0.51, 0.6, 0.99, 1.01, 1.5])
@pytest.mark.parametrize("stride", [1, 64, 200])
def test_an_index_never_has_more_entries_than_etcd_takes_whatever_the_sizes(monkeypatch, share, stride):
    monkeypatch.setattr(segment, "INDEX_BYTES", stride)
    monkeypatch.setattr(segment, "INDEX_ENTRIES_MAX", 64)
    for size in (80, 160, 300):
        one = len(frames(0, [size]))
        # So many frames that each takes this share of the stride that their number leads to.
        data = frames(0, [size] * max(1, int(64 / share)))
        assert len(data) == one * max(1, int(64 / share))
        found = survey(data, 0)
        assert (found.end, found.next_offset) == (len(data), max(1, int(64 / share)))
        assert 1 <= len(found.places) <= 64


def test_a_large_object_of_small_messages_has_a_small_description():
    data = frames(0, [0] * 1500) * 1
    big = data + b"".join(encode_message(StreamMessage(bytes(33_000)), offset, 1) for offset in range(1500, 1500 + 480))
    found = describe(big, "k", ObjectName(1, 0, 1980), epoch=1, etag="e")
    assert len(big) > 15 * 1024 * 1024
    assert len(found.index) <= INDEX_ENTRIES_MAX
    assert len(found.dump()) < 64 * 1024


# --- descriptions -----------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(RUNS)
def test_a_description_says_what_is_in_the_bytes_and_comes_back_as_it_was(given_run):
    first, sizes, markers, stride = given_run
    data = frames(first, [*sizes, 5], markers=markers)
    name = ObjectName(3, first, first + len(sizes) + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "INDEX_BYTES", stride)
        found = describe(data, "key", name, epoch=9, etag='"e\u00e9"')
    assert Descriptor.load("key", found.dump()) == found
    assert (found.start, found.stop, found.generation, found.epoch) == (name.start, name.stop, 3, 9)
    assert (found.size, found.checksum, found.append_time_us) == (len(data), crc32(data), 1000 + len(sizes))
    assert found.index[0] == (first, 0)
    for offset in range(first, name.stop):
        place, byte = found.place(offset)
        assert place <= offset
        assert scan_run(data[byte:], first_offset=place, wanted=offset).rows == name.stop - offset
    assert json.loads(found.dump())["completed"] is True


def test_bytes_that_are_not_exactly_the_named_offsets_cannot_be_described():
    data = frames(5, [10, 20, 30])
    for bad, start, stop, at, expected in (
        (data, 4, 8, 0, 4), (data, 5, 7, len(data), 8), (data, 5, 9, len(data), 8), (data[:-1], 5, 8, None, 7),
        (b"", 5, 8, 0, 5), (data + b"\0" * 16, 5, 8, len(data), 8), (data + data, 5, 8, len(data), 8),
    ):  # fmt: skip
        with pytest.raises(CorruptObjectError) as told:
            describe(bad, "the key", ObjectName(1, start, stop), epoch=1, etag="")
        assert (told.value.key, told.value.expected_offset) == ("the key", expected)
        assert at is None or told.value.byte == at


def test_f3_every_flipped_bit_of_an_object_keeps_it_from_being_described():
    data = frames(0, [30, 0, 100], markers={1, 3})
    name = ObjectName(1, 0, 3)
    for bit in range(len(data) * 8):
        harmed = bytearray(data)
        harmed[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(CorruptObjectError):
            describe(bytes(harmed), "k", name, epoch=1, etag="")


GOOD = describe(frames(5, [10] * 30, markers={0, 4}), "k", ObjectName(1, 5, 35), epoch=2, etag="tag")


@pytest.mark.parametrize("field", sorted(json.loads(GOOD.dump())))
@pytest.mark.parametrize(
    "value", [None, "5", -1, 5.5, True, [], {}, [1.5], ["a"], [-1, 5], [None, None], float("nan"), 2**70]
)
def test_a_damaged_description_is_refused_by_the_name_of_its_key(field, value):
    content = json.loads(GOOD.dump())
    if content[field] == value or (field == "etag" and isinstance(value, str)):
        return
    if value == 2**70 and field in {"stop", "size", "epoch", "generation", "append_time_us"}:
        return  # a number that could be, as far as this description tells
    content[field] = value
    with pytest.raises(CorruptMetadataError) as told:
        Descriptor.load(KEY, json.dumps(content).encode())
    assert told.value.key == KEY
    del content[field]
    with pytest.raises(CorruptMetadataError):
        Descriptor.load(KEY, json.dumps(content).encode())


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"null", b"[]", b"1", b'"text"', b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5000],
)  # fmt: skip
def test_what_is_no_description_at_all_is_refused_too(value):
    with pytest.raises(CorruptMetadataError):
        Descriptor.load(KEY, value)


def test_a_description_of_a_newer_release_says_so():
    content = json.loads(GOOD.dump()) | {"version": 2}
    with pytest.raises(CorruptMetadataError, match="version is 2, this release knows 1"):
        Descriptor.load(KEY, json.dumps(content).encode())


def test_f40_a_description_with_a_flipped_byte_is_refused_or_still_possible(count):
    """JSON has no checksum: what a flip leaves must at least never be a description that cannot be."""
    rng = random.Random(1)
    value = GOOD.dump()
    refused = 0
    for _ in range(count(3000, 100_000)):
        harmed = bytearray(value)
        harmed[rng.randrange(len(harmed))] ^= 1 << rng.randrange(8)
        try:
            found = Descriptor.load(KEY, bytes(harmed))
        except CorruptMetadataError:
            refused += 1
        else:
            assert 0 <= found.start < found.stop
            assert found.index[0] == (found.start, 0)
            assert all(byte < found.size for _, byte in found.index)
            found.dump()
    assert refused > 0
