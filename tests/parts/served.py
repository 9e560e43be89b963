"""A broker in this process, on a port, for clients that block."""

import asyncio
import threading
from contextlib import contextmanager

from ister.broker.services.ister_storage import IsterStorage
from ister.broker.status import status_of
from ister.core.names import TopicName
from ister.pipeline.source.options import WriteOptions
from ister.transport.server import serve
from parts.binding import LIMITS
from parts.broker import BrokerWorld

T = "/default/t"
WAIT_S = 20


class Served:
    """A broker on a port, whose event loop runs in a thread of its own."""

    def __init__(self, loop, client, port):
        self.loop, self.client, self.broker, self.port = loop, client, client.broker, port

    def run(self, act):
        return asyncio.run_coroutine_threadsafe(act, self.loop).result(WAIT_S)

    def delete(self):
        self.run(self.broker.delete_topic(TopicName.parse(T)))

    def create(self, topic=T):
        self.run(self.client.producer(topic))

    def options(self):
        return WriteOptions(T, f"http://127.0.0.1:{self.port}")


@contextmanager
def serving(directory, port=0, **settings):
    ready, found, ended = threading.Event(), [], None

    async def act():
        nonlocal ended
        ended = asyncio.Event()
        async with BrokerWorld(directory).broker(**settings) as client:
            services = [
                *client.producing.services(),
                *client.discovery.services(),
                *IsterStorage(client.broker).services(),
            ]
            server = await serve(services, host="127.0.0.1", port=port, describe_error=status_of, **LIMITS)
            found.append(Served(asyncio.get_running_loop(), client, server.port))
            ready.set()
            await ended.wait()
            await server.stop(0)

    thread = threading.Thread(target=lambda: asyncio.run(act()))
    thread.start()
    assert ready.wait(WAIT_S)
    try:
        yield found[0]
    finally:
        found[0].loop.call_soon_threadsafe(ended.set)
        thread.join(WAIT_S)
