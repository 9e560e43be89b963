"""The machine alone, without a socket: against a strict client in every order, and rule by rule."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ister.transport.http2 import connection as connections
from ister.transport.http2 import frames
from ister.transport.http2 import stream as streams
from ister.transport.http2.connection import IDLE_FRAMES_MAX, Http2Connection
from ister.transport.http2.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Code,
    Setting,
    frame,
)
from ister.transport.http2.frames import settings as settings_frame
from ister.transport.http2.headers import end
from ister.transport.http2.stream import UNSENT_BYTES_MAX
from parts.counts import LONG
from parts.http2 import BLOCK, Told, call, ends, frames_of, headers, machine, message, refused, resets
from parts.http2_model import BREAK_OFF, ECHO, REFUSE, STREAM, Meeting, Plan

EXAMPLES = 20_000 if LONG else 1000

SIZES = st.one_of(st.integers(0, 40), st.integers(0, 200_000))
PLANS = st.builds(
    Plan,
    kind=st.sampled_from((ECHO, STREAM, STREAM, REFUSE, BREAK_OFF)),
    request=SIZES,
    parts=st.integers(1, 5),
    messages=st.lists(SIZES, max_size=4).map(tuple),
    status=st.integers(1, 16),
    text=st.sampled_from(("", "no", "nein, über 100 %", "x" * 1000)),
    with_trailers=st.booleans(),
    is_reset=st.sampled_from((False, False, False, True)),
).map(lambda plan: Plan(**{**vars(plan), "status": 0}) if plan.kind == ECHO else plan)


@pytest.fixture(scope="module", autouse=True)
def narrow():
    """Our own windows as small as they may be, so that they are used up and opened again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "STREAM_WINDOW", 70_000)
        patch.setattr(connections, "CONNECTION_WINDOW", 140_000)
        yield


# Not shrunk: that takes minutes, and a plan with its seed is short enough to be run again by hand.
@settings(max_examples=EXAMPLES, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.lists(PLANS, min_size=1, max_size=6), st.integers(0, 2**32), st.sampled_from((1, 2, 100, 100)))
def test_every_message_of_every_call_arrives_whole_once_and_in_order_at_a_strict_client(plans, seed, streams_max):
    meeting = Meeting(plans, seed, streams_max)
    calls = list(meeting.run())
    assert len(calls) == len(plans)
    for asked in calls:
        meeting.judge(asked)
    server = meeting.server
    assert server.streams == {}
    assert (server._blocked, server._out, server._rest, server._block) == ({}, [], b"", None)
    assert meeting.service.turn() is False
    assert len(meeting.service.seen) == len(set(meeting.service.seen))


def opened(*options, **named):
    connection, told = machine(*options, **named)
    connection.receive(headers(1))
    return connection, told.opened_[0], told


def data_of(out, stream=1):
    return b"".join(body for kind, _, number, body in frames_of(out) if (kind, number) == (DATA, stream))


def test_nothing_is_said_before_the_peer_speaks_http2():
    woken = []
    connection = Http2Connection(Told(), lambda: woken.append(1))
    assert connection.take_output() == b""
    for byte in PREFACE[:-1]:
        connection.receive(bytes((byte,)))
    assert (connection.take_output(), connection.prefaced, woken) == (b"", False, [])
    connection.receive(PREFACE[-1:])
    (kind, _, _, body), (update, _, _, more) = frames_of(connection.take_output())
    assert (kind, update, connection.prefaced, woken) == (SETTINGS, WINDOW_UPDATE, True, [1])
    said = {int.from_bytes(body[at : at + 2]): int.from_bytes(body[at + 2 : at + 6]) for at in range(0, len(body), 6)}
    assert said[Setting.INITIAL_WINDOW_SIZE] == streams.STREAM_WINDOW
    assert said[Setting.MAX_CONCURRENT_STREAMS] == connections.STREAMS_MAX
    assert int.from_bytes(more) == connections.CONNECTION_WINDOW - 65_535


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"PRI * HTTP/1", b"\0"])
def test_f40_what_is_not_http2_is_refused_and_not_answered_in_it(first):
    connection = Http2Connection(Told(), lambda: None)
    assert refused(connection, first) is Code.PROTOCOL_ERROR
    assert (connection.prefaced, connection.take_output()) == (False, b"")


