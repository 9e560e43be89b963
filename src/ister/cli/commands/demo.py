"""`ister demo`."""

from pathlib import Path
from typing import Annotated

import typer

from ister.cli.demo import story
from ister.cli.options import command, command_group

app = command_group()


@command(app)
def _demo(
    *,
    messages: Annotated[int, typer.Option(min=100, max=1_000_000, help="How many messages to send.")] = 2_000,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Keep everything in this new or empty directory.", show_default="temporary"),
    ] = None,
) -> None:
    """See it work: nothing is lost.

    A broker, official clients, kill -9 in the middle of it, and in the end a lost log.
    """
    story.run_demo(directory, messages)
