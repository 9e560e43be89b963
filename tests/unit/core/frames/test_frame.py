import tracemalloc
import zlib

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.core.errors import CorruptLogError, InvalidMessageError, IsterError, UnknownFormatError
from ister.core.frames.columns import SCHEMA, decode_batch, decode_messages, encode_columns, scan_run, strip_markers
from ister.core.frames.frame import (
    BODY_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    FrameDecoder,
    Marker,
    encode_batch,
    encode_marker,
    encode_message,
)
from ister.core.message import MsgID, StreamMessage
from ister.wal.write_batch import sealed_chunk
from parts.counts import LONG

HOSTILE = 100_000 if LONG else 1_000
U64 = st.integers(0, 2**64 - 1)
TEXT = st.text(max_size=20)
MESSAGES = st.builds(
    StreamMessage,
    payload=st.binary(max_size=300),
    msg_id=st.builds(MsgID, producer_id=U64, broker_addr=TEXT, topic_name=st.just("/default/t")),
    request_id=U64,
    publish_time=U64,
    producer_name=TEXT,
    attributes=st.dictionaries(TEXT, TEXT, max_size=3),
    schema_id=st.none() | U64,
    schema_version=st.none() | st.integers(0, 2**32 - 1),
    routing_key=st.none() | TEXT,
)


def stamped(messages, first, time):
    return [
        m._replace(append_time_us=time, msg_id=m.msg_id._replace(topic_offset=first + i))
        for i, m in enumerate(messages)
    ]


def frames_of(messages, first=0, time=5):
    return b"".join(encode_message(m, first + i, time) for i, m in enumerate(messages))


@settings(max_examples=300, deadline=None)
@given(st.lists(MESSAGES, max_size=8), st.integers(0, 2**40), st.integers(0, 2**50))
def test_every_way_to_encode_writes_the_same_bytes_and_every_way_to_decode_gives_the_messages_back(
    messages, first, time
):
    frames = frames_of(messages, first, time)
    assert bytes(sealed_chunk(encode_batch(messages, first, time), first, first + len(messages)).frames) == frames
    sent = stamped(messages, first, time)
    assert decode_messages(frames, first_offset=first, topic_name="/default/t") == sent
    decoder = FrameDecoder("frames", first_offset=first, topic_name="/default/t")
    assert [frame.content for frame in decoder.feed(frames)] == sent
    batch = decode_batch(frames, first_offset=first)
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    assert b"".join(bytes(c.frames) for c in encode_columns(batch, first, time, bytes_max=500)) == frames
    assert batch["frame_crc"].to_pylist() == [
        HEADER.unpack_from(encode_message(m, first + i, time))[2] for i, m in enumerate(messages)
    ]


def test_a_batch_decodes_to_the_columns_that_were_sent():
    sent = StreamMessage(
        b"pay",
        MsgID(2**64 - 1, "/default/t", "http://b:6650"),
        7,
        2**64 - 1,
        "prodücer",
        "",
        {"k": "v", "": ""},
        2**63,
        9,
        "",
    )
    plain = StreamMessage(b"")
    row, other = decode_batch(frames_of([sent, plain], 41, 10)).to_pylist()
    assert row["topic_offset"] == 41
    assert row["append_time"].microsecond == 10
    assert (row["publish_time"], row["producer_id"], row["request_id"]) == (2**64 - 1, 2**64 - 1, 7)
    assert (row["schema_id"], row["schema_version"], row["routing_key"]) == (2**63, 9, "")
    assert (row["producer_name"], row["broker_addr"], row["payload"]) == ("prodücer", "http://b:6650", b"pay")
    assert row["attributes"] == [("k", "v"), ("", "")]
    assert (other["schema_id"], other["schema_version"], other["routing_key"], other["attributes"]) == (
        None,
        None,
        None,
        [],
    )


def test_the_checksum_covers_offset_length_and_body():
    frame = encode_message(StreamMessage(b"abc"), 3, 4)
    assert HEADER.unpack_from(frame)[2] == zlib.crc32(frame[:12] + frame[16:])


