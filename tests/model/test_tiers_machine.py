"""Retention races upload, readers and crashes (F23): whatever is done in whatever order, offsets stay dense (I2), the log
is pruned only behind its objects (I5), and every reader sees each message once, in order, across all tiers (I6).
"""

import asyncio
import random
from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ister.cloud import Retention, UploadOptions
from ister.core.errors import BusyError, UnknownOutcomeError
from ister.core.message import StreamMessage
from ister.core.offsets import StartPosition
from ister.storage.factory import TopicsConfig, WalStorageFactory
from ister.wal import AckLevel, WalConfig
from sim.cloud_machine import Network, SimMetadata, SimStore
from sim.cloud_story import ROOT, TOPIC, small_sizes
from sim.machine import SimClock, SimFiles, SimLoop

NEVER_S = 10**9
done = Counter()


class Tiers(RuleBasedStateMachine):
    """One topic on a simulated disk, and a list of what was acknowledged."""

    @initialize(seed=st.integers(0, 2**32), level=st.sampled_from([AckLevel.WAL, AckLevel.FSYNC, AckLevel.CLOUD]))
    def begin(self, seed, level):
        self.rng = random.Random(seed)
        self.sizes = small_sizes(seed)
        self.sizes.__enter__()
        self.level = level
        self.clock = SimClock()
        self.disk = SimFiles()
        self.network = Network(random.Random(seed))
        self.store, self.metadata = SimStore(self.network), SimMetadata(self.network)
        self.acked = []
        self.made = 0
        self.open()

    def open(self):
        """Start a process."""
        self.loop = SimLoop(self.rng.randrange(2**32))
        self.readers = []
        self.run(self._open())

    async def _open(self):
        config = TopicsConfig(
            wal=WalConfig(dir=ROOT, cache_capacity=4, max_bytes=4096, fsync_interval_ms=10**8, level=self.level),
            upload=UploadOptions(interval_s=NEVER_S),
            retention=Retention(time_minutes=0, size_mb=0, check_interval_minutes=NEVER_S),
        )
        self.factory = WalStorageFactory(
            config, store=self.store, metadata=self.metadata, files=self.disk, clock=self.clock
        )
        await self.factory.start()
        assert self.factory.problems == {}
        self.storage = await self.factory.for_topic(TOPIC)

    def run(self, act):
        return self.loop.run_until_complete(act)

    def end_process(self):
        """Stop a process where it stands; what waits is told, so that nothing of it is left."""
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.run(asyncio.wait(tasks))
        self.loop._ready.clear()
        self.loop._scheduled.clear()
        self.loop.close()

    def message(self, size):
        self.made += 1
        return StreamMessage(b"%d:" % self.made + bytes(size))

    # --- what is done -------------------------------------------------------------------------------------------------

    @rule(size=st.integers(0, 600))
    def append(self, size):
        message = self.message(size)
        assert self.run(self.storage.append_message(message)) == len(self.acked)
        self.acked.append(message.payload)

    @rule(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=12))
    def batch(self, sizes):
        messages = [self.message(size) for size in sizes]
        start = len(self.acked)
        assert self.run(self.storage.append_messages(messages)) == range(start, start + len(messages))
        self.acked += [message.payload for message in messages]

    @rule()
    def sync(self):
        self.run(self.storage.flush())

    @rule()
    def rotate(self):
        self.run(self.storage.seal(0))

    @rule()
    def upload(self):
        self.run(self.factory.uploader(TOPIC).drain())
        assert self.storage.objects.span.stop == len(self.acked)

    @rule(trouble=st.sampled_from([0.1, 0.3, 0.6]))
    def upload_over_a_bad_network(self, trouble):
        self.network.trouble = trouble
        try:
            self.run(self.factory.uploader(TOPIC).drain())
        except (BusyError, UnknownOutcomeError):
            done["upload that failed"] += 1
        finally:
            self.network.trouble = 0.0

    @rule()
    def late_puts_land(self):
        self.store.land(self.rng)

    @rule(hours=st.sampled_from([-1, 0, 1]))
    def prune(self, hours):
        self.clock.now_us += hours * 3_600_000_000
        deleter = self.factory.deleter(TOPIC)
        before = self.storage.log_start
        done["prune that pruned"] += self.run(deleter.tick()) > before

    @rule(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=12), seals=st.booleans())
    def everything_at_once(self, sizes, seals):
        self.run(self._everything_at_once([self.message(size) for size in sizes], seals))

    async def _everything_at_once(self, messages, seals):
        start, visible = len(self.acked), self.visible()
        self.acked += [message.payload for message in messages]
        before = self.storage.log_start
        async with asyncio.TaskGroup() as group:
            for reader in self.readers:
                if reader[1] < visible:
                    group.create_task(self._read_one(reader))
            appended = group.create_task(self.storage.append_messages(messages))
            if seals:
                group.create_task(self.storage.seal(0))
            group.create_task(self.factory.uploader(TOPIC).drain())
            pruned = group.create_task(self.factory.deleter(TOPIC).tick())
            group.create_task(self.read_all(self.rng.randint(0, visible), visible))
        assert appended.result() == range(start, start + len(messages))
        done["prune that pruned"] += pruned.result() > before

    async def _read_one(self, reader):
        try:
            messages = await reader[0].read()
        except BusyError:  # what it had read ahead over a bad network
            done["reader that had to ask again"] += 1
            messages = await reader[0].read()
        reader[1] = self.seen(messages, reader[1])

    @rule()
    def sweep(self):
        self.run(self.factory.deleter(TOPIC).sweep())

    @precondition(lambda self: len(self.readers) < 4)
    @rule(share=st.floats(0, 1))
    def start_reader(self, share):
        at = round(share * len(self.acked))
        reader = self.run(self.storage.create_reader(StartPosition.offset(at)))
        self.readers.append([reader, at])

    @precondition(lambda self: self.readers)
    @rule(pick=st.integers(0, 3), runs=st.integers(1, 3))
    def read_on(self, pick, runs):
        reader = self.readers[pick % len(self.readers)]
        for _ in range(runs):
            if reader[1] < self.visible():
                self.run(self._read_one(reader))

    @precondition(lambda self: self.readers)
    @rule(pick=st.integers(0, 3))
    def end_reader(self, pick):
        self.run(self.readers.pop(pick % len(self.readers))[0].close())

    @rule(how=st.sampled_from(["kill", "kill", "power", "shutdown", "disk lost"]))
    def crash(self, how):
        kept = self.kept()
        if how == "shutdown":
            self.run(self.factory.shutdown())
        self.end_process()
        self.network = Network(random.Random(self.rng.random()))
        self.store, self.metadata = self.store.copy(self.network), self.metadata.copy(self.network)
        if how == "disk lost":
            # What the lost machine had sent lands now or never. Landing later, it would bring back messages that the
            # model has given up, or stop the new log's uploads as foreign: a person must choose then, not the model.
            self.store.land(self.rng)
            self.disk = SimFiles()
        elif how == "power":
            self.disk = self.disk.unpowered(self.rng)
        else:
            self.disk = self.disk.killed()
        self.open()
        found = self.storage.next_offset
        assert kept.get(how, len(self.acked)) <= found <= len(self.acked), f"{how}: [{found}, …) is lost"
        del self.acked[found:]
        done[how] += 1

    def kept(self):
        """How far the topic is at least after each kind of crash."""
        return {"power": self.storage.wal.synced_offset, "disk lost": self.storage.objects.span.stop}

    @rule(really=st.integers(0, 9))
    def delete_and_make_again(self, really):
        if really:
            return
        generation = self.factory._open[TOPIC].record.generation
        self.run(self.factory.delete_topic(TOPIC))
        assert [key for key in self.store.objects if f"/{generation}/" in key] == []
        self.storage = self.run(self.factory.for_topic(TOPIC))
        assert self.factory._open[TOPIC].record.generation == generation + 1
        self.acked, self.readers = [], []
        done["deletion"] += 1

    # --- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def offsets_are_dense_and_the_log_begins_where_objects_are(self):
        done["step"] += 1
        storage = self.storage
        assert storage.next_offset == len(self.acked), "I2"
        assert storage.start_offset == 0, "I2"
        assert storage.log_start <= storage.objects.span.stop or storage.log_start == 0, "I5"
        assert storage.objects.span.stop <= storage.wal.synced_offset, "objects hold what is not synced"

    @invariant()
    def a_reader_from_anywhere_sees_everything(self):
        stop = self.visible()
        if stop:
            self.run(self.read_all(self.rng.randrange(stop), stop))

    def visible(self):
        return self.storage.wal.visible_offset

    async def read_all(self, at, stop):
        reader = await self.storage.create_reader(StartPosition.offset(at))
        while at < stop:
            at = self.seen(await reader.read(), at)
        await reader.close()

    def seen(self, messages, at):
        assert messages, "a reader gave nothing"
        assert [m.offset for m in messages] == list(range(at, at + len(messages))), "I6"
        assert [m.payload for m in messages] == self.acked[at : at + len(messages)], "I6"
        done["message read"] += len(messages)
        return at + len(messages)

    def teardown(self):
        if hasattr(self, "loop"):
            self.end_process()
        if hasattr(self, "sizes"):
            self.sizes.__exit__(None, None, None)


def test_f23_retention_races_upload_readers_and_crashes(count, tell):
    goal = count(1500, 100_000)
    done.clear()
    while done["step"] < goal:
        run_state_machine_as_test(
            Tiers,
            settings=settings(
                max_examples=max(2, min(200, (goal - done["step"]) // 40)),
                stateful_step_count=60,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    counts = ", ".join(f"{name}: {number}" for name, number in sorted(done.items()) if name != "step")
    tell("F23", f"{done['step']} steps ({counts}): I2, I5, I6 held after each")
