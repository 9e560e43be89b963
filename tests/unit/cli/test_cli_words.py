"""What people type to the commands that ask a broker, and what its answers mean to them."""

import errno
import io
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest
import structlog
from danube.message_router import MessageRouter
from grpc import StatusCode
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from ister.cli.app import app
from ister.cli.commands import produce
from ister.cli.exit_codes import exit_code, explain
from ister.cli.options import Position, parse_position
from ister.cli.output import confirm, value_text
from ister.cli.policies import parse_settings
from ister.client.channel import BrokerUnreachableError, beside, error_of, target_of
from ister.client.producer import partition_number
from ister.config import loads
from ister.core.errors import InputError, InvalidRequestError
from ister.core.hashing import fnv1a
from ister.runtime import compose, serve

ASKING = [
    ["produce", "/default/x", "-m", "a"],
    ["consume", "/default/x"],
    ["topics", "list"],
    ["topics", "create", "/default/x"],
    ["topics", "create", "/default/x", "--partitions", "2"],
    ["topics", "set", "/default/x", "lake=false"],
    ["topics", "describe", "/default/x"],
    ["topics", "delete", "/default/x", "--yes"],
    ["namespaces", "list"],
    ["namespaces", "create", "shop"],
    ["namespaces", "set", "shop", "lake=false"],
    ["subscriptions", "list", "/default/x"],
    ["subscriptions", "reset", "/default/x", "s", "--to", "earliest"],
    ["subscriptions", "delete", "/default/x", "s", "--yes"],
]
NOBODY = {"ISTER_BROKER": "http://127.0.0.1:1", "ISTER_ADMIN": "http://127.0.0.1:1"}


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    yield
    structlog.reset_defaults()


def run(*args, **environ):
    return CliRunner(env=environ).invoke(app, [str(arg) for arg in args])


# --- help -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [*ASKING, ["serve"], ["namespaces"], ["subscriptions"]], ids=" ".join)
def test_help_has_an_example_and_lists_the_exit_codes(command):
    words = [word for word in command[:2] if word.isalpha()]
    text = run(*words, "--help").stdout
    assert len(text.splitlines()) <= 60
    assert (f"Example: ister {' '.join(words)}" in text) == (words not in (["namespaces"], ["subscriptions"]))
    assert "it may or may not have happened; look first" in text


def test_help_does_not_wait_for_grpc_to_be_imported():
    code = "import sys, ister.cli; sys.exit('grpc' in sys.modules or 'danube' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- a broker that is not there ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ASKING, ids=" ".join)
def test_a_broker_that_is_not_there_is_said_with_the_next_step(command):
    result = run(*command, **NOBODY)
    option = "--broker" if command[0] in {"produce", "consume"} else "--admin"
    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr == (
        "ister: no broker answers at http://127.0.0.1:1 (connection refused); start one with `ister serve`, "
        f"or say where it is with {option} URL.\n"
    )


def test_a_host_that_has_no_address_is_said():
    result = run("topics", "list", "--admin", "http://nowhere.invalid:1")
    assert (result.exit_code, "(no such host)" in result.stderr) == (3, True)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("nowhere", "must be an address with a port"),
        ("ftp://a:1", "must be an address with a port"),
        ("https://a:1", "asks for TLS, which comes in a later release"),
    ],
)
def test_an_address_that_is_none_is_refused(url, told):
    result = run("topics", "list", "--admin", url)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"ister: --admin {url} {told}")


@pytest.mark.parametrize("url", ["127.0.0.1:6650", "http://127.0.0.1:6650", "http://127.0.0.1:6650/"])
def test_an_address_may_be_written_so(url):
    assert target_of(url, "--broker") == "127.0.0.1:6650"
    assert beside(url) == "http://127.0.0.1:50051"


def test_administration_is_beside_a_broker_with_an_address_of_version_six_too():
    assert beside("http://[::1]:7") == "http://[::1]:50051"


