"""TopicWriter: one tick carries what waits in all topics to their tables, in one Spark job and one commit a table.

The table is the checkpoint. Nothing else is remembered: a new TopicWriter asks the tables how far they are, claims them
with its epoch, and goes on. What goes wrong with one topic stops that topic until the next tick, and is told.
"""

from __future__ import annotations

import json
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog

from ister.core.errors import CorruptError, FencedError, IsterError
from ister.core.splits import SPLIT_BYTES
from ister.core.ticks import Waiting, splits_each
from ister.lake.evolve import DECODE_ERROR
from ister.lake.files import open_io
from ister.lake.parquet import Written
from ister.pipeline.client import BrokerRefusedError, BrokerUnavailableError
from ister.pipeline.plan import Choice, bytes_of, chosen, place_of, tasks_of, works_of
from ister.pipeline.task import OUTCOMES_SQL, Reach, Verdict, Work, run_tasks
from ister.pipeline.typed import Schemas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import SparkSession

    from ister.core.names import TopicName
    from ister.lake.table import Lake, LakeTable
    from ister.pipeline.client import BrokerClient
    from ister.pipeline.plan import Place
    from ister.pipeline.typed import Typed
    from ister.rpc import ister_v1_pb2 as pb

log = structlog.get_logger()

ASKS = 8
"""How many questions to the broker are under way at once."""
COMMITS = 4


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


@dataclass(slots=True)
class TopicProgress:
    """What is known of one topic."""

    name: str
    place: Place
    upto: int = 0
    next: int = 0
    bytes_a_row: float = 0.0
    """Of the last tick that had something."""
    error: str = ""
    latest_schema: tuple[int, int] | None = None
    """The id and version that its messages follow now."""
    typed: Typed | None = None
    undecoded: int = 0
    """Rows that we wrote whose payload did not decode."""
    seen: deque[tuple[float, int]] = field(default_factory=deque)
    """When we saw the log end where, as far as the table has not got there."""

    def saw(self, next_offset: int, now: float) -> None:
        """Note where the log ends."""
        if next_offset > max(self.upto, self.seen[-1][1] if self.seen else 0):
            self.seen.append((now, next_offset))
        self.next = next_offset

    def lag_s(self, now: float) -> float:
        """Return how long we have known of something that is not in the table."""
        while self.seen and self.seen[0][1] <= self.upto:
            self.seen.popleft()
        return now - self.seen[0][0] if self.seen else 0.0

    @property
    def waiting(self) -> Waiting:
        """Return what the log has and the table has not."""
        rows = max(0, self.next - self.upto)
        return Waiting(rows, int(rows * self.bytes_a_row))


@dataclass(slots=True)
class Tick:
    """What one tick did."""

    rows: int = 0
    bytes: int = 0
    files: int = 0
    commits: int = 0
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


