"""`ister wal`: dump and verify the files of a log."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ister.cli.exit_codes import leave_with
from ister.cli.options import OutputOption, PayloadOption, command, command_group
from ister.cli.output import (
    Output,
    fields_of,
    item_lines,
    many,
    megabytes,
    message_columns,
    message_fields,
    message_heading,
    moment,
    no_message_columns,
    notice,
    print_table,
    printable,
    progress_bar,
    say,
)
from ister.core.frames.frame import Frame, Marker
from ister.core.frames.recover import Verdict
from ister.offline import dump
from ister.offline.verify_log import FileReport, FileVerdict, Report, verify_log

_LINE = "{:>11} {:>12} {:>8} {:8} {:7} {:27} {}"
_COLUMNS = 11 + 12 + 8 + 8 + 7 + 27 + 6
_STYLES = {
    FileVerdict.CLEAN: "green",
    FileVerdict.TORN: "yellow",
    FileVerdict.PRUNED: "dim",
    FileVerdict.CORRUPT: "bold red",
    FileVerdict.MISSING: "bold red",
}

app = command_group("Look into a log's files; safe while it is in use.")


@command(app, "dump")
def _dump(
    file: Annotated[Path, typer.Argument(help="A log file, like wal-0000000001-00000000000000000000.log.")],
    *,
    output: OutputOption = Output.TABLE,
    start: Annotated[int, typer.Option("--from", min=0, metavar="OFFSET", help="Begin at this offset.")] = 0,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after so many frames.", show_default="all")
    ] = None,
    payload: PayloadOption = False,
) -> None:
    """Show a log file frame by frame."""
    lines = item_lines(output, _frame_fields, _line, _payload, columns_before=_COLUMNS, payload=payload)
    heading = _LINE.format("BYTE", "OFFSET", "LENGTH", "CRC", "KIND", "APPENDED (UTC)", message_heading())
    needs_heading = True
    for item in dump.dump_file(file, start, limit):
        if not isinstance(item, Frame):
            notice(_ending(file.name, start, item))
            continue
        if needs_heading:
            output.show_heading(heading)
            needs_heading = False
        for line in lines(item):
            say(line)


@command(app, "verify")
def _verify(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of one log.")],
    *,
    output: OutputOption = Output.TABLE,
    file_name: Annotated[str, typer.Option(help="The file_name that the log is configured with.")] = "wal.log",
) -> None:
    """Check every file of a log, byte by byte."""
    with progress_bar(f"verifying {directory.name}") as show:
        report = verify_log(directory, file_name, show)
    output.show(report, _fields, _write)
    leave_with(report.problems)


# --- dump -------------------------------------------------------------------------------------------------------------


def _line(frame: Frame, columns: int) -> str:
    content = frame.content
    if isinstance(content, Marker):
        synced = f"synced: below offset {content.synced_offset}, byte {content.synced_pos}"
        kind, time, rest = "marker", "", no_message_columns(synced)
    else:
        kind, time, rest = "message", moment(content.append_time_us), message_columns(content, columns)
    return _LINE.format(frame.at, frame.offset, frame.length, f"{frame.crc:08x}", kind, time, rest)


def _payload(frame: Frame) -> bytes:
    return b"" if isinstance(frame.content, Marker) else frame.content.payload


def _frame_fields(frame: Frame) -> dict[str, object]:
    fields = fields_of(frame, at="byte", content="")
    content = frame.content
    if isinstance(content, Marker):
        marker = fields_of(content, at="own_byte", synced_pos="synced_byte")
        return fields | {"kind": "marker"} | marker
    return fields | {"kind": "message", "append_time_us": content.append_time_us} | message_fields(content)


def _ending(name: str, start: int, ending: dump.Ending) -> str:
    match ending:
        case dump.EmptyFile():
            return f"{name} has no frames yet: it is empty."
        case dump.NoFrames(next_offset):
            return f"{name} has no frame at or behind offset {start}; its messages end before {next_offset}."
        case dump.Superseded(at, size, follower):
            return (
                f"{many(size, 'byte')} behind byte {at} were superseded by {follower}: after a crash the "
                "log was opened again, and the whole messages among them were copied there."
            )
        case dump.TornTail(at, size, offset, reason):
            return (
                f"{name} has a torn tail: {many(size, 'byte')} from byte {at} on, where "
                f"offset {offset} should be, are no whole frame ({reason}). This is normal after a crash "
                "and while the log is in use; the next open keeps every message before it."
            )
        case dump.FileGrew():
            return f"{name} was written to while it was read; run it again to see the rest."


# --- verify -----------------------------------------------------------------------------------------------------------


def _fields(report: Report) -> object:
    last = report.present[-1] if report.present else None
    return {
        "directory": report.directory,
        "verdict": report.verdict,
        "start": report.present[0].first if report.present else None,
        "stop": last.stop if last else None,
        "synced_offset": last.synced if last else None,
        "messages": sum(file.messages for file in report.present),
        "bytes": sum(file.size for file in report.present),
        "files": [
            fields_of(file, name="file", synced="synced_offset", size="bytes", end="valid_bytes")
            | {
                "messages": file.messages,
                "bad_bytes": file.bad_bytes,
                "problem": None if file.problem is None else str(file.problem),
            }
            for file in report.files
        ],
    }


def _write(report: Report) -> None:
    numbers = (">Offsets", ">Messages", ">Bytes", ">Superseded", ">Synced below")
    print_table(("File", "Verdict", *numbers), (_row(file) for file in report.files))
    for sentence in _sentences(report):
        say(sentence)
    say(_summary(report))


def _row(file: FileReport) -> tuple[Text | str, ...]:
    verdict = Text(file.verdict.value, _STYLES[file.verdict])
    name = file.name
    if file.verdict in {FileVerdict.MISSING, FileVerdict.PRUNED}:
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
        if file.verdict is FileVerdict.PRUNED:
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
