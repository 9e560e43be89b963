"""Decide how the state of a log is told: a table and a few sentences for people, one JSON object for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ister.cli.display import many, megabytes, printable, say, tables
from ister.cli.verify import FileReport, FileVerdict, Report
from ister.core.recover import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

_STYLES = {
    FileVerdict.CLEAN: "green",
    FileVerdict.TORN: "yellow",
    FileVerdict.GONE: "dim",
    FileVerdict.CORRUPT: "bold red",
    FileVerdict.MISSING: "bold red",
}


def show_json(report: Report) -> None:
    """Write one JSON object with everything that was found."""
    last = report.present[-1] if report.present else None
    content = {
        "directory": report.directory,
        "verdict": report.verdict.value,
        "start": report.present[0].first if report.present else None,
        "stop": last.stop if last else None,
        "synced_offset": last.synced if last else None,
        "messages": sum(file.messages for file in report.present),
        "bytes": sum(file.size for file in report.present),
        "files": [
            {
                "file": file.name,
                "verdict": file.verdict.value,
                "first": file.first,
                "stop": file.stop,
                "messages": file.messages,
                "bytes": file.size,
                "valid_bytes": file.end,
                "superseded_bytes": file.superseded_bytes,
                "bad_bytes": file.bad_bytes,
                "synced_offset": file.synced,
                "reason": file.reason,
                "problem": None if file.problem is None else str(file.problem),
            }
            for file in report.files
        ],
    }
    say(json.dumps(content, separators=(",", ":")))


def show_table(report: Report) -> None:
    """Write a row for each file, what needs a word, and the verdict."""
    console = tables()
    table = Table(box=SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    table.add_column("File", overflow="fold")
    table.add_column("Verdict")
    for heading in ("Offsets", "Messages", "Bytes", "Superseded", "Synced below"):
        table.add_column(heading, justify="right")
    for file in report.files:
        table.add_row(*_row(file))
    console.print(table)
    for sentence in _sentences(report):
        say(sentence)
    say(_summary(report))


def _row(file: FileReport) -> tuple[Text | str, ...]:
    verdict = Text(file.verdict.value, _STYLES[file.verdict])
    name = Text(printable(file.name))
    if file.verdict in {FileVerdict.MISSING, FileVerdict.GONE}:
        return (name, verdict)
    return (
        name,
        verdict,
        f"[{file.first}, {file.stop})",
        f"{file.messages:,}",
        f"{file.size:,}",
        f"{file.superseded_bytes:,}",
        f"{file.synced}",
    )


def _sentences(report: Report) -> Iterator[str]:
    for file in report.files:
        name = printable(file.name)
        if file.verdict is FileVerdict.GONE:
            yield f"{name} was pruned while this check ran; that is no damage."
        if file.superseded_bytes:
            yield (
                f"{name}: {many(file.superseded_bytes, 'byte')} behind byte {file.end} were superseded by the next "
                "file when the log was opened after a crash; they are kept as evidence and never read."
            )
    if report.problems or not report.present:
        return
    last = report.present[-1]
    if last.verdict is FileVerdict.TORN:
        yield (
            f"{printable(last.name)} has a torn tail: {many(last.bad_bytes, 'byte')} from byte {last.end} on, where "
            f"offset {last.stop} should be, are no whole frame ({last.reason}). This is normal after a crash and while "
            f"the log is in use. The next open keeps all messages below offset {last.stop} and leaves these bytes as "
            "evidence."
        )
    if last.synced < last.stop:
        yield (
            f"{many(last.stop - last.synced, 'message')} from offset {last.synced} on are whole, but not known to be "
            "synced. This is normal after a crash and while the log is in use. The next open copies them to a new file "
            "and syncs that."
        )


def _summary(report: Report) -> str:
    present = report.present
    messages = sum(file.messages for file in present)
    what = f"{many(len(present), 'file')}, {many(messages, 'message')}, {megabytes(sum(file.size for file in present))}"
    if report.problems:
        return f"Damaged: {many(len(report.problems), 'problem')} in {what}. The log will refuse to serve it."
    span = f"offsets [{present[0].first}, {present[-1].stop})"
    if report.verdict is Verdict.TORN:
        return f"Sound, with a torn tail: {what}, {span}."
    return f"Sound: {what}, {span}."
