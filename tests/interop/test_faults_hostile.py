"""Hostile bytes on every method of both planes and on bare sockets: refused, and the broker goes on serving (F40)."""

import asyncio
import random
import socket
import time
from collections import Counter

import grpc
import pytest

from interop import hostile
from interop.raw import LEAKED, OPTIONS
from interop.waiting import limited_to
from parts.counts import LONG

ANSWER_S_MAX = 20.0
STREAM_S = 0.02
"""How long a stream that is taken is looked at."""
GROWTH_MIB_MAX = 128
ABSURD_GROWTH_MIB_MAX = 256
"""What the allocator keeps of messages of 16 MiB, of which several are there at a time."""
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"
ABSURD_BYTES = (4 << 20, 5 << 20, 17 << 20, 64 << 20)
NEVER = {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.CANCELLED,
}


class Attack:
    """Calls with raw bytes, and a look at each answer."""

    def __init__(self, broker) -> None:
        self.channels = {
            plane: grpc.aio.insecure_channel(
                getattr(broker, plane), options=[*OPTIONS, ("grpc.max_send_message_length", -1)]
            )
            for plane in ("target", "admin_target")
        }
        self.codes: Counter[str] = Counter()

    async def close(self) -> None:
        for channel in self.channels.values():
            await channel.close()

    async def call(self, method: hostile.Method, data: bytes, stream_s: float = STREAM_S, **options) -> None:
        channel = self.channels[method.plane]
        options = {"timeout": ANSWER_S_MAX, **options}
        began = time.monotonic()
        try:
            if method.streams_in:
                assert method.streams_out, f"{method.path} takes a stream alone; teach this test to send one"
                await self._look(channel.stream_stream(method.path)(iter([data]), **options), stream_s)
            elif method.streams_out:
                await self._look(channel.unary_stream(method.path)(data, **options), stream_s)
            else:
                await channel.unary_unary(method.path)(data, **options)
        except grpc.aio.AioRpcError as error:
            self._judge(method, data, error)
        else:
            self.codes["OK"] += 1
        assert time.monotonic() - began < ANSWER_S_MAX / 2, f"{method.path} took its time for {data[:60]!r}"

    async def _look(self, call, stream_s: float) -> None:
        """Read once from a stream; one that has nothing to say for so long is left."""
        reading = asyncio.ensure_future(call.read())
        done, _ = await asyncio.wait([reading], timeout=stream_s)
        call.cancel()
        await asyncio.wait([reading])
        if done or not reading.cancelled():
            reading.result()

    def _judge(self, method: hostile.Method, data: bytes, error: grpc.aio.AioRpcError) -> None:
        code, text = error.code(), error.details() or ""
        self.codes[code.name] += 1
        told = f"{method.path} answered {data[:80]!r} with {code}: {text}"
        assert code not in NEVER, told
        assert "bug in the broker" not in text, told
        assert LEAKED.search(text) is None, told


def methods_of(broker) -> list[hostile.Method]:
    found = [
        *hostile.methods_of("target", broker.target),
        *hostile.methods_of("admin_target", broker.admin_target),
    ]
    assert len(found) > 60
    for plane in ("target", "admin_target"):
        paths = {method.path for method in found if method.plane == plane}
        assert {"/grpc.health.v1.Health/Watch", f"/{REFLECTION}/ServerReflectionInfo"} <= paths
    return found


def hostile_bytes(method: hostile.Method, trial: int) -> bytes:
    """Return the same bytes for the same trial: nothing, then something that is no message, then a senseless message."""
    rng = random.Random(f"{method.plane} {method.path} {trial}")
    if trial == 0:
        return b""
    if trial % 2:
        return hostile.random_bytes(method.request, rng)
    return hostile.random_message(method.request, rng).SerializeToString()


