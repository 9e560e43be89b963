import asyncio

import pytest

from ister.core.errors import InvalidConfigError, OffsetOutOfRangeError
from ister.core.message import StreamMessage
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from ister.core.reader import Reader
from ister.storage import InMemoryStorage, TopicCache, TopicStore
from ister.storage.spec_api.reliable_dispatch import CACHE_BYTES_MAX
from parts.cloud import open_parts
from parts.cloud import run as run_for_real
from sim.machine import run


class CountingStorage(InMemoryStorage):
    """A storage that counts how often it is read."""

    reads = 0

    async def create_reader(self, position):
        self.reads += 1
        return await super().create_reader(position)


async def stored(count, payload=b"x"):
    storage = CountingStorage()
    await storage.append_messages([StreamMessage(payload) for _ in range(count)])
    return storage


async def pass_time(seconds):
    """Let virtual time pass; nobody waits for it."""
    loop = asyncio.get_running_loop()
    moment = loop.create_future()
    loop.call_later(seconds, moment.set_result, None)
    await moment


async def read_all(storage):
    return await (await storage.create_reader(StartPosition.offset(0))).read()


def test_a_hit_is_what_the_storage_gave_and_does_not_ask_it_again():
    async def story():
        storage = await stored(10)
        messages = await read_all(storage)
        cache = TopicCache(storage, 100, 10)
        storage.reads = 0
        assert await cache.get(4) == messages[4]
        assert storage.reads == 1
        assert cache.offsets == [4, 5, 6, 7, 8, 9]
        assert [await cache.get(offset) for offset in range(4, 10)] == messages[4:]
        assert storage.reads == 1
        assert await cache.get(3) == messages[3]
        assert storage.reads == 2

    run(story())


def test_a_fetch_from_objects_leaves_no_reader_behind(tmp_path):
    """I17."""

    async def story():
        parts = await open_parts(tmp_path)
        for _ in range(20):
            await parts.add_file(1, 100_000)
        await parts.uploader.drain()
        await parts.storage.prune(20)
        tasks = asyncio.all_tasks()
        cache = TopicCache(parts.storage, 1, 60)
        for offset in range(10):
            assert (await cache.get(offset)).offset == offset
            assert asyncio.all_tasks() == tasks
        cache.clear()
        await parts.close()

    run_for_real(story())


def test_i10_it_never_holds_more_than_its_capacity_and_lets_the_least_used_go():
    async def story():
        storage = await stored(50)
        messages = await read_all(storage)
        cache = TopicCache(storage, 3, 10)
        for message in messages[:3]:
            cache.put(message)
        await cache.get(0)
        cache.put(messages[3])
        assert cache.offsets == [0, 2, 3]
        cache.put(messages[2])
        assert cache.offsets == [0, 2, 3]
        cache.put(messages[4])
        assert cache.offsets == [2, 3, 4]
        assert (await cache.get(20)).offset == 20
        assert cache.offsets == [20, 21, 22]

    run(story())


def test_i10_large_messages_are_bounded_by_their_bytes():
    async def story():
        third = CACHE_BYTES_MAX // 3
        storage = await stored(5, bytes(third))
        cache = TopicCache(storage, 100, 10)
        for message in await read_all(storage):
            cache.put(message)
        assert cache.offsets == [2, 3, 4]
        cache.put(StreamMessage(bytes(CACHE_BYTES_MAX + 1)))
        assert cache.offsets == [2, 3, 4]
        cache.forget_below(5)
        for message in await read_all(storage):
            cache.put(message)
        assert cache.offsets == [2, 3, 4], "what was let go no longer counts"

    run(story())


def test_what_is_not_used_for_a_while_is_dropped_and_what_is_used_stays():
    async def story():
        storage = await stored(3)
        cache = TopicCache(storage, 100, 10)
        for message in await read_all(storage):
            cache.put(message)
        await pass_time(6)
        await cache.get(1)
        await pass_time(3.9)
        assert cache.offsets == [0, 1, 2]
        await pass_time(0.2)
        assert cache.offsets == [1]
        await pass_time(5.8)
        assert cache.offsets == [1]
        await pass_time(0.2)
        assert cache.offsets == []
        assert asyncio.get_running_loop()._scheduled == [], "an empty cache waits for nothing"
        assert (await cache.get(0)).offset == 0
        await pass_time(10.1)
        assert cache.offsets == []

    run(story())


def test_clearing_stops_the_timer():
    async def story():
        storage = await stored(3)
        cache = TopicCache(storage, 100, 10)
        await cache.get(0)
        cache.clear()
        assert cache.offsets == []
        assert all(handle.cancelled() for handle in asyncio.get_running_loop()._scheduled)

    run(story())


def test_an_offset_that_is_not_stored_is_an_error_and_not_a_wait():
    async def story():
        storage = await stored(3)
        await storage.prune(1)
        cache = TopicCache(storage, 100, 10)
        for offset in (-1, 0, 3):
            with pytest.raises(OffsetOutOfRangeError):
                await cache.get(offset)

    run(story())


def test_a_cache_that_is_given_another_storage_forgets_the_first_ones_messages():
    async def story():
        first, second = await stored(3, b"first"), await stored(3, b"second")
        cache = TopicCache(first, 100, 10)
        assert (await cache.get(0)).payload == b"first"
        store = TopicStore(TopicName.parse("/default/t"), second, cache)
        assert cache.offsets == []
        assert (await store.read_message(0)).payload == b"second"

    run(story())


class SlowReader(Reader):
    """A reader that reads at once and answers when it is told to."""

    def __init__(self, reader, go):
        super().__init__()
        self.reader = reader
        self.go = go

    async def _read(self):
        messages = await self.reader.read()
        await self.go.wait()
        return messages


def slow(storage, go):
    create_reader = storage.create_reader

    async def create_slow_reader(position):
        return SlowReader(await create_reader(position), go)

    storage.create_reader = create_slow_reader
    return storage


@pytest.mark.parametrize("change", ["other storage", "pruned"])
def test_a_read_that_was_under_way_does_not_bring_back_what_was_forgotten(change):
    async def story():
        go = asyncio.Event()
        storage = slow(await stored(3), go)
        cache = TopicCache(storage, 100, 10)
        fetching = asyncio.ensure_future(cache.get(1))
        await pass_time(0.1)
        if change == "pruned":
            cache.forget_below(await storage.prune(3))
        else:
            cache.attach(await stored(3))
        go.set()
        assert (await fetching).offset == 1
        assert cache.offsets == []

    run(story())


def test_pruning_a_topic_empties_its_cache_too():
    async def story():
        storage = await stored(6)
        store = TopicStore(TopicName.parse("/default/t"), storage, TopicCache(storage, 100, 10))
        await store.read_message(0)
        assert await store.prune(4) == 4
        assert store.cache.offsets == [4, 5]
        with pytest.raises(OffsetOutOfRangeError):
            await store.read_message(3)

    run(story())


@pytest.mark.parametrize(
    ("capacity", "idle_s", "setting"), [(0, 10, "capacity"), (1.5, 10, "capacity"), (1, 0, "idle_s")]
)
def test_senseless_settings_are_refused_by_name(capacity, idle_s, setting):
    with pytest.raises(InvalidConfigError, match=setting):
        TopicCache(InMemoryStorage(), capacity, idle_s)
