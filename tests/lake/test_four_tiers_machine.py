"""Produce, commit, compact, expire, prune, delete objects, crash, read from anywhere: whatever is done in whatever order, one
reader over memory, log, objects and table sees each message once, in order (I6), and nothing is let go before a later tier has
it (I5). The table is a real one; disk, store and metadata are simulated, so that they can be lost.
"""

import shutil
import tempfile
import uuid
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from ister.cloud import Retention, UploadOptions
from ister.core.frames.columns import decode_batch
from ister.core.frames.frame import encode_message
from ister.core.offsets import StartPosition
from ister.lake.columns import table_rows
from ister.lake.parquet import write_files
from ister.lake.topic_table import ReaderOptions, TableReads
from ister.storage.factory import TopicsConfig, WalStorageFactory
from ister.wal import WalConfig
from model.test_tiers_machine import NEVER_S, Tiers, done
from parts.lake import lake_of
from sim.cloud_story import ROOT, TOPIC


class FourTiers(Tiers):
    """The machine of three tiers, with a table behind them."""

    async def _open(self):
        if not hasattr(self, "home"):
            self.home = Path(tempfile.mkdtemp(prefix="four-tiers-"))
            self.lake = lake_of(self.home)
            self.reads = TableReads(self.lake, ReaderOptions(0.01, 2, 2))
            self.epoch = 0
        config = TopicsConfig(
            wal=WalConfig(dir=ROOT, cache_capacity=4, max_bytes=4096, fsync_interval_ms=10**8, level=self.level),
            upload=UploadOptions(interval_s=NEVER_S),
            retention=Retention(time_minutes=0, size_mb=0, check_interval_minutes=NEVER_S),
            object_retention_s=0.0,
        )
        self.factory = WalStorageFactory(
            config, store=self.store, metadata=self.metadata, files=self.disk, clock=self.clock, tables=self.reads.table
        )
        await self.factory.start()
        assert self.factory.problems == {}
        self.storage = await self.factory.for_topic(TOPIC)

    @property
    def generation(self):
        return self.factory._open[TOPIC].record.generation

    @property
    def upto(self):
        return self.storage.table.end.upto

    # --- what happens to the table --------------------------------------------------------------------------------------

    @rule(share=st.floats(0.1, 1), files=st.integers(1, 3))
    def commit(self, share, files):
        """Be the pipeline: carry a part of what is synced to the table, in some files."""
        self.run(self.storage.flush())
        table = self.lake.table(TOPIC, self.generation)
        start, synced = table.upto(0), self.storage.wal.synced_offset
        stop = start + round((synced - start) * share)
        if stop <= start:
            return
        self.epoch += 1
        table.claim(self.epoch)
        messages = self.run(self._messages(start, stop))
        frames = [encode_message(message, message.offset, message.append_time_us) for message in messages]
        cuts = sorted({0, stop - start, *(self.rng.randrange(stop - start) for _ in range(files - 1))})
        written = []
        for low, high in pairwise(cuts):
            rows = table_rows(decode_batch(b"".join(frames[low:high]), first_offset=start + low), 0)
            written += write_files(
                table.io_properties, table.location, [rows], partition=0, name=uuid.uuid4().hex, target_bytes=1 << 20
            )
        table.commit_add_files(written, {0: (start, stop)})
        self.storage.table_reached(stop)
        done["commit"] += 1

    @rule(prune=st.booleans(), objects=st.booleans())
    def a_quiet_day(self, prune, objects):
        """Everything is carried as far as it goes, and what is old is let go."""
        self.rotate()
        self.upload()
        self.commit(1, 2)
        if prune:
            self.prune(1)
        if objects:
            self.clock.now_us += 1
            self.delete_objects()

    async def _messages(self, start, stop):
        reader = await self.storage.create_reader(StartPosition.offset(start))
        found = []
        while len(found) < stop - start:
            found += await reader.read()
        await reader.close()
        return found[: stop - start]

    @precondition(lambda self: self.upto > 0)
    @rule(order=st.sampled_from(["shuffled", "sorted", "backwards"]), file_bytes=st.sampled_from([3000, 1 << 27]))
    def compact(self, order, file_bytes):
        table = self.lake.catalog.load_table(self.lake.table(TOPIC, self.generation).identifier)
        with table.transaction() as change:
            change.set_properties({"write.target-file-size-bytes": str(file_bytes)})
        rows = table.scan().to_arrow().sort_by("topic_offset")
        places = list(range(len(rows)))
        if order == "shuffled":
            self.rng.shuffle(places)
        elif order == "backwards":
            places.reverse()
        table.overwrite(rows.take(pa.array(places)))
        done[f"compaction, {order}"] += 1

    @precondition(lambda self: self.upto > 0)
    @rule()
    def expire(self):
        """Let every snapshot but the newest go, and every data file that only they had."""
        table = self.lake.catalog.load_table(self.lake.table(TOPIC, self.generation).identifier)
        old = [one.snapshot_id for one in table.snapshots() if one.snapshot_id != table.metadata.current_snapshot_id]
        kept = {task.file.file_path for task in table.scan().plan_files()}
        for path in Path(urlparse(table.location()).path).rglob("*.parquet"):
            if f"file://{path}" not in kept:
                path.unlink()
                done["data file expired"] += 1
        newest = [one for one in old if one in {entry.snapshot_id for entry in table.snapshots()}]
        if newest and self._has_summary(table):
            table.maintenance.expire_snapshots().by_ids(newest).commit()

    def _has_summary(self, table):
        """Whether the newest snapshot says how far the table is: one that is rewritten does not, and needs its parent."""
        summary = table.current_snapshot().summary
        return summary is not None and "ister.upto" in summary.additional_properties

    @rule()
    def delete_objects(self):
        done["objects deleted behind the table"] += self.run(self.factory.object_retention(TOPIC).tick())

    @precondition(lambda self: self.upto >= self.storage.objects.span.stop > 0)
    @rule(really=st.integers(0, 3))
    def empty_the_store(self, really):
        """Somebody deletes every object, all of which the table holds."""
        if really:
            return
        self.store.objects.clear()
        self.store.late.clear()
        self.crash("kill")
        done["store emptied"] += 1

    # --- what is different with a table -----------------------------------------------------------------------------------

    @rule(how=st.sampled_from(["kill", "kill", "power", "shutdown", "disk lost"]))
    def crash(self, how):
        upto = self.upto
        if how == "disk lost" and self.storage.objects.span.stop < upto:
            done["log begun anew behind the table"] += 1
        super().crash(how)
        assert self.storage.next_offset >= upto, "what the table holds, the log can never lose"

    def kept(self):
        kept = super().kept()
        return kept | {"disk lost": max(kept["disk lost"], self.upto)}

    @invariant()
    def offsets_are_dense_and_the_log_begins_where_objects_are(self):
        done["step"] += 1
        storage = self.storage
        assert storage.next_offset == len(self.acked), "I2"
        assert storage.start_offset == 0, "I2"
        assert storage.log_start <= max(storage.objects.span.stop, self.upto) or storage.log_start == 0, "I5"
        assert storage.objects.span.stop <= storage.wal.synced_offset, "objects hold what is not synced"
        assert self.upto <= storage.wal.synced_offset, "the table holds what is not synced"

    @invariant()
    def the_table_alone_serves_what_it_holds(self):
        if self.upto:
            at = self.rng.randrange(self.upto)
            self.run(self._read_table(at, self.upto))

    async def _read_table(self, at, stop):
        stream = self.storage.table.table.open(at, stop)
        while at < stop:
            at = self.seen(await stream.read(), at)
        await stream.close()

    def teardown(self):
        super().teardown()
        if hasattr(self, "home"):
            self.reads.close()
            shutil.rmtree(self.home)


def test_one_reader_over_four_tiers_whatever_is_done_to_them(count, tell):
    goal = count(800, 20_000)
    done.clear()
    while done["step"] < goal:
        run_state_machine_as_test(
            FourTiers,
            settings=settings(
                max_examples=max(2, min(200, (goal - done["step"]) // 30)),
                stateful_step_count=40,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    counts = ", ".join(f"{name}: {number}" for name, number in sorted(done.items()) if name != "step")
    tell("four tiers", f"{done['step']} steps ({counts}): I2, I5, I6 held after each")