@given(st.lists(st.sampled_from(["message", "marker"]), max_size=12), st.integers(1, 50))
def test_frames_come_whole_however_the_bytes_arrive(kinds, step):
    data, offset = b"", 0
    for kind in kinds:
        if kind == "message":
            data += encode_message(StreamMessage(b"m%d" % offset), offset, 1)
            offset += 1
        else:
            data += encode_marker(Marker(1, len(data), offset, len(data)), offset)
    decoder = FrameDecoder("x", first_offset=0)
    whole = list(decoder.feed(data))
    pieces = FrameDecoder("x", first_offset=0)
    pieced = [frame for at in range(0, len(data), step) for frame in pieces.feed(data[at : at + step])]
    assert pieced == whole
    assert (pieces.at, pieces.held) == (len(data), 0)
    assert len(decode_messages(data)) == offset
    assert strip_markers(data) == b"".join(
        data[f.at : f.at + f.length] for f in whole if not isinstance(f.content, Marker)
    )


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("request_id", StreamMessage(b"", request_id=-1)),
        ("request_id", StreamMessage(b"", request_id=2**64)),
        ("publish_time", StreamMessage(b"", publish_time=-1)),
        ("msg_id.producer_id", StreamMessage(b"", MsgID(producer_id=2**64))),
        ("schema_id", StreamMessage(b"", schema_id=-5)),
        ("schema_version", StreamMessage(b"", schema_version=2**32)),
        ("producer_name", StreamMessage(b"", producer_name="x" * 65536)),
        ("producer_name", StreamMessage(b"", producer_name="\ud800")),
        ("producer_name", StreamMessage(b"", producer_name=None)),
        ("broker_addr", StreamMessage(b"", MsgID(broker_addr="ä" * 40000))),
        ("routing_key", StreamMessage(b"", routing_key="k" * 65536)),
        ("payload", StreamMessage("text")),
        ("payload", StreamMessage(bytearray(b"x"))),
        ("payload", StreamMessage(None)),
        ("payload", StreamMessage(7)),
        ("attributes", StreamMessage(b"", attributes={"k" * 65536: ""})),
        ("attributes", StreamMessage(b"", attributes={"k": 1})),
        ("size", StreamMessage(bytes(BODY_BYTES_MAX))),
    ],
)
def test_s11_a_message_that_cannot_be_stored_is_refused_by_field(field, message):
    for encode in (lambda: encode_message(message, 0, 0), lambda: encode_batch([message], 0, 0)):
        with pytest.raises(InvalidMessageError) as refused:
            encode()
        assert refused.value.field == field


def test_s11_the_largest_names_and_the_largest_message_are_stored():
    largest = StreamMessage(
        b"",
        MsgID(broker_addr="b" * 65535),
        producer_name="n" * 65535,
        routing_key="k" * 65535,
        attributes={"k" * 65535: "v"},
    )
    assert decode_messages(frames_of([largest]))[0] == largest._replace(append_time_us=5)
    frame = encode_message(StreamMessage(bytes(BODY_BYTES_MAX - 64)), 0, 0)
    assert len(frame) == HEADER_BYTES + BODY_BYTES_MAX
    assert decode_messages(frame)[0].payload == bytes(BODY_BYTES_MAX - 64)


@pytest.mark.parametrize(
    ("column", "batch"),
    [
        ("batch", pa.record_batch({"payload": [b"x"], "nonsense": [1]})),
        ("batch", pa.record_batch({"request_id": [1]})),
        ("payload", pa.record_batch({"payload": [b"x", None]})),
        ("request_id", pa.record_batch({"payload": [b"x"], "request_id": [-1]})),
        ("producer_name", pa.record_batch({"payload": [b"x"], "producer_name": pa.array([b"\xff"]).cast(pa.binary())})),
        ("batch", pa.record_batch({"payload": [b"x"], "routing_key": ["k" * 65536]})),
        (
            "attributes",
            pa.record_batch(
                {"payload": [b"x"], "attributes": pa.array([[("k", None)]], pa.map_(pa.string(), pa.string()))}
            ),
        ),
    ],
)
def test_a_batch_that_cannot_be_stored_is_refused_by_column(column, batch):
    with pytest.raises(InvalidMessageError) as refused:
        list(encode_columns(batch, 0, 0, bytes_max=1000))
    assert refused.value.field == column


