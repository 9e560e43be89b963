"""How a server's events look: JSON where no terminal is, harmless where one is, and never a secret."""

import json
import logging
import sys
from dataclasses import dataclass

import pytest
import structlog
from pydantic import SecretStr

from ister.cli.logs import LogFormat, show_everything, show_server_events, show_warnings

CANARY = "canary-3f9a"


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


@pytest.mark.parametrize("form", [LogFormat.AUTO, LogFormat.JSON])
def test_without_a_terminal_every_event_is_one_line_of_json(capsys, form):
    show_server_events(form, everything=True)
    log = structlog.get_logger()
    log.info("topic_created", topic="/default/t", reliable=True)
    log.warning("reading_waits", cause='a "cause"\nof two lines \x1b[31m')
    log.debug("not_shown")
    created, waits = lines(capsys)
    assert (created["event"], created["level"], created["reliable"]) == ("topic_created", "info", True)
    assert created["timestamp"].endswith("Z")
    assert waits["cause"] == 'a "cause"\nof two lines \x1b[31m'


def test_on_a_terminal_events_are_for_people(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    show_server_events(LogFormat.AUTO, everything=True)
    structlog.get_logger().info("topic_created", topic="/default/t")
    shown = capsys.readouterr().err
    assert "topic_created" in shown
    assert "{" not in shown


def test_what_is_asked_for_is_done_whatever_stderr_is(capsys, monkeypatch):
    show_server_events(LogFormat.TEXT, everything=True)
    structlog.get_logger().info("topic_created")
    assert not capsys.readouterr().err.startswith("{")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    show_server_events(LogFormat.JSON, everything=False)
    structlog.get_logger().info("topic_created")
    structlog.get_logger().warning("reading_waits")
    assert [line["event"] for line in lines(capsys)] == ["reading_waits"]


@pytest.mark.parametrize(
    "show", [show_warnings, show_everything, lambda: show_server_events(LogFormat.TEXT, everything=True)]
)
def test_a_name_that_a_client_chose_cannot_move_the_cursor(capsys, show):
    show()
    structlog.get_logger().warning("consumer_joined", consumer="a\x1b[2Jb\u202e")
    shown = capsys.readouterr().err
    assert not set("\x1b\u202e") & set(shown)
    assert "\\x1b[2Jb" in shown


@pytest.mark.parametrize(
    "show",
    [
        show_warnings,
        lambda: show_server_events(LogFormat.AUTO, everything=True),
        lambda: show_server_events(LogFormat.TEXT, everything=True),
    ],
)
def test_s9_a_traceback_shows_no_values(capsys, show):
    @dataclass
    class Connection:
        password: str

    def connect(connection):
        assert connection.password
        raise OSError("refused")

    show()
    try:
        connect(Connection(CANARY))
    except OSError:
        structlog.get_logger().exception("call_failed", store=SecretStr(CANARY))
    shown = capsys.readouterr().err
    assert "OSError: refused" in shown
    assert "in connect" in shown
    assert CANARY not in shown


def test_what_libraries_warn_of_is_an_event_too(capsys):
    show_server_events(LogFormat.JSON, everything=False)
    logging.getLogger("grpc._cython").warning("a %s", "thing")
    logging.getLogger("asyncio").info("not shown")
    logging.getLogger("odd").error("bad %d", "text")
    try:
        raise ValueError("v")  # noqa: TRY301  # to have a traceback
    except ValueError:
        logging.getLogger("asyncio").exception("Task exception was never retrieved")
    first, odd, last = lines(capsys)
    assert (first["event"], first["library"], first["text"]) == ("library_warned", "grpc._cython", "a thing")
    assert (odd["text"], odd["level"]) == ("bad %d", "error")
    assert "ValueError: v" in last["exception"]
