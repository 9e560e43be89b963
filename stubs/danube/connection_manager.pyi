# What our code uses of danube-client, which ships no types; written by hand.
from grpc import aio

class RpcConnection:
    channel: aio.Channel

class ConnectionManager:
    _connections: dict[object, RpcConnection]
