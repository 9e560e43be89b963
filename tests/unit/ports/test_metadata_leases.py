"""A lease ends here before it ends at the store, whatever the network and the wall clock do."""

import asyncio
import random
import time

import pytest

from ister.core.errors import InvalidConfigError, LeaseLostError, MetadataUnavailableError
from ister.ports.metadata import MemoryMetadata
from ister.ports.metadata.leases import RenewedLease
from sim.machine import run


class Network:
    """A store's side of one lease, with delays on the way there and back, and cuts."""

    def __init__(self, rng, ttl_s):
        self.rng = rng
        self.ttl_s = ttl_s
        self.delay_s = ttl_s * rng.choice((0.01, 0.15, 0.5))
        self.cut_from, self.cut_to = sorted(rng.uniform(0, 50) for _ in range(2))
        self.ends = self.now() + ttl_s

    @staticmethod
    def now():
        return asyncio.get_running_loop().time()

    async def renew(self, lease_id, timeout_s):
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.sleep(self.rng.uniform(0, self.delay_s))
                if self.cut_from < self.now() < self.cut_to:
                    await asyncio.sleep(self.cut_to - self.now())
                if self.now() >= self.ends:
                    raise LeaseLostError("sim")
                self.ends = self.now() + self.ttl_s
                await asyncio.sleep(self.rng.uniform(0, self.delay_s))
        except TimeoutError:
            raise MetadataUnavailableError("sim", "renew", "timeout") from None
        return self.ttl_s


async def nothing(lease_id):
    pass


def test_f15_f25_no_lease_holds_here_when_it_does_not_hold_there(count, tell, monkeypatch):
    seeds, lost = count(200, 2000), 0

    async def main(rng):
        wall = [0.0]
        monkeypatch.setattr(time, "time", lambda: wall[0])
        monkeypatch.setattr(time, "time_ns", lambda: int(wall[0] * 1e9))
        ttl_s = rng.choice((0.5, 1.0, 10.0))
        network = Network(rng, ttl_s)
        lease = RenewedLease(
            "sim", 1, ttl_s=ttl_s, sent=network.now(), renew=network.renew, revoke=nothing, monotonic=network.now
        )
        over = False
        while network.now() < 40:
            await asyncio.sleep(rng.uniform(0, 1))
            wall[0] += rng.choice((-3600, 0, 3600))
            held = lease.remaining_s
            assert held <= max(network.ends - network.now(), 0) + 1e-9
            assert not (over and held), "it came back"
            over = held == 0
        await lease.stop()
        return over

    for seed in range(seeds):
        lost += run(main(random.Random(seed)))
    monkeypatch.undo()
    assert 0 < lost < seeds
    tell("F15", f"{seeds} leases while the wall clock steps, {lost} of them lost by cuts")


def test_it_counts_from_the_moment_a_renewal_was_sent():
    async def main():
        loop = asyncio.get_running_loop()

        async def slow(lease_id, timeout_s):
            await asyncio.sleep(2)
            return 10

        lease = RenewedLease("sim", 1, ttl_s=10, sent=loop.time(), renew=slow, revoke=nothing, monotonic=loop.time)
        assert lease.remaining_s == 10
        await asyncio.sleep(3)
        assert lease.remaining_s == pytest.approx(7)
        await asyncio.sleep(2 + 1 / 3 + 0.001)
        assert lease.remaining_s == pytest.approx(8, abs=0.01), "sent at 3.3, answered at 5.3"
        await lease.stop()

    run(main())


def test_a_renewal_that_failed_is_tried_again():
    async def main():
        loop = asyncio.get_running_loop()
        sent = []

        async def shaky(lease_id, timeout_s):
            sent.append(loop.time())
            assert timeout_s == pytest.approx(4)
            if len(sent) % 3:
                raise MetadataUnavailableError("sim", "renew", "no route")
            return 12

        lease = RenewedLease("sim", 1, ttl_s=12, sent=loop.time(), renew=shaky, revoke=nothing, monotonic=loop.time)
        await asyncio.sleep(100)
        assert lease.remaining_s > 0
        assert sent[:6] == pytest.approx([4, 5, 6, 10, 11, 12])
        await lease.stop()

    run(main())


def test_an_answer_after_the_end_does_not_bring_it_back():
    async def main():
        loop = asyncio.get_running_loop()

        async def late(lease_id, timeout_s):
            await asyncio.sleep(20)
            return 10

        lease = RenewedLease("sim", 1, ttl_s=10, sent=loop.time(), renew=late, revoke=nothing, monotonic=loop.time)
        await lease.lost()
        assert loop.time() == pytest.approx(10)
        await asyncio.sleep(15)
        assert lease.remaining_s == 0
        await lease.stop()

    run(main())


def test_it_is_lost_at_once_when_the_store_says_so():
    async def main():
        loop = asyncio.get_running_loop()

        async def gone(lease_id, timeout_s):
            raise LeaseLostError("sim")

        lease = RenewedLease("sim", 1, ttl_s=9, sent=loop.time(), renew=gone, revoke=nothing, monotonic=loop.time)
        await lease.lost()
        assert loop.time() == pytest.approx(3)
        assert lease.remaining_s == 0

    run(main())


def test_f25_a_store_that_is_cut_off_loses_its_leases_and_their_keys(count):
    async def main(rng):
        loop = asyncio.get_running_loop()
        store = MemoryMetadata()
        lease = await store.lease(3)
        await store.put("/l", b"", lease=lease)
        await asyncio.sleep(rng.uniform(0, 10))
        store.cut()
        cut = loop.time()
        with pytest.raises(MetadataUnavailableError, match="cut off"):
            await store.get("/l")
        await asyncio.sleep(rng.uniform(0, 6))
        store.mend()
        held = lease.remaining_s > 0
        assert held or loop.time() - cut >= 2
        if not held:
            with pytest.raises(LeaseLostError):
                await store.put("/l", b"", lease=lease)
        await asyncio.sleep(4)
        holds = lease.remaining_s > 0
        assert (await store.get("/l") is not None) == holds
        assert held or not holds
        await store.close()
        return holds

    held = [run(main(random.Random(seed))) for seed in range(count(100, 1000))]
    assert 0 < sum(held) < len(held)


def test_a_lease_of_another_store_is_refused():
    async def main():
        stores = [MemoryMetadata(), MemoryMetadata()]
        leases = [await store.lease(10) for store in stores]
        assert leases[0].id == leases[1].id
        with pytest.raises(LeaseLostError):
            await stores[0].put("/a", b"", lease=leases[1])
        for store in stores:
            await store.close()

    run(main())


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan"), float("inf")])
def test_a_lease_lasts_some_time(ttl_s):
    async def main():
        store = MemoryMetadata()
        with pytest.raises(InvalidConfigError):
            await store.lease(ttl_s)

    run(main())


def test_an_error_that_nobody_expects_does_not_end_the_renewal():
    """C12."""

    async def main():
        now, renewed = asyncio.get_running_loop().time, []

        async def renew(_lease_id, _timeout_s):
            renewed.append(now())
            if len(renewed) == 1:
                raise ValueError("not expected")
            return 3.0

        lease = RenewedLease("sim", 1, ttl_s=3.0, sent=now(), renew=renew, revoke=nothing, monotonic=now)
        await asyncio.sleep(10)
        assert lease.remaining_s > 0
        assert len(renewed) > 5
        await lease.revoke()

    run(main())
