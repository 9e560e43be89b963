"""Headers as clients send them and as we do: the memory of blocks is never wrong, and what we write can be read."""

import random
import string
from urllib.parse import unquote

import pytest
from hpack import Decoder, Encoder, HeaderTuple, NeverIndexedHeaderTuple
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.transport.http2 import headers
from ister.transport.http2.frames import BrokenProtocolError, Code
from ister.transport.http2.headers import HeaderDecoder, end, literal, refusal
from parts.counts import LONG
from parts.http2 import fields

EXAMPLES = 20_000 if LONG else 300
NAMES = st.sampled_from(("a", "b", "content-type", "grpc-timeout", "key", "key-bin", ":path", "user-agent"))
VALUES = st.sampled_from(("", "1", "2", "3S", "/x", "x" * 90, "grün", "application/grpc"))
LISTS = st.lists(st.tuples(NAMES, VALUES), max_size=6)
KINDS = st.sampled_from((HeaderTuple, NeverIndexedHeaderTuple))
SIZES = st.sampled_from((None, None, None, 0, 40, 100, 4096))
STEPS = st.tuples(st.integers(0, 2), KINDS, st.booleans(), SIZES)


def plain(decoder, block):
    return tuple((str(name), str(value)) for name, value in decoder.decode(block))


def raw(decoder, block):
    return tuple((bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True))


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(LISTS, min_size=3, max_size=3), st.lists(STEPS, max_size=25))
def test_what_is_remembered_of_blocks_is_what_a_decoder_without_memory_says(few, steps):
    encoder, ours, theirs = Encoder(), HeaderDecoder(), Decoder()
    for which, kind, huffman, size in steps:
        if size is not None:
            encoder.header_table_size = size
        sent = [kind(*one) for one in few[which]]  # a client repeats itself
        block = encoder.encode(sent, huffman=huffman)
        wanted = tuple((name.encode(), value.encode()) for name, value in sent)
        assert ours.decode(block).fields == raw(theirs, block) == wanted


def test_a_block_of_the_same_bytes_is_read_anew_when_the_common_table_has_moved():
    chance, repeated, moved = random.Random(3), 0, 0
    for _ in range(100):
        ours, theirs, encoder = HeaderDecoder(), Decoder(), Encoder()
        said = {}
        for _ in range(60):
            # Entries of the table by their numbers, as a client may name them: the same byte means another header later.
            numbers = range(62, 62 + len(encoder.header_table.dynamic_entries))
            block = bytes(0x80 | number for number in numbers if chance.random() < 0.6)
            if chance.random() < 0.3:
                block = encoder.encode([("key", str(chance.randrange(6)))], huffman=False)
            wanted = raw(theirs, block)
            repeated += block in ours._known
            assert ours.decode(block).fields == wanted
            moved += said.get(block, wanted) != wanted
            said[block] = wanted
    assert moved > 500, "the same bytes did mean something else"
    assert repeated > 500, "something was remembered"


def test_only_a_block_that_leaves_the_table_as_it_is_is_remembered():
    ours = HeaderDecoder()
    adds = b"\x40\x01a\x01b"
    for block, known in ((adds, False), (adds, False), (b"\xbe", True), (b"\x20", False), (b"\x3f\xe1\x1f", False)):
        ours.decode(block)
        assert (block in ours._known) is known
    assert ours._known == {}, "a table of another size forgets"
    with pytest.raises(BrokenProtocolError):
        ours.decode(b"\xbe")


def test_what_is_remembered_is_bounded_in_number_and_in_bytes():
    ours = HeaderDecoder()
    for number in range(3000):
        ours.decode(literal("n", str(number)) + literal("x", "y" * (15_000 - number * 5)))
    assert len(ours._known) <= headers.BLOCKS_KNOWN_MAX
    assert sum(map(len, ours._known)) < 1024 * 1024