def test_a_call_that_waits_for_its_window_takes_what_the_window_gives_and_no_more():
    connection, stream, _ = opened()
    connection.receive(settings_frame({Setting.INITIAL_WINDOW_SIZE: 10}))
    assert stream.write(bytes(range(40))) is True
    stream.end(end(0))
    sent = data_of(connection.take_output())
    assert len(sent) == 10
    connection.receive(settings_frame({Setting.INITIAL_WINDOW_SIZE: 3}))
    assert stream.window_out == -7
    connection.receive(frames.window_update(1, 7))
    assert data_of(connection.take_output()) == b""
    connection.receive(frames.window_update(1, 5))
    sent += data_of(connection.take_output())
    assert len(sent) == 15
    connection.receive(settings_frame({Setting.INITIAL_WINDOW_SIZE: 100}))
    out = connection.take_output()
    assert sent + data_of(out) == message(bytes(range(40)))
    assert ends(out) == {1: {"grpc-status": "0"}}
    assert connection.streams == {}


def test_streams_share_a_connections_window_in_turns():
    connection, told = machine()
    connection.receive(settings_frame({Setting.INITIAL_WINDOW_SIZE: 2**20}) + headers(1) + headers(3))
    for stream in told.opened_:
        stream.write(bytes(100_000))
    assert len(data_of(connection.take_output(), 1)) == connection.window_out + 65_535
    got = {1: 65_535, 3: 0}
    for _ in range(6):
        connection.receive(frames.window_update(0, 10_000))
        out = connection.take_output()
        for number in got:
            got[number] += len(data_of(out, number))
    assert got == {1: 95_535, 3: 30_000}


def test_a_writer_is_told_to_wait_and_told_to_go_on_when_little_is_left():
    connection, stream, _ = opened()
    connection.receive(settings_frame({Setting.INITIAL_WINDOW_SIZE: 0}))
    assert stream.write(bytes(UNSENT_BYTES_MAX - 6)) is True
    assert stream.write(b"") is False
    drained = []
    stream.on_drained(lambda: drained.append(stream.unsent_bytes))
    connection.receive(frames.window_update(1, 4))
    connection.take_output()
    assert drained == []
    connection.receive(frames.window_update(1, 1))
    connection.take_output()
    assert drained == [UNSENT_BYTES_MAX - 1]


@pytest.mark.parametrize("how", ["reset", "answered"])
def test_a_writer_that_waits_is_told_when_its_call_is_over(how):
    connection, stream, told = opened()
    drained = []
    stream.on_drained(lambda: drained.append(stream.closed))
    if how == "reset":
        stream.start()
        connection.take_output()
        stream.write(b"not sent")
        connection.receive(frame(RST_STREAM, 0, 1, bytes(4)))
        assert told.abandoned_ == [1]
        assert stream.write(bytes(10**6)) is True, "nobody is kept waiting by a client that has gone"
        stream.end(end(0))
        stream.answer(b"")
        assert connection.take_output() == b""
    else:
        stream.answer(b"")
    assert drained == [True]
    assert (connection.streams, connection._blocked) == ({}, {})


def test_an_answer_before_the_request_is_whole_tells_the_client_to_stop():
    connection, stream, told = opened()
    stream.end(end(5, "no"))
    connection.receive(frame(DATA, 0, 1, b"still sending"))
    out = connection.take_output()
    assert [kind for kind, *_ in frames_of(out)] == [HEADERS, RST_STREAM]
    assert resets(out) == {1: Code.NO_ERROR}
    assert told.received_ == []
    connection.receive(frame(DATA, END_STREAM, 1, b"and the end") + call(3))
    assert [number for number, *_ in told.received_] == [3]
    assert connection.take_output() == b""


