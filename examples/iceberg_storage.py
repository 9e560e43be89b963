"""Store messages, write them to an Iceberg table, and resume a subscription; without a broker.

Run it with `python examples/iceberg_storage.py [DIRECTORY]`. Spark starts as a child: give it half a minute.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile

import structlog

from ister import IcebergStorage
from ister.core.message import StreamMessage


async def main(directory: str) -> None:
    """Use one storage, then open it again."""
    storage = IcebergStorage(data_dir=directory, drain_timeout_s=120)
    messages = [StreamMessage(b"order %d" % number) for number in range(5)]
    offsets = await storage.store("my-topic", messages)  # stored in the log
    print("stored at", list(offsets))

    stream = await storage.create_subscription_stream("default", "my-topic", "billing")
    for _ in range(3):
        message = await anext(stream)
        print("billing got", message.offset, message.payload.decode())
    await stream.ack(message.offset)  # everything up to here

    stats = await storage.get_topic_stats("my-topic")
    print(f"Messages: {stats.message_count}, Bytes: {stats.bytes_stored}")
    await storage.shutdown()  # returns once the table has everything

    async with IcebergStorage(data_dir=directory, drain_timeout_s=120) as again:
        print("in the table below offset", await again.get_committed_position("my-topic"))
        stream = await again.create_subscription_stream("default", "my-topic", "billing")
        print("billing goes on with", (await anext(stream)).payload.decode())


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()))
