"""TopicWriter: one tick carries what waits in all topics to their tables, in one Spark job and one commit a table.

The table is the checkpoint. Nothing else is remembered: a new TopicWriter asks the tables how far they are, claims them
with its epoch, and goes on. What goes wrong with one topic stops that topic for a while, longer each time, and is told.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog

from ister.core.errors import FencedError, IsterError
from ister.core.splits import SPLIT_BYTES
from ister.core.ticks import TICK_BYTES, cores_for, splits_each
from ister.lake.errors import LakeUnavailableError
from ister.lake.evolve import DECODE_ERROR
from ister.lake.files import open_io
from ister.pipeline.client import BrokerRefusedError, BrokerUnavailableError, frames_start
from ister.pipeline.job import JobFailedError, can_run, run_job
from ister.pipeline.plan import Choice, bytes_of, chosen, place_of, tasks_of, works_of
from ister.pipeline.progress import TopicProgress
from ister.pipeline.task import OUTCOMES_SQL, Done, Outcome, Reach, Verdict, Work, run_tasks
from ister.pipeline.typed import Schemas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import SparkSession

    from ister.core.names import TopicName
    from ister.core.typed.decode import Named
    from ister.core.typed.fit import Path
    from ister.lake.parquet import Written
    from ister.lake.table import Lake, LakeTable
    from ister.pipeline.client import BrokerClient
    from ister.rpc import ister_v1_pb2 as pb

log = structlog.get_logger()

ASKS = 8
"""How many questions to the broker are under way at once."""
COMMITS = 4
REFRESH_EVERY = 6
"""In so many micro-batches each table that nothing is committed to is read again: others may have changed it."""
EPOCHS_MAX = 8
"""How often a start may find tables of a higher epoch than the one that it was given."""


class TableAheadError(FencedError):
    """A table was claimed with a higher epoch than ours: by a newer owner, or before the broker lost its metadata."""

    def __init__(self, table: str, epoch: int, held: int) -> None:
        self.table = table
        self.epoch = epoch
        self.held = held
        super().__init__(
            f"table {table} is claimed with epoch {held}, and this pipeline has epoch {epoch}; stop, another one carries on: "
            "if there is none, start this one again"
        )


class WriterSettings(NamedTuple):
    """How a TopicWriter works."""

    reach: Reach
    name: str = "ister"
    choice: Choice = Choice()
    target_file_bytes: int = 128 << 20
    cores: int = 2
    """How many tasks run at once."""
    objects_only: bool = False
    """Executors share nothing with the broker but the object store: every tick asks for an upload."""


class Try(NamedTuple):
    """A commit that was tried: how long it took, how often others came first, how often the catalog did not say."""

    seconds: float
    conflicts: int
    unknowns: int


@dataclass(slots=True)
class Tick:
    """What one tick did."""

    rows: int = 0
    bytes: int = 0
    files: int = 0
    commits: int = 0
    tries: list[Try] = field(default_factory=list)
    """Commits that were tried, landed or not."""
    seconds: float = 0.0
    failed: dict[str, str] = field(default_factory=dict)
    """Topics that did not come along, and why."""


class _Share(NamedTuple):
    """What one topic gives to a tick: works in the order of their offsets."""

    progress: TopicProgress
    start: int
    works: list[Work]


class _Part(NamedTuple):
    """What one topic gives to a commit: offsets [start, stop)."""

    progress: TopicProgress
    start: int
    stop: int
    files: list[Written]
    undecoded: int


class TopicWriter:
    """Carries topics to their tables; `start` it, then `tick` as often as you like, from one thread."""

    def __init__(
        self,
        spark: SparkSession,
        broker: BrokerClient,
        lake: Lake,
        settings: WriterSettings,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now` tells how long topics lag, and when one that failed is tried again."""
        self.now = now
        self._spark = spark
        self._broker = broker
        self._lake = lake
        self._settings = settings
        self._tables: dict[tuple[TopicName, int], LakeTable] = {}
        self._stale: set[tuple[TopicName, int]] = set()
        self._ticks = 0
        self._ahead: list[TableAheadError] = []
        self._tries: list[Try] = []
        self._tick_bytes = TICK_BYTES
        self._told: dict[str, tuple[int, int]] = {}
        self._schemas = Schemas(broker)
        self._pool = ThreadPoolExecutor(ASKS, "ister-ask")
        self._committing = ThreadPoolExecutor(COMMITS, "ister-commit")
        self.topics: dict[str, TopicProgress] = {}
        self.epoch = 0

    def start(self) -> None:
        """Become the owner: from now on every other pipeline is refused by the tables.

        An epoch comes from the broker's metadata. Tables that have a higher one say that this was lost or is older than
        they are: whoever is the owner all the same takes the next one behind theirs.
        """
        self.epoch = self._broker.register(self._settings.name)
        for _ in range(EPOCHS_MAX):
            self._tables.clear()
            self._told.clear()
            try:
                self.look()
            except TableAheadError as error:
                log.warning("epoch_behind", epoch=error.epoch, held=error.held, table=error.table)
                self.epoch = self._registered_again(error.held + 1)
            else:
                return
        raise FencedError("other pipelines claim these tables all the time; stop all but one")

    def _registered_again(self, least_epoch: int) -> int:
        try:
            return self._broker.register(self._settings.name, owner_epoch=self.epoch, least_epoch=least_epoch)
        except BrokerRefusedError as error:
            raise FencedError(f"another pipeline is the owner now: {error}") from error

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()
        self._committing.shutdown()

    # --- looking ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Ask what there is: new topics get their tables, those that are gone are forgotten."""
        found = chosen(self._broker.topics(), self._settings.choice)
        known, now = self.topics, self.now()
        self.topics = {}
        for topic in found:
            progress = known.get(topic.name)
            place = place_of(topic)
            if progress is None or progress.place != place:
                progress = TopicProgress(topic.name, place)
            progress.saw(topic.offsets.next, now)
            schema = topic.schema if topic.HasField("schema") else None
            progress.latest_schema = None if schema is None else (schema.schema_id, schema.latest_version)
            self.topics[topic.name] = progress
        wanted = {progress.place.table for progress in self.topics.values()}
        for key in self._tables.keys() - wanted:
            self._schemas.forget(self._tables.pop(key))
        self._told = {name: told for name, told in self._told.items() if name in self.topics}
        self._ahead.clear()
        self._refresh()
        missing = [key for key in sorted(wanted) if key not in self._tables]
        problems = dict(self._each(self._committing, self._open_table, missing))
        if self._ahead:
            raise max(self._ahead, key=lambda error: error.held)
        for topic in found:
            self._judge(self.topics[topic.name], topic, problems)

    def recheck(self, name: str, generation: int, upto: int) -> None:
        """Have the next look read a topic's table again, when someone waits for what we believe is in it."""
        progress = self.topics.get(name)
        if progress is not None and progress.place.generation == generation and upto <= progress.upto:
            self._stale.add(progress.place.table)

    def _refresh(self) -> None:
        """Read the tables again that others may have changed: what was dropped or is not as it was left is opened anew."""
        stale = sorted(self._stale & self._tables.keys())
        self._stale.clear()
        for key, _ in self._each(self._committing, self._refresh_table, stale):
            self._schemas.forget(self._tables.pop(key))

    def _refresh_table(self, key: tuple[TopicName, int]) -> None:
        table, before = self._tables[key], self._tables[key].held.upto
        try:
            table.refresh()
        except LakeUnavailableError as error:
            log.warning("table_not_read", table=".".join(table.identifier), cause=str(error))
            return
        table.check_surplus()
        if table.held.epoch > self.epoch:
            self._ahead.append(TableAheadError(".".join(table.identifier), self.epoch, table.held.epoch))
        if any(upto > table.upto(partition) for partition, upto in before.items()):
            log.warning(
                "table_went_back", table=".".join(table.identifier), before=str(before), upto=str(table.held.upto)
            )

    def _open_table(self, key: tuple[TopicName, int]) -> None:
        table = self._lake.table(*key)
        table.check()
        if table.held.epoch > self.epoch:
            self._ahead.append(TableAheadError(".".join(table.identifier), self.epoch, table.held.epoch))
            return
        table.claim(self.epoch)
        self._tables[key] = table
        log.info("table_opened", topic=str(key[0]), table=".".join(table.identifier))

    def _judge(self, progress: TopicProgress, topic: pb.Topic, problems: dict[tuple[TopicName, int], str]) -> None:
        """Decide whether a topic can go on: its table must end where its log still has messages."""
        table = self._tables.get(progress.place.table)
        if table is None:
            progress.unfit = problems.get(progress.place.table, "its table could not be opened")
            return
        progress.upto = upto = table.upto(progress.place.partition)
        progress.saw(topic.offsets.next, self.now())  # a table that went back has something to wait for again
        if upto > topic.offsets.next:
            progress.unfit = (
                f"the table holds offsets up to {upto}, the log ends at {topic.offsets.next}: "
                "this is not the log that the table was made from"
            )
        elif upto < (oldest := frames_start(topic.offsets)):
            progress.unfit = (
                f"the table ends at {upto}, and the oldest message that is left has offset {oldest}: "
                "retention was faster; turn the topic's table off, or delete the topic and make it anew"
            )
        else:
            progress.unfit = ""
            if upto == topic.offsets.next:
                progress.failure = None
            self._tell(progress)

    def table_name(self, progress: TopicProgress) -> str:
        """Return the name of a topic's table; empty while it has none."""
        table = self._tables.get(progress.place.table)
        return "" if table is None else ".".join(table.identifier)

    # --- a tick -------------------------------------------------------------------------------------------------------

    def tick(self) -> Tick:
        """Carry what is in the logs now to the tables."""
        began = time.monotonic()
        self._ticks += 1
        busy = {one.place.table for one in self.topics.values() if one.is_ready(self.now())}
        idle = sorted(self._tables.keys() - busy)
        self._stale.update(idle[self._ticks % REFRESH_EVERY :: REFRESH_EVERY])
        self.look()
        now = self.now()
        ready = [one for one in self.topics.values() if one.is_ready(now)]
        before = [one.failure for one in ready]
        self._tries.clear()
        self._type(ready)
        shares = self._plan([one for one, failure in zip(ready, before, strict=True) if one.failure is failure])
        by_table: dict[tuple[TopicName, int], list[_Part]] = {}
        for share, ended in self._run_all(shares):
            part = self._gather(share, ended)
            if part.stop > part.start:
                by_table.setdefault(share.progress.place.table, []).append(part)
        for key, problem in self._each(self._committing, lambda key: self._commit(key, by_table[key]), list(by_table)):
            for part in by_table.pop(key):
                part.progress.fail(problem, self.now())
        for one, failure in zip(ready, before, strict=True):
            if one.failure is failure:
                one.failure = None
        return self._told_of([part for parts in by_table.values() for part in parts], len(by_table), began)

    def _told_of(self, parts: Sequence[_Part], commits: int, began: float) -> Tick:
        files = [one for part in parts for one in part.files]
        return Tick(
            rows=sum(part.stop - part.start for part in parts),
            bytes=sum(one.bytes for one in files),
            files=len(files),
            commits=commits,
            tries=list(self._tries),
            seconds=time.monotonic() - began,
            failed={one.name: one.error for one in self.topics.values() if one.error},
        )

    def _type(self, ready: Sequence[TopicProgress]) -> None:
        """Have tables take the values of their topics' schemas; one after the other, as partitions share a table."""
        away = ""
        for progress in ready:
            latest, table = progress.latest_schema, self._tables[progress.place.table]
            if latest is None:
                continue
            if away and not self._schemas.is_typed(latest, table):
                progress.fail(away, self.now())  # one who does not answer is not asked for each of them
                continue
            try:
                progress.typed = self._schemas.typed(latest, table)
            except FencedError:
                raise
            except Exception as error:  # noqa: BLE001  # the root of a topic: the others go on
                progress.fail(_said(error), self.now())
                away = str(error) if isinstance(error, BrokerUnavailableError) else away

    def _plan(self, ready: Sequence[TopicProgress]) -> list[_Share]:
        """Ask where messages lie, and share out what a tick may take by what waits; in the order of names."""
        found: dict[str, Sequence[pb.Split]] = {}

        def ask(progress: TopicProgress) -> None:
            found[progress.name] = self._splits(progress)

        for progress, problem in self._each(self._pool, ask, ready):
            progress.fail(problem, self.now())
        asked = sorted((one for one in ready if found.get(one.name)), key=lambda one: one.name)
        sizes = [[split.stop_byte - split.start_byte for split in found[one.name]] for one in asked]
        counts = splits_each(sizes, self._tick_bytes)
        whole = sum(sum(each[:count]) for each, count in zip(sizes, counts, strict=True))
        return [
            self._share(one, found[one.name][:count], cores_for(sum(each[:count]), whole, self._settings.cores))
            for one, each, count in zip(asked, sizes, counts, strict=True)
        ]

    def _splits(self, progress: TopicProgress) -> Sequence[pb.Split]:
        """Have a topic synced, and ask where its messages lie, as far as a tick could take them."""
        generation, broker = progress.place.generation, self._broker
        broker.sync(progress.name, generation)
        if self._settings.objects_only:
            broker.upload(progress.name, generation)
        spans = broker.spans(
            progress.name,
            generation,
            progress.upto,
            split_bytes=SPLIT_BYTES,
            splits_max=1 if progress.runs_apart else max(1, self._tick_bytes // SPLIT_BYTES),
        )
        return spans.splits

    def _share(self, progress: TopicProgress, splits: Sequence[pb.Split], cores: int) -> _Share:
        place, target_bytes = progress.place, self._settings.target_file_bytes
        location = self._tables[place.table].location
        works = works_of(progress.name, place.partition, location, splits, target_bytes, cores, progress.typed)
        return _Share(progress, progress.upto, works)

    def _run_all(self, shares: Sequence[_Share]) -> list[tuple[_Share, list[Outcome]]]:
        """Run one job for all topics, and one each for those whose last one failed; returns how their works ended.

        When a job fails although Spark can run jobs, halves of its topics are run, and halves of those: so the topics
        whose messages end workers are found, and fail, and the others go on.
        """
        together = [one for one in shares if not one.progress.runs_apart]
        apart = [one for one in shares if one.progress.runs_apart]
        tick_bytes = min(TICK_BYTES, 2 * self._tick_bytes)
        # Files that the tasks of a failed job had written are on the disk until orphans are removed: the next try writes fewer.
        halved = max(SPLIT_BYTES, self._tick_bytes // 2)
        try:
            ended = self._run_shares(together)
        except JobFailedError as error:
            self._tick_bytes = tick_bytes = halved
            if len(shares) == 1 or not self._can_run():
                raise
            ended = self._run_halves(together, error)
        for one in apart:
            found = self._run_halves([one], None)
            ended += found
            tick_bytes = tick_bytes if found else halved
        self._tick_bytes = tick_bytes
        return ended

    def _run_halves(self, shares: Sequence[_Share], error: JobFailedError | None) -> list[tuple[_Share, list[Outcome]]]:
        """Run the topics of a job that failed by halves; without an error, the whole first."""
        if error is None:
            try:
                return self._run_shares(shares)
            except JobFailedError as failed:
                error = failed
        if len(shares) == 1:
            shares[0].progress.fail(str(error), self.now(), apart=True)
            return []
        middle = len(shares) // 2
        return self._run_halves(shares[:middle], None) + self._run_halves(shares[middle:], None)

    def _run_shares(self, shares: Sequence[_Share]) -> list[tuple[_Share, list[Outcome]]]:
        outcomes = iter(self._run([work for share in shares for work in share.works]))
        return [(share, [next(outcomes) for _ in share.works]) for share in shares]

    def _can_run(self) -> bool:
        """Return True if Spark runs a job that does nothing: then one that failed did so for what it was to do."""
        return can_run(self._spark, self._settings.cores)

    def _run(self, works: Sequence[Work]) -> list[Outcome]:
        """Run one Spark job; returns how each work ended, in their order."""
        if not works:
            return []
        tasks = tasks_of(works, self._settings.cores)
        do, text = partial(run_tasks, tasks, self._settings.reach), f"{len(works)} works of the log to Parquet"
        rows = run_job(self._spark, len(tasks), do, OUTCOMES_SQL, text)
        ended = {row.work: (Verdict(row.verdict), row.text) for row in rows}
        return [ended[number] for number in range(len(works))]

    def _gather(self, share: _Share, outcomes: Sequence[Outcome]) -> _Part:
        """Take what was written, as far as it has no hole; what comes behind one is written again at the next tick."""
        progress, stop = share.progress, share.start
        done: list[Done] = []
        for number, (work, (verdict, text)) in enumerate(zip(share.works, outcomes, strict=True)):
            if verdict is not Verdict.WRITTEN:
                progress.fail(f"{verdict}: {text}", self.now(), replan=verdict is Verdict.GONE)
                level = log.info if verdict is Verdict.GONE else log.error
                level("work_failed", topic=progress.name, verdict=verdict.value, cause=text)
                self._discard(share, outcomes[number:])
                break
            one = Done.from_json(text)
            rows = sum(file.rows for file in one.files)
            if rows != work.sources[-1].stop - work.sources[0].start:
                progress.fail(
                    f"{rows} rows were written for {work.sources}: this is a bug, please report it", self.now()
                )
                self._discard(share, outcomes[number:])
                break
            progress.bytes_a_row = bytes_of(work) / rows
            stop = work.sources[-1].stop
            done.append(one)
        unknown = {named for one in done for named in one.unknown}
        misfits = {path for one in done for path in one.misfits}
        if self._meets(progress, unknown) or self._makes_room(progress, misfits):
            self._discard(share, outcomes[: len(done)])
            return _Part(progress, share.start, share.start, [], 0)
        files = [file for one in done for file in one.files]
        undecoded = sum(self._undecoded(progress, file) for file in files)
        return _Part(progress, share.start, stop, files, undecoded)

    def _meets(self, progress: TopicProgress, unknown: set[Named]) -> bool:
        """Tell whether messages are to be decoded once more, by schemas that nobody had asked for.

        What no registry knows keeps its rows, with an error; so whoever names what he likes stops nothing.
        """
        if not unknown:
            return False
        try:
            met = self._schemas.meet(self._tables[progress.place.table], sorted(unknown, key=str))
        except (BrokerUnavailableError, BrokerRefusedError) as error:
            progress.fail(str(error), self.now())
            return True
        if met:
            log.info("schemas_met", topic=progress.name, schemas=met)
        return met > 0

    def _makes_room(self, progress: TopicProgress, misfits: set[Path]) -> bool:
        """Return True if messages are to be decoded once more, with new columns for values that do not fit.

        A table that can have no more columns keeps their rows, with an error.
        """
        if not misfits:
            return False
        table = self._tables[progress.place.table]
        try:
            has_room = self._schemas.add_beside(table, misfits)
        except FencedError:
            raise
        except Exception as error:  # noqa: BLE001  # the root of a topic: the others go on
            progress.fail(_said(error), self.now())
            return True
        if has_room:
            log.info("columns_added_beside", topic=progress.name, columns=len(misfits))
        return has_room

    def _discard(self, share: _Share, outcomes: Iterable[Outcome]) -> None:
        """Delete what was written and will not be offered: while a hole is there, every tick writes what is behind it."""
        location = self._tables[share.progress.place.table].location
        files = open_io(self._settings.reach.whole().files, location)
        for verdict, text in outcomes:
            for one in Done.from_json(text).files if verdict is Verdict.WRITTEN else ():
                with suppress(Exception):  # what stays is in no snapshot
                    files.delete(one.path)

    def _undecoded(self, progress: TopicProgress, file: Written) -> int:
        """Return how many rows of a file have no value, because their payload did not decode."""
        if progress.typed is None:
            return 0
        column = self._tables[progress.place.table].schema.find_field(DECODE_ERROR).field_id
        return file.rows - file.null_value_counts.get(column, file.rows)

    def _commit(self, key: tuple[TopicName, int], parts: Sequence[_Part]) -> None:
        table, began = self._tables[key], time.monotonic()
        conflicts, unknowns = table.conflicts, table.unknowns
        try:
            table.commit_add_files(
                [one for part in parts for one in part.files],
                {part.progress.place.partition: (part.start, part.stop) for part in parts},
            )
        except FencedError:
            raise
        except Exception:
            del self._tables[key]  # opened anew at the next tick, and looked at
            raise
        finally:
            seconds = time.monotonic() - began
            self._tries.append(Try(seconds, table.conflicts - conflicts, table.unknowns - unknowns))
        for part in parts:
            part.progress.upto = part.stop
            part.progress.undecoded += part.undecoded
            self._tell(part.progress)

    def _tell(self, progress: TopicProgress) -> None:
        """Tell the broker how far a table is, once for each step; it keeps that for when the catalog is away.

        One that does not want to hear it stops nobody: the table itself says at the next commit whose it is.
        """
        told = (progress.place.generation, progress.upto)
        if self._told.get(progress.name) != told:
            try:
                self._broker.report(progress.name, progress.place.generation, self.epoch, progress.upto)
            except BrokerRefusedError as error:
                log.warning("report_refused", topic=progress.name, upto=progress.upto, cause=str(error))
                return
            self._told[progress.name] = told

    def _each(self, pool: ThreadPoolExecutor, do: Callable, keys: Iterable) -> list[tuple]:  # type: ignore[type-arg]  # of any key
        """Do something for each, several at a time; returns those that failed with the reason. A fenced owner stops.

        Nobody is still at work when it ends: the next tick would meet him at the same table.
        """
        futures = [(key, pool.submit(do, key)) for key in keys]
        wait([future for _, future in futures])
        failed = []
        for key, future in futures:
            try:
                future.result()
            except (FencedError, BrokerUnavailableError):
                raise
            except Exception as error:  # noqa: BLE001  # the root of a topic: the others go on
                failed.append((key, _said(error)))
        return failed


def _said(error: Exception) -> str:
    """Return what an error says; one that nobody expected also what it is."""
    if isinstance(error, IsterError):
        return str(error)
    log.error("topic_failed", exc_info=error)
    return f"{type(error).__name__}: {error}; this is a bug, please report it"
