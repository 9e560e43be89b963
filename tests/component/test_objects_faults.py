"""An S3 server behind bad weather: no wrong byte, no wrong verdict, no call without an end."""

import asyncio
import random
import time
from collections import Counter

import pytest

from ister.core.errors import (
    ObjectExistsError,
    PutUnknownError,
    StoreRefusedError,
    StoreUnavailableError,
)
from ister.ports.objects import OpendalStore, RetryOptions, open_store
from services.fault_proxy import KINDS, FaultProxy
from services.moto import shared_moto
from services.objects_contract import keys

pytestmark = pytest.mark.slow

RETRY_OPTIONS = RetryOptions(attempt_s=0.8, retries=2, pause_s_min=0.01, pause_s_max=0.05)
SIZES = {0: 1, 10: 4, 3000: 10, 200_000: 1}  # and how often
SIZE_MAX = max(SIZES)
# A put is a write, a look and perhaps a read; each of them ends by its own limit, and the machine is busy.
CALL_S_MAX = 3 * RETRY_OPTIONS.whole(SIZE_MAX) + 2


class Weather:
    """Puts and reads through a proxy, and what came of them."""

    def __init__(self, store: OpendalStore, seed: int) -> None:
        self.store = store
        self.random = random.Random(seed)
        self.sent: dict[str, bytes] = {}
        self.acked: list[str] = []
        self.ends: Counter[str] = Counter()
        self.slowest = 0.0

    async def act(self, n: int) -> None:
        began = time.monotonic()
        match self.random.randrange(10):
            case 0 | 1 | 2 | 3:
                await self.put(f"w/{n // 100:06}/{n:08}")
            case 4 if self.acked:
                await self.put(self.random.choice(self.acked))
            case 5:
                await self.look_around(f"w/{self.random.randrange(n + 1) // 100:06}/")
            case _:
                await self.read()
        self.slowest = max(self.slowest, time.monotonic() - began)

    async def put(self, key: str) -> None:
        again = key in self.sent
        data = self.sent.setdefault(key, self.random.randbytes(*self.random.choices([*SIZES], SIZES.values())))
        try:
            info = await self.store.put_if_absent(key, data)
        except ObjectExistsError:
            self.ends["put: exists"] += 1
        except PutUnknownError:
            self.ends["put: unknown"] += 1
        else:
            assert not again, "a taken name was given again"
            assert (info.key, info.size) == (key, len(data))
            self.ends["put: done"] += 1
            self.acked.append(key)

    async def read(self) -> None:
        if not self.acked:
            return
        key = self.random.choice(self.acked)
        data = self.sent[key]
        start = self.random.randrange(len(data) + 1)
        stop = self.random.randrange(start, len(data) + 1)
        try:
            assert await self.store.read(key, start, stop) == data[start:stop]
        except StoreUnavailableError:
            self.ends["read: unavailable"] += 1
        else:
            self.ends["read: done"] += 1

    async def look_around(self, prefix: str) -> None:
        before = {key for key in self.acked if key.startswith(prefix)}
        try:
            found = {info.key: info.size async for info in self.store.list(prefix)}
        except StoreUnavailableError:
            self.ends["list: unavailable"] += 1
            return
        assert before <= found.keys(), "a listing that ends without an error is whole"
        assert all(len(self.sent[key]) == size for key, size in found.items())
        self.ends["list: done"] += 1


