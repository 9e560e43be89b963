"""Floor for the broker: a grpc.aio server that answers and streams without storing. Imports nothing of ister.

Run by bench/broker.py as a process of its own; prints its port. SendMessage is answered with the request's id.
ReceiveMessages sends messages of PAYLOAD_BYTES endlessly, with at most WINDOW of them unacknowledged.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import grpc
from danube.proto import DanubeApi_pb2 as api
from danube.proto import DanubeApi_pb2_grpc as api_grpc


class Producing(api_grpc.ProducerServiceServicer):
    """Answers without storing."""

    async def CreateProducer(self, request, _context):  # noqa: N802  # the protocol's name
        return api.ProducerResponse(request_id=request.request_id, producer_id=1, producer_name=request.producer_name)

    async def SendMessage(self, request, _context):  # noqa: N802  # the protocol's name
        return api.MessageResponse(request_id=request.request_id)


class Consuming(api_grpc.ConsumerServiceServicer):
    """Streams the same message repeatedly, within the window."""

    def __init__(self, window: int, payload_bytes: int) -> None:
        self._window = window
        self._payload = bytes(payload_bytes)
        self._outstanding = 0
        self._room = asyncio.Event()

    async def Subscribe(self, request, _context):  # noqa: N802  # the protocol's name
        return api.ConsumerResponse(request_id=request.request_id, consumer_id=1, consumer_name=request.consumer_name)

    async def ReceiveMessages(self, _request, _context):  # noqa: N802  # the protocol's name
        self._outstanding = 0
        offset = 0
        while True:
            while self._outstanding == self._window:
                self._room.clear()
                await self._room.wait()
            self._outstanding += 1
            yield api.StreamMessage(
                request_id=offset,
                msg_id=api.MsgID(
                    producer_id=1,
                    topic_name="/default/backlog",
                    broker_addr="http://127.0.0.1:6650",
                    topic_offset=offset,
                ),
                payload=self._payload,
                publish_time=1_700_000_000_000,
                producer_name="producer",
                subscription_name="backlog",
            )
            offset += 1

    async def Ack(self, request, _context):  # noqa: N802  # the protocol's name
        self._outstanding -= 1
        self._room.set()
        return api.AckResponse(request_id=request.request_id)


async def main(window: int, payload_bytes: int) -> None:
    server = grpc.aio.server()
    api_grpc.add_ProducerServiceServicer_to_server(Producing(), server)
    api_grpc.add_ConsumerServiceServicer_to_server(Consuming(window, payload_bytes), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    print(port, flush=True)
    await stopped.wait()
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
