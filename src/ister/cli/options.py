"""Options and arguments that several commands share."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ister.cli.exit_codes import EXIT_CODES, reporting
from ister.cli.output import Output
from ister.core.defaults import ADMIN_PORT, BROKER_PORT
from ister.core.errors import InputError

BROKER = f"http://127.0.0.1:{BROKER_PORT}"
ADMIN = f"http://127.0.0.1:{ADMIN_PORT}"
OFFSET_MAX = (1 << 63) - 1


def command_group(text: str | None = None) -> typer.Typer:
    """Return an app for the commands of one noun; `text` is its help."""
    return typer.Typer(
        help=text, epilog=EXIT_CODES, no_args_is_help=True, add_completion=False, rich_markup_mode="rich"
    )


def command(app: typer.Typer, name: str | None = None, **info: Any) -> Callable[[Callable[..., None]], object]:
    """Register a command; its expected errors become a sentence on stderr and an exit code."""
    return lambda function: app.command(name, epilog=EXIT_CODES, **info)(reporting()(function))


def utf8_text(value: str) -> str:
    """Return an argument that is sent as text; refuse bytes that are not UTF-8, which Python keeps as lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("it is not UTF-8 text; check the encoding of the terminal or script") from None
    return value


def directory(value: str) -> Path:
    """Return a directory; refuse an empty text, which would mean the current one."""
    if not value.strip():
        raise typer.BadParameter("it is empty; give a directory, or leave the option out (is a variable not set?)")
    return Path(value)


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
PayloadOption = Annotated[bool, typer.Option("--payload", help="Show whole payloads (JSON always has them).")]
ReliableOption = Annotated[
    bool, typer.Option("--reliable/--non-reliable", help="Store messages, or only pass them on.")
]  # fmt: skip
SettingsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="KEY=VALUE", help="Policies, like ack_level=fsync; KEY=default takes one out.", parser=utf8_text
    ),
]
FirstSettingsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Policies, like ack_level=fsync.", parser=utf8_text)
]


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a topic; `value` is the offset, or milliseconds since 1970."""

    kind: Literal["earliest", "latest", "offset", "time"]
    value: int = 0


def parse_position(text: str, option: str) -> Position:
    """Parse earliest, latest, an offset or a time; a time without a zone is UTC, as the tables show it."""
    match text:
        case "earliest" | "latest":
            return Position(text)
    if text.isascii() and text.isdecimal():
        if len(text) > 19 or int(text) > OFFSET_MAX:
            raise InputError(f"{option} {text}", "is larger than any offset; give a lower one")
        return Position("offset", int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"{option} {text}", "is no place; give earliest, latest, an offset, or a time like 2026-01-31T18:00:00Z"
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    time_ms = int(moment.timestamp() * 1000)
    if time_ms < 0:
        raise InputError(f"{option} {text}", "lies before 1970; give a later time, or earliest")
    return Position("time", time_ms)
