"""What every object store must do, as a class of tests.

A test module inherits from it and has a fixture `store`, which gives a new and empty CloudStore:

    class TestMinio(ObjectsContract): ...

`etags` says whether the store can tell an object by its etag, `many` how many keys the test of paging puts.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import numpy as np
import pytest

from ister.core.errors import (
    CorruptObjectError,
    MissingObjectError,
    ObjectExistsError,
    StoreRefusedError,
)
from ister.ports.objects import ObjectInfo

HOSTILE = [
    "", "/", "/a", "a/", "a//b", "..", "../a", "a/../b", "a/..", ".", "a/./b", " a", "a ", "a/ b", "a\nb", "a\0b",
    "a\\b", "\ud800", "a" * 1025, "ä" * 513,
]  # fmt: skip


def run(main):
    return asyncio.run(asyncio.wait_for(main, 60))


async def keys(store, prefix="", **given):
    return [info.key async for info in store.list(prefix, **given)]


class ObjectsContract:
    etags = False
    many = 1050

    def test_what_is_put_is_read_back_from_any_place(self, store):
        async def main():
            data = random.Random(1).randbytes(1000)
            info = await store.put_if_absent("a/b/c", data)
            assert (info.key, info.size) == ("a/b/c", 1000)
            assert await store.stat("a/b/c") == info
            for start, stop in ((0, 1000), (0, 1), (999, 1000), (10, 10), (0, 0), (1000, 1000), (17, 400)):
                assert await store.read("a/b/c", start, stop) == data[start:stop]
                assert await store.read("a/b/c", start, stop, etag=info.etag) == data[start:stop]

        run(main())

    def test_an_object_that_was_found_can_be_made_durable_and_stays_the_same(self, store):
        """I4."""

        async def main():
            info = await store.put_if_absent("a/b/c", b"abc")
            for data in (b"abc", memoryview(b"abc")):
                await store.make_durable("a/b/c", data)
                assert await store.stat("a/b/c") == info
                assert await store.read("a/b/c", 0, 3, etag=info.etag) == b"abc"
            assert await keys(store) == ["a/b/c"]
            with pytest.raises(ObjectExistsError):
                await store.put_if_absent("a/b/c", b"abd")

        run(main())

    def test_any_buffer_of_bytes_can_be_put(self, store):
        async def main():
            whole = np.arange(100, dtype=np.uint8)
            buffers = {
                "bytes": b"abc",
                "bytearray": bytearray(b"abcd"),
                "view": memoryview(b"xabcdex")[1:6],
                "writable": memoryview(bytearray(b"xabcdefx"))[1:7],
                "numpy": whole[3:50].data,
                "empty": b"",
            }
            for key, data in buffers.items():
                info = await store.put_if_absent(key, data)
                assert info.size == len(data)
                assert await store.read(key, 0, len(data)) == bytes(data)

        run(main())

    def test_a_name_is_given_once_and_the_first_bytes_stay(self, store):
        async def main():
            await store.put_if_absent("x", b"first")
            for data in (b"second", b"first", b""):
                with pytest.raises(ObjectExistsError) as error:
                    await store.put_if_absent("x", data)
                assert (error.value.key, error.value.store) == ("x", store.name)
            assert await store.read("x", 0, 5) == b"first"
            assert await keys(store) == ["x"]

        run(main())

    def test_of_sixteen_who_put_one_name_at_once_one_wins(self, store):
        async def main():
            contents = [bytes([n]) * (5000 + n) for n in range(16)]
            ends = await asyncio.gather(
                *(store.put_if_absent("d/x", data) for data in contents), return_exceptions=True
            )
            won = [n for n, end in enumerate(ends) if isinstance(end, ObjectInfo)]
            assert len(won) == 1, ends
            assert all(isinstance(end, ObjectExistsError) for n, end in enumerate(ends) if n != won[0]), ends
            winner = contents[won[0]]
            assert await store.stat("d/x") == ends[won[0]]
            assert await store.read("d/x", 0, len(winner)) == winner

        run(main())

    def test_what_is_not_there_is_said_to_be_missing(self, store):
        async def main():
            await store.put_if_absent("a/b", b"1")
            for key in ("c", "a", "a/c", "a/b/c", "a/B"):
                assert await store.stat(key) is None
                for start, stop in ((0, 1), (0, 0), (5, 9)):
                    with pytest.raises(MissingObjectError):
                        await store.read(key, start, stop)

        run(main())

    def test_bytes_beyond_the_end_are_an_error_and_never_a_short_answer(self, store):
        async def main():
            await store.put_if_absent("x", b"abcde")
            await store.put_if_absent("empty", b"")
            for key, start, stop in (
                ("x", 0, 6), ("x", 4, 6), ("x", 5, 6), ("x", 6, 6), ("x", 9, 12), ("x", 0, 1 << 40), ("empty", 0, 1),
            ):  # fmt: skip
                with pytest.raises(CorruptObjectError, match=str((await store.stat(key)).size)):
                    await store.read(key, start, stop)
            for start, stop in ((-1, 2), (3, 2), (-3, -1)):
                with pytest.raises(StoreRefusedError, match="no range"):
                    await store.read("x", start, stop)

        run(main())

    def test_another_objects_etag_is_noticed_where_there_are_etags(self, store):
        async def main():
            info = await store.put_if_absent("x", b"abc")
            other = await store.put_if_absent("y", b"abd")
            assert bool(info.etag) == self.etags
            for start, stop in ((0, 3), (1, 2), (1, 1)):
                if not self.etags:
                    assert await store.read("x", start, stop, etag='"other"') == b"abc"[start:stop]
                    continue
                with pytest.raises(CorruptObjectError, match=other.etag.strip('"')):
                    await store.read("x", start, stop, etag=other.etag)

        run(main())

    def test_a_listing_is_in_the_order_of_keys(self, store):
        async def main():
            names = [
                "a-1",
                "a.b",
                "a/b",
                "a/b-",
                "a/b.c",
                "a/b0",
                "a0",
                "aa",
                "A",
                "z/y/x/1",
                "z/y/x/0",
                "z/y.x",
                "ü/1",
            ]
            names[2:3] = ["a/b!/1", "a/b!/2", "a/bb/1"]
            for name in random.Random(2).sample(names, len(names)):
                await store.put_if_absent(name, name.encode())
            names.sort()
            assert [(i.key, i.size) async for i in store.list("")] == [(name, len(name.encode())) for name in names]
            for prefix in ("a", "a/", "a/b", "a/b!", "a/b!/", "z/y", "z/y/x/1", "b", "zz", "z/y/x/11", "ü"):
                assert await keys(store, prefix) == [name for name in names if name.startswith(prefix)]
            for after in (*names, "", "a", "a/", "a/b", "a/b!/1x", "zz", "z/y/"):
                for prefix in ("", "a/", "z"):
                    expected = [name for name in names if name > after and name.startswith(prefix)]
                    assert await keys(store, prefix, after=after) == expected, (prefix, after)

        run(main())

    def test_a_listing_of_thousands_has_every_key_once(self, store):
        async def main():
            names = [f"t/data-{n:020}.dnb" for n in range(self.many)]
            limit = asyncio.Semaphore(16)

            async def put(name):
                async with limit:
                    await store.put_if_absent(name, b"1")

            await asyncio.gather(*map(put, names), store.put_if_absent("s/x", b""), store.put_if_absent("u", b""))
            assert await keys(store, "t/") == names
            assert await keys(store, "t/data-", after=names[-8]) == names[-7:]
            listing = store.list("t/")
            assert [(await anext(listing)).key for _ in range(3)] == names[:3]
            await listing.aclose()

        run(main())

    def test_a_delete_may_be_repeated_and_frees_the_name(self, store):
        async def main():
            await store.delete("a/x")
            for data in (b"one", b"two"):
                await store.put_if_absent("a/x", data)
                await store.put_if_absent(f"a/{data.decode()}", data)
                assert await store.read("a/x", 0, 3) == data
                for _ in range(2):
                    await store.delete("a/x")
                assert await store.stat("a/x") is None
            assert await keys(store) == ["a/one", "a/two"]

        run(main())

    def test_hostile_keys_are_refused_before_the_store_is_asked(self, store):
        async def main():
            for key in HOSTILE:
                for act in (
                    lambda key=key: store.put_if_absent(key, b"1"),
                    lambda key=key: store.read(key, 0, 1),
                    lambda key=key: store.make_durable(key, b"1"),
                    lambda key=key: store.stat(key),
                    lambda key=key: store.delete(key),
                ):
                    with pytest.raises(StoreRefusedError):
                        await act()
            for prefix in ("../", "/", "a//", "a/../b", "\0"):
                with pytest.raises(StoreRefusedError):
                    await keys(store, prefix)
            assert await keys(store) == []

        run(main())

    def test_odd_but_honest_keys_are_taken(self, store):
        async def main():
            names = sorted(["a b/c d", "ü/漢字", "%2e%2e/x", "a+b&c=d?e#f", "...", "a/..b", "~", "'\"", "x" * 200])
            for name in names:
                await store.put_if_absent(name, name.encode())
            assert await keys(store) == names
            for name in names:
                data = name.encode()
                assert await store.read(name, 0, len(data)) == data

        run(main())

    def test_a_big_object_is_whole(self, store):
        async def main():
            data = random.Random(3).randbytes(20 << 20)
            info = await store.put_if_absent("big", memoryview(data))
            assert (await store.stat("big")).size == info.size == len(data)
            assert await store.read("big", 0, len(data), etag=info.etag) == data
            assert await store.read("big", 9_999_999, 15_000_001) == data[9_999_999:15_000_001]

        run(main())

    def test_a_cancelled_put_is_there_whole_or_not_at_all(self, store):
        async def main():
            data = random.Random(4).randbytes(1 << 20)
            for n in range(12):
                task = asyncio.ensure_future(store.put_if_absent(f"c/{n}", data))
                await asyncio.sleep(n * 0.002)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                # It may still land behind our back: whoever looks and puts again is told, and the bytes are these.
                if await store.stat(f"c/{n}") is None:
                    with suppress(ObjectExistsError):
                        await store.put_if_absent(f"c/{n}", data)
                assert await store.read(f"c/{n}", 0, len(data)) == data
                assert (await store.stat(f"c/{n}")).size == len(data)

        run(main())
