"""A strict client (python-hyper's h2) and our machine, wired together in memory: what is asked, in which order, in which bytes.

A plan says what each call is. A seed decides the rest: who has the next turn, how many bytes arrive, when windows open and
shrink, how headers are packed and cut. h2 refuses anything that breaks the protocol or a window.
"""

import random
from collections import deque
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, SettingsAcknowledged, StreamEnded, StreamReset, TrailersReceived
from h2.settings import SettingCodes, Settings
from hpack import HeaderTuple, NeverIndexedHeaderTuple

from ister.transport.http2 import headers
from ister.transport.http2.connection import Http2Connection
from ister.transport.http2.frames import (
    CONTINUATION,
    END_HEADERS,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    WITH_PRIORITY,
    Code,
    frame,
)
from ister.transport.http2.messages import only_message, take_messages
from parts.http2 import fields, frames_of, message

ECHO, STREAM, REFUSE, BREAK_OFF = "echo", "stream", "refuse", "break off"
LIMIT = 1 << 20
TURNS_MAX = 20_000
UNKNOWN_KIND = 77


@dataclass(frozen=True)
class Plan:
    """What a call is: what is asked, and what the answer must be."""

    kind: str
    request: int
    parts: int
    messages: tuple[int, ...] = ()
    status: int = 0
    text: str = ""
    with_trailers: bool = False
    is_reset: bool = False


def content(call, number, size):
    return random.Random(f"{call} {number}").randbytes(size)


class Service:
    """Answers as the plans say."""

    def __init__(self, plans):
        self.plans = plans
        self.asked = {}
        self.seen = []
        self.gone = []
        self.turns = deque()
        self.moves = 0

    def opened(self, stream):
        number = int(stream.request.path[1:])
        plan = self.plans[number]
        assert [(name.decode(), value.decode()) for name, value in stream.request.fields] == self.asked[number]
        self.seen.append(number)
        stream.bind((number, plan, bytearray()))
        if plan.kind == REFUSE:
            stream.end(headers.end(plan.status, plan.text))

    def received(self, stream):
        number, plan, body = stream.call
        body += stream.body
        if plan.kind == BREAK_OFF:
            self.turns.append(self.writing(stream, number, plan))
            stream.bind((number, Plan("ending", 0, 0), body))
        elif stream.complete and plan.kind in {ECHO, STREAM}:
            asked = only_message(bytes(body), "identity", LIMIT)
            assert asked == content(number, "request", plan.request)
            if plan.kind == ECHO:
                stream.answer(asked, (("number", str(number)),) if plan.with_trailers else ())
            else:
                self.turns.append(self.writing(stream, number, plan))

    def abandoned(self, stream):
        assert stream.closed
        self.gone.append(stream.call[0])

    def writing(self, stream, number, plan):
        stream.start()
        for at, size in enumerate(plan.messages):
            if not stream.write(content(number, at, size)):
                wait = self.waiting(stream)
                while not wait:
                    yield False
                stream.on_drained(None)
            yield True
        stream.end(headers.end(plan.status, plan.text))

    @staticmethod
    def waiting(stream):
        if stream.closed:
            return [True]
        drained = []
        stream.on_drained(lambda: drained.append(True))
        return drained

    def turn(self):
        """Let one answer go on; return whether any could."""
        for _ in range(len(self.turns)):
            one = self.turns.popleft()
            moved = next(one, None)
            if moved is not None:
                self.turns.append(one)
            if moved is not False:
                self.moves += 1
                return True
        return False


@dataclass
class Asked:
    """A call as its client sees it."""

    number: int
    plan: Plan
    stream: int = 0
    parts: list = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    heads: list = field(default_factory=list)
    has_ended: bool = False
    code: int | None = None
    was_reset: bool = False

    @property
    def is_over(self):
        return self.has_ended or self.code is not None or self.was_reset


