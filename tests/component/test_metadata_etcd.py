"""etcd that restarts, freezes, dies, forgets, and wants to know who we are (F25)."""

import asyncio
import signal
import socket
import time

import grpc
import pytest

from ister.core.errors import (
    InvalidMessageError,
    LeaseLostError,
    MetadataUnavailableError,
    MetadataUnknownError,
    WatchCompactedError,
)
from ister.ports.metadata import Entry
from ister.ports.metadata.etcd import EtcdMetadata
from ister.ports.metadata.store import check_writable
from services.etcd import Etcd
from services.metadata_contract import run, take, until
from services.ports import free_ports

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def etcd():
    with Etcd() as etcd:
        yield etcd


def in_thread(act, *arguments):
    return asyncio.create_task(asyncio.to_thread(act, *arguments))


def test_f25_a_watch_sees_every_change_once_through_restarts(etcd, count, tell):
    rounds = count(3, 50)

    async def main():
        store = await EtcdMetadata.open(etcd.endpoint, prefix="/restart", timeout_s=10)
        watches = [store.watch("/", after=await store.version()) for _ in range(2)]
        written, wrote = [], asyncio.Event()
        seen = [[] for _ in watches]

        async def write():
            n = 0
            while not wrote.is_set():
                n += 1
                try:
                    written.append((b"%d" % n, await store.put(f"/{n % 5}", b"%d" % n)))
                except MetadataUnknownError:
                    written.append((b"%d" % n, None))
                await asyncio.sleep(0.002)

        async def follow(watch, seen):
            async for change in watch:
                seen.append((change.value, change.version))

        followers = [asyncio.create_task(follow(*pair)) for pair in zip(watches, seen, strict=True)]
        writer = asyncio.create_task(write())
        for n in range(rounds):
            goal = len(written) + 20

            async def further(goal=goal):
                return len(written) >= goal

            await until(further)
            await in_thread(etcd.restart, (signal.SIGKILL, signal.SIGTERM)[n % 2])
        wrote.set()
        await writer
        last = await store.put("/last", b"last")

        async def all_seen():
            return all(changes and changes[-1][1] == last for changes in seen)

        await until(all_seen)
        await store.close()
        await asyncio.gather(*followers)
        assert seen[0] == seen[1]
        versions = [version for _, version in seen[0]]
        assert versions == sorted(set(versions)), "each once, in order"
        assert {pair for pair in written if pair[1]} <= set(seen[0])
        maybe = {value for value, version in written if version is None}
        assert {value for value, _ in seen[0]} - {value for value, version in written if version} <= maybe | {b"last"}
        return len(written), len(maybe)

    changes, unknown = asyncio.run(asyncio.wait_for(main(), 30 + 6 * rounds))
    tell("F25", f"a watch through {rounds} restarts of etcd: {changes} changes, {unknown} of unknown outcome")


@pytest.mark.parametrize("how", ["freeze", "kill"])
def test_f25_a_lease_is_lost_here_before_etcd_ends_it(how, count, tell):
    rounds = count(2 if how == "freeze" else 1, 25)

    async def main(etcd):
        for n in range(rounds):
            store = await EtcdMetadata.open(etcd.endpoint, prefix=f"/lease-{n}", timeout_s=0.3)
            lease = await store.lease(1)
            await store.put("/owner", b"", lease=lease)
            await asyncio.sleep((n % 7) * 0.11)  # at another moment between two renewals
            getattr(etcd, how)()
            cut = time.monotonic()
            await lease.lost()
            assert time.monotonic() - cut <= 1.05, "it was not renewed after the cut"
            assert lease.remaining_s == 0
            with pytest.raises(LeaseLostError):
                await store.put("/owner", b"", lease=lease)
            if how == "freeze":
                etcd.thaw()
            else:
                await in_thread(etcd.start)

            async def gone(store=store, lease=lease):
                assert lease.remaining_s == 0, "it came back"
                try:
                    return await store.get("/owner") is None
                except MetadataUnavailableError:
                    return False

            await until(gone)
            await store.close()

    with Etcd() as etcd:
        asyncio.run(asyncio.wait_for(main(etcd), 30 + 10 * rounds))
    tell("F25", f"{rounds} leases lost by cutting the connection ({how}), each here before there")


