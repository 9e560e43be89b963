"""The other end of the wire, by hand: frames to send and to read, and owners of calls that tell what they were told."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import grpc
from hpack import Decoder, Encoder

from ister.transport.http2 import frames
from ister.transport.http2.connection import Http2Connection
from ister.transport.http2.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    BrokenProtocolError,
    Code,
    frame,
)
from parts.binding import NAME, WAIT_S

GREETING = PREFACE + frame(SETTINGS, 0, 0)
LARGEST = frames.FRAME_BYTES_MAX


def fields(path=f"/{NAME}/SendMessage", *more, method="POST", content_type="application/grpc"):
    head = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "here")]
    return [*head, ("content-type", content_type), ("te", "trailers"), *more]


def block(*arguments, **named):
    """Headers that ask nobody to remember anything: they mean the same wherever they stand."""
    encoder = Encoder()
    encoder.header_table_size = 0
    return encoder.encode(fields(*arguments, **named), huffman=False)


BLOCK = block()


def headers(stream, flags=END_HEADERS, body=BLOCK):
    return frame(HEADERS, flags, stream, body)


def message(data, flag=0):
    return bytes((flag,)) + len(data).to_bytes(4) + data


def call(stream, data=b"", body=BLOCK):
    """A whole request."""
    return headers(stream, body=body) + frame(DATA, END_STREAM, stream, message(data))


def frames_of(data):
    """Yield kind, flags, stream and body of every frame; there must be nothing else."""
    at = 0
    while at < len(data):
        high, low, kind, flags, stream = HEAD.unpack_from(data, at)
        at += HEAD_BYTES + (high << 16) + low
        assert at <= len(data), "a frame is not whole"
        yield kind, flags, stream, data[at - (high << 16) - low : at]


def kinds(data):
    return Counter(kind for kind, *_ in frames_of(data))


def resets(data):
    """Return which streams were reset, and why."""
    return {stream: Code(int.from_bytes(body)) for kind, _, stream, body in frames_of(data) if kind == RST_STREAM}


def ends(data):
    """Return the last headers of every stream that was ended."""
    return {
        stream: dict(Decoder().decode(body))
        for kind, flags, stream, body in frames_of(data)
        if kind == HEADERS and flags & END_STREAM
    }


@dataclass
class Told:
    """An owner of calls that does nothing but remember."""

    opened_: list = field(default_factory=list)
    received_: list = field(default_factory=list)
    abandoned_: list = field(default_factory=list)

    def opened(self, stream):
        self.opened_.append(stream)

    def received(self, stream):
        self.received_.append((stream.id, stream.body, stream.complete))

    def abandoned(self, stream):
        self.abandoned_.append(stream.id)


class Quiet(Told):
    """One that does not even remember: for floods, where only the machine's own memory is to be seen."""

    def opened(self, stream):
        pass

    received = abandoned = opened


def machine(told=None, **options):
    """Return a connection that was greeted, what its owner is told, and nothing to send."""
    told = Told() if told is None else told
    connection = Http2Connection(told, lambda: None, **options)
    connection.receive(GREETING)
    connection.take_output()
    return connection, told


def refused(connection, data):
    """Return why the connection ends with these bytes."""
    try:
        connection.receive(data)
    except BrokenProtocolError as error:
        return error.code
    return None


def kept_bytes(connection):
    """What a connection holds of what its peer sent and of what it is to be sent."""
    held = len(connection._rest) + len(connection._block or b"") + sum(map(len, connection._out))
    return held + sum(stream.unsent_bytes + len(stream.body) for stream in connection.streams.values())


# --- on a real socket -------------------------------------------------------------------------------------------------


class Wire:
    """A client that says exactly what it is told to say."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    def send(self, *parts):
        self.writer.write(b"".join(parts))

    async def frame(self):
        async with asyncio.timeout(WAIT_S):
            head = await self.reader.readexactly(HEAD_BYTES)
            high, low, kind, flags, stream = HEAD.unpack(head)
            return kind, flags, stream, await self.reader.readexactly((high << 16) + low)

    async def until(self, wanted, stream=None):
        """Return the next frame of this kind."""
        while True:
            found = await self.frame()
            if found[0] == wanted and stream in {None, found[2]} and not (wanted == SETTINGS and found[1] & ACK):
                return found

    async def end(self, stream):
        """Return the headers that end a call."""
        while True:
            _, flags, _, body = await self.until(HEADERS, stream)
            if flags & END_STREAM:
                return dict(Decoder().decode(body))

    async def ends(self, count):
        """Return the headers that end the next so many calls, whichever they are."""
        found = {}
        while len(found) < count:
            _, flags, stream, body = await self.until(HEADERS)
            if flags & END_STREAM:
                found[stream] = dict(Decoder().decode(body))
        return found

    async def answer(self, stream, data=b"", body=BLOCK):
        """Make a call, and return what ends it."""
        self.send(call(stream, data, body))
        return await self.end(stream)

    async def last_words(self):
        """Return why the server ends the connection, and see it do so."""
        _, _, _, body = await self.until(GOAWAY)
        await self.closed()
        return Code(int.from_bytes(body[4:8]))

    async def closed(self):
        """Wait until the server ends the connection, in whichever way."""
        async with asyncio.timeout(WAIT_S):
            with suppress(ConnectionResetError):
                while await self.reader.read(100_000):
                    pass


@asynccontextmanager
async def wire(port, greeting=GREETING):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(greeting)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


def nothing_is_left(server):
    """Whether the server has forgotten every call of everybody."""
    mine = server._calls
    streams = [stream for peer in server._connections for stream in peer._connection.streams]
    return not (mine.running or mine._streams or mine._finishing or mine.budget.bytes or streams)


def code(ended):
    """Return what status a call ended with."""
    return {one.value[0]: one for one in grpc.StatusCode}[int(ended["grpc-status"])]


async def eventually(condition):
    """Let the others have their turns until this is so, but not for ever."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  # what it looks at has no event
            await asyncio.sleep(0)
