"""One life of a log under traffic and faults, and the checks of what any crash during it would leave.

traffic → fault → history of (invoke, ok, refused, unknown) → checkers over the disk that each crash leaves. A call that
did not answer is unknown, never failed.
"""

from __future__ import annotations

import asyncio
import errno
import random
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from ister.core.errors import BusyError, InvalidMessageError, LogClosedError, OffsetOutOfRangeError, UnknownOutcomeError
from ister.core.message import MsgID, StreamMessage
from ister.core.offsets import StartPosition
from ister.ports.files.files import QUICK_RUN
from ister.ports.files.open_files import OpenFiles
from ister.wal import AckLevel, Wal, WalConfig
from sim.machine import ShortWriteError, SimClock, SimFiles, run

DIRECTORY = Path("/sim/default/topic/1")
HOUR_US = 3_600_000_000
ACTS = ("append", "append", "append", "batch", "arrow", "sync", "rotate", "sleep", "cancel", "prune", "bad")
UNSETTLED_ACTS = ("level", "level", "rest", "sleep", "append")


class BrokenPromiseError(AssertionError):
    """An invariant did not hold."""


@dataclass
class Facts:
    """What is known at one moment: the history so far."""

    invoked: dict[bytes, StreamMessage] = field(default_factory=dict)
    acked: dict[int, bytes] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)
    promised: set[int] = field(default_factory=set)
    synced: int = 0
    prunable: int = 0

    def copy(self) -> Facts:
        return Facts(
            dict(self.invoked), dict(self.acked), set(self.refused), set(self.promised), self.synced, self.prunable
        )


@dataclass
class Crash:
    """A disk that a crash left, and what was known when it happened."""

    how: str
    step: int
    disk: SimFiles
    facts: Facts