# --- statuses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (StatusCode.INVALID_ARGUMENT, 2),
        (StatusCode.NOT_FOUND, 2),
        (StatusCode.ALREADY_EXISTS, 2),
        (StatusCode.FAILED_PRECONDITION, 2),
        (StatusCode.PERMISSION_DENIED, 2),
        (StatusCode.UNAUTHENTICATED, 2),
        (StatusCode.UNIMPLEMENTED, 2),
        (StatusCode.OUT_OF_RANGE, 2),
        (StatusCode.RESOURCE_EXHAUSTED, 3),
        (StatusCode.UNAVAILABLE, 3),
        (StatusCode.DATA_LOSS, 1),
        (StatusCode.UNKNOWN, 5),
        (StatusCode.DEADLINE_EXCEEDED, 5),
        (StatusCode.INTERNAL, 5),
        (StatusCode.ABORTED, 5),
        (StatusCode.CANCELLED, 5),
    ],
)
def test_each_status_has_the_exit_code_of_its_family_and_the_brokers_words(status, code):
    error = error_of(status, "the broker's words", "http://b:1", "--broker")
    assert exit_code(error) == code
    assert "the broker's words" in str(error)
    assert not isinstance(error, BrokerUnreachableError)
    assert error_of(status, "", "http://b:1", "--broker").args[0]


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", Position("earliest")),
        ("latest", Position("latest")),
        ("0", Position("offset", 0)),
        ("9223372036854775807", Position("offset", 2**63 - 1)),
        ("1970-01-01T00:00:01Z", Position("time", 1000)),
        ("1970-01-01T00:00:01.5", Position("time", 1500)),
        ("1970-01-02", Position("time", 86_400_000)),
        ("1970-01-01T02:00:00+01:00", Position("time", 3_600_000)),
    ],
)
def test_a_place_is_a_word_an_offset_or_a_time(text, place):
    assert parse_position(text, "--from") == place


@pytest.mark.parametrize(
    "text", ["", "soon", "-1", "1.5", "9223372036854775808", "1" * 5000, "1969-12-31", "25:00", "\u0661"]
)
def test_what_is_no_place_is_refused(text):
    with pytest.raises(InputError, match=r"^--from"):
        parse_position(text, "--from")


# --- policies ---------------------------------------------------------------------------------------------------------


def test_policies_are_words_with_a_value():
    assert parse_settings(["ack_level=fsync", "lake=default"]) == {"ack_level": "fsync", "lake": "default"}
    assert [value_text(value) for value in (None, True, 7, "\x1b")] == ["none", "true", "7", r"\x1b"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ack_level"], "ack_level has no value; write it like ack_level=fsync"),
        (["=fsync"], "=fsync has no value"),
        (["lake=true", "lake=false"], "lake=false is given twice"),
    ],
)
def test_what_is_no_setting_is_refused(words, told):
    with pytest.raises(InputError) as caught:
        parse_settings(words)
    assert str(caught.value).startswith(told)


def test_a_wrong_policy_is_told_before_anyone_is_asked():
    with pytest.raises(InvalidRequestError, match="did you mean ack_level"):
        parse_settings(["acklevel=fsync"])
    assert run("topics", "create", "/default/x", "ack_level=disk", **NOBODY).exit_code == 2


# --- producing --------------------------------------------------------------------------------------------------------


def test_what_is_typed_and_what_is_in_files_comes_before_stdin(tmp_path):
    (tmp_path / "f").write_bytes(b"a\nb\n")
    assert list(produce.payloads(["one", "\udcff"], [tmp_path / "f"])) == [b"one", b"\xff", b"a\nb\n"]


def test_each_line_of_stdin_is_a_message(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\n \xff\r\nlast")))
    assert list(produce.payloads([], [])) == [b"one", b"", b" \xff\r", b"last"]


def test_a_long_line_is_one_message(monkeypatch):
    parts = [b"a" * 200_000, b"", b"b" * 65_536, b"c"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"\n".join(parts)))))
    assert list(produce.payloads([], [])) == parts


def test_attributes_have_a_value():
    assert produce.parse_attributes(["a=1", "b=", "c=d=e"]) == {"a": "1", "b": "", "c": "d=e"}
    with pytest.raises(InputError, match="--attribute a has no value"):
        produce.parse_attributes(["a"])


@given(st.text(max_size=20), st.integers(1, 50))
def test_a_key_goes_to_the_partition_that_official_clients_choose(key, partitions):
    router = MessageRouter(partitions)
    assert fnv1a(key.encode()) % partitions == router.key_route(key)


