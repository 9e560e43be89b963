"""What a client is told of each error: the right code, and nothing about the broker's machine."""

import importlib
import inspect
import re
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner

import ister
from ister.broker.status import INTERNAL_TEXT, OWN, STATUSES, TEXT_BYTES_MAX, status_of
from ister.cli.app import app
from ister.client.channel import OFFSET_KEY, PENDING_LEVEL_KEY, StoredError
from ister.config.problems import ConfigError, Problem
from ister.core import errors
from ister.core.errors import Behind, IsterError, NotYetInTierError
from ister.runtime.pipeline import NotCarriedError
from parts.config import DATA

Code = grpc.StatusCode
SECRET = "/srv/ister/wal/default/orders/1 on host-7 with key AKIA"
TOLD = DATA / "statuses.txt"
PUBLIC = {
    errors.InvalidRequestError,
    errors.InvalidNameError,
    errors.InvalidMessageError,
    errors.NotFoundError,
    errors.AlreadyExistsError,
    errors.PreconditionError,
    errors.DeniedError,
    errors.UnknownPlaceError,
    errors.UnsupportedError,
    errors.OffsetOutOfRangeError,
    errors.LimitError,
    errors.DrainingError,
}
"""Errors whose text is written for clients."""
NAMED = {"topic": "/default/orders", "subject": "orders-value"}
"""What a client has said itself."""
ELSEWHERE = (
    "ister.cli.", "ister.client.", "ister.offline.", "ister.runtime.",
    "ister.lake.repair",
)  # fmt: skip
"""Where no broker is: commands, and what programs use that have a storage of their own."""
MADE = {
    ConfigError: lambda: ConfigError(SECRET, [Problem(1, "wal.dir", SECRET)]),
    NotCarriedError: lambda: NotCarriedError({"/default/orders": SECRET}),
    NotYetInTierError: lambda: not_yet_in("lake"),
    StoredError: lambda: StoredError(SECRET, {OFFSET_KEY: "6", PENDING_LEVEL_KEY: "lake"}),
}


def not_yet_in(level):
    return NotYetInTierError(level, [Behind("/default/orders", 3, 7)], SECRET)


def every_error():
    source = Path(ister.__file__).parent
    for path in source.rglob("*.py"):
        if re.search(r"^ *class \w*Error\b", path.read_text(), re.MULTILINE):
            importlib.import_module(".".join(path.relative_to(source.parent).with_suffix("").parts))
    found, look_at = set(), [IsterError]
    while look_at:
        found.add(kind := look_at.pop())
        look_at += kind.__subclasses__()
    # The pipeline is another process: what it raises reaches no client.
    ours = (kind for kind in found if kind.__module__.startswith("ister.") and "pipeline." not in kind.__module__)
    return sorted(ours, key=lambda kind: kind.__qualname__)


def make(kind):
    """Make an error that knows secrets wherever it has a field for them."""
    if kind in MADE:
        return MADE[kind]()
    if kind.__init__ in {Exception.__init__, IsterError.__init__}:
        return kind(SECRET)
    arguments = [
        7 if one.annotation == "int" else NAMED.get(one.name, SECRET)
        for one in list(inspect.signature(kind.__init__).parameters.values())[1:]
    ]
    return kind(*arguments)


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_s20_no_error_tells_a_client_about_the_brokers_machine(kind):
    error = make(kind)
    code, text = status_of(error)
    assert code not in {Code.OK, Code.CANCELLED}
    assert text
    if not PUBLIC & set(kind.__mro__):
        assert "/srv" not in text
        assert "AKIA" not in text
        assert "{" not in text


def test_s20_every_error_is_told_as_it_was_agreed():
    lines = []
    for kind in STATUSES:
        error = kind("<its own text>") if STATUSES[kind][1] == OWN and kind in TEXTS else make(kind)
        code, text = status_of(error)
        lines.append(f"{kind.__name__}: {code.name}: {text.replace(SECRET, '<secret>')}\n")
    # One that is not in the table can reach a client, too. That its family's words are enough was decided, not forgotten.
    for kind in every_error():
        if kind not in {*STATUSES, errors.InputError} and not kind.__module__.startswith(ELSEWHERE):
            family = next(above for above in kind.__mro__ if above in STATUSES)
            lines.append(f"{kind.__name__}: told as {family.__name__}\n")
    told = "".join(lines)
    assert told == TOLD.read_text(), f"if that is what clients shall be told, put it into {TOLD.name}:\n{told}"


def test_who_waits_for_a_table_or_an_object_is_told_that_the_message_is_in_the_log():
    for level, tier in (("lake", "the table"), ("cloud", "an object")):
        code, text = status_of(not_yet_in(level))
        assert code is Code.UNKNOWN, "no client sends it again by itself"
        assert f"below offset 7 is in the log, not yet in {tier};" in text
        assert "do not send it again" in text


def test_every_command_that_an_operator_is_sent_to_exists():
    named = {command for _, words in STATUSES.values() for command in re.findall(r"`ister ([^`]+)`", words)}
    assert named
    for command in named:
        assert CliRunner().invoke(app, [*command.split(), "--help"]).exit_code == 0, command


TEXTS = PUBLIC - {errors.InvalidNameError, errors.InvalidMessageError, errors.OffsetOutOfRangeError}


@pytest.mark.parametrize(
    ("family", "codes"),
    [
        (errors.UnknownOutcomeError, {Code.UNKNOWN}),
        (errors.CorruptError, {Code.DATA_LOSS}),
        (errors.FencedError, {Code.UNAVAILABLE}),
        (errors.BusyError, {Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED}),
    ],
)
def test_a_family_answers_what_a_client_does_next(family, codes):
    told = {kind.__name__: status_of(make(kind))[0] for kind in every_error() if issubclass(kind, family)}
    assert set(told.values()) == codes, told


def test_what_is_no_error_of_ours_is_internal_and_says_nothing():
    for error in (ValueError(SECRET), OSError(28, SECRET), KeyError(SECRET), IsterError(SECRET)):
        assert status_of(error) == (Code.INTERNAL, INTERNAL_TEXT)


def test_a_new_error_is_told_in_the_words_of_its_family_and_not_in_its_own():
    class BrandNewError(errors.CorruptLogError):
        pass

    known = status_of(errors.CorruptLogError(SECRET, 4, 17, SECRET))
    assert status_of(BrandNewError(SECRET, 4, 17, SECRET)) == known
    assert "at offset 17" in known[1]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (errors.CorruptLogError("f", 0, -1, ""), "log is damaged; the"),
        (errors.MissingFileError("f", 3, 9, ""), "missing: offsets [3, 9); the"),
        (errors.MissingFileError("f", 3, -1, ""), "missing at offset 3; the"),
        (errors.MissingOffsetsError(3, 9), "missing: offsets [3, 9); the"),
        (errors.CorruptObjectError("k", -1, -1, ""), "is damaged; the"),
    ],
)
def test_the_offsets_are_named_as_far_as_they_are_known(error, says):
    assert says in status_of(error)[1]


def test_a_text_fits_into_a_header_and_is_unicode():
    _, text = status_of(errors.InvalidRequestError("ü" * 5000))
    assert len(text.encode()) == TEXT_BYTES_MAX
    assert status_of(errors.InvalidRequestError("a\ud800b"))[1] == "a\\ud800b"
