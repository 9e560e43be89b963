"""`ister lake`: maintenance procedures by hand, and the repair of a table."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ister.cli.commands.config import load_config
from ister.cli.commands.pipeline import why_none
from ister.cli.exit_codes import CheckFailedError, leave_with
from ister.cli.options import (
    BROKER,
    BrokerOption,
    ConfigOption,
    DataDirOption,
    OutputOption,
    TopicArgument,
    YesOption,
    command,
    command_group,
    utf8_text,
)
from ister.cli.output import (
    Output,
    bars,
    confirm,
    fields_of,
    many,
    megabytes,
    notice,
    print_table,
    printable,
    say,
)
from ister.config.catalog import require_shared_catalog
from ister.core.errors import BusyError, IsterError, NotFoundError, PreconditionError, UnknownOutcomeError
from ister.core.names import TopicName
from ister.core.table.maintenance import Procedure
from ister.core.table.names import TOPIC, base_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyiceberg.catalog import Catalog

    from ister.client.channel import Remote
    from ister.config import Config
    from ister.lake.repair import Cut, Diagnosis, Fallback, Served
    from ister.pipeline.maintenance import Result
    from ister.pipeline.plan import Choice
    from ister.rpc import ister_v1_pb2 as pb

ATTEMPTS = 5
"""How often a table is examined again because another writer committed to it meanwhile."""

TablesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TABLE|TOPIC", help="Like default.orders, or /default/orders.", show_default="all", parser=utf8_text
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]

app = command_group("Maintain, repair and relocate tables.")

_PROCEDURES = {
    Procedure.COMPACT: """Rewrite small files into large ones, sorted.

    The pipeline does this every few minutes. Safe beside it.

    Example: ister lake compact default.orders --dry-run
    """,
    Procedure.EXPIRE: """Expire old snapshots, and delete the files that only they have.

    A file stays for an hour after it left its table (file_grace_minutes), so that queries finish.

    Example: ister lake expire /default/orders
    """,
    Procedure.ORPHANS: """Delete files that no table refers to.

    Killed processes leave them. Younger than a day they stay (orphan_hours): a commit under way has files, too.

    Example: ister lake orphans --dry-run
    """,
    Procedure.MANIFESTS: """Rewrite the lists of files, so that queries plan quickly.

    The pipeline merges them as it commits; this is for tables that others write to.

    Example: ister lake manifests default.orders
    """,
}
"""The help of each procedure's command."""


def _maintenance_command(procedure: Procedure) -> Callable[..., None]:
    def run(
        which: TablesArgument = None,
        *,
        dry_run: DryRunOption = False,
        file: ConfigOption = None,
        data_dir: DataDirOption = None,
        output: OutputOption = Output.TABLE,
    ) -> None:
        done = maintain(load_config(file, data_dir).config, procedure, which or [], dry_run=dry_run)
        output.show(done, _maintained_fields, lambda report: show_maintained(report, dry_run=dry_run))
        leave_with(done.problems)

    return run


for _procedure, _help in _PROCEDURES.items():
    command(app, _procedure.value, help=_help)(_maintenance_command(_procedure))