def test_a_request_ends_with_its_headers_with_data_or_with_trailers():
    connection, told = machine()
    last = END_HEADERS | END_STREAM
    connection.receive(headers(1, last) + headers(3) + frame(DATA, END_STREAM, 3, b"x") + headers(5))
    connection.receive(headers(5, last, b""))
    assert told.received_ == [(1, b"", True), (3, b"x", True), (5, b"", True)]


def test_a_call_that_was_sent_before_our_goodbye_was_read_harms_no_other():
    connection, stream, told = opened()
    connection.go_away(Code.NO_ERROR, "")
    late = call(3, b"late") + frame(RST_STREAM, 0, 3, bytes(4)) + frames.window_update(3, 5)
    connection.receive(late + headers(5, body=BLOCK) + headers(5, END_HEADERS | END_STREAM, b""))
    assert [one.id for one in told.opened_] == [1]
    connection.receive(frame(DATA, END_STREAM, 1, message(b"first")))
    stream.answer(b"done")
    out = connection.take_output()
    [goodbye] = [body for kind, _, _, body in frames_of(out) if kind == GOAWAY]
    assert goodbye[:8] == bytes((0, 0, 0, 1, 0, 0, 0, 0))
    assert data_of(out) == message(b"done")
    assert refused(connection, frame(DATA, 0, 4, b"")) is Code.PROTOCOL_ERROR


def test_a_long_answer_that_moves_makes_room_for_a_clients_settings():
    connection, stream, _ = opened()
    for _ in range(5):
        connection.receive(frame(SETTINGS, 0, 0) * (IDLE_FRAMES_MAX - 1))
        stream.write(b"moves")
        connection.take_output()
    assert refused(connection, frame(SETTINGS, 0, 0) * (IDLE_FRAMES_MAX + 1)) is Code.ENHANCE_YOUR_CALM


SHRUNK = b"\x20"


@pytest.mark.parametrize("how", ["answer", "start", "end", "last"])
def test_a_peer_whose_table_is_small_is_told_once_that_we_use_none(how):
    connection, stream, _ = opened()
    if how == "last":
        stream.start()
        connection.take_output()
    connection.receive(settings_frame({Setting.HEADER_TABLE_SIZE: 100}))
    connection.receive(settings_frame({Setting.HEADER_TABLE_SIZE: 4096}) + headers(3, END_HEADERS | END_STREAM))
    other = connection.streams[3]
    if how == "answer":
        stream.complete = True
        stream.answer(b"")
    elif how == "start":
        stream.start()
    else:
        stream.end(end(0))
    other.answer(b"")
    sent = [(number, body) for kind, _, number, body in frames_of(connection.take_output()) if kind == HEADERS]
    assert [body.startswith(SHRUNK) for _, body in sent].count(True) == 1
    assert sent[0][1].startswith(SHRUNK), "the first block behind our acknowledgement"
    connection.receive(settings_frame({Setting.HEADER_TABLE_SIZE: 0}) + headers(5, END_HEADERS | END_STREAM))
    connection.streams[5].answer(b"")
    sent = [body for kind, _, _, body in frames_of(connection.take_output()) if kind == HEADERS]
    assert not any(body.startswith(SHRUNK) for body in sent), "nothing is smaller than nothing"


@pytest.mark.parametrize("size", [4096, 5000, 2**32 - 1])
def test_a_peer_whose_table_is_large_enough_is_told_nothing_of_it(size):
    connection, stream, _ = opened()
    connection.receive(settings_frame({Setting.HEADER_TABLE_SIZE: size}))
    stream.end(end(0))
    sent = [body for kind, _, _, body in frames_of(connection.take_output()) if kind == HEADERS]
    assert not any(body.startswith(SHRUNK) for body in sent)


@pytest.mark.parametrize("first", [b"", PREFACE[:10]])
def test_nothing_is_asked_or_said_of_a_peer_that_has_not_spoken(first):
    connection = Http2Connection(Told(), lambda: None)
    connection.receive(first)
    connection.ping()
    connection.announce_shutdown()
    connection.go_away(Code.NO_ERROR)
    assert connection.take_output() == b""