@pytest.mark.parametrize(
    ("block", "is_known"),
    [
        (b"\x82" + literal("a", "b" * 900), True),
        (literal("a", "b") * 32, True),
        (literal("a", "b") * 33, False),
        (b"\xbe" * 2, False),
        (literal("A", "b"), False),
        (literal("grpc-timeout", "soon"), False),
    ],
    ids=["short", "few", "many", "short, and long when it is read", "wrong", "no time"],
)
def test_f40_what_is_remembered_is_small_when_it_is_read_and_nothing_is_wrong_with_it(block, is_known):
    ours = HeaderDecoder()
    ours.decode(b"\x40" + literal("a", "v" * 1500)[1:])
    ours.decode(block)
    assert (block in ours._known) is is_known


def test_f40_headers_that_both_ends_remember_are_kept_once_however_often_they_are_named():
    ours = HeaderDecoder()
    ours.decode(b"\x40" + literal("a", "v" * 4000)[1:])
    values = {id(value) for _ in range(100) for _, value in ours.decode(b"\xbe" * 4).fields}
    assert len(values) == 1


@pytest.mark.parametrize(
    "block",
    [
        b"\xff",
        b"\x80",
        b"\xbe",
        b"\x40\x01a",
        b"\x40\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a",
        b"\x00\x81\x00\x01b",
        b"\x3f\xff\xff\x0f",
        b"\x88\x20",
    ],
    ids=[
        "a number cut off",
        "entry zero",
        "an entry that is not there",
        "a value that is not there",
        "an endless length",
        "wrong Huffman",
        "a table beyond the limit",
        "a new size behind a header",
    ],
)
def test_f40_a_block_that_cannot_be_read_ends_the_connection(block):
    with pytest.raises(BrokenProtocolError) as broken:
        HeaderDecoder().decode(block)
    assert broken.value.code is Code.COMPRESSION_ERROR


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=5))
def test_f40_any_bytes_are_headers_or_end_the_connection(blocks):
    ours, theirs = HeaderDecoder(), Decoder()
    for block in blocks:
        try:
            found = ours.decode(block)
        except BrokenProtocolError:
            return
        assert found.fields == raw(theirs, block)


def test_f40_a_few_bytes_cannot_become_many_headers():
    ours = HeaderDecoder()
    ours.decode(b"\x40" + literal("a", "v" * 4000)[1:])  # an entry of four thousand bytes
    assert ours.decode(b"\xbe" * 4).problem == ""
    with pytest.raises(BrokenProtocolError):
        ours.decode(b"\xbe" * 10_000)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.tuples(st.sampled_from((b"", b"\x40", b"\0")), st.integers(0, 5000)), max_size=8))
def test_f40_headers_that_are_too_many_are_a_problem_of_the_call_and_are_read_to_their_end(parts):
    ours, theirs = HeaderDecoder(), Decoder(max_header_list_size=10**9)
    block = b"".join(how + literal("a", "v" * size)[1:] if how else b"\x90" for how, size in parts)
    wanted = raw(theirs, block)
    found = ours.decode(block)
    if sum(len(name) + len(value) + 32 for name, value in wanted) > headers.LIST_BYTES_MAX:
        assert (found.problem_code, found.fields) == (8, ())
        assert "16384 bytes" in found.problem
    else:
        assert (found.problem, found.fields) == ("", wanted)
    after = bytes(0x80 | 62 + number for number in range(len(theirs.header_table.dynamic_entries)))
    assert ours.decode(after).fields == raw(theirs, after)


@pytest.mark.parametrize("value", [b"\xff\xfe", b"gr\xfcn", b"\xc3"])
def test_f40_a_value_that_is_no_text_is_given_as_far_as_it_is_one(value):
    request = HeaderDecoder().decode(b"\0\1k" + bytes((len(value),)) + value)
    assert (request.header("k"), request.problem) == (value.decode(errors="replace"), "")


