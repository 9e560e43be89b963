"""Messages in a stream of bytes: cut anywhere, packed, and packed to do harm."""

import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.transport.http2.messages import (
    INTERNAL,
    INVALID_ARGUMENT,
    UNIMPLEMENTED,
    MessageError,
    decompress,
    only_message,
    take_messages,
)
from parts.counts import LONG
from parts.http2 import message

EXAMPLES = 20_000 if LONG else 200
LIMIT = 1000
PACK = {"gzip": gzip.compress, "deflate": zlib.compress}
packings = pytest.mark.parametrize("encoding", PACK)


def code_of(run, *arguments):
    with pytest.raises(MessageError) as error:
        run(*arguments)
    return error.value.code


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=60), st.booleans()), max_size=5), st.sampled_from(sorted(PACK)), st.data())
def test_messages_are_found_whole_and_in_order_wherever_their_bytes_are_cut(wanted, encoding, data):
    sent = b"".join(message(PACK[encoding](one), 1) if packed else message(one) for one, packed in wanted)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=12)))
    buffer, found = bytearray(), []
    for start, stop in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        buffer += sent[start:stop]
        found += take_messages(buffer, encoding, LIMIT)
    assert (found, buffer) == ([one for one, _ in wanted], b"")


def test_every_cut_of_a_message_leaves_the_rest_for_later():
    sent = message(b"abc") + message(b"") + message(b"defg")
    for cut in range(len(sent) + 1):
        buffer = bytearray(sent[:cut])
        first = take_messages(buffer, "identity", LIMIT)
        assert bytes(buffer) == sent[:cut][sum(len(one) + 5 for one in first) :]
        buffer += sent[cut:]
        assert first + take_messages(buffer, "identity", LIMIT) == [b"abc", b"", b"defg"]


@packings
def test_the_only_message_is_the_whole_body_and_nothing_else(encoding):
    for data in (b"", b"abc", bytes(LIMIT)):
        assert only_message(message(data), "identity", LIMIT) == data
        assert only_message(message(data), encoding, LIMIT) == data, "what is not packed is taken as it is"
        assert only_message(message(PACK[encoding](data), 1), encoding, LIMIT) == data


def test_f40_a_body_that_is_not_exactly_one_message_is_refused():
    for whole in (message(b"abc"), message(b"")):
        for cut in range(len(whole)):
            assert code_of(only_message, whole[:cut], "identity", LIMIT) == UNIMPLEMENTED
        for more in (b"\0", whole, message(b"")):
            assert code_of(only_message, whole + more, "identity", LIMIT) == UNIMPLEMENTED


@pytest.mark.parametrize("flag", [2, 3, 128, 255])
def test_f40_a_flag_that_is_none_is_refused(flag):
    assert code_of(only_message, message(b"abc", flag), "gzip", LIMIT) == INTERNAL
    assert code_of(take_messages, bytearray(message(b"abc", flag)), "gzip", LIMIT) == INTERNAL


def test_f40_a_packed_message_needs_a_packing_that_is_known():
    assert code_of(decompress, 1, b"abc", "identity", LIMIT) == INTERNAL
    for name in ("snappy", "", "GZIP", "gzip, gzip", "x" * 5000):
        with pytest.raises(MessageError) as error:
            decompress(1, b"abc", name, LIMIT)
        assert error.value.code == UNIMPLEMENTED
        assert len(error.value.text) < 100


@packings
def test_f40_every_cut_of_a_packed_message_is_refused(encoding):
    whole = PACK[encoding](b"to be or not to be, that is the question")
    assert decompress(1, whole, encoding, LIMIT) == b"to be or not to be, that is the question"
    for cut in range(len(whole)):
        assert code_of(decompress, 1, whole[:cut], encoding, LIMIT) == INTERNAL


@packings
@settings(max_examples=EXAMPLES, deadline=None)
@given(st.binary(max_size=200))
def test_f40_any_bytes_unpack_or_are_refused(encoding, data):
    for given_ in (data, PACK[encoding](b"abc" * 20)[:12] + data):
        try:
            found = decompress(1, given_, encoding, LIMIT)
        except MessageError:
            continue
        assert len(found) <= LIMIT


@packings
def test_a_message_may_unpack_to_the_limit_and_not_to_a_byte_more(encoding):
    for size in (LIMIT - 1, LIMIT):
        assert decompress(1, PACK[encoding](bytes(size)), encoding, LIMIT) == bytes(size)
    assert code_of(decompress, 1, PACK[encoding](bytes(LIMIT + 1)), encoding, LIMIT) == INVALID_ARGUMENT


@packings
def test_f40_a_bomb_is_refused_before_it_goes_off(encoding):
    bomb = PACK[encoding](bytes(50_000_000))
    tracemalloc.start()
    try:
        assert code_of(decompress, 1, bomb, encoding, LIMIT) == INVALID_ARGUMENT
        assert code_of(only_message, message(bomb, 1), encoding, 10 * LIMIT) == INVALID_ARGUMENT
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_f40_a_length_beyond_the_limit_is_refused_before_the_message_is_there():
    assert take_messages(bytearray(message(bytes(LIMIT))), "identity", LIMIT) == [bytes(LIMIT)]
    for size in (LIMIT + 1, 2**32 - 1):
        assert code_of(take_messages, bytearray(b"\0" + size.to_bytes(4)), "identity", LIMIT) == INVALID_ARGUMENT
