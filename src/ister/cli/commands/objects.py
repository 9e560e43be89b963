"""`ister objects`: verify a topic's objects, and rebuild lost metadata from them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from ister.cli.commands.config import load_config
from ister.cli.exit_codes import leave_with
from ister.cli.options import (
    ConfigOption,
    DataDirOption,
    OutputOption,
    TopicArgument,
    command,
    command_group,
    utf8_text,
)
from ister.cli.output import Output, fields_of, many, megabytes, print_table, printable, progress_bar, say

if TYPE_CHECKING:
    from ister.offline.rebuild import RebuildReport
    from ister.offline.verify_objects import ObjectsReport

app = command_group("Check objects, or get lost metadata back from them.")


@command(app, "verify")
def _verify(
    topic: TopicArgument,
    *,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Read every object of a topic back and check it.

    Reads only; safe beside a running broker.

    Example: ister objects verify /default/orders --config ister.yml
    """
    from ister.offline.verify_objects import verify_objects

    config = load_config(file, data_dir).config
    with progress_bar(f"verifying {topic}") as show:
        report = verify_objects(config, topic, show)
    output.show(report, _verified_fields, _write_verified)
    leave_with(report.problems)


@command(app, "rebuild")
def _rebuild(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", help="Only these topics.", show_default="all", parser=utf8_text),
    ] = None,
    *,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and check everything, write nothing.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Get lost metadata back from the objects themselves.

    Stop the broker first. Refused while metadata describes any object: of these topics, or of any if none is named.

    Example: ister objects rebuild --dry-run
    """
    from ister.offline.rebuild import rebuild

    config = load_config(file, data_dir).config
    with progress_bar("listing objects") as show:
        report = rebuild(config, topics or [], show, dry_run=dry_run)
    output.show(report, _rebuilt_fields, _write_rebuilt)
    leave_with(report.problems)


def _write_verified(report: "ObjectsReport") -> None:
    for sentence in _others(report):
        say(sentence)
    what = f"{many(report.objects, 'object')}, {megabytes(report.size)}, offsets [{report.start}, {report.stop})"
    if report.problems:
        say(f"Damaged: {many(len(report.problems), 'problem')}; {report.sound:,} sound of {what}.")
    elif report.objects:
        say(f"Sound: {what}; every byte was read back and compared with its description.")
    else:
        say(f"Nothing is uploaded yet: no object of {printable(str(report.topic))} is described.")


def _verified_fields(report: "ObjectsReport") -> object:
    return fields_of(report, size="bytes") | {"verdict": "damaged" if report.problems else "sound"}


def _write_rebuilt(report: "RebuildReport") -> None:
    rows = [
        (
            str(topic.topic),
            Text(topic.state, "bold red" if topic.problems else "green"),
            f"{topic.generation}",
            f"[{topic.start}, {topic.stop})",
            f"{topic.objects:,}",
            megabytes(topic.size),
            f"{topic.orphans:,}",
            f"{topic.older:,}",
        )
        for topic in report.topics
    ]
    print_table(("Topic", "State", ">Generation", ">Offsets", ">Objects", ">Size", ">Orphans", ">Older"), rows)
    for topic in report.topics:
        if topic.note:
            say(f"{printable(str(topic.topic))}: {topic.note}")
    say(_summary(report))


def _rebuilt_fields(report: "RebuildReport") -> object:
    return fields_of(report) | {"topics": [fields_of(topic, size="bytes", pieces="") for topic in report.topics]}


def _others(report: "ObjectsReport") -> Iterator[str]:
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


def _summary(report: "RebuildReport") -> str:
    good = [topic for topic in report.topics if not topic.problems and topic.objects]
    bad = [topic for topic in report.topics if topic.problems]
    objects = sum(topic.objects for topic in good)
    did = "Would rebuild" if report.dry_run else "Rebuilt"
    line = f"{did} {many(len(good), 'topic')} with {many(objects, 'object')} in {report.metadata}."
    return line + (f" {many(len(bad), 'topic')} cannot be rebuilt; of those nothing was written." if bad else "")
