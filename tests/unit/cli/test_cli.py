"""The command line as a whole: help, version, exit codes, and sentences instead of tracebacks."""

import errno
import re
import subprocess
import sys

import pytest
import structlog
from typer.testing import CliRunner

import ister
from ister.cli.app import COMMANDS, app
from ister.cli.demo import story as demo
from ister.cli.exit_codes import FAMILIES, INTERRUPTED, READER_GONE, CheckFailedError, exit_code, explain
from ister.cli.output import fill, megabytes, moment, preview, printable
from ister.core.errors import (
    CorruptLogError,
    DiskFullError,
    InputError,
    InvalidNameError,
    IsterError,
    LockedError,
    LogClosedError,
    MissingFileError,
    OffsetOutOfRangeError,
    PoisonedError,
    SyncFailedError,
    UnknownFormatError,
    error_of,
)

EVERY_ERROR_AND_ITS_CODE = [
    (CorruptLogError("f", 1, 2, "r"), 1),
    (MissingFileError("f", 1, 2, "is missing"), 1),
    (UnknownFormatError("f", 1, 9, 9), 1),
    (CheckFailedError("one is gone"), 1),
    (OSError(errno.EIO, "Input/output error", "f"), 1),
    (InvalidNameError("n", "r"), 2),
    (OffsetOutOfRangeError(9, 0, 1), 2),
    (LogClosedError("l"), 2),
    (InputError("f", "is not a log file"), 2),
    (FileNotFoundError(errno.ENOENT, "No such file or directory", "f"), 2),
    (PermissionError(errno.EACCES, "Permission denied", "f"), 2),
    (NotADirectoryError(errno.ENOTDIR, "Not a directory", "f"), 2),
    (IsADirectoryError(errno.EISDIR, "Is a directory", "f"), 2),
    (OSError(errno.ENAMETOOLONG, "File name too long", "f"), 2),
    (DiskFullError("l"), 3),
    (PoisonedError("l", "c"), 3),
    (OSError(errno.ENOSPC, "No space left on device", "f"), 3),
    (LockedError("d", "process 7"), 4),
    (SyncFailedError("l", "c"), 5),
]


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    yield
    structlog.reset_defaults()


def run(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.mark.parametrize(("error", "code"), EVERY_ERROR_AND_ITS_CODE, ids=lambda value: type(value).__name__)
def test_each_failure_leaves_with_its_familys_code_and_one_sentence(monkeypatch, error, code):
    def fail(*_):
        raise error

    monkeypatch.setattr(demo, "run_demo", fail)
    result = run("demo")
    assert exit_code(error) == code
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr == f"ister: {explain(error)}\n"
    assert result.stderr.endswith(".\n")
    assert result.stderr.count("\n") == 1


def test_every_family_of_errors_has_a_code_of_its_own():
    assert sorted(family.exit_code for family in IsterError.__subclasses__()) == sorted(FAMILIES)


@pytest.mark.parametrize("code", range(1, 6))
def test_a_childs_exit_code_becomes_the_parents(code):
    error = error_of(code, "the writer ended")
    assert (exit_code(error), str(error)) == (code, "the writer ended")


def test_a_child_that_died_of_something_else_is_an_unknown_outcome():
    assert exit_code(error_of(-11, "the writer ended")) == 5


def test_a_program_error_is_not_hidden_behind_a_sentence(monkeypatch):
    def fail(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(demo, "run_demo", fail)
    assert isinstance(run("demo").exception, ZeroDivisionError)


def test_the_version_is_the_packages():
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"ister {ister.__version__}\n")


@pytest.mark.parametrize("command", [[], ["demo"], ["wal"], ["wal", "dump"], ["wal", "verify"]])
def test_help_fits_on_a_screen_and_lists_the_exit_codes(command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) <= 40
    for code in (*range(6), INTERRUPTED, READER_GONE):
        assert re.search(rf"^\s+{code}  \w", result.stdout, re.MULTILINE), f"exit code {code} is not explained"


HEAVY = {"grpc", "pyarrow", "numba", "pyspark"}


def imported_by(code):
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {name.partition(".")[0] for name in done.stderr.split()}


def test_help_imports_nothing_that_only_commands_need():
    code = "from ister.cli import main\nsys.argv = ['ister', '--help']\ntry: main()\nexcept SystemExit: pass"
    assert imported_by(code) & (HEAVY | {"ister"}) == {"ister"}


def test_the_package_imports_nothing_until_it_is_used():
    assert imported_by("import ister") & (HEAVY | {"ister", "pydantic", "structlog"}) == {"ister"}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_of_each_command_what_its_own_help_says_first(command):
    assert COMMANDS[command] in run(command, "--help").stdout


def test_help_does_not_wait_for_the_log_to_be_imported():
    code = "import sys, ister.cli; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["wal", "dump"],
        ["wal", "dump", "f", "--limit", "0"],
        ["wal", "dump", "f", "--from", "-1"],
        ["wal", "dump", "f", "--output", "xml"],
        ["demo", "--messages", "0"],
    ],
)
def test_bad_usage_is_two(arguments):
    assert run(*arguments).exit_code == 2


def test_log_events_are_hidden_unless_they_warn_or_are_asked_for(monkeypatch):
    def speak(*_):
        structlog.get_logger().info("state_changed", start=7)
        structlog.get_logger().warning("beware", start=8)

    monkeypatch.setattr(demo, "run_demo", speak)
    quiet, verbose = run("demo"), run("--verbose", "demo")
    assert "beware" in quiet.stderr
    assert "state_changed" not in quiet.stderr
    assert "state_changed" in verbose.stderr
    assert quiet.stdout == verbose.stdout == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain Ünïcode €", "plain Ünïcode €"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\u202eabc", r"\u202eabc"),
        ("\udc80", r"\udc80"),
        ("\x9b1m", r"\x9b1m"),
    ],
)
def test_text_from_outside_cannot_steer_the_terminal(text, shown):
    assert printable(text) == shown


def test_a_hostile_path_cannot_steer_the_terminal_either():
    assert explain(FileNotFoundError(errno.ENOENT, "", "x\x1b]0;owned\x07")) == (
        r"x\x1b]0;owned\x07 does not exist; check the path."
    )


def test_a_preview_is_cut_between_characters_and_says_so():
    assert preview("€".encode() * 100, 5) == "€€€€…"
    assert preview(b"12345", 5) == "12345"
    assert preview(b"123456", 5) == "1234…"
    assert preview(b"\xff\xd8", 20) == r"\xff\xd8"
    assert preview("漢".encode() * 10, 5) == "漢漢…"


def test_columns_hold_their_width_whatever_is_in_them():
    assert fill("ab", 4) == "ab  "
    assert fill("abcdef", 4) == "abc…"
    assert fill("漢字漢", 5) == "漢字…"


def test_a_time_that_no_calendar_has_is_shown_as_it_is():
    assert moment(0) == "1970-01-01T00:00:00.000000Z"
    assert moment(-1) == "1969-12-31T23:59:59.999999Z"
    assert moment(2**63 - 1) == f"{2**63 - 1} µs"
    assert moment(-(2**63)) == f"{-(2**63)} µs"


def test_sizes_are_exact_while_they_are_small():
    assert [megabytes(n) for n in (0, 1, 999, 1500, 2_500_000)] == [
        "0 bytes",
        "1 byte",
        "999 bytes",
        "1.5 kB",
        "2.5 MB",
    ]
