"""Look after tables by hand: the procedures of maintenance, and repair."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ister.cli.display import bars, notice
from ister.cli.exits import CheckFailedError
from ister.cli.pipeline_status import why_none
from ister.config.lake import catalog_properties, require_shared_catalog, sqlite_file
from ister.core.errors import BusyError, IsterError, NotFoundError, PreconditionError, UnknownOutcomeError
from ister.core.names import TopicName
from ister.core.tables import TOPIC, base_of
from ister.lake.errors import CommitConflictError, OutsideWarehouseError
from ister.lake.repair import (
    Cut,
    RepairRefusedError,
    Served,
    examine,
    fall_back,
    fallback_of,
    find_table,
    losses,
    mend,
)
from ister.lake.table import Lake
from ister.pipeline.client import frames_start
from ister.pipeline.maintenance import Upkeep, tables_of
from ister.pipeline.plan import Choice, place_of
from ister.rpc import ister_v1_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyiceberg.catalog import Catalog

    from ister.cli.remote import Remote
    from ister.config import Config
    from ister.core.upkeep import Procedure
    from ister.lake.repair import Diagnosis, Fallback
    from ister.pipeline.maintenance import Result

TRIES = 5
"""How often a table is examined anew because someone committed to it meanwhile."""


@contextmanager
def looking_at(config: Config) -> Iterator[Catalog | None]:
    """Open the catalog to look at tables; None when there is none yet, so that looking makes nothing."""
    file = sqlite_file(config)
    if file is not None and not file.exists():
        yield None
        return
    lake = Lake.open(*catalog_properties(config))
    try:
        yield lake.catalog
    finally:
        lake.close()


# --- maintenance ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Maintained:
    """What was done to each table, and what could not be done."""

    results: list[Result]
    problems: list[IsterError]


def maintain(config: Config, procedure: Procedure, given: Sequence[str], *, dry_run: bool) -> Maintained:
    """Do one procedure to the tables that are named, or to all; each on its own, with a bar."""
    require_shared_catalog(config, "ister lake")
    from ister.pipeline.session import open_session  # noqa: PLC0415  # only when there is something to do

    results: list[Result] = []
    problems: list[IsterError] = []
    with looking_at(config) as catalog:
        names = [] if catalog is None else names_of(catalog, given)
        if given and catalog is None:
            raise NotFoundError(f"there is no table {given[0]}: the lake is empty")
        if catalog is None or not names:
            return Maintained(results, problems)
        with bars() as progress:
            task = progress.add_task("starting Spark", total=len(names))
            spark = open_session(config)
            try:
                upkeep = Upkeep(spark, catalog, config.storage.iceberg_config.maintenance, _now_ms)
                for name in names:
                    progress.update(task, description=f"{procedure.value} {name}")
                    try:
                        results.append(upkeep.run(name, procedure, dry_run=dry_run))
                    except (BusyError, NotFoundError, UnknownOutcomeError, OutsideWarehouseError) as error:
                        problems.append(error)
                    progress.advance(task)
            finally:
                spark.stop()
    return Maintained(results, problems)


def names_of(catalog: Catalog, given: Iterable[str]) -> list[str]:
    """Return the tables that are meant: each by its name, or a topic's, of whatever generation; all when none is given."""
    there = list(tables_of(catalog))
    found: list[str] = []
    for word in given:
        if word.startswith("/"):
            topic = str(base_of(TopicName.parse(word)))
            meant = [name for name in there if catalog.load_table(name).properties.get(TOPIC) == topic]
        else:
            meant = [name for name in there if name == word]
        if not meant:
            raise NotFoundError(
                f"there is no table {word} of a topic; name one like default.orders or its topic, /default/orders"
            )
        found += [name for name in meant if name not in found]
    return found if given else there


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- repair -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was wrong with a topic's table and was mended, or would be."""

    topic: str
    table: str
    dry_run: bool
    found: str
    cuts: Sequence[Cut]
    broken: str
    """The metadata file that could not be read, and why; empty when it could."""
    chosen: str
    """The older one that was taken instead."""

    @property
    def sound(self) -> bool:
        """Tell whether nothing was wrong."""
        return not (self.found or self.broken or any(cut.changes for cut in self.cuts))