@limited_to(3600 if LONG else 600)
async def test_f40_hostile_bytes_on_every_method_are_refused_and_nothing_breaks(victim, topic, count, tell):
    calls = count(10_000, 100_000)
    broker = victim
    methods = methods_of(broker)
    cases = [(method, trial) for method in methods for trial in range(-(-calls // len(methods)))]
    assert len(cases) >= calls
    random.Random(40).shuffle(cases)
    before = broker.rss_mib()
    attack = Attack(broker)
    try:
        waiting = iter(cases)

        async def lane() -> None:
            for method, trial in waiting:
                await attack.call(method, hostile_bytes(method, trial))

        async with asyncio.TaskGroup() as lanes:
            for _ in range(8):
                lanes.create_task(lane())
        assert broker.rss_mib() - before < GROWTH_MIB_MAX
        assert broker.is_alive
        await serves(broker, topic)
    finally:
        await attack.close()
    common = ", ".join(f"{name} {number}" for name, number in attack.codes.most_common())
    tell("F40", f"{len(cases)} calls on {len(methods)} methods: {common}")


@limited_to(600)
async def test_f40_absurd_sizes_are_refused_on_every_method_within_bounded_memory(victim, topic, tell):
    broker = victim
    methods = methods_of(broker)
    before = broker.rss_mib()
    attack = Attack(broker)
    calls = 0
    try:
        for method in methods:
            await attack.call(method, bytes(ABSURD_BYTES[1]), ANSWER_S_MAX)
            calls += 1
        for method in methods[:: 1 if LONG else 12]:
            for size in ABSURD_BYTES:
                # A field that nobody knows, of that size: well-formed, and only too large.
                data = b"\xfa\x7f" + _varint(size) + bytes(size)
                await attack.call(method, data, ANSWER_S_MAX)
                await attack.call(method, data, ANSWER_S_MAX, compression=grpc.Compression.Gzip)
                calls += 2
        assert attack.codes["OK"] == 0
        assert broker.rss_mib() - before < ABSURD_GROWTH_MIB_MAX
        grown = []
        for _ in range(2):  # the first time, the allocator takes what it keeps for the second
            for method in methods:
                await attack.call(method, bytes(15 << 20), ANSWER_S_MAX)
                calls += 1
            grown.append(broker.rss_mib())
        assert grown[1] - grown[0] < GROWTH_MIB_MAX, "what was refused is let go"
        await serves(broker, topic)
    finally:
        await attack.close()
    tell("F40", f"{calls} calls of 4 to 64 MiB, some compressed: {dict(attack.codes)}")


async def test_f40_unknown_methods_are_unimplemented(broker):
    async with grpc.aio.insecure_channel(broker.target) as channel:
        for path in ("/danube.ProducerService/Nothing", "/no.Such/Method", "/", "/x", "/danube.ProducerService/"):
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await channel.unary_unary(path)(b"", timeout=30)
            assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED, path


async def test_f40_garbage_on_every_port_harms_nobody(victim, topic, count, tell):
    broker = victim
    rng = random.Random(40)
    rounds = count(20, 500)
    openings = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"GET " + b"/x" * 100_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 500,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000006040000000000000300000064") * 2000,
        b"\x00" * 10_000,
        b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 10_000,
    ]
    for _ in range(rounds):
        for port in (broker.port, broker.admin_port, broker.prom_port):
            data = rng.choice([*openings, rng.randbytes(rng.randrange(3000))])
            await asyncio.to_thread(_poke, port, data)
    assert broker.is_alive
    await serves(broker, topic)
    tell("F40", f"{3 * rounds} connections with garbage on all three ports")


def _poke(port: int, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as peer:
        peer.settimeout(0.02)
        try:
            peer.sendall(data)
            while peer.recv(65536):
                pass
        except (TimeoutError, ConnectionError):
            pass


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


async def serves(broker, topic: str) -> None:
    """Insist that the broker still does its work on both planes."""
    assert broker.is_ready()
    async with broker.raw() as raw:
        await raw.create_topic(topic)
        stream = await raw.consume(topic, "sub")
        await raw.send(topic, await raw.create_producer(topic), b"still here")
        message = await stream.next()
        assert message.payload == b"still here"
        await raw.ack(message, "sub")
        stream.cancel()
