"""Decide where log events go and how they look: to stderr, one line each; for people on a terminal, else for programs.

Commands show warnings only unless asked for more. A server shows every state change. No event carries the values of
variables: a traceback names lines of code and nothing else, since anything could be a secret or someone's message.
"""

from __future__ import annotations

import logging
import sys
from enum import Enum
from typing import TYPE_CHECKING

import structlog

from ister.cli.display import printable

if TYPE_CHECKING:
    from typing import TextIO

    from structlog.typing import EventDict, Processor, WrappedLogger


class LogFormat(Enum):
    """How an event is written."""

    AUTO = "auto"
    """As text if stderr is a terminal, else as JSON."""
    TEXT = "text"
    JSON = "json"


def show_warnings() -> None:
    """Show what an operator should know."""
    _configure(logging.WARNING, _for_people())


def show_everything() -> None:
    """Show every state change as well."""
    _configure(logging.INFO, _for_people())


def show_server_events(form: LogFormat, *, everything: bool) -> None:
    """Show a server's events and what its libraries warn of, one line each."""
    as_json = form is LogFormat.JSON or (form is LogFormat.AUTO and not sys.stderr.isatty())
    _configure(logging.INFO if everything else logging.WARNING, _for_programs() if as_json else _for_people())
    logging.basicConfig(level=logging.WARNING, handlers=[_Libraries()], force=True)


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
    return [_harmless, renderer]


def _for_programs() -> list[Processor]:
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _harmless(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Escape what could move a terminal's cursor: clients choose the names of what they make."""
    return {key: printable(value) if isinstance(value, str) else value for key, value in event.items()}


def _stderr_logger(*_: object) -> structlog.PrintLogger:
    """Look stderr up at each event: a progress bar puts itself in its place while it is shown."""
    stderr: TextIO = sys.stderr
    return structlog.PrintLogger(stderr)


class _Libraries(logging.Handler):
    """Makes an event of what a library logs."""

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a record on."""
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # a library's own mistake must not become an error in the middle of its work
            text = str(record.msg)
        structlog.get_logger().log(
            record.levelno, "library_warned", library=record.name, text=text, exc_info=record.exc_info
        )