def test_a_sliced_batch_with_other_arrow_types_is_stored_exactly():
    batch = pa.record_batch(
        {
            "payload": pa.array([b"a", b"bb", b"ccc", b"dddd"], pa.large_binary()),
            "routing_key": pa.array(["x", None, "", "y"]).dictionary_encode(),
            "schema_id": pa.array([1, None, 3, 4], pa.int32()),
            "attributes": pa.array([[("p", "q")], [], [("r", "s"), ("t", "u")], []], pa.map_(pa.string(), pa.string())),
        }
    ).slice(1, 2)
    (chunk,) = encode_columns(batch, 10, 3, bytes_max=1 << 20)
    first, second = decode_messages(chunk.frames, first_offset=10)
    assert (first.payload, first.routing_key, first.schema_id, first.attributes) == (b"bb", None, None, {})
    assert (second.payload, second.routing_key, second.schema_id, second.attributes) == (
        b"ccc",
        "",
        3,
        {"r": "s", "t": "u"},
    )


def test_f5_an_absurd_length_is_refused_before_anything_is_allocated():
    frame = bytearray(encode_message(StreamMessage(b"x" * 100), 0, 0))
    for length in (0, BODY_BYTES_MAX + 1, 2**32 - 1):
        frame[8:12] = length.to_bytes(4, "little")
        tracemalloc.start()
        with pytest.raises(CorruptLogError, match="length"):
            list(FrameDecoder("f", first_offset=0).feed(bytes(frame)))
        with pytest.raises(CorruptLogError, match="length"):
            decode_batch(bytes(frame))
        assert tracemalloc.get_traced_memory()[1] < 2 * (HEADER_BYTES + BODY_BYTES_MAX)
        tracemalloc.stop()


def test_a_frame_of_a_newer_release_is_named_and_not_taken_for_damage():
    body = bytes((1, 2)) + b"future"
    head = HEADER.pack(0, len(body), 0)[:12]
    frame = head + zlib.crc32(head + body).to_bytes(4, "little") + body
    with pytest.raises(UnknownFormatError, match="kind 1, version 2 at byte 0"):
        list(FrameDecoder("f").feed(frame))


@settings(max_examples=HOSTILE, deadline=None)
@given(st.binary(max_size=400))
def test_f40_hostile_bytes_never_crash_a_decoder(data):
    for decode in (
        lambda: list(FrameDecoder("f").feed(data)),
        lambda: decode_batch(data),
        lambda: decode_messages(data),
    ):
        try:
            decode()
        except IsterError:
            continue
        assert data == b"" or len(data) < HEADER_BYTES or HEADER.unpack_from(data)[1] > len(data) - HEADER_BYTES


@settings(max_examples=HOSTILE, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 2**64 - 1))
def test_f40_hostile_bodies_with_a_valid_checksum_never_crash_a_decoder(tail, offset):
    for start in (b"\x01\x01", b"\x02\x01", b""):
        body = start + tail
        head = HEADER.pack(offset, len(body), 0)[:12]
        data = head + zlib.crc32(head + body).to_bytes(4, "little") + body
        for decode in (
            lambda d=data: list(FrameDecoder("f").feed(d)),
            lambda d=data: decode_batch(d),
            lambda d=data: decode_messages(d),
        ):
            try:
                decode()
            except IsterError:
                continue
        scan_run(data)


def test_f40_lengths_that_do_not_add_up_are_damage():
    frame = bytearray(encode_message(StreamMessage(b"payload", attributes={"a": "b"}, routing_key="r"), 0, 0))
    for at, bad in ((48, 1), (50, 1), (52, 0), (54, 2), (54, 0), (56, 0), (60, 3)):
        broken = bytearray(frame)
        broken[HEADER_BYTES + at] = bad
        broken[12:16] = zlib.crc32(broken[:12] + broken[16:]).to_bytes(4, "little")
        with pytest.raises(CorruptLogError):
            decode_batch(bytes(broken))
        with pytest.raises(CorruptLogError):
            list(FrameDecoder("f").feed(bytes(broken)))


def test_text_that_is_not_utf_8_is_damage_even_under_a_right_checksum():
    for message in (StreamMessage(b"x", producer_name="name"), StreamMessage(b"x", routing_key="name")):
        frame = bytearray(encode_message(message, 5, 0))
        frame[frame.index(b"name")] = 0xFF
        frame[12:16] = zlib.crc32(frame[:12] + frame[16:]).to_bytes(4, "little")
        with pytest.raises(CorruptLogError, match="utf-8"):
            decode_messages(bytes(frame))
        with pytest.raises(CorruptLogError, match="utf-8"):
            list(FrameDecoder("f").feed(bytes(frame)))