def test_f25_a_lease_that_etcd_ended_is_lost_here(etcd):
    async def main():
        store = await EtcdMetadata.open(etcd.endpoint)
        lease = await store.lease(60)
        await in_thread(etcd.ctl, "lease", "revoke", f"{lease.id:x}")
        with pytest.raises(LeaseLostError):
            await store.put("/owner", b"", lease=lease)
        await asyncio.wait_for(lease.lost(), 1)
        await store.close()

    run(main())


def test_f25_a_compacted_watch_is_told_so(etcd):
    async def main():
        store = await EtcdMetadata.open(etcd.endpoint, prefix="/compacted")
        first = await store.put("/a", b"1")
        second = await store.put("/a", b"2")
        last = await store.put("/a", b"3")
        await in_thread(etcd.ctl, "compact", str(last))
        for after in (0, first, second - 1):
            with pytest.raises(WatchCompactedError, match=f"behind version {after} any more; list again"):
                await anext(store.watch("/", after=after))
        (entry,) = await store.list("/")
        watch = store.watch("/", after=entry.version)
        fourth = await store.put("/a", b"4")
        assert (await anext(watch)).version == fourth
        await store.close()

    run(main())


def test_a_list_is_of_one_revision_while_keys_change_and_etcd_compacts(etcd):
    async def main():
        store = await EtcdMetadata.open(etcd.endpoint, prefix="/pages")
        for n in range(150):
            await store.put(f"/{n:03}", b"0")
        reading = store._cluster.read
        pages = []

        async def read_and_disturb(action, send, **given):
            answer = await reading(action, send, **given)
            pages.append(len(answer.kvs))
            if len(pages) in {1, 3}:
                version = await store.put("/149", b"%d" % len(pages))
                await store.put("/1495", b"new")
                if len(pages) == 1:
                    await in_thread(etcd.ctl, "compact", str(version))
            return answer

        store._cluster.read = read_and_disturb
        entries = await store.list("/")
        assert [entry.key for entry in entries] == [*(f"/{n:03}" for n in range(150)), "/1495"]
        assert entries[149].value == b"1", "the second try began before the second change"
        assert pages == [64, 64, 64, 23]
        await store.close()

    run(main())


def test_f25_what_was_not_sent_is_unavailable_and_what_was_is_unknown():
    async def main(etcd):
        store = await EtcdMetadata.open(etcd.endpoint, timeout_s=1)
        version = await store.put("/a", b"1")
        etcd.freeze()
        acts = (store.put("/a", b"2"), store.cas("/a", b"2", version=version), store.delete("/a"))
        for answer in await asyncio.gather(*acts, return_exceptions=True):
            assert isinstance(answer, MetadataUnknownError), answer
            assert "look before acting" in str(answer)
        acts = (store.get("/a"), store.list("/"), store.version(), store.lease(2))
        for answer in await asyncio.gather(*acts, return_exceptions=True):
            assert isinstance(answer, MetadataUnavailableError), answer
        etcd.thaw()
        etcd.kill()

        async def noticed():
            began = time.monotonic()
            try:
                await store.put("/a", b"3")
            except MetadataUnknownError:
                return False
            except MetadataUnavailableError:
                assert time.monotonic() - began < 4
                return True

        await until(noticed)
        for act in (store.cas("/a", b"", version=0), store.delete("/a"), store.get("/a"), store.lease(2)):
            with pytest.raises(MetadataUnavailableError, match="nothing was changed"):
                await act
        await in_thread(etcd.start)
        patient = await EtcdMetadata.open(etcd.endpoint)
        assert await patient.put("/a", b"4") > version
        await patient.close()
        await store.close()

    with Etcd() as etcd:
        run(main(etcd))


