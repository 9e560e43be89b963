"""Decide how the upkeep of tables is told: for people, or as one JSON object."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ister.cli.display import many, megabytes, printable, say, tables
from ister.core.upkeep import Procedure

if TYPE_CHECKING:
    from ister.cli.lake import Maintained, Repaired
    from ister.lake.repair import Cut
    from ister.pipeline.maintenance import Result


def show_maintained(done: Maintained, *, dry_run: bool) -> None:
    """Write a row for each table, and a sentence."""
    if not done.results and not done.problems:
        say("There are no tables yet; the pipeline makes them.")
        return
    console = tables()
    table = Table(box=SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    table.add_column("Table", overflow="fold")
    table.add_column("Would do" if dry_run else "Did", overflow="fold")
    for result in done.results:
        table.add_row(Text(printable(result.table)), Text(did(result)))
    console.print(table)
    if dry_run:
        say("Nothing was changed.")


def did(result: Result) -> str:
    """Say what a procedure did to a table, or would do."""
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


def show_maintained_json(done: Maintained) -> None:
    """Write one JSON object."""
    content = {
        "results": [
            {
                "table": one.table,
                "procedure": one.procedure.value,
                "dry_run": one.dry_run,
                "removed": one.removed,
                "added": one.added,
                "bytes": one.size,
                "snapshots": one.snapshots,
                "spared": one.spared,
            }
            for one in done.results
        ],
        "problems": [{"kind": type(problem).__name__, "what": str(problem)} for problem in done.problems],
    }
    say(json.dumps(content, separators=(",", ":")))


def show_repaired(done: Repaired) -> None:
    """Say what was wrong, and what was done about it."""
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


def show_repaired_json(done: Repaired) -> None:
    """Write one JSON object."""
    content = {
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
    say(json.dumps(content, separators=(",", ":")))
