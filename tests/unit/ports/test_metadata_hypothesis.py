"""Metadata in memory and in SQLite answer alike, whatever is asked of them in whatever order."""

import asyncio
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ister.core.errors import LeaseLostError, WatchCompactedError
from ister.ports.metadata import MemoryMetadata, SqliteMetadata
from parts.counts import LONG

KEYS = st.sampled_from(["/a", "/a/", "/a/1", "/a/2", "/ab", "/b", "/\u00e9", "/\U0001f600"])
PREFIXES = st.sampled_from(["/", "/a", "/a/", "/b", "/c", "/\u00e9"])
VALUES = st.binary(max_size=5)


class Alike(RuleBasedStateMachine):
    @initialize()
    def open(self):
        self.directory = Path(tempfile.mkdtemp())
        self.runner = asyncio.Runner()
        self.memory = MemoryMetadata()
        self.sqlite = self.run(SqliteMetadata.open(self.directory / "metadata.db"))
        self.versions = [0]
        self.leases = []

    def run(self, act):
        return self.runner.run(asyncio.wait_for(act, 20))

    def both(self, act):
        """Do the same with both stores, and compare what they answer."""

        async def answer(store):
            try:
                return await act(store)
            except (LeaseLostError, WatchCompactedError) as error:
                return type(error)

        memory, sqlite = self.run(answer(self.memory)), self.run(answer(self.sqlite))
        assert memory == sqlite
        return memory

    def lease(self, store, number):
        if number is None or not self.leases:
            return None
        return self.leases[number % len(self.leases)][store is self.sqlite]

    @rule(key=KEYS, value=VALUES, lease=st.none() | st.integers(0, 3))
    def put(self, key, value, lease):
        answer = self.both(lambda store: store.put(key, value, lease=self.lease(store, lease)))
        if isinstance(answer, int):
            self.versions.append(answer)

    @rule(key=KEYS, value=VALUES, pick=st.integers(0, 4), lease=st.none() | st.integers(0, 3))
    def cas(self, key, value, pick, lease):
        version = [0, *self.versions[-4:]][pick % len([0, *self.versions[-4:]])]
        answer = self.both(lambda store: store.cas(key, value, version=version, lease=self.lease(store, lease)))
        if isinstance(answer, int):
            self.versions.append(answer)

    @rule(key=KEYS, pick=st.none() | st.integers(1, 3))
    def delete(self, key, pick):
        version = None if pick is None else self.versions[-min(pick, len(self.versions))]
        self.both(lambda store: store.delete(key, version=version))

    @rule(
        prefix=PREFIXES,
        start=st.just("") | KEYS,
        limit=st.none() | st.integers(0, 4),
        reverse=st.booleans(),
    )
    def list(self, prefix, start, limit, reverse):
        self.both(lambda store: store.list(prefix, start=start, limit=limit, reverse=reverse))

    @rule(prefix=PREFIXES, pick=st.integers(0, 100))
    def watch(self, prefix, pick):
        after = self.versions[pick % len(self.versions)]

        async def history(store):
            watch, seen = store.watch(prefix, after=after), []
            last = await store.put(f"{prefix}end", b"end")
            while not seen or seen[-1].version < last:
                seen.append(await anext(watch))
            return seen

        self.versions.append(self.both(history)[-1].version)

    @rule()
    def make_lease(self):
        self.leases.append((self.run(self.memory.lease(1000)), self.run(self.sqlite.lease(1000))))

    @rule(number=st.integers(0, 3))
    def revoke(self, number):
        if self.leases:
            for lease in self.leases[number % len(self.leases)]:
                self.run(lease.revoke())

    @rule()
    def restart(self):
        for pair in self.leases:  # memory's leases end with SQLite's process, in one change
            self.run(pair[0].stop())
        self.run(self.end_leases())
        self.leases.clear()
        self.run(self.sqlite.close())
        self.sqlite = self.run(SqliteMetadata.open(self.directory / "metadata.db"))

    async def end_leases(self):
        leased = [key for key in self.memory._keys if self.memory._held[key].lease is not None]
        self.memory._remove(leased)

    @invariant()
    def alike(self):
        if hasattr(self, "sqlite"):
            self.both(lambda store: store.version())
            self.both(lambda store: store.list("/"))

    def teardown(self):
        if hasattr(self, "sqlite"):
            self.run(self.memory.close())
            self.run(self.sqlite.close())
            self.runner.close()
            shutil.rmtree(self.directory)


Alike.TestCase.settings = settings(max_examples=500 if LONG else 8, stateful_step_count=40, deadline=None)
TestAlike = Alike.TestCase
