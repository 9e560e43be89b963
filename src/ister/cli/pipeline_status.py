"""Decide what is told of the pipeline: where each topic's table is, from the broker, the catalog and what a pipeline wrote.

The table is the truth about what is committed, the broker about what there is. Spark is not started for it.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.table.snapshots import TOTAL_DATA_FILES
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.live import Live
from rich.table import Table as Lines
from rich.text import Text

from ister.cli.display import many, printable, say, tables
from ister.core.errors import IsterError
from ister.lake.commit import LakeTable
from ister.lake.repair import find_table
from ister.pipeline.plan import Choice, chosen, place_of
from ister.pipeline.status import FILE_NAME, Status
from ister.rpc import ister_v1_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from rich.console import RenderableType

    from ister.cli.remote import Remote
    from ister.config import Loaded
    from ister.pipeline.plan import Place

WATCH_S = 1.0
STALE_S = 30.0
"""A pipeline writes its status at each tick; after this, and three ticks, it is in a long one, or gone."""


@dataclass(frozen=True, slots=True)
class TopicLine:
    """One topic; None is what nobody knows."""

    topic: str
    table: str
    committed: int | None
    lag_messages: int | None
    lag_s: float | None
    files: int | None
    snapshots: int | None
    error: str
    why_none: str
    """Why it has no table; empty when it has one, or will."""


@dataclass(frozen=True, slots=True)
class Report:
    """The pipeline, and all topics by name."""

    pid: int | None
    epoch: int | None
    age_s: float | None
    """How long ago a pipeline wrote its status here; None when none ever did."""
    is_stale: bool
    topics: list[TopicLine]


def look(broker: Remote, catalog: Catalog | None, loaded: Loaded) -> Report:
    """Ask the broker, the catalog (None when there is none yet) and the status file."""
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


def why_none(topic: pb.Topic, choice: Choice) -> str:
    """Say why a topic has no table; empty when it has one, or will."""
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
    topic: pb.Topic, place: Place, table: Table | str | None, status: Status | None, age_s: float | None
) -> TopicLine:
    """Put together what is known of a topic with a table; `table` is text when it cannot be read."""
    told = None if status is None else status.topics.get(topic.name)
    error = "" if told is None else told.error
    name, committed, files, snapshots = "" if told is None else told.table, 0, None, None
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
        lag_s = None if told is None or age_s is None else round(told.lag_s + age_s, 3)
    return TopicLine(topic.name, name, committed, lag, lag_s, files, snapshots, error, "")


def _table(catalog: Catalog | None, place: Place) -> Table | str | None:
    try:
        return None if catalog is None else find_table(catalog, *place.table)
    except IsterError as error:
        return str(error)


def show_json(report: Report) -> None:
    """Write one JSON object."""
    say(json.dumps(asdict(report), separators=(",", ":")))


def show_table(report: Report) -> None:
    """Write a row for each topic, and what is known of the pipeline."""
    console = tables()
    console.print(drawn(report, on_terminal=console.is_terminal))


def watch(
    see: Callable[[], Report], pause: Callable[[float], None], show: Callable[[Report], None] | None = None
) -> None:
    """Draw it anew each second until someone interrupts; or show each in another way."""
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
    """Draw the table and the sentences below it."""
    if not report.topics:
        return Text(f"There are no topics yet. Next: ister produce /default/orders -m hello\n{_told(report)}")
    lines = Lines(box=SIMPLE_HEAD if on_terminal else None, pad_edge=False)
    lines.add_column("Topic", overflow="fold")
    lines.add_column("Table", overflow="fold")
    for heading in ("Committed below", "Lag", "Lag s", "Files", "Snapshots"):
        lines.add_column(heading, justify="right")
    lines.add_column("", overflow="fold")
    for one in report.topics:
        said = Text(printable(one.error), "red") if one.error else Text(one.why_none, "dim")
        if not one.error and not one.why_none and not one.table:
            said = Text("no table yet", "yellow")
        lines.add_row(
            Text(printable(one.topic)),
            Text(printable(one.table)),
            _number(one.committed),
            _number(one.lag_messages),
            "?" if one.lag_s is None and one.lag_messages else "" if one.lag_s is None else f"{one.lag_s:,.1f}",
            _number(one.files),
            _number(one.snapshots),
            said,
        )
    return Group(lines, Text(_told(report)))


def _told(report: Report) -> str:
    """Say what is known of the pipeline itself."""
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
