"""Who serves a subscription: what a key says, what a broker does with it, and what becomes of progress."""

import asyncio
from functools import wraps

import pytest

from ister.broker.cluster.subscription_leases import SubscriptionLeases, lease_key
from ister.core.errors import (
    CorruptMetadataError,
    CursorTakenError,
    DrainingError,
    MetadataUnavailableError,
    PreconditionError,
)
from ister.core.names import TopicName
from ister.core.ownership.subscriptions import Claim, LeaseHolder, claim_of, may_release
from ister.ports.metadata import MemoryMetadata
from ister.storage.cursors.metadata import MetadataCursors
from sim.machine import run as run_in_virtual_time

TOPIC = TopicName.parse("/default/orders")
ROOT = "/danube-data/persistent_storage/iceberg"
US, THEM = "http://us:6650", "http://them:6650"


def on_a_loop(test):
    """Make a test of a coroutine function."""

    @wraps(test)
    def run():
        asyncio.run(test())

    return run


@pytest.mark.parametrize(
    ("found", "claim"),
    [
        (None, Claim.FREE),
        (LeaseHolder(US, 7), Claim.OURS),
        (LeaseHolder(US, 6), Claim.EARLIER),
        (LeaseHolder(THEM, 7), Claim.OTHER),
        (LeaseHolder(THEM, 6), Claim.OTHER),
    ],
)
def test_a_key_says_who_serves_a_subscription(found, claim):
    assert claim_of(found, LeaseHolder(US, 7)) is claim


@pytest.mark.parametrize(
    ("live", "idle_s", "may"), [(0, 10.1, True), (0, 10.0, False), (0, 0.0, False), (1, 99.0, False)]
)
def test_a_subscription_goes_when_nobody_has_a_place_and_nobody_came(live, idle_s, may):
    assert may_release(live=live, idle_s=idle_s, grace_s=10.0) is may


def test_a_holder_survives_being_stored_and_what_is_not_one_is_refused():
    holder = LeaseHolder(THEM, 2**62)
    assert LeaseHolder.load("/k", holder.dump()) == holder
    for wrong in (b"", b"[]", b"{}", b'{"version":2,"broker_url":"x","id":1}', b'{"version":1,"broker_url":1,"id":1}',
                  b'{"version":1,"broker_url":"x","id":true}'):  # fmt: skip
        with pytest.raises(CorruptMetadataError):
            LeaseHolder.load("/k", wrong)


class Brokers:
    """Brokers on one metadata store; `lost` says what each has lost."""

    def __init__(self, ttl_s=30.0):
        self.metadata = MemoryMetadata()
        self.ttl_s = ttl_s
        self.lost = {}
        self._made = []

    def leases(self, url=US, metadata=None):
        lost = self.lost.setdefault(url, [])
        made = SubscriptionLeases(metadata or self.metadata, ROOT, url=lambda: url, lost=lost.extend, ttl_s=self.ttl_s)
        self._made.append(made)
        return made

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for made in self._made:
            await made.close()
        await self.metadata.close()


@on_a_loop
async def test_one_broker_holds_it_and_the_other_is_told_which():
    async with Brokers() as brokers:
        ours, theirs = brokers.leases(US), brokers.leases(THEM)
        await ours.take(TOPIC, "s")
        await ours.take(TOPIC, "s")
        assert ours.holds(TOPIC, "s")
        with pytest.raises(PreconditionError, match=US):
            await theirs.take(TOPIC, "s")
        assert not theirs.holds(TOPIC, "s")
        await theirs.take(TOPIC, "other")
        await ours.release(TOPIC, "s")
        assert not ours.holds(TOPIC, "s")
        await theirs.take(TOPIC, "s")
        assert brokers.lost == {US: [], THEM: []}


@on_a_loop
async def test_an_earlier_run_of_the_same_broker_keeps_it_until_its_lease_ends():
    async with Brokers() as brokers:
        earlier, now = brokers.leases(US), brokers.leases(US)
        await earlier.take(TOPIC, "s")
        with pytest.raises(DrainingError, match="earlier run"):
            await now.take(TOPIC, "s")
        await earlier.close()
        await now.take(TOPIC, "s")


@on_a_loop
async def test_a_broker_that_loses_its_lease_is_told_of_all_that_it_held_and_may_take_it_again():
    async with Brokers() as brokers:
        ours, theirs = brokers.leases(US), brokers.leases(THEM)
        await ours.take(TOPIC, "a")
        await ours.take(TOPIC, "b")
        ours._lease.lose()
        assert not ours.holds(TOPIC, "a")
        async with asyncio.timeout(5):
            while brokers.lost[US] != [(TOPIC, "a"), (TOPIC, "b")]:  # noqa: ASYNC110  # nobody sets an event for a test
                await asyncio.sleep(0)
        with pytest.raises(PreconditionError):
            await theirs.take(TOPIC, "a")  # the store's lease runs on for a while
        for name in ("a", "b"):
            await brokers.metadata.delete(lease_key(ROOT, TOPIC, name))  # as its end does
        await ours.take(TOPIC, "a")
        assert ours.holds(TOPIC, "a")
        assert not ours.holds(TOPIC, "b")


