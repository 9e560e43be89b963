"""`ister serve` with its pipeline: started beside it, started anew when it dies, ended with it."""

import asyncio
import os
import signal
from pathlib import Path

from pipeline_parts import assert_exact, produce
from pyiceberg.catalog import load_catalog

from interop.broker import Broker
from ister.config import load
from ister.config.lake import catalog_properties

TOPIC = "/default/orders"
PATIENCE_S = 120.0


class ServingWithPipeline(Broker):
    """As users start it."""

    def command(self) -> list[str]:
        return [word for word in super().command() if word != "--no-pipeline"]

    def child(self) -> int | None:
        """Return the process of the pipeline; None while there is none."""
        for path in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.pid and b"pipeline\0run" in (path / "cmdline").read_bytes():
                    return int(path.name)
            except (OSError, ValueError):
                continue
        return None


def test_level_lake_is_answered_by_the_child_which_comes_back_when_it_is_killed_and_ends_with_its_broker():
    config = {"policies": {"ack_timeout_ms": 100_000}}
    with ServingWithPipeline(config) as broker:
        produce(broker, TOPIC, [b"before"])
        first = broker.child()
        assert first is not None

        async def sends(payload):
            async with broker.raw() as raw:
                await raw.set_topic(TOPIC, ack_level="lake")
                producer = await raw.create_producer(TOPIC)
                await raw.send(TOPIC, producer, payload, timeout_s=PATIENCE_S)

        asyncio.run(sends(b"waits for its table"))
        os.kill(first, signal.SIGKILL)
        asyncio.run(sends(b"waits for the next child"))

        last = broker.child()
        assert last not in {None, first}, "it was started anew"
        code, _ = broker.terminate()
        assert code == 0, broker.log[-3000:]
        assert not Path(f"/proc/{last}").exists(), "nothing is left behind"
        name, properties = catalog_properties(load(None, broker.data, {}).config)
        catalog = load_catalog(name, **properties)
        assert_exact(catalog, TOPIC, 3)
        catalog.close()