class Meeting:
    """Both ends, and the bytes between them."""

    def __init__(self, plans, seed, streams_max):
        self.chance = random.Random(seed)
        self.service = Service(plans)
        self.woken = False
        self.server = Http2Connection(self.service, self._wake, streams_max=streams_max)
        self.streams_max = streams_max
        self.client = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.window = self.chance.choice((0, 1, 100, 16_384, 65_535, 1_000_000))
        self.client.local_settings = Settings(
            client=True, initial_values={SettingCodes.INITIAL_WINDOW_SIZE: self.window}
        )
        self.is_known = False
        """Whether the first settings were acknowledged; h2 takes that for an answer to the second."""
        self._pack = self.client.encoder.encode
        self.client.encoder.encode = self._encode
        self.client.initiate_connection()
        self.waiting = deque(Asked(number, plan) for number, plan in enumerate(plans))
        self.calls = {}
        self.to_server, self.to_client = bytearray(), bytearray()
        self.drips = self.chance.random() < 0.2 and sum(plan.request + sum(plan.messages) for plan in plans) < 2000
        self.acts = (self.open, self.ask, self.hear, self.hear, self.flush, self.answer, self.answer, self.work)
        self.acts += (self.widen, self.resize, self.ping, self.give_up)

    def _wake(self):
        assert not self.woken, "one call is enough until the output is taken"
        self.woken = True

    def _encode(self, given, huffman=True):
        if self.chance.random() < 0.1:
            self.client.encoder.header_table_size = self.chance.choice((0, 64, 300, 4096))
        return self._pack(given, huffman=self.chance.random() < 0.5)

    # --- acts ---------------------------------------------------------------------------------------------------------

    def open(self):
        room = min(self.streams_max, self.client.remote_settings.max_concurrent_streams)
        if not self.waiting or self.client.open_outbound_streams >= room:
            return
        asked = self.waiting.popleft()
        chance, plan = self.chance, asked.plan
        more = [(f"key-{chance.randrange(4)}", chance.choice(("a", "bc" * 40, "d" * 3000))) for _ in range(2)]
        sent = fields(f"/{asked.number}", *more)
        self.service.asked[asked.number] = sent
        kind = chance.choice((HeaderTuple, NeverIndexedHeaderTuple))
        asked.stream = self.client.get_next_available_stream_id()
        self.client.send_headers(asked.stream, [kind(*one) for one in sent])
        body = message(content(asked.number, "request", plan.request))
        cuts = sorted(chance.randrange(len(body) + 1) for _ in range(plan.parts - 1))
        asked.parts = [body[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        self.calls[asked.stream] = asked
        self.speak()

    def ask(self):
        busy = [asked for asked in self.calls.values() if asked.parts and not asked.was_reset and asked.code is None]
        if not busy:
            return
        asked = self.chance.choice(busy)
        padding = self.chance.choice((None, None, 0, 1, 255))
        room = min(self.client.local_flow_control_window(asked.stream), self.client.max_outbound_frame_size)
        room -= 0 if padding is None else padding + 1
        part = asked.parts[0]
        if room <= 0:
            return
        asked.parts[0] = part[room:]
        if not asked.parts[0]:
            del asked.parts[0]
        is_last = not asked.parts and not asked.plan.with_trailers
        self.client.send_data(asked.stream, part[:room], end_stream=is_last, pad_length=padding)
        if not asked.parts and not is_last:
            self.client.send_headers(asked.stream, [("checksum", "12")], end_stream=True)
        self.speak()

    def speak(self):
        """Put what h2 has to send on the wire: headers cut and padded, and frames between that mean nothing."""
        data = self.client.data_to_send()
        if data.startswith(PREFACE):
            at = len(PREFACE) + 9 + int.from_bytes(data[len(PREFACE) : len(PREFACE) + 3])
            self.to_server += data[:at]
            data = data[at:]
        for kind, flags, stream, body in frames_of(data):
            if kind == HEADERS:
                self.to_server += self._cut(flags, stream, body)
            else:
                self.to_server += frame(kind, flags, stream, body)
            if self.chance.random() < 0.1:
                self.to_server += self.chance.choice(
                    (
                        frame(PRIORITY, 0, stream or 5, bytes(4) + b"\x10"),
                        frame(UNKNOWN_KIND, 255, stream, b"?"),
                        frame(PING, 0, 0, b"bandwith"),
                    )
                )

    def _cut(self, flags, stream, body):
        chance = self.chance
        cuts = sorted(chance.randrange(len(body) + 1) for _ in range(chance.choice((0, 0, 1, 3))))
        first, *others = [body[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        if chance.random() < 0.3:
            flags, first = flags | WITH_PRIORITY, bytes(4) + b"\xff" + first
        if chance.random() < 0.3:
            padding = chance.randrange(256)
            flags, first = flags | PADDED, bytes((padding,)) + first + bytes(padding)
        if others:
            flags &= ~END_HEADERS
        out = frame(HEADERS, flags, stream, first)
        for number, other in enumerate(others, 1):
            out += frame(CONTINUATION, END_HEADERS if number == len(others) else 0, stream, other)
        return out

    def _some_of(self, data):
        count = self.chance.randrange(1, 4) if self.drips else self.chance.choice((9, 100, 5000, 10**6, 10**6, 10**6))
        some = bytes(data[:count])
        del data[:count]
        return some

    def hear(self):
        if self.to_server:
            self.server.receive(self._some_of(self.to_server))

    def flush(self):
        if self.woken:
            self.woken = False
            self.to_client += self.server.take_output()

    def answer(self):
        if not self.to_client:
            return
        for event in self.client.receive_data(self._some_of(self.to_client)):
            match event:
                case DataReceived():
                    self.calls[event.stream_id].body += event.data
                case ResponseReceived() | TrailersReceived():
                    self.calls[event.stream_id].heads += event.headers
                case StreamEnded():
                    self.calls[event.stream_id].has_ended = True
                case StreamReset():
                    self.calls[event.stream_id].code = event.error_code
                case SettingsAcknowledged():
                    self.is_known = True
        self.speak()

    def work(self):
        self.service.turn()

    def _open_streams(self):
        return [asked for asked in self.calls.values() if not asked.is_over]

    def widen(self):
        more = self.chance.choice((1, 7, 3000, 65_535, 200_000))
        if self.chance.random() < 0.5:
            self.client.increment_flow_control_window(more)
        elif busy := self._open_streams():
            self.client.increment_flow_control_window(more, self.chance.choice(busy).stream)
        self.speak()

    def resize(self):
        if self.is_known and self.chance.random() < 0.3:
            size = self.chance.choice((0, 1, 50, 20_000, 65_535, 500_000))
            table = self.chance.choice((0, 30, 1000, 4096, 4096, 10_000))
            self.client.update_settings(
                {
                    SettingCodes.INITIAL_WINDOW_SIZE: size,
                    SettingCodes.HEADER_TABLE_SIZE: table,
                }
            )
            self.speak()

    def ping(self):
        if self.chance.random() < 0.3:
            self.client.ping(b"12345678")
            self.speak()

    def give_up(self):
        busy = [asked for asked in self._open_streams() if asked.plan.is_reset]
        if busy and self.chance.random() < 0.3:
            asked = self.chance.choice(busy)
            asked.was_reset = True
            self.client.reset_stream(asked.stream, Code.CANCEL)
            self.speak()

    # --- the whole ----------------------------------------------------------------------------------------------------

    def run(self):
        """Let chance decide for a while, then let everybody finish."""
        for _ in range(self.chance.randrange(20, 200)):
            self.chance.choice(self.acts)()
        self.speak()
        for _ in range(TURNS_MAX):
            before = self._state()
            for act in (self.open, self.ask, self.hear, self.work, self.flush, self.answer):
                act()
            if before == self._state():
                if not self._generous():
                    return self.calls.values()
                self.speak()
        raise AssertionError(f"it does not come to an end: {self._state()}")

    def _generous(self):
        """Open what is nearly shut, and return whether anything was: what did not move before has to move now."""
        opened = False
        for asked in self._open_streams():
            if self.client._get_stream_by_id(asked.stream)._inbound_window_manager.current_window_size < 500_000:
                self.client.increment_flow_control_window(1_000_000, asked.stream)
                opened = True
        if self.client._inbound_flow_control_window_manager.current_window_size < 500_000:
            self.client.increment_flow_control_window(1_000_000)
            opened = True
        return opened

    def _state(self):
        sent = sum(1 + len(part) for asked in self.calls.values() for part in asked.parts)
        got = sum(len(asked.body) + len(asked.heads) for asked in self.calls.values())
        turns = (self.service.moves, self.woken, self.server.window_out, len(self.server.streams))
        return (len(self.waiting), len(self.calls), len(self.to_server), len(self.to_client), sent, got, *turns)

    def judge(self, asked):
        """Check what a client got against what was planned."""
        plan, service = asked.plan, self.service
        buffer = bytearray(asked.body)
        got = take_messages(buffer, "identity", LIMIT)
        kept_back = {ECHO: (plan.request,), REFUSE: ()}.get(plan.kind, plan.messages)
        name = "request" if plan.kind == ECHO else None
        wanted = [content(asked.number, name or at, size) for at, size in enumerate(kept_back)]
        if asked.was_reset:
            assert got == wanted[: len(got)]
            return
        if asked.number not in service.seen:
            assert asked.code == Code.REFUSED_STREAM
            assert self.streams_max <= 2
            return
        assert (got, buffer) == (wanted, b"")
        assert asked.has_ended
        said = dict(asked.heads)
        assert (said[":status"], said["content-type"]) == ("200", "application/grpc")
        assert said["grpc-status"] == str(plan.status)
        assert ("number" in said) is (plan.kind == ECHO and plan.with_trailers)
        assert asked.code in {None, Code.NO_ERROR}
