"""TopicWriter: micro-batches from the logs of all topics to their tables, with one Spark job and one commit a table.

The table is the only checkpoint: a new TopicWriter reads the committed offsets from the tables, claims these with its epoch, and
continues. A failure of one topic suspends that topic with exponential back-off and is reported.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import structlog

from ister.client.storage import BrokerRefusedError, BrokerUnavailableError, frames_start
from ister.core.errors import FencedError, IsterError
from ister.core.retry import backoff_s
from ister.core.tiers.splits import SPLIT_BYTES
from ister.lake.errors import LakeUnavailableError
from ister.lake.evolve import DECODE_ERROR
from ister.lake.files import open_io
from ister.pipeline.job import JobFailedError, can_run, write_files
from ister.pipeline.pacing import MICRO_BATCH_BYTES, Waiting, cores_for, splits_each
from ister.pipeline.plan import Choice, chosen, place_of, plan_files, plan_tasks
from ister.pipeline.task import Destination, FilePlan, Outcome, Reach, Verdict, WriteJob, WriteResult
from ister.pipeline.topic_schemas import Schemas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import SparkSession

    from ister.client.storage import BrokerClient
    from ister.core.names import TopicName
    from ister.core.tiers.splits import Split
    from ister.lake.catalog import LakeCatalog
    from ister.lake.parquet import Written
    from ister.lake.table import LakeTable
    from ister.pipeline.plan import TablePartition
    from ister.pipeline.typed_values import Typed
    from ister.rpc import ister_v1_pb2 as pb
    from ister.schemas.columns.cells import Path
    from ister.schemas.decode import Named

log = structlog.get_logger()

CALLS = 8
"""Concurrent calls to the broker."""
COMMITS = 4
REFRESH_EVERY = 6
"""Micro-batches after which every table without a commit has been read again: others may have changed it."""
BACK_OFF_MAX_S = 60.0
SEEN_MAX = 1_024
"""How many ends of the log are remembered of a topic whose table lags."""
REPLANS_MAX = 3
"""How often in a row a topic whose plan was outdated is planned again without back-off."""
EPOCHS_MAX = 8
"""How often a start may find tables with a higher epoch than its own."""


class TableAheadError(FencedError):
    """A table has a higher epoch than this pipeline: of a newer owner, or from before the broker lost its metadata."""

    def __init__(self, table: str, epoch: int, held: int) -> None:
        self.table, self.epoch, self.held = table, epoch, held
        super().__init__(
            f"table {table} is claimed with epoch {held}, and this pipeline has epoch {epoch}; stop, another one carries on: "
            "if there is none, start this one again"
        )


class WriterSettings(NamedTuple):
    """Settings of a TopicWriter."""

    reach: Reach
    name: str = "ister"
    choice: Choice = Choice()
    target_file_bytes: int = 128 << 20
    cores: int = 2
    """Tasks that run at once."""
    objects_only: bool = False
    """Executors share nothing with the broker but the object store: every micro-batch requests an upload."""


class CommitAttempt(NamedTuple):
    """A commit that was attempted: its duration, conflicts with other commits, and answers that the catalog did not give."""

    seconds: float
    conflicts: int
    unknowns: int


class Failure(NamedTuple):
    """Why the last micro-batch of a topic failed, and when the next one takes it."""

    cause: str
    tries: int
    due_s: float
    is_apart: bool = False
    """A job with its messages failed as a whole: until it succeeds, it gets a job of its own."""


@dataclass(slots=True)
class TopicProgress:
    """Progress of one topic."""

    name: str
    place: TablePartition
    upto: int = 0
    next: int = 0
    bytes_a_row: float = 0.0
    """Of the last micro-batch with messages; 0 before."""
    blocked: str = ""
    """Why its table cannot continue from its log, as of the last refresh."""
    failure: Failure | None = None
    """Reset by the next micro-batch that succeeds, not by a refresh."""
    latest_schema: tuple[int, int] | None = None
    """The id and version that its messages follow now."""
    typed: Typed | None = None
    undecoded: int = 0
    """Rows of this process whose payload did not decode."""
    seen: deque[tuple[float, int]] = field(default_factory=deque)
    """Times and ends of the log that the table has not reached; SEEN_MAX of them."""
    seen_gap_s: float = 0.0
    """Least time between two of these; it grows with the lag."""

    def saw(self, next_offset: int, now: float) -> None:
        """Record where the log ends."""
        at, end = self.seen[-1] if self.seen else (now - self.seen_gap_s, 0)
        if next_offset > max(self.upto, end) and now >= at + self.seen_gap_s:
            self.seen.append((now, next_offset))
            if len(self.seen) > SEEN_MAX:  # the first one stays, so that the lag stays exact
                self.seen = deque(list(self.seen)[::2])
                self.seen_gap_s = (now - self.seen[0][0]) / len(self.seen)
        self.next = next_offset

    def lag_s(self, now: float) -> float:
        """Return for how long the log has had a message that is not in the table."""
        while self.seen and self.seen[0][1] <= self.upto:
            self.seen.popleft()
        if not self.seen:
            self.seen_gap_s = 0.0
        return now - self.seen[0][0] if self.seen else 0.0

    @property
    def error(self) -> str:
        """Return why it is blocked or failed; empty if it is not."""
        return self.blocked or (self.failure.cause if self.failure is not None else "")

    @property
    def runs_apart(self) -> bool:
        """Return True if its messages get a job of their own."""
        return self.failure is not None and self.failure.is_apart

    def fail(self, cause: str, now: float, *, replan: bool = False, apart: bool = False) -> None:
        """Record a failure; the next attempt comes later each time."""
        tries = 1 + (0 if self.failure is None else self.failure.tries)
        wait_s = 0.0 if replan and tries <= REPLANS_MAX else backoff_s(tries, BACK_OFF_MAX_S)
        self.failure = Failure(cause, tries, now + wait_s, apart)

    def is_ready(self, now: float) -> bool:
        """Return True if the next micro-batch takes it."""
        is_due = self.failure is None or self.failure.due_s <= now
        return self.next > self.upto and is_due and not self.blocked

    @property
    def waiting(self) -> Waiting:
        """Return the backlog."""
        rows = max(0, self.next - self.upto)
        return Waiting(rows, int(rows * self.bytes_a_row) if self.bytes_a_row else None)


@dataclass(slots=True)
class MicroBatch:
    """The result of one micro-batch."""

    rows: int = 0
    bytes: int = 0
    files: int = 0
    commits: int = 0
    attempts: list[CommitAttempt] = field(default_factory=list)
    """Commits that were attempted, successful or not."""
    seconds: float = 0.0
    failed: dict[str, str] = field(default_factory=dict)
    """Topics that failed, and why."""


class _TopicBatch(NamedTuple):
    """A topic's part of a micro-batch: file plans in the order of their offsets."""

    progress: TopicProgress
    plans: list[FilePlan]