@on_a_loop
async def test_close_gives_everything_up_at_once():
    async with Brokers() as brokers:
        ours, theirs = brokers.leases(US), brokers.leases(THEM)
        await ours.take(TOPIC, "a")
        await ours.close()
        await theirs.take(TOPIC, "a")


class Flaky:
    """A store that does not answer some deletions."""

    def __init__(self, inner):
        self._inner = inner
        self.down = False

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def delete(self, key, **more):
        if self.down:
            raise MetadataUnavailableError("test", "delete", "down")
        return await self._inner.delete(key, **more)


@on_a_loop
async def test_what_could_not_be_given_up_is_given_up_later():
    async with Brokers() as brokers:
        flaky = Flaky(brokers.metadata)
        ours, theirs = brokers.leases(US, flaky), brokers.leases(THEM)
        await ours.take(TOPIC, "a")
        flaky.down = True
        await ours.release(TOPIC, "a")
        assert not ours.holds(TOPIC, "a")
        with pytest.raises(PreconditionError):
            await theirs.take(TOPIC, "a")
        flaky.down = False
        await ours.retry_releases()
        await theirs.take(TOPIC, "a")


# --- progress ---------------------------------------------------------------------------------------------------------


def cursors(metadata):
    return MetadataCursors(metadata, TOPIC, 1, 2**63, root=ROOT, place=lambda _: None)


@on_a_loop
async def test_progress_made_elsewhere_counts_when_a_subscription_is_adopted():
    metadata = MemoryMetadata()
    ours, theirs = cursors(metadata), cursors(metadata)
    assert await ours.adopt("s") is None
    assert await ours.put("s", 5) == 5
    assert await theirs.adopt("s") == 5
    ours.release("s")
    assert await theirs.advance_known({"s": 9}) == {"s": 9}
    assert ours.durable() == {"s": 5}, "it still holds retention back, as the least that it can be"
    assert await ours.adopt("s") == 9
    assert await ours.advance_known({"s": 12}) == {"s": 12}


@on_a_loop
async def test_what_is_released_is_not_written_though_others_are():
    metadata = MemoryMetadata()
    ours = cursors(metadata)
    for name in ("gone", "kept"):
        await ours.adopt(name)
        await ours.put(name, 1)
    ours._wanted["gone"] = 7  # moved, and not saved yet
    ours.release("gone")
    assert await ours.advance_known({"gone": 8, "kept": 4}) == {"kept": 4}
    theirs = cursors(metadata)
    assert (await theirs.adopt("gone"), await theirs.adopt("kept")) == (1, 4)


@on_a_loop
async def test_what_is_released_can_not_be_moved_and_holds_retention_back_as_before():
    metadata = MemoryMetadata()
    ours = cursors(metadata)
    await ours.adopt("s")
    await ours.put("s", 3)
    ours.release("s")
    for move in (ours.put, ours.advance):
        with pytest.raises(DrainingError, match="not served by this broker now"):
            await move("s", 9)
    assert ours.durable() == {"s": 3}


@on_a_loop
async def test_a_late_write_is_fenced_and_after_adopting_anew_it_goes_on():
    metadata = MemoryMetadata()
    late, now = cursors(metadata), cursors(metadata)
    await late.adopt("s")
    await late.put("s", 1)
    await now.adopt("s")
    await late.advance_known({"s": 3})  # it lands behind the new holder's look
    with pytest.raises(CursorTakenError):
        await now.advance_known({"s": 2})
    assert await now.adopt("s") == 3
    assert await now.advance_known({"s": 4}) == {"s": 4}


class Slow:
    """A store that answers writes only when it is let."""

    def __init__(self, inner):
        self._inner = inner
        self.gate = asyncio.Event()
        self.gate.set()
        self.held = []

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def cas(self, key, value, **more):
        if not self.gate.is_set():
            self.held.append(key)
        await self.gate.wait()
        return await self._inner.cas(key, value, **more)


def test_what_is_released_while_a_save_is_under_way_is_left_out_of_it():
    run_in_virtual_time(released_while_saving())


async def all_others_wait():
    """Return when no task can go on by itself: only then does virtual time move."""
    await asyncio.sleep(1)


async def released_while_saving():
    slow = Slow(MemoryMetadata())
    ours = cursors(slow)
    for name in ("first", "second"):
        await ours.adopt(name)
        await ours.put(name, 1)
    slow.gate.clear()
    saving = asyncio.ensure_future(ours.advance_known({"first": 5, "second": 5}))
    await all_others_wait()
    [held] = slow.held
    assert "first" in held, "it is at the first one now"
    ours.release("second")
    adopting = asyncio.ensure_future(ours.adopt("first"))
    await all_others_wait()
    assert not adopting.done(), "what is under way may change it"
    slow.gate.set()
    await saving
    assert await cursors(slow).adopt("second") == 1
    assert await adopting == 5
    assert await ours.advance_known({"first": 6}) == {"first": 6}
    assert await cursors(slow).adopt("second") == 1
