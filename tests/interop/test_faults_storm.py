"""A storm of reconnects and peers that are only half there: afterwards the broker is as it was before (F38)."""

import asyncio
import gc
import random
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from interop.raw import SHARED, Raw
from interop.waiting import eventually, limited_to
from parts.counts import LONG

TOGETHER = 50
"""So many clients are connected at the same time; more would measure this process."""
FROZEN = 5
SETTLE_S = 60.0


async def one_client(broker, topic: str, number: int, rng: random.Random) -> None:
    """Come, do something, and leave in one of several ways."""
    client = Raw(broker.target, broker.admin_target)
    try:
        producer = await client.create_producer(topic, f"storm-{number % 20}")
        consumer = await client.subscribe(topic, "storm", f"storm-{number % 20}", SHARED)
        stream = client.receive(consumer)
        match rng.randrange(4):
            case 0:
                await client.send(topic, producer, b"storm")
            case 1:
                sending = asyncio.ensure_future(client.send(topic, producer, b"cut short"))
                await asyncio.sleep(0)
                sending.cancel()
                await asyncio.wait([sending])
                assert sending.cancelled() or sending.exception() is None
            case 2:
                await client.send(topic, producer, b"storm")
                with suppress(AssertionError):  # another of the same name may have taken over
                    await stream.next(0.05)
            case 3:
                again = client.receive(consumer)
                with suppress(AssertionError):
                    await again.next(0.05)
    finally:
        await client.close()


def half_open(port: int, rng: random.Random) -> socket.socket:
    """Connect, say half of what a client says, and go silent."""
    peer = socket.create_connection(("127.0.0.1", port))
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
    peer.sendall(preface[: rng.randrange(len(preface) + 1)])
    return peer


@limited_to(1800 if LONG else 600)
async def test_f38_after_a_storm_tasks_and_descriptors_are_what_they_were(own_broker, topic, count, tell):
    clients = count(200, 500)
    broker = own_broker(descriptors=1024)
    rng = random.Random(38)
    async with broker.raw() as raw:
        await raw.create_topic(topic)
        await raw.subscribe(topic, "storm", "first", SHARED)
    for number in range(4):  # whatever is made once is there before we count
        await one_client(broker, topic, number, random.Random(number))

    def state() -> tuple[int, int]:
        gc.collect()  # a call that was cut short keeps its connection open on our side until it is collected
        return broker.open_descriptors(), int(broker.metrics()["ister_event_loop_tasks"])

    baseline = await steady(state)
    peers = [half_open(port, rng) for port in (broker.port, broker.admin_port, broker.prom_port) for _ in range(10)]
    frozen = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "interop.frozen_client", broker.target, broker.admin_target, topic, str(FROZEN),
        stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    try:
        async with broker.raw() as raw:
            await raw.send(topic, await raw.create_producer(topic, "feeds the frozen"), b"held by a frozen client")
        assert await asyncio.wait_for(frozen.stdout.readline(), 60) == b"open\n"
        frozen.send_signal(signal.SIGSTOP)
        waiting = iter(range(clients))

        async def lane() -> None:
            for number in waiting:
                await one_client(broker, topic, number, rng)

        async with asyncio.TaskGroup() as lanes:
            for _ in range(TOGETHER):
                lanes.create_task(lane())
        for peer in peers:
            peer.close()
        await eventually(lambda: state() == baseline, lambda: f"from {state()} back to {baseline}", SETTLE_S)
    finally:
        frozen.kill()
        await frozen.wait()
    assert await steady(state) == baseline
    async with broker.raw() as raw:
        stream = await raw.consume(topic, "storm", "first", SHARED)
        assert (await stream.next()).payload, "what the departed held is due again"
        stream.cancel()
    tell("F38", f"{clients} clients, {len(peers)} half-open peers, {FROZEN} frozen streams; then {baseline} again")


async def steady(state) -> tuple[int, int]:
    """Wait until the broker is at rest: the same state for a second and a half."""
    seen = []

    async def same():
        seen.append(state())
        await asyncio.sleep(0.3)
        return len(seen) > 5 and len(set(seen[-6:])) == 1

    await eventually(same, lambda: f"the broker is at rest, and not {seen[-6:]}", SETTLE_S)
    return seen[-1]


async def test_f38_a_frozen_consumer_is_noticed_and_what_it_held_goes_to_others(broker, topic):
    async with broker.raw() as raw:
        await raw.create_topic(topic)
        producer = await raw.create_producer(topic)
        await raw.subscribe(topic, "storm", "frozen-0", SHARED)
        await raw.send(topic, producer, b"precious")
        frozen = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "interop.frozen_client", broker.target, broker.admin_target, topic, "1",
            stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[1],
        )  # fmt: skip
        try:
            assert await asyncio.wait_for(frozen.stdout.readline(), 60) == b"open\n"
            frozen.send_signal(signal.SIGSTOP)
            stream = await raw.consume(topic, "storm", "lively", SHARED)
            assert (await stream.next(15)).payload == b"precious"
            stream.cancel()
        finally:
            frozen.kill()
            await frozen.wait()