class _TopicCommit(NamedTuple):
    """A topic's part of a commit: the offsets [progress.upto, stop)."""

    progress: TopicProgress
    stop: int
    files: list[Written]
    undecoded: int


class TopicWriter:
    """Writes topics to their tables: `start`, then `tick` for each micro-batch, from one thread."""

    def __init__(
        self,
        spark: SparkSession,
        broker: BrokerClient,
        lake: LakeCatalog,
        settings: WriterSettings,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now` is the clock of lags and back-offs."""
        self.now = now
        self._spark = spark
        self._broker = broker
        self._lake = lake
        self._settings = settings
        self._tables: dict[tuple[TopicName, int], LakeTable] = {}
        self._stale: set[tuple[TopicName, int]] = set()
        self._batches = 0
        self._ahead: list[TableAheadError] = []
        self._attempts: list[CommitAttempt] = []
        self._budget_bytes = MICRO_BATCH_BYTES
        self._reported: dict[str, tuple[int, int]] = {}
        self._schemas = Schemas(broker)
        self._pool = ThreadPoolExecutor(CALLS, "ister-broker")
        self._committing = ThreadPoolExecutor(COMMITS, "ister-commit")
        self.topics: dict[str, TopicProgress] = {}
        self.epoch = 0

    def start(self) -> None:
        """Become the owner: from now on tables refuse every other pipeline.

        An epoch comes from the broker's metadata. Tables with a higher one show that the metadata was lost or restored;
        the owner then registers with the next epoch after theirs.
        """
        self.epoch = self._broker.register(self._settings.name)
        for _ in range(EPOCHS_MAX):
            self._tables.clear()
            self._reported.clear()
            try:
                self.refresh()
            except TableAheadError as error:
                log.warning("epoch_behind", epoch=error.epoch, held=error.held, table=error.table)
                least_epoch = error.held + 1
            else:
                return
            try:
                self.epoch = self._broker.register(self._settings.name, owner_epoch=self.epoch, least_epoch=least_epoch)
            except BrokerRefusedError as error:
                raise FencedError(f"another pipeline is the owner now: {error}") from error
        raise FencedError("other pipelines claim these tables all the time; stop all but one")

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown()
        self._committing.shutdown()

    # --- topics and tables --------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Refresh the topics: open the tables of new ones, drop deleted ones."""
        found = chosen(self._broker.topics(), self._settings.choice)
        known, now = self.topics, self.now()
        self.topics = {}
        for topic in found:
            progress, place, schema = known.get(topic.name), place_of(topic), topic.schema
            if progress is None or progress.place != place:
                progress = TopicProgress(topic.name, place)
            progress.saw(topic.offsets.next, now)
            progress.latest_schema = (schema.schema_id, schema.latest_version) if topic.HasField("schema") else None
            self.topics[topic.name] = progress
        wanted = {progress.place.table for progress in self.topics.values()}
        for key in self._tables.keys() - wanted:
            self._schemas.forget(self._tables.pop(key))
        self._reported = {name: one for name, one in self._reported.items() if name in self.topics}
        self._ahead.clear()
        self._refresh_stale()
        missing = [key for key in sorted(wanted) if key not in self._tables]
        problems = dict(self._each(self._committing, self._open_table, missing))
        if self._ahead:
            raise max(self._ahead, key=lambda error: error.held)
        for topic in found:
            self._check(self.topics[topic.name], topic, problems)

    def recheck(self, name: str, generation: int, upto: int) -> None:
        """Read a topic's table again at the next refresh, because a producer waits for what should be in it."""
        progress = self.topics.get(name)
        if progress is not None and progress.place.generation == generation and upto <= progress.upto:
            self._stale.add(progress.place.table)

    def _refresh_stale(self) -> None:
        """Read tables again that others may have changed; one that was dropped or changed is opened again."""
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

    def _check(self, progress: TopicProgress, topic: pb.Topic, problems: dict[tuple[TopicName, int], str]) -> None:
        """Check that a topic can continue: its table must end where its log still has messages."""
        table = self._tables.get(progress.place.table)
        if table is None:
            progress.blocked = problems.get(progress.place.table, "its table could not be opened")
            return
        progress.upto = upto = table.upto(progress.place.partition)
        progress.saw(topic.offsets.next, self.now())  # a table that went back lags again
        if upto > topic.offsets.next:
            progress.blocked = (
                f"the table holds offsets up to {upto}, the log ends at {topic.offsets.next}: "
                "this is not the log that the table was made from"
            )
        elif upto < (oldest := frames_start(topic.offsets)):
            progress.blocked = (
                f"the table ends at {upto}, and the oldest message that is left has offset {oldest}: "
                "retention was faster; turn the topic's table off, or delete the topic and make it anew"
            )
        else:
            progress.blocked = ""
            if upto == topic.offsets.next:
                progress.failure = None
            self._report(progress)

    def table_name(self, progress: TopicProgress) -> str:
        """Return the name of a topic's table; empty if it has none yet."""
        table = self._tables.get(progress.place.table)
        return "" if table is None else ".".join(table.identifier)

    # --- a micro-batch ------------------------------------------------------------------------------------------------

    def tick(self) -> MicroBatch:
        """Run one micro-batch: write what the logs have now to the tables."""
        began = time.monotonic()
        self._batches += 1
        busy = {one.place.table for one in self.topics.values() if one.is_ready(self.now())}
        idle = sorted(self._tables.keys() - busy)
        self._stale.update(idle[self._batches % REFRESH_EVERY :: REFRESH_EVERY])
        self.refresh()
        now = self.now()
        ready = [one for one in self.topics.values() if one.is_ready(now)]
        before = [one.failure for one in ready]
        self._attempts.clear()
        self._evolve(ready)
        batches = self._plan([one for one, failure in zip(ready, before, strict=True) if one.failure is failure])
        by_table: dict[tuple[TopicName, int], list[_TopicCommit]] = {}
        for batch, ended in self._run_all(batches):
            commit = self._gather(batch, ended)
            if commit.files:
                by_table.setdefault(batch.progress.place.table, []).append(commit)
        for key, problem in self._each(self._committing, lambda key: self._commit(key, by_table[key]), list(by_table)):
            for commit in by_table.pop(key):
                commit.progress.fail(problem, self.now())
        for one, failure in zip(ready, before, strict=True):
            if one.failure is failure:
                one.failure = None
        commits = [commit for commits in by_table.values() for commit in commits]
        files = [one for commit in commits for one in commit.files]
        return MicroBatch(
            rows=sum(one.rows for one in files),
            bytes=sum(one.bytes for one in files),
            files=len(files),
            commits=len(by_table),
            attempts=list(self._attempts),
            seconds=time.monotonic() - began,
            failed={one.name: one.error for one in self.topics.values() if one.error},
        )

    def _evolve(self, ready: Sequence[TopicProgress]) -> None:
        """Evolve tables for the schemas of their topics; one after the other, because partitions share a table."""
        unavailable = ""
        for progress in ready:
            latest, table = progress.latest_schema, self._tables[progress.place.table]
            if latest is None:
                continue
            if unavailable and not self._schemas.is_typed(latest, table):
                progress.fail(unavailable, self.now())  # the broker is not called again for each topic
                continue
            try:
                progress.typed = self._schemas.typed(latest, table)
            except FencedError:
                raise
            except Exception as error:  # noqa: BLE001  # the root of a topic: the others go on
                progress.fail(_text_of(error), self.now())
                unavailable = str(error) if isinstance(error, BrokerUnavailableError) else unavailable

    def _plan(self, ready: Sequence[TopicProgress]) -> list[_TopicBatch]:
        """Request the splits of topics, and divide the budget of a micro-batch among them; in the order of names."""
        found: dict[str, Sequence[Split]] = {}

        def request(progress: TopicProgress) -> None:
            """Sync a topic and request its splits, as many as a micro-batch could take."""
            name, generation, broker = progress.name, progress.place.generation, self._broker
            splits_max = 1 if progress.runs_apart else max(1, self._budget_bytes // SPLIT_BYTES)
            broker.sync(name, generation)
            if self._settings.objects_only:
                broker.upload(name, generation)
            found[name] = broker.splits(name, generation, progress.upto, split_bytes=SPLIT_BYTES, splits_max=splits_max)

        for progress, problem in self._each(self._pool, request, ready):
            progress.fail(problem, self.now())
        planned = sorted((one for one in ready if found.get(one.name)), key=lambda one: one.name)
        sizes = [[split.bytes for split in found[one.name]] for one in planned]
        counts = splits_each(sizes, self._budget_bytes)
        parts = [sum(each[:count]) for each, count in zip(sizes, counts, strict=True)]
        batches = []
        for one, count, part in zip(planned, counts, parts, strict=True):
            cores = cores_for(part, sum(parts), self._settings.cores)
            plans = plan_files(one.name, found[one.name][:count], self._settings.target_file_bytes, cores)
            batches.append(_TopicBatch(one, plans))
        return batches

    def _run_all(self, batches: Sequence[_TopicBatch]) -> list[tuple[_TopicBatch, list[Outcome]]]:
        """Run one job for all topics, and one each for those whose last job failed; return how their file plans ended.

        When a job fails although Spark can run jobs, its topics are bisected: so the topics whose messages end workers
        are found, and fail, and the others succeed.
        """
        together = [one for one in batches if not one.progress.runs_apart]
        apart = [one for one in batches if one.progress.runs_apart]
        budget_bytes = min(MICRO_BATCH_BYTES, 2 * self._budget_bytes)
        # Files of a failed job stay on the disk until orphans are removed: the next attempt writes fewer.
        halved = max(SPLIT_BYTES, self._budget_bytes // 2)
        try:
            ended = self._run_batches(together)
        except JobFailedError as error:
            self._budget_bytes = budget_bytes = halved
            if len(batches) == 1 or not self._can_run():
                raise
            ended = self._run_halves(together, error)
        for one in apart:
            found = self._run_halves([one], None)
            ended += found
            budget_bytes = budget_bytes if found else halved
        self._budget_bytes = budget_bytes
        return ended

    def _run_halves(
        self, batches: Sequence[_TopicBatch], error: JobFailedError | None
    ) -> list[tuple[_TopicBatch, list[Outcome]]]:
        """Bisect the topics of a job that failed; without an error, run all of them first."""
        if error is None:
            try:
                return self._run_batches(batches)
            except JobFailedError as failed:
                error = failed
        if len(batches) == 1:
            batches[0].progress.fail(str(error), self.now(), apart=True)
            return []
        middle = len(batches) // 2
        return self._run_halves(batches[:middle], None) + self._run_halves(batches[middle:], None)

    def _run_batches(self, batches: Sequence[_TopicBatch]) -> list[tuple[_TopicBatch, list[Outcome]]]:
        outcomes = iter(self._run([plan for batch in batches for plan in batch.plans]))
        return [(batch, [next(outcomes) for _ in batch.plans]) for batch in batches]

    def _can_run(self) -> bool:
        """Return True if Spark runs a job that does nothing: then a job that failed did so because of its messages."""
        return can_run(self._spark, self._settings.cores)

    def _run(self, plans: Sequence[FilePlan]) -> list[Outcome]:
        """Run one Spark job; return how each file plan ended, in their order."""
        return write_files(self._spark, plan_tasks(plans, self._settings.cores), self._job(plans)) if plans else []

    def _job(self, plans: Sequence[FilePlan]) -> WriteJob:
        destinations = {}
        for progress in (self.topics[plan.topic] for plan in plans):
            location, partition = self._tables[progress.place.table].location, progress.place.partition
            destinations[progress.name] = Destination(location, partition, progress.typed)
        return WriteJob(self._settings.reach, self._settings.target_file_bytes, destinations)

    def _gather(self, batch: _TopicBatch, outcomes: Sequence[Outcome]) -> _TopicCommit:
        """Take what was written up to the first hole; what comes behind it is written again by the next micro-batch."""
        progress, stop = batch.progress, batch.progress.upto
        results: list[WriteResult] = []
        for plan, (verdict, text) in zip(batch.plans, outcomes, strict=True):
            if verdict is not Verdict.WRITTEN:
                progress.fail(f"{verdict}: {text}", self.now(), replan=verdict is Verdict.GONE)
                level = log.info if verdict is Verdict.GONE else log.error
                level("work_failed", topic=progress.name, verdict=verdict.value, cause=text)
                break
            result = WriteResult.from_json(text)
            rows = sum(file.rows for file in result.files)
            if rows != plan.splits[-1].stop - plan.splits[0].start:
                cause = f"{rows} rows were written for {plan.splits}: this is a bug, please report it"
                progress.fail(cause, self.now())
                break
            progress.bytes_a_row = plan.bytes / rows
            stop = plan.splits[-1].stop
            results.append(result)
        self._discard(batch, outcomes[len(results) :])
        unknown = {named for result in results for named in result.unknown}
        misfits = {path for result in results for path in result.misfits}
        if self._finds_schemas(progress, unknown) or self._adds_columns(progress, misfits):
            self._discard(batch, outcomes[: len(results)])
            return _TopicCommit(progress, progress.upto, [], 0)
        files = [file for result in results for file in result.files]
        undecoded = sum(self._undecoded(progress, file) for file in files)
        return _TopicCommit(progress, stop, files, undecoded)

    def _finds_schemas(self, progress: TopicProgress, unknown: set[Named]) -> bool:
        """Return True if messages must be decoded again, with schemas that their topic does not follow.

        Rows that name a schema of no registry are written with an error, so such a name stops nothing.
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

    def _adds_columns(self, progress: TopicProgress, misfits: set[Path]) -> bool:
        """Return True if messages must be decoded again, with new columns for values that do not fit.

        In a table that can have no more columns their rows are written with an error.
        """
        if not misfits:
            return False
        table = self._tables[progress.place.table]
        try:
            has_room = self._schemas.add_beside(table, misfits)
        except FencedError:
            raise
        except Exception as error:  # noqa: BLE001  # the root of a topic: the others go on
            progress.fail(_text_of(error), self.now())
            return True
        if has_room:
            log.info("columns_added_beside", topic=progress.name, columns=len(misfits))
        return has_room

    def _discard(self, batch: _TopicBatch, outcomes: Iterable[Outcome]) -> None:
        """Delete files that will not be committed: while there is a hole, every micro-batch writes what is behind it."""
        written = [WriteResult.from_json(text) for verdict, text in outcomes if verdict is Verdict.WRITTEN]
        location = self._tables[batch.progress.place.table].location
        for path in [file.path for result in written for file in result.files]:
            with suppress(Exception):  # a remaining file is in no snapshot
                open_io(self._settings.reach.whole().files, location).delete(path)

    def _undecoded(self, progress: TopicProgress, file: Written) -> int:
        """Return how many rows of a file have no value, because their payload did not decode."""
        if progress.typed is None:
            return 0
        column = self._tables[progress.place.table].schema.find_field(DECODE_ERROR).field_id
        return file.rows - file.null_value_counts.get(column, file.rows)

    def _commit(self, key: tuple[TopicName, int], commits: Sequence[_TopicCommit]) -> None:
        table, began = self._tables[key], time.monotonic()
        conflicts, unknowns = table.conflicts, table.unknowns
        try:
            table.commit_add_files(
                [one for commit in commits for one in commit.files],
                {commit.progress.place.partition: (commit.progress.upto, commit.stop) for commit in commits},
            )
        except FencedError:
            raise
        except Exception:
            del self._tables[key]  # opened again and checked by the next micro-batch
            raise
        finally:
            seconds = time.monotonic() - began
            self._attempts.append(CommitAttempt(seconds, table.conflicts - conflicts, table.unknowns - unknowns))
        for commit in commits:
            commit.progress.upto = commit.stop
            commit.progress.undecoded += commit.undecoded
            self._report(commit.progress)

    def _report(self, progress: TopicProgress) -> None:
        """Report a table's committed offset to the broker, once for each; it serves that while the catalog is unavailable.

        A refusal stops nothing: the next commit shows whether this pipeline still owns the table.
        """
        reported = (progress.place.generation, progress.upto)
        if self._reported.get(progress.name) != reported:
            try:
                self._broker.report(progress.name, progress.place.generation, self.epoch, progress.upto)
            except BrokerRefusedError as error:
                log.warning("report_refused", topic=progress.name, upto=progress.upto, cause=str(error))
                return
            self._reported[progress.name] = reported

    def _each(self, pool: ThreadPoolExecutor, do: Callable, keys: Iterable) -> list[tuple]:  # type: ignore[type-arg]  # of any key
        """Call a function for each key, several at a time; return the keys that failed with the reason. Raise if fenced.

        All calls have ended when it returns: the next micro-batch uses the same tables.
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
                failed.append((key, _text_of(error)))
        return failed


def _text_of(error: Exception) -> str:
    """Return the text of an error; of an unexpected one also its type."""
    if isinstance(error, IsterError):
        return str(error)
    log.error("topic_failed", exc_info=error)
    return f"{type(error).__name__}: {error}; this is a bug, please report it"