def test_f25_a_change_in_flight_when_the_store_is_closed_is_unknown():
    async def main(etcd):
        store = await EtcdMetadata.open(etcd.endpoint)
        etcd.freeze()
        acts = [asyncio.create_task(act) for act in (store.put("/a", b""), store.get("/a"))]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(acts[0]), 0.05)
        await store.close()
        answers = await asyncio.gather(*acts, return_exceptions=True)
        assert [type(answer) for answer in answers] == [MetadataUnknownError, MetadataUnavailableError]

    with Etcd() as etcd:
        run(main(etcd))


def test_the_next_member_is_asked_when_one_cannot_be_reached(etcd):
    async def main():
        silent = socket.create_server(("127.0.0.1", 0))  # accepts, and never says a word
        dead = f"127.0.0.1:{free_ports(1)[0]}"
        mute = f"127.0.0.1:{silent.getsockname()[1]}"
        with silent:
            for others in ([dead], [mute], [dead, mute]):
                began = time.monotonic()
                store = await EtcdMetadata.open([*others, f"127.0.0.1:{etcd.client}"], prefix="/next")
                version = await store.put("/a", b"1")
                assert await store.get("/a") == Entry("/a", b"1", version)
                assert (await take(store.watch("/", after=version - 1), 1))[0].version == version
                assert time.monotonic() - began < 3
                await store.close()
            with pytest.raises(MetadataUnavailableError, match="no member of the cluster can be reached"):
                await EtcdMetadata.open([dead, mute], timeout_s=0.3)

    run(main())


def test_f25_a_frozen_member_is_left_for_another(etcd):
    """Two clusters of one member each stand for two members of one: reads do not care."""

    async def main(other):
        async with asyncio.timeout(20):
            store = await EtcdMetadata.open([other.endpoint, etcd.endpoint], timeout_s=2, prefix="/frozen")

            async def both_stand():
                return all(
                    member.channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY
                    for member in store._cluster._members
                )

            await until(both_stand)
            store._cluster._asked = 0
            other.freeze()
            began = time.monotonic()
            assert await store.get("/a") is None
            assert await store.get("/a") is None
            assert time.monotonic() - began < 1.9, "only the first call waited"
            other.thaw()
            await store.close()

    with Etcd() as other:
        asyncio.run(main(other))


def test_a_server_with_a_smaller_limit_says_so():
    async def main(etcd):
        store = await EtcdMetadata.open(etcd.endpoint)
        with pytest.raises(InvalidMessageError, match="too large"):
            await store.put("/a", b"x" * 100_000)
        await store.close()

    with Etcd(flags=("--max-request-bytes", "50000")) as etcd:
        run(main(etcd))


def test_large_changes_come_in_fragments_and_a_cut_between_them_repeats_nothing():
    async def main(etcd):
        store = await EtcdMetadata.open(etcd.endpoint)
        lease = await store.lease(60)
        after = await store.version()
        for n in range(40):
            await store.put(f"/{n:02}", b"x" * 40_000, lease=lease)
        await lease.revoke()
        watch = store.watch("/", after=after)
        seen = []
        while len(seen) < 80:
            seen.append(await anext(watch))
            if len(watch._read_ahead) == 0:
                watch._drop()
        assert [change.key for change in seen] == [f"/{n:02}" for n in range(40)] * 2
        assert [change.value is None for change in seen] == [False] * 40 + [True] * 40
        await store.close()

    with Etcd(flags=("--max-request-bytes", "50000")) as etcd:
        run(main(etcd))


def test_a_probe_of_an_etcd_that_is_full_says_so_and_writes_nothing():
    """L12."""

    async def main(etcd):
        store = await EtcdMetadata.open(etcd.endpoint, root="/danube-data")
        version = await store.version()
        await check_writable(store, "/danube-data")
        assert await store.version() == version

        async def fill():
            for number in range(1000):
                await store.put(f"/danube-data/{number}", bytes(100_000))

        with pytest.raises(MetadataUnavailableError, match="space"):
            await fill()
        for _ in range(2):
            with pytest.raises(MetadataUnavailableError, match="space"):
                await check_writable(store, "/danube-data")
        assert await store.get("/danube-data/0") is not None
        await store.close()

    with Etcd(flags=("--quota-backend-bytes", "1000000")) as etcd:
        run(main(etcd))
