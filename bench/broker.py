"""Measure the broker against floors of the same run: server and client in a process each, alternating rounds, medians.

The client is the same for both. Every answer and every delivery is checked. The last line is one JSON object;
docs/performance.md explains the figures and their bottlenecks.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import platform
import shutil
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from broker_client import Client
from broker_e2e import Deliveries, e2e_round, following, grpc_round
from broker_process import DESCRIPTORS, BrokerProcess, floor_server
from figures import Figures, show
from ister.rpc import danube_admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

ROUNDS = 5
GRPC_ROUNDS = 3
"""End to end with clients of grpc.aio."""
PAYLOAD_BYTES = 200
IN_FLIGHT = 64
ROUND_MESSAGES = 100_000
"""Five rounds store the backlog of 500,000 that the catch-up stage reads."""
FLOOR_MESSAGES = 20_000
ALONE = 3_000
WINDOW = 1000
SUBSCRIPTIONS = 10
FANOUT_MESSAGES = 2_000
TOPICS = 1000
IDLE_S = 10.0
TOPIC = "/default/backlog"


class Backlog:
    """Stored payloads, and a check that each is delivered once."""

    def __init__(self) -> None:
        self._stored = 0
        self._waiting: set[bytes] = set()

    def more(self, count: int) -> tuple[int, list[bytes]]:
        """Return the next payloads, and the index of the first."""
        start = self._stored
        payloads = [b"%-*d" % (PAYLOAD_BYTES, number) for number in range(start, start + count)]
        self._stored += count
        self._waiting.update(payloads)
        return start, payloads

    def check(self, _offset: int, payload: bytes) -> None:
        self._waiting.remove(payload)  # an error if it was never stored, or is delivered twice

    @property
    def stored(self) -> int:
        return self._stored

    @property
    def missing(self) -> int:
        return len(self._waiting)


@asynccontextmanager
async def connected(target: str) -> AsyncIterator[Client]:
    client = Client(target)
    try:
        yield client
    finally:
        await client.close()


async def ask(target: str, method: str, request, answer) -> None:
    async with grpc.aio.insecure_channel(target) as channel:
        call = channel.unary_unary(
            f"/danube_admin.TopicAdmin/{method}",
            request_serializer=lambda given: given.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        assert (await call(request, timeout=60)).success


async def create_topic(broker: BrokerProcess, topic: str) -> None:
    request = admin.NewTopicRequest(name=topic, dispatch_strategy=admin.Reliable)
    await ask(broker.admin_target, "CreateTopic", request, admin.TopicResponse)


async def set_window(broker: BrokerProcess, topic: str, subscription: str) -> None:
    request = admin.SetSubscriptionDispatchConfigRequest(
        topic=topic,
        subscription=subscription,
        dispatch_config=admin.SubscriptionDispatchConfig(max_unacked_messages=WINDOW),
    )
    await ask(broker.admin_target, "SetSubscriptionDispatchConfig", request, admin.SubscriptionResponse)


# --- producing --------------------------------------------------------------------------------------------------------


async def produce_round(broker: BrokerProcess, floor: str, backlog: Backlog, figures: Figures) -> None:
    """Send to the floor and to the broker, with many and with one in flight."""
    async with connected(floor) as client:
        producer = await client.producer(TOPIC)
        payloads = [bytes(PAYLOAD_BYTES)] * FLOOR_MESSAGES
        gc.collect()
        figures.note("floor_unary_64_msgs_s", FLOOR_MESSAGES / await producer.send_all(0, payloads, IN_FLIGHT))
        times = await producer.latencies_us(0, payloads[:ALONE])
        figures.note("floor_ack_p50_us", times[ALONE // 2])
        figures.note("floor_ack_p99_us", times[ALONE * 99 // 100])
    async with connected(broker.target) as client:
        producer = await client.producer(TOPIC)
        start, payloads = backlog.more(ROUND_MESSAGES - ALONE)
        gc.collect()
        figures.note("unary_64_msgs_s", len(payloads) / await producer.send_all(start, payloads, IN_FLIGHT))
        start, payloads = backlog.more(ALONE)
        began = time.perf_counter()
        times = await producer.latencies_us(start, payloads)
        figures.note("unary_1_msgs_s", ALONE / (time.perf_counter() - began))
        figures.note("ack_p50_us", times[ALONE // 2])
        figures.note("ack_p99_us", times[ALONE * 99 // 100])


# --- catching up ------------------------------------------------------------------------------------------------------


async def catch_up_round(broker: BrokerProcess, floor: str, backlog: Backlog, start: int, figures: Figures) -> None:
    async with connected(floor) as client:
        consumer = await client.consumer(TOPIC, "backlog")
        gc.collect()
        spent = await consumer.drain(0, FLOOR_MESSAGES, _is_floors)
        figures.note("floor_catchup_msgs_s", FLOOR_MESSAGES / spent)
    async with connected(broker.target) as client:
        consumer = await client.consumer(TOPIC, "backlog")
        gc.collect()
        figures.note("catchup_msgs_s", ROUND_MESSAGES / await consumer.drain(start, ROUND_MESSAGES, backlog.check))


def _is_floors(_offset: int, payload: bytes) -> None:
    assert payload == bytes(PAYLOAD_BYTES)


# --- from a producer to consumers -------------------------------------------------------------------------------------


async def to_consumer(broker: BrokerProcess, number: int, figures: Figures) -> None:
    topic = f"/default/e2e-{number}"
    await create_topic(broker, topic)
    await e2e_round(broker.target, topic, figures)
    if number < GRPC_ROUNDS:
        topic = f"/default/e2e-grpc-{number}"
        await create_topic(broker, topic)
        await grpc_round(broker.target, topic, figures)


async def fanout_round(broker: BrokerProcess, number: int, figures: Figures) -> None:
    """Measure one producer and ten subscriptions with one consumer each; the figure counts deliveries."""
    topic = f"/default/fanout-{number}"
    await create_topic(broker, topic)
    for sub in range(SUBSCRIPTIONS):
        await set_window(broker, topic, f"sub-{sub}")
    deliveries = [Deliveries(FANOUT_MESSAGES) for _ in range(SUBSCRIPTIONS)]
    async with connected(broker.target) as client, following(client, topic, deliveries):
        producer = await client.producer(topic)
        gc.collect()
        began = time.perf_counter()
        await producer.send_all(0, [b"%-*d" % (PAYLOAD_BYTES, n) for n in range(FANOUT_MESSAGES)], 1)
        for each in deliveries:
            await each.complete(120)
        figures.note("fanout_msgs_s", SUBSCRIPTIONS * FANOUT_MESSAGES / (time.perf_counter() - began))


# --- idle -------------------------------------------------------------------------------------------------------------


async def many_topics(scratch: Path, figures: Figures) -> None:
    """Measure an empty broker, a start with a thousand topics of one message each, and the idle broker."""
    with BrokerProcess(scratch / "idle") as broker:
        await asyncio.sleep(1)
        figures.note("rss_mb", broker.rss_mb())
        async with connected(broker.target) as client:
            for number in range(TOPICS):
                producer = await client.producer(f"/default/topic-{number}")
                await producer.send(1, b"x" * PAYLOAD_BYTES)
        figures.note("rss_1000_created_mb", broker.rss_mb())
    with BrokerProcess(scratch / "idle") as broker:
        figures.note("start_1000_topics_s", broker.started_s)
        await asyncio.sleep(3)
        before = broker.cpu_s()
        await asyncio.sleep(IDLE_S)
        figures.note("idle_1000_topics_cpu_percent", (broker.cpu_s() - before) / IDLE_S * 100)
        figures.note("rss_1000_topics_mb", broker.rss_mb())
        figures.note("descriptors_1000_topics", broker.descriptors())


# --- all of it --------------------------------------------------------------------------------------------------------


def show_settings() -> None:
    show(
        f"`ister serve --no-pipeline`, which may open {DESCRIPTORS:,} files (soft and hard limit); {PAYLOAD_BYTES} bytes a message"
    )
    show(
        f"Python {platform.python_version()}, grpcio {grpc.__version__}; medians of {ROUNDS} rounds, of {GRPC_ROUNDS} for e2e_1000_grpc"
    )
    show("clients and floors: grpc.aio; e2e_1000: a bare client, and a relay over TCP as its floor")


async def measure(scratch: Path) -> Figures:
    figures = Figures()
    show_settings()
    show("starting with nothing, then with a thousand topics")
    await many_topics(scratch, figures)
    with BrokerProcess(scratch / "busy") as broker, floor_server(WINDOW, PAYLOAD_BYTES) as floor:
        backlog = Backlog()
        await create_topic(broker, TOPIC)
        await set_window(broker, TOPIC, "backlog")
        async with connected(broker.target) as client:
            await client.consumer(TOPIC, "backlog")  # retains everything from here on
        await rounds("producing", lambda _: produce_round(broker, floor, backlog, figures))
        assert backlog.stored == ROUNDS * ROUND_MESSAGES
        await rounds(
            "catching up", lambda number: catch_up_round(broker, floor, backlog, number * ROUND_MESSAGES, figures)
        )
        assert backlog.missing == 0, f"{backlog.missing} stored messages never came"
        await rounds("from producer to consumer", lambda number: to_consumer(broker, number, figures))
        await rounds("to ten subscriptions", lambda number: fanout_round(broker, number, figures))
        figures.note("rss_busy_mb", broker.rss_mb())
    return figures


async def rounds(what: str, work: Callable) -> None:
    for number in range(ROUNDS):
        show(f"{what}, round {number + 1} of {ROUNDS}")
        await work(number)


def report(figures: Figures) -> dict[str, float]:
    """Print every figure, and return the JSON figures."""
    ratios = {
        "unary_64_ratio": figures.median("unary_64_msgs_s") / figures.median("floor_unary_64_msgs_s"),
        "catchup_ratio": figures.median("catchup_msgs_s") / figures.median("floor_catchup_msgs_s"),
        "ack_p50_ratio": figures.median("ack_p50_us") / figures.median("floor_ack_p50_us"),
        "e2e_p99_ratio": figures.median("e2e_1000_p99_us") / figures.median("relay_1000_p99_us"),
        "topics_mb": figures.median("rss_1000_topics_mb") - figures.median("rss_mb"),
    }
    print(f"{'':30}{'median':>14}{'least':>14}{'most':>14}")
    for name, (least, median, most) in figures.spread().items():
        digits = 0 if name.endswith(("msgs_s", "_us")) else 1
        print(f"{name:30}{median:>14,.{digits}f}{least:>14,.{digits}f}{most:>14,.{digits}f}")
    for name, value in ratios.items():
        print(f"{name:30}{value:>14.2f}")
    medians = {name: round(median, 1) for name, (_, median, _) in figures.spread().items()}
    return {**medians, **{name: round(value, 3) for name, value in ratios.items()}}


async def main() -> None:
    scratch = Path(tempfile.mkdtemp(prefix="ister-bench-", dir=os.environ.get("ISTER_BENCH_DIR", "/var/tmp")))
    try:
        figures = await measure(scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps({"bench": "broker", **report(figures)}))


if __name__ == "__main__":
    asyncio.run(main())
