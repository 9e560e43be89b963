"""Fork a writer, kill -9 it in mid-flight, open its log, check everything it had acknowledged; again and again (F6).

Run as a process of its own, because a fork needs a process without threads: kill_loop.py DIRECTORY KILLS SEED.
"""

import asyncio
import json
import os
import random
import select
import signal
import struct
import sys
import time
from hashlib import blake2b
from pathlib import Path

import structlog

from ister.core.frames.columns import decode_messages
from ister.core.frames.frame import encode_message
from ister.core.frames.warm import warm
from ister.core.message import StreamMessage
from ister.core.offsets import StartPosition
from ister.wal import Wal, WalConfig

ACK = struct.Struct("<QII")
OPEN_SECONDS_MAX = 5.0


def config(directory: Path, life: int) -> WalConfig:
    mode = ("periodic", "always", "none")[life % 3]
    return WalConfig(
        dir=directory, topic="/default/kill", sync_mode=mode, fsync_interval_ms=5, max_bytes=300_000, cache_capacity=100
    )


def payload(life: int, number: int) -> bytes:
    seed = b"%d/%d" % (life, number)
    return seed + blake2b(seed).digest() * (1 + number % 7)


async def write(directory: Path, life: int, pipe: int) -> None:
    wal = await Wal.with_config(config(directory, life))
    numbers = iter(range(10**9))

    async def task(kind: int) -> None:
        while True:
            if kind:
                number = next(numbers)
                offset = await wal.append(StreamMessage(payload(life, number)))
                os.write(pipe, ACK.pack(offset, life, number))
            else:
                batch = [next(numbers) for _ in range(5)]
                offsets = await wal.append_batch([StreamMessage(payload(life, n)) for n in batch])
                os.write(pipe, b"".join(ACK.pack(o, life, n) for o, n in zip(offsets, batch, strict=True)))

    await asyncio.gather(*(task(kind) for kind in range(8)))


async def read_new(directory: Path, life: int, start: int) -> tuple[int, list[bytes], float]:
    began = time.monotonic()
    wal = await Wal.with_config(config(directory, life))
    spent = time.monotonic() - began
    found = []
    reader = wal.create_reader(StartPosition.offset(start))
    for expected in range(start, wal.next_offset):
        message = await anext(reader)
        assert message.offset == expected, (message.offset, expected)
        found.append(message.payload)
    stop = wal.next_offset
    await wal.close()
    return stop, found, spent


def one_life(directory: Path, life: int, rng: random.Random) -> dict[int, bytes]:
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        asyncio.run(write(directory, life, send))
        os._exit(1)
    os.close(send)
    data = b""
    until = None
    while until is None or time.monotonic() < until:
        ready, _, _ = select.select([receive], [], [], 20 if until is None else max(0.0, until - time.monotonic()))
        if ready:
            data += os.read(receive, 1 << 20)
            if until is None:
                until = time.monotonic() + rng.random() * 0.04
        elif until is None:
            raise SystemExit("the writer acknowledged nothing in 20 s")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(receive, 1 << 20):
        data += more
    os.close(receive)
    return {
        offset: payload(life, number)
        for offset, life, number in ACK.iter_unpack(data[: len(data) // ACK.size * ACK.size])
    }


def main(directory: Path, kills: int, seed: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    warm()
    decode_messages(encode_message(StreamMessage(b""), 0, 0))
    rng = random.Random(seed)
    everything: list[bytes] = []
    acked = 0
    slowest = 0.0
    for life in range(kills):
        promised = one_life(directory, life, rng)
        stop, found, spent = asyncio.run(read_new(directory, life, len(everything)))
        everything += found
        slowest = max(slowest, spent)
        assert stop == len(everything)
        for offset, expected in promised.items():
            assert offset < stop, f"life {life}: acknowledged offset {offset} is lost, the log ends at {stop}"
            assert everything[offset] == expected, f"life {life}: offset {offset} holds another message"
        acked += len(promised)
    assert len(set(everything)) == len(everything), "a message is there twice"
    _, again, _ = asyncio.run(read_new(directory, 0, 0))
    assert again == everything, "a second replay differs from the first"
    assert slowest < OPEN_SECONDS_MAX
    print(
        json.dumps(
            {"kills": kills, "acknowledged": acked, "recovered": len(everything), "slowest_open_s": round(slowest, 3)}
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
