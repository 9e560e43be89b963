"""`ister read`: messages of a data directory, from whichever tier has them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from ister.cli.commands.config import load_config
from ister.cli.options import (
    ConfigOption,
    DataDirOption,
    OutputOption,
    PayloadOption,
    TopicArgument,
    command,
    command_group,
)
from ister.cli.output import (
    OFFSET_COLUMNS,
    Output,
    bars,
    item_lines,
    many,
    message_columns,
    message_fields,
    message_heading,
    moment,
    notice,
    offset_line,
)
from ister.core.message import StreamMessage

app = command_group()


@command(app)
def _read(
    topic: TopicArgument,
    *,
    start: Annotated[
        int | None, typer.Option("--from", min=0, metavar="N", help="Begin here.", show_default="the oldest")
    ] = None,
    stop: Annotated[
        int | None,
        typer.Option("--to", min=0, metavar="M", help="Stop before.", show_default="the end now"),
    ] = None,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
    payload: PayloadOption = False,
) -> None:
    """Read messages from whichever tier has them.

    Reads only; safe beside a running broker.

    Example: ister read /default/orders --from 1000 --to 1100
    """
    from ister.offline.read import read_topic

    lines = item_lines(
        output, _fields, _line, lambda message: message.payload, columns_before=OFFSET_COLUMNS, payload=payload
    )

    @contextmanager
    def writing(total: int) -> Iterator[Callable[[list[StreamMessage]], None]]:
        output.show_heading(offset_line("OFFSET", "APPENDED (UTC)", message_heading()))
        out = sys.stdout  # a progress bar replaces it while it is shown
        progress = bars()
        progress.disable = progress.disable or out.isatty()  # the messages themselves go to the screen
        with progress:
            task = progress.add_task(f"reading {topic}", total=total)

            def write(batch: list[StreamMessage]) -> None:
                out.writelines(f"{line}\n" for message in batch for line in lines(message))
                progress.advance(task, len(batch))

            yield write

    found = read_topic(load_config(file, data_dir).config, topic, start, stop, writing)
    if stop is not None and stop > found.stop:
        notice(f"The log ends at offset {found.stop}: {many(max(0, found.stop - found.start), 'message')} read.")


def _line(message: StreamMessage, columns: int) -> str:
    return offset_line(f"{message.offset}", moment(message.append_time_us), message_columns(message, columns))


def _fields(message: StreamMessage) -> dict[str, object]:
    return {"offset": message.offset, "append_time_us": message.append_time_us} | message_fields(message)
