"""`ister pipeline`: run the pipeline from topics to tables, and show how far each table is.

In `status` the table is the truth about what is committed, the broker about what there is; Spark is not started for it.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from ister.cli.commands.config import load_config
from ister.cli.logs import LogFormat, show_server_events
from ister.cli.options import BROKER, BrokerOption, ConfigOption, DataDirOption, OutputOption, command, command_group
from ister.cli.output import Output, grid, many, printable, say, tables
from ister.config import Loaded
from ister.config.catalog import require_shared_catalog
from ister.core.errors import IsterError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from ister.client.channel import Remote
    from ister.pipeline.plan import Choice, TablePartition
    from ister.pipeline.status import Status
    from ister.rpc import ister_v1_pb2 as pb

WATCH_S = 1.0
STALE_S = 30.0
"""A pipeline writes its status after each micro-batch; after this and three intervals it is in a long one, or it ended."""

app = command_group("Run the pipeline from topics to tables, and see where it is.")


@command(app, "run")
def _run(
    *,
    master: Annotated[
        str, typer.Option(metavar="URL", help="Spark's master: local[*], spark://host:7077, yarn, k8s://….")
    ] = "local[*]",
    once: Annotated[bool, typer.Option("--once", help="Carry what is there now, and end.")] = False,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topics", metavar="PATTERN", help="Only these; * stands for anything.", show_default="all"),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Serve metrics on this port of loopback.", show_default="nowhere"),
    ] = None,
    broker: BrokerOption = BROKER,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    log_format: Annotated[
        LogFormat, typer.Option(help="How log events are written to stderr; auto is text on a terminal.")
    ] = LogFormat.AUTO,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log warnings only.")] = False,
) -> None:
    """Carry topics to their tables, exactly once.

    Until SIGTERM or Ctrl-C; it may also be killed at any moment, since the tables are its checkpoint. `ister serve` runs one
    itself; run another for a cluster, with `ister serve --no-pipeline`. The newest one is the owner, and others stop.

    Example: ister pipeline run --once
    """
    from ister.runtime.pipeline import RunOptions, run

    show_server_events(log_format, everything=not quiet)
    options = RunOptions(broker, master, once, tuple(topics or ()), metrics_port)
    run(load_config(file, data_dir), options, write_summary)


@command(app, "status")
def _status(
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Redraw it each second, until Ctrl-C.")] = False,
    broker: BrokerOption = BROKER,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show how far each topic's table is.

    Asks the broker and the catalog, and reads what a pipeline on this data directory wrote last; starts no Spark.

    Example: ister pipeline status --watch
    """
    from ister.client.channel import Remote
    from ister.runtime.compose import open_catalog

    loaded = load_config(file, data_dir)
    require_shared_catalog(loaded.config, "ister pipeline")

    def report() -> Report:
        with open_catalog(loaded.config) as catalog:
            return pipeline_report(remote, catalog, loaded)

    def show(found: Report) -> None:
        output.show(found, asdict, _write)

    with Remote.broker(broker) as remote:
        if watch:
            _watch(report, time.sleep, show if output is Output.JSON else None)
        else:
            show(report())


def write_summary(rows: int, files: int, commits: int) -> None:
    """Write what `ister pipeline run --once` wrote."""
    say(f"{many(rows, 'row')} in {many(files, 'file')} and {many(commits, 'commit')}.")


# --- status -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicLine:
    """One topic; None is unknown."""

    topic: str
    table: str
    committed: int | None
    lag_messages: int | None
    lag_s: float | None
    files: int | None
    snapshots: int | None
    error: str
    why_none: str
    """Why it has no table; empty if it has one or will have one."""


@dataclass(frozen=True, slots=True)
class Report:
    """The pipeline, and all topics by name."""

    pid: int | None
    epoch: int | None
    age_s: float | None
    """How long ago a pipeline wrote its status here; None when none ever did."""
    is_stale: bool
    topics: list[TopicLine]


def pipeline_report(broker: "Remote", catalog: "Catalog | None", loaded: Loaded) -> Report:
    """Read the broker, the catalog (None when there is none yet) and the status file."""
    from ister.pipeline.plan import Choice, place_of
    from ister.pipeline.status import FILE_NAME, Status
    from ister.rpc import ister_v1_pb2 as pb

    topics = broker.ask("/ister.v1.Storage/ListTopics", pb.ListTopicsRequest(), pb.ListTopicsResponse).topics
    writer = loaded.config.storage.iceberg_config.writer
    status = Status.read(Path(loaded.home) / FILE_NAME)
    age_s = None if status is None else max(0.0, time.time() - status.time_s)
    seen: dict[tuple[object, int], Table | str | None] = {}
    lines = []
    for topic in topics:
        place = place_of(topic)
        if why := why_none(topic, Choice((), writer.exclude)):
            lines.append(TopicLine(topic.name, "", None, None, None, None, None, "", why))
            continue
        if place.table not in seen:
            seen[place.table] = _table(catalog, place)
        lines.append(line_of(topic, place, seen[place.table], status, age_s))
    is_stale = age_s is not None and age_s > STALE_S + 3 * writer.flush_interval_ms / 1000
    if status is None:
        return Report(None, None, None, is_stale, lines)
    return Report(status.pid, status.epoch, age_s, is_stale, lines)


