"""The simulated twin of a topic's table: rows behind the same bad network as the stores, which outlive every crash of ours.

It can be down, fail before it did anything, lose its answer, be behind, miss rows that it says it holds, and be replaced.
"""

from __future__ import annotations

import random

from ister.core.table.data_files import NO_TABLE, RowLocation, TableEnd
from ister.lake.errors import LakeUnavailableError, MissingRowsError, TableMovedError
from sim.cloud_machine import Network

NAME = "default.topic"


class SimTable:
    """One topic's table; a TopicTable, and what a pipeline commits to."""

    def __init__(self, network: Network | None = None) -> None:
        self.network = network or Network(random.Random(0))
        self.rows = []
        self.missing: set[int] = set()
        self.skips_missing = False
        """What a stream does where rows are missing (`on_missing`)."""
        self.down = self.moved = self.closed = False
        self.snapshots = self.looks = self.opens = self.reads = 0
        self.proved: list[tuple[int, int]] = []

    def copy(self, network: Network) -> SimTable:
        """Return a twin that goes its own way from here."""
        twin = SimTable(network)
        twin.rows, twin.missing = list(self.rows), set(self.missing)
        twin.snapshots, twin.moved = self.snapshots, self.moved
        return twin

    async def commit(self, start: int, messages) -> None:
        """Append rows if they are what comes next; the answer may be lost."""
        await self._send("commit")
        assert start == len(self.rows), "the table is the checkpoint (D9)"
        assert [message.offset for message in messages] == list(range(start, start + len(messages))), "I8"
        self.rows += messages
        self.snapshots += 1
        await self.network.answer(self._down("commit to"))

    # --- TopicTable ---------------------------------------------------------------------------------------------------

    async def look(self) -> TableEnd:
        self.looks += 1
        await self._send("stat")
        await self.network.answer(self._down("look at"))
        if not self.rows:
            return NO_TABLE
        return TableEnd(len(self.rows), self.rows[-1].append_time_us, self.snapshots)

    def open(self, start: int, stop: int) -> SimTableStream:
        self.opens += 1
        return SimTableStream(self, start, stop)

    async def prove(self, start: int, stop: int) -> None:
        await self._send("stat")
        self.check(start, stop)
        await self.network.answer(self._down("look at"))
        self.proved.append((start, stop))

    def place(self, offset: int) -> RowLocation | None:
        return RowLocation(self.snapshots, "rows") if offset < len(self.rows) else None

    async def close(self) -> None:
        self.closed = True

    # --- inside -------------------------------------------------------------------------------------------------------

    def check(self, start: int, stop: int) -> None:
        for offset in range(start, stop):
            if offset >= len(self.rows) or offset in self.missing:
                raise MissingRowsError(NAME, offset, stop)

    def _down(self, action: str) -> LakeUnavailableError:
        return LakeUnavailableError(NAME, action, "no answer")

    async def _send(self, op: str) -> None:
        await self.network.send(op, NAME, self._down(op))
        if self.down:
            raise self._down(op)
        if self.moved:
            raise TableMovedError(NAME, "it was replaced")


class SimTableStream:
    """Reads a few rows at a time."""

    def __init__(self, table: SimTable, start: int, stop: int) -> None:
        self._table = table
        self._stop = stop
        self.next_offset = start
        self.skipped_upto = 0

    async def read(self):
        if self.next_offset >= self._stop:
            return []
        table = self._table
        table.reads += 1
        await table._send("read")
        if table.skips_missing:
            while self.next_offset in table.missing and self.next_offset < self._stop:
                self.next_offset += 1
                self.skipped_upto = self.next_offset
        stop = min(self._stop, self.next_offset + table.network.rng.randint(1, 7))
        if table.skips_missing:
            stop = min([stop, *(offset for offset in table.missing if offset >= self.next_offset)])
        table.check(self.next_offset, stop)
        await table.network.answer(table._down("read"))
        found = table.rows[self.next_offset : stop]
        self.next_offset = stop
        return found

    async def close(self) -> None:
        self._stop = self.next_offset
