"""What clients ask for computes in threads of its own: nothing else waits for it, and it does not wait for ever (J12)."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from ister.broker.registry import store as schema_store
from ister.broker.registry.store import NewSchema, SchemaStore
from ister.broker.registry.validation import INLINE_BYTES_MAX, Validation
from ister.broker.threads import ClientThreads
from ister.core.errors import InvalidMessageError, LimitError
from ister.core.message import MsgID, StreamMessage
from ister.ports.files.files import OsFiles
from ister.ports.metadata import MemoryMetadata
from ister.ports.objects import FsStore
from ister.schemas import Compatibility, SchemaType, TopicSchema, ValidationPolicy
from ister.storage.cursors.saved import CursorFile
from parts.broker import until

WAIT_S = 10
LARGE = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(200)}}


@asynccontextmanager
async def default_executor_busy():
    """Let somebody have every thread of asyncio's default executor."""
    loop, go_on = asyncio.get_running_loop(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        loop.set_default_executor(pool)
        waits = loop.run_in_executor(None, go_on.wait)
        try:
            async with asyncio.timeout(WAIT_S):
                yield
        finally:
            go_on.set()
            await waits


class Work:
    """Work that goes on until it is told to end."""

    def __init__(self):
        self.begun, self._end = threading.Event(), threading.Event()

    def __call__(self, *_):
        self.begun.set()
        assert self._end.wait(WAIT_S)
        return []

    def end(self):
        self._end.set()


def test_cursors_are_saved_while_the_default_executor_is_busy(tmp_path):
    async def act():
        cursors = CursorFile(OsFiles(), tmp_path, "log", 10)
        async with default_executor_busy():
            await cursors.load()
            assert await cursors.advance("s", 5) == 5

    asyncio.run(act())


def test_objects_in_a_directory_are_read_while_the_default_executor_is_busy(tmp_path):
    async def act():
        store = FsStore(tmp_path)
        async with default_executor_busy():
            await store.put_if_absent("a/b", b"0123")
            assert await store.read("a/b", 1, 3) == b"12"

    asyncio.run(act())


def test_schemas_are_registered_and_payloads_checked_while_the_default_executor_is_busy():
    async def act():
        store = SchemaStore(MemoryMetadata(), "/root")
        definition = json.dumps(LARGE).encode()
        async with default_executor_busy():
            made, _ = await store.register(
                NewSchema(subject="s", schema_type=SchemaType.JSON_SCHEMA, definition=definition)
            )
            assert not await store.check("s", SchemaType.JSON_SCHEMA, definition, Compatibility.FULL)
            await refuse_large_payload(store, made.schema_id)

    asyncio.run(act())


async def refuse_large_payload(store, schema_id):
    payload = json.dumps({"pad": "x" * INLINE_BYTES_MAX, "p0": 5}).encode()
    message = StreamMessage(payload, MsgID(), schema_id=schema_id, schema_version=1)
    bound = TopicSchema("s", ValidationPolicy.ENFORCE, payload_validation=True)
    with pytest.raises(InvalidMessageError):
        await Validation(store).check("/default/t", bound, message)


def test_messages_do_not_wait_for_what_the_registry_is_asked(monkeypatch):
    async def act():
        store = SchemaStore(MemoryMetadata(), "/root")
        definition, work = json.dumps(LARGE).encode(), Work()
        made, _ = await store.register(
            NewSchema(subject="s", schema_type=SchemaType.JSON_SCHEMA, definition=definition)
        )
        monkeypatch.setattr(schema_store, "incompatibilities", work)
        checks = [
            asyncio.create_task(store.check("s", SchemaType.JSON_SCHEMA, definition, Compatibility.FULL))
            for _ in range(3)
        ]
        await until(work.begun.is_set)
        store._drop((made.schema_id, made.version))  # the message's schema must be parsed again
        await refuse_large_payload(store, made.schema_id)
        work.end()
        assert await asyncio.gather(*checks) == [[], [], []]

    asyncio.run(act())


def test_what_waits_for_a_thread_is_bounded():
    async def act():
        threads, work = ClientThreads("the registry", 1, waiting_max=2), Work()
        calls = [asyncio.create_task(threads.run(work)) for _ in range(3)]
        await until(work.begun.is_set)
        with pytest.raises(LimitError, match="2 calls wait for the registry"):
            await threads.run(work)
        work.end()
        assert await asyncio.gather(*calls) == [[], [], []]
        assert await threads.run(work) == []

    asyncio.run(act())


def test_at_the_deadline_a_call_ends_and_its_thread_is_busy_until_its_work_ends():
    async def act():
        threads, work, ran = ClientThreads("the registry", 1, deadline_s=0.05), Work(), []
        for _ in range(2):
            with pytest.raises(LimitError, match=r"longer than 0\.05 s; try again later"):
                await threads.run(work)
        with pytest.raises(LimitError):
            await threads.run(lambda: ran.append(1))
        work.end()
        await until(lambda: not threads._free.locked())
        threads._deadline_s = WAIT_S
        await threads.run(lambda: ran.append(2))
        assert ran == [2]

    asyncio.run(act())


def test_a_call_that_is_cancelled_leaves_its_thread_busy_and_its_error_unsaid(caplog):
    async def act():
        threads, work = ClientThreads("the registry", 1), Work()

        def fails():
            work()
            raise ValueError

        call = asyncio.create_task(threads.run(fails))
        await until(work.begun.is_set)
        call.cancel()
        await asyncio.wait({call})
        assert threads._free.locked()
        work.end()
        await until(lambda: not threads._free.locked())

    asyncio.run(act())
    assert not caplog.records
