"""Exit codes and error messages: one sentence and one code for each family of errors, no traceback."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from ister.cli.output import notice, printable
from ister.core.errors import BusyError, ClientError, CorruptError, FencedError, IsterError, UnknownOutcomeError
from ister.core.retry import TRANSIENT_ERRNOS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FAMILIES: dict[int, str] = {
    CorruptError.exit_code: "stored data is damaged or missing",
    ClientError.exit_code: "the command or its input is wrong",
    BusyError.exit_code: "not now (no space, for example); try again later",
    FencedError.exit_code: "another process owns the log",
    UnknownOutcomeError.exit_code: "it may or may not have happened; look first",
}
"""The exit code of each family of errors and its meaning; 0 is success."""

INTERRUPTED = 128 + signal.SIGINT
"""What a shell reports for Ctrl-C; 1 would mean damaged data."""

READER_GONE = 128 + signal.SIGPIPE
"""What a shell reports for a write to a closed pipe; 1 would mean damaged data."""

MEANINGS = {
    0: "all is well",
    **FAMILIES,
    INTERRUPTED: "interrupted (Ctrl-C) before the end",
    READER_GONE: "the reader of the output closed it, like `head`",
}
EXIT_CODES = "Exit codes:\n" + "\n".join(f"  {code}  {meaning}" for code, meaning in MEANINGS.items())
"""The epilog of every --help."""

_LATER = TRANSIENT_ERRNOS | {errno.ENOSPC, errno.EDQUOT, errno.EADDRINUSE}
_DAMAGED = {errno.EIO, errno.EUCLEAN, errno.EBADMSG}


class CheckFailedError(CorruptError):
    """The demo, or a check after a repair, found something else than what was stored."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"the check failed: {what}; this is a bug in Ister or a broken disk, please report it")


def exit_code(error: IsterError | OSError) -> int:
    """Return the exit code of a failure."""
    if isinstance(error, OSError):
        return 3 if error.errno in _LATER else 1 if error.errno in _DAMAGED else 2
    return error.exit_code


def explain(error: IsterError | OSError) -> str:
    """Return one sentence: what failed, why, and the next step."""
    return printable(_explain_os(error) if isinstance(error, OSError) else str(error)).rstrip(".") + "."


@contextmanager
def reporting() -> Iterator[None]:
    """Turn an expected error into its sentence on stderr and its exit code."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # `ister wal dump … | head` is no failure. What is still buffered must not be flushed again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(READER_GONE) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except (IsterError, OSError) as error:
        notice(f"ister: {explain(error)}")
        raise typer.Exit(exit_code(error)) from error


def leave_with(problems: Sequence[IsterError]) -> None:
    """Report every problem on stderr and exit with the code of the first; return when there is none."""
    for problem in problems:
        notice(f"ister: {explain(problem)}")
    if problems:
        raise typer.Exit(exit_code(problems[0]))


def _explain_os(error: OSError) -> str:
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "a file"
    match error:
        case FileNotFoundError():
            return f"{path} does not exist; check the path"
        case PermissionError():
            return f"{path} may not be used by this user (permission denied); run as its owner"
        case NotADirectoryError():
            return f"{path} is not a directory; check the path"
        case IsADirectoryError():
            return f"{path} is a directory, not a file; give the path of a file in it"
    if isinstance(error, socket.gaierror):
        return f"a host name is not known ({error.strerror}); check its spelling in the command or the configuration"
    if error.errno == errno.EADDRINUSE:
        # asyncio names the address in its sentence only.
        return f"{error.strerror or error}; stop what listens there, or choose another port in the configuration"
    next_step = "check the path"
    if error.errno in _LATER:
        next_step = "make room and run it again"
    elif error.errno in _DAMAGED:
        next_step = "check the disk, then restore the file from a copy"
    return f"{path} cannot be used ({error.strerror or error}); {next_step}"
