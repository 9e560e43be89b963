"""`ister serve`, and the commands that live as long as it does: started, taken, killed, stopped."""

import json
import os
import re
import selectors
import signal
import subprocess
import time
from contextlib import ExitStack

import pytest

from interop.broker import ISTER, Broker
from ister import __version__

pytestmark = pytest.mark.slow
PATIENCE_S = 60


@pytest.fixture
def broker():
    with Broker() as running:
        yield running


@pytest.fixture
def start(broker):
    """Start a command beside the broker; what still runs at the end is killed, and every pipe is closed."""
    with ExitStack() as stack:

        def starting(*words):
            environ = os.environ | {"ISTER_BROKER": broker.url, "ISTER_ADMIN": f"http://{broker.admin_target}"}
            pipe, where = subprocess.PIPE, broker.directory
            process = subprocess.Popen([*ISTER, *words], stdin=pipe, stdout=pipe, stderr=pipe, env=environ, cwd=where)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield starting


def finish(process, stdin=None):
    """Wait for the end of a command that must go well; returns what it said."""
    out, err = process.communicate(stdin, timeout=PATIENCE_S)
    assert process.returncode == 0, err
    return out


def say(process, line):
    process.stdin.write(line + b"\n")
    process.stdin.flush()


def hear(stream):
    """Read what comes next, as long as that may take."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        assert selector.select(PATIENCE_S), "nothing was said"
    return os.read(stream.fileno(), 65536)


def end(process, number=signal.SIGINT):
    process.send_signal(number)
    process.wait(PATIENCE_S)  # its stdin is still open: the signal alone must end it
    out, err = process.communicate()
    return process.returncode, out, err


def serve(broker, *words):
    return subprocess.run(
        [*ISTER, "serve", "--no-pipeline", *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=broker.directory,
        check=False,
    )


def test_a_data_directory_has_one_broker(broker):
    path = broker.directory / "other.yml"
    path.write_text("broker_port: 0\nadmin_port: 0\nprom_port: none\n")
    result = serve(broker, "--config", path, "--data-dir", broker.data)
    assert (result.returncode, result.stdout) == (4, "")
    assert f"process {broker.pid}" in result.stderr


@pytest.mark.parametrize("key", ["broker_port", "admin_port", "prom_port"])
def test_a_port_that_is_taken_is_said_with_its_number(broker, key):
    ports = {"broker_port": 0, "admin_port": 0, "prom_port": 0} | {key: broker.port}
    path = broker.directory / "other.yml"
    path.write_text(json.dumps(ports))
    result = serve(broker, "--config", path, "--data-dir", broker.directory / "other", "--quiet")
    assert (result.returncode, result.stdout) == (3, "")
    assert str(broker.port) in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_a_person_is_told_where_it_listens_and_what_to_try(broker, start):
    broker.stop()
    process = start("serve", "--no-pipeline", "--config", "ister.yml", "--data-dir", "data")
    said = hear(process.stdout).decode()
    code, rest, _ = end(process)
    said += rest.decode()
    assert code == 0
    assert "with 0 topics in data." in said
    listening = re.search(r"^  clients         (http://127\.0\.0\.1:\d+)$", said, re.MULTILINE)
    assert listening is not None
    assert f"  ister consume /default/hello --from earliest --broker {listening[1]} --admin http://" in said
    assert said.endswith("Ctrl-C stops it; what was acknowledged is kept.\n")


def test_a_program_is_told_how_many_topics_came_back(broker, start):
    finish(start("produce", "/default/x", "-m", "x"))
    broker.restart(signal.SIGTERM)
    told = json.loads(broker.ready_path.read_text())
    assert (told["topics"], told["problems"], told["pid"]) == (1, {}, broker.pid)
    assert told["data_dir"] == str(broker.data)


def test_log_events_can_be_json(broker, start):
    broker.stop()
    process = start("serve", "--no-pipeline", "--config", "ister.yml", "--log-format", "json", "-o", "json")
    hear(process.stdout)
    code, _, err = end(process, signal.SIGTERM)
    events = [json.loads(line) for line in err.splitlines()]
    assert code == 0
    assert {"listening", "broker_draining", "broker_stopped"} <= {event["event"] for event in events}
    assert [event["cluster_name"] for event in events if event["event"] == "broker_recovered"] == ["tests"]


def test_a_running_broker_tells_its_cluster_and_how_long_sending_took(broker, start):
    finish(start("produce", "/default/x", "-m", "x"))
    told = broker.metrics()
    assert told[f'ister_broker_info{{cluster_name="tests",version="{__version__}"}}'] == 1
    assert told["danube_producer_send_latency_ms_count"] == 1
    assert told["danube_producer_send_latency_ms_sum"] > 0


def test_consuming_goes_on_through_a_crash_of_the_broker_and_ends_with_ctrl_c(broker, start):
    finish(start("produce", "/default/x", "-m", "one"))
    consumer = start("consume", "/default/x", "-s", "mine", "--from", "earliest", "-o", "payload")
    assert hear(consumer.stdout) == b"one\n"
    broker.restart(signal.SIGKILL)
    finish(start("produce", "/default/x", "-m", "two"))
    heard = b""
    while not heard.endswith(b"two\n"):
        heard += hear(consumer.stdout)
    assert heard.replace(b"one\n", b"") == b"two\n", "what was acknowledged just before the crash may come once more"
    code, rest, err = end(consumer)
    assert (code, rest) == (0, b"")
    assert b"messages received." in err


def test_producing_goes_on_through_a_crash_of_the_broker(broker, start):
    producer = start("produce", "/default/x", "-o", "json")
    say(producer, b"one")
    wait_for_messages(start, 1)
    broker.kill()
    say(producer, b"two")
    assert b"trying again" in hear(producer.stderr)
    broker.start()
    out, _ = producer.communicate(timeout=PATIENCE_S)
    assert producer.returncode == 0
    assert json.loads(out)["messages"] == 2


def wait_for_messages(start, number):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        topics = json.loads(finish(start("topics", "list", "-o", "json")))["topics"]
        if topics and topics[0]["next"] >= number:
            return
        assert time.monotonic() < deadline


def test_an_interrupted_command_is_no_damage(broker, start):
    producer = start("produce", "/default/x")
    say(producer, b"one")
    wait_for_messages(start, 1)
    code, out, err = end(producer)
    assert (code, out) == (130, b"")
    assert err == b"ister: 1 message had been answered before.\n"


def test_a_subscription_of_our_own_is_gone_after_ctrl_c(broker, start):
    finish(start("produce", "/default/x", "-m", "one"))
    consumer = start("consume", "/default/x", "--from", "earliest", "-o", "payload")
    assert hear(consumer.stdout) == b"one\n"
    code, _, err = end(consumer, signal.SIGTERM)
    assert (code, err) == (0, b"ister: 1 message received.\n")
    assert json.loads(finish(start("subscriptions", "list", "/default/x", "-o", "json"))) == {"subscriptions": []}


def test_a_reader_that_goes_away_ends_consuming_and_is_no_damage(broker, start):
    lines = b"".join(b"%d\n" % number for number in range(3000))
    finish(start("produce", "/default/x"), lines)
    consumer = start("consume", "/default/x", "-s", "mine", "--from", "earliest", "-o", "payload")
    hear(consumer.stdout)
    consumer.stdout.close()
    assert consumer.wait(PATIENCE_S) == 141