@command(app, "repair")
def _repair(
    topic: TopicArgument,
    *,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    broker: BrokerOption = BROKER,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Mend a table that was rolled back, emptied or written to by others.

    Reads which offsets it holds, cuts it where they have a hole or come twice, and lets the pipeline append the rest from log
    or objects. Refused when those no longer have it. Safe beside a pipeline.

    Example: ister lake repair /default/orders --dry-run
    """
    from ister.client.channel import Remote
    from ister.pipeline.plan import Choice
    from ister.runtime.compose import open_catalog

    config = load_config(file, data_dir).config
    require_shared_catalog(config, "ister lake repair")
    choice = Choice((), config.storage.iceberg_config.writer.exclude)
    with Remote.broker(broker) as remote, open_catalog(config) as catalog:
        agreed = (lambda _: None) if yes else confirm
        done = repair(remote, catalog, topic, dry_run=dry_run, ask=agreed, choice=choice)
    output.show(done, _repaired_fields, _write_repaired)


@command(app, "relocate")
def _relocate(
    *, file: ConfigOption = None, data_dir: DataDirOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Give the tables of a moved data directory the paths of its new place.

    Iceberg stores absolute paths. Metadata and manifests are written again, data files stay. Stop the broker first.

    Example: ister lake relocate --data-dir /srv/ister
    """
    from ister.runtime.identity import relocate_directory

    tables = asyncio.run(relocate_directory(load_config(file, data_dir).config))

    def write(names: list[str]) -> None:
        for name in names:
            say(f"relocated {printable(name)}")
        say(f"{many(len(names), 'table')} relocated." if names else "Every table has the paths of this directory.")

    output.show(tables, lambda names: {"relocated": names}, write)


# --- maintenance ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Maintained:
    """The result for each table, and the errors."""

    results: list[Result]
    problems: list[IsterError]


def maintain(config: Config, procedure: Procedure, given: Sequence[str], *, dry_run: bool) -> Maintained:
    """Run a procedure on the given tables, or on all, one at a time, with a progress bar."""
    from ister.lake.errors import OutsideWarehouseError
    from ister.pipeline.maintenance import Upkeep
    from ister.pipeline.session import open_session
    from ister.runtime.compose import open_catalog
    from ister.runtime.identity import require_own_directory

    require_shared_catalog(config, "ister lake")
    asyncio.run(require_own_directory(config))
    results: list[Result] = []
    problems: list[IsterError] = []
    with open_catalog(config) as catalog:
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
    """Return the tables that words name: a table's name, or a topic for all its generations; all tables without words."""
    from ister.pipeline.maintenance import tables_of

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
    """What was wrong with a topic's table and was repaired, or would be."""

    topic: str
    table: str
    dry_run: bool
    found: str
    cuts: Sequence[Cut]
    broken: str
    """The metadata file that could not be read, and why; empty when it could."""
    chosen: str
    """The older one that was used instead."""

    @property
    def sound(self) -> bool:
        """True if nothing was wrong."""
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
    """Repair a topic's table; `ask` confirms the change. Raise RepairRefusedError if rows would be lost.

    `choice` selects the topics of the pipeline: a table that nothing appends to is not cut.
    """
    from ister.lake.errors import CommitConflictError
    from ister.lake.repair import examine, fall_back, fallback_of, find_table, mend
    from ister.pipeline.plan import Choice

    base = base_of(TopicName.parse(topic))
    stored = _stored(broker, base)
    if catalog is None:
        raise NotFoundError(f"{base} has no table: the lake is empty")
    for _ in range(ATTEMPTS):
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
        stored = _provable(
            broker, base, diagnosis, fallback
        )  # retention may have deleted more while the question was open
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
    raise CommitConflictError(str(base), ATTEMPTS, "stop the pipeline first")


@dataclass(frozen=True, slots=True)
class _Stored:
    """A topic of the broker: its newest generation, and what log and objects hold of each partition."""

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
    """Request a topic and its partitions from the broker."""
    from ister.pipeline.plan import place_of
    from ister.rpc import ister_v1_pb2 as pb

    request = pb.ListTopicsRequest(namespace=base.namespace)
    topics = broker.ask("/ister.v1.Storage/ListTopics", request, pb.ListTopicsResponse).topics
    ours = [one for one in topics if one.generation and one.HasField("offsets") and place_of(one).base == base]
    if not ours:
        raise NotFoundError(f"there is no stored topic {base} at this broker; `ister topics list` names what there is")
    generation = max(one.generation for one in ours)
    newest = [one for one in ours if one.generation == generation]
    return _Stored(newest, generation, {place_of(one).partition: _served(one.offsets) for one in newest})


def _served(offsets: pb.Offsets) -> Served:
    """Return the synced range that log and objects hold without a gap; `start` and `lake_upto` also count the table's rows."""
    from ister.client.storage import frames_start
    from ister.lake.repair import Served

    has_gap = offsets.cloud_start < offsets.cloud_stop < offsets.log_start
    return Served(offsets.log_start if has_gap else frames_start(offsets), offsets.synced)


def _provable(broker: Remote, base: TopicName, diagnosis: Diagnosis, fallback: Fallback | None) -> _Stored:
    """Return the topic as it is now; raise RepairRefusedError if log and objects do not hold what is cut.

    Older metadata does not know what later commits held: their end is the one that the pipeline reported to the broker.
    """
    from ister.lake.repair import Cut, RepairRefusedError, losses
    from ister.pipeline.plan import place_of

    stored = _stored(broker, base)
    cuts, ends = list(diagnosis.cuts), dict(diagnosis.ends)
    if fallback is not None:
        reported = {place_of(one).partition: one.offsets.lake_upto for one in stored.topics}
        cuts += [Cut(number, 0, 0, 0) for number in reported.keys() - {cut.partition for cut in cuts}]
        ends = {number: max(ends.get(number, 0), reported.get(number, 0)) for number in {*ends, *reported}}
    if lost := list(losses(cuts, stored.served, ends)):
        raise RepairRefusedError(".".join(diagnosis.table.name()), lost)
    return stored


def _wake(broker: Remote, stored: _Stored) -> None:
    """Wake the pipeline to reload the table; otherwise it does so after a few micro-batches."""
    from ister.rpc import ister_v1_pb2 as pb

    for topic in stored.topics:
        request = pb.WakePipelineRequest(topic=topic.name, generation=topic.generation)
        try:
            broker.ask("/ister.v1.Storage/WakePipeline", request, pb.WakePipelineResponse)
        except IsterError as error:
            notice(f"ister: the pipeline could not be woken ({error}); it looks at the table again by itself")
            return


def _check(catalog: Catalog, base: TopicName, generation: int) -> None:
    """Raise CheckFailedError unless the repaired table is sound."""
    from ister.lake.repair import examine, find_table

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


# --- output -----------------------------------------------------------------------------------------------------------


def show_maintained(done: Maintained, *, dry_run: bool) -> None:
    """Write a row for each table, and a sentence."""
    if not done.results and not done.problems:
        say("There are no tables yet; the pipeline makes them.")
        return
    print_table(("Table", "Would do" if dry_run else "Did"), [(result.table, did(result)) for result in done.results])
    if dry_run:
        say("Nothing was changed.")


def did(result: Result) -> str:
    """Return what a procedure did to a table, or would do."""
    if not (result.removed or result.snapshots or result.spared):
        return "nothing: there is nothing to do"
    into = f" into {result.added:,}" if result.added else ""
    match result.procedure:
        case Procedure.COMPACT:
            return f"rewrite {many(result.removed, 'file')}{into}, {megabytes(result.size)}"
        case Procedure.MANIFESTS:
            return f"rewrite {many(result.removed, 'manifest')}{into}"
        case Procedure.EXPIRE:
            files = f", delete {many(result.removed, 'file')}" if result.removed else ""
            return f"let go {many(result.snapshots, 'snapshot')}{files}"
        case Procedure.ORPHANS:
            spared = f"; {many(result.spared, 'file')} listed under another spelling stay" if result.spared else ""
            return f"delete {many(result.removed, 'file')}, {megabytes(result.size)}{spared}"


def _maintained_fields(done: Maintained) -> object:
    return fields_of(done) | {"results": [fields_of(one, size="bytes") for one in done.results]}


def _write_repaired(done: Repaired) -> None:
    if done.sound:
        upto = ", ".join(f"{cut.keep:,} (partition {cut.partition})" for cut in done.cuts) or "0"
        say(f"Sound: table {printable(done.table)} holds every offset below {upto} once. Nothing to repair.")
        return
    say(f"Table {printable(done.table)} of {printable(done.topic)}:")
    if done.broken:
        say(f"  its metadata file cannot be read: {printable(done.broken)}")
        say(f"  the newest before it that can: {printable(done.chosen)}")
    if done.found:
        say(f"  {printable(done.found)}")
    for cut in done.cuts:
        if cut.changes:
            say(f"  {_cut(cut)}")
    if done.dry_run:
        say("Nothing was changed. Without --dry-run, this would be mended.")
    else:
        say("Mended. The pipeline appends what is missing at its next tick; `ister pipeline status` shows it.")


def _cut(cut: Cut) -> str:
    rows = f"; {many(cut.rows, 'row')} at or behind it {'goes' if cut.rows == 1 else 'go'}" if cut.rows else ""
    return f"partition {cut.partition}: it says {cut.said:,}, and is whole below offset {cut.keep:,}{rows}"


def _repaired_fields(done: Repaired) -> object:
    return {
        "topic": done.topic,
        "table": done.table,
        "dry_run": done.dry_run,
        "verdict": "sound" if done.sound else "broken" if done.dry_run else "mended",
        "found": done.found or None,
        "broken_metadata": done.broken or None,
        "chosen_metadata": done.chosen or None,
        "partitions": [
            {"partition": cut.partition, "said": cut.said, "upto": cut.keep, "rows_deleted": cut.rows}
            for cut in done.cuts
        ],
    }
