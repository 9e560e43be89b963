"""Which pipeline is the owner, and how far its tables are: kept in metadata, so that a restart changes neither.

An epoch is given once, whatever happens. What an older pipeline says is refused from the moment a newer one registers.
Metadata that was lost gives old epochs again; the tables still know, and an owner who was told by them says so.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from ister.broker.records import PipelineRecord, UptoRecord
from ister.broker.wakeups import Wakeups
from ister.core.errors import BusyError, InvalidRequestError, LevelNotReachedError, PreconditionError
from ister.ports.progress import Progress

if TYPE_CHECKING:
    from ister.broker.records import Records
    from ister.core.names import TopicName

log = structlog.get_logger()

TRIES = 10
EPOCH_MAX = 1 << 62
"""No table has ever been claimed so often; behind it there is room for as many again."""


class NotInLakeError(LevelNotReachedError):
    """A message is in the log and synced, but not yet in its table."""

    level = "lake"

    def __init__(self, topic: str, offset: int, cause: str) -> None:
        self.cause = cause
        super().__init__(
            topic,
            offset,
            f"topic {topic}: messages below offset {offset} are in the log and synced, but not yet in the table "
            f"({cause}); do not send them again, they are committed once the pipeline gets to them",
        )


class Pipelines:
    """The pipelines that came; `load` it first."""

    def __init__(self, records: Records) -> None:
        self.wakeups = Wakeups()
        self._records = records
        self._epoch = 0
        self._uptos: dict[TopicName, UptoRecord] = {}
        self._waited_for: dict[tuple[TopicName, int], Progress] = {}
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        """Read what was kept."""
        self._epoch = (await self._records.pipeline())[0].epoch
        self._uptos = await self._records.uptos()

    async def register(self, name: str, *, owner_epoch: int = 0, least_epoch: int = 0) -> int:
        """Make a pipeline the owner; returns its epoch, which is higher than any before. The watches of others end.

        With `owner_epoch` only the owner itself is given another one.
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
        """Tell whether a pipeline is at work: one that is watches what producers wait for."""
        return self.wakeups.is_watched

    def check(self, epoch: int) -> None:
        """Refuse whoever is not the owner."""
        if epoch != self._epoch:
            why = "a newer pipeline has registered" if epoch < self._epoch else "it was never given"
            raise PreconditionError(f"epoch {epoch} is not the owner's ({self._epoch}): {why}; register, then go on")

    async def report(self, topic: TopicName, generation: int, epoch: int, upto: int) -> int:
        """Keep how far a topic's table is; returns what counts from now on.

        A table only grows under one owner, so what comes late does not take it back. A new owner may have found less:
        then that is the truth.
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
        waited_for = self._waited_for.get((topic, generation))
        if waited_for is not None:
            waited_for.reach(upto)
        return upto

    async def wait_upto(self, topic: TopicName, generation: int, upto: int, timeout_s: float) -> None:
        """Wake the pipeline, and return once a table has everything below `upto`; NotInLakeError when that takes too long."""
        key = (topic, generation)
        progress = self._waited_for.get(key)
        if progress is None:
            progress = self._waited_for[key] = Progress(self.upto(topic, generation) or 0)
        if progress.value >= upto:
            return
        self.wakeups.wake(str(topic), generation, upto)
        try:
            async with asyncio.timeout(timeout_s):
                await progress.wait(upto)
        except TimeoutError:
            raise NotInLakeError(str(topic), upto, f"it took longer than {timeout_s:g} s") from None
        if progress.value < upto:
            raise NotInLakeError(str(topic), upto, "the topic was deleted, or the broker stops")

    def upto(self, topic: TopicName, generation: int) -> int | None:
        """Return below which offset the table has everything, None when nobody has said."""
        known = self._uptos.get(topic)
        return None if known is None or known.generation != generation else known.upto

    def end(self) -> None:
        """Tell whoever waits for a table that this broker stops."""
        for progress in self._waited_for.values():
            progress.end()

    def forget(self, topic: TopicName) -> None:
        """Forget a topic that is gone."""
        self._uptos.pop(topic, None)
        for key in [key for key in self._waited_for if key[0] == topic]:
            self._waited_for.pop(key).end()
        self.wakeups.forget(str(topic))