def why_none(topic: "pb.Topic", choice: "Choice") -> str:
    """Return why a topic has no table; empty if it has one or will have one."""
    from ister.pipeline.plan import chosen
    from ister.rpc import ister_v1_pb2 as pb

    if chosen([topic], choice):
        return ""
    if topic.dispatch != pb.DISPATCH_RELIABLE:
        return "non-reliable: its messages are not stored"
    if not topic.generation or not topic.HasField("offsets"):
        return "it is not open; see the broker's log"
    if not json.loads(topic.policies)["lake"]:
        return "opted out by its policy: lake=false"
    return "opted out by the configuration: writer.exclude"


def line_of(
    topic: "pb.Topic",
    place: "TablePartition",
    table: "Table | str | None",
    status: "Status | None",
    age_s: float | None,
) -> TopicLine:
    """Return the line of a topic with a table; `table` is the error text when it cannot be read."""
    from pyiceberg.table.snapshots import TOTAL_DATA_FILES

    from ister.lake.table import LakeTable

    last = None if status is None else status.topics.get(topic.name)
    error = "" if last is None else last.error
    name, committed, files, snapshots = "" if last is None else last.table, 0, None, None
    if isinstance(table, str):
        error = error or table
        committed = topic.offsets.lake_upto
    elif table is not None:
        name = ".".join(table.name())
        current = table.current_snapshot()
        summary = {} if current is None or current.summary is None else current.summary.additional_properties
        files, snapshots = int(summary.get(TOTAL_DATA_FILES, 0)), len(table.metadata.snapshots)
        try:
            committed = LakeTable(table, place.base, place.generation).upto(place.partition)
        except IsterError as moved:
            error, committed = str(moved), 0
    lag = max(0, topic.offsets.next - committed)
    lag_s: float | None = 0.0
    if lag:
        lag_s = None if last is None or age_s is None else round(last.lag_s + age_s, 3)
    return TopicLine(topic.name, name, committed, lag, lag_s, files, snapshots, error, "")


def _table(catalog: "Catalog | None", place: "TablePartition") -> "Table | str | None":
    from ister.lake.repair import find_table

    try:
        return None if catalog is None else find_table(catalog, *place.table)
    except IsterError as error:
        return str(error)


def _write(report: Report) -> None:
    console = tables()
    console.print(drawn(report, on_terminal=console.is_terminal))


def _watch(
    see: Callable[[], Report], pause: Callable[[float], None], show: Callable[[Report], None] | None = None
) -> None:
    """Redraw the report each second until Ctrl-C; or call `show` with each."""
    if show is not None:
        while True:
            show(see())
            sys.stdout.flush()
            pause(WATCH_S)
    console = tables()
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            live.update(drawn(see(), on_terminal=console.is_terminal), refresh=True)
            pause(WATCH_S)


def drawn(report: Report, *, on_terminal: bool) -> RenderableType:
    """Return the table and the sentences below it."""
    if not report.topics:
        return Text(f"There are no topics yet. Next: ister produce /default/orders -m hello\n{_pipeline_text(report)}")
    rows = []
    for one in report.topics:
        note = Text(printable(one.error), "red") if one.error else Text(one.why_none, "dim")
        if not one.error and not one.why_none and not one.table:
            note = Text("no table yet", "yellow")
        rows.append(
            (
                one.topic,
                one.table,
                _number(one.committed),
                _number(one.lag_messages),
                "?" if one.lag_s is None and one.lag_messages else "" if one.lag_s is None else f"{one.lag_s:,.1f}",
                _number(one.files),
                _number(one.snapshots),
                note,
            )
        )
    headings = ("Topic", "Table", ">Committed below", ">Lag", ">Lag s", ">Files", ">Snapshots", "")
    return Group(grid(headings, rows, on_terminal=on_terminal), Text(_pipeline_text(report)))


def _pipeline_text(report: Report) -> str:
    """Return the state of the pipeline process."""
    if report.age_s is None:
        return "No pipeline has run on this data directory. `ister serve` runs one, and so does `ister pipeline run`."
    ago = f"{report.age_s:,.0f} s ago"
    if report.is_stale:
        return (
            f"Stale: the pipeline (process {report.pid}) wrote its status {ago}; it is in a long tick, or gone. Look at its "
            "log, and whether `ister serve` runs."
        )
    failing = sum(bool(one.error) for one in report.topics)
    also = f"; {many(failing, 'topic')} with an error" if failing else ""
    return f"The pipeline (process {report.pid}, epoch {report.epoch}) ticked {ago}{also}."


def _number(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
