"""More topics than a process may have open files: all of them are made, written, recovered in seconds, and read."""

import asyncio
from pathlib import Path

from interop.raw import EXCLUSIVE
from interop.waiting import limited_to

DESCRIPTORS = 1024
TOPICS = [f"/default/many-{number}" for number in range(DESCRIPTORS + 76)]
AT_ONCE = 16
READY_S_MAX = 20.0


async def for_each_topic(work) -> None:
    """Do something with every topic, several of them at a time."""
    waiting = iter(TOPICS)

    async def lane() -> None:
        for topic in waiting:
            await work(topic)

    async with asyncio.TaskGroup() as lanes:
        for _ in range(AT_ONCE):
            lanes.create_task(lane())


@limited_to(600)
async def test_more_topics_than_descriptors_are_written_recovered_in_seconds_and_read(own_broker, tell):
    broker = own_broker({"policies": {"start_position": "earliest"}}, descriptors=DESCRIPTORS)

    async def write(topic: str) -> None:
        producer = await raw.create_producer(topic)
        await raw.send_all(topic, producer, [b"first of " + topic.encode(), b"second"])

    async def read(topic: str) -> None:
        stream = raw.receive(await raw.subscribe(topic, "sub", kind=EXCLUSIVE))
        messages = await stream.take(2)
        assert [message.payload for message in messages] == [b"first of " + topic.encode(), b"second"]
        for message in messages:
            await raw.ack(message, "sub")
        stream.cancel()
        await raw.send(topic, await raw.create_producer(topic), b"third")

    async with broker.raw() as raw:
        await for_each_topic(write)
    await asyncio.to_thread(broker.restart)
    assert limits_of(broker.pid) == (DESCRIPTORS, DESCRIPTORS), "it cannot have raised its limit"
    assert broker.started_s < READY_S_MAX
    assert broker.metrics()["danube_broker_topics_owned"] == len(TOPICS)
    async with broker.raw() as raw:
        await for_each_topic(read)
    assert broker.metrics()["ister_broker_topics_with_problems"] == 0
    tell(
        "1,000 topics",
        f"{len(TOPICS)} topics with {DESCRIPTORS} descriptors, {broker.open_descriptors()} of them open: ready "
        f"{broker.started_s:.1f} s after the start of the process, {broker.recovered_s:.1f} s without Python's own",
    )


def limits_of(pid: int) -> tuple[int, int]:
    """Return how many files a process may open: by its own choice, and at most."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("Max open files")]
    soft, hard = line.split()[3:5]
    return int(soft), int(hard)