def test_f21_bad_weather_before_an_s3_server_gives_no_wrong_byte(count, tell):
    calls = count(150, 28_000)

    async def main():
        moto = shared_moto()
        root = f"{moto.make_bucket()}/p"
        async with FaultProxy(moto.port, seed=21, hung_s=1.5) as proxy:
            weather = Weather(
                open_store(moto.settings(root, endpoint=f"http://127.0.0.1:{proxy.port}"), retry=RETRY_OPTIONS), seed=7
            )
            numbers = iter(range(calls))

            async def work():
                for n in numbers:
                    await weather.act(n)

            async with asyncio.TaskGroup() as group:
                for _ in range(6):
                    group.create_task(work())
        calm = open_store(moto.settings(root))
        there = 0
        for key, data in weather.sent.items():
            info = await calm.stat(key)
            assert info is not None or key not in weather.acked, f"{key} was acknowledged and is gone"
            if info is not None:
                there += 1
                assert await calm.read(key, 0, info.size) == data
        return weather, proxy.counts, there

    weather, counts, there = asyncio.run(main())
    assert all(counts[kind] for kind in KINDS), counts
    assert weather.ends["put: done"] > calls // 8, weather.ends
    assert weather.ends["read: done"] > calls // 8, weather.ends
    assert weather.slowest < CALL_S_MAX
    ends = ", ".join(f"{end} {n}" for end, n in sorted(weather.ends.items()))
    tell(
        "F21",
        f"{calls} calls through {counts.total() - counts['none']} faults in {counts.total()} requests: 0 wrong bytes; "
        f"{ends}; {there} objects compared, slowest call {weather.slowest:.1f} s",
    )


def through(kind, act, *, faults_max=1 << 30, retry=RETRY_OPTIONS):
    """Run `act(store behind the fault, calm store)`."""

    async def main():
        moto = shared_moto()
        root = moto.make_bucket()
        async with FaultProxy(moto.port, rate=1.0, kinds=(kind,), hung_s=3.0, faults_max=faults_max) as proxy:
            settings = moto.settings(root, endpoint=f"http://127.0.0.1:{proxy.port}")
            return await act(open_store(settings, retry=retry), open_store(moto.settings(root))), proxy.counts

    return asyncio.run(main())


async def ending(call):
    try:
        return await call
    except (StoreUnavailableError, PutUnknownError) as error:
        return error


LANDED = {"lost", "hung", "cut", "5xx-after"}  # the server has acted, and we are not told


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_alone_ends_in_the_error_that_says_what_is_known(kind):
    retry = (
        RETRY_OPTIONS if kind != "hung" else RetryOptions(attempt_s=0.3, retries=1, pause_s_min=0.01, pause_s_max=0.05)
    )

    async def act(store, calm):
        await calm.put_if_absent("old", b"x" * 5000)
        put = await ending(store.put_if_absent("new", b"y" * 5000))
        return put, await ending(store.read("old", 0, 5000)), await calm.stat("new")

    (put, read, new), counts = through(kind, act, retry=RetryOptions() if kind in {"slow", "short"} else retry)
    if kind in {"slow", "short"}:
        assert put.size == new.size == 5000
    else:
        assert isinstance(put, PutUnknownError), put
        assert (new is not None) == (kind in LANDED)
        assert counts[kind] >= 2 * (retry.retries + 1), "each call was tried again"
    if kind == "slow":
        assert read == b"x" * 5000
    else:
        assert isinstance(read, StoreUnavailableError), read


def test_f20_an_answer_that_is_lost_once_is_told_as_exists_and_the_object_is_ours():
    async def act(store, calm):
        with pytest.raises(ObjectExistsError):
            await store.put_if_absent("x", b"once")
        assert await calm.read("x", 0, 4) == b"once"

    _, counts = through("lost", act, faults_max=1)
    assert counts == {"lost": 1, "none": 1}


def test_a_server_that_never_answers_is_given_up_in_bounded_time():
    retry = RetryOptions(attempt_s=0.1, retries=1, pause_s_min=0.01, pause_s_max=0.02)

    async def act(store, _):
        began = time.monotonic()
        ends = [await ending(store.put_if_absent("x", b"1")), await ending(store.read("x", 0, 1))]
        return ends, time.monotonic() - began

    (ends, spent), _ = through("hung", act, retry=retry)
    assert [type(end) for end in ends] == [PutUnknownError, StoreUnavailableError]
    assert spent < 2.5


def test_a_bucket_that_is_not_there_is_a_wrong_configuration():
    async def main():
        store = open_store(shared_moto().settings("no-such-bucket"), retry=RETRY_OPTIONS)
        for call in (store.put_if_absent("x", b"1"), store.read("x", 0, 1), keys(store)):
            with pytest.raises(StoreRefusedError, match="bucket"):
                await call

    asyncio.run(main())
