"""Progress in metadata, and a network that lets one call of it go wrong."""

import json
import random

from ister.core.errors import MetadataUnknownError
from ister.core.names import TopicName
from ister.storage.cursors.metadata import MetadataCursors, progress_root
from sim.cloud_machine import Network
from sim.machine import SimClock

TOPIC = TopicName("default", "orders")
ROOT = progress_root("/danube-data")
KEY = f"{ROOT}/subscriptions/s/default/orders"
ENTRY = f"{ROOT}/topics/default/orders/s"
NEVER = 10**9
FAULTS = ("unavailable", "unknown", "landed")


def nowhere(offset):
    return None


def made(metadata, *, generation=1, limit=NEVER, place=nowhere, topic=TOPIC):
    return MetadataCursors(metadata, topic, generation, limit, root=ROOT, place=place, clock=SimClock())


async def opened(metadata, **settings):
    cursors = made(metadata, **settings)
    await cursors.load()
    return cursors


async def said(metadata, key=KEY):
    return json.loads((await metadata.get(key)).value)


class Script(Network):
    """Lets one call go wrong: `unavailable` and `unknown` before it has its effect, `landed` behind it."""

    def __init__(self, at=-1, fault=""):
        super().__init__(random.Random(0))
        self.at, self.fault = at, fault
        self.calls = []

    async def send(self, op, key, before):
        self.calls.append((op, key))
        self.on_step(op, key)
        if self._is_now("unavailable"):
            raise before
        if self._is_now("unknown") and op in {"put", "cas", "delete"}:
            raise MetadataUnknownError("sim", op, "no answer")

    async def answer(self, lost):
        if self._is_now("landed"):
            raise lost

    def _is_now(self, fault):
        return self.fault == fault and len(self.calls) - 1 == self.at
