"""What every metadata store must do, as a class of tests.

A test module inherits from it and has a fixture `new`, an async function that gives a new and empty store:

    class TestEtcd36(MetadataContract): ...

`ttl_s` is the shortest lease the store grants. Each test closes its store.
"""

import asyncio
import random

import pytest

from ister.core.errors import InvalidMessageError, LeaseLostError, MetadataUnavailableError
from ister.ports.metadata import Change, Entry

DEADLINE_S = 120


def run(main):
    return asyncio.run(asyncio.wait_for(main, DEADLINE_S))


async def take(watch, count):
    return [await anext(watch) for _ in range(count)]


async def until(condition, timeout_s=DEADLINE_S):
    """Wait until an async function gives something true; returns it."""
    async with asyncio.timeout(timeout_s):
        while not (found := await condition()):  # noqa: ASYNC110  # the condition is in another process
            await asyncio.sleep(0.01)
    return found


def with_store(test):
    """Run an async test with a new store, and close it."""

    def sync(self, new):
        async def main():
            store = await new()
            try:
                await test(self, store)
            finally:
                await store.close()

        run(main())

    sync.__name__ = test.__name__
    return sync


class MetadataContract:
    ttl_s = 0.3

    @with_store
    async def test_a_key_is_absent_set_replaced_and_removed(self, store):
        assert await store.get("/a") is None
        first = await store.put("/a", b"1")
        assert await store.get("/a") == Entry("/a", b"1", first)
        second = await store.put("/a", b"2")
        assert second > first > 0
        assert await store.get("/a") == Entry("/a", b"2", second)
        assert await store.delete("/a") is True
        assert await store.get("/a") is None
        assert await store.delete("/a") is False
        assert await store.put("/a", b"3") > second + 1

    @with_store
    async def test_versions_grow_with_changes_and_only_with_them(self, store):
        versions = [await store.version()]
        versions.append(await store.put("/a", b""))
        versions.append(await store.put("/b", b""))
        versions.append(await store.cas("/c", b"", version=0))
        before = await store.version()
        assert before == versions[-1]
        await store.get("/a")
        await store.list("/")
        assert await store.cas("/a", b"no", version=0) is None
        assert await store.delete("/gone") is False
        assert await store.delete("/a", version=versions[2]) is False
        assert await store.version() == before
        await store.delete("/a")
        versions.append(await store.version())
        assert versions == sorted(set(versions))

    @with_store
    async def test_cas_and_delete_act_only_at_the_version_they_were_given(self, store):
        assert await store.cas("/a", b"x", version=7) is None
        first = await store.cas("/a", b"1", version=0)
        assert await store.cas("/a", b"no", version=0) is None
        assert await store.cas("/a", b"no", version=first + 1) is None
        second = await store.cas("/a", b"2", version=first)
        assert await store.cas("/a", b"no", version=first) is None
        assert await store.get("/a") == Entry("/a", b"2", second)
        assert await store.delete("/a", version=first) is False
        assert await store.delete("/a", version=0) is False
        assert await store.delete("/a", version=second) is True
        assert await store.cas("/a", b"no", version=second) is None
        assert await store.cas("/a", b"3", version=0) > second

    @with_store
    async def test_of_16_who_compare_and_set_at_once_one_wins(self, store):
        for version in (0, await store.put("/b", b"before")):
            key = "/b" if version else "/a"
            answers = await asyncio.gather(*(store.cas(key, b"%d" % n, version=version) for n in range(16)))
            (winner,) = [n for n, answer in enumerate(answers) if answer is not None]
            assert await store.get(key) == Entry(key, b"%d" % winner, answers[winner])

    @with_store
    async def test_a_list_is_in_order_and_ends_at_the_prefix(self, store):
        names = ["/a", "/a/", "/a/1", "/a/10", "/a/2", "/a/\u00e9", "/a/\U0001f600", "/a0", "/ab", "/b"]
        for name in random.Random(1).sample(names, len(names)):
            await store.put(name, name.encode())

        async def keys(prefix, **given):
            entries = await store.list(prefix, **given)
            assert [entry.value.decode() for entry in entries] == [entry.key for entry in entries]
            return [entry.key for entry in entries]

        assert await keys("/") == names
        assert await keys("/a/") == names[1:7]
        assert await keys("/a") == names[:9]
        assert await keys("/c") == []
        assert await keys("/a/\U0001f600") == [names[6]]
        assert await keys("/a/", limit=2) == names[1:3]
        assert await keys("/a/", limit=0) == []
        assert await keys("/a/", limit=100) == names[1:7]
        assert await keys("/a/", start="/a/10") == names[3:7]
        assert await keys("/a/", start="/a/11", limit=1) == ["/a/2"]
        assert await keys("/a/", start="/") == names[1:7]
        assert await keys("/a/", start="/b") == []
        assert await keys("/a/", reverse=True) == names[6:0:-1]
        assert await keys("/a/", reverse=True, limit=2) == names[6:4:-1]
        assert await keys("/a/", start="/a/10", reverse=True) == ["/a/10", "/a/1", "/a/"]
        assert await keys("/a/", start="/a/11", reverse=True, limit=1) == ["/a/10"]
        assert await keys("/a/", start="/b", reverse=True) == names[6:0:-1]
        assert await keys("/a/", start="/a", reverse=True) == []

    @with_store
    async def test_values_are_any_bytes_up_to_the_limit(self, store):
        for value in (b"", b"\0", bytes(range(256)), b"\xff" * 1_500_000):
            version = await store.put("/v", value)
            assert await store.get("/v") == Entry("/v", value, version)
        for act in (store.put("/v", b"x" * 1_500_001), store.cas("/v", b"x" * 1_500_001, version=version)):
            with pytest.raises(InvalidMessageError, match="1500001 bytes"):
                await act
        assert (await store.get("/v")).version == version

    @with_store
    async def test_200_entries_of_200_kilobytes_are_listed_and_watched(self, store):
        after = await store.version()
        values = {f"/big/{n:03}": random.Random(n).randbytes(200_000) for n in range(200)}
        for key, value in values.items():
            await store.put(key, value)
        assert {entry.key: entry.value for entry in await store.list("/big/")} == values
        last = await store.list("/big/", reverse=True, limit=70)
        assert [entry.key for entry in last] == sorted(values, reverse=True)[:70]
        changes = await take(store.watch("/big/", after=after), 200)
        assert {change.key: change.value for change in changes} == values

    @with_store
    async def test_a_watch_replays_history_and_goes_on_live(self, store):
        after = await store.put("/w/0", b"before")
        expected = []
        for n in range(100):
            key = f"/w/{n % 7}"
            if n % 5 == 4 and await store.delete(key):
                expected.append(Change(key, None, await store.version()))
            else:
                expected.append(Change(key, b"%d" % n, await store.put(key, b"%d" % n)))
            if n % 10 == 0:
                await store.put("/other", b"not ours")
                await store.put("/w", b"nor this")
        watch = store.watch("/w/", after=after)
        assert await take(watch, 100) == expected
        waiting = asyncio.create_task(anext(watch))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.05)
        version = await store.put("/w/live", b"!")
        assert await waiting == Change("/w/live", b"!", version)
        half = expected[49].version
        assert await take(store.watch("/w/", after=half), 51) == [*expected[50:], Change("/w/live", b"!", version)]
        assert await take(store.watch("/w/", after=version - 1), 1) == [Change("/w/live", b"!", version)]

    @with_store
    async def test_a_step_of_a_watch_that_is_cancelled_loses_nothing(self, store):
        watch = store.watch("/", after=await store.version())
        versions = []
        for n in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(watch), 0.02)
            versions += [await store.put("/a", b"%d" % n), await store.put("/b", b"%d" % n)]
            assert [change.version for change in await take(watch, 2)] == versions[-2:]

    @with_store
    async def test_many_watches_see_the_same(self, store):
        after = await store.version()
        watches = [asyncio.create_task(take(store.watch("/m/", after=after), 30)) for _ in range(20)]
        late = []
        for n in range(30):
            await store.put(f"/m/{n % 3}", b"%d" % n)
            if n % 10 == 0:
                late.append(asyncio.create_task(take(store.watch("/m/", after=after), 30)))
        seen = await asyncio.gather(*watches, *late)
        assert all(changes == seen[0] for changes in seen)
        assert [change.value for change in seen[0]] == [b"%d" % n for n in range(30)]

    @with_store
    async def test_a_watch_from_the_future_begins_there(self, store):
        now = await store.version()
        watch = store.watch("/", after=now + 2)
        for n in range(4):
            await store.put("/a", b"%d" % n)
        assert [change.value for change in await take(watch, 2)] == [b"2", b"3"]

    @with_store
    async def test_renewals_keep_a_lease_and_its_keys_beyond_its_time(self, store):
        lease = await store.lease(self.ttl_s)
        await store.put("/l", b"held", lease=lease)
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < began + 2.5 * self.ttl_s:
            assert 0 < lease.remaining_s <= self.ttl_s
            assert await store.get("/l") is not None
            await asyncio.sleep(self.ttl_s / 20)

    @with_store
    async def test_a_revoked_lease_takes_its_keys_along_at_one_version(self, store):
        lease = await store.lease(60)
        after = await store.version()
        for key in ("/l/2", "/l/1", "/l/free", "/l/other"):
            await store.put(key, b"", lease=lease)
        other = await store.lease(60)
        assert other.id != lease.id
        await store.put("/l/other", b"", lease=other)
        await store.put("/l/free", b"")
        assert await store.cas("/l/3", b"", version=0, lease=lease)
        await lease.revoke()
        gone = (await take(store.watch("/l/", after=after), 10))[7:]
        assert [(change.key, change.value) for change in gone] == [("/l/1", None), ("/l/2", None), ("/l/3", None)]
        assert len({change.version for change in gone}) == 1
        assert [entry.key for entry in await store.list("/l/")] == ["/l/free", "/l/other"]
        assert lease.remaining_s == 0
        await asyncio.wait_for(lease.lost(), 1)
        await lease.revoke()

    @with_store
    async def test_a_lease_may_have_more_keys_than_a_watch_reads_at_once(self, store):
        lease = await store.lease(60)
        names = [f"/l/{n:03}" for n in range(150)]
        for key in names:
            after = await store.put(key, b"", lease=lease)
        await lease.revoke()
        gone = await take(store.watch("/l/", after=after), 150)
        assert gone == [Change(key, None, gone[0].version) for key in names]
        last = await store.put("/l/after", b"")
        assert (await take(store.watch("/l/", after=gone[0].version), 1))[0].version == last

    @with_store
    async def test_f25_nothing_is_put_under_a_lost_lease(self, store):
        lease = await store.lease(60)
        await lease.revoke()
        before = await store.version()
        with pytest.raises(LeaseLostError):
            await store.put("/l", b"", lease=lease)
        with pytest.raises(LeaseLostError):
            await store.cas("/l", b"", version=0, lease=lease)
        assert await store.version() == before

    @with_store
    async def test_f25_a_lease_that_is_not_renewed_is_lost_here_before_its_keys_are_gone(self, store):
        lease = await store.lease(self.ttl_s)
        await store.put("/l", b"", lease=lease)
        await lease.stop()

        async def gone():
            return await store.get("/l") is None

        await until(gone)
        assert lease.remaining_s == 0, "it ended there before it ended here"
        await lease.lost()

    def test_close_ends_watches_and_refuses_calls(self, new):
        async def main():
            before = asyncio.all_tasks()
            store = await new()
            watch = store.watch("/", after=await store.version())
            idle = store.watch("/", after=0)
            lease = await store.lease(self.ttl_s)
            waiting = asyncio.create_task(anext(watch, "ended"))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(waiting), 0.02)
            await store.close()
            await store.close()
            assert await waiting == "ended"
            assert [change async for change in watch] == [change async for change in idle] == []
            for act in (store.get("/a"), store.put("/a", b""), store.list("/"), store.version(), store.lease(1)):
                with pytest.raises(MetadataUnavailableError, match="closed"):
                    await act
            await lease.lost()
            assert asyncio.all_tasks() == before

        run(main())

    @with_store
    async def test_the_name_says_where_it_is(self, store):
        assert store.name
        assert store.name in str(MetadataUnavailableError(store.name, "x", "y"))
