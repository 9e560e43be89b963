"""The whole broker is killed, or stopped, under load, again and again: what was acknowledged is there (F6, F39)."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import defaultdict
from typing import NamedTuple

from interop.load import Reader, Writer, check_history, read_back
from interop.raw import EXCLUSIVE, KEY_SHARED, SHARED, api
from interop.waiting import eventually, limited_to
from ister.core.frames.recover import Verdict
from parts.counts import LONG
from parts.recover import recover

WRITERS = 6
RESTART_S_MAX = 5.0
"""Of the processor from the start of the process to readiness, and of a clock once Python has read its modules.

Not of a clock from the start on: reading modules takes 2.5 s of a processor, which is 10 s by the clock where a dozen
other processes want two cores, whatever the broker does.
"""
DRAIN_S_MAX = 10.0
PART_BYTES = 1 << 16


class Start(NamedTuple):
    """How long a broker took until it was ready."""

    recovery_s: float
    processor_s: float
    all_s: float

    @classmethod
    def of(cls, broker) -> Start:
        return cls(broker.recovered_s, broker.started_cpu_s, broker.started_s)

    def check(self) -> None:
        assert self.recovery_s < RESTART_S_MAX
        assert self.processor_s < RESTART_S_MAX

    def __str__(self) -> str:
        return (
            f"ready after {self.all_s:.2f} s, {self.recovery_s:.2f} s of it without Python's own, "
            f"and {self.processor_s:.2f} s of a processor"
        )


class Story:
    """Lives of one broker and one topic; each ends by a signal while producers and consumers are at work."""

    def __init__(self, broker, topic: str, seed: int) -> None:
        self.broker = broker
        self.topic = topic
        self.rng = random.Random(seed)
        self.acknowledged: dict[str, list[bytes]] = defaultdict(list)
        self.unknown: dict[str, list[bytes]] = defaultdict(list)
        self.slowest_stop_s = 0.0
        self.starts: list[Start] = []

    async def prepare(self) -> None:
        async with self.broker.raw() as raw:
            await raw.create_topic(self.topic)
            await raw.subscribe(self.topic, "audit", "auditor", EXCLUSIVE)
            await raw.set_window(self.topic, "audit", 1000)

    async def live_and_end(self, life: int, number: int) -> None:
        async with self.broker.raw() as raw, self.broker.raw() as consuming:
            writers = [Writer(raw, self.topic, f"w{life}-{n}") for n in range(WRITERS)]
            readers = [
                Reader(consuming, self.topic, "shared", f"r{life}-0", SHARED),
                Reader(consuming, self.topic, "keys", f"r{life}-1", KEY_SHARED),
            ]
            tasks = [asyncio.create_task(each.run()) for each in [*readers, *writers]]
            await eventually(
                lambda: sum(len(w.acknowledged) for w in writers) > 50 or any(t.done() for t in tasks), "traffic flows"
            )
            await asyncio.sleep(self.rng.random() * 0.05)
            began = time.monotonic()
            code = await asyncio.to_thread(self.broker.stop, number)
            self.slowest_stop_s = max(self.slowest_stop_s, time.monotonic() - began)
            assert code == (0 if number == signal.SIGTERM else -number)
            await asyncio.gather(*tasks)
        for writer in writers:
            self.acknowledged[writer.name] += writer.acknowledged
            self.unknown[writer.name] += writer.unknown

    async def begin_again(self) -> None:
        await asyncio.to_thread(self.broker.start)
        self.starts.append(Start.of(self.broker))

    async def audit(self) -> dict[int, bytes]:
        async with self.broker.raw() as raw:
            producer = await raw.create_producer(self.topic, "marks the end")
            await raw.send(self.topic, producer, b"end 0")
            found = await read_back(raw, self.topic, "audit", b"end 0")
        assert sorted(found) == list(range(len(found))), "offsets are dense"
        check_history([found[offset] for offset in sorted(found)], self.acknowledged, self.unknown)
        return found

    @property
    def promised(self) -> int:
        return sum(map(len, self.acknowledged.values()))


@limited_to(7200 if LONG else 600)
async def test_f6_kill_nine_of_the_whole_broker_loses_nothing_that_was_acknowledged(victim, topic, count, tell):
    kills = count(3, 100)
    story = Story(victim, topic, seed=6)
    await story.prepare()
    for life in range(kills):
        await story.live_and_end(life, signal.SIGKILL)
        await story.begin_again()
    found = await story.audit()
    for start in story.starts:
        start.check()
    tell(
        "F6",
        f"{kills} kills of the broker over gRPC, {story.promised} acknowledged, {len(found)} stored, 0 lost; "
        f"the slowest was {max(story.starts)}",
    )


@limited_to(1800 if LONG else 600)
async def test_f6_a_broker_with_a_large_active_file_serves_within_five_seconds_of_a_kill(
    own_broker, topic, count, tell
):
    """Nothing of the file was synced or noted in a checkpoint: all of it is looked through."""
    mib = count(64, 512)
    log = {"rotation": {"max_bytes": 1 << 30}, "file_sync": {"interval_ms": 86_400_000}}
    broker = own_broker({"wal_cloud": {"wal": log}})
    payload = random.Random(6).randbytes(PART_BYTES)
    async with broker.raw() as raw, asyncio.TaskGroup() as lanes:
        producer = await raw.create_producer(topic)
        await raw.subscribe(topic, "sub", kind=EXCLUSIVE)
        parts = iter(range(mib * (1 << 20) // PART_BYTES))

        async def lane() -> None:
            for _ in parts:
                await raw.send(topic, producer, payload)

        for _ in range(4):
            lanes.create_task(lane())
    stored = mib * (1 << 20) // PART_BYTES
    broker.kill()
    (path,) = broker.data.joinpath("wal", *topic.split("/")).rglob("wal-*.log")
    assert path.stat().st_size >= mib << 20
    assert not [*path.parent.glob("checkpoint.json")]
    await asyncio.to_thread(broker.start)
    async with broker.raw() as raw:
        call = raw.producing.SendMessage(
            api.StreamMessage(msg_id=api.MsgID(producer_id=producer, topic_name=topic), producer_name="raw"), timeout=30
        )
        await call
        assert ("ister-offset", str(stored)) in [*(await call.trailing_metadata())]
        stream = await raw.consume(topic, "sub", kind=EXCLUSIVE)
        message = await stream.next()
        assert (message.msg_id.topic_offset, message.payload) == (0, payload)
        stream.cancel()
    start = Start.of(broker)
    start.check()
    tell("F6", f"a broker with an active file of {mib} MiB that was never synced was {start}")


@limited_to(7200 if LONG else 600)
async def test_f39_sigterm_under_load_drains_in_time_and_keeps_what_was_acknowledged(victim, topic, count, tell):
    stops = count(3, 20)
    story = Story(victim, topic, seed=39)
    await story.prepare()
    for life in range(stops):
        await story.live_and_end(life, signal.SIGTERM)
        await story.begin_again()
    found = await story.audit()
    assert story.slowest_stop_s < DRAIN_S_MAX
    tell(
        "F39",
        f"{stops} stops under load, {story.promised} acknowledged, {len(found)} stored, 0 lost; "
        f"slowest stop {story.slowest_stop_s:.2f} s",
    )


async def test_f39_what_was_acknowledged_is_synced_by_a_stop_even_when_it_is_asked_for_twice(victim, topic):
    """The log's last frame is a marker that attests everything before it."""
    broker = victim
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        await raw.send_all(topic, producer, [b"x" * 100] * 20)
    broker.process.terminate()
    code, seconds = await asyncio.to_thread(broker.terminate)
    assert (code, seconds < DRAIN_S_MAX) == (0, True)
    (path,) = broker.data.joinpath("wal", *topic.split("/")).rglob("wal-*.log")
    found = recover(path.read_bytes(), 0)
    assert (found.verdict, found.next_offset, found.synced_offset) == (Verdict.CLEAN, 20, 20)
