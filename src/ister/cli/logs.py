"""Decide where log events go: to stderr, one line each, warnings only unless asked for more."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from typing import TextIO


def show_warnings() -> None:
    """Show what an operator should know."""
    _configure(logging.WARNING)


def show_everything() -> None:
    """Show every state change as well."""
    _configure(logging.INFO)


def _configure(level: int) -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_stderr_logger,
        cache_logger_on_first_use=False,
    )


def _stderr_logger(*_: object) -> structlog.PrintLogger:
    """Look stderr up at each event: a progress bar puts itself in its place while it is shown."""
    stderr: TextIO = sys.stderr
    return structlog.PrintLogger(stderr)
