"""Logging configuration: events go to stderr, one line each, as text on a terminal and else as JSON.

Commands log warnings only, unless --verbose is given. A server logs every state change. No event carries the values of
variables: a traceback has lines of code and nothing else, since any value could be a secret or a user's message.
"""

from __future__ import annotations

import logging
import sys
from enum import Enum
from typing import TYPE_CHECKING

import structlog

from ister.cli.output import printable

if TYPE_CHECKING:
    from typing import TextIO

    from structlog.typing import EventDict, Processor, WrappedLogger


class LogFormat(Enum):
    """The format of log events."""

    AUTO = "auto"
    """Text if stderr is a terminal, else JSON."""
    TEXT = "text"
    JSON = "json"


def show_warnings() -> None:
    """Log warnings and errors."""
    _configure(logging.WARNING, _for_people())


def show_everything() -> None:
    """Log every event."""
    _configure(logging.INFO, _for_people())


def show_server_events(form: LogFormat, *, everything: bool) -> None:
    """Log a server's events and the warnings of its libraries, one line each."""
    as_json = form is LogFormat.JSON or (form is LogFormat.AUTO and not sys.stderr.isatty())
    _configure(logging.INFO if everything else logging.WARNING, _for_programs() if as_json else _for_people())
    logging.basicConfig(level=logging.WARNING, handlers=[_LibraryHandler()], force=True)


def _configure(level: int, rendering: list[Processor]) -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_stderr_logger,
        cache_logger_on_first_use=False,
    )


def _for_people() -> list[Processor]:
    # The default would be rich's tracebacks, which show local variables.
    renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    return [_escape, renderer]


def _for_programs() -> list[Processor]:
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _escape(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Escape what could move a terminal's cursor: clients choose the names of topics and subscriptions."""
    return {key: printable(value) if isinstance(value, str) else value for key, value in event.items()}


def _stderr_logger(*_: object) -> structlog.PrintLogger:
    """Resolve sys.stderr at each event: a progress bar replaces it while it is shown."""
    stderr: TextIO = sys.stderr
    return structlog.PrintLogger(stderr)


class _LibraryHandler(logging.Handler):
    """Turns the log records of libraries into events."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record as an event."""
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # a library's own mistake must not become an error in the middle of its work
            text = str(record.msg)
        structlog.get_logger().log(
            record.levelno, "library_warned", library=record.name, text=text, exc_info=record.exc_info
        )
