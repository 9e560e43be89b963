"""Decide how objects are told of: what was verified, what was rebuilt; for people, or as one JSON object."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ister.cli.display import many, megabytes, printable, say, tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ister.cli.objects_rebuild import RebuildReport, TopicRebuild
    from ister.cli.objects_verify import ObjectsReport


def show_verified(report: ObjectsReport) -> None:
    """Write what was read, what nobody needs, and the verdict."""
    for sentence in _others(report):
        say(sentence)
    what = f"{many(report.objects, 'object')}, {megabytes(report.size)}, offsets [{report.start}, {report.stop})"
    if report.problems:
        say(f"Damaged: {many(len(report.problems), 'problem')}; {report.sound:,} sound of {what}.")
    elif report.objects:
        say(f"Sound: {what}; every byte was read back and compared with its description.")
    else:
        say(f"Nothing is uploaded yet: no object of {printable(str(report.topic))} is described.")


def show_verified_json(report: ObjectsReport) -> None:
    """Write one JSON object with everything that was found."""
    content = {
        "topic": str(report.topic),
        "generation": report.generation,
        "store": report.store,
        "verdict": "damaged" if report.problems else "sound",
        "start": report.start,
        "stop": report.stop,
        "objects": report.objects,
        "sound": report.sound,
        "bytes": report.size,
        "orphans": report.orphans,
        "orphan_bytes": report.orphan_bytes,
        "orphans_ahead": report.orphans_ahead,
        "strangers": report.strangers,
        "problems": [{"kind": type(problem).__name__, "what": str(problem)} for problem in report.problems],
    }
    say(json.dumps(content, separators=(",", ":")))


def show_rebuilt(report: RebuildReport) -> None:
    """Write a row for each topic, and what was done."""
    console = tables()
    table = Table(box=SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    table.add_column("Topic", overflow="fold")
    table.add_column("State")
    for heading in ("Generation", "Offsets", "Objects", "Size", "Orphans", "Older"):
        table.add_column(heading, justify="right")
    for topic in report.topics:
        table.add_row(
            Text(printable(str(topic.topic))),
            Text(topic.state, "bold red" if topic.problems else "green"),
            f"{topic.generation}",
            f"[{topic.start}, {topic.stop})",
            f"{topic.objects:,}",
            megabytes(topic.size),
            f"{topic.orphans:,}",
            f"{topic.older:,}",
        )
    console.print(table)
    for topic in report.topics:
        if topic.note:
            say(f"{printable(str(topic.topic))}: {topic.note}")
    say(_summary(report))


def show_rebuilt_json(report: RebuildReport) -> None:
    """Write one JSON object."""
    content = {
        "store": report.store,
        "metadata": report.metadata,
        "dry_run": report.dry_run,
        "topics": [_rebuilt(topic) for topic in report.topics],
    }
    say(json.dumps(content, separators=(",", ":")))


def _others(report: ObjectsReport) -> Iterator[str]:
    if report.orphans:
        ahead = (
            f" {report.orphans_ahead:,} of them lie behind the last description: being uploaded at this moment, or left "
            "by a crash and adopted at the next start."
            if report.orphans_ahead
            else ""
        )
        size = megabytes(report.orphan_bytes)
        say_what = "that no description names; the broker sweeps those that others make superfluous."
        yield f"Orphans: {many(report.orphans, 'object')} ({size}) {say_what}{ahead}"
    if report.strangers:
        yield f"Strangers: {many(report.strangers, 'object')} of other generations or other names below this topic."


def _summary(report: RebuildReport) -> str:
    good = [topic for topic in report.topics if not topic.problems and topic.objects]
    bad = [topic for topic in report.topics if topic.problems]
    objects = sum(topic.objects for topic in good)
    did = "Would rebuild" if report.dry_run else "Rebuilt"
    line = f"{did} {many(len(good), 'topic')} with {many(objects, 'object')} in {report.metadata}."
    return line + (f" {many(len(bad), 'topic')} cannot be rebuilt; of those nothing was written." if bad else "")


def _rebuilt(topic: TopicRebuild) -> dict[str, object]:
    return {
        "topic": str(topic.topic),
        "state": topic.state,
        "generation": topic.generation,
        "start": topic.start,
        "stop": topic.stop,
        "objects": topic.objects,
        "bytes": topic.size,
        "orphans": topic.orphans,
        "older": topic.older,
        "note": topic.note,
        "problems": [{"kind": type(problem).__name__, "what": str(problem)} for problem in topic.problems],
    }
