"""`ister tiers`: one bar a tier over the same offsets, and a few sentences below."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from ister.cli.commands.config import load_config
from ister.cli.exit_codes import leave_with
from ister.cli.options import ConfigOption, DataDirOption, OutputOption, TopicArgument, command, command_group
from ister.cli.output import Output, fields_of, many, megabytes, printable, say, tables
from ister.core.tiers.selection import OffsetRange

if TYPE_CHECKING:
    from ister.offline.tiers import TiersReport

_COLUMNS_MIN, _COLUMNS_MAX = 20, 60
_COLUMNS_BESIDE = 60
_LABEL = "  {:8} "

app = command_group()


@command(app)
def _tiers(
    topic: TopicArgument,
    *,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what each tier holds of a topic, and what waits.

    Reads only; safe beside a running broker.

    Example: ister tiers /default/orders --data-dir /var/lib/ister
    """
    from ister.offline.tiers import report_tiers

    report = report_tiers(load_config(file, data_dir).config, topic)
    output.show(report, _fields, _write)
    leave_with(report.problems)


def _write(report: "TiersReport") -> None:
    columns = shutil.get_terminal_size((120, 24)).columns - _COLUMNS_BESIDE
    width = max(_COLUMNS_MIN, min(_COLUMNS_MAX, columns))
    say(f"{printable(str(report.topic))}, generation {report.generation}")
    say()
    say(_LABEL.format("") + _scale(report, width))
    whole = OffsetRange(report.start, report.stop)
    objects, log, table = report.objects, report.log, report.table
    if table is not None:
        held = [table.span] if table.span.start < table.span.stop else []
        holds = "cannot be asked" if table.problem else _holds(held, table.files, "file", table.size)
        _bar("table", held, whole, width, "magenta", holds)
    _bar("objects", objects.spans, whole, width, "cyan", _holds(objects.spans, objects.count, "object", objects.size))
    spans = [log.span] if log.state == "ok" else []
    holds = _holds(spans, len(log.files), "file", log.size) if log.state == "ok" else log.state
    _bar("log", spans, whole, width, "green", holds)
    say()
    for sentence in _sentences(report):
        say(f"  {sentence}")


def bar(spans: Sequence[OffsetRange], whole: OffsetRange, width: int) -> str:
    """Draw ranges of offsets: a full cell is held completely, half a cell in part."""
    full, left, right, empty = "█▌▐·" if _draws() else "#++."
    cells = []
    for cell in range(width):
        low = whole.start + (whole.stop - whole.start) * cell / width
        high = whole.start + (whole.stop - whole.start) * (cell + 1) / width
        held = sum(max(0.0, min(high, span.stop) - max(low, span.start)) for span in spans)
        if not held:
            cells.append(empty)
        elif held >= (high - low) * 0.999:
            cells.append(full)
        else:
            cells.append(right if any(span.start > low and span.stop >= high for span in spans) else left)
    return "".join(cells)


def _fields(report: "TiersReport") -> object:
    log, objects, table = report.log, report.objects, report.table
    return {
        "topic": report.topic,
        "generation": report.generation,
        "start": report.start,
        "stop": report.stop,
        "objects": fields_of(objects, count="objects", size="bytes")
        | {"append_time_us": objects.append_time_us or None},
        "log": fields_of(log, span="", synced="synced_offset")
        | log.span._asdict()
        | {"bytes": log.size, "append_time_us": log.append_time_us or None}
        | {"files": [fields_of(file, name="file", size="bytes") for file in log.files]},
        "table": None
        if table is None
        else fields_of(table, span="", size="bytes") | table.span._asdict() | {"problem": table.problem or None},
        "lag": fields_of(report.lag, size="bytes"),
        "problems": [str(problem) for problem in report.problems],
    }


def _bar(label: str, spans: Sequence[OffsetRange], whole: OffsetRange, width: int, colour: str, holds: str) -> None:
    tables().print(
        Text.assemble(_LABEL.format(label), (bar(spans, whole, width), colour), "  ", holds),
        no_wrap=True,
        overflow="ignore",
        crop=False,
    )


def _scale(report: "TiersReport", width: int) -> str:
    left, right = f"{report.start}", f"{report.stop}"
    return f"{left}{right:>{max(1, width - len(left))}}"


def _holds(spans: Sequence[OffsetRange], count: int, thing: str, size: int) -> str:
    if not spans:
        return "nothing"
    ranges = ", ".join(f"[{span.start}, {span.stop})" for span in spans[:3]) + (", …" if len(spans) > 3 else "")
    return f"{ranges}  {many(count, thing)}, {megabytes(size)}"


def _sentences(report: "TiersReport") -> Iterator[str]:
    log, objects = report.log, report.objects
    if log.state == "missing":
        yield "There is no log. The next owner starts one where objects end."
    elif log.state == "behind":
        yield (
            f"The log ends at offset {log.span.stop}, before its objects do. The next owner sets it aside and starts a "
            f"new one at offset {objects.stop}, once the objects prove that they hold everything before."
        )
    table = report.table
    if table is not None and table.problem:
        yield f"The table cannot be asked: {table.problem}."
    elif table is not None and table.snapshot_id is not None:
        yield f"In table {printable(table.name)} below offset {table.span.stop}, in snapshot {table.snapshot_id}."
    both = OffsetRange(
        max(log.span.start, objects.spans[0].start if objects.spans else 0), min(log.span.stop, objects.stop)
    )
    if log.state == "ok" and both.start < both.stop:
        yield f"In both tiers: {many(both.stop - both.start, 'message')}, [{both.start}, {both.stop})."
    yield _lag(report)
    if log.state == "ok" and log.synced < log.span.stop:
        waiting = many(log.span.stop - log.synced, "message")
        yield f"Not yet attested as synced: {waiting} from offset {log.synced} on; normal while the log is in use."
    if log.torn_bytes:
        yield f"The last file ends in {many(log.torn_bytes, 'byte')} of an unfinished frame; normal while it is in use."


def _lag(report: "TiersReport") -> str:
    lag = report.lag
    if report.log.state != "ok":
        return f"Uploaded below offset {report.objects.stop}."
    if not lag.messages:
        return f"Uploaded below offset {report.objects.stop}: nothing waits."
    size = "" if lag.size is None else f" ({megabytes(lag.size)})"
    time = "" if lag.time_us is None else f", the newest {lag.time_us / 1_000_000:,.1f} s younger than what is uploaded"
    verb = "waits" if lag.messages == 1 else "wait"
    return f"Uploaded below offset {report.objects.stop}: {many(lag.messages, 'message')}{size} {verb}{time}."


def _draws() -> bool:
    try:
        "█▌▐·".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