def test_a_client_that_only_answers_our_pings_is_never_taken_for_a_flood():
    connection, _ = machine()
    for _ in range(3 * IDLE_FRAMES_MAX):
        connection.ping()
        [(_, _, _, asked)] = frames_of(connection.take_output())
        connection.receive(frame(PING, ACK, 0, asked))
    assert refused(connection, frame(PING, ACK, 0, bytes(8)) * (IDLE_FRAMES_MAX + 1)) is Code.ENHANCE_YOUR_CALM


def test_windows_are_not_given_back_while_the_owner_holds_the_peer_back():
    connection, _, _ = opened()
    connection.pause_window()
    connection.receive(b"".join(frame(DATA, 0, 1, bytes(10_000)) for _ in range(6)))
    connection.receive(headers(3) + b"".join(frame(DATA, 0, 3, bytes(10_000)) for _ in range(6)))
    assert [
        stream for kind, _, stream, _ in frames_of(connection.take_output()) if kind == WINDOW_UPDATE and not stream
    ] == []
    connection.resume_window()
    [(kind, _, stream, more)] = frames_of(connection.take_output())
    assert (kind, stream, int.from_bytes(more), connection.is_paused) == (WINDOW_UPDATE, 0, 120_000, False)
    connection.resume_window()
    assert connection.take_output() == b""


def test_calls_that_go_on_without_their_clients_are_counted_among_those_that_may_be():
    connection, told = machine(streams_max=3)
    connection.begin_lingering()
    connection.begin_lingering()
    connection.receive(call(1) + call(3))
    assert (list(connection.streams), resets(connection.take_output())) == ([1], {3: Code.REFUSED_STREAM})
    connection.end_lingering()
    connection.end_lingering()
    connection.receive(call(5))
    assert [stream.id for stream in told.opened_] == [1, 5]


def test_windows_of_ours_are_opened_again_when_half_is_used():
    connection, _, _ = opened()
    half = streams.STREAM_WINDOW // 2
    given_back = []
    for _ in range(8):
        for size in (half // 3,) * 3:
            connection.receive(frame(DATA, 0, 1, bytes(size)))
        given_back += [
            (stream, int.from_bytes(body))
            for kind, _, stream, body in frames_of(connection.take_output())
            if kind == WINDOW_UPDATE
        ]
    used = 8 * 3 * (half // 3)
    for number, window in ((1, streams.STREAM_WINDOW), (0, connections.CONNECTION_WINDOW)):
        returned = sum(more for stream, more in given_back if stream == number)
        assert used - window // 2 <= returned <= used


def test_a_message_counts_as_sent_once_the_peers_windows_have_let_its_last_byte_go():
    """J8."""
    connection, stream, _ = opened()
    connection.receive(settings_frame({Setting.INITIAL_WINDOW_SIZE: 0}))
    sent = []
    for number in range(3):
        assert stream.write(bytes(10)) is True
        stream.when_sent(lambda number=number: sent.append(number))
    connection.take_output()
    assert sent == [], "no byte of them has left"
    for more, gone in ((14, []), (1, [0]), (16, [0, 1]), (100, [0, 1, 2])):
        connection.receive(frames.window_update(1, more))
        connection.take_output()
        assert sent == gone
    stream.when_sent(lambda: sent.append("at once"))
    assert sent[-1] == "at once"


def test_nothing_counts_as_sent_of_a_call_that_ends_before():
    """J8."""
    connection, stream, _ = opened()
    connection.receive(settings_frame({Setting.INITIAL_WINDOW_SIZE: 0}))
    sent = []
    stream.write(b"x")
    stream.when_sent(lambda: sent.append(1))
    connection.receive(frame(RST_STREAM, 0, 1, bytes(4)))
    stream.when_sent(lambda: sent.append(2))
    connection.receive(frames.window_update(0, 100))
    connection.take_output()
    assert sent == []
