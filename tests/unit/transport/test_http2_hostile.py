"""Peers that mean harm, against the machine alone (test_http2_attacks.py has them on a real socket)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.transport.http2 import connection as connections
from ister.transport.http2 import headers as blocks
from ister.transport.http2 import stream as streams
from ister.transport.http2.connection import (
    BLOCK_BYTES_MAX,
    IDLE_FRAMES_MAX,
    LATE_FRAMES_MAX,
    RESETS_MAX,
    Http2Connection,
)
from ister.transport.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD_BYTES,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_MAX,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    BrokenProtocolError,
    Code,
    Setting,
    frame,
)
from ister.transport.http2.frames import settings as settings_frame
from parts.counts import LONG
from parts.http2 import (
    BLOCK,
    GREETING,
    LARGEST,
    Quiet,
    Told,
    call,
    frames_of,
    headers,
    kept_bytes,
    kinds,
    machine,
    refused,
    resets,
)

EXAMPLES = 50_000 if LONG else 800
STREAMS_MAX = 3


class Hasty(Told):
    """An owner of calls that answers each in another way, and checks that it is not told nonsense."""

    def opened(self, stream):
        assert stream.id not in self.opened_
        self.opened_.append(stream.id)
        if stream.id % 8 == 3:
            stream.end(blocks.end(5, "no"))
        elif stream.id % 8 == 5:
            stream.write(bytes(100_000))

    def received(self, stream):
        assert not stream.closed
        assert stream.id not in self.abandoned_
        if stream.complete and stream.id % 8 != 7:
            stream.answer(b"yes")

    def abandoned(self, stream):
        assert stream.closed
        assert stream.id in self.opened_
        self.abandoned_.append(stream.id)


def attack(data, cuts):
    """Feed a machine until it has had enough; it may only refuse, and may keep little."""
    told = Hasty()
    connection = Http2Connection(told, lambda: None, streams_max=STREAMS_MAX)
    fed, written = 0, b""
    for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
        fed += stop - start
        try:
            connection.receive(data[start:stop])
        except BrokenProtocolError as error:
            connection.go_away(error.code, error.why)
            break
        assert len(connection._rest) < LARGEST + HEAD_BYTES
        assert len(connection._block or b"") <= BLOCK_BYTES_MAX
        assert sum(map(len, connection._out)) <= 100 + 50 * len(told.opened_) + 2 * fed
        assert len(connection.streams) <= STREAMS_MAX
        assert set(connection._blocked) <= set(connection.streams)
        if fed % 2:
            written += connection.take_output()
    written += connection.take_output()
    assert set(kinds(written)) <= {DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE}
    assert set(connection._blocked) <= set(connection.streams)


cuts_of = st.lists(st.integers(0, 10_000), max_size=8)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.sampled_from((b"", PREFACE[:10], PREFACE, GREETING)), st.binary(max_size=300), cuts_of)
def test_f40_arbitrary_bytes_are_refused_or_waited_for(before, data, cuts):
    data = before + data
    attack(data, sorted(cut % (len(data) + 1) for cut in cuts))


BODIES = st.one_of(
    st.sampled_from(
        (b"", BLOCK, b"\x82", b"\xbe", b"\x20", bytes(4), bytes(5), bytes(8), b"\0\0\0\1", b"\x7f" + b"\xff" * 3)
    ),
    st.sampled_from(
        (b"\0\3" + bytes(4), b"\0\4\0\0\xff\xff", b"\0\4\x7f\xff\xff\xff", b"\0\5\0\0\x40\0", bytes(16_000))
    ),
    st.binary(max_size=30),
)
IDS = st.sampled_from((0, 1, 1, 3, 3, 5, 5, 7, 9, 2, 4, 2**31 - 1, 2**31, 2**31 + 1))
FLAGS = st.one_of(st.sampled_from((0, ACK, END_STREAM, END_HEADERS, END_HEADERS | END_STREAM)), st.integers(0, 255))
ANY = st.builds(frame, st.one_of(st.integers(0, 9), st.integers(0, 255)), FLAGS, IDS, BODIES)
LIKELY = st.one_of(
    st.builds(headers, IDS, st.sampled_from((END_HEADERS, END_HEADERS | END_STREAM, 0))),
    st.builds(frame, st.just(DATA), st.sampled_from((0, END_STREAM)), IDS, BODIES),
    st.builds(frame, st.just(RST_STREAM), st.just(0), IDS, st.just(bytes(4))),
    st.builds(frame, st.just(WINDOW_UPDATE), st.just(0), IDS, st.sampled_from((bytes(4), b"\0\0\0\1", b"\0\1\0\0"))),
    st.builds(frame, st.just(CONTINUATION), st.sampled_from((0, END_HEADERS)), IDS, BODIES),
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.one_of(LIKELY, LIKELY, ANY), max_size=25), cuts_of, st.integers(0, 3))
def test_f40_frames_in_any_order_are_taken_or_refused(sent, cuts, lost):
    data = GREETING + b"".join(sent)
    data = data[: len(data) - lost]
    attack(data, sorted(cut % (len(data) + 1) for cut in cuts))


def window_update(stream, more):
    return frame(WINDOW_UPDATE, 0, stream, more.to_bytes(4))


OPEN = headers(1)
DONE = call(1)
WRONG = {
    "data on an idle stream": (frame(DATA, 0, 1, b"x"), Code.PROTOCOL_ERROR),
    "data on a stream of ours": (OPEN + frame(DATA, 0, 2, b"x"), Code.PROTOCOL_ERROR),
    "data on the connection": (frame(DATA, 0, 0, b"x"), Code.PROTOCOL_ERROR),
    "headers on the connection": (headers(0), Code.PROTOCOL_ERROR),
    "headers on a stream of ours": (headers(2), Code.PROTOCOL_ERROR),
    "headers twice": (OPEN + OPEN, Code.PROTOCOL_ERROR),
    "headers after the end": (DONE + headers(1, END_HEADERS | END_STREAM), Code.PROTOCOL_ERROR),
    "a reset of an idle stream": (frame(RST_STREAM, 0, 1, bytes(4)), Code.PROTOCOL_ERROR),
    "a reset of the connection": (frame(RST_STREAM, 0, 0, bytes(4)), Code.PROTOCOL_ERROR),
    "a reset too short": (OPEN + frame(RST_STREAM, 0, 1, bytes(3)), Code.FRAME_SIZE_ERROR),
    "a window for an idle stream": (window_update(3, 1), Code.PROTOCOL_ERROR),
    "a window for a stream of ours": (OPEN + window_update(2, 1), Code.PROTOCOL_ERROR),
    "a window that grows by nothing": (window_update(0, 0), Code.PROTOCOL_ERROR),
    "a window beyond all": (window_update(0, WINDOW_MAX), Code.FLOW_CONTROL_ERROR),
    "a window too short": (frame(WINDOW_UPDATE, 0, 0, bytes(3)), Code.FRAME_SIZE_ERROR),
    "a ping too long": (frame(PING, 0, 0, bytes(9)), Code.FRAME_SIZE_ERROR),
    "a ping on a stream": (OPEN + frame(PING, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "a goodbye on a stream": (OPEN + frame(GOAWAY, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "settings on a stream": (OPEN + frame(SETTINGS, 0, 1), Code.PROTOCOL_ERROR),
    "settings cut off": (frame(SETTINGS, 0, 0, bytes(5)), Code.FRAME_SIZE_ERROR),
    "an answer to settings that says more": (frame(SETTINGS, ACK, 0, bytes(6)), Code.FRAME_SIZE_ERROR),
    "a first window out of range": (
        settings_frame({Setting.INITIAL_WINDOW_SIZE: WINDOW_MAX + 1}),
        Code.FLOW_CONTROL_ERROR,
    ),
    "a first window that is too much for a stream": (
        OPEN + window_update(1, 1000) + settings_frame({Setting.INITIAL_WINDOW_SIZE: WINDOW_MAX}),
        Code.FLOW_CONTROL_ERROR,
    ),
    "frames too small": (settings_frame({Setting.MAX_FRAME_SIZE: LARGEST - 1}), Code.PROTOCOL_ERROR),
    "frames too large": (settings_frame({Setting.MAX_FRAME_SIZE: 1 << 24}), Code.PROTOCOL_ERROR),
    "push neither on nor off": (settings_frame({Setting.ENABLE_PUSH: 2}), Code.PROTOCOL_ERROR),
    "a push": (OPEN + frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4) + BLOCK), Code.PROTOCOL_ERROR),
    "a frame over the limit": (frame(DATA, 0, 1, bytes(LARGEST + 1))[:HEAD_BYTES], Code.FRAME_SIZE_ERROR),
    "an unknown frame over the limit": (frame(99, 0, 0, bytes(1 << 20))[:HEAD_BYTES], Code.FRAME_SIZE_ERROR),
    "padding that fills its frame": (OPEN + frame(DATA, PADDED, 1, b"\x05" + bytes(4)), Code.PROTOCOL_ERROR),
    "padding without a frame": (OPEN + frame(DATA, PADDED, 1), Code.PROTOCOL_ERROR),
    "padding longer than headers": (frame(HEADERS, PADDED | END_HEADERS, 1, b"\x05" + bytes(4)), Code.PROTOCOL_ERROR),
    "padding without headers": (frame(HEADERS, PADDED | END_HEADERS, 1), Code.FRAME_SIZE_ERROR),
    "a priority without headers": (frame(HEADERS, WITH_PRIORITY | END_HEADERS, 1, bytes(4)), Code.FRAME_SIZE_ERROR),
    "a stream that depends on itself": (
        headers(1, WITH_PRIORITY | END_HEADERS, b"\0\0\0\1\x10" + BLOCK),
        Code.PROTOCOL_ERROR,
    ),
    "a priority too short": (frame(PRIORITY, 0, 1, bytes(4)), Code.FRAME_SIZE_ERROR),
    "headers that go on and have not begun": (frame(CONTINUATION, END_HEADERS, 1, BLOCK), Code.PROTOCOL_ERROR),
    "headers that are interrupted by data": (headers(1, 0) + frame(DATA, 0, 1), Code.PROTOCOL_ERROR),
    "headers that are interrupted by a ping": (headers(1, 0) + frame(PING, 0, 0, bytes(8)), Code.PROTOCOL_ERROR),
    "headers that are interrupted by what is unknown": (headers(1, 0) + frame(99, 0, 0), Code.PROTOCOL_ERROR),
    "headers that go on elsewhere": (headers(1, 0) + frame(CONTINUATION, END_HEADERS, 3), Code.PROTOCOL_ERROR),
    "headers that cannot be read": (headers(1, body=b"\xff"), Code.COMPRESSION_ERROR),
    "trailers that cannot be read": (OPEN + headers(1, END_HEADERS | END_STREAM, b"\xff"), Code.COMPRESSION_ERROR),
    "trailers that do not end": (OPEN + headers(1, END_HEADERS, b""), Code.PROTOCOL_ERROR),
}


@pytest.mark.parametrize(("data", "code"), WRONG.values(), ids=WRONG)
def test_f40_what_breaks_the_protocol_ends_the_connection_and_is_told_why(data, code):
    connection, _ = machine()
    assert refused(connection, data) is code
    connection, _ = machine()
    cut_into_bytes = [refused(connection, data[at : at + 1]) for at in range(len(data))]
    assert [found for found in cut_into_bytes if found] == [code]


@pytest.mark.parametrize("first", [headers(1), frame(PING, 0, 0, bytes(8)), frame(SETTINGS, ACK, 0) + headers(1)])
def test_f40_a_connection_begins_with_settings(first):
    connection = Http2Connection(Told(), lambda: None)
    assert refused(connection, PREFACE + first) is Code.PROTOCOL_ERROR


HARMLESS = {
    "a frame that is not known": frame(99, 255, 7, b"x"),
    "a goodbye": frame(GOAWAY, 0, 0, bytes(8)),
    "a priority": frame(PRIORITY, 0, 9, bytes(5)),
    "a setting that is not known": frame(SETTINGS, 0, 0, b"\xff\xff" + bytes(4)),
    "a pong that nobody asked for": frame(PING, ACK, 0, bytes(8)),
    "a window for a call that has ended": DONE + frame(RST_STREAM, 0, 1, bytes(4)) + window_update(1, 5),
    "a reset of a call that has ended": DONE + 2 * frame(RST_STREAM, 0, 1, bytes(4)),
    "data for a call that has ended": DONE + frame(RST_STREAM, 0, 1, bytes(4)) + frame(DATA, 0, 1, bytes(99)),
    "trailers for a call that has ended": DONE
    + frame(RST_STREAM, 0, 1, bytes(4))
    + headers(1, END_HEADERS | END_STREAM, b""),
}


@pytest.mark.parametrize("data", HARMLESS.values(), ids=HARMLESS)
def test_what_is_allowed_or_came_too_late_does_no_harm(data):
    connection, told = machine()
    connection.receive(data)
    connection.receive(call(11, b"then"))
    assert told.received_[-1] == (11, b"\0\0\0\0\4then", True)
    assert list(connection.streams) == [11]


def test_the_reserved_bit_of_a_streams_number_is_ignored():
    connection, told = machine()
    connection.receive(headers(1 | 1 << 31) + frame(DATA, END_STREAM, 1, b"x") + frame(SETTINGS, 0, 1 << 31))
    assert told.received_ == [(1, b"x", True)]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (DONE + frame(DATA, 0, 1, b"more"), Code.STREAM_CLOSED),
        (OPEN + window_update(1, 0), Code.PROTOCOL_ERROR),
        (OPEN + window_update(1, WINDOW_MAX), Code.FLOW_CONTROL_ERROR),
    ],
    ids=["data after the end", "a window that grows by nothing", "a window beyond all"],
)
def test_f40_what_is_wrong_with_one_call_ends_that_call_alone(data, code):
    connection, told = machine()
    connection.receive(data + call(5))
    assert resets(connection.take_output()) == {1: code}
    assert told.abandoned_ == [1]
    assert list(connection.streams) == [5]


# --- floods -----------------------------------------------------------------------------------------------------------


def flood(connection, data, times):
    """Return after how many repetitions the machine has had enough, and why."""
    for time in range(times):
        code = refused(connection, data)
        if code is not None:
            return time, code
    return times, None


GONE = DONE + frame(RST_STREAM, 0, 1, bytes(4))
FLOODS = {
    "headers that go on with nothing": (headers(1, 0), frame(CONTINUATION, 0, 1)),
    "settings": (b"", frame(SETTINGS, 0, 0)),
    "empty data": (OPEN, frame(DATA, 0, 1)),
    "data that is padding": (OPEN, frame(DATA, PADDED, 1, b"\0")),
    "priorities": (b"", frame(PRIORITY, 0, 5, bytes(5))),
    "what is not known": (b"", frame(99, 0, 0)),
    "goodbyes": (b"", frame(GOAWAY, 0, 0, bytes(8))),
    "answers to settings": (frame(SETTINGS, ACK, 0), frame(SETTINGS, ACK, 0)),
    "answers to pings": (b"", frame(PING, ACK, 0, bytes(8))),
}
LATE_FLOODS = {
    "resets": frame(RST_STREAM, 0, 1, bytes(4)),
    "windows": window_update(1, 1),
    "empty data": frame(DATA, 0, 1),
}


@pytest.mark.parametrize("data", LATE_FLOODS.values(), ids=LATE_FLOODS)
def test_f40_a_flood_of_frames_for_calls_that_have_ended_is_ended(data):
    connection, _ = machine()
    connection.receive(GONE)
    assert flood(connection, data, 2 * LATE_FRAMES_MAX) == (LATE_FRAMES_MAX, Code.ENHANCE_YOUR_CALM)
    connection, _ = machine()
    connection.receive(GONE)
    for number in range(3, 11, 2):
        connection.receive(data * LATE_FRAMES_MAX + headers(number))


def test_all_calls_of_a_connection_may_be_given_up_when_they_have_just_been_answered():
    connection, told = machine()
    numbers = range(1, 2 * connections.STREAMS_MAX, 2)
    connection.receive(b"".join(map(call, numbers)))
    for stream in told.opened_:
        stream.answer(b"")
    connection.receive(b"".join(window_update(number, 5) for number in numbers))
    connection.receive(b"".join(frame(RST_STREAM, 0, number, bytes(4)) for number in numbers))
    connection.receive(call(2 * connections.STREAMS_MAX + 1))
    assert len(connection.streams) == 1


@pytest.mark.parametrize(("first", "data"), FLOODS.values(), ids=FLOODS)
def test_f40_a_flood_of_frames_that_move_nothing_is_ended(first, data):
    connection, _ = machine()
    connection.receive(first)
    assert flood(connection, data, 2 * IDLE_FRAMES_MAX) == (IDLE_FRAMES_MAX, Code.ENHANCE_YOUR_CALM)
    assert kept_bytes(connection) < 20_000


@pytest.mark.parametrize("size", [1, 100, LARGEST])
def test_f40_headers_that_go_on_and_on_are_ended(size):
    assert BLOCK_BYTES_MAX < 2 * blocks.LIST_BYTES_MAX, "what cannot be a list of ours is not gathered"
    connection, told = machine()
    connection.receive(headers(1, 0, b""))
    time, code = flood(connection, frame(CONTINUATION, 0, 1, b"\x82" * size), 100_000)
    assert (code, told.opened_) == (Code.ENHANCE_YOUR_CALM, [])
    assert time * size <= BLOCK_BYTES_MAX


def test_f40_a_bomb_of_headers_is_ended_before_it_goes_off():
    connection, told = machine()
    big = b"\x40" + blocks.literal("a", "v" * 4000)[1:]
    connection.receive(headers(1, body=BLOCK + big))
    assert refused(connection, headers(3, body=BLOCK + b"\xbe" * 10_000)) is Code.COMPRESSION_ERROR
    assert [stream.id for stream in told.opened_] == [1]


GIVEN_UP = {
    "by the client": lambda number: call(number) + frame(RST_STREAM, 0, number, bytes(4)),
    "by us, for data after the end": lambda number: call(number) + frame(DATA, 0, number, b"x"),
    "by us, for a window of nothing": lambda number: headers(number) + window_update(number, 0),
    "by us, for a window beyond all": lambda number: headers(number) + window_update(number, WINDOW_MAX),
}


@pytest.mark.parametrize("how", GIVEN_UP.values(), ids=GIVEN_UP)
def test_f40_rapid_resets_leave_nothing_behind_and_are_ended(how):
    connection, _ = machine(Quiet(), streams_max=10)
    for number in range(1, 2 * RESETS_MAX, 2):
        connection.receive(how(number))
    assert (connection.streams, connection._blocked) == ({}, {})
    assert len(connection._headers._known) <= 1
    connection.take_output()
    assert kept_bytes(connection) == 0
    assert refused(connection, how(2 * RESETS_MAX + 1)) is Code.ENHANCE_YOUR_CALM


def test_f40_calls_without_end_beyond_the_limit_are_ended():
    connection, _ = machine(streams_max=2)
    last = 2 * RESETS_MAX + 4
    connection.receive(b"".join(call(number) for number in range(1, last, 2)))
    assert refused(connection, call(last + 1)) is Code.ENHANCE_YOUR_CALM


def test_resets_of_calls_that_were_answered_or_among_answers_are_as_they_should_be():
    connection, told = machine()
    number = 1
    for _ in range(3 * RESETS_MAX):
        connection.receive(call(number) + call(number + 2))
        told.opened_[-1].answer(b"")
        connection.receive(frame(RST_STREAM, 0, number, bytes(4)))
        number += 4
    for _ in range(3 * RESETS_MAX):  # consumers that have had enough
        connection.receive(call(number))
        told.opened_[-1].start()
        connection.receive(frame(RST_STREAM, 0, number, bytes(4)))
        number += 2
        connection.take_output()
    assert connection.streams == {}


def test_f40_calls_beyond_the_limit_are_refused_and_can_be_tried_again():
    connection, told = machine(streams_max=2)
    connection.receive(b"".join(call(number) for number in range(1, 2001, 2)))
    assert [stream.id for stream in told.opened_] == [1, 3]
    refusals = resets(connection.take_output())
    assert refusals == dict.fromkeys(range(5, 2001, 2), Code.REFUSED_STREAM)
    told.opened_[0].answer(b"")
    connection.receive(call(2001))
    assert sorted(connection.streams) == [3, 2001]


def test_f40_pings_are_answered_one_by_one_and_counted():
    connection, _ = machine()
    connection.receive(b"".join(frame(PING, 0, 0, number.to_bytes(8)) for number in range(5000)))
    assert connection.pings == 5000
    pongs = [(kind, flags, int.from_bytes(body)) for kind, flags, _, body in frames_of(connection.take_output())]
    assert pongs == [(PING, ACK, number) for number in range(5000)]


def test_f40_one_frame_of_settings_cannot_have_every_stream_looked_at_a_thousand_times():
    connection, told = machine()
    connection.receive(b"".join(headers(number) for number in range(1, 2001, 2)))
    looked = []

    class Counting(dict):
        def values(self):
            looked.append(1)
            return super().values()

    connection.streams = Counting(connection.streams)
    sizes = [b"\0\4" + (50 + number % 2).to_bytes(4) for number in range(LARGEST // 6)]
    connection.receive(frame(SETTINGS, 0, 0, b"".join(sizes)))
    assert len(looked) <= 1
    assert {stream.window_out for stream in told.opened_} == {50 + (len(sizes) - 1) % 2}


def test_f40_a_message_is_not_copied_for_every_byte_that_a_client_takes():
    connection, told = machine()
    connection.receive(settings_frame({Setting.INITIAL_WINDOW_SIZE: 0}) + headers(1))
    [stream] = told.opened_
    stream.write(bytes(1_000_000))
    kept = []
    for _ in range(10):
        connection.receive(window_update(1, 1))
        connection.take_output()
        [rest] = stream.unsent
        kept.append(rest.obj)
    assert len({id(one) for one in kept}) == 1


def test_f40_data_beyond_our_windows_ends_the_connection(monkeypatch):
    monkeypatch.setattr(streams, "STREAM_WINDOW", 100_000)
    monkeypatch.setattr(connections, "CONNECTION_WINDOW", 150_000)
    connection, _ = machine(Quiet())
    connection.receive(headers(1))
    monkeypatch.setattr(streams, "STREAM_WINDOW", -1)  # nothing is given back any more
    assert flood(connection, frame(DATA, 0, 1, bytes(10_000)), 20) == (10, Code.FLOW_CONTROL_ERROR)
    monkeypatch.setattr(streams, "STREAM_WINDOW", 10**9)
    connection, _ = machine(Quiet())
    connection.receive(headers(1))
    monkeypatch.setattr(connections, "CONNECTION_WINDOW", -1)
    assert flood(connection, frame(DATA, 0, 1, bytes(10_000)), 20) == (15, Code.FLOW_CONTROL_ERROR)


def test_f40_what_comes_for_calls_that_have_ended_is_counted_too(monkeypatch):
    monkeypatch.setattr(connections, "CONNECTION_WINDOW", 150_000)
    connection, _ = machine(Quiet())
    connection.receive(call(1) + frame(RST_STREAM, 0, 1, bytes(4)))
    connection.receive(frame(DATA, 0, 1, bytes(10_000)) * 8)
    given_back = [body for kind, _, stream, body in frames_of(connection.take_output()) if kind == WINDOW_UPDATE]
    assert [int.from_bytes(body) for body in given_back] == [80_005]
