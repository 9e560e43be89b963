"""`ister serve` with its pipeline: started beside it, started anew when it dies, ended with it."""

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path

from pyiceberg.catalog import load_catalog

from interop.broker import ISTER, Broker
from ister.config import load
from ister.config.catalog import catalog_properties
from parts.pipeline import assert_exact, produce

TOPIC = "/default/orders"
PATIENCE_S = 120.0
CONFIG = {"policies": {"ack_timeout_ms": 100_000}}


class ServingWithPipeline(Broker):
    """As users start it."""

    def command(self) -> list[str]:
        return [word for word in super().command() if word != "--no-pipeline"]

    def child(self) -> int | None:
        """Return the process of the pipeline; None while there is none."""
        return next((pid for pid, words in children(self.pid).items() if b"pipeline\0run" in words), None)


def children(parent: int) -> dict[int, bytes]:
    """Return the processes that a process has started and that still run, with their command lines."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            _, state_and_more = (path / "stat").read_text().rsplit(")", 1)
            if int(state_and_more.split()[1]) == parent:
                found[int(path.name)] = (path / "cmdline").read_bytes()
        except (OSError, ValueError):
            continue
    return found


def is_running(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and that nobody has asked for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(is_so, broker):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := is_so()):
        assert time.monotonic() < deadline, broker.log[-3000:]
        time.sleep(0.1)  # between two looks
    return found


async def sends(broker, payload):
    """Send a message, and wait until it is in its table."""
    async with broker.raw() as raw:
        await raw.set_topic(TOPIC, ack_level="lake")
        producer = await raw.create_producer(TOPIC)
        await raw.send(TOPIC, producer, payload, timeout_s=PATIENCE_S)


def test_level_lake_is_answered_by_the_child_which_comes_back_when_it_is_killed_and_ends_with_its_broker():
    with ServingWithPipeline(CONFIG) as broker:
        produce(broker, TOPIC, [b"before"])
        first = broker.child()
        assert first is not None
        asyncio.run(sends(broker, b"waits for its table"))
        os.kill(first, signal.SIGKILL)
        asyncio.run(sends(broker, b"waits for the next child"))

        last = broker.child()
        assert last not in {None, first}, "it was started anew"
        code, seconds = broker.terminate()
        assert code == 0, broker.log[-3000:]
        assert seconds < 10.0, "with its child, within drain_timeout_ms"
        assert not Path(f"/proc/{last}").exists(), "nothing is left behind"
        name, properties = catalog_properties(load(None, broker.data, {}).config)
        catalog = load_catalog(name, **properties)
        assert_exact(catalog, TOPIC, 3)
        catalog.close()


def test_a_child_makes_room_for_a_pipeline_that_runs_once_comes_back_and_does_not_outlive_a_broker_that_is_killed():
    with ServingWithPipeline(CONFIG) as broker:
        produce(broker, TOPIC, [b"before"])
        first = broker.child()
        wait_until(lambda: "pipeline_registered" in broker.log, broker)
        words = ["pipeline", "run", "--once", "--broker", broker.url, "--data-dir", str(broker.data)]
        once = subprocess.run([*ISTER, *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert once.returncode == 0, once.stderr
        wait_until(lambda: "pipeline_fenced" in broker.log, broker)
        asyncio.run(sends(broker, b"waits for the child that comes back"))
        assert "pipeline_returns" in broker.log
        last = broker.child()
        assert last not in {None, first}
        (java,) = [pid for pid, words in children(last).items() if b"java" in words.split(b"\0")[0]]
        broker.kill()
        wait_until(lambda: not is_running(last) and not is_running(java), broker)
