"""Decide what options and arguments are called that several commands share."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

BROKER = "http://127.0.0.1:6650"
ADMIN = "http://127.0.0.1:50051"
ADMIN_PORT = 50051


def utf8_text(value: str) -> str:
    """Return an argument that is sent as text; refuse bytes that are not UTF-8, which Python keeps as lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("it is not UTF-8 text; check the encoding of the terminal or script") from None
    return value


def directory(value: str) -> Path:
    """Return a directory; an empty text is refused, because it would mean the current one."""
    if not value.strip():
        raise typer.BadParameter("it is empty; give a directory, or leave the option out (is a variable not set?)")
    return Path(value)


class Output(Enum):
    """For whom the result is."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="A table for people, or JSON for programs.")]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="The configuration.", show_default="none")
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Data directory.", show_default="./danube-data", parser=directory),
]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="A topic, like /default/orders.", parser=utf8_text)]
BrokerOption = Annotated[
    str,
    typer.Option(
        "--broker", envvar="ISTER_BROKER", show_envvar=False, metavar="URL", help="Where clients connect ($ISTER_BROKER).",
        show_default="port 6650 here",
    ),
]  # fmt: skip
AdminOption = Annotated[
    str,
    typer.Option(
        "--admin", envvar="ISTER_ADMIN", show_envvar=False, metavar="URL", help="Where it is run from ($ISTER_ADMIN).",
        show_default="port 50051 here",
    ),
]  # fmt: skip
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
SettingsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="KEY=VALUE", help="Policies, like ack_level=fsync; KEY=default takes one out.", parser=utf8_text
    ),
]