class TopicWriter:
    """Carries topics to their tables; `start` it, then `tick` as often as you like, from one thread."""

    def __init__(self, spark: SparkSession, broker: BrokerClient, lake: Lake, settings: WriterSettings) -> None:
        self._spark = spark
        self._broker = broker
        self._lake = lake
        self._settings = settings
        self._tables: dict[tuple[TopicName, int], LakeTable] = {}
        self._told: dict[str, tuple[int, int]] = {}
        self._schemas = Schemas(broker)
        self._pool = ThreadPoolExecutor(ASKS, "ister-ask")
        self._committing = ThreadPoolExecutor(COMMITS, "ister-commit")
        self.topics: dict[str, TopicProgress] = {}
        self.epoch = 0

    def start(self) -> None:
        """Become the owner: from now on every other pipeline is refused by the tables."""
        self.epoch = self._broker.register(self._settings.name)
        self._tables.clear()
        self._told.clear()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()
        self._committing.shutdown()

    # --- looking ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Ask what there is: new topics get their tables, those that are gone are forgotten."""
        found = chosen(self._broker.topics(), self._settings.choice)
        known, now = self.topics, time.monotonic()
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
            del self._tables[key]
        missing = [key for key in sorted(wanted) if key not in self._tables]
        problems = dict(self._each(self._committing, self._open_table, missing))
        for topic in found:
            self._judge(self.topics[topic.name], topic, problems)

    def _open_table(self, key: tuple[TopicName, int]) -> None:
        table = self._lake.table(*key)
        table.check()
        table.claim(self.epoch)
        self._tables[key] = table
        log.info("table_opened", topic=str(key[0]), table=".".join(table.identifier))

    def _judge(self, progress: TopicProgress, topic: pb.Topic, problems: dict[tuple[TopicName, int], str]) -> None:
        """Decide whether a topic can go on: its table must end where its log still has messages."""
        table = self._tables.get(progress.place.table)
        if table is None:
            progress.error = problems.get(progress.place.table, "its table could not be opened")
            return
        progress.upto = upto = table.upto(progress.place.partition)
        if upto > topic.offsets.next:
            progress.error = (
                f"the table holds offsets up to {upto}, the log ends at {topic.offsets.next}: "
                "this is not the log that the table was made from"
            )
        elif upto < topic.offsets.start:
            progress.error = (
                f"the table ends at {upto}, and the oldest message that is left has offset {topic.offsets.start}: "
                "retention was faster; turn the topic's table off, or delete the topic and make it anew"
            )
        else:
            progress.error = ""
            self._tell(progress)

    def table_name(self, progress: TopicProgress) -> str:
        """Return the name of a topic's table; empty while it has none."""
        table = self._tables.get(progress.place.table)
        return "" if table is None else ".".join(table.identifier)

    # --- a tick -------------------------------------------------------------------------------------------------------

    def tick(self) -> Tick:
        """Carry what is in the logs now to the tables."""
        began = time.monotonic()
        self.look()
        tick = Tick()
        ready = [one for one in self.topics.values() if not one.error and one.next > one.upto]
        self._type(ready)
        shares = self._plan([one for one in ready if not one.error])
        works = [work for share in shares for work in share.works]
        outcomes = self._run(works)
        by_table: dict[tuple[TopicName, int], list[_Part]] = {}
        at = 0
        for share in shares:
            ended = outcomes[at : at + len(share.works)]
            at += len(share.works)
            stop, written = self._gather(share, ended)
            if stop > share.start:
                part = _Part(share.progress, share.start, stop, written)
                by_table.setdefault(share.progress.place.table, []).append(part)
        for key, problem in self._each(self._committing, lambda key: self._commit(key, by_table[key]), list(by_table)):
            for part in by_table.pop(key):
                part.progress.error = problem
        for parts in by_table.values():
            tick.commits += 1
            for part in parts:
                tick.rows += part.stop - part.start
                tick.files += len(part.files)
                tick.bytes += sum(one.bytes for one in part.files)
        tick.seconds = time.monotonic() - began
        tick.failed = {one.name: one.error for one in self.topics.values() if one.error}
        return tick

    def _type(self, ready: Sequence[TopicProgress]) -> None:
        """Have tables take the values of their topics' schemas; one after the other, as partitions share a table."""
        for progress in ready:
            if progress.latest_schema is not None:
                try:
                    progress.typed = self._schemas.typed(progress.latest_schema, self._tables[progress.place.table])
                except (FencedError, BrokerUnavailableError):
                    raise
                except IsterError as error:
                    progress.error = str(error)

    def _plan(self, ready: Sequence[TopicProgress]) -> list[_Share]:
        splits_max = splits_each(len(ready), SPLIT_BYTES)
        shares: list[_Share] = []

        def plan(progress: TopicProgress) -> None:
            share = self._share(progress, splits_max)
            if share.works:
                shares.append(share)

        for progress, problem in self._each(self._pool, plan, ready):
            progress.error = problem
        return sorted(shares, key=lambda share: share.progress.name)

    def _share(self, progress: TopicProgress, splits_max: int) -> _Share:
        """Have a topic synced, and ask where its messages lie."""
        settings, place, broker = self._settings, progress.place, self._broker
        broker.sync(progress.name, place.generation)
        if settings.objects_only:
            broker.upload(progress.name, place.generation)
        spans = broker.spans(
            progress.name, place.generation, progress.upto, split_bytes=SPLIT_BYTES, splits_max=splits_max
        )
        location = self._tables[place.table].location
        works = works_of(
            progress.name,
            place.partition,
            location,
            spans.splits,
            settings.target_file_bytes,
            settings.cores,
            progress.typed,
        )
        return _Share(progress, progress.upto, works)

    def _run(self, works: Sequence[Work]) -> list[tuple[Verdict, str]]:
        """Run one Spark job; returns how each work ended, in their order."""
        if not works:
            return []
        tasks = tasks_of(works, self._settings.cores)
        numbers = self._spark.range(0, len(tasks), 1, numPartitions=len(tasks))
        self._spark.sparkContext.setJobGroup("ister", f"{len(works)} works of the log to Parquet")
        rows = numbers.mapInArrow(partial(run_tasks, tasks, self._settings.reach), OUTCOMES_SQL).collect()
        ended = {row.work: (Verdict(row.verdict), row.text) for row in rows}
        return [ended[number] for number in range(len(works))]

    def _gather(self, share: _Share, outcomes: Sequence[tuple[Verdict, str]]) -> tuple[int, list[Written]]:
        """Take what was written, as far as it has no hole; what comes behind one is written again at the next tick."""
        stop, written = share.start, list[Written]()
        for number, (work, (verdict, text)) in enumerate(zip(share.works, outcomes, strict=True)):
            if verdict is not Verdict.WRITTEN:
                share.progress.error = f"{verdict}: {text}"
                level = log.info if verdict is Verdict.GONE else log.error
                level("work_failed", topic=share.progress.name, verdict=verdict.value, cause=text)
                self._discard(share, outcomes[number:])
                break
            files = [Written.from_json(one) for one in json.loads(text)]
            rows = sum(one.rows for one in files)
            if rows != work.sources[-1].stop - work.sources[0].start:
                raise CorruptError(f"{share.progress.name}: {rows} rows were written for {work.sources}")
            share.progress.bytes_a_row = bytes_of(work) / rows
            share.progress.undecoded += sum(self._undecoded(share.progress, one) for one in files)
            stop = work.sources[-1].stop
            written += files
        return stop, written

    def _discard(self, share: _Share, outcomes: Iterable[tuple[Verdict, str]]) -> None:
        """Delete what was written behind a hole: it was never offered, and while the hole is there every tick writes it."""
        location = self._tables[share.progress.place.table].location
        files = open_io(self._settings.reach.whole().files, location)
        for verdict, text in outcomes:
            for one in json.loads(text) if verdict is Verdict.WRITTEN else ():
                with suppress(Exception):  # what stays is in no snapshot
                    files.delete(Written.from_json(one).path)

    def _undecoded(self, progress: TopicProgress, file: Written) -> int:
        """Return how many rows of a file have no value, because their payload did not decode."""
        if progress.typed is None:
            return 0
        column = self._tables[progress.place.table].schema.find_field(DECODE_ERROR).field_id
        return file.rows - file.null_value_counts.get(column, file.rows)

    def _commit(self, key: tuple[TopicName, int], parts: Sequence[_Part]) -> None:
        try:
            self._tables[key].commit_add_files(
                [one for part in parts for one in part.files],
                {part.progress.place.partition: (part.start, part.stop) for part in parts},
            )
        except FencedError:
            raise
        except IsterError:
            del self._tables[key]  # opened anew at the next tick, and looked at
            raise
        for part in parts:
            part.progress.upto = part.stop
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
            except IsterError as error:
                failed.append((key, str(error)))
        return failed