def request_of(*given_):
    return HeaderDecoder().decode(Encoder().encode(list(given_)))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1H", 3600), ("2M", 120), ("10S", 10), ("1m", 0.001), ("5u", 5e-6), ("99999999n", 0.099999999), ("0S", 0)],
)
def test_a_timeout_is_a_number_and_a_unit(text, seconds):
    request = request_of(*fields("/x", ("grpc-timeout", text)))
    assert (request.timeout_s, request.problem) == (pytest.approx(seconds), "")


@pytest.mark.parametrize("text", ["", "S", "10", "123456789S", "-1S", "1.5S", "1s", " 1S", "1S\n", "٣S", "1 S"])
def test_f40_a_timeout_that_is_none_is_a_problem_of_the_call(text):
    request = request_of(*fields("/x", ("grpc-timeout", text)))
    assert request.timeout_s is None
    assert "is no time" in request.problem


@pytest.mark.parametrize(
    ("value", "text"),
    [("aGVsbG8=", "hello"), ("aGVsbG8", "hello"), ("", ""), ("/w", "�"), ("w7w=", "ü"), ("a", "a"), ("ü", "ü")],
)
def test_a_binary_header_is_given_as_text(value, text):
    request = request_of(("raw-bin", value), ("raw-bin", "second"), ("raw", value))
    assert (request.header("raw-bin"), request.header("raw"), request.header("absent")) == (text, value, None)


@pytest.mark.parametrize(
    "given_",
    [
        [("te", "trailers"), (":path", "/x")],
        [(":path", "/x"), (":path", "/y")],
        [(":method", "POST"), ("a", "b"), (":method", "POST")],
        [(":path", "/x"), ("Content-Type", "application/grpc")],
        [(":path", "/x"), ("key-É", "1")],
        [(":path", "/x"), ("key-é", "1")],
        [(":path", "/x"), ("a b", "1")],
    ],
    ids=[
        "behind a header",
        "twice",
        "twice and behind",
        "a capital letter",
        "beyond ASCII",
        "the same, small",
        "a space",
    ],
)
def test_f40_headers_that_are_out_of_place_are_a_problem_of_the_call(given_):
    assert request_of(*given_).problem
    assert request_of(*fields()).problem == ""


def test_a_request_says_what_a_server_has_to_know():
    request = request_of(*fields("/a/b", ("grpc-encoding", "gzip"), ("k", "1"), ("k", "2")))
    assert (request.method, request.path, request.content_type) == ("POST", "/a/b", "application/grpc")
    assert (request.encoding, request.timeout_s, request.header("k")) == ("gzip", None, "1")
    assert request.is_call
    assert request_of(("a", "b")).encoding == "identity"


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=300)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 16), TEXTS, st.lists(st.tuples(st.sampled_from(("a", "key-b")), TEXTS), max_size=3))
def test_the_end_of_a_call_can_be_read_by_any_client(code, text, trail):
    decoder = Decoder()
    status, *others = plain(decoder, end(code, text, tuple(trail)))
    assert status == ("grpc-status", str(code))
    assert decoder.header_table.dynamic_entries == type(decoder.header_table.dynamic_entries)()
    if text:
        (name, said), *others = others
        assert name == "grpc-message"
        assert set(said) <= set(string.printable[:95]), "a header is made of what can be printed"
        assert unquote(said) == text
    assert others == trail


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 253, 254, 255, 256, 16_383 + 127, 16_384 + 127, 50_000])
def test_a_long_value_has_its_length_in_as_many_bytes_as_it_needs(length):
    [(name, value)] = plain(Decoder(1_000_000), literal("n" * (length or 1), "v" * length))
    assert (len(name), len(value)) == (length or 1, length)


def test_what_we_always_send_is_what_it_should_be():
    assert plain(Decoder(), headers.START) == ((":status", "200"), ("content-type", "application/grpc"))
    assert plain(Decoder(), headers.END_OK) == plain(Decoder(), end(0)) == (("grpc-status", "0"),)
    assert headers.ENCODINGS == ("grpc-accept-encoding", "identity,deflate,gzip")
    assert plain(Decoder(), refusal(415)) == ((":status", "415"),)
