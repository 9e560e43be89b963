"""The pipeline that owns the tables, the committed offset of each table, and the wake-ups of the pipeline.

Owner epoch and offsets are in metadata. Reports of an older pipeline are refused as soon as a newer one registers. If
metadata was lost, epochs would repeat; the tables record them too, so an owner registers with a `least_epoch`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from ister.aio.watermark import Watermark
from ister.broker.topics.records import PipelineRecord, UptoRecord
from ister.core.errors import Behind, BusyError, InvalidRequestError, NotYetInTierError, PreconditionError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ister.broker.topics.records import Records
    from ister.core.names import TopicName

log = structlog.get_logger()

TRIES = 10
EPOCH_MAX = 1 << 62
"""Far above any real epoch, with room for as many again."""


class Pipelines:
    """The owner and the progress of all tables; `load` it first."""

    def __init__(self, records: Records) -> None:
        self.wakeups = Wakeups()
        self._records = records
        self._epoch = 0
        self._uptos: dict[TopicName, UptoRecord] = {}
        self._waits: dict[tuple[TopicName, int], Watermark] = {}
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        """Read the state from metadata."""
        self._epoch = (await self._records.pipeline())[0].epoch
        self._uptos = await self._records.uptos()

    async def register(self, name: str, *, owner_epoch: int = 0, least_epoch: int = 0) -> int:
        """Make a pipeline the owner and end the watches of others; return its epoch, higher than any before.

        With `owner_epoch` only the present owner gets a new epoch.
        """
        if least_epoch > EPOCH_MAX:
            raise InvalidRequestError(
                f"least_epoch is {least_epoch}, and {EPOCH_MAX} is the highest that can be asked for"
            )
        async with self._lock:
            for _ in range(TRIES):
                known, version = await self._records.pipeline()
                if owner_epoch and owner_epoch != known.epoch:
                    raise PreconditionError(
                        f"epoch {owner_epoch} is not the owner's ({known.epoch}): another pipeline has registered"
                    )
                record = PipelineRecord(epoch=max(known.epoch + 1, least_epoch), name=name)
                if await self._records.save_pipeline(record, version):
                    break
            else:
                raise BusyError("other brokers register pipelines at the same moment")
            self._epoch = record.epoch
            self.wakeups.end()
        log.info("pipeline_registered", name=name, epoch=record.epoch)
        return record.epoch

    def has_owner(self) -> bool:
        """Return True if a pipeline is running, that is, watches for wake-ups."""
        return bool(self.wakeups.watches)

    def check(self, epoch: int) -> None:
        """Raise PreconditionError unless this is the owner's epoch."""
        if epoch != self._epoch:
            why = "a newer pipeline has registered" if epoch < self._epoch else "it was never given"
            raise PreconditionError(f"epoch {epoch} is not the owner's ({self._epoch}): {why}; register, then go on")

    async def report(self, topic: TopicName, generation: int, epoch: int, upto: int) -> int:
        """Record the committed offset of a topic's table; return the one that counts.

        Under one owner a table only grows, so a delayed report is ignored. A new owner may report less than the last.
        """
        async with self._lock:
            self.check(epoch)
            known = self._uptos.get(topic)
            if known is not None and (known.generation, known.epoch) == (generation, epoch):
                upto = max(upto, known.upto)
            record = UptoRecord(generation=generation, epoch=epoch, upto=upto)
            if record != known:
                await self._records.save_upto(topic, record)
                self._uptos[topic] = record
        self.wakeups.reached(str(topic), generation, upto)
        waits = self._waits.get((topic, generation))
        if waits is not None:
            waits.reach(upto)
        return upto

    async def wait_upto(self, topic: TopicName, generation: int, upto: int, timeout_s: float) -> None:
        """Wake the pipeline, and return once a table has everything below `upto`; NotYetInTierError when that takes too long."""
        key = (topic, generation)
        progress = self._waits.get(key)
        if progress is None:
            progress = self._waits[key] = Watermark(self.upto(topic, generation) or 0)
        if progress.value >= upto:
            return
        self.wakeups.wake(str(topic), generation, upto)
        try:
            async with asyncio.timeout(timeout_s):
                await progress.wait(upto)
        except TimeoutError:
            cause = f"it took longer than {timeout_s:g} s"
        else:
            cause = "the topic was deleted, or the broker stops"
        if progress.value < upto:
            raise NotYetInTierError("lake", [Behind(str(topic), progress.value, upto)], cause)

    def upto(self, topic: TopicName, generation: int) -> int | None:
        """Return the committed offset of a table, None if it was never reported."""
        known = self._uptos.get(topic)
        return None if known is None or known.generation != generation else known.upto

    def end(self) -> None:
        """End all waits: the broker stops."""
        for progress in self._waits.values():
            progress.end()

    def forget(self, topic: TopicName) -> None:
        """Drop the state of a deleted topic."""
        self._uptos.pop(topic, None)
        for key in [key for key in self._waits if key[0] == topic]:
            self._waits.pop(key).end()
        self.wakeups.forget(str(topic))


class Wakeups:
    """The offsets that producers wait for, and the pipelines that watch them.

    An offset stays until it is reached, so a pipeline that starts later gets it at once.
    """

    def __init__(self) -> None:
        self.watches: set[_Watch] = set()
        self._wanted: dict[tuple[str, int], int] = {}

    def wake(self, topic: str, generation: int, upto: int) -> None:
        """Request that everything below `upto` be written to the table."""
        key = (topic, generation)
        if upto > self._wanted.get(key, 0):
            self._wanted[key] = upto
            for watch in self.watches:
                watch.add(key)

    def reached(self, topic: str, generation: int, upto: int) -> None:
        """Record that the table holds everything below `upto`."""
        key = (topic, generation)
        if self._wanted.get(key, upto + 1) <= upto:
            del self._wanted[key]

    def forget(self, topic: str) -> None:
        """Drop the requests of a deleted topic."""
        for key in [key for key in self._wanted if key[0] == topic]:
            del self._wanted[key]

    def end(self) -> None:
        """End every present watch."""
        for watch in self.watches:
            watch.end()

    async def watch(self) -> AsyncGenerator[tuple[str, int, int]]:
        """Yield present and future requests as topic, generation and offset; several of one topic between two iterations are one."""
        watch = _Watch(self._wanted)
        self.watches.add(watch)
        try:
            while (key := await watch.next()) is not None:
                if key in self._wanted:
                    yield *key, self._wanted[key]
        finally:
            self.watches.discard(watch)


class _Watch:
    """The topics that a watch has not yielded yet."""

    def __init__(self, wanted: dict[tuple[str, int], int]) -> None:
        self._pending = dict.fromkeys(wanted)
        self._changed = asyncio.Event()
        self._ended = False

    def add(self, key: tuple[str, int]) -> None:
        self._pending[key] = None
        self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    async def next(self) -> tuple[str, int] | None:
        while not self._ended:
            if self._pending:
                key = next(iter(self._pending))
                del self._pending[key]
                return key
            self._changed.clear()
            await self._changed.wait()
        return None