def repair(
    broker: Remote,
    catalog: Catalog | None,
    topic: str,
    *,
    dry_run: bool,
    ask: Callable[[str], None],
    choice: Choice | None = None,
) -> Repaired:
    """Mend a topic's table; asks before it changes anything. RepairRefusedError when something would be lost.

    `choice` is which topics the pipeline takes: a table that nothing appends to is not cut.
    """
    base = base_of(TopicName.parse(topic))
    stored = _stored(broker, base)
    if catalog is None:
        raise NotFoundError(f"{base} has no table: the lake is empty")
    for _ in range(TRIES):
        generation = stored.generation
        fallback = fallback_of(catalog, base, generation)
        table = find_table(catalog, base, generation) if fallback is None else fallback.table
        if table is None:
            raise NotFoundError(
                f"{base} has no table of generation {generation}; the pipeline makes it anew, from offset 0, at its next tick"
            )
        diagnosis = examine(table, base, generation)
        report = _report(base, diagnosis, fallback, dry_run=dry_run)
        stored = _provable(broker, base, diagnosis, fallback)
        if not report.sound:
            stored.require_appended(choice or Choice())
        if report.sound or dry_run:
            return report
        ask(_question(report))
        stored = _provable(broker, base, diagnosis, fallback)  # retention went on while the question was open
        if stored.generation != generation:
            continue
        try:
            if fallback is not None:
                fall_back(catalog, fallback)
            if not diagnosis.sound:
                mend(diagnosis)
        except CommitConflictError as error:
            notice(f"ister: {error}")
            continue
        _check(catalog, base, generation)
        _wake(broker, stored)
        return report
    raise CommitConflictError(str(base), TRIES, "stop the pipeline first")


@dataclass(frozen=True, slots=True)
class _Stored:
    """A topic as its broker has it: the newest generation, and what log and objects hold of each partition."""

    topics: Sequence[pb.Topic]
    generation: int
    served: Mapping[int, Served]

    def require_appended(self, choice: Choice) -> None:
        """Raise PreconditionError unless the pipeline appends to the topic's table."""
        for one in self.topics:
            if why := why_none(one, choice):
                raise PreconditionError(
                    f"the pipeline does not append to the table of {one.name} ({why}), and a repair deletes rows for it to "
                    "append again; nothing was changed. Turn the table on first"
                )


def _stored(broker: Remote, base: TopicName) -> _Stored:
    """Ask the broker for a topic and its partitions."""
    request = pb.ListTopicsRequest(namespace=base.namespace)
    topics = broker.ask("/ister.v1.Storage/ListTopics", request, pb.ListTopicsResponse).topics
    ours = [one for one in topics if one.generation and one.HasField("offsets") and place_of(one).base == base]
    if not ours:
        raise NotFoundError(f"there is no stored topic {base} at this broker; `ister topics list` names what there is")
    generation = max(one.generation for one in ours)
    newest = [one for one in ours if one.generation == generation]
    return _Stored(newest, generation, {place_of(one).partition: _served(one.offsets) for one in newest})


def _served(offsets: pb.Offsets) -> Served:
    """Return what log and objects hold without a gap, and is synced; `start` and `lake_upto` also count the table's rows."""
    has_gap = offsets.cloud_start < offsets.cloud_stop < offsets.log_start
    return Served(offsets.log_start if has_gap else frames_start(offsets), offsets.synced)


def _provable(broker: Remote, base: TopicName, diagnosis: Diagnosis, fallback: Fallback | None) -> _Stored:
    """Return the topic as it is now; RepairRefusedError when log and objects could not give back what is cut.

    Older metadata does not know what later commits held: that goes as far as the pipeline has told the broker.
    """
    stored = _stored(broker, base)
    cuts, ends = list(diagnosis.cuts), dict(diagnosis.ends)
    if fallback is not None:
        told = {place_of(one).partition: one.offsets.lake_upto for one in stored.topics}
        cuts += [Cut(number, 0, 0, 0) for number in told.keys() - {cut.partition for cut in cuts}]
        ends = {number: max(ends.get(number, 0), told.get(number, 0)) for number in {*ends, *told}}
    if lost := list(losses(cuts, stored.served, ends)):
        raise RepairRefusedError(".".join(diagnosis.table.name()), lost)
    return stored


def _wake(broker: Remote, stored: _Stored) -> None:
    """Have the pipeline look at the table at once; without that it does so after a few micro-batches."""
    for topic in stored.topics:
        request = pb.WakePipelineRequest(topic=topic.name, generation=topic.generation)
        try:
            broker.ask("/ister.v1.Storage/WakePipeline", request, pb.WakePipelineResponse)
        except IsterError as error:
            notice(f"ister: the pipeline could not be woken ({error}); it looks at the table again by itself")
            return


def _check(catalog: Catalog, base: TopicName, generation: int) -> None:
    """Look again: what was mended is sound, or it is said at once."""
    table = find_table(catalog, base, generation)
    if table is None or not examine(table, base, generation).sound:
        raise CheckFailedError(f"the table of {base} is not sound after it was mended")


def _report(base: TopicName, diagnosis: Diagnosis, fallback: Fallback | None, *, dry_run: bool) -> Repaired:
    return Repaired(
        str(base),
        ".".join(diagnosis.table.name()),
        dry_run,
        diagnosis.found,
        diagnosis.cuts,
        "" if fallback is None else f"{fallback.broken} ({fallback.reason})",
        "" if fallback is None else diagnosis.table.metadata_location,
    )


def _question(report: Repaired) -> str:
    rows = sum(cut.rows for cut in report.cuts)
    back = f", and it goes back to {report.chosen}" if report.chosen else ""
    return f"{rows:,} rows of table {report.table} will be deleted, and appended anew by the pipeline{back}."
