"""Decide what a failure says and which exit code it has: one sentence, one number, no traceback."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from ister.cli.display import notice, printable
from ister.core.errors import BusyError, ClientError, CorruptError, FencedError, IsterError, UnknownOutcomeError
from ister.core.retry import TRANSIENT_ERRNOS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FAMILIES: dict[int, tuple[type[IsterError], str]] = {
    1: (CorruptError, "stored data is damaged or missing"),
    2: (ClientError, "the command or its input is wrong"),
    3: (BusyError, "not now (no space, for example); try again later"),
    4: (FencedError, "another process owns the log"),
    5: (UnknownOutcomeError, "it may or may not have happened; look first"),
}
"""Each family of errors with its exit code and its meaning; 0 is success."""

INTERRUPTED = 128 + signal.SIGINT
"""What a shell reports for Ctrl-C; 1 would claim damage."""

READER_GONE = 128 + signal.SIGPIPE
"""What a shell reports for a program that wrote to a closed pipe; 1 would claim damage."""

MEANINGS = {
    0: "all is well",
    **{code: meaning for code, (_, meaning) in FAMILIES.items()},
    INTERRUPTED: "interrupted (Ctrl-C) before the end",
    READER_GONE: "whoever read the output has gone, like `head`",
}
EXIT_CODES = "Exit codes:\n" + "\n".join(f"  {code}  {meaning}" for code, meaning in MEANINGS.items())
"""What --help says about exit codes."""

_LATER = TRANSIENT_ERRNOS | {errno.ENOSPC, errno.EDQUOT, errno.EADDRINUSE}
_DAMAGED = {errno.EIO, errno.EUCLEAN, errno.EBADMSG}


class InputError(ClientError):
    """What was given on the command line cannot be used."""

    def __init__(self, given: str, reason: str) -> None:
        self.given = given
        self.reason = reason
        super().__init__(f"{given} {reason}")


class CheckFailedError(CorruptError):
    """The demo found something else than what it had stored."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"the check failed: {what}; this is a bug in Ister or a broken disk, please report it")


def exit_code(error: IsterError | OSError) -> int:
    """Return the exit code of a failure; the one place where families become numbers."""
    for code, (family, _) in FAMILIES.items():
        if isinstance(error, family):
            return code
    if isinstance(error, OSError):
        return 3 if error.errno in _LATER else 1 if error.errno in _DAMAGED else 2
    return 5


def error_of(code: int, sentence: str) -> IsterError:
    """Return the error that a child process meant by its exit code."""
    family, _ = FAMILIES.get(code, (UnknownOutcomeError, ""))
    return family(sentence)


def explain(error: IsterError | OSError) -> str:
    """Return one plain sentence: what, why, and what next."""
    return printable(_explain_os(error) if isinstance(error, OSError) else str(error)).rstrip(".") + "."


@contextmanager
def reporting() -> Iterator[None]:
    """Turn an expected failure into its sentence on stderr and its exit code."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # `ister wal dump … | head` is no failure. What is still buffered must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(READER_GONE) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except (IsterError, OSError) as error:
        notice(f"ister: {explain(error)}")
        raise typer.Exit(exit_code(error)) from error


def leave_with(problems: Sequence[IsterError]) -> None:
    """Name every problem on stderr and leave with the code of the first; go on when there is none."""
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
