"""What the tests of administration share: every service of a broker by its methods' names, and the status of a refusal."""

from contextlib import asynccontextmanager, contextmanager

import pytest

from ister.broker.registry.store import NewSchema
from ister.broker.services.broker_admin import BrokerAdmin
from ister.broker.services.ister_admin import IsterAdmin
from ister.broker.services.ister_storage import IsterStorage
from ister.broker.services.namespace_admin import NamespaceAdmin
from ister.broker.services.storage import StorageService
from ister.broker.services.topic_admin import TopicAdmin
from ister.broker.status import status_of
from ister.cloud import UploadOptions
from ister.core.errors import IsterError
from ister.ports.objects import FsStore
from ister.schemas import SchemaType
from ister.storage.factory import TopicsConfig, WalStorageFactory
from ister.transport.service import ServerStream, wants_call
from ister.wal import WalConfig
from parts.broker import BrokerWorld, FakeCall

TOKEN = "the-child's"


class Asker:
    """Calls methods by service and name, through encoded messages; `danube` and `v1` shorten the services' names."""

    def __init__(self, client, token=TOKEN):
        self.client = client
        self.broker = client.broker
        handlers = (
            TopicAdmin(self.broker),
            NamespaceAdmin(self.broker),
            BrokerAdmin(self.broker),
            StorageService(self.broker),
            IsterAdmin(self.broker),
            IsterStorage(self.broker, token=token),
        )
        self.services = [service for handler in handlers for service in handler.services()]

    def method(self, path):
        service, _, name = path.rpartition("/")
        (found,) = [m for s in self.services if s.name == service for m in s.methods if m.name == name]
        return found

    async def ask(self, path, /, headers=None, **fields):
        method = self.method(path)
        assert not isinstance(method, ServerStream)
        request = method.request.FromString(method.request(**fields).SerializeToString())
        args = (request, FakeCall(headers)) if wants_call(method.handler) else (request,)
        answer = await method.handler(*args)
        assert type(answer) is method.response
        return method.response.FromString(answer.SerializeToString())

    async def topic(self, method, /, **fields):
        return await self.ask(f"danube_admin.TopicAdmin/{method}", **fields)

    async def namespace(self, method, /, **fields):
        return await self.ask(f"danube_admin.NamespaceAdmin/{method}", **fields)

    async def admin(self, method, /, **fields):
        return await self.ask(f"ister.v1.Admin/{method}", **fields)

    async def storage(self, method, /, **fields):
        return await self.ask(f"ister.v1.Storage/{method}", **fields)

    def watch(self, **fields):
        method = self.method("ister.v1.Storage/WatchWakeups")
        assert isinstance(method, ServerStream)
        return method.handler(method.request(**fields))

    async def register(self, subject, definition=b"string", kind="string"):
        """Register a schema; returns its id."""
        new = NewSchema(subject=subject, schema_type=SchemaType(kind), definition=definition)
        return (await self.broker.schemas.register(new))[0].schema_id

    async def fill(self, topic, count, size=0):
        """Make a reliable topic if need be, and send messages to it."""
        producer = await self.client.producer(topic)
        for number in range(count):
            await self.client.send(topic, producer, b"%d:" % number + bytes(size))


class AdminWorld(BrokerWorld):
    """What outlives a broker, and how its storage is set up."""

    def __init__(self, directory, metadata=None, *, clock=None, files=None, upload=None, **wal):
        super().__init__(directory, metadata)
        self.clock = clock
        self.files = files
        self.upload = {"interval_s": 300} | (upload or {})
        self.wal = wal

    def factory(self):
        config = TopicsConfig(
            wal=WalConfig(dir=self.directory / "wal", **self.wal), upload=UploadOptions(**self.upload)
        )
        store = FsStore(self.directory / "objects")
        return WalStorageFactory(config, store=store, metadata=self.metadata, files=self.files, clock=self.clock)

    @asynccontextmanager
    async def asker(self, **settings):
        """Run a broker, and drain it at the end."""
        async with self.broker(**settings) as client:
            yield Asker(client)


@contextmanager
def refused(code, *words):
    """Expect an error that a client is told with this status, and with these words in its text."""
    with pytest.raises(IsterError) as caught:
        yield
    status, text = status_of(caught.value)
    assert status is code, f"{status.name}: {text}"
    for word in words:
        assert word in text