class Story:
    """One seeded life of a log on a given disk."""

    def __init__(
        self, seed: int, disk: SimFiles | None = None, facts: Facts | None = None, config: WalConfig | None = None
    ) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.disk = disk or SimFiles()
        self.facts = facts or Facts()
        self.config = config or self._config()
        self.clock = SimClock()
        self.crashes: list[Crash] = []
        self.wal: Wal | None = None
        self.seen = 0
        self.count = 0
        self.power_crashes = 1
        self.unsettled = seed % 3 == 2
        self.fault = self.rng.choice(("none", "none", "short", "full", "sync", "clock", "closing"))
        self.fault_at = self.rng.randint(1, 40)
        self.acts = 0

    def _config(self) -> WalConfig:
        rng = self.rng
        return WalConfig(
            dir=DIRECTORY,
            topic="/default/topic",
            cache_capacity=rng.choice((1, 4, 64)),
            fsync_interval_ms=rng.choice((1, 10, 1000)),
            max_batch_bytes=rng.choice((1024, 4096, 1 << 20)),
            max_bytes=rng.choice((4096, 8192, 1 << 20)),
            max_hours=rng.choice((None, None, 0.000001)),
            sync_mode=rng.choice(("always", "periodic", "none")),
            level=rng.choice((None, AckLevel.WAL, AckLevel.FSYNC)),
        )

    # --- traffic ------------------------------------------------------------------------------------------------------

    def live(self) -> list[Crash]:
        """Live through it; returns a crash for every step that changed the disk."""
        self.disk.on_step = self._on_step
        if self.seed % 2:
            self.disk.sync_s = 0.0001  # quick enough to be waited for on the loop, from the first one on
            for _ in range(QUICK_RUN):
                self.disk.sync_latency.observe(None, -1.0, self.disk.sync_s)
        if self.unsettled:
            self.disk.open_files = OpenFiles(1, idle_s=self.rng.choice((0.0005, 0.005, 1.0)))
        run(self._live(), self.seed)
        self.disk.on_step = lambda op, path: None
        return self.crashes

    async def _live(self) -> None:
        self.wal = wal = await Wal.with_config(self.config, files=self.disk, clock=self.clock)
        self._note()
        readers = [asyncio.create_task(self._read(wal)) for _ in range(2)]
        await asyncio.gather(*(self._produce(wal) for _ in range(3)))
        with suppress(UnknownOutcomeError):  # the sync failed: a promise broken openly, checked below like any crash
            await wal.close()
        for reader in readers:
            try:
                await reader
            except (LogClosedError, OffsetOutOfRangeError):
                continue
        self._note()
        self._crash("end")
        self.wal = None

    async def _produce(self, wal: Wal) -> None:
        for _ in range(self.rng.randint(2, 7)):
            act = self.rng.choice(ACTS + UNSETTLED_ACTS if self.unsettled else ACTS)
            try:
                await getattr(self, f"_{act}")(wal)
            except BusyError:
                if self.disk.capacity is not None and self.rng.random() < 0.5:
                    self.disk.capacity = None  # space returns
            except UnknownOutcomeError:
                return
            self._note()

    async def _append(self, wal: Wal) -> None:
        async def one() -> None:
            message = self._message()
            durable = wal.config.ack_level >= AckLevel.FSYNC
            try:
                offset = await wal.append(message)
            except BusyError:
                self.facts.refused.add(message.payload)
                raise
            self._acked(offset, message, durable)

        results = await asyncio.gather(*(one() for _ in range(self.rng.randint(1, 4))), return_exceptions=True)
        for result in results:
            if result is not None:
                raise result

    async def _batch(self, wal: Wal) -> None:
        messages = [self._message() for _ in range(self.rng.randint(0, 6))]
        await self._store(wal, messages, wal.append_batch(messages))

    async def _arrow(self, wal: Wal) -> None:
        messages = [self._message() for _ in range(self.rng.randint(0, 6))]
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array([m.payload for m in messages], pa.binary()),
                pa.array([m.request_id for m in messages], pa.uint64()),
                pa.array([m.routing_key for m in messages], pa.string()),
                pa.array([m.producer_name for m in messages], pa.string()),
                pa.array([list(m.attributes.items()) for m in messages], pa.map_(pa.string(), pa.string())),
            ],
            ["payload", "request_id", "routing_key", "producer_name", "attributes"],
        )
        await self._store(wal, messages, wal.append_arrow(batch))

    async def _store(self, wal: Wal, messages, storing) -> None:
        durable = wal.config.ack_level >= AckLevel.FSYNC
        try:
            offsets = await storing
        except BusyError:
            self.facts.refused |= {m.payload for m in messages}
            raise
        if len(offsets) != len(messages):
            raise BrokenPromiseError(f"{len(messages)} messages got offsets {offsets}")
        for offset, message in zip(offsets, messages, strict=True):
            self._acked(offset, message, durable)

    async def _level(self, wal: Wal) -> None:
        appending = asyncio.ensure_future(self._append(wal))
        for _ in range(self.rng.randint(0, 3)):
            await asyncio.sleep(0)
        setting = wal.set_level(self.rng.choice((AckLevel.WAL, AckLevel.FSYNC)))
        for result in await asyncio.gather(setting, appending, return_exceptions=True):
            if result is not None:
                raise result

    async def _rest(self, wal: Wal) -> None:
        wal.close_active()

    async def _sync(self, wal: Wal) -> None:
        stop = wal.next_offset
        if await wal.sync() < stop:
            raise BrokenPromiseError("sync returned before everything was synced")

    async def _rotate(self, wal: Wal) -> None:
        await wal.rotate()

    async def _sleep(self, wal: Wal) -> None:
        await asyncio.sleep(self.rng.choice((0, 0.0001, 0.01, 2)))

    async def _cancel(self, wal: Wal) -> None:
        task = asyncio.create_task(wal.append(self._message()))
        for _ in range(self.rng.randint(0, 3)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _prune(self, wal: Wal) -> None:
        before = self.rng.randint(0, max(0, wal.synced_offset))
        self.facts.prunable = max(self.facts.prunable, before)
        if await wal.prune(before) > self.facts.prunable:
            raise BrokenPromiseError(f"pruned to {wal.start_offset}, asked for at most {self.facts.prunable}")

    async def _bad(self, wal: Wal) -> None:
        before = wal.next_offset
        try:
            await wal.append(StreamMessage(b"x", request_id=-1))
        except InvalidMessageError:
            return
        raise BrokenPromiseError(f"a message that cannot be stored was taken at {before}")

    async def _read(self, wal: Wal) -> None:
        start = self.rng.randint(wal.start_offset, wal.next_offset)
        reader = wal.create_reader(StartPosition.offset(start))
        expected = start
        while True:
            try:
                message = await anext(reader)
            except OffsetOutOfRangeError as error:
                if error.requested != expected or expected >= wal.start_offset:
                    raise BrokenPromiseError(f"a reader at {expected} was told {error}") from error
                expected = wal.start_offset
                reader = wal.create_reader(StartPosition.offset(expected))
                continue
            if message.offset != expected:
                raise BrokenPromiseError(f"a reader expected {expected} and got {message.offset}")
            # While the level changes, a reader may have seen a message before the level was raised.
            self._acked(message.offset, message, not self.unsettled and wal.config.ack_level >= AckLevel.FSYNC)
            expected += 1

    # --- history ------------------------------------------------------------------------------------------------------

    def _message(self) -> StreamMessage:
        self.count += 1
        rng = self.rng
        payload = b"%d-%d-" % (self.seed, self.count) + rng.randbytes(rng.choice((0, 5, 100, 700)))
        message = StreamMessage(
            payload,
            MsgID(topic_name="/default/topic"),
            request_id=self.count,
            producer_name=rng.choice(("", "p", "π")),
            routing_key=rng.choice((None, "", "k")),
            attributes=rng.choice(({}, {"a": "1", "b": ""})),
        )
        self.facts.invoked[payload] = message
        return message

    def _acked(self, offset: int, message: StreamMessage, durable: bool) -> None:
        if durable:
            self.facts.promised.add(offset)
        before = self.facts.acked.setdefault(offset, message.payload)
        if before != message.payload:
            raise BrokenPromiseError(f"offset {offset} was given twice")
        self._note()

    def _note(self) -> None:
        if self.wal is not None:
            self.facts.synced = max(self.facts.synced, self.wal.synced_offset)
            if self.wal.visible_offset < self.seen:
                raise BrokenPromiseError(f"readers saw what is below {self.seen}, and now {self.wal.visible_offset}")
            self.seen = self.wal.visible_offset

    # --- faults -------------------------------------------------------------------------------------------------------

    def _on_step(self, op: str, path: Path) -> None:
        self._note()
        self._crash(op)
        self.acts += 1
        if self.fault == "clock" and self.rng.random() < 0.3:
            self.clock.now_us += self.rng.choice((-HOUR_US, HOUR_US))
        if self.acts < self.fault_at:
            return
        if self.fault == "short" and op == "append" and path.suffix == ".log":
            self.fault = "none"
            raise ShortWriteError(self.rng.randint(0, 4000))
        if self.fault == "full":
            self.fault = "none"
            self.disk.capacity = sum(len(inode.data) for inode in self.disk.names_now.values()) + self.rng.randint(
                0, 900
            )
        if (
            self.fault == "closing"
            and op == "sync"
            and self.wal is not None
            and self.wal._closing
            and self.wal._synced == self.wal.next_offset
        ):
            self.fault = "none"
            raise OSError(errno.EIO, "Input/output error")
        if self.fault == "sync" and op == "sync":
            self.fault = "none"
            raise OSError(errno.EIO, "Input/output error")

    def _crash(self, op: str) -> None:
        step = len(self.crashes)
        self.crashes.append(Crash(f"kill before {op}", step, self.disk.killed(), self.facts.copy()))
        for number in range(self.power_crashes):
            rng = random.Random(f"{self.seed}/{step}/{number}")
            self.crashes.append(Crash(f"power loss before {op}", step, self.disk.unpowered(rng), self.facts.copy()))


def check(crash: Crash, config: WalConfig, seed: int, *, restarts: int = 1) -> int:
    """Open the log on the disk that a crash left and check every promise; then crash again while it is opened and after.

    Returns how many states were checked.
    """
    again: list[Crash] = []
    try:
        run(_check(crash, config, again), seed)
    except Exception as error:
        raise BrokenPromiseError(f"seed {seed}, step {crash.step}, {crash.how}: {error!r}") from error
    if not restarts:
        return 1
    rng = random.Random(f"{seed}/{crash.step}/{crash.how}/{restarts}")
    chosen = rng.sample(again, min(2, len(again)))
    return 1 + sum(check(second, config, seed, restarts=restarts - 1) for second in chosen)


async def _check(crash: Crash, config: WalConfig, again: list[Crash]) -> None:
    facts = crash.facts.copy()
    rng = random.Random(f"{crash.step}/{crash.how}/{len(facts.invoked)}")

    def collect(op: str, path: Path | None) -> None:
        fate = rng.random()
        if fate < 0.2:
            again.append(
                Crash(f"{crash.how}, then power loss before {op}", crash.step, crash.disk.unpowered(rng), facts.copy())
            )
        elif fate < 0.25:
            again.append(Crash(f"{crash.how}, then kill before {op}", crash.step, crash.disk.killed(), facts.copy()))

    crash.disk.on_step = collect
    crash.disk.open_files = rng.choice((None, OpenFiles(1, idle_s=0.001)))
    wal = await Wal.with_config(config, files=crash.disk, clock=SimClock(1))
    found: dict[int, StreamMessage] = {}
    reader = wal.create_reader(StartPosition.offset(wal.start_offset))
    if wal.start_offset > facts.prunable:
        raise BrokenPromiseError(f"the log starts at {wal.start_offset}, pruned was up to {facts.prunable}")
    stop = wal.next_offset
    if wal.synced_offset != stop:
        raise BrokenPromiseError(f"served with offsets [{wal.synced_offset}, {stop}) not synced")
    expected, last_time = wal.start_offset, 0
    while expected < stop:
        message = await anext(reader)
        if message.offset != expected:
            raise BrokenPromiseError(f"expected offset {expected}, found {message.offset}")
        if message.append_time_us < last_time:
            raise BrokenPromiseError(f"append time goes back at {expected}")
        found[expected] = message
        expected, last_time = expected + 1, message.append_time_us
    seen: set[bytes] = set()
    for offset, message in found.items():
        sent = facts.invoked.get(message.payload)
        if sent is None or message.payload in facts.refused or message.payload in seen:
            raise BrokenPromiseError(f"phantom at offset {offset}")
        seen.add(message.payload)
        if message._replace(append_time_us=0, msg_id=message.msg_id._replace(topic_offset=0)) != sent:
            raise BrokenPromiseError(f"offset {offset} came back changed: {message} was {sent}")
    survives = "power" not in crash.how
    for offset, payload in facts.acked.items():
        if offset < wal.start_offset or not (survives or offset in facts.promised or offset < facts.synced):
            # Pruned, or within the loss window of level wal, where power loss may also give the offset to a message that
            # was written before, cut off for lack of space, and never answered.
            continue
        if offset not in found:
            raise BrokenPromiseError(f"acknowledged offset {offset} is lost (recovered [{wal.start_offset}, {stop}))")
        if found[offset].payload != payload:
            raise BrokenPromiseError(f"offset {offset} holds another message")
    if stop < facts.synced:
        raise BrokenPromiseError(f"the log ends at {stop}, synced was {facts.synced}")
    # What was served is a promise from now on; what was in flight and is not there is gone for good.
    facts.acked = {offset: message.payload for offset, message in found.items()}
    facts.promised = set(found)
    facts.refused |= {payload for payload in facts.invoked if payload not in seen}
    facts.synced = stop
    collect("the next message", None)
    extra = StreamMessage(b"after crash %d" % len(facts.invoked), MsgID(topic_name="/default/topic"))
    facts.invoked[extra.payload] = extra
    if await wal.append(extra) != stop:
        raise BrokenPromiseError("the next message did not get the next offset")
    back = await anext(reader)
    if back.payload != extra.payload or back.append_time_us < last_time:
        raise BrokenPromiseError(f"the next message cannot be read, or its time goes back: {back}")
    facts.acked[stop] = extra.payload
    if config.ack_level >= AckLevel.FSYNC:
        facts.promised.add(stop)
    facts.synced = max(facts.synced, wal.synced_offset)
    collect("closing", None)
    await wal.close()
    facts.synced = stop + 1
    collect("opening again", None)