def test_partitions_are_ordered_by_number():
    names = [f"/default/x-part-{number}" for number in (0, 2, 10)]
    assert sorted({*names}, key=partition_number) == names
    assert partition_number("/default/x") == partition_number("/default/x-part-y") == 0


# --- asking first -----------------------------------------------------------------------------------------------------


def terminal(answer):
    return SimpleNamespace(isatty=lambda: True, buffer=io.BytesIO(), readline=lambda: answer)


@pytest.mark.parametrize("answer", ["y\n", "YES\n", " y \n"])
def test_only_yes_is_yes(monkeypatch, answer):
    monkeypatch.setattr(sys, "stdin", terminal(answer))
    confirm("All is lost.")


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "yess\n"])
def test_everything_else_is_no(monkeypatch, answer):
    monkeypatch.setattr(sys, "stdin", terminal(answer))
    with pytest.raises(InputError, match="nothing was deleted"):
        confirm("All is lost.")


def test_where_nobody_can_answer_yes_must_be_given(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(InputError, match="give --yes"):
        confirm("All is lost.")


# --- serving ----------------------------------------------------------------------------------------------------------


def test_every_setting_of_the_broker_reaches_it():
    text = b"""
cluster_name: c
broker_host: 10.0.0.1
broker_port: 1
admin_port: 2
prom_port: none
bootstrap_namespaces: [a, b]
auto_create_topics: false
advertised_listeners: {broker_url: "b:3", connect_url: "https://p:4"}
dispatch: {max_unacked_messages: 5}
broker:
  consumer_grace_ms: 1001
  consumer_expiry_ms: 1002
  producer_expiry_ms: 1003
  volatile_subscription_expiry_ms: 1004
  cursor_interval_ms: 1005
  non_reliable_queue: 1006
  message_bytes_max: 1024
  drain_timeout_ms: 1008
  keepalive_interval_ms: 1009
  keepalive_timeout_ms: 1010
policies: {max_publish_rate: 7, ack_timeout_ms: 1011}
"""
    config = loads(text, "f.yml", None, {}).config
    settings = serve.broker_settings(config)
    assert (settings.cluster_name, settings.broker_url, settings.connect_url) == ("c", "http://b:3", "https://p:4")
    assert (settings.bootstrap_namespaces, settings.auto_create_topics) == (("a", "b"), False)
    assert (settings.policies.max_publish_rate, settings.policies.ack_level) == (7, "wal")
    assert settings.max_unacked_messages == 5
    assert (settings.consumer_grace_s, settings.consumer_expiry_s) == (1.001, 1.002)
    assert (settings.producer_expiry_s, settings.volatile_subscription_expiry_s) == (1.003, 1.004)
    assert (settings.cursor_interval_s, settings.non_reliable_queue) == (1.005, 1006)
    topics = compose.topics_config(config)
    assert (topics.cloud_timeout_s, topics.drain_timeout_s) == (1.011, 1.008)
    ports = serve.ports(config)
    assert (ports.host, ports.broker, ports.admin, ports.metrics) == ("10.0.0.1", 1, 2, None)
    assert (ports.message_bytes_max, ports.drain_timeout_s) == (1024, 1.008)
    assert (ports.keepalive_s, ports.keepalive_timeout_s) == (1.009, 1.01)


def test_the_soft_limit_of_open_files_becomes_the_hard_one():
    code = (
        "import resource; from ister.runtime.serve import raise_open_files; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 2048)); raise_open_files(); "
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 2048
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "(2048, 2048)\n"
    )


def test_a_port_that_is_taken_is_a_sentence_that_means_later():
    error = OSError(
        errno.EADDRINUSE, "error while attempting to bind on address ('127.0.0.1', 9040): address already in use"
    )
    assert exit_code(error) == 3
    assert "9040" in explain(error)
    assert "choose another port in the configuration" in explain(error)


def test_a_bad_configuration_is_refused_with_all_its_problems(tmp_path):
    (tmp_path / "f.yml").write_text("broker_port: x\nauth: {mode: tls}\n")
    result = run("serve", "--config", tmp_path / "f.yml")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 2
